"""Work of the last priority that fits behind the classes before it, and how these feel it."""

from dataclasses import replace
from functools import partial
from typing import NamedTuple

from kvplan.analysis.equilibrium import sustainable_rate
from kvplan.analysis.worst_window import at_rates
from kvplan.model import Plan, ServingModel
from kvplan.solve import boundary
from kvplan.study.operating_point import operating_point

_FILLED = 0.9  # of what is sustainable, at which the first class is looked at: at all of it queues never end
_PRECISE, _MOST = 1e-4, 1e6


class Behind(NamedTuple):
    """Rates of the last class, now, at most, and at nine tenths of the load; TTFT p95 of the first, now and there."""

    last: str
    first: str
    now_rps: float
    most_rps: float
    filled_rps: float
    ttft_now_s: float | None
    ttft_filled_s: float | None


def behind(model: ServingModel, plan: Plan, *, tried: bool = True) -> Behind | None:
    """Fill a replica with requests of its last class; None where classes do not go by priority, or nothing fits.

    The rate is a fluid limit: the order of requests moves no work. It is unknown with a prefix cache or rates that
    vary. Not `tried`: without runs, which say how the first class feels it.

    Examples
    --------
    >>> from kvplan.model import Engine, Replica, RequestClass, Timing
    >>> chat = RequestClass("chat", 100, (1,), (1.0,), 2.0)
    >>> batch = RequestClass("batch", 300, (1,), (1.0,), 1.0, priority=1)
    >>> engine = Engine(scheduling=Scheduling.PRIORITY)
    >>> model = ServingModel((chat, batch), Timing(1e-6, d2=1e-3), Replica(100_000), engine=engine)
    >>> room = behind(model, Plan())

    A second has 1,000 prompt tokens, of which chat takes 200; of those left a request of the batch takes 300:

    >>> round(room.most_rps, 2)
    2.67
    """
    order = sorted(model.classes, key=lambda c: c.priority)
    first, last = order[0], order[-1]
    if (
        not model.by_priority
        or first.priority == last.priority
        or model.finds_prefixes
        or model.schedule is not None
    ):
        return None

    def at(rate_rps: float) -> ServingModel:
        return at_rates(model, [rate_rps if c is last else c.rate_rps for c in model.classes])

    def too_much(rate_rps: float, share: float) -> bool:
        there = at(rate_rps)
        return there.total_rate_rps > share * sustainable_rate(there)[1]

    least = _PRECISE * last.rate_rps
    if too_much(least, _FILLED):
        return None
    most, filled = (
        boundary(partial(too_much, share=share), least, _MOST, close=_PRECISE, geometric=True)[0]
        for share in (1.0, _FILLED)
    )

    def ttft_s(rate_rps: float) -> float | None:
        if not tried:
            return None
        seen = operating_point(replace(at(rate_rps), fleet=None), plan).latency
        return next((c.ttft_s.p95 for c in seen.classes if c.name == first.name), None)

    return Behind(last.name, first.name, last.rate_rps, most, filled, ttft_s(last.rate_rps), ttft_s(filled))
