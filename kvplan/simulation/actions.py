"""What happens to requests in a run: the vocabulary that policies are written in.

Everything here, and in the policies, is in the part of Python that `kvplan.compiling.translate` knows, and marked with
`kernel`. It costs a constant amount of work for each request that arrives, is admitted, evicted or done, and for each
group of each iteration.
"""

import math

from kvplan.simulation.followups import bring, follow, skip
from kvplan.simulation.grouped_cache import leave_groups, list_own
from kvplan.simulation.prefix_cache import caches, let_go
from kvplan.simulation.queues import append, put_first, take_out
from kvplan.simulation.radix_cache import leave_tree
from kvplan.simulation.state import (
    NOBODY,
    STANDS_BY,
    Ahead,
    Blocks,
    Cache,
    Clock,
    Counter,
    Fixed,
    Group,
    List,
    Place,
    Request,
    Router,
    Rule,
    State,
    Stuck,
    Time,
    extended,
    group_list,
    grouped,
    hosted,
    in_fleet,
    kernel,
    layered,
    parked_list,
    pooled,
    takes_turns,
)
from kvplan.simulation.statistics import note_gaps
from kvplan.simulation.turns import compute, drop_turn, look_ahead, note_turn, step_of_context, turn


@kernel
def blocks_of(s: State, tokens: int) -> int:
    """Count the blocks that hold so many tokens, of which none is computed yet."""
    if layered(s):
        return int(s.blocks[tokens, Blocks.FILLED])
    return int((tokens + s.fixed[Fixed.BLOCK] - 1) // s.fixed[Fixed.BLOCK])


@kernel
def context_read(s: State) -> float:
    """Sum the context that the batch reads, in tokens of the layers that keep all."""
    total = float(s.ahead[Ahead.READS])
    for group in range(s.group.shape[0]):
        if s.group[group, Group.RUNS] and not takes_turns(s):
            request = s.list[group_list(s, group), List.HEAD]
            while request != NOBODY:
                if s.group[group, Group.RUNS] != STANDS_BY or just_entered(s, request):
                    total += s.context[members_tokens(s, request, group)]
                request = s.request[request, Request.AFTER]
    request = s.counter[Counter.PARTLY]
    if request != NOBODY and s.counter[Counter.MORE_SILENT] > 0:
        total += s.context[s.request[request, Request.PARKED]]
    return total


@kernel
def requests_in_batch(s: State) -> int:
    """Count the requests of the batch."""
    requests = s.counter[Counter.MORE_REQUESTS]
    for group in range(s.group.shape[0]):
        if s.group[group, Group.RUNS]:
            requests += s.list[group_list(s, group), List.LENGTH]
    return int(requests)


@kernel
def tokens_in_batch(s: State) -> int:
    """Count the KV tokens of the batch."""
    tokens = s.counter[Counter.MORE_TOKENS]
    for group in range(s.group.shape[0]):
        if s.group[group, Group.RUNS]:
            tokens += s.group[group, Group.WEIGHT]
    return int(tokens)


@kernel
def context_in_batch(s: State) -> float:
    """Sum the context that the batch reads."""
    return context_read(s) if layered(s) else float(tokens_in_batch(s))


@kernel
def just_entered(s: State, request: int) -> bool:
    """Tell whether a member came into its group in the iteration being formed."""
    return bool(s.request[request, Request.ENTERED_IN] == s.counter[Counter.ITERATIONS] + 1)


@kernel
def members_tokens(s: State, request: int, group: int) -> int:
    """Count the KV tokens of a member of a group."""
    return whole_tokens(s, request, s.group[group, Group.TICK] - s.request[request, Request.START])


@kernel
def whole_tokens(s: State, request: int, stage: int) -> int:
    """Count the KV tokens of a request at a stage: one more at each, or as many more as are emitted."""
    emitted = stage
    if layered(s) and s.fixed[Fixed.DRAFTS] > 0:
        emitted = s.emitted[s.request[request, Request.PATH] + stage]
    return int(s.request[request, Request.FIRST_WEIGHT] + emitted)


@kernel
def not_drafting(s: State) -> int:
    """Count the sequences of the batch whose prompt is computed, which have no drafts."""
    count = s.counter[Counter.MORE_REQUESTS]
    for group in range(s.group.shape[0]):
        request = s.list[group_list(s, group), List.TAIL]
        while request != NOBODY and just_entered(s, request):
            count += 1
            request = s.request[request, Request.BEFORE]
    return int(count)


# ---------------------------------------------------------------------------------------------------- groups


@kernel
def due_slot(s: State, group: int, tick: int) -> int:
    """Return the position in `ring` of the list of those due at a tick."""
    return int(s.group[group, Group.RING_START] + tick % s.group[group, Group.RING_SIZE])


@kernel
def last_tick(s: State, request: int, group: int) -> int:
    """Return the tick after which a member leaves its group."""
    return int(
        s.request[request, Request.START]
        + min(s.request[request, Request.STAGES], s.group[group, Group.UNTIL])
        - 1
    )


@kernel
def schedule(s: State, request: int, group: int) -> None:
    """Note when a member leaves its group."""
    slot = due_slot(s, group, last_tick(s, request, group))
    first = s.ring[slot]
    s.request[request, Request.DUE_BEFORE], s.request[request, Request.DUE_AFTER] = NOBODY, first
    if first != NOBODY:
        s.request[first, Request.DUE_BEFORE] = request
    s.ring[slot] = request


@kernel
def unschedule(s: State, request: int, group: int) -> None:
    """Take that note back."""
    left, right = s.request[request, Request.DUE_BEFORE], s.request[request, Request.DUE_AFTER]
    if left == NOBODY:
        s.ring[due_slot(s, group, last_tick(s, request, group))] = right
    else:
        s.request[left, Request.DUE_AFTER] = right
    if right != NOBODY:
        s.request[right, Request.DUE_BEFORE] = left


@kernel
def enter(s: State, request: int, group: int, stage: int) -> None:
    """Make a request a member of a running group, at the stage that it is at in this iteration."""
    s.request[request, Request.START] = s.group[group, Group.TICK] - stage
    s.request[request, Request.ENTERED_AT] = s.group[group, Group.TICK]
    s.request[request, Request.ENTERED_IN] = s.counter[Counter.ITERATIONS] + 1
    append(s, group_list(s, group), request)
    s.group[group, Group.WEIGHT] += s.request[request, Request.FIRST_WEIGHT] + stage
    s.phase[
        group,
        (s.request[request, Request.FIRST_WEIGHT] - s.request[request, Request.START]) % s.fixed[Fixed.BLOCK],
    ] += 1
    schedule(s, request, group)
    if grouped(s):
        s.request[request, Request.TURN] = s.group[group, Group.TICK] + 1
    if takes_turns(s):  # with a prompt it may hold what it frees in the next tick
        tokens = members_tokens(s, request, group)
        s.ahead[Ahead.READS] += s.context[tokens]
        s.ahead[Ahead.STEP] += step_of_context(s, tokens)
        note_turn(s, request, s.group[group, Group.TICK] + 1)


@kernel
def leave(s: State, request: int, group: int) -> int:
    """Take a member out of its group; returns the KV tokens that it holds there."""
    tokens = members_tokens(s, request, group)
    take_out(s, request)
    s.group[group, Group.WEIGHT] -= tokens
    s.phase[
        group,
        (s.request[request, Request.FIRST_WEIGHT] - s.request[request, Request.START]) % s.fixed[Fixed.BLOCK],
    ] -= 1
    if takes_turns(s):
        s.ahead[Ahead.READS] -= s.context[tokens]
        s.ahead[Ahead.STEP] -= step_of_context(s, tokens)
        drop_turn(s, request)
        if s.list[group_list(s, group), List.LENGTH] == 0:  # what rounding has left
            s.ahead[Ahead.READS] = s.ahead[Ahead.STEP] = 0.0
    return int(tokens)


@kernel
def advance(s: State, group: int) -> None:
    """Let a group run: its members grow by a token each, before anything is checked or admitted."""
    have_blocks = begin_tick(s, group)
    if layered(s):
        request = s.list[group_list(s, group), List.HEAD]
        while request != NOBODY and not have_blocks:
            tokens = members_tokens(s, request, group)
            compute(s, request, tokens - 1, tokens + s.fixed[Fixed.SLOTS])
            request = s.request[request, Request.AFTER]
    else:
        s.counter[Counter.HELD] += s.phase[group, (1 - s.group[group, Group.TICK]) % s.fixed[Fixed.BLOCK]]


@kernel
def begin_tick(s: State, group: int) -> bool:
    """Let a group run; tell whether its members hold the blocks of the tick already: else the policy sees to that."""
    s.group[group, Group.RUNS] = 1
    s.group[group, Group.TICK] += 1
    s.group[group, Group.WEIGHT] += s.list[group_list(s, group), List.LENGTH]
    if not takes_turns(s):
        return False
    look_ahead(s, s.group[group, Group.TICK])
    suffice = bool(s.counter[Counter.HELD] + s.ahead[Ahead.TAKES] <= s.fixed[Fixed.CAPACITY])
    turn(s, s.group[group, Group.TICK], suffice)
    return suffice


@kernel
def stand_by(s: State, group: int) -> None:
    """Let only those run who enter a group from now on; its members keep what they hold, and are not in the batch."""
    s.group[group, Group.RUNS] = STANDS_BY
    s.counter[Counter.MORE_TOKENS] -= s.group[group, Group.WEIGHT]
    s.counter[Counter.MORE_REQUESTS] -= s.list[group_list(s, group), List.LENGTH]


# ------------------------------------------------------------------------------------- admission and eviction


@kernel
def seat_is_free(s: State) -> bool:
    return bool(s.counter[Counter.RESIDENT] < s.fixed[Fixed.SEATS])


@kernel
def fits(s: State, tokens: int) -> bool:
    """Tell whether a request of so many tokens may be admitted now: a seat is free, and memory for it."""
    return bool(seat_is_free(s) and s.counter[Counter.HELD] + blocks_of(s, tokens) <= s.fixed[Fixed.CAPACITY])


@kernel
def overflows(s: State) -> bool:
    if pooled(s) and s.counter[Counter.WINDOWED] > s.fixed[Fixed.WINDOWS]:
        return True
    return bool(s.counter[Counter.HELD] > s.fixed[Fixed.CAPACITY])


@kernel
def held_tokens(s: State) -> int:
    """Count the KV tokens held, in whole blocks."""
    if pooled(s):
        full = s.counter[Counter.HELD] * s.fixed[Fixed.FULL_BYTES]
        windows = s.counter[Counter.WINDOWED] * s.fixed[Fixed.WINDOW_BYTES]
        return int((full + windows) // s.fixed[Fixed.POOL_BYTES])
    return int(s.counter[Counter.HELD] * s.fixed[Fixed.BLOCK])


@kernel
def seat(s: State, request: int) -> None:
    """Count a request taken from its queue as resident."""
    c = s.counter
    take_out(s, request)
    c[Counter.WAITING] -= 1
    c[Counter.RESIDENT] += 1
    c[Counter.PROMISED] += s.request[request, Request.PROMISE]
    s.request[request, Request.ADMISSION] = c[Counter.SEQUENCE]
    c[Counter.SEQUENCE] += 1


@kernel
def count_prompt(s: State, begin: int, end: int) -> None:
    """Count a prompt from one token to another as computed in this batch, each token with all before it."""
    s.counter[Counter.PROMPTS] += end - begin
    s.counter[Counter.PAIRS] += (end - begin) * (begin + end + 1) // 2


@kernel
def admit(s: State, request: int, group: int) -> None:
    """Begin a request from a queue in a running group, at stage 0."""
    seat(s, request)
    if layered(s):
        compute(s, request, 0, s.request[request, Request.FIRST_WEIGHT])
    else:
        s.counter[Counter.HELD] += blocks_of(s, s.request[request, Request.FIRST_WEIGHT])
    if not s.fixed[Fixed.READY_MADE] or s.request[request, Request.EVICTIONS] > 0:
        count_prompt(s, 0, s.request[request, Request.PROMPT])
    enter(s, request, group, 0)


@kernel
def evict(s: State, request: int) -> None:
    """Free a resident request's memory; its work is lost and it goes to the front of its queue."""
    c, place = s.counter, s.request[request, Request.PLACE]
    group = place - s.fixed[Fixed.QUEUES]
    if place == Place.PARTIAL:
        tokens = lost = s.request[request, Request.PARKED]
        c[Counter.PARTLY] = NOBODY
    elif group < s.group.shape[0]:
        unschedule(s, request, group)
        if not math.isnan(s.time[request, Time.FIRST_TOKEN]) and math.isnan(s.time[request, Time.FINISH]):
            s.time[request, Time.FINISH] = -s.clock[Clock.LAST_RUN + group]
        tokens = leave(s, request, group)
        lost = tokens
        if s.group[group, Group.RUNS]:  # the token of this iteration is not computed yet
            lost -= 1
    else:
        take_out(s, request)
        tokens = lost = s.request[request, Request.PARKED]
    if grouped(s):
        list_own(s, request)
    free(s, request, tokens, lost)
    c[Counter.RESIDENT] -= 1
    c[Counter.PROMISED] -= s.request[request, Request.PROMISE]
    c[Counter.WAITING] += 1
    c[Counter.EVICTED] += 1
    c[Counter.RECOMPUTED] += lost
    s.request[request, Request.EVICTIONS] += 1
    if c[Counter.RESIDENT] == 0 and c[Counter.HELD] == 0:  # alone, and still too large
        c[Counter.STUCK] = Stuck.NEVER_FITS
    put_first(s, s.request[request, Request.QUEUE], request)


@kernel
def free(s: State, request: int, tokens: int, computed: int) -> None:
    """Free the blocks of so many tokens; those that are full once so many are computed may remain known."""
    if extended(s) and s.fixed[Fixed.HANDED_OVER] > 0:
        # there may be room now for somebody whose KV is elsewhere
        s.clock[Clock.PAUSE] = min(s.clock[Clock.PAUSE], s.clock[Clock.NOW])
    if grouped(s):
        leave_groups(s, request)
    elif layered(s):
        s.counter[Counter.HELD] -= s.request[request, Request.HOLDS]
        s.request[request, Request.HOLDS] = 0
        if pooled(s):
            s.counter[Counter.WINDOWED] -= s.request[request, Request.HOLDS_WINDOWS]
            s.request[request, Request.HOLDS_WINDOWS] = 0
    elif not caches(s):
        s.counter[Counter.HELD] -= blocks_of(s, tokens)
    elif s.fixed[Fixed.CACHES] == Cache.RADIX_TREE:
        leave_tree(s, request, blocks_of(s, tokens), computed)
    else:
        let_go(s, request, blocks_of(s, tokens), computed)


@kernel
def give_up_after(s: State, queue: int, most_s: float) -> None:
    """Give up whoever has never run and has waited longer than that."""
    c, request = s.counter, s.list[queue, List.HEAD]
    while request != NOBODY:
        following = s.request[request, Request.AFTER]
        if s.request[request, Request.EVICTIONS] == 0:
            if s.clock[Clock.NOW] - s.time[request, Time.ARRIVAL] <= most_s:
                return
            take_out(s, request)
            s.request[request, Request.PLACE] = Place.GIVEN_UP
            c[Counter.WAITING] -= 1
            c[Counter.SHED] += 1
            c[Counter.GONE] += 1
            let_router_look(s)
            if extended(s) and s.fixed[Fixed.TURNS]:
                # with a turn its session; who would have begun one is in no count, nor is who was sent out
                if queue == 0 and (
                    s.fixed[Fixed.TURNS] == 1 or s.request[request, Request.INSTEAD] == NOBODY
                ):
                    c[Counter.SESSIONS] -= 1
                c[Counter.GONE] += skip(s, request)
        request = following


@kernel
def last_admitted(s: State) -> int:
    """Find the resident that was admitted last, of all groups and of those parked; NOBODY if there is none."""
    last = s.counter[Counter.PARTLY]
    for where in range(s.fixed[Fixed.QUEUES], s.fixed[Fixed.QUEUES] + 2 * s.group.shape[0]):
        request = s.list[where, List.TAIL]
        if request != NOBODY and (
            last == NOBODY or s.request[request, Request.ADMISSION] > s.request[last, Request.ADMISSION]
        ):
            last = request
    return int(last)


@kernel
def evict_until_it_fits(s: State) -> bool:
    """Evict, last admitted first, until what is left fits; tell whether anybody was evicted."""
    evicted = False
    while overflows(s):
        evict(s, last_admitted(s))
        evicted = True
    return evicted


@kernel
def admit_in_order(s: State, queue: int, group: int, most: int) -> bool:
    """Admit from a queue, first come first served, while the next one fits; False where one did not."""
    while most > 0:
        request = s.list[queue, List.HEAD]
        if request == NOBODY:
            return True
        if not fits(s, s.request[request, Request.FIRST_WEIGHT]):
            return False
        admit(s, request, group)
        most -= 1
    return True


@kernel
def batch_is_empty(s: State) -> bool:
    for group in range(s.group.shape[0]):
        if s.group[group, Group.RUNS] and s.list[group_list(s, group), List.LENGTH] > 0:
            return False
    return True


@kernel
def move_on(s: State, request: int, group: int) -> None:
    """Let a parked request go on in a running group, with a token more than it holds."""
    tokens = s.request[request, Request.PARKED]
    take_out(s, request)
    s.counter[Counter.HELD] += blocks_of(s, tokens + 1) - blocks_of(s, tokens)
    enter(s, request, group, s.request[request, Request.STAGE])


# ------------------------------------------------------------------------------------------ after the batch


@kernel
def finish_iteration(s: State) -> None:
    """Let first tokens come out, those who are done leave, and those at the end of a group be parked."""
    c, now = s.counter, s.clock[Clock.NOW]
    silent = c[Counter.MORE_SILENT]
    for group in range(s.group.shape[0]):
        if not s.group[group, Group.RUNS]:
            continue
        silent += emit_tokens(s, group)
        request = first_due(s, group)
        while request != NOBODY:
            following = s.request[request, Request.DUE_BEFORE]
            stage = s.group[group, Group.TICK] - s.request[request, Request.START] + 1
            tokens = leave(s, request, group)
            if stage == s.request[request, Request.STAGES]:
                if hands_over(s, request):
                    s.request[request, Request.PARKED] = tokens  # held until it is fetched
                else:
                    free(s, request, tokens, tokens)
                complete(s, request, now)
            else:
                s.request[request, Request.STAGE], s.request[request, Request.PARKED] = stage, tokens
                s.time[request, Time.FINISH] = -now
                append(s, parked_list(s, group), request)
            request = following
    c[Counter.COMPUTED] -= silent


@kernel
def first_due(s: State, group: int) -> int:
    """Empty the list of those due now; returns the one scheduled first, with the others in its DUE_BEFORE."""
    slot = due_slot(s, group, s.group[group, Group.TICK])
    request = s.ring[slot]
    s.ring[slot] = NOBODY
    while request != NOBODY and s.request[request, Request.DUE_AFTER] != NOBODY:
        request = s.request[request, Request.DUE_AFTER]
    return int(request)


@kernel
def emit_tokens(s: State, group: int) -> int:
    """Note first tokens and times between tokens of a group that has run; returns how many members emitted nothing.

    Those who have just entered have times of their own, and so they do once more where the others stood by.
    """
    silent, new = 0, 0
    tick, quiet, now = s.group[group, Group.TICK], s.fixed[Fixed.SILENT], s.clock[Clock.NOW]
    others_stand_by = s.group[group, Group.RUNS] == STANDS_BY
    request = s.list[group_list(s, group), List.TAIL]
    while request != NOBODY and s.request[request, Request.ENTERED_AT] >= tick - quiet - 1:
        if others_stand_by and s.request[request, Request.ENTERED_IN] != s.counter[Counter.ITERATIONS]:
            break
        if tick - s.request[request, Request.START] < quiet:
            silent += 1
        elif math.isnan(s.time[request, Time.FIRST_TOKEN]):
            s.time[request, Time.FIRST_TOKEN] = now
            new += 1
        elif s.time[request, Time.FINISH] < 0:
            note_gaps(s, now + s.time[request, Time.FINISH], 1)
            s.time[request, Time.FINISH] = math.nan
            new += 1
        if others_stand_by:
            s.time[request, Time.FINISH] = -now
        request = s.request[request, Request.BEFORE]
    if not others_stand_by:
        note_gaps(
            s, now - s.clock[Clock.LAST_RUN + group], s.list[group_list(s, group), List.LENGTH] - silent - new
        )
        s.clock[Clock.LAST_RUN + group] = now
    return silent


@kernel
def outstanding(s: State) -> int:
    """Count the requests that a replica has to do with."""
    return int(s.counter[Counter.WAITING] + s.counter[Counter.RESIDENT] + s.counter[Counter.ON_LINKS])


@kernel
def hands_over(s: State, request: int) -> bool:
    """Tell whether a request goes on at a decode replica, once its prompt is computed."""
    if not extended(s) or request >= s.fixed[Fixed.HANDED_OVER]:
        return False
    return bool(s.request[request + s.fixed[Fixed.HANDED_OVER], Request.STAGES] > 1)


@kernel
def was_fetched(s: State, request: int) -> bool:
    """Tell whether a request waits with the KV of its prompt, which another replica has computed."""
    if not extended(s) or s.fixed[Fixed.HANDED_OVER] == 0:
        return False
    return bool(request >= s.fixed[Fixed.HANDED_OVER] and s.request[request, Request.EVICTIONS] == 0)


@kernel
def complete(s: State, request: int, now: float) -> None:
    """Finish a request; in a closed loop its client sends the next one."""
    c = s.counter
    s.time[request, Time.FINISH] = now
    c[Counter.RESIDENT] -= 1
    c[Counter.PROMISED] -= s.request[request, Request.PROMISE]
    c[Counter.COMPLETED] += 1
    c[Counter.LAST_COMPLETION] = c[Counter.ITERATIONS]
    let_router_look(s)
    if hands_over(s, request):
        c[Counter.ON_LINKS] += 1
        bring(s, request + s.fixed[Fixed.HANDED_OVER], now)
        return
    if s.fixed[Fixed.CLIENTS] and in_fleet(s):
        if s.fleet[0, Router.NEXT_OF_CLIENTS] < (
            s.fixed[Fixed.HANDED_OVER] if s.fixed[Fixed.HANDED_OVER] > 0 else s.time.shape[0]
        ):
            bring(s, s.fleet[0, Router.NEXT_OF_CLIENTS], now)
            s.fleet[0, Router.NEXT_OF_CLIENTS] += 1
    elif s.fixed[Fixed.CLIENTS] and c[Counter.RELEASED] < s.time.shape[0]:
        s.time[c[Counter.RELEASED], Time.ARRIVAL] = now
        c[Counter.RELEASED] += 1
    if extended(s) and s.fixed[Fixed.TURNS]:
        following = s.request[request, Request.FOLLOWING]
        if following == NOBODY or s.request[following, Request.QUEUE] > 0:
            c[Counter.SESSIONS] -= 1
        follow(s, request, following, now + s.clock[Clock.OVERHEAD])


@kernel
def let_router_look(s: State) -> None:
    """Let a router that goes by KV see what is held when somebody leaves, and not what is some iterations later."""
    if in_fleet(s) and s.fleet[0, Router.RULE] == Rule.BY_KV:
        s.clock[Clock.PAUSE] = min(s.clock[Clock.PAUSE], s.clock[Clock.NOW])


@kernel
def clear_batch(s: State) -> None:
    """Forget the batch before."""
    for group in range(s.group.shape[0]):
        s.group[group, Group.RUNS] = 0
    if hosted(s):
        s.clock[Clock.LOADING] = 0.0
    s.counter[Counter.PROMPTS] = 0
    s.counter[Counter.PAIRS] = 0
    s.counter[Counter.MORE_TOKENS] = 0
    s.counter[Counter.MORE_REQUESTS] = 0
    s.counter[Counter.MORE_SILENT] = 0
