"""Iterations in which every member of the one group only grows by a token: run in a stretch.

Beside them a prompt may go on, with all that they leave of the budget. Between an arrival, an admission, an eviction
and a completion most iterations are like this. Times are the same to the last bit as those of the loop, in a fraction
of the time; sums are equal but for rounding, since constant terms are multiplied.
"""

import math

from kvplan.model.timing import bent_time, experts_time, iteration_time, linear_time
from kvplan.simulation.actions import blocks_of, outstanding, whole_tokens
from kvplan.simulation.followups import next_event_s
from kvplan.simulation.prefix_cache import cached_tokens
from kvplan.simulation.state import (
    CHOSEN,
    GAPS,
    GAPS_IN_E,
    KNEE,
    MAX_TOKENS,
    NOBODY,
    Ahead,
    Clock,
    Counter,
    Fixed,
    Group,
    List,
    Request,
    Role,
    Site,
    Span,
    State,
    Time,
    group_list,
    in_fleet,
    kernel,
    layered,
    parked_list,
)
from kvplan.simulation.statistics import gap_position, gaps_of_span, nanoseconds, record, see_waiting
from kvplan.simulation.turns import look_ahead, turn

_INSIDE = 1 - 1e-12  # stay further from the end of a bin of gaps than any rounding
_LOOK_AHEAD = 1_000  # iterations: an arrival makes a replica look again, so further costs more than it saves


@kernel
def all_emit(s: State) -> bool:
    """Tell whether every member emits a token, not its first one, in the group's next tick."""
    tick, quiet = s.group[0, Group.TICK] + 1, s.fixed[Fixed.SILENT]
    request = s.list[group_list(s, 0), List.TAIL]
    while request != NOBODY and s.request[request, Request.ENTERED_AT] >= tick - quiet - 1:
        if tick - s.request[request, Request.START] < quiet:
            return False
        if math.isnan(s.time[request, Time.FIRST_TOKEN]) or s.time[request, Time.FINISH] < 0:
            return False
        request = s.request[request, Request.BEFORE]
    return True


@kernel
def admits_nobody(s: State) -> bool:
    """Tell whether nobody is admitted next, whatever fits: nobody waits, or a prompt takes what is left to others.

    With queues by priority nobody may stand by, either.
    """
    c = s.counter
    if s.fixed[Fixed.QUEUES] > 1 and s.list[parked_list(s, 0), List.HEAD] != NOBODY:
        return False
    return bool(
        c[Counter.WAITING] == 0 or (c[Counter.PARTLY] != NOBODY and s.clock[Clock.SHED_AFTER] == math.inf)
    )


@kernel
def part_of_prompt(s: State) -> int:
    """Count the tokens that an iteration computes of the prompt that goes on; 0: none does, or no budget is left."""
    if s.counter[Counter.PARTLY] == NOBODY:
        return 0
    return max(int(s.knobs[MAX_TOKENS] - s.list[group_list(s, 0), List.LENGTH]), 0)


@kernel
def parts_before_last(s: State, part: int) -> int:
    """Count the iterations in which so many of its tokens are computed, and it goes on; none where layers differ."""
    if layered(s):
        return 0
    prompt = s.counter[Counter.PARTLY]
    left = whole_tokens(s, prompt, s.request[prompt, Request.STAGE]) - s.request[prompt, Request.PARKED]
    return int((left - 1) // part)


@kernel
def blocks_taken(s: State, tick: int, phase: int, done: int, part: int) -> int:
    """Count the blocks that an iteration of a stretch takes, or frees if it is less than none."""
    if layered(s):
        look_ahead(s, tick)
        return int(s.ahead[Ahead.MORE])
    more = s.phase[0, phase]
    if part > 0:
        more += blocks_of(s, done + part) - blocks_of(s, done)
    return int(more)


@kernel
def is_looked_up(s: State, held: int, more: int, at_first: int) -> bool:
    """Tell whether memory lacks for an iteration, or may have room for those waiting: `at_first` it had none."""
    if not layered(s):
        return bool(held + more > s.fixed[Fixed.CAPACITY])
    room = s.counter[Counter.WAITING] > 0 and held + more < at_first
    return bool(room or held + s.ahead[Ahead.TAKES] > s.fixed[Fixed.CAPACITY])


@kernel
def coast(s: State, limit: int, patience: int) -> None:
    """Run until somebody arrives, is due or has its load, a prompt ends, memory lacks or the clock or loop looks up.

    For a group with members, or a prompt that goes on, and no request that the policy would admit.
    """
    c, clock = s.counter, s.clock
    members, part = s.list[group_list(s, 0), List.LENGTH], part_of_prompt(s)
    running, done = members, 0
    if part > 0:
        running, done = members + 1, s.request[c[Counter.PARTLY], Request.PARKED]
        limit = min(limit, c[Counter.ITERATIONS] + parts_before_last(s, part))
    if running == 0 or not all_emit(s):
        return
    prompts = part if part > 1 else 0  # engines count a single token as one of a sequence
    event_s = min(next_event_s(s), clock[Clock.PAUSE], clock[Clock.SPAN_END])
    limit = min(limit, c[Counter.LAST_COMPLETION] + patience + 1)
    size, block = s.group[0, Group.RING_SIZE], s.fixed[Fixed.BLOCK]
    tick, weight, held = s.group[0, Group.TICK], s.group[0, Group.WEIGHT], c[Counter.HELD]
    begun = iterations = c[Counter.ITERATIONS]
    now, passed_s = clock[Clock.NOW], 0.0
    cached, cached_s = cached_tokens(s), clock[Clock.CACHED_S]
    first_s = last_s = clock[Clock.LAST_RUN]
    recorded = iterations - iterations % c[Counter.STRIDE] + c[Counter.STRIDE]
    slot, phase = tick % size, -tick % block
    row, gaps = c[Counter.SPAN], gaps_of_span(s)
    kv_s, context = s.span[row, Span.KV_S], s.span[row, Span.CONTEXT]
    reads, pairs, all_pairs = float(weight + members + done + part), prompts * (2 * done + part + 1) // 2, 0
    at_first, tokens, horizon_s = held, held * block, clock[Clock.HORIZON]
    bin_tokens = s.fixed[Fixed.BIN]
    kv_bin = tokens // bin_tokens
    same_gaps, place, low_s, high_s = iterations, 0, math.inf, 0.0
    bent, of_experts = bent_time(s.timing, prompts, running), experts_time(s.timing, prompts + running)
    stops = False
    while not stops:  # the inner loop calls nothing that may write, so that it is compiled better
        while iterations < min(limit, recorded) and now < event_s:
            slot = slot + 1 if slot + 1 < size else 0
            more = blocks_taken(s, tick + 1, phase, done, part)
            if layered(s):
                reads = s.ahead[Ahead.READS] + s.ahead[Ahead.NEXT_STEP]
            tau = linear_time(s.timing, reads, prompts, running, pairs) + bent + of_experts
            if s.ring[slot] != NOBODY or is_looked_up(s, held, more, at_first) or now + tau > horizon_s:
                break
            phase = phase - 1 if phase > 0 else block - 1
            iterations, tick, done = iterations + 1, tick + 1, done + part
            now, passed_s = now + tau, passed_s + tau
            if layered(s):
                turn(s, tick, True)
            if more != 0:
                held, tokens = held + more, (held + more) * block
                c[Counter.HELD] = held
                if layered(s):  # of windows it may fall again
                    c[Counter.PEAK] = max(c[Counter.PEAK], tokens)
                kv_bin, cached = int(tokens / bin_tokens), cached_tokens(s)  # exact, and faster than //
            kv_s, cached_s = kv_s + tau * tokens, cached_s + tau * cached
            context, all_pairs = context + reads, all_pairs + pairs
            reads, pairs = reads + (members + part), pairs + prompts * part
            s.histogram[kv_bin] += nanoseconds(tau)
            gap_s = now - last_s
            if not low_s <= gap_s < high_s:
                s.histogram[gaps + place] += (iterations - 1 - same_gaps) * members
                same_gaps, position = iterations - 1, gap_position(gap_s)
                place, low_s = min(int(position), GAPS - 1), gap_s
                # to the end of the bin it may grow by the factor exp(left / GAPS_IN_E) > 1 + left / GAPS_IN_E
                high_s = gap_s * (1 + (int(position) + 1 - position) / GAPS_IN_E) * _INSIDE
            last_s = now
        stops = iterations < recorded
        if not stops:
            clock[Clock.NOW], c[Counter.ITERATIONS], s.span[row, Span.KV_S] = now, iterations, kv_s
            take(s, passed_s)
            passed_s = 0.0
            record(s, tokens, cached)
            recorded = iterations - iterations % c[Counter.STRIDE] + c[Counter.STRIDE]
    number = iterations - begun
    s.histogram[gaps + place] += (iterations - same_gaps) * members
    s.group[0, Group.TICK], s.group[0, Group.WEIGHT] = tick, weight + number * members
    clock[Clock.NOW], clock[Clock.LAST_RUN], clock[Clock.CACHED_S] = now, last_s, cached_s
    take(s, passed_s)
    clock[Clock.GAP_SUM] += (last_s - first_s) * members
    c[Counter.ITERATIONS] = iterations
    c[Counter.COMPUTED] += number * (members + prompts)
    s.span[row, Span.KV_S], s.span[row, Span.CONTEXT] = kv_s, context
    s.span[row, Span.STEPS] += number
    s.span[row, Span.PREFILLED] += number * prompts
    s.span[row, Span.PAIRS] += all_pairs
    s.span[row, Span.SEQUENCES] += number * running
    s.span[row, Span.ROOTS] += number * math.sqrt(running)
    s.span[row, Span.BEYOND_KNEE] += number * max(prompts + running - s.timing[KNEE], 0.0)
    s.span[row, Span.WOKEN] += number * (1.0 - (1.0 - s.timing[CHOSEN]) ** (prompts + running))
    if number > 0:  # else what is held can be that of a batch that is not run any more
        clock[Clock.ENDED] = now
        see_waiting(s)
        c[Counter.PEAK] = max(c[Counter.PEAK], tokens)
        if part > 0:
            s.request[c[Counter.PARTLY], Request.PARKED] = done
            c[Counter.PROMPTS_PEAK] = max(c[Counter.PROMPTS_PEAK], prompts)
            c[Counter.BATCH_PEAK] = max(c[Counter.BATCH_PEAK], running)
    if in_fleet(s):
        look_up(s, number, held)


@kernel
def look_up(s: State, number: int, held: int) -> None:
    """Show the router of a fleet a replica after a stretch, and the time from which on it looks again."""
    c, clock = s.counter, s.clock
    if number > 0:
        c[Counter.OUTSTANDING], c[Counter.HELD_BEFORE] = outstanding(s), held
    if clock[Clock.NOW] >= clock[Clock.PAUSE] and clock[Clock.CALM] <= clock[Clock.NOW]:
        clock[Clock.CALM] = calm_until_s(s)


@kernel
def take(s: State, busy_s: float) -> None:
    """Note a part of a stretch, `busy_s` long, by its constant terms."""
    row = s.counter[Counter.SPAN]
    s.clock[Clock.BUSY] += busy_s
    s.span[row, Span.BUSY_S] += busy_s
    s.span[row, Span.RUNNING_S] += busy_s * s.counter[Counter.RESIDENT]
    s.span[row, Span.WAITING_S] += busy_s * s.counter[Counter.WAITING]


@kernel
def calm_until_s(s: State) -> float:
    """Find until when, at least, nobody is done and memory suffices, without arrivals and admissions.

    Prefill replicas are left out: a decode replica that fetches at this very time makes room in them.
    """
    if s.fleet[1 + s.fixed[Fixed.SITE_NUMBER], Site.ROLE] == Role.PREFILL:
        return float(s.clock[Clock.NOW])
    members, part = s.list[group_list(s, 0), List.LENGTH], part_of_prompt(s)
    running, done, most = members, 0, min(s.group[0, Group.RING_SIZE], _LOOK_AHEAD)
    if part > 0:
        running, done = members + 1, s.request[s.counter[Counter.PARTLY], Request.PARKED]
        most = min(most, parts_before_last(s, part))
    tokens = s.group[0, Group.WEIGHT] + members + done + part
    size, block = s.group[0, Group.RING_SIZE], s.fixed[Fixed.BLOCK]
    slot, phase = s.group[0, Group.TICK] % size, -s.group[0, Group.TICK] % block
    held, count = s.counter[Counter.HELD], 0
    while count < most:
        slot = slot + 1 if slot + 1 < size else 0
        held += s.phase[0, phase] + blocks_of(s, done + part) - blocks_of(s, done)
        if s.ring[slot] != NOBODY or held > s.fixed[Fixed.CAPACITY]:
            break
        phase = phase - 1 if phase > 0 else block - 1
        count, done = count + 1, done + part
    # iterations grow longer than the first of them
    prompts, now = part if part > 1 else 0, s.clock[Clock.NOW]
    tau = iteration_time(s.timing, tokens, prompts, running, 0)
    return float(min(now + count * _INSIDE * tau, max(now, next_event_s(s))))
