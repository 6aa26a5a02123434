"""The best that any policy could have done, knowing all arrivals and lengths beforehand: a bound, not a policy.

An integer programme over start times, for small instances, in slots of one iteration, which takes as long whatever is
in it (FC 4.1.1; programme and argument new). Request i, started in slot t, holds its stage weights w_i(0), w_i(1), …
in slots t, t+1, …, n_i of them; in no slot may more than the memory be held.

Neither evictions nor pauses help: in its last j slots a request goes through j stages at most, so started late enough
to run through to the same end it never holds more than it did. Engines keep the text of whoever is evicted and compute
its KV again in the very iteration that goes on with it: it holds nothing for a while and loses no stage. Started late,
everybody then takes in the slots up to any one at most what memory there was in all of them: memory not used may be
used later. Each iteration may begin in the slot it falls into, a request somewhat before it is there, whose latency
counts as n_i at least. Where HiGHS proves no optimum in so many nodes, its dual bound is reported, which holds all the
same.
"""

import math
from enum import StrEnum
from typing import NamedTuple

import numpy as np

from kvplan.errors import UsageError
from kvplan.model import FloatArray, IntArray

MAX_VARIABLES, MAX_TERMS = 20_000, 2_000_000  # of all memory constraints
MAX_NODES = 300  # of the search: the same on a busy machine, unlike seconds
_WHOLE = 1e-6  # within which a bound on whole numbers is one


class Metric(StrEnum):
    """Figure optimised."""

    COMPLETED = "completed"  # requests done by the horizon, most
    DECODE_TOKENS = "decode_tokens"  # decode tokens of those, most
    LATENCY = "mean_latency"  # slots from arrival to completion, all requests done, least


class Instance(NamedTuple):
    """Requests and memory, in slots and tokens; arrays of shape (n_requests,)."""

    arrival: FloatArray
    stages: IntArray  # iterations n_i >= 1
    first_weight: IntArray  # held in stage 0; a token more in each later one
    decode_tokens: IntArray
    capacity: int
    block_tokens: int = 1  # tokens are held in whole blocks
    evicted_go_on: bool = False  # an eviction loses no stages

    def weights(self, i: int) -> IntArray:
        """Tokens that a request holds in each of its stages."""
        tokens = self.first_weight[i] + np.arange(self.stages[i])
        return np.asarray(-(-tokens // self.block_tokens) * self.block_tokens)


class Bound(NamedTuple):
    """Bound on every policy: the optimum itself where `proven`; `gap` is relative to `value`."""

    metric: Metric
    bound: float
    value: float | None  # of the best schedule found, in which ...
    proven: bool
    gap: float | None
    starts: tuple[int | None, ...] | None  # ... each request begins in this slot, or never


def hindsight(
    instance: Instance, metric: Metric, *, horizon: int | None = None, nodes: int = MAX_NODES
) -> Bound:
    """Return the optimum of one metric, or a bound on it; all but latency need a horizon, after which nothing counts.

    Raises
    ------
    UsageError
        The programme is too large, or a request never fits.

    Examples
    --------
    Memory for one request of 3 + 2 tokens and the first stage of none other:
    """
    if any(instance.weights(i)[-1] > instance.capacity for i in range(instance.stages.size)):
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
    if owner.size == 0:
        return Bound(metric, 0.0, 0.0, proven=True, gap=0.0, starts=(None,) * choices.size)
    start = np.concatenate([release[i] + np.arange(choices[i]) for i in range(choices.size)])
    through = _solved(instance, metric, owner, start, end, nodes)
    if not instance.evicted_go_on:
        return through
    bound = _solved(instance, metric, owner, start, end, nodes, carried=True).bound
    gap = None if through.value is None else abs(through.value - bound) / max(abs(through.value), 1.0)
    proven = gap is not None and gap < _WHOLE
    return through._replace(bound=bound, proven=proven, gap=0.0 if proven else gap)


def _solved(
    instance: Instance,
    metric: Metric,
    owner: IntArray,
    start: IntArray,
    end: int,
    nodes: int,
    *,
    carried: bool = False,
) -> Bound:
    """Solve the programme; with `carried`, memory that a slot leaves unused may be used in later ones."""
    from scipy.optimize import Bounds, LinearConstraint, milp  # type: ignore[import-untyped]
    from scipy.sparse import coo_array, csr_array, eye_array, hstack  # type: ignore[import-untyped]

    count, size = instance.stages.size, owner.size
    length, choice = instance.stages[owner], np.arange(size)
    worth = np.full(size, -1.0)  # what each choice adds to the sum that is made least
    if metric is Metric.DECODE_TOKENS:
        worth = -instance.decode_tokens[owner].astype(np.float64)
    elif metric is Metric.LATENCY:
        worth = np.maximum(start + length - instance.arrival[owner], length.astype(np.float64))
    held = np.concatenate([instance.weights(i) for i in owner]).astype(np.float64)
    slot = np.repeat(start, length) + np.concatenate([np.arange(n) for n in length])
    memory = coo_array((held, (slot, np.repeat(choice, length))), shape=(end, size))
    latency = metric is Metric.LATENCY
    # what each slot leaves to the next is a variable; there is none before the first arrival
    slots = end if carried else 0
    unused = eye_array(end, slots) - eye_array(end, slots, k=-1)
    most_unused = np.where(np.arange(slots) < start.min(), 0.0, np.inf)
    last_weight = held[np.cumsum(length) - 1]  # in its last slot it does hold that
    last = coo_array((last_weight, (start + length - 1, choice)), shape=(end, size + slots))
    once = hstack([coo_array((np.ones(size), (owner, choice)), (count, size)), csr_array((count, slots))])
    result = milp(
        np.append(worth, np.zeros(slots)),
        integrality=np.append(np.ones(size), np.zeros(slots)),
        bounds=Bounds(0, np.append(np.ones(size), most_unused)),
        constraints=[
            LinearConstraint(hstack([memory, unused]).tocsr(), -np.inf, float(instance.capacity)),
            LinearConstraint(last.tocsr(), -np.inf, float(instance.capacity)),
            LinearConstraint(once.tocsr(), 1.0 if latency else 0.0, 1.0),
        ],
        options={"node_limit": nodes, "mip_rel_gap": 0.0},
    )
    proven, value = result.status == 0, None
    starts: tuple[int | None, ...] | None = None
    if result.x is not None:
        chosen = np.flatnonzero(result.x[:size] > 0.5)
        begun = dict(zip(owner[chosen].tolist(), start[chosen].tolist(), strict=True))
        starts, value = tuple(begun.get(i) for i in range(count)), float(worth[chosen].sum())
    if proven and value is not None:
        low = value
    else:  # nobody waits, or everybody is done: holds without any search
        first_choice = np.unique(owner, return_index=True)[1]
        low = float(instance.stages.sum()) if latency else float(worth[first_choice].sum())
        if result.mip_dual_bound is not None and math.isfinite(result.mip_dual_bound):
            low = max(low, result.mip_dual_bound)
        if not latency:
            low = math.ceil(low - _WHOLE)
    gap = 0.0 if proven else result.mip_gap
    return Bound(
        metric,
        bound=low / count if latency else -low,
        value=None if value is None else value / count if latency else -value,
        proven=proven,
        gap=None if gap is None or not math.isfinite(gap) else float(gap),
        starts=starts,
    )
