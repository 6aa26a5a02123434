"""Results of load, equilibrium and saturation, with a prefix cache or without."""

from typing import NamedTuple


class Sensitivity(NamedTuple):
    """Relative change of the sustainable rate for +10 % of each timing constant and limit; None for no such limit."""

    memory_tokens: float
    d0: float
    d1: float
    d2: float
    d3: float
    d4: float
    d5: float
    knee_tokens: float
    d6: float
    experts: float
    max_num_seqs: float | None
    max_num_batched_tokens: float | None


class Lever(NamedTuple):
    """Growth of the sustainable rate with a tenth more of a limit, or with a time a tenth shorter."""

    name: str  # a field of `Sensitivity`
    gain: float


class Load(NamedTuple):
    """Offered against sustainable load: the report's `load` block."""

    offered_rps: float
    work_rate: float
    load_factor_max: float  # α, which scales every rate until the first limit is met
    headroom: float
    sustainable_rps: float
    sustainable_rps_range: tuple[float, float] | None  # of the timing's error band
    sustainable_decode_tokens_per_s: float
    sensitivity: Sensitivity
    sustainable_low: float | None = (
        None  # 95 % interval of what runs served, requests/s; None: it is computed
    )
    sustainable_high: float | None = None

    def served(self, rate_rps: float, standard_error_rps: float) -> "Load":
        """Return the load against a rate that runs under a backlog served; all scale with iteration times alike."""
        factor, width = rate_rps / self.offered_rps, 1.96 * standard_error_rps
        times, band = rate_rps / self.sustainable_rps, self.sustainable_rps_range
        return self._replace(
            load_factor_max=factor,
            headroom=factor - 1,
            sustainable_rps=rate_rps,
            sustainable_rps_range=band and (times * band[0], times * band[1]),
            sustainable_decode_tokens_per_s=times * self.sustainable_decode_tokens_per_s,
            sustainable_low=rate_rps - width,
            sustainable_high=rate_rps + width,
        )


class ClassOccupancy(NamedTuple):
    """Requests of one class at the equilibrium, per stage and in flight; None where Λ >= 1."""

    name: str
    per_stage: float | None
    in_flight: float | None


class Equilibrium(NamedTuple):
    """The eviction-free equilibrium at the offered load; every number None where Λ >= 1."""

    kv_tokens: float | None
    kv_utilization: float | None
    iteration_time_s: float | None
    requests_in_flight: float | None
    decode_tokens_per_s: float | None
    prompt_iterations_per_s: float | None
    classes: tuple[ClassOccupancy, ...]


class Saturation(NamedTuple):
    """The equilibrium that exactly fills memory: n*, τ(M), n*/τ(M)."""

    admissions_per_iteration: float
    iteration_time_s: float
    throughput_rps: float
