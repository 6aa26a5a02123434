"""Overflow: the law of KV usage against exact convolutions and slow sums; laws of the safety buffer."""

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from every import every
from hypothesis import given
from hypothesis import strategies as st

from kvplan.analysis.equilibrium import load
from kvplan.analysis.kv_passage import passage
from kvplan.analysis.kv_tail import pmf_tail, usage_pmf
from kvplan.analysis.overflow import SafetyBuffer, safety_buffer, usage_scale
from kvplan.model import FloatArray, Prefill, Replica, RequestClass, ServingModel, Timing, Weights

FULL = Timing(d0=0.01, d1=2.9e-7, d2=9e-6, d3=8.6e-6)


def model_at(work_rate: float, prefill: Prefill = Prefill.FUSED, timing: Timing = FULL) -> ServingModel:
    """Two classes, one with two lengths, at rates that give a work rate."""
    classes = (
        RequestClass("short", 30, (10, 25), (1.0, 2.0), 2.0),
        RequestClass("long", 70, (50,), (1.0,), 1.0),
    )
    model = ServingModel(classes, timing, Replica(10**6, prefill=prefill))
    return scaled(model, work_rate / load(model).work_rate)


def scaled(model: ServingModel, factor: float) -> ServingModel:
    return replace(model, classes=tuple(replace(c, rate_rps=c.rate_rps * factor) for c in model.classes))


def with_memory(model: ServingModel, memory_tokens: int) -> ServingModel:
    return replace(model, replica=replace(model.replica, memory_tokens=memory_tokens))


def buffer_of(model: ServingModel, delta: float = 0.01, horizon_s: float = 600.0) -> SafetyBuffer:
    return safety_buffer(model, delta=delta, horizon_s=horizon_s)


def slow_effects(model: ServingModel) -> tuple[FloatArray, FloatArray]:
    """Mean effect of one request of each row on all later iterations, stage by stage; and the rates, times τ*.

    An extra request of row i at t = 0 begets λ_j v_i(k) requests at t = k + 1, and so on: `response` is what a
    request per second at t = 0, and its descendants, hold at t. By linearity usage is that of Poisson immigrants, who
    each carry their own memory and their descendants': h_i(t) + Σ_k v_i(k) r(t-1-k).
    """
    mix, timing, page = model.mix, model.timing, model.replica.block_tokens
    size = int(60 * mix.stages.max())
    held = np.zeros((mix.stages.size, size))
    work = np.zeros_like(held)
    for i, n in enumerate(mix.stages):
        weights = mix.read.first[i] + np.arange(n)
        held[i, :n] = [page * math.ceil(w / page) for w in weights]
        work[i, :n] = timing.d1 * weights + timing.d3
        work[i, 0] += timing.d2 * model.mix.prefill_tokens[i]
    kernel, response = mix.rate_rps @ work, mix.rate_rps @ held
    for t in range(1, size):
        past = response[max(0, t - mix.stages.max()) : t][::-1]
        response[t] += kernel[: past.size] @ past
    caused = np.array([np.convolve(w[: mix.stages.max()], response)[: size - 1] for w in work])
    effect = held
    effect[:, 1:] += caused
    return effect, timing.d0 / (1 - load(model).work_rate) * mix.rate_rps


def slow_variance(model: ServingModel) -> float:
    effect, per_iteration = slow_effects(model)
    return float(per_iteration @ (effect**2).sum(axis=1))


lengths = st.integers(1, 40)
row = st.tuples(
    st.integers(1, 300), st.lists(lengths, min_size=1, max_size=4, unique=True), st.floats(0.05, 20)
)
timings = st.builds(
    Timing,
    st.floats(1e-3, 0.1),
    st.sampled_from([0.0, 1e-7, 1e-6]),
    st.sampled_from([0.0, 1e-5, 1e-4]),
    st.sampled_from([0.0, 1e-4]),
)


@st.composite
def models(draw: st.DrawFn, top: float = 0.9) -> ServingModel:
    """A few classes of up to four lengths, any convention, Λ up to `top`."""
    rows = draw(st.lists(row, min_size=1, max_size=3))
    classes = tuple(
        RequestClass(str(i), s, tuple(sorted(d)), tuple(float(k + 1) for k in range(len(d))), rate)
        for i, (s, d, rate) in enumerate(rows)
    )
    replica = Replica(2_000, draw(st.sampled_from([1, 16, 64])), draw(st.sampled_from(list(Prefill))))
    model = ServingModel(classes, draw(timings), replica)
    work = load(model).work_rate
    return scaled(model, top / work) if work > top else model


@given(models(top=0.85))
def test_the_variance_is_that_of_a_slow_sum_over_every_stage(model: ServingModel) -> None:
    std = buffer_of(model).kv_std_tokens
    assert std**2 == pytest.approx(slow_variance(model), rel=0.01)
    assert std >= usage_scale(model).std_without_feedback * 0.999


def test_many_classes_and_lengths_keep_the_variance_although_they_are_merged() -> None:
    random = np.random.default_rng(0)
    classes = tuple(
        RequestClass(
            str(i), int(random.integers(1, 2_000)), tuple(range(1 + i % 7, 120, 5 + i % 11)), (1.0,), 0.1
        )
        for i in range(40)
    )
    classes = tuple(replace(c, decode_weights=(1.0,) * len(c.decode_tokens)) for c in classes)
    model = ServingModel(classes, Timing(0.0145, 2.5e-7, 2e-5), Replica(10**6, 16))
    model = scaled(model, 0.6 / load(model).work_rate)
    std = buffer_of(model).kv_std_tokens
    assert std == pytest.approx(math.sqrt(slow_variance(model)), rel=0.005)


def test_as_work_fills_all_time_usage_over_its_mean_keeps_its_law() -> None:
    """It tends to a gamma law, on which the memory required depends alone; nearer than 1e-3 that is taken for it."""
    models = [model_at(work_rate) for work_rate in (0.9985, 0.9995, 0.99995, 0.999995)]
    required = [buffer_of(model).required_kv_tokens / usage_scale(model).mean for model in models]
    assert required == pytest.approx([required[0]] * 4, rel=3e-3)


def direct_pmf(first: FloatArray, stages: Any, per_stage: FloatArray, size: int) -> FloatArray:
    """Compound Poisson by convolving the Poisson counts of each row and stage."""
    pmf = np.zeros(size)
    pmf[0] = 1.0
    for a, n, mean in zip(first.astype(int), stages, per_stage, strict=True):
        for weight in range(a, a + n):
            one = np.zeros(size)
            for count in range((size - 1) // weight + 1):
                one[count * weight] = math.exp(-mean) * mean**count / math.factorial(count)
            pmf = np.convolve(pmf, one)[:size]
    return pmf


@given(
    st.lists(st.tuples(st.integers(1, 8), st.integers(1, 5), st.floats(0.01, 1.5)), min_size=1, max_size=3)
)
def test_the_exact_pmf_is_the_direct_convolution(rows: list[tuple[int, int, float]]) -> None:
    first, stages, per_stage = (np.array(column) for column in zip(*rows, strict=True))
    pmf = usage_pmf(Weights(first.astype(float), stages).by_pages(per_stage), 1.0)
    expected = direct_pmf(first, stages, per_stage, 60)
    size = min(60, pmf.probability.size)
    assert pmf.probability[:size] == pytest.approx(expected[:size], abs=1e-14)
    for memory in (0, 3, 17):
        tail = pmf_tail(pmf, memory + 0.5, [0.1])
        assert math.exp(tail.log_probability) == pytest.approx(1 - expected[: memory + 1].sum(), abs=1e-12)


@given(models(), st.floats(1e-9, 0.9), st.sampled_from([600.0, 1e5]))
def test_the_memory_required_is_the_smallest_that_keeps_the_risk(
    model: ServingModel, delta: float, horizon_s: float
) -> None:
    required = buffer_of(model, delta, horizon_s).required_kv_tokens

    def risk(memory: int) -> float:
        chance = buffer_of(with_memory(model, max(1, memory)), delta, horizon_s).overflow_probability_horizon
        assert chance is not None
        return chance

    page = model.replica.block_tokens
    assert required % page == 0
    assert risk(required) <= delta * 1.02
    less = math.floor(0.98 * required) - page
    if less > usage_scale(model).largest:
        assert risk(less) > delta * 0.98


@given(models(), st.floats(1e-9, 1.0), st.floats(1e-3, 1e6), st.floats(-1.0, 8.0))
def test_more_memory_is_required_exactly_where_the_printed_risk_exceeds_delta(
    model: ServingModel, delta: float, horizon_s: float, deviations: float
) -> None:
    std = buffer_of(model).kv_std_tokens
    scale = usage_scale(model)
    memory = max(math.ceil(scale.largest), round(scale.mean + deviations * std))
    found = buffer_of(with_memory(model, memory), delta, horizon_s)
    assert (found.required_kv_tokens <= memory) == (found.overflow_probability_horizon <= delta)


def test_without_feedback_the_saddlepoint_agrees_with_the_exact_pmf() -> None:
    model = replace(model_at(0.5), timing=Timing(0.02))
    for sigmas in (0.5, 2.0, 4.0, 6.0):
        scale = usage_scale(model)
        buffer = buffer_of(with_memory(model, round(scale.mean + sigmas * scale.std_without_feedback)))
        assert buffer.kv_std_tokens == pytest.approx(scale.std_without_feedback, rel=1e-3)
        assert buffer.saddlepoint_probability == pytest.approx(buffer.exact_pmf_probability, rel=0.02)


@pytest.mark.parametrize(("input_tokens", "pages"), [(15, 1), (16, 2)])
def test_whole_pages_of_aligned_lengths_are_counted(input_tokens: int, pages: int) -> None:
    """Poisson numbers of requests for a single iteration each; memory whose last page is not whole is of no use."""
    lone = RequestClass("lone", input_tokens, (1,), (1.0,), 40.0)
    buffer = buffer_of(ServingModel((lone,), Timing(0.5), Replica(16 * pages * 30 + 15, 16)))
    exact = 1 - sum(math.exp(-20) * 20**k / math.factorial(k) for k in range(31))
    assert buffer.overflow_probability_per_iteration == pytest.approx(exact, rel=1e-9)
    assert buffer.saddlepoint_probability == pytest.approx(exact, rel=0.01)
    assert buffer.kv_std_tokens == pytest.approx(16 * pages * math.sqrt(20), rel=1e-6)


@every("score", [-1.0, 0.0, 1.5, 3.0, 4.0])
def test_passages_of_an_ornstein_uhlenbeck_process_are_those_of_a_fine_walk(score: float) -> None:
    """A walk on 2,000 points: the mean time to the level, from its long run below, by solving linear equations."""
    cells = 2_000
    y = np.linspace(-8.0, score, cells, endpoint=False)
    step = y[1] - y[0]
    # speed 1: dy = -y dt + √2 dW, rates of detailed balance with the normal law
    up, down = (np.exp(-sign * y * step / 2) / step**2 for sign in (1, -1))
    down[0] = 0.0
    ladder = np.zeros(cells)  # mean time from a point to the next: t_i = 1/up_i + (down_i/up_i)·t_{i-1}
    for i in range(cells):
        ladder[i] = (1 + down[i] * (ladder[i - 1] if i else 0.0)) / up[i]
    time_to_level = np.cumsum(ladder[::-1])[::-1]
    weight = np.exp(-(y**2) / 2)
    mean_time = float(weight @ time_to_level / weight.sum())
    exceeded = math.erfc(score / math.sqrt(2)) / 2
    # so slow that P does not limit the rate; 1 - any = (1 - P)·exp(-(N - 1)·rate)
    any_overflow = passage(1e-6, 1e6).any_overflow(math.log(exceeded))
    spared = (math.log1p(-any_overflow) - math.log1p(-exceeded)) / (1 - 1e6)
    assert spared == pytest.approx(1.15e-6 / mean_time, rel=0.01)
