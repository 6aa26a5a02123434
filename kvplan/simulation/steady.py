"""The steady part of a run: without its filling and its emptying, which formulas for equilibria do not describe."""

from typing import NamedTuple

import numpy as np

from kvplan.model import FloatArray
from kvplan.simulation.outcome import Outcome
from kvplan.simulation.requests import Requests

_FILLING = 4  # one in so many of the iterations before the end belongs to the beginning
_LEAST_STAYS = 2  # so many times the longest stay, below which a part is too short to be called steady


class Steady(NamedTuple):
    """Means over the steady part of a run.

    Attributes
    ----------
    kv_tokens
        Mean over iterations, whole blocks.
    """

    throughput_per_iteration: float
    throughput_rps: float
    decode_tokens_per_s: float
    kv_tokens: float


def steady(requests: Requests, outcome: Outcome, *, saturated: bool, longest_stay: int) -> Steady | None:
    """What a run does between its beginning and the time when nobody arrives any more, or nobody waits.

    The beginning is a quarter of the iterations until then, and the longest stay at least.

    Parameters
    ----------
    saturated
        More wait than can be served, so that the part ends when the queue is empty.
    longest_stay
        Of any request, iterations.

    Returns
    -------
    Steady or None
        None where less than two of the longest stays are left.

    References
    ----------
    New.
    """
    series = outcome.series
    if saturated:
        busy = np.flatnonzero(series.waiting > 0)
        last = int(busy[-1]) if busy.size else -1
    else:
        last = (
            int(np.searchsorted(series.time_s, np.nanmax(outcome.arrival_s, initial=0.0), side="right")) - 1
        )
    first = max(last // _FILLING, -(-longest_stay // series.stride))
    if (last - first) * series.stride < _LEAST_STAYS * longest_stay or first >= last:
        return None
    begin_s, end_s = (float(series.time_s[at]) for at in (first, last))
    finish_s: FloatArray = outcome.finish_s
    inside = (finish_s > begin_s) & (finish_s <= end_s)
    iterations = (last - first) * series.stride
    return Steady(
        throughput_per_iteration=float(series.completions[last] - series.completions[first]) / iterations,
        throughput_rps=float(np.count_nonzero(inside)) / (end_s - begin_s),
        decode_tokens_per_s=float(requests.decode_tokens[inside].sum()) / (end_s - begin_s),
        kv_tokens=float(series.kv_tokens[first + 1 : last + 1].mean()),
    )
