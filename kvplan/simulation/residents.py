"""Requests that are resident when a run begins, each at an age of its own."""

import numpy as np

from kvplan.model import IntArray, ServingModel
from kvplan.model.weights import first_tokens
from kvplan.simulation.requests import Requests
from kvplan.simulation.state import (
    NOBODY,
    Blocks,
    Counter,
    Fixed,
    Group,
    Layered,
    List,
    Request,
    State,
    Time,
    layered,
)


def blocks_needed(model: ServingModel, requests: Requests, ages: IntArray, *, engine: bool) -> IntArray:
    """Blocks that requests hold which have had so many iterations, shape (n_requests,).

    `engine`: KV is counted as engines do, tokens computed so far.

    Examples
    --------
    >>> from kvplan.model import Replica, RequestClass, Timing
    >>> model = ServingModel((RequestClass("a", 10, (9,), (1.0,), 1.0),), Timing(1.0), Replica(99, block_tokens=4))
    >>> two = Requests(np.zeros(2), np.array([10, 10]), np.array([9, 9]), np.zeros(2, dtype=np.int64))
    >>> blocks_needed(model, two, np.array([1, 4]), engine=True).tolist()  # 10 and 13 tokens
    [3, 4]
    """
    inputs, replica, emitted = requests.input_tokens, model.replica, ages - 1
    slots = 0
    if requests.drafted is not None:
        slots, emitted = (
            requests.drafted.drafts.slots,
            requests.drafted.emitted[requests.drafted.begin[:-1] + emitted],
        )
    tokens = (np.maximum(inputs, 1) if engine else first_tokens(replica.prefill, inputs)) + emitted
    if replica.layout is not None:
        return np.asarray(replica.layout.pool_tokens(tokens - 1, tokens + slots) // replica.block_tokens)
    return np.asarray(-(-(tokens + slots) // replica.block_tokens))


def put_residents(s: State, ages: IntArray) -> None:
    """Make the first requests of a new state members of its one group, in this order.

    Parameters
    ----------
    ages : ndarray of int64, shape (n_residents,)
        Iterations that each has had: at least 1, and less than it needs.
    """
    count, row = ages.size, np.arange(ages.size)
    if count == 0:
        return
    group, where = s.group[0], int(s.fixed[Fixed.QUEUES])
    stage, tick = ages - 1, int(group[Group.RING_SIZE])
    request, time = s.request[:count], s.time[:count]
    request[:, Request.START] = request[:, Request.ENTERED_AT] = tick - stage
    request[:, Request.PLACE], request[:, Request.ADMISSION] = where, row
    request[:, Request.BEFORE], request[:, Request.AFTER] = row - 1, row + 1
    request[-1, Request.AFTER] = NOBODY
    s.list[where, [List.HEAD, List.TAIL, List.LENGTH]] = 0, count - 1, count
    time[:, Time.ARRIVAL] = 0.0
    group[Group.TICK] = tick
    group[Group.WEIGHT] = int((request[:, Request.FIRST_WEIGHT] + stage).sum())
    first = (request[:, Request.FIRST_WEIGHT] - request[:, Request.START]) % s.fixed[Fixed.BLOCK]
    s.phase[0] += np.bincount(first, minlength=int(s.fixed[Fixed.BLOCK]))
    _schedule(s, count)
    c = s.counter
    c[Counter.JOINED] = c[Counter.RESIDENT] = c[Counter.SEQUENCE] = count
    c[Counter.PROMISED] = int(request[:, Request.PROMISE].sum())
    c[Counter.HELD] = int(blocks_held(s, row, stage).sum())
    if layered(s):
        request[:, Layered.HOLDS] = blocks_held(s, row, stage)


def blocks_held(s: State, row: IntArray, stage: IntArray) -> IntArray:
    """Blocks that requests hold in the iteration of a stage, shape (n_rows,)."""
    tokens = s.request[row, Request.FIRST_WEIGHT] + tokens_emitted(s, row, stage)
    if layered(s):
        held: IntArray = (
            s.blocks[tokens + s.fixed[Fixed.SLOTS], Blocks.FILLED] - s.blocks[tokens - 1, Blocks.PASSED]
        )
        return held
    return np.asarray((tokens + s.fixed[Fixed.BLOCK] - 1) // s.fixed[Fixed.BLOCK])


def tokens_emitted(s: State, row: IntArray, stage: IntArray) -> IntArray:
    """Tokens that requests had emitted before the iteration of a stage, shape (n_rows,)."""
    if layered(s) and s.fixed[Fixed.DRAFTS] > 0:
        return np.asarray(s.emitted[s.request[row, Layered.PATH] + stage])
    return stage


def _schedule(s: State, count: int) -> None:
    """Note when each leaves, in the ring of the group."""
    request, group = s.request[:count], s.group[0]
    slot = (
        group[Group.RING_START]
        + (request[:, Request.START] + request[:, Request.STAGES] - 1) % group[Group.RING_SIZE]
    )
    order = np.argsort(slot, kind="stable")  # of one slot the last comes first
    same = slot[order][1:] == slot[order][:-1]
    request[:, Request.DUE_BEFORE] = request[:, Request.DUE_AFTER] = NOBODY
    request[order[1:][same], Request.DUE_AFTER] = order[:-1][same]
    request[order[:-1][same], Request.DUE_BEFORE] = order[1:][same]
    last = np.append(~same, True)
    s.ring[slot[order[last]]] = order[last]
