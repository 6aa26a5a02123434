"""Published and derived laws, found again by simulating whole requests."""

import math
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from kvplan.analysis.equilibrium import iteration_time, load
from kvplan.analysis.overflow import safety_buffer, usage_scale
from kvplan.analysis.stability import stability
from kvplan.analysis.wait import queue_at_start
from kvplan.model import Plan, Prefill, Replica, RequestClass, ServingModel, Timing
from kvplan.simulation import engine
from kvplan.simulation.outcome import Ending, Outcome
from kvplan.simulation.policies import POLICIES
from kvplan.simulation.policies.protocol import Scenario, Settings
from kvplan.simulation.requests import Requests, poisson, saturated


def slots(memory: int, *lengths: tuple[int, int], rates: Sequence[float] | None = None) -> ServingModel:
    """The slot model of the papers: an iteration a second, prompts ready-made; (input, decode) of equal shares."""
    rates = rates or (1.0,) * len(lengths)
    classes = tuple(
        RequestClass(f"{s}/{d}", s, (d,), (1.0,), rate) for (s, d), rate in zip(lengths, rates, strict=True)
    )
    return ServingModel(classes, Timing(1.0), Replica(memory, prefill=Prefill.DISAGGREGATED))


def run(
    model: ServingModel,
    policy: str,
    requests: Requests,
    *,
    horizon_s: float | None = None,
    compile: bool | None = None,
    **settings: tuple[float, ...],
) -> Outcome:
    names = tuple(c.name for c in model.classes)
    setup, _ = POLICIES[policy].prepare(Scenario(model, Plan(), requests, names), Settings(policy, settings))
    return engine.run(
        POLICIES[policy].form_batch,
        requests,
        model.timing,
        model.replica,
        setup,
        horizon_s=horizon_s,
        compile=compile,
    )


def completions_per_iteration(outcome: Outcome) -> float:
    """Over the middle of a saturated run: neither filling up nor running dry."""
    done = outcome.series.completions
    low, high = done.size // 10, done.size // 2
    return float(done[high] - done[low]) / ((high - low) * outcome.series.stride)


# ------------------------------------------------------------------------------------- the saturated slot model


@pytest.mark.parametrize(("s", "d", "memory"), [(2, 3, 1500), (2, 4, 1800), (30, 20, 5000)])
def test_greedy_admission_settles_on_the_worst_cycle_of_one_length(s: int, d: int, memory: int) -> None:
    """SIC eq. 25: x_w = M/(d(s + d)) requests an iteration."""
    worst = memory / (d * (s + d))
    outcome = run(
        slots(memory, (s, d)), "greedy", saturated(slots(memory, (s, d)), requests=int(400 * worst))
    )
    assert completions_per_iteration(outcome) == pytest.approx(worst, rel=0.01)


def test_greedy_admission_keeps_the_pulse_of_lengths_two_and_four() -> None:
    """Theory §3: input 4, decode 2 and 4 in equal shares complete M/20 an iteration, not M/18.5."""
    model = slots(2000, (4, 2), (4, 4))
    outcome = run(model, "greedy", saturated(model, requests=40_000))
    assert completions_per_iteration(outcome) == pytest.approx(100, rel=0.01)
    assert outcome.evictions.sum() > 0


def test_coprime_lengths_of_long_inputs_stop_evicting() -> None:
    """Decode 2 and 3 with input 10: locally stable, and whole requests find the equilibrium from empty."""
    model = slots(2950, (10, 2), (10, 3))
    assert stability(model).stable
    outcome = run(model, "greedy", saturated(model, requests=30_000))
    evictions = outcome.series.evictions
    assert evictions[evictions.size // 2] == evictions[-1]
    full = 2950 / (0.5 * (11 + 12) + 0.5 * (11 + 12 + 13))
    assert completions_per_iteration(outcome) == pytest.approx(full, rel=0.015)


@pytest.mark.parametrize(("s", "d", "memory"), [(2, 3, 1500), (2, 4, 1800), (30, 20, 5000)])
def test_a_cap_at_the_equilibrium_serves_all_of_it_without_evictions(s: int, d: int, memory: int) -> None:
    """SIC 5.1: n* = M/Σ(s + k), and nothing is evicted once the first requests have left."""
    model = slots(memory, (s, d))
    full = memory / sum(s + k for k in range(1, d + 1))
    outcome = run(model, "rate-limited", saturated(model, requests=int(400 * full)))
    assert completions_per_iteration(outcome) == pytest.approx(full, rel=0.015)
    assert outcome.series.evictions[-1] == outcome.series.evictions[d - 1]


def test_the_trace_of_sic_example_1() -> None:
    """Input 2, decode 3, M = 24: stages (1, 1, 2) → (5, 1, 1) → (1, 4, 1)."""
    model = slots(24, (2, 3))
    arrival = np.array([0.0, 0.0, 1.0, 2.0] + [3.0] * 50)
    size = arrival.size
    requests = Requests(arrival, np.full(size, 2), np.full(size, 3), np.zeros(size, dtype=np.int64))
    series = run(model, "greedy", requests).series
    at = slice(2, 5)
    assert series.running[at].tolist() == [4, 7, 6]
    assert series.kv_tokens[at].tolist() == [3 + 4 + 2 * 5, 5 * 3 + 4 + 5, 3 + 4 * 4 + 5]
    assert series.completions[at].tolist() == [0, 2, 3]  # before those of the batch leave
    assert series.evictions[at].tolist() == [0, 0, 1]


# -------------------------------------------------------------------------------------------- SIC 6.1: backlogs

MEMORY, FULL, WORST = 600, 50.0, 40.0  # input 2, decode 3: n* and x_w requests an iteration of a second


def with_backlog(rate: float, backlog: int, horizon_s: float) -> tuple[ServingModel, Requests]:
    model = slots(MEMORY, (2, 3), rates=(rate,))
    fresh = poisson(model, np.random.default_rng(5), requests=None, horizon_s=horizon_s)
    arrival = np.concatenate([np.zeros(backlog), fresh.arrival_s])
    kind = np.zeros(arrival.size, dtype=np.int64)
    return model, Requests(arrival, np.full(arrival.size, 2), np.full(arrival.size, 3), kind)


@pytest.mark.parametrize("share", [0.85, 0.95])
def test_a_backlog_stays_under_greedy_admission_and_drains_under_the_cap(share: float) -> None:
    rate, horizon, backlog = share * FULL, 800.0, 1000
    model, requests = with_backlog(rate, backlog, horizon)
    greedy = run(model, "greedy", requests, horizon_s=horizon).series
    capped = run(model, "rate-limited", requests, horizon_s=horizon, beta=(FULL,)).series
    grows = (greedy.waiting[-1] - greedy.waiting[greedy.waiting.size // 2]) / (horizon / 2)
    assert grows == pytest.approx(rate - WORST, abs=1.5)
    assert capped.waiting[-1] < 0.3 * backlog


def test_below_the_worst_cycle_a_backlog_drains_by_itself() -> None:
    model, requests = with_backlog(0.7 * FULL, 1000, 800.0)
    series = run(model, "greedy", requests, horizon_s=800.0).series
    assert series.waiting[-series.waiting.size // 4 :].max() < 100


# ------------------------------------------------------------------------------------------------------- WAIT

TIMES = (100.0, 400.0, 1600.0, 6400.0)


def mean_waiting(threshold: int, seeds: int) -> np.ndarray:
    """Mean number waiting at TIMES: two requests a second, iterations of a second."""
    model = slots(10**6, (2, 2), rates=(2.0,))
    found = []
    for seed in range(seeds):
        requests = poisson(model, np.random.default_rng(seed), requests=None, horizon_s=TIMES[-1])
        series = run(
            model, "wait", requests, horizon_s=TIMES[-1], thresholds=(float(threshold),), compile=True
        ).series
        found.append(series.waiting[np.searchsorted(series.time_s, TIMES) - 1])
    return np.mean(found, axis=0)


def test_the_throughput_gap_of_wait_falls_as_the_theorem_says() -> None:
    """WAIT-s Theorem 4.1: the queue stays bounded above the equilibrium, the gap is O(1/T); at it, O(T^-1/2)."""
    slope = [np.polyfit(np.log(TIMES), np.log(1 + mean_waiting(n, 40)), 1)[0] for n in (3, 2)]
    assert abs(slope[0]) < 0.1
    assert 0.35 < slope[1] < 0.62


def test_the_queue_of_a_single_class_is_the_exact_one() -> None:
    model = slots(10**6, (2, 2), rates=(2.0,))
    requests = poisson(model, np.random.default_rng(3), requests=60_000, horizon_s=None)
    series = run(model, "wait", requests, thresholds=(3.0,), compile=True).series
    start = series.waiting[10:-10].mean() + 3  # those admitted included
    assert start == pytest.approx(queue_at_start(2.0, 3, alone=True), rel=0.03)


# ------------------------------------------------------------------------------------------------ Nested WAIT


@pytest.mark.parametrize(
    ("model", "thresholds", "iterations", "delta", "required"),
    [
        (
            ServingModel(
                tuple(
                    RequestClass(f"{d}", 2, (d,), (1.0,), rate) for d, rate in ((2, 4.0), (4, 3.0), (6, 3.0))
                ),
                Timing(1.0),
                Replica(10**6, prefill=Prefill.INLINE),
            ),
            (20.0, 13.0, 8.0),
            1000,
            0.1,
            696.79409,
        ),
        (
            ServingModel(
                tuple(
                    RequestClass(f"{d}", 10, (d,), (1.0,), rate)
                    for d, rate in ((20, 400.0), (40, 300.0), (80, 200.0), (160, 100.0))
                ),
                Timing(0.01, d1=1e-7),
                Replica(10**6, prefill=Prefill.INLINE),
            ),
            (17.0, 11.0, 6.0, 3.0),
            1000,  # of the ten thousand that the published 4,111 tokens are for
            0.01,
            64_290 + 900 + 4111.365 * math.log(3 * 1000 / 0.01) / math.log(3 * 10_000 / 0.01),
        ),
    ],
    ids=["three lengths", "four classes"],
)
def test_nested_wait_stays_within_its_memory(
    model: ServingModel, thresholds: tuple[float, ...], iterations: int, delta: float, required: float
) -> None:
    """WAIT-s Theorem 5.1 with the tokens corrected: the peak of 200 runs, at most a share δ of them above."""
    boundaries = tuple(float(c.decode_tokens[0]) for c in model.classes)
    held = np.array(
        [
            (d1 - d0) * (model.classes[0].input_tokens + (d0 + d1 + 1) / 2)
            for d0, d1 in zip((0.0, *boundaries), boundaries, strict=False)
        ]
    )
    held[0] += model.classes[0].input_tokens
    tau = model.timing.d0 + model.timing.d1 * float(held @ thresholds)

    def peak(seed: int) -> int:
        horizon = iterations * tau
        requests = poisson(model, np.random.default_rng(seed), requests=None, horizon_s=horizon)
        return run(
            model,
            "nested-wait",
            requests,
            horizon_s=horizon,
            compile=True,
            boundaries=boundaries,
            thresholds=thresholds,
        ).kv_peak

    with ThreadPoolExecutor(2) as pool:
        peaks = np.array(list(pool.map(peak, range(200))))
    assert np.count_nonzero(peaks > required) <= delta * 200
    assert peaks.max() > 0.5 * required


# ---------------------------------------------------------------------------------------------------- overflow


@pytest.mark.parametrize("work_rate", [0.1, 0.3, 0.5, 0.7, 0.9])
def test_usage_spreads_as_the_cluster_law_says(work_rate: float) -> None:
    """Theory §7: P(KV > M* + kσ) within 1.3 times, for the lengths of its table, nothing held back."""
    rate = 15 * work_rate
    model = ServingModel(
        (RequestClass("a", 1155, (211,), (1.0,), rate),),
        Timing(0.0145, d1=2.494767e-7),
        Replica(10**6, prefill=Prefill.INLINE),
    )
    assert load(model).work_rate == pytest.approx(work_rate, rel=1e-4)
    tau, scale = iteration_time(model), usage_scale(model)
    assert tau is not None
    std = safety_buffer(model, delta=0.01, horizon_s=3600).kv_std_tokens
    assert std is not None
    roomy = ServingModel(
        model.classes, model.timing, Replica(int(scale.mean + 25 * std), prefill=Prefill.INLINE)
    )
    seeds = range(2)

    def shares(seed: int) -> list[float]:
        requests = poisson(roomy, np.random.default_rng(seed), requests=None, horizon_s=1_500_000 * tau)
        outcome = run(roomy, "greedy", requests, compile=True)
        assert outcome.ending is Ending.FINISHED
        assert outcome.kv_peak < roomy.replica.memory_tokens - 2000
        above = np.cumsum(outcome.kv_histogram[::-1])[::-1] / outcome.iterations
        return [float(above[level_bin(k, outcome.bin_tokens)]) for k in (1, 2, 3)]

    def level_bin(k: int, width: int) -> int:
        return math.ceil((scale.mean + k * std) / width)

    with ThreadPoolExecutor(2) as pool:
        simulated = np.mean(list(pool.map(shares, seeds)), axis=0)
    width = roomy.replica.memory_tokens // (1 << 14) + 1
    for k, share in zip((1, 2, 3), simulated, strict=True):
        level = level_bin(k, width) * width - 1
        exact = ServingModel(model.classes, model.timing, Replica(level, prefill=Prefill.INLINE))
        formula = safety_buffer(exact, delta=0.01, horizon_s=3600).overflow_probability_per_iteration
        assert formula is not None
        assert share == pytest.approx(formula, rel={1: 0.1, 2: 0.2, 3: 0.45}[k]), k
