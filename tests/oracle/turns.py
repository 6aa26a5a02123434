"""Conversations, open or of users who think, on a replica with a prefix cache: requests and blocks one by one.

A block is known by its place in a conversation, or in the prompt that all have in common: nothing else is ever equal.
Who gives way finds what is left of its own blocks again.
"""

import heapq
import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numba import njit

from kvplan.model import Prefill, ServingModel
from kvplan.model.gaps import Exponential
from oracle.kernel import DONE, GAP_BINS, LIVELOCK, Law, Rules, gap_bin
from oracle.live import figures_of, gaps_between
from oracle.system import System, Unsupported, law_of, rules_of

WARM = 0.2  # of the time that counts, before it


@dataclass(frozen=True, eq=False)
class Script:
    """Turns of conversations, one after the other, and what brings each.

    Attributes
    ----------
    arrivals : ndarray, shape (n,)
        NaN where another turn brings it.
    inputs, decodes, session : ndarray of int64, shape (n,)
    following : ndarray of int64, shape (n,)
        The turn that comes `think_s` after the completion of this one; -1: none.
    shared
        Tokens that all prompts begin with.
    """

    arrivals: Any
    inputs: Any
    decodes: Any
    session: Any
    following: Any
    think_s: Any
    shared: int


def script(model: ServingModel, seconds: float, rng: np.random.Generator) -> Script:
    """Turns for so many seconds: conversations that begin at random, or users who begin one after the other.

    Requests without sessions are conversations of one turn.
    """
    if all(c.sessions is None for c in model.classes):
        return _strangers(model, seconds, rng)
    law = model.classes[0].sessions
    if len(model.classes) > 1 or law is None or not isinstance(law.think, Exponential):
        raise Unsupported("anything but conversations of one kind with exponential thinking")

    def drawn(lengths: Any, n: int) -> Any:
        return rng.choice(lengths.values, n, p=lengths.probabilities)

    turns_mean = float(law.turns.probabilities @ law.turns.values)
    expected = model.total_rate_rps * seconds / turns_mean
    count = int(expected + 8 * math.sqrt(expected)) + 10
    if law.users is not None:  # at most as often as they think
        most = law.users * seconds / law.think.mean_s
        count = int(most + 8 * math.sqrt(most)) + law.users
    turns = drawn(law.turns, count)
    n, first = int(turns.sum()), np.cumsum(turns) - turns
    session = np.repeat(np.arange(count), turns)
    decodes = drawn(law.decode, n)
    added = drawn(law.user, n)
    added[first] = law.shared + drawn(law.first, count)
    before = np.cumsum(added) + np.cumsum(decodes) - decodes
    inputs = before - (before - added)[first][session]
    following = np.arange(n) + 1
    last = first + turns - 1
    arrivals = np.full(n, np.nan)
    if law.users is None:
        following[last] = -1
        arrivals[first] = np.cumsum(rng.exponential(seconds / expected, count))
    else:
        then = np.arange(count) + law.users
        following[last] = np.where(then < count, first[np.minimum(then, count - 1)], -1)
        arrivals[first[: law.users]] = rng.exponential(law.think.mean_s, law.users)
    return Script(
        arrivals, inputs, decodes, session, following, rng.exponential(law.think.mean_s, n), law.shared
    )


def _strangers(model: ServingModel, seconds: float, rng: np.random.Generator) -> Script:
    system = System.of(model)
    expected = model.total_rate_rps * seconds
    n = int(expected + 8 * math.sqrt(expected) * max(1.0, system.cv)) + 10
    inputs, decodes = system.draw(n, rng)
    arrivals = np.cumsum(gaps_between(system, system.rate_rps, n, rng))
    return Script(arrivals, inputs, decodes, np.arange(n), np.full(n, -1), np.zeros(n), 0)


@dataclass(frozen=True)
class Talked:
    """What turns that completed after the warm-up saw: figures as of `Live`, and the share of prompts found."""

    figures: dict[str, float]
    halves: tuple[float, float]
    completed: int
    hit_ratio: float
    preemptions_per_request: float


@dataclass(frozen=True, eq=False)
class Told:
    """Of every turn: when it came, its first and last token, tokens found at its first admission, evictions."""

    status: int
    arrivals: Any
    first_s: Any
    finish_s: Any
    found: Any
    evicted: Any
    gaps: Any


def tell(model: ServingModel, turns: Script, window: tuple[float, float] = (0.0, math.inf)) -> Told:
    """Run turns until the end of a window, of which the gaps are counted."""
    if model.replica.prefill is not Prefill.FUSED or model.fleet is not None or model.drafts is not None:
        raise Unsupported("conversations on anything but a plain replica of vllm")
    rules, n = rules_of(model), turns.inputs.size
    arrivals, first_s, finish_s = turns.arrivals.copy(), np.full(n, np.nan), np.full(n, np.nan)
    found, evicted, gaps = np.zeros(n, np.int64), np.zeros(n, np.int64), np.zeros(GAP_BINS, np.int64)
    status = _run(
        turns.inputs, turns.decodes, turns.session, turns.following, turns.think_s, turns.shared // rules.block,
        model.replica.prefix_caching, rules, law_of(model), window, arrivals, first_s, finish_s, found, evicted,
        gaps,
    )  # fmt: skip
    return Told(status, arrivals, first_s, finish_s, found, evicted, gaps)


def talk(model: ServingModel, *, requests: int = 200_000, seed: int = 0) -> Talked:
    """Run conversations for as long as so many turns come, after a warm-up."""
    span = requests / model.total_rate_rps
    warm, end = WARM * span, (1 + WARM) * span
    turns = script(model, end, np.random.default_rng([seed, 79]))
    told = tell(model, turns, (warm, end))
    if told.status != DONE:
        raise RuntimeError(f"a run ended with status {told.status}")
    done = told.finish_s > warm  # nothing finishes after the end
    several = done & (turns.decodes > 1)
    ttft, e2e = told.first_s - told.arrivals, told.finish_s - told.arrivals
    samples = {
        "ttft_s": ttft[done] + model.request_overhead_s,
        "tpot_s": (told.finish_s - told.first_s)[several] / (turns.decodes[several] - 1),
        "e2e_s": e2e[done] + model.request_overhead_s,
    }
    late = told.finish_s > (warm + end) / 2
    return Talked(
        figures_of(samples, told.gaps),
        (float(ttft[done & ~late].mean()), float(ttft[done & late].mean())),
        int(done.sum()),
        float(told.found[done].sum() / turns.inputs[done].sum()),
        float(told.evicted[done].mean()),
    )


@njit(cache=True)
def _run(
    inputs: Any,
    decodes: Any,
    session: Any,
    following: Any,
    think_s: Any,
    common: int,
    caching: bool,
    rules: Rules,
    law: Law,
    window: tuple[float, float],
    arrivals: Any,
    first_s: Any,
    finish_s: Any,
    found: Any,
    evicted: Any,
    gaps: Any,
) -> int:
    """The loop of vLLM: those who run, in order; then the queue, if nobody gave way."""
    n, b, blocks = inputs.size, rules.block, rules.blocks
    begin, end = window

    # blocks: free ones in a ring behind `blocks`; those of one name in order of registration
    name, holders, another = np.full(blocks, -1), np.zeros(blocks, np.int64), np.full(blocks, -1)
    after, before = np.arange(blocks + 1) + 1, np.arange(blocks + 1) - 1
    after[blocks], before[0] = 0, blocks
    # the first block of a name, by the row of a conversation and the place in it; row 0 is of what all have in common
    stride = max((inputs + decodes).max() // b + 1, common)
    known = np.full(64 * stride, -1, np.int32)
    row, rows = np.zeros(session.max() + 1, np.int64), 1
    spare, spares = np.zeros(row.size, np.int64), 0
    free = blocks

    slots = min(rules.seats, blocks)
    table = np.zeros((slots, (inputs + decodes).max() // b + 1), np.int32)
    slot, vacant, vacancies = np.full(n, -1), np.arange(slots), slots
    held, computed, generated = np.zeros(n, np.int64), np.zeros(n, np.int64), np.zeros(n, np.int64)
    granted, spoke = np.zeros(n, np.int64), np.zeros(n)
    running, count = np.zeros(slots, np.int64), 0
    queue, head, tail = np.zeros(n, np.int64), 0, 0
    back, returned = np.zeros(slots, np.int64), 0  # the front of the queue, its first one last
    coming = [(arrivals[i], i) for i in range(n) if not np.isnan(arrivals[i])]
    heapq.heapify(coming)
    now = 0.0
    while True:
        while len(coming) > 0 and coming[0][0] <= now:
            queue[tail] = heapq.heappop(coming)[1]
            tail += 1
        budget, gave_way, place = rules.budget, False, 0
        while True:
            # who is next, and how many tokens it gets
            if place < count and budget > 0:
                r = running[place]
                tokens = min(inputs[r] + generated[r] - computed[r], budget)
                if -((computed[r] + tokens) // -b) - held[r] > free:
                    count -= 1
                    last = running[count]
                    free += _give_back(table[slot[last], : held[last]], name, holders, after, before, blocks)
                    vacant[vacancies] = slot[last]
                    vacancies += 1
                    held[last], computed[last] = 0, 0
                    evicted[last] += 1
                    back[returned] = last
                    returned += 1
                    gave_way = True
                    if count == 0:
                        return LIVELOCK
                    if last == r:
                        break
                    continue
            elif gave_way or budget <= 0 or count == rules.seats or returned + tail == head:
                break
            else:
                r = back[returned - 1] if returned > 0 else queue[head]
                whole = inputs[r] + generated[r]
                hits, idle = 0, 0
                while caching and hits < (whole - 1) // b:
                    at = _name(row[session[r]], hits, common, stride)
                    block = known[at] if at >= 0 else -1
                    if block < 0:
                        break
                    idle += holders[block] == 0
                    hits += 1
                asked = min(whole, hits * b + budget) if rules.first_chunk else whole
                if -(asked // -b) - hits + idle + (rules.watermark if count > 0 else 0) > free:
                    break
                if returned > 0:
                    returned -= 1
                else:
                    head += 1
                vacancies -= 1
                slot[r] = vacant[vacancies]
                for at in range(hits):
                    block = known[_name(row[session[r]], at, common, stride)]
                    if holders[block] == 0:
                        after[before[block]], before[after[block]] = after[block], before[block]
                        free -= 1
                    holders[block] += 1
                    table[slot[r], at] = block
                held[r], computed[r] = hits, hits * b
                if row[session[r]] == 0:
                    if spares > 0:
                        spares -= 1
                        row[session[r]] = spare[spares]
                    else:
                        row[session[r]], rows = rows, rows + 1
                    if rows * stride > known.size:
                        known = np.concatenate((known, np.full(known.size, -1, np.int32)))
                if evicted[r] == 0:
                    found[r] = computed[r]
                running[count] = r
                count += 1
                tokens = min(whole - computed[r], budget)
            while held[r] * b < computed[r] + tokens:
                block = after[blocks]
                after[blocks], before[after[block]] = after[block], blocks
                free -= 1
                if name[block] >= 0:  # what was in it is not known any more, but for other copies
                    copy = known[name[block]]
                    if copy == block:
                        known[name[block]] = another[block]
                    else:
                        while another[copy] != block:
                            copy = another[copy]
                        another[copy] = another[block]
                    name[block], another[block] = -1, -1
                holders[block] = 1
                table[slot[r], held[r]] = block
                held[r] += 1
            if caching:
                for at in range(computed[r] // b, (computed[r] + tokens) // b):
                    block = table[slot[r], at]
                    name[block] = _name(row[session[r]], at, common, stride)
                    copy = known[name[block]]
                    if copy < 0:
                        known[name[block]] = block
                    else:
                        while another[copy] >= 0:
                            copy = another[copy]
                        another[copy] = block
            granted[r] = tokens
            budget -= tokens
            place += 1

        read, prefill, sequences = 0, 0, 0
        for i in range(count):
            r = running[i]
            if granted[r] > 0:
                computed[r] += granted[r]
                read += computed[r]
                prefill += granted[r] if granted[r] > 1 else 0
                sequences += 1
        if sequences == 0:
            if len(coming) == 0:
                return DONE if returned + tail == head else LIVELOCK
            now = coming[0][0]
            if now >= end:
                return DONE
            continue
        now += (
            law.d0
            + law.d1 * read
            + law.d2 * prefill
            + law.d3 * sequences
            + law.d4 * np.sqrt(sequences)
            + law.d5 * max(0.0, prefill + sequences - law.knee)
        )
        if now > end:
            return DONE
        staying = 0
        for i in range(count):
            r = running[i]
            spoken = granted[r] > 0 and computed[r] == inputs[r] + generated[r]
            granted[r] = 0
            if spoken:
                generated[r] += 1
                if generated[r] == 1:
                    first_s[r] = now
                elif now > begin:
                    gaps[gap_bin(now - spoke[r])] += 1
                spoke[r] = now
            if spoken and generated[r] == decodes[r]:
                finish_s[r] = now
                free += _give_back(table[slot[r], : held[r]], name, holders, after, before, blocks)
                vacant[vacancies] = slot[r]
                vacancies += 1
                if following[r] < 0 or session[following[r]] != session[r]:  # nobody will ask for them again
                    for at in range(common, computed[r] // b):
                        block = known[row[session[r]] * stride + at]
                        known[row[session[r]] * stride + at] = -1
                        while block >= 0:
                            name[block], another[block], block = -1, -1, another[block]
                    spare[spares] = row[session[r]]
                    spares += 1
                if following[r] >= 0:
                    arrivals[following[r]] = now + think_s[r]
                    heapq.heappush(coming, (arrivals[following[r]], following[r]))
            else:
                running[staying] = r
                staying += 1
        count = staying


@njit(cache=True)
def _name(row: int, place: int, common: int, stride: int) -> int:
    """What a block of a conversation is known by; -1: nothing is known of it yet."""
    if place < common:
        return place
    return row * stride + place if row > 0 else -1


@njit(cache=True)
def _give_back(mine: Any, name: Any, holders: Any, after: Any, before: Any, ring: int) -> int:
    """Blocks that nobody else holds are free, the last of them first: known ones behind all, others in front."""
    freed = 0
    for block in mine[::-1]:
        holders[block] -= 1
        if holders[block] == 0:
            freed += 1
            left = before[ring] if name[block] >= 0 else ring
            right = after[left]
            after[left], before[block], after[block], before[right] = block, left, right, block
    return freed
