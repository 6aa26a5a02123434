"""A replica that serves one request of one token at a time: the queue M/D/1, whose waits are known.

The mean wait is ρs/2(1 - ρ) (Pollaczek and Khinchine), and its law a sum (Erlang 1909).
"""

import math
from fractions import Fraction

from kvplan.model import Replica, RequestClass, ServingModel, Timing

SERVICE_S = 0.01


def server(rate_rps: float) -> ServingModel:
    """Requests of one token, each of which takes an iteration."""
    replica = Replica(1000, max_num_seqs=1, prefix_caching=False)
    return ServingModel((RequestClass("a", 1, (1,), (1.0,), rate_rps),), Timing(SERVICE_S), replica)


def mean_ttft_s(rate_rps: float) -> float:
    load = rate_rps * SERVICE_S
    return SERVICE_S * (1 + load / (2 * (1 - load)))


def rate_of_mean_ttft(limit_s: float) -> float:
    """The rate at which it is that."""
    waits = 2 * (limit_s / SERVICE_S - 1)
    return waits / (1 + waits) / SERVICE_S


def share_above(limit_s: float, rate_rps: float) -> float:
    """Of the requests, those whose TTFT exceeds a limit: Erlang's alternating sum, in exact fractions."""
    load, wait = Fraction(rate_rps * SERVICE_S), Fraction(limit_s - SERVICE_S) / Fraction(SERVICE_S)
    total = Fraction(0)
    for k in range(math.floor(wait) + 1):
        x = load * (k - wait)
        total += x**k / math.factorial(k) * Fraction(math.exp(-x))
    return float(1 - (1 - load) * total)
