"""Latencies where the token budget binds: the chain by Monte Carlo, simulations, limits, and where there are none."""

from dataclasses import replace

import numpy as np
import pytest
from at_once import Served, serve
from strategies import one_class
from tiers import at_night

from kvplan.analysis.latency import latency
from kvplan.analysis.latency.budget import budgeted
from kvplan.analysis.latency.distribution import NONE
from kvplan.analysis.latency.fast_part import prompts_of
from kvplan.analysis.latency.slow_part import SlowPart
from kvplan.analysis.latency.traffic import traffic_of
from kvplan.model import FloatArray, IntArray, Replica, RequestClass, ServingModel, Timing

TIMING = Timing(14.5e-3, 0.25e-6, 85e-6, 30e-6)


def served(*classes: RequestClass, budget: int = 2048, timing: Timing = TIMING) -> ServingModel:
    return ServingModel(classes, timing, Replica(10**8, block_tokens=16, max_num_batched_tokens=budget))


def arrivals(random: np.random.Generator, seconds: float, model: ServingModel) -> float:
    """Prompt tokens that arrive meanwhile."""
    return float(sum(random.poisson(c.rate_rps * seconds) * c.input_tokens for c in model.classes))


# -- the chain ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rates", [(4.0, 0.5), (1.0, 1.2)])
def test_waiting_tokens_are_those_of_a_monte_carlo_of_the_chain(rates: tuple[float, float]) -> None:
    model = served(one_class(700, 1, rates[0], name="short"), one_class(3000, 1, rates[1], name="long"))
    traffic = traffic_of(model)
    assert traffic is not None
    slow = SlowPart(0.0145, 0.0, np.array([0.020]), np.array([1.0]))
    queue = budgeted(traffic, prompts_of(traffic), slow, 2048, 0.0).queue
    law = queue.stationary[1]
    room, token_s = 2048.0, traffic.prompt_work / float(traffic.rate_rps @ traffic.prompt_tokens)
    square = float(traffic.rate_rps @ traffic.prompt_tokens**2 / (traffic.rate_rps @ traffic.prompt_tokens))
    random = np.random.default_rng(2)
    waits, seconds, waiting = [], [], 0.0
    for _ in range(60_000):
        full = waiting > room
        taken = 0.020 + token_s * min(waiting, room) + full * traffic.token_s * square / 2
        waits.append(waiting)
        seconds.append(taken)
        waiting = max(waiting - room, 0.0) + arrivals(random, taken, model)
    assert law.sum() == pytest.approx(1)
    assert law @ queue.tokens == pytest.approx(np.mean(waits), rel=0.05)
    assert law @ queue.seconds[1] == pytest.approx(np.mean(seconds), rel=0.01)
    assert law[0] == pytest.approx(np.mean(np.array(waits) == 0), abs=0.01)
    assert law[queue.tokens > 4500].sum() == pytest.approx(np.mean(np.array(waits) > 4500), abs=0.01)


# -- simulations ----------------------------------------------------------------------------------------------


def simulated(model: ServingModel, requests: int = 20_000, seed: int = 7) -> tuple[Served, IntArray]:
    """A run, at exactly the rate of the model, and the class of each request."""
    random, mix = np.random.default_rng(seed), model.mix
    arrival = np.cumsum(random.exponential(1.0, requests))
    arrival *= requests / model.total_rate_rps / arrival[-1]
    row = random.choice(mix.share.size, requests, p=mix.share)
    kind = mix.class_index[row]
    run = serve(arrival, mix.input_tokens[row], mix.decode_tokens[row], kind, model.timing, 2048)
    return run, kind


@pytest.mark.parametrize(
    "classes",
    [
        (one_class(300, 40, 3.0, name="chat"), one_class(4000, 20, 0.5, name="rag")),
        *at_night((one_class(1500, (20, 60), 2.7),)),
    ],
)
def test_simulated_latencies(classes: tuple[RequestClass, ...]) -> None:
    model = served(*classes)
    found = latency(model)
    assert found.method == "closed form, budget"
    run, kind = simulated(model)

    def near(value: float, span: tuple[float, float] | None, seen: float) -> bool:
        low, high = span or (value, value)
        return 0.92 * low <= seen <= 1.08 * high

    for i, at in enumerate(found.classes):
        mine: FloatArray = run.ttft_s[kind == i]
        assert at.ttft_s is not None
        assert at.itl_s is not None
        assert at.e2e_s is not None
        assert at.ttft_s.mean == pytest.approx(mine.mean(), rel=0.03)
        assert at.itl_s.mean == pytest.approx(run.mean_gap(i), rel=0.03)
        assert at.e2e_s.mean == pytest.approx(run.e2e_s[kind == i].mean(), rel=0.03)
        for q, ttft, ttft_span, itl, itl_span in zip(
            (0.5, 0.9, 0.95, 0.99), at.ttft_s[1:5], at.ttft_s[5:], at.itl_s[1:5], at.itl_s[5:], strict=True
        ):
            assert near(ttft, ttft_span, float(np.quantile(mine, q)))
            assert near(itl, itl_span, run.gap(q, i))


@pytest.mark.nightly
@pytest.mark.parametrize("rows", [((1500, 6.3),), ((300, 10.2), (4000, 1.6))])
def test_prompts_alone_wait_as_simulated_up_to_nine_tenths_of_the_budget(
    rows: tuple[tuple[int, float], ...],
) -> None:
    """On replicas that only prefill; eight long runs, whose means of waits still differ by a tenth."""
    model = served(*(one_class(s, 1, rate, name=str(s)) for s, rate in rows))
    found = latency(model)
    assert found.method == "closed form, budget"
    assert latency(
        replace(model, classes=tuple(replace(c, rate_rps=1.1 * c.rate_rps) for c in model.classes))
    ).reason
    runs = [simulated(model, 150_000, seed)[0].ttft_s for seed in range(8)]
    assert found.ttft_s.mean == pytest.approx(np.mean([run.mean() for run in runs]), rel=0.05)
    for q, value in ((0.5, found.ttft_s.p50), (0.95, found.ttft_s.p95), (0.99, found.ttft_s.p99)):
        assert value == pytest.approx(np.mean([np.quantile(run, q) for run in runs]), rel=0.07)


def test_short_stays_end_as_simulated() -> None:
    """Where prompts wait for one another most of the time is that of prompts, and those behind do not lengthen it."""
    model = served(one_class(1800, 6, 3.8))
    found, (run, _) = latency(model), simulated(model)
    for figures, times in ((found.ttft_s, run.ttft_s), (found.e2e_s, run.e2e_s)):
        assert figures is not None
        assert figures.mean == pytest.approx(times.mean(), rel=0.03)
        measured = [float(np.quantile(times, q)) for q in (0.9, 0.95, 0.99)]
        assert [figures.p90, figures.p95, figures.p99] == pytest.approx(measured, rel=0.08)


# -- limits ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("input_tokens", "budget"), [(5000, 2048), (4096, 2048), (100_000, 1000)])
def test_a_request_alone_takes_its_parts_one_after_the_other(input_tokens: int, budget: int) -> None:
    found = latency(served(one_class(input_tokens, 5, 1e-9), budget=budget))
    seconds, done = 0.0, 0
    while done < input_tokens:
        part = min(budget, input_tokens - done)
        done += part
        seconds += TIMING(float(done), float(part), 1.0)
    assert found.ttft_s is not None
    assert [found.ttft_s.mean, found.ttft_s.p50, found.ttft_s.p99] == pytest.approx([seconds] * 3, rel=1e-4)


def test_a_budget_that_is_never_full_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """The lattice of tokens against the transforms without a budget."""
    model = served(one_class(800, (50, 150), 2.5), budget=12_000)
    plain = latency(model)
    assert plain.method == "closed form"
    monkeypatch.setattr("kvplan.analysis.latency.closed_form.budget_binds", lambda *_: True)
    found = latency(model)
    assert found.method == "closed form, budget"
    for one, other in zip(found[:3], plain[:3], strict=True):
        assert one is not None
        assert other is not None
        assert one.mean == pytest.approx(other.mean, rel=0.01)
        for value, expected, span in zip(one[1:5], other[1:5], other[5:], strict=True):
            assert value == pytest.approx(expected, rel=0.03) or span is not None


# -- where there is none --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("model", "reason"),
    [
        (served(one_class(600, 2, 13.5), budget=640), "% of max_num_batched_tokens, above 85 %"),
        (served(one_class(6000, 20, 1.25)), "% of max_num_batched_tokens, above 65 %"),
        (
            served(one_class(10, 100, 400.0), budget=512, timing=Timing(0.02, d2=1e-6)),
            "decodes take",
        ),
    ],
)
def test_a_sentence_says_why_there_is_none(model: ServingModel, reason: str) -> None:
    found = latency(model)
    assert found.reason is not None
    assert reason in found.reason
    assert found[:3] == (NONE, NONE, NONE)


@pytest.mark.parametrize("rate", [1.0, 2.5, 2.6, 4.0])
def test_parts_of_prompts_can_leave_no_time(rate: float) -> None:
    """46 parts of 184 tokens, each of 7 ms for its request: from 2.52 requests/s on nobody is ever without work."""
    slow = served(one_class(184, 4, rate), budget=4, timing=Timing(1.2e-3, d2=2.2e-4, d3=7.3e-3))
    found = latency(slow)
    assert (found.method is None) == (found.reason is not None)
