"""Figures of runs small enough to work out by hand, their status, and intervals that are known."""

import json
import math
from dataclasses import fields, replace
from typing import Any

import numpy as np
import pytest
from every import every
from runs import NAN, a_run, a_series, counts, one_server
from tiers import at_night

from kvplan.simulation.estimates import FIGURES
from kvplan.simulation.experiments.study import record
from kvplan.simulation.metrics import CLASS_KEYS, KEYS, PolicyResult, RunStatus, policy_result
from kvplan.simulation.outcome import Ending, Found, Outcome
from kvplan.simulation.requests import Requests
from kvplan.simulation.state import GAPS, GAPS_IN_E, SHORTEST_GAP_S


def result_of(
    *runs: tuple[Requests, Outcome],
    names: tuple[str, ...] = ("a",),
    horizon_s: float | None = None,
    saturated: bool = False,
) -> PolicyResult:
    return policy_result("greedy", {}, runs, names, horizon_s=horizon_s, saturated=saturated)


def poisson(rate: float, n: int, seed: int) -> np.ndarray[Any, np.dtype[np.float64]]:
    return np.cumsum(np.random.default_rng(seed).exponential(1 / rate, n))


def by_hand(**changes: Any) -> tuple[Requests, Outcome]:
    """Three requests; the second evicted twice, the third still running when the clock stops."""
    given: dict[str, Any] = {
        "decode": (1, 5, 9),
        "class_index": (1, 0, 0),
        "ending": Ending.HORIZON,
        "end_s": 10.0,
        "iterations": 4,
        "evictions": counts(0, 2, 0),
        "recomputed_tokens": 25,
        "computed_tokens": 100,
        "busy_s": 6.0,
        "kv_peak": 39,
        "queue_peak": 2,
        "request_overhead_s": 0.25,
        "kv_histogram": counts(1, 1, 2, 2) * 10**9,
        "bin_tokens": 10,
        "series": a_series(np.array([2.0, 10.0]), waiting=(2, 1), running=(1, 2), kv_tokens=(5, 20)),
    }
    return a_run((0.0, 1.0, 2.0), (3.0, 4.0, 5.0), (3.0, 8.0, NAN), **given | changes)


def latency(name: str, *figures: float | None) -> dict[str, float | None]:
    """Mean, p50, p90, p95, p99; a single number is each of them."""
    values = figures if len(figures) > 1 else figures * len(FIGURES)
    return {f"{name}.{figure}": value for figure, value in zip(FIGURES, values, strict=True)}


def test_the_figures_of_three_requests() -> None:
    """KV, running and waiting requests: for 2 s as in the first record, for 8 s as in the second."""
    result = result_of(by_hand(), names=("long", "short"), horizon_s=10.0)
    expected = {
        **{"completed": 2, "unfinished": 1, "makespan_s": 10.0, "iterations": 4, "iteration_time_s": 1.5},
        **{"throughput_rps": 0.2, "decode_tokens_per_s": 0.6, "throughput_per_iteration": 0.5},
        **{"evictions": 2, "evictions_per_iteration": 0.5, "preemptions_per_request": 1.0},
        **{"recomputed_tokens": 25, "recomputed_share": 0.25, "running": 1.8, "waiting": 1.2},
        **{
            "kv_tokens.mean": 17.0,
            "kv_tokens.p99": 39,
            "kv_tokens.peak": 39,
            "queue.peak": 2,
            "queue.end": 1,
        },
        **latency("ttft_s", 3.25),
        **latency("e2e_s", 5.25, 5.25, 6.85, 7.05, 7.21),
        **latency("tpot_s", 1.0),
    }
    assert {key: result.figures[key] for key in expected} == pytest.approx(expected)
    long, short = result.classes
    assert (long.name, short.name) == ("long", "short")
    for each, completed, e2e_s, tpot_s in ((long, 1, 7.25, 1.0), (short, 1, 3.25, None)):
        own = {"completed": completed, **latency("e2e_s", e2e_s), **latency("tpot_s", tpot_s)}
        assert {key: each.figures[key] for key in own} == own


def test_keys_and_their_order_are_those_of_the_contract() -> None:
    for runs in ([by_hand()], [by_hand(), by_hand()]):
        result = result_of(*runs)
        assert tuple(result.figures) == tuple(result.ci95) == KEYS
        assert [tuple(each.figures) for each in result.classes] == [CLASS_KEYS]


def test_gaps_between_tokens_have_percentiles_to_a_thousandth() -> None:
    """Nine gaps of 20 ms and one of 3 s, in bins that are 0.2 % wide."""
    gaps = np.zeros(GAPS, dtype=np.int64)
    for seconds, count in ((0.02, 9), (3.0, 1)):
        gaps[int(math.log(seconds / SHORTEST_GAP_S) * GAPS_IN_E)] += count
    found = result_of(by_hand(gap_histogram=gaps, gap_sum_s=3.18)).figures
    assert found["itl_s.mean"] == pytest.approx(0.318)
    itl = latency("itl_s", 0.318, 0.02, 0.02, 3.0, 3.0)
    del itl["itl_s.p90"]  # nine in ten: it is either
    assert {key: found[key] for key in itl} == pytest.approx(itl, rel=2e-3)
    assert result_of(by_hand()).figures["itl_s.p50"] is None


def test_goodput_counts_who_was_served_within_all_limits() -> None:
    """Of the two that completed in 10 s one took 7.25 s, the other 3.25 s, and both 3.25 s for the first token."""
    for limits, good in (
        ({"e2e_s": 4.0}, 0.1),
        ({"ttft_s": 3.25, "e2e_s": 7.25}, 0.2),
        ({"ttft_s": 3.0}, 0.0),
        ({}, None),
    ):
        found = policy_result(
            "vllm", {}, [by_hand()], ("a", "b"), horizon_s=10.0, saturated=False, limits=limits
        )
        assert found.figures["goodput_rps"] == good


def test_what_the_prefix_cache_found_is_of_the_tokens_looked_up() -> None:
    found = Found(np.array([32, 0, 16]), np.array([0, 48, 0]), 480, 64, 900.0, np.array([100, 200]))
    run = by_hand(found=found, shed=np.array([False, False, True]))

    def use(run: tuple[Requests, Outcome]) -> list[float | None]:
        return [value for key, value in result_of(run).figures.items() if key.startswith("prefix_cache.")]

    assert use(run) == [0.1, 0.75, 48, 48, 150.0, None, None]
    assert result_of(run).figures["shed"] == 1
    assert set(use(by_hand())) == {None}
    with_host = replace(found, loaded_tokens=np.array([16, 0, 8]), link_busy_s=2.0)
    assert use(by_hand(found=with_host, end_s=8.0))[-2:] == [0.05, 0.25]


@every(
    ("ending", "horizon_s", "expected"),
    [
        (Ending.FINISHED, None, 2 / 10),
        (Ending.FINISHED, 40.0, 2 / 40),
        (Ending.LIVELOCK, 40.0, 2 / 40),
        (Ending.INTERRUPTED, 40.0, 2 / 10),
    ],
)
def test_throughput_is_over_the_horizon_else_over_the_makespan(
    ending: Ending, horizon_s: float | None, expected: float
) -> None:
    assert result_of(by_hand(ending=ending), horizon_s=horizon_s).figures["throughput_rps"] == expected


@every("ending", list(Ending))
@every("n", [0, 3])
def test_a_run_without_a_single_iteration_has_figures_or_none(ending: Ending, n: int) -> None:
    nothing = np.full(n, NAN)
    run = a_run(
        np.zeros(n),
        nothing,
        nothing,
        ending=ending,
        end_s=0.0,
        iterations=0,
        computed_tokens=0,
        kv_histogram=counts(0),
    )
    result = result_of(run, run)
    counts_of = {"completed": 0, "unfinished": n, "makespan_s": 0.0, "iterations": 0}
    known = {**counts_of, **dict.fromkeys(("evictions", "recomputed_tokens", "shed"), 0)}
    known |= dict.fromkeys(("queue.peak", "queue.end"), n) | {"kv_tokens.peak": 0}
    assert {key: value for key, value in result.figures.items() if value is not None} == known
    json.dumps(record(result), allow_nan=False)


def test_figures_are_means_over_seeds_with_a_students_t_interval() -> None:
    """t of 2 degrees: 4.3027."""
    result = result_of(*(by_hand(recomputed_tokens=tokens) for tokens in (20, 25, 30)))
    assert result.figures["recomputed_tokens"] == 25
    half_width = 4.302653 * 5 / 3**0.5
    assert result.ci95["recomputed_tokens"] == pytest.approx((25 - half_width, 25 + half_width), abs=1e-5)
    assert result.ci95["completed"] is None  # the same in all runs: no interval


def test_rates_over_a_horizon_are_the_totals_over_it() -> None:
    run = one_server(poisson(0.7, 2000, 3), np.full(2000, 1.0), end_s=1000.0)
    result = result_of(run, horizon_s=1000.0)
    totals, rates = result.ci95["completed"], result.ci95["throughput_rps"]
    assert rates == pytest.approx((totals[0] / 1000, totals[1] / 1000))
    tokens = result.ci95["decode_tokens_per_s"]
    assert tokens == pytest.approx((totals[0] / 500, totals[1] / 500), rel=1e-2)


def test_a_livelock_has_a_status_and_no_interval() -> None:
    requests, good = one_server(poisson(0.7, 2000, 5), np.full(2000, 1.0))
    stuck = Outcome(
        **{field.name: getattr(good, field.name) for field in fields(good)} | {"ending": Ending.LIVELOCK}
    )
    result = result_of((requests, stuck))
    assert result.status is RunStatus.LIVELOCK
    assert set(result.ci95.values()) == {None}
    assert result_of((requests, good), (requests, stuck), saturated=True).status is RunStatus.LIVELOCK


def share_growing(load: float, n: int, repetitions: int) -> float:
    """How often an M/M/1 queue is called growing."""
    random = np.random.default_rng(6)
    growing = 0
    for _ in range(repetitions):
        arrivals = np.cumsum(random.exponential(1 / load, n))
        result = result_of(one_server(arrivals, random.exponential(1.0, n), records=3000))
        growing += result.status is RunStatus.GROWING
    return growing / repetitions


@pytest.mark.parametrize("n", [500, 2_000, *at_night(10_000)])
def test_a_stationary_queue_is_rarely_called_growing(n: int) -> None:
    assert share_growing(0.7, n, 200) <= 0.075


def test_a_queue_is_judged_while_requests_still_arrive() -> None:
    """Overloaded threefold, then drained to the last request."""
    run = one_server(poisson(3.0, 10_000, 9), np.full(10_000, 1.0))
    assert run[1].series.waiting[-1] == 0
    assert result_of(run).status is RunStatus.GROWING
    assert result_of(run, run).status is RunStatus.GROWING
    short = one_server(poisson(3.0, 9_999, 9), np.full(9_999, 1.0))
    assert result_of(short).status is RunStatus.UNDECIDED
    assert result_of(run, short).status is RunStatus.UNDECIDED
    assert result_of(run, saturated=True).status is RunStatus.STEADY
