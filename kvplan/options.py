"""What commands and functions are asked for: records of options, which the command line and programs fill alike.

Numbers are numbers; all else is text as it is written, with units and commas. None is: not given.
"""

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from kvplan.engine import EngineName


class Router(StrEnum):
    """What sends requests to replicas."""

    ANY = "any"
    SESSION = "session"
    ROUND_ROBIN = "round-robin"
    LEAST_REQUESTS = "least-requests"


class Arrivals(StrEnum):
    """How requests arrive."""

    POISSON = "poisson"
    GAMMA = "gamma"
    BURST = "burst"
    SATURATED = "saturated"
    INTERLEAVED = "interleaved"
    CLOSED = "closed"


class TimeUnit(StrEnum):
    """What times of requests are in."""

    NS = "ns"
    US = "us"
    MS = "ms"
    S = "s"


@dataclass(frozen=True, kw_only=True)
class PlanOptions:
    """What is asked of a plan."""

    gpu: str | None = None
    tp: str | None = None
    weights: str | None = None
    kv_dtype: str = "auto"
    engine: EngineName = EngineName.VLLM
    rate: float | None = None
    users: int | None = None
    think: str | None = None
    input: str | None = None
    output: str | None = None
    trace: Path | None = None
    system_prompt: int = 0
    turns: float = 1.0
    slo: tuple[str, ...] = ()
    gpu_hour: str | None = None
    replica_hour: str | None = None
    headroom: str | None = None
    slower: str | None = None
    settings: tuple[str, ...] = ()
    router: Router = Router.ANY
    split: bool = False
    schedule: str | None = None
    load_time: str | None = None


@dataclass(frozen=True, kw_only=True)
class RunOptions:
    """Which requests are simulated, and how often."""

    arrivals: Arrivals | None = None
    cv: float | None = None
    concurrency: int | None = None
    burst: str | None = None
    trace: Path | None = None
    requests: int | None = None
    horizon: str | None = None
    burst_sessions: str | None = None
    seeds: int | None = None
    seed: int | None = None


@dataclass(frozen=True, kw_only=True)
class ImportOptions:
    """What is said beside the files that become a profile."""

    model: str | None = None
    gpu: str | None = None
    engine: EngineName | None = None
    capacity: int | None = None
    tp: int | None = None
    weights: str | None = None
    kv_dtype: str = "auto"
    utilization: float = 0.9
    group: str | None = None
    since: Path | None = None
    interval: str | None = None
    unit: TimeUnit | None = None
    classes: int | None = None
    name: str | None = None
