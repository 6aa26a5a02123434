"""vLLM's V1 scheduler: running requests first, chunked prefill, preemption of the last, recomputation.

It mirrors `Scheduler.schedule` of `vllm/v1/core/sched/scheduler.py` and `KVCacheManager.allocate_slots` of
`vllm/v1/core/kv_cache_manager.py`, vLLM 0.19.

Memory is counted as the engine does: tokens computed so far, in whole blocks, one block reserved. The iteration that
ends a prefill emits a token whose KV is computed in the next one.

A prompt begins once its whole sequence fits in free blocks (`scheduler_reserve_full_isl`, on by default since pull
request 37307 of March 2026), or, as before it and with `--no-scheduler-reserve-full-isl`, once the part granted to it
does. Either way it takes blocks part by part. Where they lack for the next part, the prompt is the last that runs and
preempts itself. Parts are cut by the budget alone, never by memory, and leave nothing of the budget to others: so at
most one prompt at a time is computed in part.

With `--prefill-schedule-interval` (pull request 44558 of June 2026) data-parallel ranks compute prompts in every so
many iterations only, all in the same ones (`_should_throttle_prefills`), and defer them where anything decodes and the
last iteration that took prompts left none waiting (`prefill_capacity_bound`). Iterations are counted from the start.

By priority, as with `--scheduling-policy priority` (`PriorityRequestQueue` of `vllm/v1/core/sched/request_queue.py`,
0.19), the waiting queue is in order of (priority, arrival) and the running request that is last in it is preempted, for
a running one alone. So of a priority all that run came before all that wait, and each has a queue in order of arrival,
to the front of which the preempted go.
"""

import math

import numpy as np

from kvplan.analysis.concurrency import RESERVED_BLOCKS
from kvplan.errors import UsageError
from kvplan.model import Admission, Engine, EngineName, IntArray, Scheduling
from kvplan.simulation.actions import (
    advance,
    begin_tick,
    blocks_of,
    count_prompt,
    enter,
    evict,
    give_up_after,
    leave,
    members_tokens,
    overflows,
    seat,
    seat_is_free,
    unschedule,
    was_fetched,
    whole_tokens,
)
from kvplan.simulation.grouped_cache import (
    hits_in_groups,
    hold_in_groups,
    idle_in_groups,
    let_pass,
    state_is_new,
    take_in_groups,
)
from kvplan.simulation.host_tier import first_loaded, hits_of_tiers, is_being_loaded, load, mark
from kvplan.simulation.initial_state import Setup
from kvplan.simulation.policies.parameters import LIMITS, PATIENCE, within_limits
from kvplan.simulation.policies.protocol import Policy, Scenario, Settings
from kvplan.simulation.prefix_cache import caches, hits, hits_in_queue, hold, settle
from kvplan.simulation.queues import append, take_out
from kvplan.simulation.state import (
    MAX_TOKENS,
    NOBODY,
    Blocks,
    Cache,
    Clock,
    Counter,
    Fixed,
    Group,
    List,
    Place,
    Request,
    State,
    Time,
    extended,
    group_list,
    grouped,
    hosted,
    kernel,
    layered,
    parked_list,
)
from kvplan.simulation.turns import compute, is_turn

WATERMARK, FIRST_CHUNK, INTERVAL, SATURATED, SESSIONS = 1, 2, 3, 4, 5  # of the knobs
WHOLE_PROMPT, FIRST_PART = range(2)
ADMISSION = tuple(map(str, Admission))
SCHEDULING, BY_PRIORITY = tuple(map(str, Scheduling)), 1
NO_CAP = 1 << 30  # admissions in an iteration


@kernel
def form_batch(s: State) -> None:
    """Serve running requests first, then prompts."""
    if extended(s):  # of the first queue the engine has done it
        for queue in range(1, s.fixed[Fixed.QUEUES]):
            give_up_after(s, queue, s.clock[Clock.SHED_AFTER])
    if prompts_wait(s):
        serve_decodes(s)
        return
    evicted = s.counter[Counter.EVICTED]
    admit_prompts(s, serve_running(s), NO_CAP)
    if s.counter[Counter.EVICTED] == evicted:
        s.knobs[SATURATED] = s.counter[Counter.WAITING] > 0


@kernel
def prompts_wait(s: State) -> bool:
    """Tell whether prompts wait for the next iteration of the interval, while anything decodes.

    They do not where the last iteration that took some left others waiting.
    """
    interval = int(s.knobs[INTERVAL])
    if interval == 1 or s.knobs[SATURATED] > 0 or s.list[group_list(s, 0), List.LENGTH] == 0:
        return False
    return bool(s.counter[Counter.ITERATIONS] % interval > 0)


@kernel
def serve_running(s: State) -> int:
    """Give running requests a token each, then go on with the prompt begun.

    Return what is left of the budget: nothing where somebody was preempted, for then nobody is admitted. The first loop
    of `Scheduler.schedule`.
    """
    if by_priority(s):
        return serve_by_priority(s)
    return go_on(s, serve_decodes(s))


@kernel
def serve_decodes(s: State) -> int:
    """Give running requests a token each and blocks for it, the last ones give way; return as `serve_running` does.

    The first to give way is a prompt begun: where somebody has, there is none.
    """
    budget = int(s.knobs[MAX_TOKENS])
    preempted = False
    if layered(s):
        preempted = serve_in_order(s)
    else:
        advance(s, 0)
    while overflows(s):
        preempt(s, last_running(s))
        preempted = True
    # Never below 0: whoever runs took at least a token of it when the prompt was computed.
    budget -= s.list[group_list(s, 0), List.LENGTH] * (1 + s.fixed[Fixed.DRAFTS])
    return 0 if preempted else budget


@kernel
def go_on(s: State, budget: int) -> int:
    """Go on with the prompt begun, which gives way where blocks lack; return as `serve_running` does."""
    request = s.counter[Counter.PARTLY]
    if request != NOBODY and budget > 0:
        if blocks_lack(s, request, budget):
            preempt(s, request)
            return 0
        budget -= compute_prompt(s, request, budget)
    return serve_loaded(s, budget) if hosted(s) else budget


@kernel
def serve_loaded(s: State, budget: int) -> int:
    """Go on with those whose load is done, in order; one for which blocks lack gives way. Return what is left."""
    request = first_loaded(s)
    while request != NOBODY and budget > 0:
        mark(s, request, -1)
        if blocks_lack(s, request, budget):
            evict(s, request)
            return 0
        take_out(s, request)
        budget -= compute_prompt(s, request, budget)
        request = first_loaded(s)
    return budget


@kernel
def serve_in_order(s: State) -> bool:
    """Free, request by request, blocks that windows have passed and take others; tell whether any was preempted.

    Who comes later still holds what it will free, so that the order counts.
    """
    preempted = False
    if begin_tick(s, 0):
        return False
    request = s.list[group_list(s, 0), List.HEAD]
    while request != NOBODY:
        if not is_turn(s, request):
            request = s.request[request, Request.AFTER]
            continue
        tokens = members_tokens(s, request, 0)
        compute(s, request, tokens - 1, tokens + s.fixed[Fixed.SLOTS])
        while overflows(s):
            last = last_running(s)
            preempt(s, last)
            preempted = True
            if last == request:
                return preempted
        if grouped(s):
            take_in_groups(s, request, tokens - 1, tokens)
            s.request[request, Request.TURN] += s.blocks[tokens, Blocks.TURNS] - tokens
        request = s.request[request, Request.AFTER]
    return preempted


@kernel
def by_priority(s: State) -> bool:
    """Tell whether requests wait in a queue for each priority, in their order."""
    return bool(s.fixed[Fixed.QUEUES] > 1 and s.knobs[SESSIONS] == 0)


@kernel
def serve_by_priority(s: State) -> int:
    """Serve as `serve_running` does, where the worst of all that run gives way.

    With `--scheduling-policy priority`, that is the one of the highest number that came last, wherever it stands.
    """
    begin_tick(s, 0)
    left = NOBODY
    while left == NOBODY:
        come_back(s)
        left = serve_worst_last(s)
    return left


@kernel
def serve_worst_last(s: State) -> int:
    """Give running requests a token each in order, and go on with the prompt begun; return what `serve_running` does.

    Whoever is the worst, and has no block for itself, ends the iteration for those after it: they stand by. NOBODY
    where therefore nobody runs: the engine schedules anew.
    """
    preempted, request = False, s.list[group_list(s, 0), List.HEAD]
    while request != NOBODY:
        grow(s, request)
        while overflows(s):
            worst = worst_running(s)
            if worst == request:
                stand_by_from(s, s.request[request, Request.AFTER])
                preempt(s, request)
                return 0 if s.list[group_list(s, 0), List.LENGTH] > 0 else NOBODY
            if s.request[worst, Request.ADMISSION] > s.request[request, Request.ADMISSION]:
                grow(s, worst)  # for all of it is freed
            preempt(s, worst)
            preempted = True
        request = s.request[request, Request.AFTER]
    budget = int(s.knobs[MAX_TOKENS]) - s.list[group_list(s, 0), List.LENGTH]
    request = s.counter[Counter.PARTLY]
    if request != NOBODY and budget > 0:
        while blocks_lack(s, request, budget):
            worst = worst_running(s)
            preempt(s, worst)
            preempted = True
            if worst == request:
                return 0 if s.list[group_list(s, 0), List.LENGTH] > 0 else NOBODY
        budget -= compute_prompt(s, request, budget)
    return 0 if preempted else budget


@kernel
def grow(s: State, request: int) -> None:
    """Take what a running request needs for its next token; a prompt begun has nothing to take."""
    if s.request[request, Request.PLACE] == Place.PARTIAL:
        return
    tokens = members_tokens(s, request, 0)
    if layered(s):
        compute(s, request, tokens - 1, tokens)
    else:
        s.counter[Counter.HELD] += blocks_of(s, tokens) - blocks_of(s, tokens - 1)


@kernel
def worst_running(s: State) -> int:
    """Find who gives way: of all that run the one of the highest number that came last."""
    worst, request = NOBODY, s.list[group_list(s, 0), List.HEAD]
    while request != NOBODY:
        if worst == NOBODY or goes_after(s, request, worst):
            worst = request
        request = s.request[request, Request.AFTER]
    request = s.counter[Counter.PARTLY]
    if request != NOBODY and (worst == NOBODY or goes_after(s, request, worst)):
        worst = request
    return int(worst)


@kernel
def goes_after(s: State, request: int, other: int) -> bool:
    """Tell whether a request goes after one admitted before it: by priority, then by arrival."""
    mine, others = s.request[request, Request.QUEUE], s.request[other, Request.QUEUE]
    if mine != others:
        return bool(mine > others)
    return bool(s.time[request, Time.ARRIVAL] >= s.time[other, Time.ARRIVAL])


@kernel
def stand_by_from(s: State, request: int) -> None:
    """Let a running request and all after it stand by for an iteration, what they hold kept."""
    while request != NOBODY:
        following = s.request[request, Request.AFTER]
        unschedule(s, request, 0)
        s.request[request, Request.STAGE] = s.group[0, Group.TICK] - s.request[request, Request.START]
        if not math.isnan(s.time[request, Time.FIRST_TOKEN]) and math.isnan(s.time[request, Time.FINISH]):
            s.time[request, Time.FINISH] = -s.clock[Clock.LAST_RUN]
        s.request[request, Request.PARKED] = leave(s, request, 0) - 1
        append(s, parked_list(s, 0), request)
        request = following


@kernel
def come_back(s: State) -> None:
    """Let those who stood by run again, in their order."""
    request = s.list[parked_list(s, 0), List.HEAD]
    while request != NOBODY:
        take_out(s, request)
        enter(s, request, 0, s.request[request, Request.STAGE])
        request = s.list[parked_list(s, 0), List.HEAD]


@kernel
def first_waiting(s: State) -> int:
    """Return who is admitted next: the first of the first queue in which somebody waits; NOBODY if nobody does."""
    for queue in range(s.fixed[Fixed.QUEUES]):
        request = s.list[queue, List.HEAD]
        if request != NOBODY:
            return NOBODY if queue > 0 and is_held_back(s, request) else int(request)
    return NOBODY


@kernel
def is_held_back(s: State, request: int) -> bool:
    """Tell whether a session that would begin waits until another one ends; those preempted have begun."""
    if s.knobs[SESSIONS] == 0 or s.request[request, Request.EVICTIONS] > 0:
        return False
    return bool(s.counter[Counter.SESSIONS] >= s.knobs[SESSIONS])


@kernel
def last_running(s: State) -> int:
    """Find the last that began to run: a prompt computed in part leaves nothing of the budget to others after it."""
    partly = s.counter[Counter.PARTLY]
    return int(s.list[group_list(s, 0), List.TAIL] if partly == NOBODY else partly)


@kernel
def preempt(s: State, request: int) -> None:
    """Evict as `Scheduler._preempt_request` does: what has been generated becomes part of the prompt."""
    if s.request[request, Request.PLACE] != Place.PARTIAL:
        s.request[request, Request.STAGE] = s.group[0, Group.TICK] - s.request[request, Request.START]
    evict(s, request)


@kernel
def granted_tokens(s: State, request: int, budget: int) -> int:
    """Count what is left to compute of a sequence, or as much of it as the budget allows."""
    whole = whole_tokens(s, request, s.request[request, Request.STAGE])
    return int(min(whole - s.request[request, Request.PARKED], budget))


@kernel
def blocks_lack(s: State, request: int, budget: int) -> bool:
    """Tell whether blocks lack for the next part of a sequence; what its windows have passed is free first."""
    more = further_blocks(s, request, budget)
    return bool(s.counter[Counter.HELD] + more > s.fixed[Fixed.CAPACITY])


@kernel
def further_blocks(s: State, request: int, budget: int) -> int:
    """Count the blocks that the next part of a sequence takes."""
    done = s.request[request, Request.PARKED]
    until = done + granted_tokens(s, request, budget)
    if grouped(s):
        let_pass(s, request, done)
        return int(s.blocks[until, Blocks.FILLED] - s.request[request, Request.HOLDS])
    if layered(s):
        return int(
            s.blocks[until, Blocks.FILLED] - s.blocks[done, Blocks.PASSED] - s.request[request, Request.HOLDS]
        )
    return blocks_of(s, until) - blocks_of(s, done)


@kernel
def admit_prompts(s: State, budget: int, most: int) -> None:
    """Admit in order of priority and arrival, while the next one fits; only the part granted takes blocks.

    The second loop of `Scheduler.schedule`, with `full_sequence_must_fit` of `allocate_slots`.
    """
    while budget > 0 and most > 0 and seat_is_free(s):
        request = first_waiting(s)
        if request == NOBODY:
            return
        spared = int(s.knobs[WATERMARK]) if s.counter[Counter.RESIDENT] > 0 else 0
        whole = whole_tokens(s, request, s.request[request, Request.STAGE])
        here, found, idle = 0, 0, 0
        fetched = was_fetched(s, request)
        if caches(s) and not fetched:
            settle(s)
            here = hits(s, request)
            idle = hits_in_queue(s, request, here)
            found = here
        if hosted(s) and not fetched:
            if is_being_loaded(s, request):
                return
            found = hits_of_tiers(s, request)
        if grouped(s):
            found = hits_in_groups(s, request)
            if state_is_new(s, request, found):
                return
            here = found * s.kept.shape[0]
        blocks = blocks_of(s, tokens_with_room(s, whole, here, found, budget)) - here + idle
        if grouped(s) and s.counter[Counter.HELD] + blocks + here > s.fixed[Fixed.CAPACITY] - spared:
            blocks += idle_in_groups(s, found)  # else it fits though all were idle
        if not fetched and s.counter[Counter.HELD] + blocks > s.fixed[Fixed.CAPACITY] - spared:
            return
        seat(s, request)
        if s.request[request, Request.EVICTIONS] == 0 and s.request[request, Request.QUEUE] > 0:
            s.counter[Counter.SESSIONS] += 1
        if fetched:  # with room for the next token, which is taken with it
            s.request[request, Request.PARKED] = whole - 1
            s.counter[Counter.HELD] -= blocks_of(s, whole) - blocks_of(s, whole - 1)
        else:
            s.request[request, Request.PARKED] = take_hits(s, request, found)
        most -= 1
        if hosted(s) and found > here and load(s, request, here, found):
            continue
        budget -= compute_prompt(s, request, budget)


@kernel
def take_hits(s: State, request: int, found: int) -> int:
    """Hold what is found of a request; returns its tokens."""
    if grouped(s):
        return hold_in_groups(s, request, found)
    return hold(s, request, found) if caches(s) else 0


@kernel
def tokens_with_room(s: State, whole: int, here: int, found: int, budget: int) -> int:
    """Count the tokens of a sequence for which there has to be room: all, or those found and those granted.

    A load beside the batch goes first, and nothing is granted meanwhile.
    """
    if s.knobs[FIRST_CHUNK] == WHOLE_PROMPT:
        return whole
    if hosted(s) and s.fixed[Fixed.OVERLAPS] and found > here:
        budget = 0
    return int(min(whole, found * s.fixed[Fixed.BLOCK] + budget))


@kernel
def compute_prompt(s: State, request: int, budget: int) -> int:
    """Compute the next part of a sequence; returns its tokens."""
    granted = granted_tokens(s, request, budget)
    done = s.request[request, Request.PARKED] + granted
    if layered(s):
        compute(s, request, done - granted, done)
        if grouped(s):
            take_in_groups(s, request, done - granted, done)
    else:
        s.counter[Counter.HELD] += further_blocks(s, request, budget)
    if granted > 1:
        count_prompt(s, done - granted, done)
    if done == whole_tokens(s, request, s.request[request, Request.STAGE]):
        s.counter[Counter.PARTLY] = NOBODY
        enter(s, request, 0, s.request[request, Request.STAGE])
    else:
        s.request[request, Request.PARKED] = done
        s.request[request, Request.PLACE] = Place.PARTIAL
        s.counter[Counter.PARTLY] = request
        s.counter[Counter.MORE_TOKENS] += done
        s.counter[Counter.MORE_REQUESTS] += 1
        s.counter[Counter.MORE_SILENT] += 1
    return granted


def prepare(scenario: Scenario, settings: Settings) -> tuple[Setup, dict[str, object]]:
    """Take engine limits from the profile; absent ones do not bind."""
    replica = scenario.model.replica
    engine = scenario.model.engine or Engine()
    watermark, admission = watermark_share(settings, engine), admission_rule(settings, engine)
    blocks = max(replica.memory_tokens // replica.block_tokens - RESERVED_BLOCKS, 0)
    interval = engine.prefill_interval if engine.name is EngineName.VLLM else 1
    setup, limits = within_limits(scenario, settings, int(watermark * blocks), admission, interval, 0, 0)
    caching = prefix_caching(scenario, settings)
    host = replica.offload if caching else None
    scheduling = scheduling_rule(settings, engine)
    if scheduling == BY_PRIORITY:
        queue_of, queues = queues_of(scenario)
        setup = setup._replace(queue_of=queue_of, queues=queues)
    setup = setup._replace(
        capacity_blocks=blocks,
        # what the host forgets meanwhile is not found, and asks for no room at first
        coasts=(admission == WHOLE_PROMPT or host is None) and interval == 1 and caching != Cache.GROUPS,
        prefix_cache=caching,
        host=host,
        waiting_weighs=4,
    )
    rule = {"watermark": watermark, "admission": ADMISSION[admission], "prefix_caching": int(caching > 0)}
    if scheduling == BY_PRIORITY:
        if host is not None:
            raise UsageError(f"{settings.policy}.scheduling = priority: not modelled beside a host tier")
        rule["scheduling"] = SCHEDULING[scheduling]
    if interval > 1:
        rule["prefill_interval"] = interval
    return setup, {**rule, **limits}


def watermark_share(settings: Settings, engine: Engine) -> float:
    """Read the share of the blocks kept free at admission while anything runs; the profile's unless set."""
    share = settings.number("watermark", engine.watermark)
    if not 0 <= share < 1:
        raise UsageError(f"{settings.policy}.watermark = {share:g}: a share of the blocks, from 0 to below 1")
    return share


def admission_rule(settings: Settings, engine: Engine) -> int:
    """Read what has to fit at admission, `WHOLE_PROMPT` or `FIRST_PART`; the profile's unless set."""
    rule = settings.number("admission", ADMISSION.index(engine.admission))
    if rule not in (WHOLE_PROMPT, FIRST_PART):
        words = f"{WHOLE_PROMPT} ({ADMISSION[WHOLE_PROMPT]}) or {FIRST_PART} ({ADMISSION[FIRST_PART]})"
        raise UsageError(f"{settings.policy}.admission = {rule:g}: {words}")
    return int(rule)


def scheduling_rule(settings: Settings, engine: Engine) -> int:
    """Read who goes first, as a position in `SCHEDULING`; the profile's unless set."""
    rule = settings.number("scheduling", SCHEDULING.index(engine.scheduling))
    if rule not in (0, BY_PRIORITY):
        raise UsageError(f"{settings.policy}.scheduling = {rule:g}: 0 (fcfs) or 1 (priority)")
    return int(rule)


def queues_of(scenario: Scenario) -> tuple[IntArray, int]:
    """Return the queue of each request, one for each priority in order, and their number; a trace has one class."""
    priorities = {c.name: c.priority for c in scenario.model.classes}
    of_class = [priorities.get(name, 0) for name in scenario.names]
    every, queue = np.unique(of_class, return_inverse=True)
    return queue[scenario.requests.class_index], every.size


def prefix_caching(scenario: Scenario, settings: Settings) -> int:
    """Read what stays known of those who have left, a value of `Cache`; as the profile says, unless set.

    Beside layers of several kinds nothing does, unless set, where requests have nothing in common.
    """
    replica, requests = scenario.model.replica, scenario.requests
    on = replica.prefix_caching and (not scenario.looks_up or requests.prefixes is not None)
    value = settings.number("prefix_caching", float(on))
    if value not in (0.0, 1.0):
        raise UsageError(f"{settings.policy}.prefix_caching = {value:g}: 0 or 1")
    if not value or not scenario.looks_up:
        return Cache.BLOCKS if value else Cache.NONE
    why = "drafts" if requests.drafted is not None or replica.layout is None else replica.layout.not_cached
    if why:
        raise UsageError(f"{settings.policy}.prefix_caching = 1: not modelled beside {why}")
    return Cache.GROUPS


POLICY = Policy(
    name="vllm",
    summary="vLLM's V1 scheduler: chunked prefill, the last running request is preempted and recomputed",
    prepare=prepare,
    form_batch=form_batch,
    parameters={
        "watermark": "share of the blocks kept free at admission while anything runs; 0",
        "admission": "whole-prompt: a prompt begins once all of it fits; first-chunk: once what the iteration computes "
        "of it does, as before vLLM's pull request 37307 of March 2026; whole-prompt",
        "scheduling": "fcfs: first come first served; priority: by priority of the class, then by arrival; as in "
        "[engine]",
        "prefix_caching": "1: full blocks stay known until their room is needed, and are not computed again, 0: not; "
        "as in [gpu]",
        **PATIENCE,
        **LIMITS,
    },
    engine=True,
    words={"admission": ADMISSION, "scheduling": SCHEDULING},
    layers=True,
    drafts=True,
    fetches=True,
    host_tier=True,
)
