"""WAIT: admission thresholds for classes whose decode lengths are known (theory §5).

WAIT keeps up to n_i requests of class i at every stage and runs a class only once n_i of it are waiting. It keeps
up with arrivals when an iteration with everything aboard, ΔT(n), is shorter than n_i/λ_i for every class. Small
thresholds wait little and spend little memory; large ones spread the fixed cost d0 over more requests.

A class with several decode lengths enters at the mean of its footprint and iterations. Where rates vary over time,
λ_iΔT gives way to the most arrivals in any window of length ΔT (WAIT 7.1).
"""

import math
from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np

from kvplan.analysis.admission import mean_queue
from kvplan.analysis.dispersion import batch_wait_s
from kvplan.analysis.equilibrium import iteration_time, per_request, prompts_of
from kvplan.analysis.worst_window import Windows, at_rates, class_windows
from kvplan.model import FloatArray, ServingModel, Timing
from kvplan.solve import boundary, first_of_steps

# λ_i ΔT this close below a whole number counts as having reached it: rounding can then never report a threshold
# that does not satisfy ΔT < n_i/λ_i strictly.
GUARD = 1 + 1e-12

_TOO_CLOSE = 1e-9  # to a work rate of 1, for a bound that is only there to save steps
_MAX_STEPS = 2_000  # of the fixed-point iteration; after that: feasible, but perhaps not the smallest
_LOWERING_STEPS = 65
_GROWTH, _LONGEST_S = 1.02, 1e18  # of the search for a feasible time under a law that is not linear
_DIAL_ROWS = 5
_EXACT_QUEUE_BELOW = 100_000  # the exact queue takes one complex root per unit of the threshold


class ClassWait(NamedTuple):
    """One class under its smallest threshold; numbers None where Λ >= 1."""

    name: str
    threshold: int | None  # n_i, requests kept at every stage
    # before the first iteration; exact for a single class; None where arrivals are not those of a law
    mean_wait_bound_s: float | None
    # that wait, one interval n_i/λ_i for every further iteration, ΔT, and time outside the engine
    latency_s: float | None
    # variance over mean of its arrivals in long times, that of Poisson arrivals at least for several classes
    dispersion: float | None


class DialRow(NamedTuple):
    """One setting of the throughput-latency dial, thresholds n = t·λ (not rounded)."""

    interval_s: float  # t, in which n_i requests of class i arrive; the same for every class
    iteration_time_s: float  # ΔT at t
    kv_tokens: float  # Σ n_i S_i
    throughput_rps: float  # largest total rate that these thresholds keep up with, tΣλ/ΔT
    latency_s: float  # mean of t/2 + (iterations - 1)·t + ΔT, and of time outside the engine
    # exactly what is offered: queues have no drift back, and grow as the square root of time
    zero_drift: bool


class Overload(NamedTuple):
    """The largest thresholds that memory holds, n = t·λ (not rounded); nothing where the smallest whole ones fit."""

    running: float | None = None  # requests with them filled, B = tΣλn̄
    thresholds: tuple[float, ...] | None = None
    throughput_rps: float | None = None  # largest total rate that they keep up with
    simulated_rps: float | None = None  # served at the offered rates with whole thresholds, at least 1 ...
    simulated_rps_ci95: tuple[float, float] | None = None
    simulated_shares: tuple[float, ...] | None = None  # of the classes in that

    @property
    def whole(self) -> tuple[int, ...]:
        """Whole thresholds, rounded down, at least 1: what policies take."""
        return tuple(max(1, math.floor(n * GUARD)) for n in self.thresholds or ())


class Beats(NamedTuple):
    """Whether thresholds by predicted length beat nested ones, by runs; None where no predictions are asked about."""

    at_best: bool | None = None  # with right predictions
    from_accuracy: float | None = None


class Wait(NamedTuple):
    """WAIT thresholds of a model: the report's `wait` block, and more."""

    feasible: bool
    thresholds: tuple[int, ...] | None
    iteration_time_s: float | None
    kv_tokens: float | None
    fits: bool
    classes: tuple[ClassWait, ...]
    max_thresholds: tuple[int, ...] | None  # None where not even the smallest fit
    # `thresholds` are proved to be the smallest. False only where Λ is so close to 1 that the search was cut short:
    # they are then feasible, and fail just below.
    smallest: bool | None
    dial: tuple[DialRow, ...]  # empty where the equilibrium does not fit
    # rates vary: thresholds are for the worst window, the dial for the largest rates, waits bounds for the mean
    worst_window: bool
    overload: Overload
    beats_nested: Beats = Beats()


class ClassMeans(NamedTuple):
    """Mean costs of one request of each class; arrays of shape (n_classes,)."""

    rate_rps: FloatArray
    # added to iterations by one request in all, in proportion to what it reads and computes
    work_s: FloatArray
    held: FloatArray  # KV token-iterations, in whole pages
    iterations: FloatArray
    prefill_tokens: FloatArray
    timing: Timing

    def fixed_s(self, thresholds: FloatArray) -> float:
        """Time of an iteration with every threshold filled beside `work_s`; it never falls as they grow."""
        prefill, sequences = float(thresholds @ self.prefill_tokens), float(thresholds @ self.iterations)
        return float(self.timing.fixed(prefill, sequences))

    def iteration_time_s(self, thresholds: FloatArray) -> float:
        """ΔT(n), the time of an iteration with every threshold filled."""
        return self.fixed_s(thresholds) + float(thresholds @ self.work_s)


def class_means(model: ServingModel) -> ClassMeans:
    """Mean costs of one request of each class (theory §1, §2)."""
    mix, timing, rate = model.mix, model.timing, model.class_rates_rps
    weight = mix.rate_rps / rate[mix.class_index]
    linear = timing.linear(mix.context, mix.prefill_tokens, mix.sequences, mix.prefill_pairs)
    return ClassMeans(
        rate_rps=rate,
        work_s=mix.of_classes(weight * linear),
        held=mix.of_classes(weight * mix.footprint),
        iterations=mix.of_classes(weight * mix.iterations),
        prefill_tokens=mix.of_classes(weight * mix.prefill_tokens),
        timing=timing,
    )


def smallest_thresholds(means: ClassMeans, windows: Windows | None = None) -> tuple[FloatArray, bool] | None:
    """Smallest whole thresholds n_i > λ_i·ΔT(n), ΔT(n) = fixed(n) + Σ n_i c_i: the least fixed point.

    n_i ← ⌊λ_i ΔT(n)⌋ + 1 from 0 stays below every feasible whole vector and ends on the least, but slowly when
    Λ = Σ λ_i c_i is near 1. Every step here first raises ΔT to the least solution of
    T = fixed(n) + Σ c_i max(n_i, λ_i T), which lies below the ΔT of every feasible vector above n as well: any such
    ΔT satisfies T >= fixed(n) + Σ_A c_i λ_i T + Σ_rest c_i n_i for every set A of classes, and the best A is a prefix
    of the classes in order of n_i/λ_i.

    With `windows`, one stream for each class where rates vary, λ_i·T is the most that arrives in any window of length
    T, W_i(T). Thresholds then exist where the mean rates leave time to spare, since W_i(T) is at most λ_i·T for the
    mean rate λ_i and a constant; and the step is made for the mean rates, which W_i exceeds, and up to some length for
    rates close to the largest.

    Returns whole thresholds, and whether they are the least. None where Λ >= 1, to 1e-12, or where a law that is not
    linear outgrows the arrivals: no thresholds exist.

    References
    ----------
    WAIT-s eq. 7, Theorem 4.1; the least whole vector, the accelerated step and other laws new, theory §5.
    """
    rate, work = means.rate_rps * GUARD, means.work_s
    if not float((rate * work).sum()) < 1:
        return None
    arrivals = _arrivals(rate, windows)
    thresholds = np.zeros(rate.size)
    for _ in range(_MAX_STEPS):
        fixed = means.fixed_s(thresholds)
        time = _least_time(thresholds, rate, work, fixed)
        if windows is not None:
            time = max(time, _least_ramp_time(thresholds, windows, work, fixed))
        raised = np.maximum(thresholds, np.floor(arrivals(time)) + 1)
        if np.array_equal(raised, thresholds):
            return thresholds, True
        if time > _LONGEST_S:
            return None
        thresholds = raised
    enough = _long_enough(means, windows, thresholds)
    return None if enough is None else (np.floor(arrivals(enough)) + 1, False)


def _arrivals(rate: FloatArray, windows: Windows | None) -> Callable[[float], FloatArray]:
    """Most arrivals of each class in a window, by its length; a little more, as `rate` is."""
    if windows is None:
        return lambda time: rate * time
    return lambda time: windows.most_in(time) * GUARD


def _long_enough(means: ClassMeans, windows: Windows | None, below: FloatArray) -> float | None:
    """Find a time T in which what arrives is done: ΔT(⌊λT⌋ + 1) <= T; None where there is none."""
    rate, work = means.rate_rps * GUARD, means.work_s
    if means.timing.is_linear:
        # d0 + Λ·T + Σc = T is feasible, with what windows hold beyond the mean rates: less than a period's worth
        most = 0.0 if windows is None else float(windows.peak_rps @ work) * windows.period_s * GUARD
        return (means.fixed_s(below) + float(work.sum()) + most) / (1 - float(rate @ work))
    arrivals = _arrivals(rate, windows)

    def lasts(time: float) -> bool:
        return means.iteration_time_s(np.floor(arrivals(time)) + 1) <= time

    return first_of_steps(lasts, means.iteration_time_s(below), _GROWTH, _LONGEST_S)


def _least_time(thresholds: FloatArray, rate: FloatArray, work_s: FloatArray, fixed_s: float) -> float:
    """Least T = fixed + Σ c_i max(n_i, λ_i T), rounded down, and never below fixed + Σ c_i n_i."""
    order = np.argsort(thresholds / rate, kind="stable")
    filled = (thresholds * work_s)[order]
    slope = np.cumsum((rate * work_s)[order])
    rest = np.append(np.cumsum(filled[::-1])[::-1][1:], 0.0)
    free = 1 - slope
    jump = (fixed_s + rest) / free * (1 - 1e-14 / free)
    return max(float(jump.max()), fixed_s + float(filled.sum()))


def _least_ramp_time(thresholds: FloatArray, windows: Windows, work_s: FloatArray, fixed_s: float) -> float:
    """Least time for the rates of the steepest windows, as far as they hold: up to that length."""
    rate = windows.ramp_rps * GUARD
    load = float(rate @ work_s)
    if load > 1 - _TOO_CLOSE:
        return windows.ramp_s if load > 1 + _TOO_CLOSE else 0.0
    return min(_least_time(thresholds, rate, work_s, fixed_s), windows.ramp_s)


def largest_thresholds(
    smallest: FloatArray, means: ClassMeans, memory_tokens: float, windows: Windows | None = None
) -> FloatArray | None:
    """Largest whole thresholds along n = t·λ, namely ⌊t·λ_i⌋ + 1, that fit memory and keep up; None where none fit.

    With `windows` t·λ_i is the most that arrives in any window of length t. The smallest thresholds lie on that line
    (t = ΔT), as do those of every multiple of the rates. Memory grows with t, and a large enough t keeps up where the
    law is linear; only just above the smallest thresholds may rounding leave some t that fit but do not keep up, and
    then t is lowered in small steps (WAIT-s eq. 7; whole thresholds new, theory §5).
    """
    if float(smallest @ means.held) > memory_tokens:
        return None

    arrivals = _arrivals(means.rate_rps, windows)
    safely = _arrivals(means.rate_rps * GUARD, windows)

    def at(interval: float) -> FloatArray:
        return np.asarray(np.maximum(np.floor(arrivals(interval)) + 1, smallest))

    least = low = means.iteration_time_s(smallest)
    high = max(low, memory_tokens / float(means.rate_rps @ means.held))
    low, _ = boundary(lambda interval: float(at(interval) @ means.held) > memory_tokens, low, high)
    for interval in np.geomspace(low, least, _LOWERING_STEPS).tolist():
        thresholds = at(interval)
        if (safely(means.iteration_time_s(thresholds)) < thresholds).all():
            return thresholds
    return smallest


def queue_at_start(arrivals: float, threshold: int, *, alone: bool, dispersion: float = 1.0) -> float:
    """Mean number waiting when an iteration starts, those it admits included; Poisson arrivals if `alone`.

    Of one class (one length) that has the replica to itself exactly n + E[Q] with Q' = (Q + Poisson(a) - n)⁺, a < n the
    mean arrivals during an iteration. Otherwise the bound 2n + I·a/(2(n - a)), I the index of dispersion in long times;
    n + a/(2(n - a)) is not one, since a class also waits out iterations it has no part in (WAIT-s Lemma C.6 and
    Kingman's inequality; the exact queue new, theory §5).

    Examples
    --------
    >>> queue_at_start(0.5, 1, alone=True), queue_at_start(0.5, 1, alone=False)
    (1.25, 2.5)
    """
    # near Λ = 1 floats may not tell the two apart
    kingman = arrivals / (2 * max(threshold - arrivals, math.ulp(float(threshold))))
    if not alone:
        return 2 * threshold + dispersion * kingman
    return threshold + (
        mean_queue(arrivals, threshold) if arrivals < threshold < _EXACT_QUEUE_BELOW else kingman
    )


def mean_wait(
    rate_rps: float,
    iteration_time_s: float,
    threshold: int,
    *,
    alone: bool,
    arrivals: float | None = None,
    dispersion: float = 1.0,
) -> float:
    """Mean wait before the first iteration, seconds: exact for one class, a bound for several.

    Requests of one class with gamma gaps wait until n are there, (n - 1)/2λ on average, and then for the batches before
    theirs. Of Poisson arrivals the queue W at the start of an iteration has, over a cycle, the time average
    E[W] - (n + 1)/2 (its second moment is the same at both ends of the cycle), and Little's law turns it into a wait.
    With n = 1 that is Pollaczek and Khinchine's λΔT²/(2(1 - λΔT)). The bound for several classes holds at all times;
    where rates vary it needs the most that may arrive during an iteration, `arrivals`, and the mean rate.

    References
    ----------
    WAIT-s Lemma C.6; the exact wait new. The bound scaled by the index of dispersion is new and not proved: it held in
    all simulations of `wait` with gamma gaps of cv 0.3 to 5.

    Examples
    --------
    >>> mean_wait(2.0, 0.25, 1, alone=True)  # M/D/1 at half load: half a service time
    0.125
    """
    if alone and dispersion != 1:
        gathering = (threshold - 1) / (2 * rate_rps)
        return gathering + batch_wait_s(rate_rps, math.sqrt(dispersion), threshold, iteration_time_s)
    brought = rate_rps * iteration_time_s if arrivals is None else arrivals
    queue = queue_at_start(brought, threshold, alone=alone, dispersion=dispersion)
    return (queue - (threshold + 1) / 2 if alone else queue) / rate_rps


def dial(model: ServingModel) -> Iterator[DialRow]:
    """Throughput against latency along n = t·λ, from the equilibrium (t = τ*) to full memory (t = M/A).

    The first row keeps up with exactly what is offered, the last with all that memory can sustain. Empty where the
    equilibrium does not exist or does not fit (WAIT-s eq. 7; new, theory §5).
    """
    tau, cost, rate = iteration_time(model), per_request(model), model.total_rate_rps
    if tau is None or rate * cost.held * tau > model.replica.capacity_tokens:
        return
    longest = model.replica.capacity_tokens / (rate * cost.held)
    for interval in np.geomspace(tau, longest, _DIAL_ROWS).tolist():
        x = rate * interval
        fixed = model.timing.fixed(prompts_of(model.mix, model.replica, x), x * cost.iterations)
        iteration = fixed + rate * cost.work_s * interval
        yield DialRow(
            interval_s=interval,
            iteration_time_s=iteration,
            kv_tokens=rate * cost.held * interval,
            throughput_rps=rate * interval / iteration,
            latency_s=interval * (cost.iterations - 0.5) + iteration + model.request_overhead_s,
            zero_drift=interval == tau,
        )


def largest_held(means: ClassMeans, memory_tokens: float) -> Overload:
    """Thresholds n_j = B·λ_j/Σλn̄ that fill memory, and what they serve: MΣλ/(A·d0 + M·Λ) where the law is linear.

    References
    ----------
    WAIT 6, Remark 1 (l' + 1 iterations when `inline`); other footprints new.
    """
    thresholds = memory_tokens / float(means.rate_rps @ means.held) * means.rate_rps
    served = float(thresholds.sum()) / means.iteration_time_s(thresholds)
    return Overload(float(thresholds @ means.iterations), tuple(thresholds.tolist()), served)


def wait(model: ServingModel, *, arrivals_known: bool = True) -> Wait:
    """WAIT thresholds, their memory and their waits.

    Waits are those of the gaps of the model, Poisson or gamma. There are none where it replays a trace, nor where
    arrivals are not known, such as those of the next turn of a session, which follow its answers.

    References
    ----------
    WAIT-s eq. 7, Theorem 4.1; theory §5.

    Examples
    --------
    >>> from kvplan.model import Prefill, Replica, RequestClass, Timing
    >>> classes = tuple(RequestClass(f"{d}", 10, (d,), (1.0,), 1000.0) for d in (10, 20))
    >>> result = wait(ServingModel(classes, Timing(0.01, d1=1e-6), Replica(20_000, prefill=Prefill.INLINE)))
    >>> result.thresholds, result.kv_tokens, result.max_thresholds
    ((25, 25), 14625.0, (34, 34))
    """
    means, windows, capacity = class_means(model), class_windows(model), model.replica.capacity_tokens
    varies = windows is not None and windows.vary
    if windows is not None:
        means = means._replace(rate_rps=windows.mean_rps)
    smallest = smallest_thresholds(means, windows)
    if smallest is None:
        nothing = tuple(ClassWait(c.name, None, None, None, None) for c in model.classes)
        overload = largest_held(means, capacity)
        return Wait(False, None, None, None, False, nothing, None, None, (), varies, overload)
    thresholds, least = smallest
    iteration = means.iteration_time_s(thresholds)
    kv_tokens = float(thresholds @ means.held)
    largest = largest_thresholds(thresholds, means, capacity, windows)
    arrivals = means.rate_rps * iteration if windows is None else windows.most_in(iteration)
    alone = len(model.classes) == 1 and not varies
    known = arrivals_known and model.arrivals.trace is None
    classes = []
    for i, c in enumerate(model.classes):
        rate, n, before, latency, index = float(means.rate_rps[i]), int(thresholds[i]), None, None, None
        if known:
            # requests take their class at random; the bound for several takes those more regular for Poisson
            index = model.arrivals.split(float(means.rate_rps.sum() / rate)).cv ** 2
            index = index if alone else max(index, 1.0)
            brought = float(arrivals[i])
            before = mean_wait(rate, iteration, n, alone=alone, arrivals=brought, dispersion=index)
            steps = (float(means.iterations[i]) - 1) * n / rate
            latency = before + steps + iteration + model.request_overhead_s
        classes.append(ClassWait(c.name, n, before, latency, index))
    return Wait(
        feasible=True,
        thresholds=tuple(int(n) for n in thresholds),
        iteration_time_s=iteration,
        kv_tokens=kv_tokens,
        fits=kv_tokens <= capacity,
        classes=tuple(classes),
        max_thresholds=None if largest is None else tuple(int(n) for n in largest),
        smallest=least,
        dial=tuple(dial(model if windows is None else at_rates(model, windows.peak_rps))),
        worst_window=varies,
        overload=Overload() if kv_tokens <= capacity else largest_held(means, capacity),
    )
