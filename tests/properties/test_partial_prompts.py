"""Prompts longer than the token budget: seats and memory that they have while they are computed."""

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from strategies import one_class
from tiers import at_night

from kvplan.analysis.equilibrium import iteration_time, sustainable_rate
from kvplan.analysis.overflow import safety_buffer, usage_pmf_of, usage_scale
from kvplan.analysis.wait import class_means, wait
from kvplan.model import FloatArray, Plan, Replica, RequestClass, ServingModel, Timing
from kvplan.simulation.engine import run
from kvplan.simulation.policies import POLICIES
from kvplan.simulation.policies.protocol import Scenario, Settings
from kvplan.simulation.requests import saturated

BUDGET = 2048
COMPUTE, LIGHT = Timing(0.012, 1e-7, 5e-5, 1e-5), Timing(0.02, 3e-8, 1e-5)


def replica_of(seats: int | None = None, memory: int = 10**7, **more: int) -> Replica:
    return Replica(memory, 16, max_num_seqs=seats, max_num_batched_tokens=BUDGET, **more)


def completed_rps(model: ServingModel, requests: int) -> float:
    """Completions per second of vLLM's scheduler under an endless backlog, the first fifth and the end left out."""
    drawn = saturated(model, np.random.default_rng(1), requests=requests)
    policy = POLICIES["vllm"]
    scenario = Scenario(model, Plan(), drawn, tuple(c.name for c in model.classes))
    settings = Settings("vllm", {"prefix_caching": (0.0,)})
    setup = policy.prepare(scenario, settings)[0]
    done = np.sort(run(policy.form_batch, drawn, model.timing, model.replica, setup, compile=True).finish_s)
    first, last = requests // 5, requests * 9 // 10
    return float((last - first) / (done[last] - done[first]))


@pytest.mark.parametrize(
    ("classes", "seats", "memory", "timing"),
    [
        (((4_000, 50),), 4, 10**7, COMPUTE),
        (((4_000, 200),), 16, 10**7, COMPUTE),
        (((8_000, 100),), 8, 10**7, COMPUTE),
        (((12_000, 50),), 4, 10**7, COMPUTE),
        (((20_000, 50),), 4, 10**7, LIGHT),
        (((20_000, 200),), 16, 10**7, COMPUTE),
        (((6_000, 400),), 128, 10**7, COMPUTE),
        (((8_000, 100), (500, 200)), 24, 10**7, COMPUTE),
        (((9_000, 400),), 1024, 780_000, COMPUTE),
    ],
)
def test_the_sustainable_rate_is_what_the_scheduler_serves(
    classes: tuple[tuple[int, int], ...], seats: int, memory: int, timing: Timing
) -> None:
    """Prompts that are computed whole would be up to 10 % more."""
    mix = tuple(one_class(s, d, name=f"{s}") for s, d in classes)
    model = ServingModel(mix, timing, replica_of(seats, memory))
    binding, rate = sustainable_rate(model)
    assert binding == ("max_num_seqs" if memory == 10**7 else "compute")
    assert rate == pytest.approx(completed_rps(model, 4_000), rel=0.01)


def test_wait_fills_memory_and_time_with_parts() -> None:
    """Threshold 1: a request in each of 2 + 3 iterations, by the sum of their tokens."""
    mix = (RequestClass("long", 5_000, (3,), (1.0,), 0.01),)
    model = ServingModel(mix, COMPUTE, replica_of())
    found = wait(model)
    assert found.thresholds == (1,)
    pages = [16 * math.ceil(t / 16) for t in (BUDGET, 2 * BUDGET, 5_001, 5_002, 5_003)]
    assert found.kv_tokens == sum(pages)
    read = BUDGET + 2 * BUDGET + 5_001 + 5_002 + 5_003
    time = COMPUTE.d0 + COMPUTE.d1 * read + COMPUTE.d2 * 5_000 + COMPUTE.d3 * 5
    assert found.iteration_time_s == pytest.approx(time)
    assert class_means(model).iterations.tolist() == [5]


def usage_of(model: ServingModel, iterations: int, seed: int, paths: int = 20) -> FloatArray:
    """KV usage, page by page, of prompts that are all computed side by side in a memory without end, on paths."""
    timing, random, page = model.timing, np.random.default_rng(seed), model.replica.block_tokens
    (one,) = model.classes
    budget = model.replica.max_num_batched_tokens
    parts = [*range(budget, one.input_tokens, budget)]
    (decode,) = one.decode_tokens
    tokens = np.array([*parts, *range(one.input_tokens + 1, one.input_tokens + decode + 1)])
    held = -(-tokens // page) * page
    computed = np.zeros(tokens.size)
    computed[: len(parts)] = budget
    computed[len(parts)] = one.input_tokens - budget * len(parts)
    at = np.zeros((paths, tokens.size))  # requests in each iteration of their stay
    usage, tau = np.zeros((iterations, paths)), np.full(paths, timing.d0)
    for t in range(iterations):
        at = np.column_stack([random.poisson(model.total_rate_rps * tau), at[:, :-1]])
        usage[t] = at @ held
        tau = timing.d0 + timing.d1 * (at @ tokens) + timing.d2 * (at @ computed) + timing.d3 * at.sum(axis=1)
    return usage[iterations // 10 :]


@pytest.mark.parametrize("timing", [LIGHT, *at_night(Timing(0.02))])
def test_usage_is_that_of_requests_followed_one_by_one(timing: Timing) -> None:
    model = ServingModel((one_class(20_000, 50, 0.8),), timing, replica_of())
    found, scale = safety_buffer(model, delta=0.01, horizon_s=600.0), usage_scale(model)
    usage = usage_of(model, 10_000, seed=3)
    assert usage.mean() == pytest.approx(scale.mean, rel=0.03)
    assert usage.std() == pytest.approx(found.kv_std_tokens, rel=0.05)
    for deviations in (1.0, 2.0):
        memory = round(scale.mean + deviations * found.kv_std_tokens)
        there = safety_buffer(
            replace(model, replica=replace(model.replica, memory_tokens=memory)), delta=0.01, horizon_s=600.0
        )
        seen = float((usage > memory).mean())
        assert there.overflow_probability_per_iteration == pytest.approx(seen, rel=0.25)


@given(st.integers(1, 60), st.integers(1, 6), st.integers(1, 25), st.sampled_from([1, 4, 16]))
def test_the_exact_law_has_a_poisson_number_of_requests_at_every_part(
    prompt: int, decode: int, budget: int, page: int
) -> None:
    replica = Replica(10**4, page, max_num_batched_tokens=budget)
    model = ServingModel((one_class(prompt, decode, 0.3),), Timing(1.0), replica)
    pmf, tau = usage_pmf_of(model), iteration_time(model)
    assert tau == 1.0
    tokens = [*range(budget, prompt, budget), *range(prompt + 1, prompt + decode + 1)]
    held = [page * math.ceil(t / page) for t in tokens]
    assert pmf.step == math.gcd(*held)
    size = pmf.probability.size
    values = np.arange(size) * pmf.step
    mean = float(pmf.probability @ values)
    assert mean == pytest.approx(0.3 * sum(held), rel=1e-6)
    variance = float(pmf.probability @ (values - mean) ** 2)
    assert variance == pytest.approx(0.3 * sum(w * w for w in held), rel=1e-6)
    assert pmf.probability[0] == pytest.approx(math.exp(-0.3 * len(held)))
