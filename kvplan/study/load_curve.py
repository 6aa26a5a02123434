"""Latency of a profile against its load, by short runs on the same chance at one rate after another."""

from typing import NamedTuple

from kvplan.analysis.equilibrium import sustainable_rate
from kvplan.analysis.fleet import one_replica
from kvplan.model import Plan, ServingModel
from kvplan.study.goodput import at_rate
from kvplan.study.operating_point import BUDGET_S, Latency, operating_point

_SHARES = (0.05, 0.2, 0.35, 0.5, 0.65, 0.75, 0.85, 0.9, 0.95, 0.98)  # of what is sustainable
_MORE, _MOST = 1.1, 12  # times the last rate, while the queue does not grow; and how many such rates
_PART = 0.15  # of the work of an operating point, for each rate


class LoadCurve(NamedTuple):
    """Latencies at ascending rates, requests/s, up to where the queue grows.

    `sustainable_rps` is the guaranteed rate where there is a prefix cache.
    """

    rates_rps: tuple[float, ...]
    latencies: tuple[Latency, ...]
    sustainable_rps: float


def load_curve(model: ServingModel, plan: Plan) -> LoadCurve:
    """Measure latencies of the mix of a profile at other rates.

    Examples
    --------
    >>> from kvplan.model import Replica, RequestClass, Timing
    >>> model = ServingModel((RequestClass("a", 20, (5,), (1.0,), 10.0),), Timing(0.01, 1e-4), Replica(10_000))
    >>> curve = load_curve(model, Plan())
    >>> curve.latencies[0].ttft_s.p95 < curve.latencies[-1].ttft_s.p95
    True
    """
    most = sustainable_rate(one_replica(model))[1] * (1 if model.fleet is None else model.fleet.size)
    shares = [*_SHARES, *(_SHARES[-1] * _MORE**power for power in range(1, _MOST + 1))]
    known = []
    for share in shares:
        there = at_rate(model, share * most)
        latency = operating_point(there, plan, _PART * BUDGET_S).latency
        if latency.ttft_s.mean is None:
            break
        known.append((there.total_rate_rps, latency))
    return LoadCurve(tuple(rate for rate, _ in known), tuple(latency for _, latency in known), most)
