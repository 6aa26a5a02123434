"""What kvplan says: the only module here that asks it."""

import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from kvplan.analysis.equilibrium import sustainable_rate
from kvplan.ingest.model.config import read_model
from kvplan.ingest.model.hardware import find_gpu
from kvplan.model import Plan, ServingModel
from kvplan.model.slo import parse_slo
from kvplan.planning.demand import Demand, Length
from kvplan.planning.kinds import kinds
from kvplan.planning.plan import Request, plan
from kvplan.planning.trial import Task
from kvplan.simulation.policies.of_engine import engine_settings
from kvplan.study import advice as tried
from kvplan.study import goodput as search
from kvplan.study import operating_point as study
from kvplan.study.recovery import recovery


@dataclass(frozen=True)
class Point:
    """Figures at a rate by key, such as `ttft_s.p95`, and their intervals; none where the status is growing."""

    status: str
    reason: str | None
    figures: dict[str, float | None]
    intervals: dict[str, tuple[float, float | None] | None]
    unsettled: tuple[str, ...]
    requests: int


@dataclass(frozen=True)
class Goodput:
    """The largest rate within an objective, and the rates between which it lies."""

    rate_rps: float
    low: float
    high: float | None


@dataclass(frozen=True)
class Advice:
    """Settings that go together, what they gain under a backlog, and TTFT p95 with them at the offered rate."""

    settings: dict[str, float]
    gain_backlogged: float
    ttft_p95_s: float | None


def sustainable_rps(model: ServingModel) -> float:
    """The rate that memory and limits allow without evictions."""
    return sustainable_rate(model)[1]


def recovers_up_to_rps(model: ServingModel) -> float:
    """The largest offered rate that is called stable."""
    return recovery(model, engine_settings(model)).rate_rps


def operating_point(model: ServingModel) -> Point:
    """Figures of a model at its rate."""
    point = study.operating_point(model, Plan())
    figures = list(point.figures())
    return Point(
        str(point.latency.status),
        point.latency.reason,
        {key: value for key, value, _ in figures},
        {key: interval for key, _, interval in figures},
        point.latency.unsettled,
        point.requests,
    )


def goodput(model: ServingModel, key: str, limit_s: float) -> Goodput:
    """The search for one objective, such as `ttft_s.p95`."""
    found = search.goodput(model, Plan(), engine_settings(model), [parse_slo(f"{key} <= {limit_s!r} s")])
    assert found is not None
    return Goodput(found.rate_rps, found.low, found.high)


def advice(model: ServingModel) -> list[Advice]:
    """What is printed."""
    base, point = recovery(model, engine_settings(model)), study.operating_point(model, Plan())
    return [
        Advice({s.name: s.value for s in found.settings}, found.gain_backlogged, found.ttft_p95_s_with)
        for found in tried.advice(model, Plan(), base, point)
    ]


def without_cache(model: ServingModel) -> ServingModel:
    """Preempted requests find nothing of themselves again."""
    return replace(model, replica=replace(model.replica, prefix_caching=False))


def at_rate(model: ServingModel, rate_rps: float) -> ServingModel:
    """The same mix at another rate."""
    factor = rate_rps / model.total_rate_rps
    classes: Any = tuple(replace(c, rate_rps=c.rate_rps * factor) for c in model.classes)
    return replace(model, classes=classes)


# Demands of `kvplan plan`, by name: model, GPU and how many, weights, requests/s, tokens in and out, objectives.
DEMANDS = {
    "chat 70B": ("Llama-3.1-70B", "H100", 4, "bf16", 12.0, 3000, 400, ("ttft-p95=2s", "itl-p95=60ms")),
    "completion 8B": ("Llama-3.1-8B", "H100", 1, "fp8", 60.0, 2048, 28, ("ttft-p95=250ms", "itl-p95=40ms")),
    "RAG 32B": ("Qwen2.5-32B-Instruct", "H200", 1, "fp8", 3.0, 16_000, 300, ("ttft-p95=8s", "itl-p95=100ms")),
    "reasoning 32B": ("Qwen3-32B", "H200", 2, "bf16", 2.0, 500, 5_000, ("ttft-p95=2s", "tpot-mean=40ms")),
    "batch 8B": ("Llama-3.1-8B", "L40S", 1, "bf16", 30.0, 1500, 200, ()),
    "experts 30B": ("Qwen3-30B-A3B", "H100", 1, "fp8", 20.0, 2000, 800, ("ttft-p95=1s", "tpot-mean=30ms")),
    "short answers 8B": ("Llama-3.1-8B", "RTX 4090", 1, "fp8", 25.0, 600, 60, ("e2e-p95=4s",)),
}


@dataclass(frozen=True)
class Planned:
    """How many replicas are asked for, and what the one below them is said to do."""

    kind: str
    replicas: int
    below: str
    limits: dict[str, float]
    task: Task
    batched_tokens: dict[int, int | None]
    digest: str
    seconds: float

    def replica(self, replicas: int, *, slower: bool) -> ServingModel:
        """One of so many."""
        return self.task.at(replicas, self.batched_tokens[replicas], slower=slower)

    def load(self, replicas: int) -> float:
        """Share of what is sustainable, slower."""
        tokens = self.batched_tokens[replicas]
        return self.task.rate_rps / (replicas * self.task.sustainable_rps(tokens))


def planned() -> Iterator[tuple[str, Planned]]:
    """Plan each demand."""
    for name, (model, gpu, gpus, weights, rate, prompt, answer, slos) in DEMANDS.items():
        began = time.process_time()
        some = kinds(read_model(model), [find_gpu(gpu)], tensor_parallel=[gpus], weights=[weights])
        demand = Demand(Length(prompt), Length(answer), rate)
        found = plan(Request(list(some), demand, tuple(map(parse_slo, slos))))
        setting = found.setting
        sizes = {size.replicas: size for size in found.sizes}
        below = sizes.get(setting.replicas - 1)
        yield (
            name,
            Planned(
                found.winner.name,
                setting.replicas,
                "none" if below is None else str(below.state),
                {slo.key: slo.bound for slo in map(parse_slo, slos)},
                found.winner.task,
                {size.replicas: size.batched_tokens for size in found.sizes},
                "" if found.profile is None else found.profile.sha256[:16],
                time.process_time() - began,
            ),
        )
