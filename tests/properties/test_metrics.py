"""Figures against slow exact ones, and how often intervals from one run cover the truth."""

import math
import statistics
from collections.abc import Callable, Sequence
from fractions import Fraction
from functools import cache
from typing import Any

import numpy as np
import pytest
from every import every
from hypothesis import given
from hypothesis import strategies as st
from runs import NAN, a_run, a_series, one_server

from kvplan.model import FloatArray
from kvplan.simulation.estimates import Interval, Times, batch_edges, over_runs
from kvplan.simulation.metrics import PolicyResult, policy_result
from kvplan.simulation.outcome import Ending, Outcome
from kvplan.simulation.requests import Requests

REPETITIONS = 300
COVERED = 0.88  # of intervals with a nominal 95 %

SHARES = {"p50": Fraction(1, 2), "p95": Fraction(95, 100), "p99": Fraction(99, 100)}


def result_of(*runs: tuple[Requests, Outcome], names: tuple[str, ...] = (), **given: Any) -> PolicyResult:
    return policy_result("greedy", {}, runs, names, **({"horizon_s": None, "saturated": False} | given))


def slow_quantile(values: Sequence[float], share: Fraction) -> float:
    """Linear between the order statistics on both sides of rank share·(n - 1), exactly."""
    ordered = sorted(Fraction(v) for v in values)
    rank = share * (len(ordered) - 1)
    below = math.floor(rank)
    above = min(below + 1, len(ordered) - 1)
    return float(ordered[below] + (rank - below) * (ordered[above] - ordered[below]))


def slow_latency(values: Sequence[float]) -> dict[str, float | None]:
    if not values:
        return dict.fromkeys(("mean", *SHARES))
    quantiles = {key: slow_quantile(values, share) for key, share in SHARES.items()}
    return {"mean": statistics.fmean(values), **quantiles}


ROWS = st.tuples(
    st.floats(1e-3, 1e3),  # until the first token
    st.floats(0, 1e3),  # from then to the last
    st.integers(1, 50),  # decode length
    st.integers(0, 2),  # class
    st.sampled_from(["done", "done", "done", "running", "waiting"]),
)


@st.composite
def runs(draw: st.DrawFn) -> tuple[Requests, Outcome]:
    rows = draw(st.lists(ROWS, max_size=40))
    arrival = np.cumsum(draw(st.lists(st.floats(0, 10), min_size=len(rows), max_size=len(rows))))
    wait, decoding = (np.array([row[i] for row in rows]) for i in (0, 1))
    ending = draw(st.sampled_from(Ending))
    state = np.array(["done" if ending is Ending.FINISHED else row[4] for row in rows], dtype=str)
    first = np.where(state == "waiting", NAN, arrival + wait)
    finish = np.where(state == "done", arrival + wait + decoding, NAN)
    records = draw(st.sampled_from([0, 1, 30, 250]))
    held = draw(st.lists(st.integers(0, 99), min_size=records, max_size=records))
    series = a_series(
        np.arange(1.0, records + 1),
        kv_tokens=held,
        waiting=held,
        evictions=np.cumsum(held),
        completions=np.cumsum(held),
    )
    return a_run(
        arrival,
        first,
        finish,
        decode=[row[2] for row in rows],
        class_index=[row[3] for row in rows],
        ending=ending,
        end_s=float(np.nanmax(np.concatenate((arrival, finish)), initial=records)),
        iterations=records,
        kv_peak=max(held, default=0),
        kv_histogram=np.bincount(np.array(held, dtype=np.int64), minlength=1) * 10**9,
        series=series,
    )


@given(runs())
def test_latencies_are_those_of_a_slow_recomputation(run: tuple[Requests, Outcome]) -> None:
    requests, outcome = run
    result = result_of(run, names=("a", "b", "c"))
    for index, block in ((None, result), *enumerate(result.classes)):
        done = [
            i
            for i in range(outcome.finish_s.size)
            if not math.isnan(outcome.finish_s[i]) and index in (None, requests.class_index[i])
        ]
        several = [i for i in done if requests.decode_tokens[i] > 1]
        arrival, first, finish = outcome.arrival_s, outcome.first_token_s, outcome.finish_s
        tpot = [float((finish[i] - first[i]) / (requests.decode_tokens[i] - 1)) for i in several]
        assert block.figures["completed"] == len(done)
        for name, values in (
            ("ttft_s", [float(first[i] - arrival[i]) for i in done]),
            ("tpot_s", tpot),
            ("e2e_s", [float(finish[i] - arrival[i]) for i in done]),
        ):
            for key, expected in slow_latency(values).items():
                assert block.figures[f"{name}.{key}"] == (
                    None if expected is None else pytest.approx(expected, rel=1e-9, abs=1e-9)
                )


@given(st.lists(st.floats(0, 1e6), min_size=2, max_size=30))
def test_the_interval_over_runs_is_the_textbook_one(values: list[float]) -> None:
    from scipy import stats

    error = statistics.stdev(values) / math.sqrt(len(values))
    half_width = stats.t.ppf(0.975, len(values) - 1) * error
    mean = statistics.fmean(values)
    if half_width <= 1e-9 * mean:
        assert over_runs(values) is None
        return
    expected = (max(mean - half_width, 0.0), mean + half_width)
    assert over_runs(values) == pytest.approx(expected, rel=1e-9, abs=1e-6)


def lognormal_chain(n: int, correlation: float, random: np.random.Generator) -> FloatArray:
    """exp of a first-order autoregression with standard normal marginals: correlated and skewed."""
    from scipy.signal import lfilter

    start = 1000
    noise = random.normal(size=n + start)
    normal = lfilter([math.sqrt(1 - correlation**2)], [1, -correlation], noise)
    return np.exp(normal[start:])


def coverage(interval: Callable[[np.random.Generator], Interval | None], truth: float) -> float:
    """Share of the intervals that cover the truth; most must exist."""
    random = np.random.default_rng(12)
    return share_covering([interval(random) for _ in range(REPETITIONS)], truth)


def share_covering(found: list[Interval | None], truth: float) -> float:
    known = [ends for ends in found if ends is not None]
    assert len(known) >= 0.9 * REPETITIONS
    return sum(low <= truth <= high for low, high in known) / len(known)


@pytest.mark.parametrize(("n", "correlation"), [(1000, 0.0), (4000, 0.5), (10_000, 0.9)])
@pytest.mark.parametrize("figure", ["mean", "p50", "p95", "p99"])
def test_intervals_of_a_mean_and_of_percentiles_cover_them(n: int, correlation: float, figure: str) -> None:
    def interval(random: np.random.Generator) -> Interval | None:
        estimate = Times([lognormal_chain(n, correlation, random)], [batch_edges(n)]).estimate(figure)
        assert estimate is not None
        return estimate.ends

    law = statistics.NormalDist()
    truth = 0.5 if figure == "mean" else law.inv_cdf(float(SHARES[figure]))
    assert coverage(interval, math.exp(truth)) >= COVERED


RATE, SERVICE_S, N, HORIZON_S = 0.6, 1.0, 3000, 5000.0


@cache
def of_queues(horizon_s: float | None) -> list[dict[str, Interval | None]]:
    """Intervals of many runs of an M/D/1 queue, to the last request or a horizon."""
    random, size = np.random.default_rng(12), N if horizon_s is None else 2 * N
    runs = (
        one_server(np.cumsum(random.exponential(1 / RATE, size)), np.full(size, SERVICE_S), end_s=horizon_s)
        for _ in range(REPETITIONS)
    )
    return [result_of(run, horizon_s=horizon_s).ci95 for run in runs]


@every(
    ("key", "truth"),
    [
        ("makespan_s", N / RATE),
        ("throughput_rps", RATE),
        ("decode_tokens_per_s", 2 * RATE),
        ("kv_tokens.mean", RATE + RATE**2 / (2 * (1 - RATE))),
        ("e2e_s.mean", SERVICE_S + RATE * SERVICE_S / (2 * (1 - RATE))),
    ],
)
def test_one_run_to_the_last_request_covers_the_truth_of_an_md1_queue(key: str, truth: float) -> None:
    """Pollaczek-Khinchine with constant service."""
    assert share_covering([ci95[key] for ci95 in of_queues(None)], truth) >= COVERED


def test_one_run_covers_the_goodput_of_an_md1_queue() -> None:
    """A share 1 - ρ of requests finds nobody there, and takes the time of its service."""
    random = np.random.default_rng(13)
    found = [
        result_of(
            one_server(np.cumsum(random.exponential(1 / RATE, N)), np.full(N, SERVICE_S)),
            limits={"e2e_s": SERVICE_S + 1e-6},
        ).ci95["goodput_rps"]
        for _ in range(REPETITIONS)
    ]
    assert share_covering(found, RATE * (1 - RATE * SERVICE_S)) >= COVERED


def test_the_99th_percentile_of_memory_covers_the_truth() -> None:
    """Memory that follows a correlated chain, every iteration recorded."""

    def interval(random: np.random.Generator) -> Interval | None:
        held = (100 * lognormal_chain(4000, 0.8, random)).astype(np.int64)
        run = a_run(
            [],
            [],
            [],
            iterations=held.size,
            kv_peak=int(held.max()),
            kv_histogram=np.bincount(held // 4) * 10**9,
            bin_tokens=4,
            end_s=float(held.size),
            busy_s=float(held.size),
            series=a_series(np.arange(1.0, held.size + 1), kv_tokens=held),
        )
        return result_of(run).ci95["kv_tokens.p99"]

    assert coverage(interval, 100 * math.exp(statistics.NormalDist().inv_cdf(0.99))) >= COVERED
