"""Runs seen through a window of time after a warm-up: completions, batch by batch.

Arrivals and the clock go on past its end. A run that stops there makes its last batch look idle, and a tenfold overload
steady.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

from kvplan.analysis.equilibrium import iteration_time, per_request, saturation, tangent, time_alone
from kvplan.model import FloatArray, IntArray, ServingModel
from kvplan.model.sessions import Sessions
from kvplan.simulation.initial_state import Spans
from kvplan.simulation.outcome import Ending, Outcome
from kvplan.simulation.requests import Requests
from kvplan.simulation.state import Span

BATCHES = 16
LATENCIES = ("ttft_s", "itl_s", "tpot_s", "e2e_s")


@dataclass(frozen=True)
class Window:
    """A run from `begin_s` on, in batches of equal time."""

    begin_s: float
    width_s: float
    # shape (n_completed,): the batch in which each request was done; TTFT, TPOT and E2E, seconds, TPOT NaN of a single
    # token; class; evictions
    batch: IntArray
    values: Mapping[str, FloatArray]
    class_index: IntArray
    evictions: IntArray
    sums: FloatArray  # shape (n_batches, n_columns), as `kvplan.simulation.state.State.span`
    gaps: IntArray  # shape (n_batches, GAPS): times between two tokens of a request
    # before the window too
    arrived: int
    iterations: int
    recomputed_tokens: int
    computed_tokens: int
    stuck: bool  # nothing could complete any more
    # shape (2, n_completed): of each prompt, the tokens that a prefix cache found, and all; None without a cache
    found: IntArray | None = None

    @property
    def batches(self) -> int:
        """Number of batches."""
        return int(self.sums.shape[0])

    @property
    def least(self) -> FloatArray:
        """Fewest waiting in each batch."""
        return self.sums[:, Span.LEAST_WAITING]

    def merged(self, width_s: float) -> "Window":
        """Return the window in batches of a whole number of these; in one where it is shorter than such a batch."""
        times = min(round(width_s / self.width_s), self.batches)
        if times <= 1:
            return self
        first = np.arange(0, self.batches, times)
        sums = np.add.reduceat(self.sums, first, axis=0)
        sums[:, Span.LEAST_WAITING] = np.minimum.reduceat(self.least, first)
        return replace(
            self,
            width_s=times * self.width_s,
            batch=self.batch // times,
            sums=sums,
            gaps=np.add.reduceat(self.gaps, first, axis=0),
        )

    def only(self, part: int, parts: int) -> "Window":
        """Return batch number `part` of every `parts`."""
        mine = np.flatnonzero(self.batch % parts == part)
        return replace(
            self,
            batch=self.batch[mine] // parts,
            values={name: values[mine] for name, values in self.values.items()},
            class_index=self.class_index[mine],
            evictions=self.evictions[mine],
            found=None if self.found is None else self.found[:, mine],
            sums=self.sums[part::parts],
            gaps=self.gaps[part::parts],
        )


def window(requests: Requests, run: Outcome, spans: Spans) -> Window:
    """Return completions in the spans of a run that kept sums of them."""
    assert run.spans is not None
    batch = np.floor((run.finish_s - spans.begin_s) / spans.width_s)
    inside = np.flatnonzero((batch >= 0) & (batch < spans.number))
    later = (requests.decode_tokens[inside] - 1).astype(np.float64)
    ttft, e2e = run.ttft_s[inside], run.e2e_s[inside]
    tpot = np.divide(e2e - ttft, later, out=np.full(later.size, np.nan), where=later > 0)
    return Window(
        begin_s=spans.begin_s,
        width_s=spans.width_s,
        batch=batch[inside].astype(np.int64),
        values={"ttft_s": ttft, "tpot_s": tpot, "e2e_s": e2e},
        class_index=requests.class_index[inside].astype(np.int64),
        evictions=run.evictions[inside],
        sums=run.spans.sums,
        gaps=run.spans.gaps,
        arrived=int(np.count_nonzero(run.arrival_s <= run.end_s)),
        iterations=run.iterations,
        recomputed_tokens=run.recomputed_tokens,
        computed_tokens=run.computed_tokens,
        stuck=run.ending is Ending.LIVELOCK,
        found=None
        if run.found is None
        else np.stack([run.found.hit_tokens[inside], requests.input_tokens[inside]]),
    )


_OLD = 0.01  # share of the KV that requests older than the warm-up hold
_BEGUN = 0.99  # share of the turns of sessions that have begun by then
_SLOWEST = 10.0  # times longer, where a replica relaxes slower than requests stay


def warm_up_s(model: ServingModel) -> float:
    """Return the seconds after which a replica that began empty is like one long running.

    After W₁ requests that came before the start hold a hundredth of the KV. A replica bound by compute relaxes more
    slowly, by the factor of its iterations over the part of them that is fixed: that of a request that is alone, or,
    where the law bends down as more experts are read, what the tangent at the equilibrium leaves (new).
    """
    alone = max(time_alone(model) / per_request(model).iterations, tangent(model).fixed_s)
    return life_s(model) * min(max(typical_iteration_s(model) / alone, 1.0), _SLOWEST)


@lru_cache(maxsize=8)  # models keep their tables, of layers megabytes
def life_s(model: ServingModel) -> float:
    """Return W₁: the age beyond which requests, or the turns of sessions, hold little."""
    held = model.mix.held.survival(model.mix.share)
    older = np.cumsum(held[::-1])[::-1]
    tau = typical_iteration_s(model)
    age = float(np.count_nonzero(older > _OLD * older[0])) * tau
    return age + max((_turns_s(model, c.sessions, tau) for c in model.classes if c.sessions), default=0.0)


@lru_cache(maxsize=8)  # models keep their tables, of layers megabytes
def typical_iteration_s(model: ServingModel) -> float:
    """Return the iteration time of the equilibrium, or of a full memory if that is less or there is no equilibrium."""
    full, usual = saturation(model).iteration_time_s, iteration_time(model)
    return full if usual is None else min(full, usual)


def _turns_s(model: ServingModel, sessions: Sessions, tau: float) -> float:
    """Return the time from the begin of sessions until all but a hundredth of their turns have begun."""
    share = sessions.turns.at_least()
    turns = int(np.searchsorted(np.cumsum(share) / share.sum(), _BEGUN))
    return turns * (sessions.think.mean_s + per_request(model).iterations * tau)
