"""The rate that meets an objective by closed form, against the one that simulations find."""

import math
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import pytest
from tiers import at_night

from kvplan.analysis.goodput import Goodput, goodput
from kvplan.model import Plan, Replica, RequestClass, ServingModel, Timing
from kvplan.simulation.experiments import options, study
from kvplan.simulation.experiments.load import Arrivals, Load

CHAT = (RequestClass("chat", 200, (400,), (1.0,), 20.0),)
CONVERSATION = (RequestClass("conversation", 1155, (211,), (1.0,), 2.0),)
LARGE = (RequestClass("chat", 800, (100, 300), (1.0, 2.0), 4.0),)
MIX = (
    RequestClass("short", 300, (50, 200), (1.0, 1.0), 6.0),
    RequestClass("long", 3000, (100,), (1.0,), 1.0),
)
TOOLS = (RequestClass("tools", 120, (384,), (1.0,), 45.0),)
REASONING = (RequestClass("reasoning", 150, (500, 4000), (3.0, 1.0), 2.0),)
A, B, C, D = (
    Timing(0.008, 5e-8, 2.5e-5, 2e-5),
    Timing(0.0145, 2.5e-7, 8.5e-5),
    Timing(0.024, 1e-8, 6e-5),
    Timing(0.012, 3e-8, 3e-5, 1e-5),
)
E, F = Timing(0.0065, 3e-8, 2e-5, 1.5e-5), Timing(0.0065, 6e-8, 2e-5, 1.5e-5)


class Case(NamedTuple):
    classes: tuple[RequestClass, ...]
    timing: Timing
    memory_tokens: int
    budget: int | None
    key: str
    bound: float


CASES = {
    "70B, ITL mean": Case(LARGE, C, 800_000, None, "itl_s.mean", 0.036),
    "4090, budget, TTFT p95": Case(CONVERSATION, B, 200_000, 2048, "ttft_s.p95", 0.3),
    "chat, TTFT p95": Case(CHAT, A, 300_000, None, "ttft_s.p95", 0.045),
    "chat, ITL p99": Case(CHAT, A, 300_000, None, "itl_s.p99", 0.025),
    "4090, TTFT p95": Case(CONVERSATION, B, 200_000, None, "ttft_s.p95", 0.3),
    "70B, TTFT p99": Case(LARGE, C, 800_000, None, "ttft_s.p99", 0.3),
    "mix, TTFT p95": Case(MIX, D, 500_000, None, "ttft_s.p95", 0.2),
    "mix, budget, E2E p95": Case(MIX, D, 500_000, 4096, "e2e_s.p95", 6.0),
    "tools, E2E p95": Case(TOOLS, E, 446_000, None, "e2e_s.p95", 7.5),
    "reasoning, ITL p95": Case(REASONING, F, 446_000, None, "itl_s.p95", 0.02),
}
EVENING = list(CASES)[2:]


def at_rate(model: ServingModel, rate_rps: float) -> ServingModel:
    scale = rate_rps / model.total_rate_rps
    return replace(model, classes=tuple(replace(c, rate_rps=c.rate_rps * scale) for c in model.classes))


def simulated(model: ServingModel, key: str, requests: int) -> float:
    load = Load(kind=Arrivals.POISSON, requests=requests)
    [result] = study.study(model, Plan(), load, options.chosen(["vllm"], []), [1], threads=1).results
    time, figure = key.split(".")
    return float(getattr(getattr(result, time), figure))


@pytest.mark.parametrize("name", [*(name for name in CASES if name not in EVENING), *at_night(*EVENING)])
def test_the_rate_is_the_simulated_one_within_four_percent(name: str) -> None:
    """A secant between figures of runs with the same random numbers."""
    case = CASES[name]
    replica = Replica(case.memory_tokens, 16, max_num_batched_tokens=case.budget, prefix_caching=False)
    model = ServingModel(case.classes, case.timing, replica)
    found = goodput(model, {case.key: case.bound})
    assert found.rate_rps is not None
    assert found.binding == case.key
    rates = [0.9 * found.rate_rps, 1.1 * found.rate_rps]
    excess = [math.log(simulated(at_rate(model, rate), case.key, 60_000) / case.bound) for rate in rates]
    for _ in range(2):
        order = np.argsort(excess)
        rates.append(float(np.interp(0.0, np.array(excess)[order], np.array(rates)[order])))
        excess.append(math.log(simulated(at_rate(model, rates[-1]), case.key, 60_000) / case.bound))
    assert abs(excess[-1]) < 0.02
    assert found.rate_rps == pytest.approx(rates[-1], rel=0.04)


def test_what_even_an_empty_replica_misses_has_no_rate() -> None:
    model = ServingModel(LARGE, C, Replica(800_000, 16))
    assert goodput(model, {"itl_s.p50": 0.02, "ttft_s.p95": 1.0}) == Goodput(
        0.0, "itl_s.p50", at_least_rps=0.0
    )


def test_the_tightest_of_several_objectives_binds() -> None:
    model = ServingModel(LARGE, C, Replica(800_000, 16))
    alone = {
        key: goodput(model, {key: bound}).rate_rps or math.inf
        for key, bound in (("itl_s.mean", 0.036), ("ttft_s.p99", 0.3))
    }
    both = goodput(model, {"itl_s.mean": 0.036, "ttft_s.p99": 0.3})
    assert both.rate_rps == pytest.approx(min(alone.values()), rel=2e-3)
    assert both.binding == min(alone, key=alone.__getitem__)


@pytest.mark.parametrize("key", ["tpot_s.p95", "recomputed_share"])
def test_what_has_no_closed_form_is_said(key: str) -> None:
    found = goodput(ServingModel(LARGE, C, Replica(800_000, 16)), {key: 1.0})
    assert found.rate_rps is None
    assert key in (found.reason or "")


def test_an_objective_that_holds_as_far_as_the_closed_forms_go_gives_no_rate() -> None:
    found = goodput(ServingModel(LARGE, C, Replica(20_000, 16)), {"e2e_s.mean": 1e6})
    assert found.rate_rps is None
    assert found.reason is not None
    assert found.reason.startswith("beyond the closed form: all is met at")
