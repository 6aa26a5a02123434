"""What a load generator's report says as a point of a sweep: its load, and lengths of requests."""

import math
from typing import NamedTuple

from kvplan.ingest.timing.sweep import Range

_KEPT_UP = 0.97  # of what was offered
_TO_HALF_WIDTH = math.sqrt(3)  # of a uniform distribution, from its standard deviation


class Load(NamedTuple):
    """Requests in flight, or offered per second at random or at equal gaps: as `Point` has them."""

    concurrency: int | None = None
    rate_rps: float | None = None
    evenly: bool = False


def at_rate(
    rate_rps: float,
    throughput_rps: float,
    e2e_s: float,
    *,
    requests: int | None = None,
    sent_rps: float | None = None,
    most: int | None = None,
    evenly: bool = False,
) -> Load:
    """The load of requests that were to arrive at a rate, of which `throughput_rps` were completed.

    Where the client did not send as many (`sent_rps`) or the engine did not keep up, requests in flight are what held
    them back: by Little's law, completed per second times their mean E2E, and `most` where the client had a limit. The
    last of a known number of requests is completed one E2E after it was sent.

    Examples
    --------
    >>> at_rate(10, 9.8, 2.0).rate_rps, at_rate(10, 8, 5.0).concurrency, at_rate(10, 8, 5.0, most=32).concurrency
    (10, 40, 32)
    >>> at_rate(10, 8, 5.0, requests=200).rate_rps
    10
    """
    sent = rate_rps if sent_rps is None else sent_rps
    possible = sent if requests is None else requests / (requests / sent + e2e_s)
    if sent >= _KEPT_UP * rate_rps and throughput_rps >= _KEPT_UP * possible:
        return Load(rate_rps=sent, evenly=evenly)
    return in_flight(throughput_rps, e2e_s, most)


def in_flight(throughput_rps: float, e2e_s: float, most: int | None = None) -> Load:
    """The load of a closed loop by Little's law, at most its limit."""
    mean = max(1, round(throughput_rps * e2e_s))
    return Load(concurrency=mean if most is None else min(mean, most))


def spread(mean: float, half: float = 0.0, least: int = 1) -> Range:
    """Lengths evenly about a mean, none below the least.

    Examples
    --------
    >>> spread(1000.0), spread(62.4), spread(1000.0, 250.0), spread(100.0, 150.0)
    ((1000, 1000), (62, 63), (750, 1250), (1, 199))
    """
    low = round(mean - max(0.0, min(half, mean - least)))
    return low, max(low, round(2 * mean) - low)


def half_width(deviation: float) -> float:
    """Of lengths that are evenly spread, with this standard deviation."""
    return _TO_HALF_WIDTH * deviation
