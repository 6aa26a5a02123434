"""The loop: `vllm` with either admission, and `greedy`, for arrivals or an endless backlog."""

from typing import Any, NamedTuple

import numpy as np
from numba import njit

DONE, LIVELOCK, OVER_BUDGET, OUT_OF_REQUESTS = range(4)
SUMS = ("time_s", "footprint", "emitted", "prompt_tokens", "completed", "evictions", "iterations")
SHORTEST_GAP_S, GAP_STEP, GAP_BINS = 1e-7, 5e-4, 60_000  # logarithmic bins of gaps between tokens
UNLIMITED = 1 << 60


class Rules(NamedTuple):
    """What binds: memory and watermark in blocks, requests, tokens an iteration; and flags, 0 or 1.

    `restart`: an evicted request begins again, and an iteration that evicts goes on to admit (`greedy`); otherwise it
    keeps its tokens and computes them again. `silent`: the first iteration emits nothing (`inline`). `ready_made`:
    prompts cost nothing until they are lost, and weigh a token more (`disaggregated`). `first_chunk`: only what is
    granted at once has to fit.
    """

    blocks: int
    block: int
    watermark: int
    seats: int
    budget: int
    restart: int
    silent: int
    ready_made: int
    first_chunk: int


class Law(NamedTuple):
    """Constants of the time of an iteration, seconds; the knee in tokens."""

    d0: float
    d1: float
    d2: float
    d3: float
    d4: float
    d5: float
    knee: float
    experts: float
    chosen: float
    d6: float  # per pair of a prefill token and its context


class Ended(NamedTuple):
    """How a run ended, and integrals over its window: divided by the window they are means."""

    status: int
    time_s: float
    iterations: int
    completed: int
    evictions: int
    lost_tokens: int
    held: float  # memory in blocks
    read: float  # context of the scheduled requests
    running: float
    queued: float  # as it stands once a batch is formed
    waiting: float  # from arrival on


@njit(cache=True)
def _up(tokens: int, block: int) -> int:
    return (tokens + block - 1) // block


@njit(cache=True)
def footprint(tokens: int, block: int) -> int:
    """Blocks of 1, 2, … and so many tokens, added up."""
    full, rest = tokens // block, tokens % block
    return block * full * (full + 1) // 2 + rest * (full + 1)


@njit(cache=True)
def gap_bin(gap: float) -> int:
    """Of a gap between tokens."""
    return max(0, min(GAP_BINS - 1, int(np.log(max(gap, SHORTEST_GAP_S) / SHORTEST_GAP_S) / GAP_STEP)))


@njit(cache=True)
def simulate(
    inputs: Any,
    decodes: Any,
    arrivals: Any,
    ages: Any,
    rules: Rules,
    law: Law,
    marks: Any,
    window: tuple[float, float],
    sums: Any,
    gaps: Any,
    first_s: Any,
    finish_s: Any,
    evicted: Any,
) -> Ended:
    """Run requests in order, until all are done, the window ends or all marks are passed.

    Parameters
    ----------
    inputs, decodes : ndarray of int64, shape (n,)
        Tokens that a request weighs in the iteration of its first token, and the iterations after its prompt.
    arrivals : ndarray, shape (n,), ascending; empty: an endless backlog
    ages : ndarray of int64, shape (m,)
        The first m requests are resident at first and have run so many iterations.
    marks : ndarray of int64
        Completions at which `sums` gets a row.
    window
        What is integrated, seconds; a run with arrivals stops at its end.
    sums : ndarray, shape (marks, len(SUMS))
    gaps : ndarray of int64, shape (GAP_BINS,)
        Gaps between tokens that end in the window.
    first_s, finish_s : ndarray, shape (n,), or empty
        Times of the first token and of the last one.
    evicted : ndarray of int64, shape (n,), or empty
    """
    n, b = inputs.size, rules.block
    endless, recording = arrivals.size == 0, finish_s.size > 0
    begin, end = window
    slots = min(rules.seats, n) + 2
    if inputs.min() > 0:
        slots = min(slots, rules.blocks + 2)  # everybody holds a block

    # a slot is a request that was admitted once; running ones are in a list, and in a calendar by their last iteration
    request = np.zeros(slots, np.int64)
    tokens = np.zeros(slots, np.int64)  # it weighs with its first token
    length = np.zeros(slots, np.int64)
    born = np.zeros(slots, np.int64)  # the iteration of its first token, had it never paused
    kept = np.zeros(slots, np.int64)  # tokens emitted before it went back to the queue
    lost = np.zeros(slots, np.int64)  # times that it went
    spoke = np.zeros(slots)  # when it emitted last
    before, after = np.full(slots, -1), np.full(slots, -1)
    earlier, later = np.full(slots, -1), np.full(slots, -1)
    days = decodes.max() + 1
    calendar = np.full(days, -1)
    vacant = np.arange(slots)[::-1].copy()
    vacancies = slots
    back, returned = np.zeros(slots, np.int64), 0  # the front of the queue, its first one last
    joined, newcomers = np.zeros(slots, np.int64), 0
    mute, silent = np.zeros(slots, np.int64), 0  # who ran a first iteration that emits nothing
    need_at = np.zeros(b, np.int64)  # decoders by the iteration, modulo b, in which they need a block
    tail = -1

    free = rules.blocks
    decoders, context = 0, 0  # and what they read in the next iteration
    partial, computed = -1, 0  # the one prompt that goes on in the next iteration, last of the running
    t, now = 0, 0.0
    fresh, come = ages.size, ages.size
    if endless:
        come = n
    served, emitted, prompts, completed, evictions, lost_tokens = 0.0, 0, 0, 0, 0, 0
    held, read, running_s, queued, waiting = 0.0, 0.0, 0.0, 0.0, 0.0
    mark, status = 0, DONE

    for i in range(ages.size):
        vacancies -= 1
        s = vacant[vacancies]
        request[s], tokens[s], length[s], born[s] = i, inputs[i], decodes[i], -ages[i]
        if tail >= 0:
            after[tail] = s
        before[s], tail = tail, s
        day = (born[s] + length[s] - 1) % days
        later[s] = calendar[day]
        if calendar[day] >= 0:
            earlier[calendar[day]] = s
        calendar[day] = s
        need_at[(born[s] + 1 - tokens[s]) % b] += 1
        decoders += 1
        context += tokens[s] + ages[i]
        free -= _up(tokens[s] + ages[i] - 1, b)

    while True:
        while mark < marks.size and completed >= marks[mark]:
            sums[mark, 0], sums[mark, 1], sums[mark, 2] = now, served, emitted
            sums[mark, 3], sums[mark, 4] = prompts, completed
            sums[mark, 5], sums[mark, 6] = evictions, t
            mark += 1
        if marks.size > 0 and mark == marks.size:
            break
        if not endless:
            while come < n and arrivals[come] <= now:
                waiting += max(0.0, min(now, end) - max(arrivals[come], begin))
                come += 1
            if now >= end:
                break
        elif fresh == n:
            status = OUT_OF_REQUESTS
            break

        # everybody who runs
        need, evicting = need_at[t % b], False
        while need > free:
            evicting = True
            if partial >= 0:
                v = partial
                partial = -1
                free += _up(computed, b)
                lost_tokens += computed
            else:
                v = tail
                tail = before[v]
                if tail >= 0:
                    after[tail] = -1
                g = t - born[v]
                free += _up(tokens[v] + g - 1, b)
                lost_tokens += tokens[v] + g - 1
                context -= tokens[v] + g
                decoders -= 1
                key = (born[v] + 1 - tokens[v]) % b
                need_at[key] -= 1
                if key == t % b:
                    need -= 1
                if earlier[v] >= 0:
                    later[earlier[v]] = later[v]
                else:
                    calendar[(born[v] + length[v] - 1) % days] = later[v]
                if later[v] >= 0:
                    earlier[later[v]] = earlier[v]
                born[v] = -UNLIMITED
                spoke[v] = now
                if rules.restart:
                    skipped = rules.silent
                    served -= footprint(tokens[v] + g - 1, b) - footprint(tokens[v] + skipped - 1, b)
                    emitted -= g - skipped
                    kept[v] = 0
                else:
                    kept[v] = g
            back[returned] = v
            returned += 1
            lost[v] += 1
            evictions += 1
            if recording:
                evicted[request[v]] += 1
        free -= need
        budget = rules.budget - decoders
        if budget < 0:
            status = OVER_BUDGET
            break
        prefill, newcomers, goes_on, pairs = 0, 0, 0, 0
        if partial >= 0 and budget > 0:
            grant = min(tokens[partial] + kept[partial] - computed, budget)
            more = _up(computed + grant, b) - _up(computed, b)
            if more > free:
                evicting = True
                free += _up(computed, b)
                lost_tokens += computed
                back[returned] = partial
                returned += 1
                lost[partial] += 1
                evictions += 1
                if recording:
                    evicted[request[partial]] += 1
                partial = -1
            else:
                free -= more
                computed += grant
                budget -= grant
                if grant > 1:
                    prefill += grant
                    pairs += computed * (computed + 1) // 2 - (computed - grant) * (computed - grant + 1) // 2
                if computed == tokens[partial] + kept[partial]:
                    joined[0], newcomers, partial = partial, 1, -1
                else:
                    goes_on = 1
        if evicting and decoders == 0 and partial < 0:
            status = LIVELOCK
            break

        # the queue
        running = decoders + newcomers + (1 if partial >= 0 else 0)
        while (rules.restart or not evicting) and budget > 0 and running < rules.seats:
            if returned > 0:
                s = back[returned - 1]
                whole = tokens[s] + kept[s]
            elif fresh < come:
                s = -1
                whole = inputs[fresh]
            else:
                break
            grant = min(whole, budget)
            if _up(grant if rules.first_chunk else whole, b) > free - (rules.watermark if running > 0 else 0):
                break
            if s >= 0:
                returned -= 1
            else:
                vacancies -= 1
                s = vacant[vacancies]
                request[s], tokens[s], length[s] = fresh, inputs[fresh], decodes[fresh]
                kept[s], lost[s] = 0, 0
                prompts += inputs[fresh] - rules.ready_made
                fresh += 1
            free -= _up(grant, b)
            budget -= grant
            running += 1
            if rules.restart:
                if not rules.ready_made or lost[s] > 0:
                    prefill += tokens[s] - rules.ready_made
                    pairs += (tokens[s] - rules.ready_made) * (tokens[s] - rules.ready_made + 1) // 2
            elif grant > 1:
                prefill += grant
                pairs += grant * (grant + 1) // 2
            if grant == whole:
                joined[newcomers] = s
                newcomers += 1
            else:
                partial, computed, goes_on = s, grant, 1

        sequences = decoders + newcomers + goes_on
        line = returned + come - fresh
        if sequences == 0:
            if line > 0:
                status = LIVELOCK
                break
            if come == n:
                break
            now = min(arrivals[come], end)
            continue
        total = context
        for i in range(newcomers):
            total += tokens[joined[i]] + kept[joined[i]]
        if goes_on:
            total += computed
        step = (
            law.d0
            + law.d1 * total
            + law.d2 * prefill
            + law.d3 * sequences
            + law.d4 * np.sqrt(sequences)
            + law.d5 * max(0.0, prefill + sequences - law.knee)
            + law.d6 * pairs
            + law.experts * (1.0 - (1.0 - law.chosen) ** (prefill + sequences))
        )
        overlap = min(now + step, end) - max(now, begin)
        if overlap > 0 and not endless:
            held += overlap * (rules.blocks - free)
            read += overlap * total
            running_s += overlap * running
            queued += overlap * line
            waiting += overlap * line
        now += step

        # tokens
        inside = not endless and begin < now <= end
        first_spoken = 0
        for i in range(silent):
            s = mute[i]
            if born[s] == t - 1:
                first_spoken += 1
                if recording and first_s[request[s]] == 0.0:
                    first_s[request[s]] = now
        if inside:
            gaps[gap_bin(step)] += decoders - first_spoken
        served += rules.blocks - free
        emitted += decoders
        if partial >= 0:
            served -= _up(computed, b)
        silent = 0
        for i in range(newcomers):
            s = joined[i]
            if rules.silent:
                served -= _up(tokens[s], b)
                mute[silent] = s
                silent += 1
            else:
                emitted += 1
                if recording and first_s[request[s]] == 0.0:
                    first_s[request[s]] = now
                if kept[s] > 0 and inside:
                    gaps[gap_bin(now - spoke[s])] += 1

        # who is done, and who decodes from now on
        s = calendar[t % days]
        calendar[t % days] = -1
        while s >= 0:
            following = later[s]
            last = tokens[s] + length[s] - 1
            free += _up(last, b)
            context -= last
            decoders -= 1
            need_at[(born[s] + 1 - tokens[s]) % b] -= 1
            if before[s] >= 0:
                after[before[s]] = after[s]
            if after[s] >= 0:
                before[after[s]] = before[s]
            else:
                tail = before[s]
            completed += 1
            if recording:
                finish_s[request[s]] = now
            vacant[vacancies] = s
            vacancies += 1
            s = following
        context += decoders
        for i in range(newcomers):
            s = joined[i]
            if kept[s] + 1 == length[s]:
                free += _up(tokens[s] + kept[s], b)
                completed += 1
                if recording:
                    finish_s[request[s]] = now
                vacant[vacancies] = s
                vacancies += 1
                continue
            born[s] = t - kept[s]
            before[s], after[s] = tail, -1
            if tail >= 0:
                after[tail] = s
            tail = s
            day = (born[s] + length[s] - 1) % days
            earlier[s], later[s] = -1, calendar[day]
            if calendar[day] >= 0:
                earlier[calendar[day]] = s
            calendar[day] = s
            need_at[(born[s] + 1 - tokens[s]) % b] += 1
            context += tokens[s] + kept[s] + 1
            decoders += 1
        t += 1

    return Ended(status, now, t, completed, evictions, lost_tokens, held, read, running_s, queued, waiting)
