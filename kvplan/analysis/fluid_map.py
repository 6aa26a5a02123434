"""The fluid map: saturated greedy admission with continuous amounts of requests (SIC 2-3, theory §3).

One iteration: *execute* (everything in flight grows by a token; the last stage leaves), *evict* while memory exceeds
the capacity, least progressed first, *admit* what fits if nothing was evicted. What was evicted rejoins the front of
the queue, last evicted first, with the composition it had: it is longer than the traffic where short requests have
already left, and that changes the mix of what is admitted (new, theory §3).

A *layer* is what was admitted together from one source. Evicted at some stage, those of the traffic that stay longer
are left, so a layer is two numbers: how much of the traffic, and the stage κ that its requests all outlast. Requests in
flight are a stack of layers in the order of their admission, the pool of evicted ones is another, and evictions move
layers from one top to the other: of one iteration's admissions the latest go first, as where requests are whole.
`iterate` is in the part of Python that `kvplan.compiling.translate` knows; short runs call it as it is, on lists.
"""

import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache
from itertools import chain
from typing import Any, NamedTuple

import numpy as np

from kvplan import compiling
from kvplan.model import FloatArray, IntArray, Mix, StageWeights, TabledWeights, Weights, sum_by, survival
from kvplan.model.timing import attention_pairs
from kvplan.solve import find_period

_COMPILE_ABOVE = 2_000  # iterations times rows; plain Python takes longer than loading what is compiled
_LAYERS = 16  # an iteration on average that there is room for at first
_TABLED_STEPS = 2  # weights of layers that take as long as a row
_PERIOD_TOLERANCE = 1e-9  # of n*, between one period and the next
_REST_TOLERANCE = 2e-3  # of n*, between two parts of a run that does not repeat itself, in the mean
_INCOMMENSURABLE = 0.6180339887498949
_DISTURBANCE = 0.2
_DOUBLINGS, _LONGER = 5, 1.5  # of a run that has not settled; times, less is not worth another run
MAX_STEPS = 120_000_000  # iterations times rows of a run, about a second
_MOST_ITERATIONS = 1 << 18  # of requests so long that these are not enough, a second as well
_STEPS_OF_A_MOVE = 4  # of a layer, which takes as long
_MOST_PAGED = 1 << 22  # stages times places in a page where prompts end
_UNSETTLED = 4  # times fewer where the budget cannot settle it


class FluidMap(NamedTuple):
    """A saturated replica as the map sees it; one row for each first weight and number of iterations."""

    capacity: float  # tokens, in whole pages
    seats: float  # requests that run at once; infinite where nothing limits them
    weights: StageWeights  # tokens that a request of each row holds at its stages ...
    read: StageWeights  # ... and context that it reads
    share: FloatArray  # of the admissions
    prompt: FloatArray  # tokens, prefill of a request that is admitted again

    @property
    def size(self) -> int:
        """Iterations of the longest request, L."""
        return int(self.weights.stages.max())

    @property
    def cost(self) -> int:
        """Steps of an iteration: a row each, or where weights are tabled, a kind of each layer."""
        if isinstance(self.weights, TabledWeights):
            return max(1, len(self.weights.table) * self.size // _TABLED_STEPS)
        return int(self.share.size)

    @property
    def footprint(self) -> float:
        """Mean token-iterations of a request, S̄ = ΣW_k."""
        return float(self.share @ self.weights.footprint)

    @property
    def eviction_free_throughput(self) -> float:
        """n* = M/ΣW_k, requests per iteration, or what the seats allow."""
        return min(self.capacity / self.footprint, self.seats / float(self.share @ self.weights.stages))


def fluid_map(
    weights: StageWeights,
    share: FloatArray,
    prompt: FloatArray,
    capacity: float,
    seats: float = np.inf,
    *,
    read: StageWeights | None = None,
) -> FluidMap:
    """Set up the map for a mix; rows that do not differ for it become one.

    Without `read` as much context is read as is held, pages not rounded up. Where requests stay very long, prompts end
    in few places of a page: they are rounded up to these, and hold a little more.
    """
    if read is None:
        assert isinstance(weights, Weights)
        read = replace(weights, block_tokens=1.0)
    if isinstance(weights, Weights):
        weights = _in_few_places(weights, max(1, _MOST_PAGED // int(weights.stages.max())))
    rows = np.stack([weights.kind.astype(np.float64), weights.stages.astype(np.float64), prompt])
    (kind, stays, prompts), row = np.unique(rows, axis=1, return_inverse=True)
    stages = stays.astype(np.int64)
    held, read, share = weights.of(kind, stages), read.of(kind, stages), sum_by(row.ravel(), share)
    return FluidMap(float(capacity), float(seats), held, read, share, prompts)


def _in_few_places(weights: Weights, most: int) -> Weights:
    """Round prompts up to end in at most so many places of a page."""
    over = weights.first % weights.block_tokens
    if np.unique(over).size <= most:
        return weights
    step = np.ceil(weights.block_tokens / most)
    rounded = np.minimum(np.ceil(over / step) * step, weights.block_tokens)
    return replace(weights, first=weights.first - over + rounded)


class Run(NamedTuple):
    """Requests and tokens of a run, iteration by iteration; arrays of shape (iterations,)."""

    throughput: FloatArray  # completions by their footprint, in mean requests of the mix offered
    completed: FloatArray
    evicted: FloatArray
    evicted_prompts: FloatArray
    evicted_pairs: FloatArray
    in_flight: FloatArray
    held_tokens: FloatArray
    read_tokens: FloatArray


class _Size:  # places in `_State.sizes`
    ROWS, STAGES, SLOTS, KINDS, BLOCK, ITERATIONS, MOVES = range(7)


class _Count:  # places in `_State.counts`: layers are a ring, oldest first, and the pool is a stack
    BOTTOM, TOP, POOLED, MOVED, LACKS_ROOM = range(5)


class _Level:  # places in `_State.levels`
    IN_FLIGHT, HELD, READ = range(3)


class _State(NamedTuple):
    """Arrays that the kernels work on: amounts as floats, stages and places as whole numbers.

    Rows of one kind weigh the same at each stage: in pages, kinds are offsets of prompts in their last page; with a
    block of 0 they are tables, and all layers are weighed anew in each iteration.
    """

    sizes: IntArray
    limits: FloatArray  # capacity, seats
    counts: IntArray
    levels: FloatArray
    # of rows
    stages: IntArray
    share: FloatArray
    work: FloatArray
    last_held: FloatArray
    last_read: FloatArray
    page: IntArray
    past_pages: IntArray  # of the stages, those that are not whole pages
    # sums over all rows that outlast stage κ, for κ = 0, …, L - 1, of the last two a series for each kind
    present: FloatArray
    start_held: FloatArray
    start_read: FloatArray
    prompt: FloatArray
    pairs: FloatArray
    page_present: FloatArray
    page_base: FloatArray  # what the last page does not say
    offsets: IntArray  # of kinds
    held_table: FloatArray
    read_table: FloatArray
    masses: FloatArray
    # of layers
    scale: FloatArray
    outlasts: IntArray
    born: IntArray
    before: IntArray
    after: IntArray
    first_to_join: IntArray
    joined: FloatArray
    turning: FloatArray  # requests that fill a page in an iteration, by kind and iteration modulo the page
    pool_scale: FloatArray
    pool_outlasts: IntArray
    # filled: a `Run`
    throughput: FloatArray
    completed: FloatArray
    evicted: FloatArray
    evicted_prompts: FloatArray
    evicted_pairs: FloatArray
    in_flight: FloatArray
    held_tokens: FloatArray
    read_tokens: FloatArray


def iterate(s: _State) -> int:
    """Run the map from cohorts of the given masses, the composition of the traffic in each.

    Returns how many iterations were run before layers had moved too often; 0 if they lack room.
    """
    begin(s)
    for now in range(s.sizes[_Size.ITERATIONS]):
        leave(s, now)
        grow(s, now)
        evict(s, now)
        if s.evicted[now] == 0.0:
            admit(s, now)
        if s.counts[_Count.LACKS_ROOM] > 0:
            return 0
        s.in_flight[now] = s.levels[_Level.IN_FLIGHT]
        s.held_tokens[now] = s.levels[_Level.HELD]
        s.read_tokens[now] = s.levels[_Level.READ]
        if s.counts[_Count.MOVED] > s.sizes[_Size.MOVES]:
            return now + 1
    return int(s.sizes[_Size.ITERATIONS])


def begin(s: _State) -> None:
    """Put the cohorts into flight, the oldest at the bottom."""
    size, block, top = s.sizes[_Size.STAGES], s.sizes[_Size.BLOCK], 0
    in_flight, held, read = 0.0, 0.0, 0.0
    for younger in range(size):
        age = size - 1 - younger
        if s.masses[age] > 0.0:
            s.scale[top], s.outlasts[top], s.born[top] = s.masses[age], 0, -1 - age
            s.joined[(-1 - age) % size] = s.masses[age]
            in_flight += s.masses[age] * s.present[age]
            if block > 0:
                read += s.masses[age] * (s.start_read[age] + age * s.present[age])
                for g in range(s.sizes[_Size.KINDS]):
                    amount = s.masses[age] * s.page_present[g * size + age]
                    s.turning[g * block + (-1 - age) % block] += amount
                    full = -(-(s.offsets[g] + age) // block) * block
                    held += s.masses[age] * s.page_base[g * size + age] + amount * full
            top += 1
    s.counts[_Count.TOP] = top
    s.levels[_Level.IN_FLIGHT], s.levels[_Level.HELD], s.levels[_Level.READ] = in_flight, held, read


def leave(s: _State, now: int) -> None:
    """Let go of the requests whose last stage is over."""
    size, block = s.sizes[_Size.STAGES], s.sizes[_Size.BLOCK]
    here, in_page = now % size, 0
    if block > 0:
        in_page = now % block
    done, done_work, held, read = 0.0, 0.0, s.levels[_Level.HELD], s.levels[_Level.READ]
    for j in range(s.sizes[_Size.ROWS]):
        amount = s.joined[here - s.stages[j]] * s.share[j]  # negative places are counted from the end
        if amount > 0.0:
            done += amount
            done_work += amount * s.work[j]
            if block > 0:
                held -= amount * s.last_held[j]
                read -= amount * s.last_read[j]
                place = in_page - s.past_pages[j]
                if place < 0:
                    place += block
                s.turning[s.page[j] * block + place] -= amount
    s.levels[_Level.IN_FLIGHT] -= done
    s.levels[_Level.HELD], s.levels[_Level.READ] = held, read
    s.throughput[now], s.completed[now] = done_work, done
    s.joined[here] = 0.0
    at = s.first_to_join[here]
    s.first_to_join[here] = -1
    while at >= 0:  # of these layers, all that did not outlast this stage has left
        s.joined[s.born[at] % size] += s.scale[at]
        at = s.after[at]
    bottom, top = s.counts[_Count.BOTTOM], s.counts[_Count.TOP]
    while bottom < top and s.born[bottom % s.sizes[_Size.SLOTS]] <= now - size:
        bottom += 1
    s.counts[_Count.BOTTOM] = bottom


def grow(s: _State, now: int) -> None:
    """Let everything in flight grow by a token."""
    size, kinds, block = s.sizes[_Size.STAGES], s.sizes[_Size.KINDS], s.sizes[_Size.BLOCK]
    held, read = 0.0, 0.0
    if block > 0:
        held, read = s.levels[_Level.HELD], s.levels[_Level.READ] + s.levels[_Level.IN_FLIGHT]
        for g in range(kinds):
            held += block * s.turning[g * block + (s.offsets[g] + now - 1) % block]
    else:
        for layer in range(s.counts[_Count.BOTTOM], s.counts[_Count.TOP]):
            at = layer % s.sizes[_Size.SLOTS]
            age = now - s.born[at]
            stage = max(age, s.outlasts[at])
            for g in range(kinds):
                amount = s.scale[at] * s.page_present[g * size + stage]
                held += amount * s.held_table[g * size + age]
                read += amount * s.read_table[g * size + age]
    s.levels[_Level.HELD], s.levels[_Level.READ] = held, read


def evict(s: _State, now: int) -> None:
    """Evict the least progressed, the latest layers, while memory exceeds the capacity."""
    size, slots, block = s.sizes[_Size.STAGES], s.sizes[_Size.SLOTS], s.sizes[_Size.BLOCK]
    capacity, held, read = s.limits[0], s.levels[_Level.HELD], s.levels[_Level.READ]
    top, pooled = s.counts[_Count.TOP], s.counts[_Count.POOLED]
    gone, gone_prompts, gone_pairs = 0.0, 0.0, 0.0
    while held > capacity + 1e-12 * capacity and top > s.counts[_Count.BOTTOM]:
        if pooled == slots:
            s.counts[_Count.LACKS_ROOM] = 1
            return
        at = (top - 1) % slots
        age = now - s.born[at]
        stage = max(age, s.outlasts[at])
        memory = memory_of(s, stage, age) * s.scale[at]
        part = 1.0
        if memory > held - capacity:
            part = (held - capacity) / memory
        amount = part * s.scale[at]
        if s.outlasts[at] <= age:
            s.joined[s.born[at] % size] = max(0.0, s.joined[s.born[at] % size] - amount)
        elif part == 1.0:
            unlink(s, at)
        for g in range(s.sizes[_Size.KINDS] * (block > 0)):
            s.turning[g * block + s.born[at] % block] -= amount * s.page_present[g * size + stage]
        s.levels[_Level.IN_FLIGHT] -= amount * s.present[stage]
        read -= amount * context_of(s, stage, age)
        gone += amount * s.present[stage]
        gone_prompts += amount * s.prompt[stage]
        gone_pairs += amount * s.pairs[stage]
        s.pool_scale[pooled], s.pool_outlasts[pooled] = amount, stage
        pooled += 1
        s.counts[_Count.MOVED] += 1
        if part < 1.0:
            s.scale[at] -= amount
            held = capacity
        else:
            held -= memory
            top -= 1
    s.levels[_Level.HELD], s.levels[_Level.READ] = held, read
    s.counts[_Count.TOP], s.counts[_Count.POOLED] = top, pooled
    s.evicted[now], s.evicted_prompts[now], s.evicted_pairs[now] = gone, gone_prompts, gone_pairs


def memory_of(s: _State, stage: int, age: int) -> float:
    """Tokens held by those of a unit of traffic, admitted `age` iterations ago, that outlast a stage."""
    size, block, memory = s.sizes[_Size.STAGES], s.sizes[_Size.BLOCK], 0.0
    for g in range(s.sizes[_Size.KINDS]):
        if block > 0:
            full = age // block
            over = s.offsets[g] + age - full * block
            weight = (full + (over > 0) + (over > block)) * block
            memory += s.page_base[g * size + stage] + s.page_present[g * size + stage] * weight
        else:
            memory += s.page_present[g * size + stage] * s.held_table[g * size + age]
    return memory


def context_of(s: _State, stage: int, age: int) -> float:
    """Context that they read."""
    size, context = s.sizes[_Size.STAGES], 0.0
    if s.sizes[_Size.BLOCK] > 0:
        return float(s.start_read[stage] + age * s.present[stage])
    for g in range(s.sizes[_Size.KINDS]):
        context += s.page_present[g * size + stage] * s.read_table[g * size + age]
    return context


def unlink(s: _State, at: int) -> None:
    """Take a layer out of the list of those that join the traffic of their iteration at one time."""
    before, after = s.before[at], s.after[at]
    if before >= 0:
        s.after[before] = after
    else:
        s.first_to_join[(s.born[at] + s.outlasts[at]) % s.sizes[_Size.STAGES]] = after
    if after >= 0:
        s.before[after] = before


def admit(s: _State, now: int) -> None:
    """Fill memory, or the seats: first with what was evicted, last evicted first, then with traffic."""
    size, slots, block = s.sizes[_Size.STAGES], s.sizes[_Size.SLOTS], s.sizes[_Size.BLOCK]
    capacity, pooled, top = s.limits[0], s.counts[_Count.POOLED], s.counts[_Count.TOP]
    room, free = capacity - s.levels[_Level.HELD], s.limits[1] - s.levels[_Level.IN_FLIGHT]
    least_room = 1e-12 * capacity
    while room > least_room and free > least_room / s.start_held[0]:
        if top - s.counts[_Count.BOTTOM] == slots:
            s.counts[_Count.LACKS_ROOM] = 1
            return
        stage = 0
        if pooled > 0:
            stage = s.pool_outlasts[pooled - 1]
        part = min(room / s.start_held[stage], free / s.present[stage])
        if pooled > 0:
            part = min(part, s.pool_scale[pooled - 1])
            s.pool_scale[pooled - 1] -= part
            if s.pool_scale[pooled - 1] <= 0.0:
                pooled -= 1
        s.levels[_Level.IN_FLIGHT] += part * s.present[stage]
        free -= part * s.present[stage]
        room -= part * s.start_held[stage]
        s.levels[_Level.READ] += part * s.start_read[stage]
        for g in range(s.sizes[_Size.KINDS] * (block > 0)):
            s.turning[g * block + now % block] += part * s.page_present[g * size + stage]
        s.counts[_Count.MOVED] += 1
        at = top % slots
        top += 1
        s.scale[at], s.outlasts[at], s.born[at], s.before[at], s.after[at] = part, stage, now, -1, -1
        if stage > 0:
            due = (now + stage) % size
            s.after[at] = s.first_to_join[due]
            if s.after[at] >= 0:
                s.before[s.after[at]] = at
            s.first_to_join[due] = at
        else:
            s.joined[now % size] += part
        s.levels[_Level.HELD] = capacity - room
    s.counts[_Count.POOLED], s.counts[_Count.TOP] = pooled, top


@cache
def compiled() -> Callable[[_State], int]:
    """`iterate` as machine code, kept on disk where that is possible."""
    file = compiling.file("fluid-map", [sys.modules[__name__]])
    loop = compiling.compiled(iterate, _State, file, {})
    assert loop is not None
    return loop


def run(
    system: FluidMap,
    masses: FloatArray,
    iterations: int,
    *,
    max_steps: int = MAX_STEPS,
    compile_above: int = _COMPILE_ABOVE,
) -> Run:
    """Run the map from the cohorts of the given masses, shape (L,), at stage 0, 1, …

    It ends sooner where `max_steps`, of which a layer that moves takes some, are over. `compile_above` is the number of
    rows and iterations from which the compiled loop is used.
    """
    steps = iterations * system.cost
    fast = steps > compile_above
    loop = compiled() if fast else iterate
    layers = min(_LAYERS * system.size, system.size + _LAYERS * iterations)
    while True:
        state = _prepared(system, masses, iterations, layers, max_steps // _STEPS_OF_A_MOVE)
        if not fast:
            state = _State._make(array.tolist() for array in state)  # faster, one number at a time
        if done := loop(state):
            return Run(*(np.asarray(getattr(state, name)[:done]) for name in Run._fields))
        layers *= 2


def _prepared(system: FluidMap, masses: FloatArray, iterations: int, layers: int, moves: int) -> _State:
    """Lay out the state before the first iteration, with room for so many layers, which may move so often."""
    weights, read, share, size = system.weights, system.read, system.share, system.size
    held_table = read_table = np.zeros(0)

    def sums(amounts: FloatArray) -> FloatArray:
        return survival(weights.stages, share * amounts)

    if isinstance(weights, TabledWeights) and isinstance(read, TabledWeights):
        block, page = 0, weights.kind
        offsets = np.arange(len(weights.table))
        held_table, read_table = weights.table.ravel(), read.table.ravel()
        page_present, page_base = weights.present(share).ravel(), np.zeros(0)
    else:
        assert isinstance(weights, Weights)
        block = int(weights.block_tokens)
        over = weights.first.astype(np.int64) % block
        offsets, page = np.unique(over, return_inverse=True)
        pages = [page == g for g in range(offsets.size)]
        page_present = np.concatenate([sums(mine.astype(np.float64)) for mine in pages])
        page_base = np.concatenate([sums(mine * (weights.first - over)) for mine in pages])

    sizes = share.size, size, layers, offsets.size, block, iterations, moves
    empty: dict[str, Any] = {name: np.zeros(iterations) for name in Run._fields}
    empty |= {name: np.zeros(layers) for name in ("scale", "pool_scale")}
    links = ("outlasts", "born", "before", "after", "pool_outlasts")
    empty |= {name: np.zeros(layers, dtype=np.int64) for name in links}
    state = _State(
        sizes=np.array(sizes),
        limits=np.array([system.capacity, system.seats]),
        counts=np.zeros(5, dtype=np.int64),
        levels=np.zeros(3),
        stages=weights.stages,
        share=share,
        work=weights.footprint / system.footprint,
        last_held=weights.at_end,
        last_read=read.at_end,
        page=page,
        past_pages=weights.stages % max(block, 1),
        present=sums(np.ones(share.size)),
        start_held=sums(weights.at_start),
        start_read=sums(read.at_start),
        prompt=sums(system.prompt),
        pairs=sums(attention_pairs(system.prompt)),
        page_present=page_present,
        page_base=page_base,
        offsets=offsets,
        held_table=held_table,
        read_table=read_table,
        masses=masses.astype(np.float64),
        first_to_join=np.full(size, -1, dtype=np.int64),
        joined=np.zeros(size),
        turning=np.zeros(offsets.size * block),
        **empty,
    )
    return _State._make(map(np.ascontiguousarray, state))


def collapsed_starts(system: FluidMap) -> Iterator[FloatArray]:
    """Yield states from which greedy admission may not recover: masses of cohorts at stage 0, 1, …, each of shape (L,).

    Everything at stage 0; a disturbed equilibrium; pulses at the periods gcd, shortest, mean and half of the longest.
    All fill memory, or the seats (theory §3, "Finite memory").
    """
    size, stages = system.size, system.weights.stages
    kv, present = system.weights.survival(system.share), survival(stages, system.share)
    stage = np.arange(size, dtype=np.float64)
    disturbed = 1 + _DISTURBANCE * (2 * ((stage + 1) * _INCOMMENSURABLE % 1.0) - 1)
    mean = float(system.share @ stages)
    periods = {int(np.gcd.reduce(stages)), int(stages.min()), round(mean), size // 2} - {0, 1}
    pulses = ((stage % period == 0).astype(np.float64) for period in sorted(periods | {size}))
    for m in chain([disturbed], pulses):
        yield m * min(system.capacity / float(m @ kv), system.seats / float(m @ present))


class Cycle(NamedTuple):
    """A limit cycle of the saturated map: means an iteration, in requests and tokens."""

    throughput: float  # completions by their footprint (`Run`): of the mix as offered
    evictions: float
    evicted_prompts: float
    evicted_pairs: float
    in_flight: float
    read_tokens: float
    period: int | None
    # requests in flight and context read in each iteration of a pulse cycle, whose admissions all come in the first
    phases: FloatArray | None = None  # of shape (2, period)
    iterations: int | None = None  # that the map ran; None where a formula gives the cycle
    settled: bool = True  # the run came to repeat itself, or its mean throughput came to rest

    def prefill(self, mix: Mix) -> tuple[float, float]:
        """Count prompt tokens of an iteration, and their pairs: whatever completes or is evicted is admitted, again."""
        tokens, pairs = (float(mix.mean(each)) for each in (mix.prefill_tokens, mix.prefill_pairs))
        return self.throughput * tokens + self.evicted_prompts, self.throughput * pairs + self.evicted_pairs

    def of_memory(self, tokens: float) -> "Cycle":
        """Scale a cycle without phases to so many times the memory, and as many times the seats."""
        return self._replace(**{name: getattr(self, name) * tokens for name in self._fields[:6]})


def find_attractor(system: FluidMap, masses: FloatArray, max_steps: int | None = None) -> Cycle:
    """Run the map from cohorts of the given masses, shape (L,), and look where it settles.

    It mostly has after some 40·L iterations (theory §3, "As validated"), within a budget of `max_steps` iterations
    times rows (None: `MAX_STEPS`), of moves of layers and of iterations; what the budget cuts short is not settled.
    Else it runs longer, from the start again, within half the budget.
    """
    usual = max(min(max(40 * system.size, 4_000), 60_000), 4 * system.size)
    steps = max_steps or MAX_STEPS
    most = min(steps // system.cost, _MOST_ITERATIONS)

    def tried(iterations: int) -> Cycle:
        history = run(system, masses, iterations, max_steps=steps)
        cycle = _second_half(system, history)
        return cycle if history.completed.size == iterations else cycle._replace(settled=False)

    if usual > most:
        return tried(max(most // _UNSETTLED, 2))._replace(settled=False)
    iterations, cycle = usual, tried(usual)
    for _ in range(_DOUBLINGS):
        if cycle.settled or cycle.iterations != iterations or most // 2 < _LONGER * iterations:
            break
        iterations = min(2 * iterations, most // 2)
        cycle = tried(iterations)
    return cycle


def _second_half(system: FluidMap, history: Run) -> Cycle:
    """Means over the second half of a run, over whole periods where there are any."""
    iterations, n_star = history.throughput.size, system.eviction_free_throughput
    # evictions can take longer to repeat than completions: one series carries both
    both = history.throughput + _INCOMMENSURABLE * history.evicted
    period = find_period(both[iterations // 2 :], _PERIOD_TOLERANCE * n_star)
    start = iterations - period if period else iterations // 2
    means = {name: float(series[start:].mean()) for name, series in history._asdict().items()}
    quarters = np.array_split(history.throughput[iterations // 2 :], 2)
    drift = abs(float(quarters[1].mean() - quarters[0].mean()))
    settled = period is not None or drift <= _REST_TOLERANCE * n_star
    return Cycle(
        throughput=means["throughput"],
        evictions=means["evicted"],
        evicted_prompts=means["evicted_prompts"],
        evicted_pairs=means["evicted_pairs"],
        in_flight=means["in_flight"],
        read_tokens=means["read_tokens"],
        period=period,
        iterations=iterations,
        settled=settled,
    )
