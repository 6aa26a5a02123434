"""What happens to requests in a run: the vocabulary that policies are written in.

Everything here, and in the policies, is in the part of Python that `kvplan.compiling.translate` knows, and marked with
`kernel`. It costs a constant amount of work for each request that arrives, is admitted, evicted or done, and for each
group of each iteration.
"""

import math

from kvplan.simulation.coming import bring, comes_before, skip, take_first
from kvplan.simulation.kernels import kernel
from kvplan.simulation.prefix_cache import caches, let_go
from kvplan.simulation.radix_cache import leave_tree
from kvplan.simulation.ranks import count
from kvplan.simulation.state import (
    ADMISSION,
    AFTER,
    ARRIVAL,
    BEFORE,
    BLOCK,
    BY_KV,
    CACHES,
    CAPACITY,
    CLIENTS,
    COMING,
    COMING_S,
    COMPLETED,
    COMPUTED,
    COUNTS_QUEUES,
    DRAFTS,
    DUE_AFTER,
    DUE_BEFORE,
    ENTERED_AT,
    ENTERED_IN,
    EVICTED,
    EVICTIONS,
    FILLED,
    FINISH,
    FIRST_TOKEN,
    FIRST_WEIGHT,
    FOLLOWING,
    FULL_BYTES,
    GAP_SUM,
    GAPS,
    GAPS_IN_E,
    GIVEN_UP,
    GONE,
    HANDED_OVER,
    HEAD,
    HELD,
    HOLDS,
    HOLDS_WINDOWS,
    ITERATIONS,
    JOINED,
    KV_BINS,
    LAST_COMPLETION,
    LAST_RUN,
    LENGTH,
    MORE_LATER,
    MORE_REQUESTS,
    MORE_SILENT,
    MORE_TOKENS,
    MOST_WAITING,
    NEVER_FITS,
    NEXT_OF_CLIENTS,
    NOBODY,
    NOW,
    ON_LINKS,
    OUTSIDE,
    OVERHEAD,
    PARKED,
    PARTIAL,
    PARTLY,
    PASSED,
    PATH,
    PAUSE,
    PLACE,
    POOL_BYTES,
    PROMISE,
    PROMISED,
    PROMPT,
    PROMPTS,
    QUEUE,
    QUEUE_PEAK,
    QUEUES,
    RADIX_TREE,
    READY_MADE,
    READY_S,
    RECOMPUTED,
    RELEASED,
    RESIDENT,
    RING_SIZE,
    RING_START,
    RULE,
    RUNS,
    SEATS,
    SEQUENCE,
    SHED,
    SHORTEST_GAP_S,
    SILENT,
    SLOTS,
    SPAN,
    STAGE,
    STAGES,
    STANDS_BY,
    START,
    STUCK,
    TAIL,
    THINK,
    TICK,
    TO_COME,
    TURNS,
    UNASKED,
    UNASKED_END,
    UNTIL,
    WAITING,
    WEIGHT,
    WINDOW_BYTES,
    WINDOWED,
    WINDOWS,
    State,
    extended,
    hosted,
    in_fleet,
    layered,
    pooled,
)


@kernel
def blocks_of(s: State, tokens: int) -> int:
    """Blocks that hold so many tokens, of which none is computed yet."""
    if layered(s):
        return int(s.blocks[tokens, FILLED])
    return int((tokens + s.fixed[BLOCK] - 1) // s.fixed[BLOCK])


@kernel
def compute(s: State, request: int, begin: int, end: int) -> None:
    """Of layers of several kinds, hold what a step takes that has computed `begin` tokens and has slots for `end`."""
    blocks = s.blocks[end, FILLED] - s.blocks[begin, PASSED]
    if pooled(s):
        s.counter[WINDOWED] += blocks - s.request[request, HOLDS_WINDOWS]
        s.request[request, HOLDS_WINDOWS] = blocks
        blocks = s.blocks[end, FILLED]
    s.counter[HELD] += blocks - s.request[request, HOLDS]
    s.request[request, HOLDS] = blocks


@kernel
def context_read(s: State) -> float:
    """The same that the batch reads, in tokens of the layers that keep all."""
    total = 0.0
    for group in range(s.group.shape[0]):
        if s.group[group, RUNS]:
            request = s.list[group_list(s, group), HEAD]
            while request != NOBODY:
                if s.group[group, RUNS] != STANDS_BY or just_entered(s, request):
                    total += s.context[members_tokens(s, request, group)]
                request = s.request[request, AFTER]
    request = s.counter[PARTLY]
    if request != NOBODY and s.counter[MORE_SILENT] > 0:
        total += s.context[s.request[request, PARKED]]
    return total


@kernel
def just_entered(s: State, request: int) -> bool:
    """Whether a member came into its group in the iteration being formed."""
    return bool(s.request[request, ENTERED_IN] == s.counter[ITERATIONS] + 1)


@kernel
def members_tokens(s: State, request: int, group: int) -> int:
    """KV tokens of a member of a group."""
    return whole_tokens(s, request, s.group[group, TICK] - s.request[request, START])


@kernel
def whole_tokens(s: State, request: int, stage: int) -> int:
    """KV tokens of a request at a stage: one more at each, or as many more as are emitted."""
    emitted = stage
    if layered(s) and s.fixed[DRAFTS] > 0:
        emitted = s.emitted[s.request[request, PATH] + stage]
    return int(s.request[request, FIRST_WEIGHT] + emitted)


@kernel
def not_drafting(s: State) -> int:
    """Sequences of the batch whose prompt is computed, which have no drafts."""
    count = s.counter[MORE_REQUESTS]
    for group in range(s.group.shape[0]):
        request = s.list[group_list(s, group), TAIL]
        while request != NOBODY and just_entered(s, request):
            count += 1
            request = s.request[request, BEFORE]
    return int(count)


# ----------------------------------------------------------------------------------------------------- lists


@kernel
def append(s: State, where: int, request: int) -> None:
    """Put a request at the end of a list."""
    last = s.list[where, TAIL]
    s.request[request, BEFORE], s.request[request, AFTER] = last, NOBODY
    if last == NOBODY:
        s.list[where, HEAD] = request
    else:
        s.request[last, AFTER] = request
    s.list[where, TAIL] = request
    s.list[where, LENGTH] += 1
    s.request[request, PLACE] = where


@kernel
def put_first(s: State, where: int, request: int) -> None:
    """Put a request at the beginning of a list."""
    first = s.list[where, HEAD]
    s.request[request, BEFORE], s.request[request, AFTER] = NOBODY, first
    if first == NOBODY:
        s.list[where, TAIL] = request
    else:
        s.request[first, BEFORE] = request
    s.list[where, HEAD] = request
    s.list[where, LENGTH] += 1
    s.request[request, PLACE] = where


@kernel
def take_out(s: State, request: int) -> None:
    """Remove a request from the list in which it stands."""
    where, left, right = s.request[request, PLACE], s.request[request, BEFORE], s.request[request, AFTER]
    if left == NOBODY:
        s.list[where, HEAD] = right
    else:
        s.request[left, AFTER] = right
    if right == NOBODY:
        s.list[where, TAIL] = left
    else:
        s.request[right, BEFORE] = left
    s.list[where, LENGTH] -= 1
    s.request[request, PLACE] = OUTSIDE


@kernel
def group_list(s: State, group: int) -> int:
    """The list of a group's members, in order of admission."""
    return int(s.fixed[QUEUES] + group)


@kernel
def parked_list(s: State, group: int) -> int:
    """The list of those who wait, KV kept, behind a group."""
    return int(s.fixed[QUEUES] + s.group.shape[0] + group)


# -------------------------------------------------------------------------------------------------- arrivals


@kernel
def release(s: State) -> None:
    """Everybody who has arrived by now joins a queue."""
    c = s.counter
    while c[JOINED] < c[RELEASED] and s.time[c[JOINED], ARRIVAL] <= s.clock[NOW]:
        if c[WAITING] >= s.fixed[MOST_WAITING]:
            break
        if extended(s):
            release_brought(s, c[JOINED])
        join(s, c[JOINED])
        c[JOINED] += 1
    if extended(s) and not in_fleet(s):
        release_brought(s, NOBODY)
    if c[WAITING] > c[QUEUE_PEAK]:
        c[QUEUE_PEAK] = c[WAITING]


@kernel
def release_brought(s: State, before: int) -> None:
    """Of those whom others have brought, all that come by now, and before somebody else."""
    while s.fleet[0, TO_COME] > 0:
        request = s.request[0, COMING]
        if s.time[0, COMING_S] > s.clock[NOW]:
            return
        if before != NOBODY and comes_before(s.time[before, ARRIVAL], before, s.time[0, COMING_S], request):
            return
        join(s, request)
        take_first(s)


@kernel
def join(s: State, request: int) -> None:
    """A request has arrived."""
    append(s, s.request[request, QUEUE], request)
    s.counter[WAITING] += 1
    if s.fixed[COUNTS_QUEUES]:
        count(s, s.request[request, QUEUE], 1)


@kernel
def next_arrival(s: State) -> int:
    """The next request to come of those whose arrival is known; NOBODY: there is none."""
    c = s.counter
    unasked = c[JOINED] if c[JOINED] < c[RELEASED] and c[WAITING] < s.fixed[MOST_WAITING] else NOBODY
    if not extended(s) or s.fleet[0, TO_COME] == 0 or in_fleet(s):
        return int(unasked)
    brought = s.request[0, COMING]
    if unasked == NOBODY or comes_before(s.time[0, COMING_S], brought, s.time[unasked, ARRIVAL], unasked):
        return int(brought)
    return int(unasked)


@kernel
def next_event_s(s: State) -> float:
    """When the next request comes, or the first load is done; infinite where neither is known."""
    coming, event_s = next_arrival(s), math.inf
    if coming != NOBODY:
        event_s = s.time[coming, ARRIVAL]
    if hosted(s) and s.list[parked_list(s, 0), HEAD] != NOBODY:
        event_s = min(event_s, s.time[s.list[parked_list(s, 0), HEAD], READY_S])
    return event_s


@kernel
def more_to_come(s: State) -> bool:
    """Whether an arrival is still ahead whose time is known, or beyond the horizon."""
    if in_fleet(s) and (s.fleet[0, UNASKED] < s.fleet[0, UNASKED_END] or s.fleet[0, TO_COME] > 0):
        return True
    return bool(next_arrival(s) != NOBODY or s.fixed[MORE_LATER])


# ---------------------------------------------------------------------------------------------------- groups


@kernel
def due_slot(s: State, group: int, tick: int) -> int:
    """Position in `ring` of the list of those due at a tick."""
    return int(s.group[group, RING_START] + tick % s.group[group, RING_SIZE])


@kernel
def last_tick(s: State, request: int, group: int) -> int:
    """The tick after which a member leaves its group."""
    return int(s.request[request, START] + min(s.request[request, STAGES], s.group[group, UNTIL]) - 1)


@kernel
def schedule(s: State, request: int, group: int) -> None:
    """Note when a member leaves its group."""
    slot = due_slot(s, group, last_tick(s, request, group))
    first = s.ring[slot]
    s.request[request, DUE_BEFORE], s.request[request, DUE_AFTER] = NOBODY, first
    if first != NOBODY:
        s.request[first, DUE_BEFORE] = request
    s.ring[slot] = request


@kernel
def unschedule(s: State, request: int, group: int) -> None:
    """Take that note back."""
    left, right = s.request[request, DUE_BEFORE], s.request[request, DUE_AFTER]
    if left == NOBODY:
        s.ring[due_slot(s, group, last_tick(s, request, group))] = right
    else:
        s.request[left, DUE_AFTER] = right
    if right != NOBODY:
        s.request[right, DUE_BEFORE] = left


@kernel
def enter(s: State, request: int, group: int, stage: int) -> None:
    """Make a request a member of a running group, at the stage that it is at in this iteration."""
    s.request[request, START] = s.group[group, TICK] - stage
    s.request[request, ENTERED_AT] = s.group[group, TICK]
    s.request[request, ENTERED_IN] = s.counter[ITERATIONS] + 1
    append(s, group_list(s, group), request)
    s.group[group, WEIGHT] += s.request[request, FIRST_WEIGHT] + stage
    s.phase[group, (s.request[request, FIRST_WEIGHT] - s.request[request, START]) % s.fixed[BLOCK]] += 1
    schedule(s, request, group)


@kernel
def leave(s: State, request: int, group: int) -> int:
    """Take a member out of its group; returns the KV tokens that it holds there."""
    tokens = members_tokens(s, request, group)
    take_out(s, request)
    s.group[group, WEIGHT] -= tokens
    s.phase[group, (s.request[request, FIRST_WEIGHT] - s.request[request, START]) % s.fixed[BLOCK]] -= 1
    return int(tokens)


@kernel
def advance(s: State, group: int) -> None:
    """Let a group run: its members grow by a token each, before anything is checked or admitted."""
    begin_tick(s, group)
    if layered(s):
        request = s.list[group_list(s, group), HEAD]
        while request != NOBODY:
            tokens = members_tokens(s, request, group)
            compute(s, request, tokens - 1, tokens + s.fixed[SLOTS])
            request = s.request[request, AFTER]
    else:
        s.counter[HELD] += s.phase[group, (1 - s.group[group, TICK]) % s.fixed[BLOCK]]


@kernel
def begin_tick(s: State, group: int) -> None:
    """Let a group run, and leave what its members hold to the policy."""
    s.group[group, RUNS] = 1
    s.group[group, TICK] += 1
    s.group[group, WEIGHT] += s.list[group_list(s, group), LENGTH]


@kernel
def stand_by(s: State, group: int) -> None:
    """Let only those run who enter a group from now on; its members keep what they hold, and are not in the batch."""
    s.group[group, RUNS] = STANDS_BY
    s.counter[MORE_TOKENS] -= s.group[group, WEIGHT]
    s.counter[MORE_REQUESTS] -= s.list[group_list(s, group), LENGTH]


# ------------------------------------------------------------------------------------- admission and eviction


@kernel
def seat_is_free(s: State) -> bool:
    """Whether one more request may be resident."""
    return bool(s.counter[RESIDENT] < s.fixed[SEATS])


@kernel
def fits(s: State, tokens: int) -> bool:
    """Whether a request of so many tokens may be admitted now: a seat is free, and memory for it."""
    return bool(seat_is_free(s) and s.counter[HELD] + blocks_of(s, tokens) <= s.fixed[CAPACITY])


@kernel
def overflows(s: State) -> bool:
    """Whether more is held than fits."""
    if pooled(s) and s.counter[WINDOWED] > s.fixed[WINDOWS]:
        return True
    return bool(s.counter[HELD] > s.fixed[CAPACITY])


@kernel
def held_tokens(s: State) -> int:
    """KV tokens held, in whole blocks."""
    if pooled(s):
        full, windows = s.counter[HELD] * s.fixed[FULL_BYTES], s.counter[WINDOWED] * s.fixed[WINDOW_BYTES]
        return int((full + windows) // s.fixed[POOL_BYTES])
    return int(s.counter[HELD] * s.fixed[BLOCK])


@kernel
def seat(s: State, request: int) -> None:
    """Count a request taken from its queue as resident."""
    c = s.counter
    take_out(s, request)
    c[WAITING] -= 1
    c[RESIDENT] += 1
    c[PROMISED] += s.request[request, PROMISE]
    s.request[request, ADMISSION] = c[SEQUENCE]
    c[SEQUENCE] += 1


@kernel
def admit(s: State, request: int, group: int) -> None:
    """Begin a request from a queue in a running group, at stage 0."""
    seat(s, request)
    if layered(s):
        compute(s, request, 0, s.request[request, FIRST_WEIGHT])
    else:
        s.counter[HELD] += blocks_of(s, s.request[request, FIRST_WEIGHT])
    if not s.fixed[READY_MADE] or s.request[request, EVICTIONS] > 0:
        s.counter[PROMPTS] += s.request[request, PROMPT]
    enter(s, request, group, 0)


@kernel
def evict(s: State, request: int) -> None:
    """Free a resident request's memory; its work is lost and it goes to the front of its queue."""
    c, place = s.counter, s.request[request, PLACE]
    group = place - s.fixed[QUEUES]
    if place == PARTIAL:
        tokens = lost = s.request[request, PARKED]
        c[PARTLY] = NOBODY
    elif group < s.group.shape[0]:
        unschedule(s, request, group)
        if not math.isnan(s.time[request, FIRST_TOKEN]) and math.isnan(s.time[request, FINISH]):
            s.time[request, FINISH] = -s.clock[LAST_RUN + group]
        tokens = leave(s, request, group)
        lost = (
            tokens - 1 if s.group[group, RUNS] else tokens
        )  # the token of this iteration is not computed yet
    else:
        take_out(s, request)
        tokens = lost = s.request[request, PARKED]
    free(s, request, tokens, lost)
    c[RESIDENT] -= 1
    c[PROMISED] -= s.request[request, PROMISE]
    c[WAITING] += 1
    c[EVICTED] += 1
    c[RECOMPUTED] += lost
    s.request[request, EVICTIONS] += 1
    if c[RESIDENT] == 0 and c[HELD] == 0:  # alone, and still too large
        c[STUCK] = NEVER_FITS
    put_first(s, s.request[request, QUEUE], request)


@kernel
def free(s: State, request: int, tokens: int, computed: int) -> None:
    """Free the blocks of so many tokens; those that are full once so many are computed may remain known."""
    if extended(s) and s.fixed[HANDED_OVER] > 0:  # there may be room now for somebody whose KV is elsewhere
        s.clock[PAUSE] = min(s.clock[PAUSE], s.clock[NOW])
    if layered(s):
        s.counter[HELD] -= s.request[request, HOLDS]
        s.request[request, HOLDS] = 0
        if pooled(s):
            s.counter[WINDOWED] -= s.request[request, HOLDS_WINDOWS]
            s.request[request, HOLDS_WINDOWS] = 0
    elif not caches(s):
        s.counter[HELD] -= blocks_of(s, tokens)
    elif s.fixed[CACHES] == RADIX_TREE:
        leave_tree(s, request, blocks_of(s, tokens), computed)
    else:
        let_go(s, request, blocks_of(s, tokens), computed)


@kernel
def give_up_after(s: State, queue: int, most_s: float) -> None:
    """Whoever has never run and has waited longer than that is given up."""
    c, request = s.counter, s.list[queue, HEAD]
    while request != NOBODY:
        following = s.request[request, AFTER]
        if s.request[request, EVICTIONS] == 0:
            if s.clock[NOW] - s.time[request, ARRIVAL] <= most_s:
                return
            take_out(s, request)
            s.request[request, PLACE] = GIVEN_UP
            c[WAITING] -= 1
            c[SHED] += 1
            c[GONE] += 1
            let_router_look(s)
            if extended(s) and s.fixed[TURNS]:
                c[GONE] += skip(s, request)
        request = following


@kernel
def last_admitted(s: State) -> int:
    """The resident request that was admitted last, of all groups and of those parked; NOBODY if there is none."""
    last = s.counter[PARTLY]
    for where in range(s.fixed[QUEUES], s.fixed[QUEUES] + 2 * s.group.shape[0]):
        request = s.list[where, TAIL]
        if request != NOBODY and (
            last == NOBODY or s.request[request, ADMISSION] > s.request[last, ADMISSION]
        ):
            last = request
    return int(last)


@kernel
def evict_until_it_fits(s: State) -> bool:
    """Evict, last admitted first, until what is left fits; whether anybody was evicted."""
    evicted = False
    while overflows(s):
        evict(s, last_admitted(s))
        evicted = True
    return evicted


@kernel
def admit_in_order(s: State, queue: int, group: int, most: int) -> bool:
    """Admit from a queue, first come first served, while the next one fits; False where one did not."""
    while most > 0:
        request = s.list[queue, HEAD]
        if request == NOBODY:
            return True
        if not fits(s, s.request[request, FIRST_WEIGHT]):
            return False
        admit(s, request, group)
        most -= 1
    return True


@kernel
def batch_is_empty(s: State) -> bool:
    """Whether nobody is in a running group."""
    for group in range(s.group.shape[0]):
        if s.group[group, RUNS] and s.list[group_list(s, group), LENGTH] > 0:
            return False
    return True


@kernel
def move_on(s: State, request: int, group: int) -> None:
    """Let a parked request go on in a running group, with a token more than it holds."""
    tokens = s.request[request, PARKED]
    take_out(s, request)
    s.counter[HELD] += blocks_of(s, tokens + 1) - blocks_of(s, tokens)
    enter(s, request, group, s.request[request, STAGE])


# ------------------------------------------------------------------------------------------ after the batch


@kernel
def finish_iteration(s: State) -> None:
    """The batch has run: first tokens come out, those who are done leave, those at the end of a group are parked."""
    c, now = s.counter, s.clock[NOW]
    silent = c[MORE_SILENT]
    for group in range(s.group.shape[0]):
        if not s.group[group, RUNS]:
            continue
        silent += emit_tokens(s, group)
        request = first_due(s, group)
        while request != NOBODY:
            following = s.request[request, DUE_BEFORE]
            stage = s.group[group, TICK] - s.request[request, START] + 1
            tokens = leave(s, request, group)
            if stage == s.request[request, STAGES]:
                if hands_over(s, request):
                    s.request[request, PARKED] = tokens  # held until it is fetched
                else:
                    free(s, request, tokens, tokens)
                complete(s, request, now)
            else:
                s.request[request, STAGE], s.request[request, PARKED] = stage, tokens
                s.time[request, FINISH] = -now
                append(s, parked_list(s, group), request)
            request = following
    c[COMPUTED] -= silent


@kernel
def first_due(s: State, group: int) -> int:
    """Empty the list of those due now; returns the one scheduled first, with the others in its DUE_BEFORE."""
    slot = due_slot(s, group, s.group[group, TICK])
    request = s.ring[slot]
    s.ring[slot] = NOBODY
    while request != NOBODY and s.request[request, DUE_AFTER] != NOBODY:
        request = s.request[request, DUE_AFTER]
    return int(request)


@kernel
def emit_tokens(s: State, group: int) -> int:
    """Note first tokens and times between tokens of a group that has run; returns how many members emitted nothing.

    Those who have just entered have times of their own, and so they do once more where the others stood by.
    """
    silent, new = 0, 0
    tick, quiet, now = s.group[group, TICK], s.fixed[SILENT], s.clock[NOW]
    others_stand_by = s.group[group, RUNS] == STANDS_BY
    request = s.list[group_list(s, group), TAIL]
    while request != NOBODY and s.request[request, ENTERED_AT] >= tick - quiet - 1:
        if others_stand_by and s.request[request, ENTERED_IN] != s.counter[ITERATIONS]:
            break
        if tick - s.request[request, START] < quiet:
            silent += 1
        elif math.isnan(s.time[request, FIRST_TOKEN]):
            s.time[request, FIRST_TOKEN] = now
            new += 1
        elif s.time[request, FINISH] < 0:
            note_gaps(s, now + s.time[request, FINISH], 1)
            s.time[request, FINISH] = math.nan
            new += 1
        if others_stand_by:
            s.time[request, FINISH] = -now
        request = s.request[request, BEFORE]
    if not others_stand_by:
        note_gaps(s, now - s.clock[LAST_RUN + group], s.list[group_list(s, group), LENGTH] - silent - new)
        s.clock[LAST_RUN + group] = now
    return silent


@kernel
def note_gaps(s: State, gap_s: float, count: int) -> None:
    """Count times between two tokens."""
    if count > 0:
        s.clock[GAP_SUM] += gap_s * count
        s.histogram[gaps_of_span(s) + gap_place(gap_s)] += count


@kernel
def gaps_of_span(s: State) -> int:
    """Where in `State.histogram` the times between tokens of this span begin."""
    return int(s.fixed[KV_BINS] + s.counter[SPAN] * GAPS)


@kernel
def gap_place(gap_s: float) -> int:
    """Bin of a time between two tokens."""
    return min(int(gap_position(gap_s)), GAPS - 1)


@kernel
def gap_position(gap_s: float) -> float:
    """Where in the bins a time between two tokens is, and how far into its bin."""
    return math.log(max(gap_s, SHORTEST_GAP_S) / SHORTEST_GAP_S) * GAPS_IN_E


@kernel
def outstanding(s: State) -> int:
    """Requests that a replica has to do with."""
    return int(s.counter[WAITING] + s.counter[RESIDENT] + s.counter[ON_LINKS])


@kernel
def hands_over(s: State, request: int) -> bool:
    """Whether a request goes on at a decode replica, once its prompt is computed."""
    if not extended(s) or request >= s.fixed[HANDED_OVER]:
        return False
    return bool(s.request[request + s.fixed[HANDED_OVER], STAGES] > 1)


@kernel
def was_fetched(s: State, request: int) -> bool:
    """Whether a request waits with the KV of its prompt, which another replica has computed."""
    if not extended(s) or s.fixed[HANDED_OVER] == 0:
        return False
    return bool(request >= s.fixed[HANDED_OVER] and s.request[request, EVICTIONS] == 0)


@kernel
def complete(s: State, request: int, now: float) -> None:
    """A request is done; in a closed loop its client sends the next one."""
    c = s.counter
    s.time[request, FINISH] = now
    c[RESIDENT] -= 1
    c[PROMISED] -= s.request[request, PROMISE]
    c[COMPLETED] += 1
    c[LAST_COMPLETION] = c[ITERATIONS]
    let_router_look(s)
    if hands_over(s, request):
        c[ON_LINKS] += 1
        bring(s, request + s.fixed[HANDED_OVER], now)
        return
    answered = now + s.clock[OVERHEAD]  # when the client has it, and has sent the next
    if s.fixed[CLIENTS] and in_fleet(s):
        if s.fleet[0, NEXT_OF_CLIENTS] < (
            s.fixed[HANDED_OVER] if s.fixed[HANDED_OVER] > 0 else s.time.shape[0]
        ):
            bring(s, s.fleet[0, NEXT_OF_CLIENTS], answered)
            s.fleet[0, NEXT_OF_CLIENTS] += 1
    elif s.fixed[CLIENTS] and c[RELEASED] < s.time.shape[0]:
        s.time[c[RELEASED], ARRIVAL] = answered
        c[RELEASED] += 1
    if extended(s) and s.fixed[TURNS]:
        bring(s, s.request[request, FOLLOWING], answered + s.time[request, THINK])


@kernel
def let_router_look(s: State) -> None:
    """Somebody leaves: a router that goes by KV sees what is held then, and not what is some iterations later."""
    if in_fleet(s) and s.fleet[0, RULE] == BY_KV:
        s.clock[PAUSE] = min(s.clock[PAUSE], s.clock[NOW])


@kernel
def clear_batch(s: State) -> None:
    """Forget the batch before."""
    for group in range(s.group.shape[0]):
        s.group[group, RUNS] = 0
    s.counter[PROMPTS] = 0
    s.counter[MORE_TOKENS] = 0
    s.counter[MORE_REQUESTS] = 0
    s.counter[MORE_SILENT] = 0
