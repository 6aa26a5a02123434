"""Run a policy on the replicas of a fleet, compiled or not, and put together what they leave behind."""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from typing import NamedTuple

import numpy as np

from kvplan.model import FloatArray, IntArray, Replica, Timing
from kvplan.model.fleet import Routing
from kvplan.simulation import engine
from kvplan.simulation.engine import GOES_ON, LIVELOCK
from kvplan.simulation.fleet import loop as fleet_loop
from kvplan.simulation.fleet import transfer
from kvplan.simulation.outcome import Ending, Found, Outcome, Series
from kvplan.simulation.prefix_cache import caches
from kvplan.simulation.prefixes import Turns
from kvplan.simulation.programs import FormBatch, Loop, Program, until_it_ends
from kvplan.simulation.requests import Requests
from kvplan.simulation.state import (
    ALL,
    ARRIVAL,
    BATCH_PEAK,
    BIN,
    BLIND,
    BRINGS,
    BUSY,
    BY_KV,
    BY_REQUESTS,
    CACHED_SUM,
    COMPLETED,
    COMPUTED,
    DECODE,
    DECODE_LOAD,
    EVICTIONS,
    FINISH,
    FIRST_TOKEN,
    GAP_SUM,
    GIVEN_UP,
    HANDED_OVER,
    HIT,
    HORIZON,
    IDLES,
    ITERATIONS,
    JOINED,
    KV_BINS,
    KV_SUM,
    LINK_FREE,
    LOAD,
    LOOKED_UP,
    LOOKED_UP_AGAIN,
    MORE_LATER,
    NEVER_FITS,
    NEXT_OF_CLIENTS,
    NOBODY,
    NOW,
    OVERFLOWS,
    OVERHEAD,
    PEAK,
    PLACE,
    PROMPTS_PEAK,
    QUEUE_PEAK,
    RADIX_TREE,
    RECOMPUTED,
    RECORDED,
    RECORDS,
    RECOVERED,
    RELEASED,
    RESIDENT,
    ROLE,
    ROWLESS,
    RULE,
    SECONDS_PER_TOKEN,
    SITE_NUMBER,
    STAGE,
    STAGES,
    STRIDE,
    STUCK,
    UNASKED_END,
    WHOLE,
    Setup,
    State,
    new_state,
)

_STEPS, _PLAIN_STEPS = 200_000, 1_000  # between two looks at what the caller wants


class Group(NamedTuple):
    """Equal replicas of a fleet.

    Attributes
    ----------
    role
        WHOLE, PREFILL or DECODE.
    setup
        From the policy's `prepare`.
    """

    replicas: int
    timing: Timing
    replica: Replica
    setup: Setup
    role: int = WHOLE


def run(
    policy: FormBatch,
    requests: Requests,
    groups: Sequence[Group],
    routing: Routing,
    *,
    seed: int = 0,
    seconds_per_token: float = 0.0,
    request_overhead_s: float = 0.0,
    horizon_s: float | None = None,
    compile: bool | None = None,
    watch: Callable[[int], bool] | None = None,
    announce: Callable[[bool], None] | None = None,
) -> Outcome:
    """Run a policy on a list of requests that a router sends to replicas.

    Parameters
    ----------
    groups
        One of role WHOLE; or one of prefill and one of decode replicas, in this order.
    routing
        `session`: the turns of a session come to one replica, sessions to one after the other.
    seed
        Of routing at random.
    seconds_per_token
        That the KV of a prompt takes from a prefill to a decode replica.

    Returns
    -------
    Outcome
        Of the fleet: memory in the mean over the replicas; the most of it, and of a batch, of any of them. What waits
        at its peak is the most of those recorded, where there are several replicas.
    """
    states = _states(requests, groups, routing, seed, seconds_per_token, request_overhead_s, horizon_s)
    split = len(groups) > 1
    longest = int(requests.iterations().max(initial=1) + requests.input_tokens.max(initial=1)) + 1

    def goes_on() -> bool:
        return watch is None or watch(int(sum(s.counter[COMPLETED] for s in states)) >> split)

    def step(loop: Loop, fast: bool) -> Ending | None:
        code = loop(states, _STEPS if fast else _PLAIN_STEPS, engine.PATIENCE * longest + 1000)
        return None if code == GOES_ON else _ending(states, requests, code)

    kind = type(states[0]).__name__
    ending = until_it_ends(PROGRAM, policy, kind, step, goes_on, compile, announce)
    return _outcome(states, requests, ending)


@cache
def _bound(policy: FormBatch) -> Loop:
    replica = engine.with_names(fleet_loop.run_replica, loop=engine.bound(policy))
    return engine.with_names(fleet_loop.serve, run_replica=replica)


PROGRAM = Program("fleet", _bound, (engine.loop, fleet_loop.serve, transfer.fetch))


def _states(
    requests: Requests,
    groups: Sequence[Group],
    routing: Routing,
    seed: int,
    seconds_per_token: float,
    request_overhead_s: float,
    horizon_s: float | None,
) -> tuple[State, ...]:
    """Before anything has arrived: a state for each replica, which share what is known of requests."""
    split, size = len(groups) > 1, requests.arrival_s.size
    brings = split or not requests.is_open
    known = replace(requests, turns=_no_turns(size)) if brings and requests.turns is None else requests
    legs = [known]
    if split:
        legs = [replace(known, decode_tokens=np.ones(size, dtype=np.int64)), known]
    firsts = [
        new_state(leg, group.timing, group.replica, group.setup, horizon_s, request_overhead_s)
        for leg, group in zip(legs, groups, strict=True)
    ]
    time = np.concatenate([first.time for first in firsts])
    if split:
        firsts[1].request[:, STAGE] = 1
        time[size:, ARRIVAL] = math.nan
    if requests.clients is not None:
        time[requests.clients :, ARRIVAL] = math.nan
    site = [_meant_for(routing, known, group.replicas, seed, i) for i, group in enumerate(groups)]
    if split:
        site[1] += groups[0].replicas
    request = np.concatenate(
        [np.column_stack((first.request, s)) for first, s in zip(firsts, site, strict=True)]
    )
    replicas = sum(group.replicas for group in groups)
    fleet = np.zeros((1 + replicas, firsts[0].fleet.shape[1]), dtype=np.int64)
    fleet[0, UNASKED_END] = np.count_nonzero(~np.isnan(time[:size, ARRIVAL]))
    fleet[0, NEXT_OF_CLIENTS] = requests.clients or 0
    fleet[0, RULE], fleet[0, BRINGS] = _RULES.get(routing, BLIND), brings
    fleet[1:, ROLE] = np.repeat([group.role for group in groups], [group.replicas for group in groups])
    fleet[1:, IDLES] = 1
    leaves = 1 << (replicas - 1).bit_length()
    link = np.full((2 * leaves, firsts[0].link.shape[1]), math.inf)
    link[:, LINK_FREE] = 0.0
    role = fleet[1:, ROLE]
    link[leaves : leaves + replicas, LOAD][role != DECODE] = 0.0
    link[leaves : leaves + replicas, DECODE_LOAD][role == DECODE] = 0.0
    for node in reversed(range(1, leaves)):
        link[node] = link[2 * node : 2 * node + 2].min(axis=0)
    apart = requests.prefixes is None and all(g.setup.prefix_cache != RADIX_TREE for g in groups)
    states: list[State] = []
    for group, first in zip(groups, firsts, strict=True):
        first.counter[[RELEASED, JOINED, ROWLESS]] = 0
        first.fixed[[ALL, MORE_LATER]] = -1, 0
        first.fixed[HANDED_OVER] = size if split else 0
        first.clock[SECONDS_PER_TOKEN] = seconds_per_token
        lists = np.concatenate((first.list, np.array([[NOBODY, NOBODY, 0]] * 2)))
        for _ in range(group.replicas):
            shared = {"time": time, "request": request, "fleet": fleet, "link": link, "list": lists.copy()}
            if apart:  # a stranger leaves its blocks where it has been, and nobody else's
                shared["stream"] = first.stream
            mine = first._replace(
                **shared,
                **{name: getattr(first, name).copy() for name in _OWN if name not in shared},
            )
            mine.fixed[SITE_NUMBER] = len(states)
            states.append(mine)
    return tuple(states)


_OWN = (
    "fixed", "knobs", "clock", "counter", "group", "phase", "ring", "future", "rank", "histogram", "record", "stream",
)  # fmt: skip
_RULES = {Routing.LEAST_REQUESTS: BY_REQUESTS, Routing.LEAST_KV: BY_KV}


def _no_turns(size: int) -> Turns:
    nobody = np.full(size, NOBODY)
    return Turns(nobody, np.zeros(size), nobody)


def _meant_for(routing: Routing, requests: Requests, replicas: int, seed: int, side: int) -> IntArray:
    """The replica that each request goes to; NOBODY: the router looks."""
    size = requests.arrival_s.size
    match routing:
        case Routing.RANDOM:
            return np.random.default_rng([seed, side, replicas]).integers(replicas, size=size)
        case Routing.ROUND_ROBIN:
            return np.arange(size) % replicas
        case Routing.SESSION:
            stream = np.arange(size) if requests.prefixes is None else requests.prefixes.stream
            _, first, session = np.unique(stream, return_index=True, return_inverse=True)
            place = np.empty(first.size, dtype=np.int64)
            place[np.argsort(first, kind="stable")] = np.arange(first.size)
            return place[session] % replicas
    return np.full(size, NOBODY)


def _ending(states: Sequence[State], requests: Requests, code: int) -> Ending:
    if code == LIVELOCK:
        return Ending.LIVELOCK
    first = states[0]
    size = requests.arrival_s.size
    gone = first.request[:size, PLACE] == GIVEN_UP
    if not requests.more_later and np.all((_last(first, FINISH) >= 0) | gone):
        return Ending.FINISHED
    if first.clock[HORIZON] < math.inf:
        for s in states:
            s.clock[NOW] = s.clock[HORIZON]
        return Ending.HORIZON
    return Ending.LIVELOCK


def _last(s: State, column: int) -> FloatArray:
    """A column of `State.time` by request: what the decode replica has noted, of those that go on there."""
    size = int(s.fixed[HANDED_OVER])
    values: FloatArray = s.time[:, column].copy()
    if size == 0:
        return values
    return np.where(s.request[size:, STAGES] > 1, values[size:], values[:size])


def _outcome(states: Sequence[State], requests: Requests, ending: Ending) -> Outcome:
    first, size = states[0], requests.arrival_s.size
    counts = np.sum([s.counter for s in states], axis=0)
    clocks = np.sum([s.clock for s in states], axis=0)
    most = np.max([s.counter for s in states], axis=0)
    bins = [s.fixed[KV_BINS] for s in states]
    kv_histogram = np.zeros(max(bins), dtype=np.int64)
    for s, own in zip(states, bins, strict=True):
        kv_histogram[:own] += s.histogram[:own]
    finish_s = _last(first, FINISH)
    evictions = first.request[:size, EVICTIONS].copy()
    if first.fixed[HANDED_OVER]:
        evictions += first.request[size:, EVICTIONS]
    end_s = max(float(s.clock[NOW]) for s in states)
    series, cached = _together(states, end_s, int(counts[ITERATIONS]))
    looked_up = [s for s in states if caches(s)]
    gone = first.request[:size, PLACE] == GIVEN_UP
    return Outcome(
        arrival_s=first.time[:size, ARRIVAL].copy(),
        first_token_s=_last(first, FIRST_TOKEN),
        finish_s=np.where(finish_s < 0, math.nan, finish_s),
        evictions=evictions,
        ending=ending,
        end_s=end_s,
        iterations=int(counts[ITERATIONS]),
        recomputed_tokens=int(counts[RECOMPUTED]),
        computed_tokens=int(counts[COMPUTED]),
        kv_sum=float(clocks[KV_SUM]),
        busy_s=float(clocks[BUSY]),
        kv_peak=int(most[PEAK]),
        resident=int(counts[RESIDENT]),
        stuck=any(s.counter[STUCK] == NEVER_FITS for s in states),
        queue_peak=int(most[QUEUE_PEAK]) if len(states) == 1 else int(series.waiting.max(initial=0)),
        kv_histogram=kv_histogram,
        gap_histogram=np.sum([s.histogram[s.fixed[KV_BINS] :] for s in states], axis=0),
        gap_sum_s=float(clocks[GAP_SUM]),
        bin_tokens=int(first.fixed[BIN]),
        prefill_peak=int(most[PROMPTS_PEAK]),
        batch_peak=int(most[BATCH_PEAK]),
        overflows=int(counts[OVERFLOWS]),
        request_overhead_s=float(first.clock[OVERHEAD]),
        shed=gone,
        found=None
        if not looked_up
        else Found(
            hit_tokens=first.request[:size, HIT].copy(),
            recovered_tokens=first.request[:size, RECOVERED].copy(),
            looked_up_tokens=int(counts[LOOKED_UP]),
            looked_up_again_tokens=int(counts[LOOKED_UP_AGAIN]),
            cached_sum=float(clocks[CACHED_SUM]),
            cached_tokens=cached,
        ),
        series=series,
    )


def _together(states: Sequence[State], end_s: float, iterations: int) -> tuple[Series, IntArray]:
    """The records of all replicas at even times, memory in the mean over them; and what is cached."""
    records = [s.record[: int(s.counter[RECORDED])] for s in states]
    if len(states) == 1:
        time_s, total, stride = records[0][:, 0], records[0][:, 1:], int(states[0].counter[STRIDE])
    else:
        time_s = np.linspace(0.0, end_s, min(RECORDS, max(map(len, records))) + 1)[1:]
        stride = max(1, round(iterations / max(time_s.size, 1)))
        total = np.zeros((time_s.size, first_columns := states[0].record.shape[1] - 1))
        for record in records:
            at = np.searchsorted(record[:, 0], time_s, side="right")
            total += np.vstack((np.zeros(first_columns), record[:, 1:]))[at]
        total[:, [1, -1]] /= len(states)
    kv, waiting, running, evictions, completions, cached = total[:, 1:].T.astype(np.int64)
    return Series(stride, time_s, kv, waiting, running, evictions, completions, total[:, 0]), cached
