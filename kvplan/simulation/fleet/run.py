"""Run a policy on the replicas of a fleet, compiled or not."""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache, partial
from typing import NamedTuple

import numpy as np

from kvplan.analysis.fleet import one_replica
from kvplan.errors import UsageError
from kvplan.model import FloatArray, IntArray, Replica, Timing
from kvplan.model.fleet import Routing
from kvplan.simulation import engine
from kvplan.simulation.data_parallel import form_together
from kvplan.simulation.engine import GOES_ON, LACKS_ROWS, LIVELOCK, FormBatch, Loop, Program, until_it_ends
from kvplan.simulation.fleet import loop as fleet_loop
from kvplan.simulation.fleet.scaling import Latencies, Pods
from kvplan.simulation.initial_state import (
    RECORDS,
    Setup,
    Spans,
    common_arrays,
    like,
    new_state,
    with_ranks,
)
from kvplan.simulation.outcome import Ending, Outcome, outcome
from kvplan.simulation.policies.protocol import Policy, Scenario, Settings
from kvplan.simulation.requests import Requests, Turns, nothing_follows
from kvplan.simulation.row_pool import RowPool
from kvplan.simulation.state import (
    NOBODY,
    Clock,
    Counter,
    Fixed,
    Link,
    Request,
    Role,
    Router,
    Rule,
    Site,
    State,
    Time,
    features,
)

_STEPS, _PLAIN_STEPS = 500_000, 1_000  # between two looks at what the caller wants
_ROWS, _MOST_ROWS = 1 << 9, 1 << 16  # requests that have a row at first, for each replica and in all
_COLUMNS = np.arange(Link.WHOSE)  # of the trees
_RECORDS = 1 << 9  # of the series of each replica, of several
_MOST_BYTES = 1 << 29  # of what replicas have of their own


class ReplicaGroup(NamedTuple):
    """Equal replicas of a fleet."""

    replicas: int
    timing: Timing
    replica: Replica
    setup: Setup  # from the policy's `prepare`
    role: int = Role.WHOLE  # WHOLE, PREFILL or DECODE
    # from when until when each of them takes requests, seconds; some do at any time. Empty: all of them always.
    open_s: Sequence[tuple[float, float]] = ()
    pods: Pods | None = None  # that come and go as a control says; `replicas` are its sites then


def run(
    policy: FormBatch,
    requests: Requests,
    groups: Sequence[ReplicaGroup],
    routing: Routing,
    *,
    seed: int = 0,
    seconds_per_token: float = 0.0,
    request_overhead_s: float = 0.0,
    horizon_s: float | None = None,
    spans: Spans | None = None,
    compile: bool | None = None,
    watch: Callable[[int], bool] | None = None,
    announce: Callable[[bool], None] | None = None,
) -> Outcome:
    """Run a policy on a list of requests that a router sends to replicas.

    All else is as for `kvplan.simulation.engine.run`, which does the same with one replica, to the last bit.

    `groups` are one of role WHOLE; or one of prefill and one of decode replicas, in this order, all of them always
    open. The seed is of routing at random; `seconds_per_token` takes the KV of a prompt from a prefill to a decode
    replica. Memory is in the mean over the replicas; the most of it, and of a batch, of any of them. With several
    replicas the peak of waiting requests is the most of those recorded.
    """
    pods = groups[0].pods
    sticks = pods is not None and routing is Routing.SESSION and requests.turns is not None
    if (groups[0].open_s or pods) and not (routing in _RULES or sticks or requests.is_open):
        raise ValueError(
            "whoever others bring cannot be meant for a replica beforehand, where these come and go"
        )
    split = len(groups) > 1
    known = [requests] * len(groups)
    if split:
        known[0] = replace(requests, decode_tokens=np.ones_like(requests.decode_tokens))
    if (split or not requests.is_open) and requests.turns is None:
        known = [replace(one, turns=nothing_follows(one.arrival_s.size)) for one in known]
    at_once = max(engine.ROWS, min(_ROWS * sum(group.replicas for group in groups), _MOST_ROWS))
    rows = RowPool(known[0], groups[0].setup, groups[0].replica, at_once)
    sites = _sites(known[0], groups, routing, seed)
    states = _states(known, groups, routing, sites, rows.number.size, watch, spans)
    for s in states:
        s.clock[Clock.HORIZON] = math.inf if horizon_s is None else horizon_s
        s.clock[Clock.OVERHEAD], s.clock[Clock.SECONDS_PER_TOKEN] = request_overhead_s, seconds_per_token
    if sticks:
        states[0].fleet[0, Router.RULE], states[0].request[:, Request.SITE] = Rule.BY_SESSION, NOBODY
    pristine = states[0]._replace(
        counter=states[0].counter.copy(), stream=states[0].stream.copy(), pool=states[0].pool.copy()
    )
    rng = np.random.default_rng([seed, 0])
    if pods is not None:
        _let_in(states, pods, 0.0, rng)
    elif groups[0].open_s and routing in _RULES:
        _open_and_close(states, groups[0].open_s, 0.0)
    size = sum(group.replicas for group in groups)  # behind their states are those of ranks
    now = 0.0  # of the last change
    longest = int(requests.iterations().max(initial=1) + requests.input_tokens.max(initial=1))
    patience = engine.PATIENCE * longest + 1000

    def goes_on() -> bool:
        return watch is None or watch(
            int(sum(s.counter[Counter.COMPLETED] for s in states[:size])) // len(groups)
        )

    def step(loop: Loop, fast: bool) -> Ending | None:
        nonlocal states, now
        code, shared = loop(states, _STEPS if fast else _PLAIN_STEPS, patience), states[0].fleet[0]
        if code == LACKS_ROWS:
            states, shared[Router.UNASKED], shared[Router.UNASKED_END] = rows.refilled(
                states, int(shared[Router.FURTHER])
            )
            new = slice(int(shared[Router.UNASKED]), None)
            shared[Router.FURTHER] -= rows.number[new].size
            states[0].request[new, Request.SITE] = sites[0][rows.number[new]]
            if pods is not None:
                _let_in(states, pods, now, rng)
        elif code == fleet_loop.CHANGES:
            now = float(states[0].link[0, Link.SEEN])
            if pods is None:
                _open_and_close(states, groups[0].open_s, now)
            else:
                _step(states, pods, now, pristine)
                _let_in(states, pods, now, rng)
        return (
            None if code in (GOES_ON, LACKS_ROWS, fleet_loop.CHANGES) else _ending(states[:size], rows, code)
        )

    ending = until_it_ends(PROGRAM, policy, features(states[0]), step, goes_on, compile, announce)
    return outcome(states[:size], rows, ending)


@cache
def _bound(policy: FormBatch) -> Loop:
    run_replica = engine.with_names(fleet_loop.run_replica, loop=engine.bound(policy))
    return engine.with_names(fleet_loop.serve, run_replica=run_replica)


PROGRAM = Program("fleet", _bound, (engine.loop, form_together, fleet_loop.serve, fleet_loop.fetch))


_RULES = {Routing.LEAST_REQUESTS: Rule.BY_REQUESTS, Routing.LEAST_KV: Rule.BY_KV}


def _sites(requests: Requests, groups: Sequence[ReplicaGroup], routing: Routing, seed: int) -> list[IntArray]:
    """Choose the replica that each request is meant for, of each group; nothing where the router looks."""
    places = [_meant_for(routing, requests, group, [seed, i]) for i, group in enumerate(groups)]
    return [site + sum(group.replicas for group in groups[:i]) for i, site in enumerate(places)]


def _meant_for(routing: Routing, requests: Requests, group: ReplicaGroup, seed: Sequence[int]) -> IntArray:
    size, replicas = requests.arrival_s.size, group.replicas
    rng = np.random.default_rng(seed)
    if group.open_s:
        return _among_open(requests.arrival_s, group.open_s, rng if routing is Routing.RANDOM else None)
    match routing:
        case Routing.RANDOM:
            return rng.integers(replicas, size=size)
        case Routing.SESSION if requests.turns is not None:
            first = _first_turns(requests.turns)
            begins = np.flatnonzero(first == np.arange(size))
            return np.searchsorted(begins, first) % replicas
        case _:
            return np.arange(size) % replicas


def _among_open(
    arrival_s: FloatArray, open_s: Sequence[tuple[float, float]], rng: np.random.Generator | None
) -> IntArray:
    """Choose a site open at each arrival, in turns, or at random."""
    opens_s, closes_s = np.array(open_s).T
    times_s = np.unique(np.append(np.ravel(open_s), 0.0))
    begins_s = times_s[times_s < math.inf]
    parts = np.split(np.arange(arrival_s.size), np.searchsorted(arrival_s, begins_s[1:]))
    sites = []
    for begin_s, mine in zip(begins_s, parts, strict=True):
        here = np.flatnonzero((opens_s <= begin_s) & (begin_s < closes_s))
        sites.append(here[mine % here.size if rng is None else rng.integers(here.size, size=mine.size)])
    return np.concatenate(sites)


def _open_and_close(states: Sequence[State], open_s: Sequence[tuple[float, float]], now: float) -> None:
    """Show the router only the replicas that take requests now."""
    s = states[0]
    for replica, (opens_s, closes_s) in enumerate(open_s):
        closed = not opens_s <= now < closes_s
        if s.fleet[1 + replica, Site.CLOSED] != closed:
            s.fleet[1 + replica, Site.CLOSED] = closed
            c = states[replica].counter
            fleet_loop.show(s, replica, c[Counter.OUTSTANDING], c[Counter.HELD_BEFORE])
    s.link[0, Link.SEEN] = min((time for both in open_s for time in both if time > now), default=math.inf)


_SHOWN = [Counter.OUTSTANDING, Counter.WAITING, Counter.HELD_BEFORE]
_CACHE = [*range(Counter.FREE, Counter.OUTSTANDING)]  # of a prefix cache


def _step(states: Sequence[State], pods: Pods, now: float, pristine: State) -> None:
    """Show pods their replicas, and empty the prefix caches of those that start."""
    size, ranks = states[0].fleet.shape[0] - 1, int(states[0].fixed[Fixed.PARALLEL])
    in_flight, waiting, held = np.array([s.counter[_SHOWN] for s in states[:size]]).T
    done_s = np.array([s.clock[Clock.NOW] for s in states[:size]])
    arrived = int(states[0].fleet[0, Router.SENT])
    usage = held / (states[0].fixed[Fixed.CAPACITY] * max(ranks, 1))
    latencies = partial(_latencies, states[0], now - pods.every_s, now)
    for site in pods.step(now, arrived, in_flight, waiting, usage, done_s, latencies):
        begin = size + site * ranks
        for s in (states[site], *states[begin : begin + ranks]):
            s.counter[_CACHE] = pristine.counter[_CACHE]
            if states[0].stream is not states[-1].stream:
                s.stream[:] = pristine.stream
            s.pool[:] = pristine.pool


def _latencies(s: State, since_s: float, now: float) -> Latencies:
    """Return TTFT and TPOT of those who came to their first or last token since then, and still have a row."""
    first_s, finish_s = s.time[:, Time.FIRST_TOKEN], s.time[:, Time.FINISH]
    begun, done = ((since_s < times) & (times <= now) for times in (first_s, finish_s))
    gaps = s.request[done, Request.STAGES] - 1
    return Latencies(
        first_s[begun] - s.time[begun, Time.ARRIVAL] + s.clock[Clock.OVERHEAD],
        ((finish_s - first_s)[done] / np.maximum(gaps, 1))[gaps > 0],
    )


def _let_in(states: Sequence[State], pods: Pods, now: float, rng: np.random.Generator) -> None:
    """Let the router see the pods that are open, or mean all who come next for them."""
    s, here = states[0], pods.open(now)
    closed = np.ones(s.fleet.shape[0] - 1, np.int64)
    closed[here] = 0
    for site in np.flatnonzero(s.fleet[1:, Site.CLOSED] != closed).tolist():
        s.fleet[1 + site, Site.CLOSED] = closed[site]
        c = states[site].counter
        fleet_loop.show(s, site, c[Counter.OUTSTANDING], c[Counter.HELD_BEFORE])
    if s.fleet[0, Router.RULE] == Rule.BLIND:
        unasked = slice(int(s.fleet[0, Router.UNASKED]), int(s.fleet[0, Router.UNASKED_END]))
        mine = s.request[unasked, Request.SITE]
        mine[:] = rng.choice(here, mine.size)
    s.link[0, Link.SEEN] = pods.next_s(now)


def _first_turns(turns: Turns) -> IntArray:
    """Find the first of those that brought each request, one after the other; itself, if it came unasked."""
    first = np.arange(turns.following.size)
    followed = turns.goes_on >= 0
    first[turns.following[followed]] = np.flatnonzero(followed)
    while not np.array_equal(earlier := first[first], first):
        first = earlier
    return first


def _states(
    known: Sequence[Requests],
    groups: Sequence[ReplicaGroup],
    routing: Routing,
    sites: Sequence[IntArray],
    rows: int,
    watch: Callable[[int], bool] | None,
    spans: Spans | None,
) -> tuple[State, ...]:
    """Make a state for each replica, before anything has arrived; they share the tables of requests."""
    requests, split = known[0], len(groups) > 1
    size = requests.arrival_s.size
    firsts = [
        new_state(one, group.timing, group.replica, group.setup, None, rows=rows, watch=watch, spans=spans)
        for one, group in zip(known, groups, strict=True)
    ]
    for first in firsts:  # one histogram is put together of all
        first.fixed[Fixed.BIN] = max(one.fixed[Fixed.BIN] for one in firsts)
    time, request = _tables(firsts, sites)
    replicas = sum(group.replicas for group in groups)
    fleet = np.zeros((1 + replicas, firsts[0].fleet.shape[1]), dtype=np.int64)
    fleet[0, Router.UNASKED_END], fleet[0, Router.FURTHER] = firsts[0].counter[Counter.RELEASED], size - rows
    fleet[0, Router.NEXT_OF_CLIENTS] = requests.clients or 0
    fleet[0, Router.RULE], fleet[0, Router.BRINGS] = _RULES.get(routing, Rule.BLIND), not requests.is_open
    role = fleet[1:, Site.ROLE] = np.repeat(
        [group.role for group in groups], [group.replicas for group in groups]
    )
    fleet[1:, Site.IDLES] = 1
    leaves = 1 << (replicas - 1).bit_length()
    link = np.full((2 * leaves, firsts[0].link.shape[1]), math.inf)
    mine = link[leaves : leaves + replicas]
    mine[role != Role.DECODE, Link.SEEN] = 0.0
    mine[role == Role.DECODE, Link.SEEN_DECODING] = 0.0
    mine[:, Link.TRANSFERS_UNTIL] = 0.0
    link[leaves:, Link.WHOSE :] = np.arange(leaves)[:, None]
    for node in reversed(range(1, leaves)):
        lesser = 2 * node + (link[2 * node + 1, : Link.WHOSE] < link[2 * node, : Link.WHOSE])
        link[node, : Link.WHOSE] = link[lesser, _COLUMNS]
        link[node, Link.WHOSE :] = link[lesser, Link.WHOSE + _COLUMNS]
    common = common_arrays(requests, groups[0].setup) & common_arrays(requests, groups[-1].setup)
    taken = sum(
        g.replicas
        * (1 + int(first.fixed[Fixed.PARALLEL]))
        * sum(array.nbytes for name, array in first._asdict().items() if name not in {*common, "record"})
        for g, first in zip(groups, firsts, strict=True)
    )
    if taken > _MOST_BYTES:
        raise UsageError(
            f"the states of {replicas:,} replicas take up to {taken / 2**30:.1f} GiB, and {_MOST_BYTES / 2**30:g} "
            "is the most; fewer replicas, a smaller block_tokens, or fewer requests where a prefix cache knows them"
        )
    records = RECORDS if replicas == 1 else _RECORDS
    states: list[State] = []
    for group, first in zip(groups, firsts, strict=True):
        first.counter[[Counter.RELEASED, Counter.JOINED, Counter.ROWLESS]] = 0
        first.fixed[Fixed.ALL], first.fixed[Fixed.HANDED_OVER] = NOBODY, size if split else 0
        own = first._replace(
            list=np.concatenate((first.list, np.array([[NOBODY, NOBODY, 0]] * 2))),
            time=time,
            request=request,
            fleet=fleet,
            link=link,
        )
        for _ in range(group.replicas):
            states.append(like(own, common, records))
            states[-1].fixed[Fixed.SITE_NUMBER] = len(states) - 1
    return with_ranks(tuple(states), requests, groups[0].setup)


def _tables(firsts: Sequence[State], sites: Sequence[IntArray]) -> tuple[FloatArray, IntArray]:
    """Join `State.time` and `State.request`, with SITE: values of decode replicas behind the others."""
    rows, width = firsts[0].request.shape
    time = np.concatenate([first.time for first in firsts])
    request = np.zeros((time.shape[0], width + 1), dtype=np.int64)
    for i, (first, site) in enumerate(zip(firsts, sites, strict=True)):
        mine = slice(i * rows, (i + 1) * rows)
        request[mine, : first.request.shape[1]], request[mine, Request.SITE] = first.request, site[:rows]
        if i > 0:  # begins when it is brought, and with a token
            time[mine, Time.ARRIVAL], request[mine, Request.STAGE] = math.nan, 1
    return time, request


def _ending(states: Sequence[State], rows: RowPool, code: int) -> Ending:
    if code == LIVELOCK:
        return Ending.LIVELOCK
    rows.keep(states)
    gone = sum(int(s.counter[Counter.GONE]) for s in states)
    if (
        not rows.requests.more_later
        and np.count_nonzero(~np.isnan(rows.finish_s)) + gone == rows.finish_s.size
    ):
        return Ending.FINISHED
    if states[0].clock[Clock.HORIZON] < math.inf:
        for s in states:
            s.clock[Clock.NOW] = s.clock[Clock.HORIZON]
        return Ending.HORIZON
    return Ending.LIVELOCK


_CACHING = "prefix_caching"


def groups(
    policy: Policy, scenario: Scenario, settings: Settings
) -> tuple[list[ReplicaGroup], dict[str, object]]:
    """Return the groups with their setups, and the parameters of the policy, as run.

    A policy plans for one of the replicas, at its share of the traffic. Decode replicas keep no prefix cache: prompts
    are looked up where they are computed. Nor do they give up anybody.
    """
    model, fleet = scenario.model, scenario.model.fleet
    assert fleet is not None
    alone = scenario._replace(model=one_replica(model))
    if not fleet.is_split:
        setup, parameters = policy.set_up(alone, settings)
        return [ReplicaGroup(fleet.replicas, model.timing, model.replica, setup, Role.WHOLE)], parameters
    sender, receiver = (alone.model.on(hardware) for hardware in (fleet.prefill_on, fleet.decode_on))
    for what, given in (
        ("layers of several kinds", sender.replica.layout or receiver.replica.layout),
        ("drafts", model.drafts),
        ("a host tier", sender.replica.offload or receiver.replica.offload),
        ("data-parallel ranks", max(sender.replica.ranks, receiver.replica.ranks) > 1 or None),
    ):
        if given is not None:
            raise UsageError(
                f"prefill and decode apart are not modelled beside {what}; `replicas` together are"
            )
    prompts = replace(scenario.requests, decode_tokens=np.ones_like(scenario.requests.decode_tokens))
    prefill, parameters = policy.prepare(alone._replace(model=sender, requests=prompts), settings)
    uncached = settings._replace(given={**settings.given, _CACHING: (0.0,)})
    decode, _ = policy.prepare(alone._replace(model=receiver), uncached)
    looked_at = fleet.routing is Routing.LEAST_KV  # in each iteration, while others come over the links
    # nobody comes to a decode replica who has not run
    decode = decode._replace(shed_after_s=math.inf, coasts=decode.coasts and not looked_at)
    return [
        ReplicaGroup(fleet.prefill, sender.timing, sender.replica, prefill, Role.PREFILL),
        ReplicaGroup(fleet.decode, receiver.timing, receiver.replica, decode, Role.DECODE),
    ], parameters
