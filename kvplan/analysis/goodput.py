"""Goodput: the largest rate at which every latency objective (SLO) is met, by the closed forms of latency."""

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import NamedTuple

from kvplan.analysis.equilibrium import sustainable_rate
from kvplan.analysis.latency import Latency, latency
from kvplan.model import ServingModel

TIMES = ("ttft_s", "itl_s", "e2e_s")  # that have closed forms
FIGURES = ("mean", "p50", "p90", "p95", "p99")
_LEAST = 1e-3  # of the sustainable rate; what is missed there is missed by an empty replica
_NO_TIME = 1e-300  # seconds: answers of one token have no gaps, and any limit is kept
_EXACT = 1e-3  # to which the rate is found
_UNKNOWN = 1.0  # the excess where there is no closed form: as if missed


class Goodput(NamedTuple):
    """Requests/s that meet all objectives, and the one that binds; `reason` where the closed forms do not say.

    A rate of 0: an objective is missed even by an empty replica. Up to `at_least_rps` all are met, whatever is above.
    """

    rate_rps: float | None = None
    binding: str | None = None
    reason: str | None = None
    at_least_rps: float | None = None

    def missed_at(self, offered_rps: float) -> bool:
        """Whether an objective is known to be missed at a rate."""
        return self.rate_rps is not None and offered_rps > self.rate_rps


class _Use(NamedTuple):
    """The objective that is used most, by how much: the logarithm of its figure over its bound."""

    key: str
    excess: float


def goodput(model: ServingModel, limits: Mapping[str, float]) -> Goodput:
    """The largest rate with every figure, such as ``ttft_s.p95``, at most at its limit in seconds; the mix stays.

    Of a percentile with a range the upper end counts.

    Examples
    --------
    >>> from kvplan.model import Replica, RequestClass, Timing
    >>> chat = RequestClass("chat", 200, (100,), (1.0,), 5.0)
    >>> model = ServingModel((chat,), Timing(0.01, 1e-7, 5e-5), Replica(100_000))
    >>> goodput(model, {"ttft_s.p95": 1e-3})
    Goodput(rate_rps=0.0, binding='ttft_s.p95', reason=None, at_least_rps=0.0)
    """
    unknown = [key for key in limits if key.partition(".")[0] not in TIMES]
    if unknown:
        return Goodput(reason=f"{', '.join(unknown)}: no closed form; kvplan size simulates")
    if any(c.sessions is not None and c.sessions.users is not None for c in model.classes):
        return Goodput(reason="a closed population of users has no rate of its own to vary")
    from scipy.optimize import brentq  # type: ignore[import-untyped]

    seen: dict[float, _Use | str] = {}

    def excess(rate_rps: float) -> float:
        found = seen[rate_rps] = _use(model, rate_rps, limits)
        return _UNKNOWN if isinstance(found, str) else found.excess

    limit, most = sustainable_rate(model)
    least = _LEAST * most
    if excess(least) > 0:
        found = seen[least]
        return Goodput(reason=found) if isinstance(found, str) else Goodput(0.0, found.key, at_least_rps=0.0)
    if excess(most) <= 0:
        return Goodput(most, limit, at_least_rps=most)
    brentq(excess, least, most, rtol=_EXACT)
    met = max(rate for rate, found in seen.items() if not isinstance(found, str) and found.excess <= 0)
    above = seen[min(rate for rate in seen if rate > met)]
    if isinstance(above, str):
        reason = f"beyond the closed form: all is met at {met:.4g} requests/s; above, {above}"
        return Goodput(reason=reason, at_least_rps=met)
    return Goodput(met, above.key, at_least_rps=met)


def _use(model: ServingModel, rate_rps: float, limits: Mapping[str, float]) -> _Use | str:
    """The objective used most at a rate; why there is none, where there is no closed form."""
    scale = rate_rps / model.total_rate_rps
    classes = tuple(replace(c, rate_rps=c.rate_rps * scale) for c in model.classes)
    found = latency(replace(model, classes=classes))
    if found.reason is not None:
        return found.reason
    return max(
        (_Use(key, math.log(_figure(found, key) / limit)) for key, limit in limits.items()),
        key=lambda u: u.excess,
    )


def _figure(found: Latency, key: str) -> float:
    time, _, name = key.partition(".")
    law = getattr(found, time)
    ends = getattr(law, f"{name}_range", None)
    value = getattr(law, name) if ends is None else ends[1]
    return max(value or 0.0, _NO_TIME)
