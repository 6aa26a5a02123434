"""What is asked of a plan, as options write it."""

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


@dataclass(frozen=True, kw_only=True)
class PlanOptions:
    """The options of `kvplan plan` and the parameters of `kvplan.plan`: numbers, and texts with units and commas."""

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
