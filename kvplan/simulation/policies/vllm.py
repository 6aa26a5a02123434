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
"""

from kvplan.analysis.concurrency import RESERVED_BLOCKS
from kvplan.errors import UsageError
from kvplan.model import Admission, Engine
from kvplan.simulation.actions import (
    advance,
    begin_tick,
    blocks_of,
    compute,
    count_prompt,
    enter,
    evict,
    members_tokens,
    overflows,
    seat,
    seat_is_free,
    was_fetched,
    whole_tokens,
)
from kvplan.simulation.host_tier import first_loaded, hits_of_tiers, is_being_loaded, load, mark
from kvplan.simulation.initial_state import Setup
from kvplan.simulation.policies.parameters import LIMITS, PATIENCE, within_limits
from kvplan.simulation.policies.protocol import Policy, Scenario, Settings
from kvplan.simulation.prefix_cache import caches, hits, hits_in_queue, hold, settle
from kvplan.simulation.queues import take_out
from kvplan.simulation.state import (
    MAX_TOKENS,
    NOBODY,
    Blocks,
    Cache,
    Counter,
    Fixed,
    Group,
    List,
    Place,
    Request,
    State,
    group_list,
    hosted,
    kernel,
    layered,
)

WATERMARK, FIRST_CHUNK = 1, 2  # of the knobs
WHOLE_PROMPT, FIRST_PART = range(2)
ADMISSION = tuple(map(str, Admission))
NO_CAP = 1 << 30  # admissions in an iteration


@kernel
def form_batch(s: State) -> None:
    """Serve running requests first, then prompts."""
    admit_prompts(s, serve_running(s), NO_CAP)


@kernel
def serve_running(s: State) -> int:
    """Give running requests a token each, then go on with the prompt begun.

    Return what is left of the budget: nothing where somebody was preempted, for then nobody is admitted. The first loop
    of `Scheduler.schedule`.
    """
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
        if s.counter[Counter.HELD] + further_blocks(s, request, budget) > s.fixed[Fixed.CAPACITY]:
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
        if s.counter[Counter.HELD] + further_blocks(s, request, budget) > s.fixed[Fixed.CAPACITY]:
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
    begin_tick(s, 0)
    request = s.list[group_list(s, 0), List.HEAD]
    while request != NOBODY:
        tokens = members_tokens(s, request, 0)
        compute(s, request, tokens - 1, tokens + s.fixed[Fixed.SLOTS])
        while overflows(s):
            last = last_running(s)
            preempt(s, last)
            preempted = True
            if last == request:
                return preempted
        request = s.request[request, Request.AFTER]
    return preempted


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
def further_blocks(s: State, request: int, budget: int) -> int:
    """Count the blocks that the next part of a sequence takes."""
    done = s.request[request, Request.PARKED]
    until = done + granted_tokens(s, request, budget)
    if layered(s):
        return int(
            s.blocks[until, Blocks.FILLED] - s.blocks[done, Blocks.PASSED] - s.request[request, Request.HOLDS]
        )
    return blocks_of(s, until) - blocks_of(s, done)


@kernel
def admit_prompts(s: State, budget: int, most: int) -> None:
    """Admit in order of arrival, while the next one fits; only the part granted takes blocks.

    The second loop of `Scheduler.schedule`, with `full_sequence_must_fit` of `allocate_slots`.
    """
    while budget > 0 and most > 0 and seat_is_free(s):
        request = s.list[0, List.HEAD]
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
        blocks = blocks_of(s, tokens_with_room(s, whole, here, found, budget)) - here + idle
        if not fetched and s.counter[Counter.HELD] + blocks > s.fixed[Fixed.CAPACITY] - spared:
            return
        seat(s, request)
        if fetched:  # with room for the next token, which is taken with it
            s.request[request, Request.PARKED] = whole - 1
            s.counter[Counter.HELD] -= blocks_of(s, whole) - blocks_of(s, whole - 1)
        else:
            s.request[request, Request.PARKED] = hold(s, request, found) if caches(s) else 0
        most -= 1
        if hosted(s) and found > here and load(s, request, here, found):
            continue
        budget -= compute_prompt(s, request, budget)


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
    setup, limits = within_limits(scenario, settings, int(watermark * blocks), admission)
    caching = prefix_caching(scenario, settings)
    host = replica.offload if caching else None
    setup = setup._replace(
        capacity_blocks=blocks,
        # what the host forgets meanwhile is not found, and asks for no room at first
        coasts=admission == WHOLE_PROMPT or host is None,
        prefix_cache=Cache.BLOCKS if caching else Cache.NONE,
        host=host,
        waiting_weighs=4,
    )
    rule = {"watermark": watermark, "admission": ADMISSION[admission], "prefix_caching": int(caching)}
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


def prefix_caching(scenario: Scenario, settings: Settings) -> bool:
    """Read whether what was computed for those who have left stays known; as the profile says, unless set."""
    on = scenario.model.replica.prefix_caching and not scenario.looks_up
    value = settings.number("prefix_caching", float(on))
    if value not in (0.0, 1.0):
        raise UsageError(f"{settings.policy}.prefix_caching = {value:g}: 0 or 1")
    if value and scenario.looks_up:
        raise UsageError(
            f"{settings.policy}.prefix_caching = 1: not modelled beside drafts or layers of several kinds"
        )
    return value == 1.0


POLICY = Policy(
    name="vllm",
    summary="vLLM's V1 scheduler: chunked prefill, the last running request is preempted and recomputed",
    prepare=prepare,
    form_batch=form_batch,
    parameters={
        "watermark": "share of the blocks kept free at admission while anything runs; 0",
        "admission": "whole-prompt: a prompt begins once all of it fits; first-chunk: once what the iteration computes "
        "of it does, as before vLLM's pull request 37307 of March 2026; whole-prompt",
        "prefix_caching": "1: full blocks stay known until their room is needed, and are not computed again, 0: not; "
        "as in [gpu]",
        **PATIENCE,
        **LIMITS,
    },
    engine=True,
    words={"admission": ADMISSION},
    layers=True,
    drafts=True,
    fetches=True,
    host_tier=True,
)
