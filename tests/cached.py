"""Short ways to write down a replica with a prefix cache, and theory §8's map written out for itself."""

import math
from collections.abc import Callable

from kvplan.analysis.cache_states import CachedReplica, cached_replica
from kvplan.model import Prefill, Replica, RequestClass, ServingModel, Timing
from kvplan.model.gaps import Gap, Lognormal
from kvplan.model.lengths import Lengths
from kvplan.model.sessions import Reuse, Sessions, SharedPrompt
from kvplan.model.streams import session_stream

AGENT_LAW = Timing(0.015, d1=0.005e-6, d2=4e-6, d3=1e-6)
AGENT_MEMORY = 4_000_000
THINK = Lognormal(10.0, 1.0)


def agent_sessions(gap: Gap = THINK) -> Sessions:
    """The agents of theory §8: 16 turns on average."""
    uniform = Lengths.uniform
    return Sessions(uniform(4000, 12000), uniform(300, 1500), uniform(40, 200), uniform(8, 24), gap)


def agents(
    requests_per_s: float,
    *,
    gap: Gap = THINK,
    memory: int = AGENT_MEMORY,
    page: int = 16,
    law: Timing = AGENT_LAW,
) -> CachedReplica:
    """A replica with their traffic."""
    stream = session_stream(agent_sessions(gap), requests_per_s, Prefill.FUSED, page)
    return CachedReplica((stream,), law, Replica(memory, page))


def one_class(
    rate: float,
    *shared: SharedPrompt,
    reuse: Reuse | None = None,
    s: int = 1000,
    n: int = 200,
    memory: int = 100_000,
    law: Timing = Timing(0.012, 1e-7, 60e-6),  # noqa: B008
    **replica: int | Prefill,
) -> CachedReplica:
    """A class with one decode length, by default the anchor of theory §8."""
    own = RequestClass("a", s, (n,), (1.0,), rate, shared, reuse)
    return cached_replica(ServingModel((own,), law, Replica(memory, **replica)))  # type: ignore[arg-type]


def root(f: Callable[[float], float], low: float, high: float) -> float:
    """Where a rising function passes zero."""
    for _ in range(200):
        middle = (low + high) / 2
        low, high = (middle, high) if f(middle) < 0 else (low, middle)
    return (low + high) / 2


def mapped_time(
    tau: float,
    *,
    rate: float,
    law: Timing,
    memory: float,
    s: float,
    n: float,
    left: float,
    q: float,
    think_s: float,
    shared: float = 0.0,
) -> float:
    """One class with pages of a token through theory §8's map τ → K → T → H → τ', exponential think times."""
    footprint, stay = s * n + n * (n + 1) / 2, n * tau
    used = rate * footprint * tau - shared * (rate * stay - (1 - math.exp(-rate * stay)))

    def stock(t: float) -> float:
        private = rate * left * (q * think_s * (1 - math.exp(-t / think_s)) + (1 - q) * t)
        return private + shared * math.exp(-rate * stay) * (1 - math.exp(-rate * t))

    kept = root(lambda t: stock(t) + used - memory, 0.0, 1e7)
    hits = rate * left * q * (1 - math.exp(-kept / think_s))
    hits += rate * shared * (1 - math.exp(-rate * (stay + kept)))

    def law_at(t: float) -> float:
        return law(rate * footprint * t, (rate * s - hits) * t, rate * n * t)

    return root(lambda t: t - law_at(t), 0.0, 10.0)
