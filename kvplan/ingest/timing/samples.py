"""Records of what files say of iterations: samples, loads that clients measured, requests of a run, averages."""

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass, field, replace
from typing import NamedTuple

from kvplan.model import FloatArray, IntArray, Parallelism
from kvplan.model.parallelism import ALONE

Range = tuple[int, int]  # whole numbers, evenly from the first to the second


@dataclass(frozen=True, slots=True)
class LeftOut:
    """Rows that gave nothing: why, how many, and the line of the first."""

    reason: str
    count: int
    line: int


@dataclass(frozen=True, slots=True)
class FromFile:
    """Where something was read: what the format is called, what `group` of several in a file it is, what to note."""

    source: str
    format: str
    _: KW_ONLY
    group: str = ""  # "llama2-70b, a100-80gb, TP2"; empty where a file does not say
    left_out: tuple[LeftOut, ...] = ()
    notes: tuple[str, ...] = ()
    sha256: str = ""  # of the bytes as stored; empty for lines that are no file's


@dataclass(frozen=True, slots=True, kw_only=True)
class Samples(FromFile):
    """Iterations of one replica, measured or averaged; arrays of shape (n_samples,).

    With `hidden_prefill`, recomputed prefill took time but is not in `prefill_tokens`.
    """

    kv_tokens: FloatArray  # K: KV of the sequences in the batch
    prefill_tokens: FloatArray  # P: prompt tokens computed
    sequences: FloatArray  # B: sequences in the batch
    seconds: FloatArray  # τ
    line: IntArray  # in the file, counted from 1
    hidden_prefill: bool = False
    overlap: float = 1.0  # samples that have an iteration in them
    requests: "RequestLog | None" = None  # of the run, where the samples come from them


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestLog(FromFile):
    """Requests of a run as they were served, in the order of the file; arrays of shape (n_requests,).

    Times are seconds from the first arrival on. `scheduled_s` is when a request first ran, or its arrival where the
    file does not say. `cached_tokens` of the prompt were found in the prefix cache.
    """

    input_tokens: IntArray
    output_tokens: IntArray
    arrival_s: FloatArray
    scheduled_s: FloatArray
    first_token_s: FloatArray
    last_token_s: FloatArray
    line: IntArray
    cached_tokens: IntArray


@dataclass(frozen=True, slots=True, kw_only=True)
class Series(FromFile):
    """Averages over intervals, of a run whose KV usage was not recorded; arrays of shape (n_intervals,)."""

    end_s: FloatArray  # of each interval, from an origin of the file's own
    prompt_rate: FloatArray  # tokens per second
    generation_rate: FloatArray
    running: FloatArray  # requests at the end of the interval
    line: IntArray


class Waits(NamedTuple):
    """How the engine was told to let prompts wait, as `kvplan.model.Engine` has it."""

    receive_every_steps: int = 1
    batch_wait_iterations: int = 0
    batch_wait_tokens: int = 0


AT_ONCE = Waits()


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """A run at one load, as a client saw it; means over its requests, None for what was not measured."""

    line: int = field(compare=False)  # in the file, counted from 1
    inputs: Range  # prompt tokens
    outputs: Range  # generated tokens
    cached_tokens: int = 0  # of a prompt, found in the prefix cache: read and not computed
    concurrency: int | None = None  # requests in flight; None where they arrived at a rate
    rate_rps: float | None = None  # offered; None in a closed loop
    evenly: bool = False  # at equal gaps, and not at random
    # the first of a closed loop are anywhere in their answers, and do not begin together
    in_midst: bool = False
    requests: int | None = None  # that were measured
    waits: Waits = AT_ONCE
    max_num_batched_tokens: int | None = None  # None: what the replica has
    ttft_s: float | None = None
    tpot_s: float | None = None  # (E2E - TTFT) / (generated tokens - 1)
    e2e_s: float | None = None
    throughput_rps: float | None = None  # completed


@dataclass(frozen=True, slots=True, kw_only=True)
class Deployment:
    """Measured deployment in the words of a file; empty where it does not say."""

    model: str = ""
    gpu: str = ""
    engine: str = ""  # "vllm", "sglang" or "trtllm"
    parallelism: Parallelism = ALONE
    weight_dtype: str = ""
    other: str = ""  # what else tells those of a file apart
    arguments: frozenset[str] = frozenset()  # of the engine

    @property
    def name(self) -> str:
        """All that is known; empty where nothing is."""
        shared = str(self.parallelism) if self.model and self.gpu else ""
        known = (
            self.model,
            self.gpu,
            self.engine,
            shared,
            self.weight_dtype,
            self.other,
            *sorted(self.arguments),
        )
        return ", ".join(part for part in known if part)


@dataclass(frozen=True, slots=True)
class Sweep(FromFile):
    """Client measurements of one deployment at several concurrencies or rates."""

    deployment: Deployment
    points: tuple[Point, ...]


Measured = Samples | Sweep


def settings_of(runs: Sequence[Sweep]) -> tuple[dict[str, int], list[str]]:
    """Return the keys of [engine] that all runs set alike and not by default, and notes on keys that differ."""
    waits = [point.waits._asdict() for sweep in runs for point in sweep.points]
    seen = {key: {some[key] for some in waits} for key in Waits._fields if waits}
    common = {key: min(values) for key, values in seen.items() if len(values) == 1}
    differing = [f"[engine] has no {key}, in which runs differ" for key in seen.keys() - common.keys()]
    return {key: value for key, value in common.items() if value != getattr(AT_ONCE, key)}, sorted(differing)


def found_in_cache(measured: Measured, share: float | None, block_tokens: int) -> Measured:
    """Count a share of the prompts of loads as cached, where a file says nothing of it.

    None: all whole blocks, but for the last token, which is always computed.
    """
    if not isinstance(measured, Sweep) or share == 0:
        return measured

    def with_cached(point: Point) -> Point:
        tokens = sum(point.inputs) / 2
        whole = (int(tokens) - 1) // block_tokens * block_tokens
        return replace(
            point, cached_tokens=point.cached_tokens or (whole if share is None else int(share * tokens))
        )

    note = "prompts are taken to have been found in the prefix cache: " + (
        "whole, as they were sent before" if share is None else f"{share:.0%} of each"
    )
    return replace(measured, points=tuple(map(with_cached, measured.points)), notes=(*measured.notes, note))
