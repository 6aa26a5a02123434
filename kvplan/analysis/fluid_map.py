"""The fluid map: saturated greedy admission with continuous amounts of requests (SIC 2-3, theory §3).

One iteration: *execute* (everything in flight grows by a token; the last stage leaves), *evict* while memory
exceeds the capacity, least progressed first, *admit* what fits if nothing was evicted.

A cohort, all requests admitted in one iteration, is one number: its mass as admitted, trims applied. Memory grows
by the amount in flight and falls by whole groups of finishers, so an iteration costs O(distinct decode lengths),
whatever the lengths are. `iterate` is written in the subset of Python that numba compiles; short runs call it as it
is, on lists.
"""

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, NamedTuple

import numpy as np

from kvplan.model import FloatArray, IntArray, sum_by, survival, Weights

_COMPILE_ABOVE = 3_000_000  # inner steps; compiling pays off beyond about a second of plain Python
_PROBES = 32
_PERIOD_TOLERANCE = 1e-9  # of the eviction-free throughput, between one period and the next
_MEAN_TOLERANCE = 3e-5  # of the same, between a run and one twice as long
_INCOMMENSURABLE = 0.6180339887498949
_SETTLING = 200  # lengths of the longest request before a mean may be taken as at rest
MAX_ITERATIONS = 400_000
MAX_STEPS = 250_000_000


class FluidMap(NamedTuple):
    """A saturated replica as the map sees it.

    Attributes
    ----------
    capacity : float, tokens
    weight : ndarray, shape (L,), tokens
        KV held by one unit of aggregate admissions k iterations after it came in, W_k.
    present : ndarray, shape (L,)
        Share of it still there, q_k.
    leave_after : ndarray of int64, shape (n_lengths,)
        Distinct iteration counts, ascending.
    leave_share : ndarray, shape (n_lengths,)
        Share of the admissions that stays for each count.
    leave_weight : ndarray, shape (n_lengths,), tokens
        KV that share holds in its last stage.
    """

    capacity: float
    weight: FloatArray
    present: FloatArray
    leave_after: IntArray
    leave_share: FloatArray
    leave_weight: FloatArray

    @property
    def eviction_free_throughput(self) -> float:
        """n* = M/ΣW_k, requests per iteration."""
        return self.capacity / float(self.weight.sum())


def fluid_map(stages: IntArray, first_weight: FloatArray, share: FloatArray, capacity: float) -> FluidMap:
    """Set up the map for a mix.

    Parameters
    ----------
    stages, first_weight, share : ndarray, shape (n_rows,)
        Iterations n_i, KV tokens a_i at stage 0, share p_i of the admissions.
    capacity
        KV tokens.

    Examples
    --------
    >>> lone = fluid_map(np.array([3]), np.array([3.0]), np.array([1.0]), 12.0)
    >>> lone.weight.tolist(), lone.eviction_free_throughput
    ([3.0, 4.0, 5.0], 1.0)
    """
    leave_after, row = np.unique(stages, return_inverse=True)
    return FluidMap(
        capacity=float(capacity),
        weight=Weights(first_weight, stages).survival(share),
        present=survival(stages, share),
        leave_after=leave_after,
        leave_share=sum_by(row, share),
        leave_weight=sum_by(row, share * (first_weight + stages - 1)),
    )


class State(NamedTuple):
    """Cohorts in flight between two iterations.

    Attributes
    ----------
    mass : ndarray, shape (L,)
        Mass of the cohort admitted in iteration t, at index t mod L; 0 where none is left.
    clock
        Iterations done.
    """

    mass: FloatArray
    clock: int


def state_by_stage(masses: FloatArray) -> State:
    """The state with the given cohort mass at each stage, stage 0 first; shape (L,)."""
    size = masses.size
    return State(mass=np.ascontiguousarray(masses[::-1], dtype=np.float64), clock=size)


class Run(NamedTuple):
    """What happened in a run, iteration by iteration; arrays of shape (iterations,), in requests.

    `completed_by_length` sums the run, for each of the map's distinct iteration counts.
    """

    state: State
    completed_by_length: FloatArray
    completed: FloatArray
    evicted: FloatArray
    in_flight: FloatArray


def iterate(
    clock: Any,
    capacity: Any,
    weight: Any,
    present: Any,
    leave_after: Any,
    leave_share: Any,
    leave_weight: Any,
    mass: Any,
    born: Any,
    older: Any,
    completed_by_length: Any,
    completed: Any,
    evicted: Any,
    in_flight_after: Any,
) -> None:
    """Advance `mass` by one iteration for each entry of the last three arrays, which it fills.

    `born` and `older` are work space of the length of `mass`: the iteration each cohort came in, and the index of
    the next older cohort that is not empty, so that evictions reach the youngest at once. Completions are added to
    `completed_by_length` too.
    """
    size = len(weight)
    n_lengths = len(leave_after)
    kv = 0.0
    in_flight = 0.0
    youngest = -1
    for age in range(size - 1, -1, -1):
        index = (clock - 1 - age) % size
        if mass[index] > 0.0:
            kv += mass[index] * weight[age]
            in_flight += mass[index] * present[age]
            born[index] = clock - 1 - age
            older[index] = youngest
            youngest = index
    index = clock % size
    for step in range(len(completed)):
        now = clock + step
        left = 0.0
        freed = 0.0
        for j in range(n_lengths):
            source = index - leave_after[j]
            if source < 0:
                source += size
            leaving = mass[source] * leave_share[j]
            left += leaving
            completed_by_length[j] += leaving
            freed += mass[source] * leave_weight[j]
        mass[index] = 0.0
        in_flight -= left
        kv += in_flight - freed
        gone = 0.0
        while kv > capacity and youngest >= 0:
            age = now - born[youngest]
            if age >= size:
                youngest = -1
                break
            held = mass[youngest] * weight[age]
            if held > kv - capacity:
                cut = (kv - capacity) / weight[age]
                mass[youngest] -= cut
                gone += cut * present[age]
                kv = capacity
            else:
                gone += mass[youngest] * present[age]
                kv -= held
                mass[youngest] = 0.0
                following = older[youngest]
                # an index behind the list's end may have been taken over by a younger cohort
                if following >= 0 and born[following] >= born[youngest]:
                    following = -1
                youngest = following
        in_flight -= gone
        if gone == 0.0 and kv < capacity:
            admitted = (capacity - kv) / weight[0]
            mass[index] = admitted
            born[index] = now
            older[index] = youngest
            youngest = index
            in_flight += admitted
            kv = capacity
        completed[step] = left
        evicted[step] = gone
        in_flight_after[step] = in_flight
        index += 1
        if index == size:
            index = 0


@cache
def compiled() -> Callable[..., None]:
    """`iterate`, compiled by numba (a second once, then kept on disk where that is possible)."""
    import numba

    try:
        return numba.njit(iterate, cache=True, nogil=True)  # type: ignore[no-any-return]
    except RuntimeError:  # no folder to keep it in
        return numba.njit(iterate, nogil=True)  # type: ignore[no-any-return]


def run(system: FluidMap, state: State, iterations: int, *, compile_above: int | None = None) -> Run:
    """Run the map for a number of iterations from a state, which is left as it was.

    `compile_above` is the number of inner steps from which the compiled loop is used: less than by default pays off
    where many runs follow each other.

    Examples
    --------
    From empty, everything comes in at once, grows, and is trimmed to the worst cycle, M/(d(s+d)) an iteration:

    >>> lone = fluid_map(np.array([3]), np.array([3.0]), np.array([1.0]), 12.0)
    >>> history = run(lone, state_by_stage(np.zeros(3)), 7)
    >>> history.completed.round(3).tolist()
    [0.0, 0.0, 0.0, 2.4, 0.0, 0.0, 2.4]
    """
    size = system.weight.size
    parameters: Sequence[FloatArray | IntArray] = (
        system.weight,
        system.present,
        system.leave_after,
        system.leave_share,
        system.leave_weight,
    )
    work = (
        state.mass.copy(),
        np.zeros(size, dtype=np.int64),
        np.zeros(size, dtype=np.int64),
        np.zeros(system.leave_after.size),
        *np.zeros((3, iterations)),
    )
    if iterations * (system.leave_after.size + 4) > (
        _COMPILE_ABOVE if compile_above is None else compile_above
    ):
        compiled()(state.clock, system.capacity, *parameters, *work)
        mass, _, _, by_length, completed, evicted, in_flight = work
    else:
        lists = [a.tolist() for a in work]
        iterate(state.clock, system.capacity, *(a.tolist() for a in parameters), *lists)
        mass, _, _, by_length, completed, evicted, in_flight = (np.array(values) for values in lists)
    return Run(State(mass, state.clock + iterations), by_length, completed, evicted, in_flight)


def eviction_free_state(system: FluidMap, *, disturbance: float = 0.0) -> State:
    """The fixed point, n* at every stage, or one near it that still fills memory exactly.

    `disturbance` is the relative amplitude of an irregular but fixed pattern over the stages; no random numbers.
    """
    stage = np.arange(system.weight.size, dtype=np.float64)
    pattern = 2 * ((stage + 1) * _INCOMMENSURABLE % 1.0) - 1
    masses = 1 + disturbance * pattern
    return state_by_stage(masses * (system.capacity / float(masses @ system.weight)))


class Attractor(NamedTuple):
    """Where the map settles: means an iteration, over a period where there is one.

    `throughput` counts all completions, `mix_throughput` those of the mix as offered: the least, over the lengths, of
    completions over share. Evictions that reach beyond the shortest length hit only the longer ones, which then
    complete less than their share while the total can even exceed n*.
    `period` is None when none was found. `settled` says whether, within `iterations`, the run came to repeat itself
    or, on orbits that never do, its mean throughput came to rest while evictions went on.
    """

    throughput: float
    mix_throughput: float
    evictions: float
    in_flight: float
    period: int | None
    iterations: int
    settled: bool


def find_attractor(
    system: FluidMap,
    state: State,
    max_iterations: int | None = None,
    *,
    compile_above: int | None = None,
) -> Attractor:
    """Iterate until the completions repeat, their mean comes to rest, or the budget is spent.

    The budget is 400,000 iterations, fewer where an iteration has many decode lengths to look at; `compile_above`
    is that of `run`.
    """
    size = system.weight.size
    if max_iterations is None:
        max_iterations = min(MAX_ITERATIONS, MAX_STEPS // (system.leave_after.size + 4))
    scale = system.eviction_free_throughput
    block = min(max(4 * size, 256), max_iterations)
    done, previous = 0, float("inf")
    while True:
        history = run(system, state, block, compile_above=compile_above)
        state, done = history.state, done + block
        # evictions can take longer to repeat than completions: one series carries both
        both = history.completed + _INCOMMENSURABLE * history.evicted
        period = find_period(both, _PERIOD_TOLERANCE * scale)
        mean = float(history.completed[block // 2 :].mean())
        # without evictions nothing is at rest: a disturbance may still be growing
        evicting = float(history.evicted[block // 2 :].mean()) > _MEAN_TOLERANCE * scale
        rests = evicting and done > _SETTLING * size and abs(mean - previous) <= _MEAN_TOLERANCE * scale
        if period is not None or rests or done >= max_iterations:
            break
        block, previous = min(2 * block, max_iterations - done), mean
    measured = run(system, state, period or block, compile_above=compile_above)
    by_length = measured.completed_by_length / (system.leave_share * measured.completed.size)
    return Attractor(
        throughput=float(measured.completed.mean()),
        mix_throughput=float(by_length.min()),
        evictions=float(measured.evicted.mean()),
        in_flight=float(measured.in_flight.mean()),
        period=period,
        iterations=done,
        settled=period is not None or rests,
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
