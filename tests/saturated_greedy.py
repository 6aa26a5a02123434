"""Whole requests under greedy admission and a backlog: the judge of every verdict about greedy admission.

Written from the policy's text alone (SIC 2.2): it shares no formula with `kvplan.analysis` and no code with
`kvplan.simulation`. An iteration advances every resident by a stage, evicts the latest admitted (which are the least
progressed) while whole pages exceed memory, and admits in order while the next request's first pages fit: those
evicted first, the last one evicted before the others, then fresh ones. What is counted begins after a warm-up.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numba
import numpy as np
from oracles import stage_weights

from kvplan.model import FloatArray, IntArray, Prefill, ServingModel

UNLIMITED = 1 << 40
_BATCHES = 20
_AGAIN = 8  # times longer is a run that is made again
_ROW = np.dtype(
    [("clock_s", float), ("completed", float), ("work", float), ("evicted", float), ("iterations", float)]
)


@dataclass(frozen=True)
class Server:
    """A replica and its traffic; a row for each class and decode length, its requests drawn by `share`.

    Attributes
    ----------
    input_tokens, first, stages
        Prompt; weight at stage 0, tokens, one more at each further stage; how many stages.
    pages, block_tokens
        Memory in whole pages, and tokens of a page.
    timing
        d0, d1, d2, d3, seconds.
    ready_made
        Prompts arrive with their KV and are computed only where they return after an eviction.
    """

    share: FloatArray
    input_tokens: IntArray
    first: IntArray
    stages: IntArray
    pages: int
    block_tokens: int
    max_num_seqs: int
    timing: tuple[float, float, float, float]
    ready_made: bool

    @classmethod
    def of(cls, model: ServingModel) -> "Server":
        """The replica and the traffic of a model; its law must be linear."""
        convention, rows = str(model.replica.prefill), []
        for c in model.classes:
            total = sum(c.decode_weights)
            for length, weight in zip(c.decode_tokens, c.decode_weights, strict=True):
                held = stage_weights(convention, c.input_tokens, length)
                rows.append((c.rate_rps * weight / total, c.input_tokens, held[0], len(held)))
        rate, inputs, first, stages = (np.array(column) for column in zip(*rows, strict=True))
        law, replica = model.timing, model.replica
        assert law.is_linear
        return cls(
            rate / rate.sum(),
            inputs,
            first,
            stages,
            replica.memory_tokens // replica.block_tokens,
            replica.block_tokens,
            replica.max_num_seqs or UNLIMITED,
            (law.d0, law.d1, law.d2, law.d3),
            replica.prefill is Prefill.DISAGGREGATED,
        )

    @cached_property
    def held(self) -> FloatArray:
        """Pages at each stage, 0 where a request has left; shape (n_rows, longest)."""
        stage = np.arange(self.stages.max())
        pages = -(-(self.first[:, None] + stage) // self.block_tokens)
        return np.where(stage < self.stages[:, None], pages, 0).astype(float)

    @cached_property
    def footprint(self) -> FloatArray:
        """Page-iterations of a request; shape (n_rows,)."""
        return self.held.sum(axis=1)

    @property
    def mean_footprint(self) -> float:
        """Page-iterations of a fresh request."""
        return float(self.share @ self.footprint)

    @property
    def mean_stages(self) -> float:
        """Iterations of a fresh request."""
        return float(self.share @ self.stages)

    @property
    def in_memory(self) -> float:
        """Requests that fill memory at random ages, whatever max_num_seqs."""
        return self.pages / self.mean_footprint * self.mean_stages

    @property
    def sustainable_rps(self) -> float:
        """Requests/s where the mean state fills memory, or max_num_seqs."""
        admitted = min(self.in_memory, self.max_num_seqs) / self.mean_stages
        read = float(self.share @ (self.stages * (self.first + (self.stages - 1) / 2)))
        prompts = 0.0 if self.ready_made else float(self.share @ self.input_tokens)
        d0, d1, d2, d3 = self.timing
        return admitted / (d0 + admitted * (d1 * read + d2 * prompts + d3 * self.mean_stages))


# ------------------------------------------------------------------------------------------------------ starts


@dataclass(frozen=True)
class Residents:
    """Who is in memory at the start, in order of admission: row, and stages behind them."""

    row: IntArray
    age: IntArray


EMPTY = Residents(np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64))


def starts(server: Server, rng: np.random.Generator) -> Iterator[tuple[str, Residents]]:
    """The collapsed and the orderly: a flood, everybody at a random age, and pulses of several periods."""
    yield "flood", EMPTY
    yield "ages", _stationary(server, rng)
    n, longest = server.stages, int(server.stages.max())
    periods = (math.gcd(*n.tolist()), int(n.min()), round(server.mean_stages), round(longest / 2))
    for period in sorted(set(periods) - {0}):
        yield f"pulses of {period}", _pulses(server, period, rng)


def _stationary(server: Server, rng: np.random.Generator) -> Residents:
    mean = min(server.in_memory, server.max_num_seqs) * server.share * server.stages / server.mean_stages
    row = np.repeat(np.arange(server.share.size), rng.poisson(mean))
    return _seated(server, row, rng.integers(0, server.stages[row]), rng)


def _pulses(server: Server, period: int, rng: np.random.Generator) -> Residents:
    """Cohorts of one size, `period` stages apart, that fill memory in the iteration before the next one."""
    ages = np.arange(period - 1, server.stages.max(), period)
    alive = server.stages > ages[:, None]
    full = server.pages / float((server.held[:, ages] @ np.ones(ages.size)) @ server.share)
    size = min(full, server.max_num_seqs / float((alive @ server.share).sum()))
    count = rng.poisson(size, ages.size) if size < 1 else np.full(ages.size, math.ceil(size))
    age = np.repeat(ages, count)
    row = rng.choice(server.share.size, age.size, p=server.share)
    there = server.stages[row] > age
    return _seated(server, row[there], age[there], rng)


def _seated(server: Server, row: IntArray, age: IntArray, rng: np.random.Generator) -> Residents:
    """In order of admission, as many as may run."""
    chosen = rng.permutation(row.size)[: server.max_num_seqs]
    order = chosen[np.argsort(-age[chosen], kind="stable")]
    return Residents(row[order], age[order])


# ------------------------------------------------------------------------------------------------------- a run


@dataclass(frozen=True)
class Measured:
    """What a run served after its warm-up.

    Attributes
    ----------
    rate_rps
        Completions per second, each counted by its footprint over the mean one: in the long run the same number, and
        less of it is chance.
    standard_error_rps
        By batch means.
    evictions_per_iteration
    """

    rate_rps: float
    standard_error_rps: float
    evictions_per_iteration: float
    completed: int


def measure(
    server: Server,
    start: Residents,
    seed: int,
    *,
    completions: int,
    cap: float | None = None,
) -> Measured:
    """Serve a backlog, with at most `cap` admissions an iteration on average; `completions` count after a warm-up."""
    per_iteration = server.in_memory / server.mean_stages
    settling = max(20 * server.in_memory, 10 * int(server.stages.max()) * per_iteration)
    warm = max(completions // 2, math.ceil(settling))
    most = max(completions, 2 * warm)
    marks = warm + np.linspace(0, most, _BATCHES + 1).astype(np.int64)
    rows = run(server, start, draw(server, int(marks[-1]), seed), marks, cap=cap)
    spent, done, work, evicted, iterations = (np.diff(rows[name]) for name in _ROW.names or ())
    some = spent > 0  # more than a batch can leave at once
    rate = work[some] / server.mean_footprint / spent[some]
    return Measured(
        float(work.sum() / server.mean_footprint / spent.sum()),
        float(rate.std(ddof=1) / math.sqrt(rate.size)),
        float(evicted.sum() / iterations.sum()),
        int(done.sum()),
    )


def judge(
    server: Server, seed: int, *, completions: int = 50_000, claimed_rps: float = 0.0
) -> dict[str, Measured]:
    """Serve a backlog from every start; where less than claimed is served, again with other requests, and longer."""
    found = {}
    for i, (name, start) in enumerate(starts(server, np.random.default_rng([seed, 0]))):
        found[name] = measure(server, start, seed + i, completions=completions)
        if found[name].rate_rps < claimed_rps:
            longer = _AGAIN * found[name].completed
            found[name] = measure(server, start, seed + i + 1, completions=longer)
    return found


def draw(server: Server, completions: int, seed: int) -> IntArray:
    """Rows of fresh requests, enough for so many completions and all that can be resident or evicted by then."""
    most = min(server.max_num_seqs, server.pages // max(1, int(server.held[:, 0].min())))
    spare = 2 * most + int(server.pages / server.mean_footprint) + 1000
    return rows_at(np.cumsum(server.share), np.random.default_rng([seed, 1]).random(completions + spare))


def run(
    server: Server, start: Residents, fresh: IntArray, marks: IntArray, *, cap: float | None = None
) -> np.ndarray:
    """Serve `fresh` in order, all there from the beginning; clock and counters when so many are done as marks say."""
    table, _ = _serve(server, start, fresh, marks, cap, None)
    return table


@dataclass(frozen=True)
class Drain:
    """What became of a backlog: when the burst ended and when nobody waited any more, or the run, seconds."""

    burst_s: float
    end_s: float
    backlog: int  # most who waited
    left: int  # who waited at the end
    completed: int


def drain(
    server: Server, start: Residents, seed: int, *, rate_rps: float, burst_s: float, limit: int
) -> Drain:
    """Poisson arrivals, at 4 times the rate for a while, then at the rate until nobody waits or `limit` are done."""
    fresh = draw(server, limit + int(8 * rate_rps * burst_s), seed)
    marks = np.array([limit])
    _, end = _serve(server, start, fresh, marks, None, (4 * rate_rps, rate_rps, burst_s), seed)
    return Drain(burst_s, end[0], int(end[1]), int(end[2]), int(end[3]))


def _serve(
    server: Server,
    start: Residents,
    fresh: IntArray,
    marks: IntArray,
    cap: float | None,
    arrivals: tuple[float, float, float] | None,
    seed: int = 0,
) -> tuple[np.ndarray, tuple[float, int, int, int]]:
    longest = int(server.stages.max())
    most = (
        int(min(server.max_num_seqs, server.pages // max(1, int(server.held[:, 0].min())))) + start.row.size
    )
    table = np.zeros(marks.size, dtype=_ROW)
    end = loop(
        server.first,
        server.stages,
        server.input_tokens,
        server.footprint.astype(np.int64),
        server.ready_made,
        server.pages,
        server.block_tokens,
        server.max_num_seqs,
        np.array(server.timing),
        start.row,
        start.age,
        fresh,
        marks,
        math.inf if cap is None else cap,
        np.array(arrivals or (math.inf, math.inf, 0.0)),
        seed,
        np.zeros((2 * most + 64, 2), dtype=np.int64),
        np.zeros(most + 64, dtype=np.int64),
        np.zeros((longest + 1, 4), dtype=np.int64),
        np.zeros((longest + 1, server.block_tokens), dtype=np.int64),
        table.view(float).reshape(marks.size, -1),
    )
    return table, end


compiled: Callable[..., Callable[..., Any]] = numba.njit(cache=True, nogil=True, error_model="numpy")


@compiled
def rows_at(upto, chances):
    """The row that each chance falls in, `upto` the running sums of shares; looked for from a row that is near."""
    cells = 8 * upto.size
    near = np.searchsorted(upto, np.arange(cells) / cells * upto[-1], side="right")
    rows = np.empty(chances.size, dtype=np.int64)
    for i in range(chances.size):
        row, target = near[int(chances[i] * cells)], chances[i] * upto[-1]
        while row < upto.size - 1 and upto[row] <= target:
            row += 1
        rows[i] = row
    return rows


@compiled
def book(row, t, by, first, stages, footprint, block, leaving, leaving_phase, phase):
    """Count a request, admitted in iteration t, among those who leave and who fill pages; by is -1 where it goes."""
    slot, end = (t + stages[row]) % leaving.shape[0], first[row] + stages[row] - 1
    leaving[slot, 0] += by
    leaving[slot, 1] += by * ((end - 1 + block) // block)
    leaving[slot, 2] += by * end
    leaving[slot, 3] += by * footprint[row]
    leaving_phase[slot, (first[row] - t) % block] += by
    phase[(first[row] - t) % block] += by


@compiled
def loop(
    first,
    stages,
    prompt,
    footprint,
    ready_made,
    pages,
    block,
    most_running,
    timing,
    start_row,
    start_age,
    fresh,
    marks,
    cap,
    arrivals,
    seed,
    stack,  # residents in order of admission, and some who have left since: row, iteration of stage 0
    pool,  # evicted rows; the last one is first in line
    leaving,  # by iteration modulo its length: requests, pages, tokens and footprints of those who leave then
    leaving_phase,  # and how many of them began with which remainder
    table,
):
    """The loop. A request admitted in iteration t is at stage k in t + k and gone in t + n."""
    np.random.seed(seed)
    slots, mark = leaving.shape[0], 0
    phase = np.zeros(
        block, dtype=np.int64
    )  # residents by (first - t) modulo block: who fills a page, and when
    top = evicted_now = running = held = read = 0
    clock, completed, work, evicted, iteration = 0.0, 0, 0, 0, 0
    queue, taken, next_fresh, longest_queue = 0, 0, -1, 0
    saturated = math.isinf(arrivals[1])
    arrival = 0.0 if saturated else np.random.exponential(1 / arrivals[0])
    for i in range(start_row.size):
        row, t = start_row[i], -1 - start_age[i]
        tokens = first[row] + start_age[i]
        stack[top, 0], stack[top, 1] = row, t
        top += 1
        book(row, t, 1, first, stages, footprint, block, leaving, leaving_phase, phase)
        running += 1
        held += (tokens + block - 1) // block
        read += tokens
    while True:
        slot = iteration % slots
        if leaving[slot, 0] > 0:
            completed += leaving[slot, 0]
            running -= leaving[slot, 0]
            held -= leaving[slot, 1]
            read -= leaving[slot, 2]
            work += leaving[slot, 3]
            leaving[slot] = 0
            for r in range(block):
                phase[r] -= leaving_phase[slot, r]
                leaving_phase[slot, r] = 0
            while mark < marks.size and completed >= marks[mark]:
                table[mark, 0] = clock
                table[mark, 1] = completed
                table[mark, 2] = work
                table[mark, 3] = evicted
                table[mark, 4] = iteration
                mark += 1
            if mark == marks.size:
                break
        if not saturated:
            while arrival <= clock:
                queue += 1
                rate = arrivals[0] if arrival < arrivals[2] else arrivals[1]
                later = arrival + np.random.exponential(1 / rate)
                if arrival < arrivals[2] <= later:  # the burst ends; what was drawn beyond is drawn again
                    later = arrivals[2] + np.random.exponential(1 / arrivals[1])
                arrival = later
            longest_queue = max(longest_queue, queue - taken + evicted_now)
        read += running
        held += phase[(1 - iteration) % block]
        while held > pages:
            top -= 1
            row, t = stack[top, 0], stack[top, 1]
            if t + stages[row] <= iteration:
                continue
            tokens = first[row] + iteration - t
            running -= 1
            held -= (tokens + block - 1) // block
            read -= tokens
            book(row, t, -1, first, stages, footprint, block, leaving, leaving_phase, phase)
            pool[evicted_now] = row
            evicted_now += 1
            evicted += 1
        prompts, admissions = 0, UNLIMITED
        if not math.isinf(cap):
            admissions = int(math.floor((iteration + 1) * cap) - math.floor(iteration * cap))
        while running < most_running and admissions > 0:
            if evicted_now > 0:
                row = pool[evicted_now - 1]
            else:
                if next_fresh < 0:
                    if not saturated and taken == queue:
                        break
                    next_fresh = fresh[taken]
                row = next_fresh
            if held + (first[row] + block - 1) // block > pages:
                break
            if evicted_now > 0:
                evicted_now -= 1
                prompts += prompt[row]
            else:
                taken += 1
                next_fresh = -1
                if not ready_made:
                    prompts += prompt[row]
            if top == stack.shape[0]:  # close up over those who have left
                top = 0
                for i in range(stack.shape[0]):
                    if stack[i, 1] + stages[stack[i, 0]] > iteration:
                        stack[top, 0], stack[top, 1] = stack[i, 0], stack[i, 1]
                        top += 1
            stack[top, 0], stack[top, 1] = row, iteration
            top += 1
            book(row, iteration, 1, first, stages, footprint, block, leaving, leaving_phase, phase)
            running += 1
            held += (first[row] + block - 1) // block
            read += first[row]
            admissions -= 1
        if clock > arrivals[2] and queue == taken and evicted_now == 0 and not saturated:
            break
        if running > 0 or saturated:
            clock += timing[0] + timing[1] * read + timing[2] * prompts + timing[3] * running
        else:
            clock = arrival
        iteration += 1
    return clock, longest_queue, queue - taken + evicted_now, completed
