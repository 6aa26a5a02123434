"""The best that any policy could have done, knowing all arrivals and lengths beforehand (FC 4): a bound, not a policy.

An integer programme over start times, for small instances, in slots of one iteration: FC's model, in which an iteration
takes as long whatever is in it. Request i, started in slot t, holds its stage weights w_i(0), w_i(1), … in slots t,
t+1, … and is done when its n_i stages are; in no slot may more than the memory be held.

Neither evictions nor pauses help in hindsight, so runs without either bound every policy. Take any run and look at
request i, done in slot f. In its last j slots before that it went through j stages at most, so j slots earlier it
held at least w_i(n_i - 1 - j). Started late enough to run through to the same end it never holds more, and what was
evicted of it before only held memory. The memory suffices, and everybody is done when they were.

Not so in engines: they keep the text of whoever is evicted, and compute its KV again in the very iteration that goes
on with it, so that it holds nothing for a while and loses no stage. Still, stage n_i - 1 - j is over j slots before the
end, and took its memory in some slot until then. Started late, everybody then takes in the slots up to any one at most
what memory there was in all of them: memory that is not used may be used later.

Nor does it help to begin between slots, after a time without requests: begin each iteration in the slot that it
falls into. Iterations are a slot long or more, so none share one; a request may then begin in the slot in which it
arrives, somewhat before it is there, but its latency is counted as n_i at least. For arrivals at the borders of slots
that is exact.

Each metric has an optimum of its own: no schedule need reach two of them. Where HiGHS is not done in time, its dual
bound is reported, which holds all the same.

References
----------
FC 4.1.1 ("hindsight-optimal value for each performance metric"); programme and argument: new.
"""

import math
from enum import StrEnum
from typing import NamedTuple

import numpy as np

from kvplan.errors import UsageError
from kvplan.model import FloatArray, IntArray

MAX_VARIABLES = 20_000
MAX_TERMS = 2_000_000  # of all memory constraints
TIME_LIMIT_S = 60.0
_WHOLE = 1e-6  # within which a bound on whole numbers is one


class Metric(StrEnum):
    """What is optimised."""

    COMPLETED = "completed"  # requests done by the horizon, most
    DECODE_TOKENS = "decode_tokens"  # decode tokens of those, most
    LATENCY = "mean_latency"  # slots from arrival to completion, all requests done, least


class Instance(NamedTuple):
    """Requests and memory, in slots and tokens; arrays of shape (n_requests,).

    Attributes
    ----------
    arrival : ndarray, slots
    stages : ndarray of int64
        Iterations n_i >= 1.
    first_weight : ndarray of int64, tokens
        Held in stage 0; a token more in each later one.
    decode_tokens : ndarray of int64
    capacity : int, tokens
    block_tokens
        Tokens are held in whole blocks.
    evicted_go_on
        An eviction loses no stages.
    """

    arrival: FloatArray
    stages: IntArray
    first_weight: IntArray
    decode_tokens: IntArray
    capacity: int
    block_tokens: int = 1
    evicted_go_on: bool = False


class Bound(NamedTuple):
    """What no policy can surpass.

    Attributes
    ----------
    bound
        Not surpassed by any policy; the optimum itself where `proven`.
    value
        Of the best schedule found.
    proven
        Whether that schedule is optimal.
    gap
        Relative difference between the two; 0 where proven.
    starts : tuple of (int or None), or None
        The schedule: slot in which each request begins, None if never.
    """

    metric: Metric
    bound: float
    value: float | None
    proven: bool
    gap: float | None
    starts: tuple[int | None, ...] | None


def hindsight(
    instance: Instance, metric: Metric, *, horizon: int | None = None, time_limit_s: float = TIME_LIMIT_S
) -> Bound:
    """The optimum of one metric, or a bound on it.

    Nothing counts after the slot `horizon`; all metrics but latency need one.

    Raises
    ------
    UsageError
        The programme is too large, or a request never fits.
    ValueError
        A horizon is missing, or of no use.

    Examples
    --------
    Memory for one request of 3 + 2 tokens and the first stage of none other:

    >>> two = Instance(np.zeros(2), np.array([2, 1]), np.array([4, 4]), np.array([2, 1]), capacity=5)
    >>> hindsight(two, Metric.LATENCY)[:4]  # the short one first: done after 1 and 3
    (<Metric.LATENCY: 'mean_latency'>, 2.0, 2.0, True)
    >>> hindsight(two, Metric.COMPLETED, horizon=2).bound, hindsight(two, Metric.DECODE_TOKENS, horizon=2).bound
    (1.0, 2.0)
    """
    if (horizon is None) is not (metric is Metric.LATENCY):
        raise ValueError(f"{metric}: a horizon of {horizon} slots")
    weights = [_weights(instance, i) for i in range(instance.stages.size)]
    if any(w[-1] > instance.capacity for w in weights):
        raise UsageError("hindsight: a request can never fit in the memory, even alone")
    release = np.floor(instance.arrival).astype(np.int64)
    # where nothing more arrives no slot need be empty before all is done
    end = int(release.max()) + int(instance.stages.sum()) if horizon is None else horizon
    choices = np.maximum(end - instance.stages - release + 1, 0)
    terms = int(choices @ instance.stages)
    if choices.sum() > MAX_VARIABLES or terms > MAX_TERMS:
        raise UsageError(
            f"hindsight: {int(choices.sum()):,} possible starts and {terms:,} terms; at most {MAX_VARIABLES:,} and "
            f"{MAX_TERMS:,} can be solved: fewer or shorter requests are wanted, or a nearer horizon"
        )
    owner = np.repeat(np.arange(choices.size), choices)
    start = np.concatenate([release[i] + np.arange(choices[i]) for i in range(choices.size)])
    if start.size == 0:
        return Bound(metric, 0.0, 0.0, proven=True, gap=0.0, starts=(None,) * choices.size)
    worth = _worth(instance, metric, owner, start)
    through = _solved(instance, metric, weights, owner, start, worth, end, time_limit_s)
    if not instance.evicted_go_on:
        return through
    bound = _solved(instance, metric, weights, owner, start, worth, end, time_limit_s, carried=True).bound
    gap = None if through.value is None else abs(through.value - bound) / max(abs(through.value), 1.0)
    proven = gap is not None and gap < _WHOLE
    return through._replace(bound=bound, proven=proven, gap=0.0 if proven else gap)


def _weights(instance: Instance, i: int) -> IntArray:
    block = instance.block_tokens
    tokens = instance.first_weight[i] + np.arange(instance.stages[i])
    whole: IntArray = -(-tokens // block) * block
    return whole


def _worth(instance: Instance, metric: Metric, owner: IntArray, start: IntArray) -> FloatArray:
    """What each choice adds to the sum that is made least."""
    match metric:
        case Metric.COMPLETED:
            return np.full(owner.size, -1.0)
        case Metric.DECODE_TOKENS:
            return -instance.decode_tokens[owner].astype(np.float64)
        case Metric.LATENCY:
            stages = instance.stages[owner].astype(np.float64)
            latency: FloatArray = np.maximum(start + stages - instance.arrival[owner], stages)
            return latency


def _solved(
    instance: Instance,
    metric: Metric,
    weights: list[IntArray],
    owner: IntArray,
    start: IntArray,
    worth: FloatArray,
    end: int,
    time_limit_s: float,
    *,
    carried: bool = False,
) -> Bound:
    """The programme; with `carried`, memory that a slot leaves unused may be used in later ones."""
    from scipy.optimize import Bounds, LinearConstraint, milp  # type: ignore[import-untyped]
    from scipy.sparse import coo_array, csr_array, eye_array, hstack  # type: ignore[import-untyped]

    count, size = instance.stages.size, owner.size
    held = np.concatenate([weights[i] for i in owner])
    length = instance.stages[owner]
    column = np.repeat(np.arange(size), length)
    slot = np.repeat(start, length) + np.concatenate([np.arange(n) for n in length])
    memory = coo_array((held.astype(np.float64), (slot, column)), shape=(end, size)).tocsr()
    once = coo_array((np.ones(size), (owner, np.arange(size))), shape=(count, size)).tocsr()
    latency = metric is Metric.LATENCY
    slots = (
        end if carried else 0
    )  # what each leaves to the next is a variable; there is none before the first arrival
    unused = (eye_array(end, slots) - eye_array(end, slots, k=-1)).tocsr()
    most_unused = np.where(np.arange(slots) < start.min(), 0.0, np.inf)
    last_weight = np.array(
        [weights[i][-1] for i in owner], dtype=np.float64
    )  # in its last slot it does hold that
    last = coo_array((last_weight, (start + length - 1, np.arange(size))), shape=(end, size + slots)).tocsr()
    result = milp(
        np.append(worth, np.zeros(slots)),
        integrality=np.append(np.ones(size), np.zeros(slots)),
        bounds=Bounds(0, np.append(np.ones(size), most_unused)),
        constraints=[
            LinearConstraint(hstack([memory, unused]), -np.inf, float(instance.capacity)),
            LinearConstraint(last, -np.inf, float(instance.capacity)),
            LinearConstraint(hstack([once, csr_array((count, slots))]), 1.0 if latency else 0.0, 1.0),
        ],
        options={"time_limit": time_limit_s, "mip_rel_gap": 0.0},
    )
    # nobody waits, or everybody is done: holds without any search
    least = float(instance.stages.sum()) if latency else float(worth[_first_of_each(owner)].sum())
    proven, value = result.status == 0, None
    starts: tuple[int | None, ...] | None = None
    if result.x is not None:
        chosen = np.flatnonzero(result.x[:size] > 0.5)
        begun = dict(zip(owner[chosen].tolist(), start[chosen].tolist(), strict=True))
        starts = tuple(begun.get(i) for i in range(count))
        value = float(worth[chosen].sum())
    dual = getattr(result, "mip_dual_bound", None)
    if proven and value is not None:
        low = value
    else:
        low = least if dual is None or not math.isfinite(dual) else max(least, dual)
        if not latency:
            low = math.ceil(low - _WHOLE)
    scale = 1 / count if latency else -1.0
    gap = getattr(result, "mip_gap", None)
    return Bound(
        metric,
        bound=low * scale,
        value=None if value is None else value * scale,
        proven=proven,
        gap=0.0 if proven else None if gap is None or not math.isfinite(gap) else float(gap),
        starts=starts,
    )


def _first_of_each(owner: IntArray) -> IntArray:
    return np.unique(owner, return_index=True)[1]
