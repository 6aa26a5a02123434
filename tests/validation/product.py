"""What kvplan says: the only module here that asks it."""

from dataclasses import dataclass, replace
from typing import Any

from kvplan.analysis.equilibrium import sustainable_rate
from kvplan.model import Plan, ServingModel
from kvplan.model.slo import parse_slo
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
