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
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import NamedTuple

import numpy as np

from kvplan import compiling
from kvplan.model import FloatArray, IntArray, Mix, StageWeights, TabledWeights, Weights, sum_by, survival

_COMPILE_ABOVE = 2_000  # iterations times rows; plain Python takes longer than loading what is compiled
_LAYERS = 16  # an iteration on average that there is room for at first
_PROBES = 32
_TABLED_STEPS = 2  # weights of layers that take as long as a row
_PERIOD_TOLERANCE = 1e-9  # of n*, between one period and the next
_REST_TOLERANCE = (
    2e-3  # of n*, between the mean throughputs of two parts of a run that does not repeat itself
)
_INCOMMENSURABLE = 0.6180339887498949
_DISTURBANCE = 0.2
_DOUBLINGS = 5  # of a run that has not settled
_LONGER = 1.5  # times; less is not worth another run
MAX_STEPS = 120_000_000  # iterations times rows of a run, about a second
_MOST_ITERATIONS = 1 << 18  # of requests so long that these are not enough, a second as well
_STEPS_OF_A_MOVE = 4  # of a layer, which takes as long
_MOST_PAGED = 1 << 22  # stages times places in a page where prompts end
_UNSETTLED = 4  # times fewer where the budget cannot settle it


class FluidMap(NamedTuple):
    """A saturated replica as the map sees it; one row for each first weight and number of iterations.

    Attributes
    ----------
    capacity : float, tokens
        Memory in whole pages.
    seats : float
        Requests that run at once; infinite where nothing limits them.
    weights, read : shape (n_rows,)
        Tokens that a request holds, and context that it reads, at each of its stages.
    share : ndarray, shape (n_rows,)
        Of the admissions.
    prompt : ndarray, shape (n_rows,), tokens
        Prefill of a request that is admitted again.
    """

    capacity: float
    seats: float
    weights: StageWeights
    read: StageWeights
    share: FloatArray
    prompt: FloatArray

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

    Examples
    --------
    >>> lone = fluid_map(Weights(np.array([3.0]), np.array([3])), np.ones(1), np.array([2.0]), 12.0)
    >>> lone.size, lone.eviction_free_throughput
    (3, 1.0)
    """
    if read is None:
        assert isinstance(weights, Weights)
        read = replace(weights, block_tokens=1.0)
    if isinstance(weights, Weights):
        weights = _in_few_places(weights, max(1, _MOST_PAGED // int(weights.stages.max())))
    rows = np.stack([weights.kind.astype(np.float64), weights.stages.astype(np.float64), prompt])
    (kind, stays, prompts), row = np.unique(rows, axis=1, return_inverse=True)
    stages = stays.astype(np.int64)
    return FluidMap(
        capacity=float(capacity),
        seats=float(seats),
        weights=weights.of(kind, stages),
        read=read.of(kind, stages),
        share=sum_by(row.ravel(), share),
        prompt=prompts,
    )


def _in_few_places(weights: Weights, most: int) -> Weights:
    """Weights whose prompts end in at most so many places of a page.

    >>> some = Weights(np.arange(21.0, 31.0), np.full(10, 9), 10)
    >>> _in_few_places(some, 2).first.tolist()
    [25.0, 25.0, 25.0, 25.0, 25.0, 30.0, 30.0, 30.0, 30.0, 30.0]
    """
    over = weights.first % weights.block_tokens
    if np.unique(over).size <= most:
        return weights
    step = np.ceil(weights.block_tokens / most)
    rounded = np.minimum(np.ceil(over / step) * step, weights.block_tokens)
    return replace(weights, first=weights.first - over + rounded)


class Run(NamedTuple):
    """What happened in a run, iteration by iteration; arrays of shape (iterations,).

    `throughput` counts completions by their footprint, in requests of the mean one: it is that of the mix as offered
    in the long run. The others are requests, and tokens of prompts evicted, of memory held and of context read.
    """

    throughput: FloatArray
    completed: FloatArray
    evicted: FloatArray
    evicted_prompts: FloatArray
    in_flight: FloatArray
    held_tokens: FloatArray
    read_tokens: FloatArray


class _State(NamedTuple):
    """What `iterate` works on: amounts as floats, stages and places as whole numbers.

    Of rows their stages and what leaves with them. Of all rows that outlast stage κ, for κ = 0, …, L - 1, sums:
    `present` to `page_base`, of the last two a series for each kind. Rows of one kind weigh the same at each stage: in
    pages, kinds are offsets of prompts in their last page; with `block` 0 they are tables, and all layers are weighed
    anew in each iteration. `turning` says how many requests fill a page in an iteration, of each kind and each
    iteration modulo the page; what the last page does not say is in `page_base`. The last seven arrays are filled, and
    are a `Run`.
    """

    sizes: IntArray  # rows, stages, room for layers, kinds, tokens of a block, iterations, moves
    limits: FloatArray  # capacity, seats
    stages: IntArray
    share: FloatArray
    work: FloatArray
    last_held: FloatArray
    last_read: FloatArray
    page: IntArray
    past_pages: IntArray  # of the stages, those that are not whole pages
    present: FloatArray
    start_held: FloatArray
    start_read: FloatArray
    prompt: FloatArray
    page_present: FloatArray
    page_base: FloatArray
    offsets: IntArray
    held_table: FloatArray
    read_table: FloatArray
    masses: FloatArray
    scale: FloatArray
    outlasts: IntArray
    born: IntArray
    before: IntArray
    after: IntArray
    first_to_join: IntArray
    joined: FloatArray
    turning: FloatArray
    pool_scale: FloatArray
    pool_outlasts: IntArray
    throughput: FloatArray
    completed: FloatArray
    evicted: FloatArray
    evicted_prompts: FloatArray
    in_flight: FloatArray
    held_tokens: FloatArray
    read_tokens: FloatArray


def iterate(s: _State) -> int:
    """Run the map from cohorts of the given masses, the composition of the traffic in each.

    Returns how many iterations were run before layers had moved too often; 0 if they lack room.
    """
    n_rows, size, slots, n_pages, block = s.sizes[0], s.sizes[1], s.sizes[2], s.sizes[3], s.sizes[4]
    capacity, seats = s.limits[0], s.limits[1]
    stages, share, joined, offsets = s.stages, s.share, s.joined, s.offsets
    present, page_present, page_base = s.present, s.page_present, s.page_base
    start_held, start_read = s.start_held, s.start_read
    scale, outlasts, born, before, after = s.scale, s.outlasts, s.born, s.before, s.after
    first_to_join, turning = s.first_to_join, s.turning
    pool_scale, pool_outlasts = s.pool_scale, s.pool_outlasts
    masses, held_table, read_table = s.masses, s.held_table, s.read_table
    tabled = block == 0
    bottom, top, pooled, moved = 0, 0, 0, 0  # layers are a ring, oldest first
    in_flight, held, read = 0.0, 0.0, 0.0
    for younger in range(size):
        age = size - 1 - younger
        if masses[age] > 0.0:
            scale[top], outlasts[top], born[top] = masses[age], 0, -1 - age
            joined[(-1 - age) % size] = masses[age]
            in_flight += masses[age] * present[age]
            if not tabled:
                read += masses[age] * (start_read[age] + age * present[age])
                for g in range(n_pages):
                    amount = masses[age] * page_present[g * size + age]
                    turning[g * block + (-1 - age) % block] += amount
                    held += masses[age] * page_base[g * size + age] + amount * (
                        -(-(offsets[g] + age) // block) * block
                    )
            top += 1
    least_room = 1e-12 * capacity
    least_seats = least_room / start_held[0]
    for now in range(s.sizes[5]):
        here = now % size
        in_page = 0 if tabled else now % block
        done, done_work, gone, gone_prompts = 0.0, 0.0, 0.0, 0.0
        for j in range(n_rows):
            amount = (
                joined[here - stages[j]] * share[j]
            )  # places are counted from the end where they are negative
            if amount > 0.0:
                done += amount
                done_work += amount * s.work[j]
                if not tabled:
                    held -= amount * s.last_held[j]
                    read -= amount * s.last_read[j]
                    place = in_page - s.past_pages[j]
                    if place < 0:
                        place += block
                    turning[s.page[j] * block + place] -= amount
        in_flight -= done
        if not tabled:
            read += in_flight
            for g in range(n_pages):
                held += block * turning[g * block + (offsets[g] + now - 1) % block]
        joined[here] = 0.0
        at = first_to_join[here]
        first_to_join[here] = -1
        while at >= 0:  # of these layers, all that did not outlast this stage has left
            joined[born[at] % size] += scale[at]
            at = after[at]
        while bottom < top and born[bottom % slots] <= now - size:
            bottom += 1
        if tabled:
            held, read = 0.0, 0.0
            for layer in range(bottom, top):
                at = layer % slots
                age = now - born[at]
                stage = max(age, outlasts[at])
                for g in range(n_pages):
                    amount = scale[at] * page_present[g * size + stage]
                    held += amount * held_table[g * size + age]
                    read += amount * read_table[g * size + age]
        while held > capacity + least_room and top > bottom:
            at = (top - 1) % slots
            age = now - born[at]
            stage = max(age, outlasts[at])
            memory, context = 0.0, 0.0
            full = 0 if tabled else age // block
            for g in range(n_pages):
                if tabled:
                    memory += page_present[g * size + stage] * held_table[g * size + age]
                    context += page_present[g * size + stage] * read_table[g * size + age]
                else:
                    over = offsets[g] + age - full * block
                    weight = (full + (over > 0) + (over > block)) * block
                    memory += page_base[g * size + stage] + page_present[g * size + stage] * weight
            memory *= scale[at]
            if not tabled:
                context = start_read[stage] + age * present[stage]
            part = 1.0 if memory <= held - capacity else (held - capacity) / memory
            amount = part * scale[at]
            if outlasts[at] <= age:
                joined[born[at] % size] = max(0.0, joined[born[at] % size] - amount)
            elif part == 1.0:
                if before[at] >= 0:
                    after[before[at]] = after[at]
                else:
                    first_to_join[(born[at] + outlasts[at]) % size] = after[at]
                if after[at] >= 0:
                    before[after[at]] = before[at]
            if not tabled:
                place = born[at] % block
                for g in range(n_pages):
                    turning[g * block + place] -= amount * page_present[g * size + stage]
            in_flight -= amount * present[stage]
            read -= amount * context
            gone += amount * present[stage]
            gone_prompts += amount * s.prompt[stage]
            if pooled == slots:
                return 0
            moved += 1
            pool_scale[pooled], pool_outlasts[pooled] = amount, stage
            pooled += 1
            if part < 1.0:
                scale[at] -= amount
                held = capacity
            else:
                held -= memory
                top -= 1
        room, free = capacity - held, seats - in_flight
        while gone == 0.0 and room > least_room and free > least_seats:
            stage = pool_outlasts[pooled - 1] if pooled > 0 else 0
            part = min(room / start_held[stage], free / present[stage])
            if pooled > 0:
                part = min(part, pool_scale[pooled - 1])
                pool_scale[pooled - 1] -= part
                if pool_scale[pooled - 1] <= 0.0:
                    pooled -= 1
            in_flight += part * present[stage]
            free -= part * present[stage]
            room -= part * start_held[stage]
            read += part * start_read[stage]
            if not tabled:
                for g in range(n_pages):
                    turning[g * block + in_page] += part * page_present[g * size + stage]
            if top - bottom == slots:
                return 0
            moved += 1
            at = top % slots
            top += 1
            scale[at], outlasts[at], born[at], before[at], after[at] = part, stage, now, -1, -1
            if stage > 0:
                due = (now + stage) % size
                after[at] = first_to_join[due]
                if after[at] >= 0:
                    before[after[at]] = at
                first_to_join[due] = at
            else:
                joined[here] += part
            held = capacity - room
        s.throughput[now] = done_work
        s.completed[now] = done
        s.evicted[now] = gone
        s.evicted_prompts[now] = gone_prompts
        s.in_flight[now] = in_flight
        s.held_tokens[now] = held
        s.read_tokens[now] = read
        if moved > s.sizes[6]:
            return now + 1
    return int(s.sizes[5])


@cache
def compiled() -> Callable[[_State], int]:
    """`iterate` as machine code, kept on disk where that is possible."""
    file = compiling.file("fluid-map", [sys.modules[__name__]])
    found = compiling.compiled(iterate, _State, file, {})
    assert found is not None
    return found


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

    Examples
    --------
    From empty, everything comes in at once, grows, and is trimmed to the worst cycle, M/(d(s+d)) an iteration:

    >>> lone = fluid_map(Weights(np.array([3.0]), np.array([3])), np.ones(1), np.array([2.0]), 12.0)
    >>> run(lone, np.zeros(3), 7).completed.round(3).tolist()
    [0.0, 0.0, 0.0, 2.4, 0.0, 0.0, 2.4]
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
    """Before the first iteration, with room for so many layers, which may move so often."""
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

    links = np.zeros(layers, dtype=np.int64)
    counts = share.size, size, layers, offsets.size, block, iterations, moves
    state = _State(
        sizes=np.array(counts),
        limits=np.array([system.capacity, system.seats]),
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
        page_present=page_present,
        page_base=page_base,
        offsets=offsets,
        held_table=held_table,
        read_table=read_table,
        masses=masses.astype(np.float64),
        scale=np.zeros(layers),
        outlasts=links.copy(),
        born=links.copy(),
        before=links.copy(),
        after=links.copy(),
        first_to_join=np.full(size, -1, dtype=np.int64),
        joined=np.zeros(size),
        turning=np.zeros(offsets.size * block),
        pool_scale=np.zeros(layers),
        pool_outlasts=links,
        **{name: np.zeros(iterations) for name in Run._fields},
    )
    return _State._make(map(np.ascontiguousarray, state))


def collapsed_starts(system: FluidMap) -> list[FloatArray]:
    """States from which greedy admission may not recover: masses of cohorts at stage 0, 1, …, each of shape (L,).

    Everything at stage 0; a disturbed equilibrium; pulses at the periods gcd, shortest, mean and half of the longest.
    All fill memory, or the seats (theory §3, "Finite memory").
    """
    size, stages = system.size, system.weights.stages
    kv, present = system.weights.survival(system.share), survival(stages, system.share)
    stage = np.arange(size, dtype=np.float64)
    disturbed = 1 + _DISTURBANCE * (2 * ((stage + 1) * _INCOMMENSURABLE % 1.0) - 1)
    mean = float(system.share @ stages)
    periods = {int(np.gcd.reduce(stages)), int(stages.min()), round(mean), size // 2} - {0, 1}
    shapes = [disturbed, *((stage % period == 0).astype(np.float64) for period in sorted(periods | {size}))]
    return [m * min(system.capacity / float(m @ kv), system.seats / float(m @ present)) for m in shapes]


class Cycle(NamedTuple):
    """A limit cycle of the saturated map: means an iteration, in requests and tokens.

    `throughput` counts completions by their footprint (`Run`): it is that of the mix as offered. `phases` are the
    requests in flight and the context read in each iteration of a pulse cycle, whose admissions all come in the first;
    empty where they are not known. `iterations` is how long the map ran, None where a formula gives the cycle.
    `settled`: the run came to repeat itself, or its mean throughput came to rest.
    """

    throughput: float
    evictions: float
    evicted_prompts: float
    in_flight: float
    read_tokens: float
    period: int | None
    phases: tuple[tuple[float, float], ...] = ()
    iterations: int | None = None
    settled: bool = True

    def prefill_tokens(self, mix: Mix) -> float:
        """Prompt tokens computed in an iteration: whatever completes or is evicted is admitted, again."""
        return self.throughput * float(mix.mean(mix.prefill_tokens)) + self.evicted_prompts

    def of_memory(self, tokens: float) -> "Cycle":
        """The same of so many times the memory, and as many times the seats, where there are no phases."""
        return self._replace(
            throughput=self.throughput * tokens,
            evictions=self.evictions * tokens,
            evicted_prompts=self.evicted_prompts * tokens,
            in_flight=self.in_flight * tokens,
            read_tokens=self.read_tokens * tokens,
        )


def usual_iterations(longest: int) -> int:
    """Iterations after which a map of requests that stay so long has mostly settled (theory §3, "As validated")."""
    return max(min(max(40 * longest, 4_000), 60_000), 4 * longest)


def find_attractor(system: FluidMap, masses: FloatArray, max_steps: int | None = None) -> Cycle:
    """Run the map from cohorts of the given masses, shape (L,), and look where it settles.

    It mostly has after some 40·L iterations (theory §3, "As validated"), within a budget of `max_steps` iterations
    times rows (None: `MAX_STEPS`), of moves of layers and of iterations; what the budget cuts short is not settled.
    Where it has not, it runs longer, from the start again, within half the budget.
    """
    usual, steps = usual_iterations(system.size), max_steps or MAX_STEPS
    most = min(steps // system.cost, _MOST_ITERATIONS)

    def tried(iterations: int) -> Cycle:
        history = run(system, masses, iterations, max_steps=steps)
        found = _second_half(system, history)
        return found if history.completed.size == iterations else found._replace(settled=False)

    if usual > most:
        return tried(max(most // _UNSETTLED, 2))._replace(settled=False)
    iterations, found = usual, tried(usual)
    for _ in range(_DOUBLINGS):
        if found.settled or found.iterations != iterations or most // 2 < _LONGER * iterations:
            break
        iterations = min(2 * iterations, most // 2)
        found = tried(iterations)
    return found


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
        in_flight=means["in_flight"],
        read_tokens=means["read_tokens"],
        period=period,
        iterations=iterations,
        settled=settled,
    )


def find_period(series: FloatArray, tolerance: float) -> int | None:
    """Smallest shift under which the last half of a series repeats what came before, or None.

    Examples
    --------
    >>> find_period(np.tile([0.0, 0.0, 2.4], 20), 1e-9)
    3
    >>> find_period(np.arange(20.0), 1e-9) is None
    True
    """
    half = series.size // 2
    tail = series[half:]
    shifts = np.arange(1, half + 1)
    # Weed out shifts at a few points first: the highest, for series of rare pulses, and some in between.
    probes = np.concatenate(
        [np.argsort(tail)[-_PROBES:], np.arange(tail.size - 1, -1, -max(1, half // _PROBES))]
    )
    for probe in half + probes:
        shifts = shifts[np.abs(series[probe - shifts] - series[probe]) <= tolerance]
    for shift in shifts:
        if np.abs(tail - series[half - shift : series.size - shift]).max() <= tolerance:
            return int(shift)
    return None
