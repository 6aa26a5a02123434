"""What commands and functions are asked for: records of options, which the command line and programs fill alike.

Numbers are numbers; all else is text as it is written, with units and commas. None is: not given.
"""

import re
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from kvplan.engine import VERSION, EngineName
from kvplan.errors import UsageError, shown

LIMITS = "max_num_seqs", "max_num_batched_tokens", "max_model_len"
RANKS = {"--tp": "tensor", "--dp": "data", "--ep": "expert", "--pp": "pipeline", "--dcp": "context"}


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


class Target(StrEnum):
    """What a profile is written for: engines, and what operates a service."""

    VLLM = "vllm"
    SGLANG = "sglang"
    TRTLLM = "trtllm"
    KEDA = "keda"
    HPA = "hpa"
    EPP = "epp"
    WVA = "wva"
    PROMETHEUS = "prometheus"


class CountedBy(StrEnum):
    """Whose counters say how many requests arrive."""

    ENGINE = "engine"
    EPP = "epp"


def read_engine(text: str) -> tuple[EngineName, str]:
    """Read the name of an engine, and its version or nothing: ``vllm==0.15.1``."""
    name, equals, version = text.partition("==")
    if name not in set(EngineName) or (equals and not re.fullmatch(VERSION, version)):
        known = ", ".join(EngineName)
        raise UsageError(f"--engine {shown(text)}: one of {known}, or with a version, such as vllm==0.15.1")
    return EngineName(name), version


@dataclass(frozen=True, kw_only=True)
class ModelOptions:
    """How a model runs, and on what."""

    gpu: str | None = None
    gpu_memory: str | None = None
    gpu_bandwidth: str | None = None
    gpu_flops: str | None = None
    weights: str | None = None
    kv_dtype: str = "auto"
    loras: int | None = None
    lora_rank: int | None = None
    engine: str | None = None
    max_num_seqs: int | None = None
    max_num_batched_tokens: int | None = None
    max_model_len: int | None = None

    @property
    def gpu_figures(self) -> dict[str, str | None]:
        """Figures of a GPU beside its name."""
        return {"memory": self.gpu_memory, "bandwidth": self.gpu_bandwidth, "flops": self.gpu_flops}

    def __post_init__(self) -> None:
        _ = self.engine_named  # refuses what is none

    @property
    def engine_named(self) -> tuple[EngineName | None, str]:
        """The engine, and its version or nothing."""
        return (None, "") if self.engine is None else read_engine(self.engine)

    @property
    def limits(self) -> dict[str, int]:
        """Limits of the engine that are given, by key."""
        return {key: value for key in LIMITS if (value := getattr(self, key)) is not None}

    @property
    def says_how(self) -> bool:
        """Tell whether anything is said but the name of a GPU."""
        return bool(self.weights or self.kv_dtype != "auto" or self.loras or self.lora_rank)


@dataclass(frozen=True, kw_only=True)
class PlanOptions(ModelOptions):
    """What is asked of a plan."""

    tp: str | None = None
    dp: str | None = None
    ep: str | None = None
    pp: str | None = None
    dcp: str | None = None
    engine: str = "vllm"
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

    @property
    def ranks(self) -> tuple[str | None, ...]:
        """Numbers of each kind of parallelism, in the order of `RANKS`."""
        return self.tp, self.dp, self.ep, self.pp, self.dcp


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
class ImportOptions(ModelOptions):
    """What is said beside the files that become a profile."""

    model: str | None = None
    capacity: int | None = None
    tp: int | None = None
    dp: int | None = None
    ep: int | None = None
    pp: int | None = None
    dcp: int | None = None
    utilization: float | None = None
    group: str | None = None
    since: Path | None = None
    interval: str | None = None
    unit: TimeUnit | None = None
    classes: int | None = None
    name: str | None = None

    @property
    def ranks(self) -> dict[str, int]:
        """Numbers by kind of parallelism, of those that are given."""
        given = zip(RANKS.values(), (self.tp, self.dp, self.ep, self.pp, self.dcp), strict=True)
        return {kind: number for kind, number in given if number is not None}


@dataclass(frozen=True, kw_only=True)
class EmitOptions:
    """What a profile is written for, and names of its service."""

    target: Target | None = None
    engine: EngineName | None = None
    name: str | None = None
    namespace: str | None = None
    selector: str | None = None
    arrivals: CountedBy = CountedBy.ENGINE
    pool: str | None = None
    model: str | None = None
    prometheus: str | None = None
    load_time: str | None = None
    headroom: str = "auto"
    verify: bool = False
