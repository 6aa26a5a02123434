"""Arrivals that cluster: their index of dispersion, KV usage with them, and how a trace is split."""

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from kv_paths import path
from tiers import examples

from kvplan.analysis.dispersion import index_of_dispersion
from kvplan.analysis.equilibrium import iteration_time
from kvplan.analysis.overflow import clusters_held, safety_buffer, usage_scale
from kvplan.ingest.trace.bursts import split
from kvplan.model import ArrivalProcess, Prefill, Replica, RequestClass, ServingModel, Timing
from kvplan.model.schedule import Steps
from kvplan.simulation.requests import gamma_times, renewal

SIGMAS = 4.0
CHAT = RequestClass("chat", 1155, (211,), (1.0,), 9.0)
MIX = (
    RequestClass("a", 100, (50,), (1.0,), 20.0),
    RequestClass("b", 800, (20,), (1.0,), 10.0),
    RequestClass("c", 300, (100, 200), (1.0, 1.0), 10.0),
)


@given(st.floats(0.01, 1e15))
def test_gaps_of_two_stages_have_the_dispersion_that_their_renewal_function_gives(arrivals: float) -> None:
    """H(t) = t - 1/4 + exp(-4t)/4 of gaps with mean 1, a sum of two exponential ones: Cox 1962, integrated by hand."""
    expected = 0.5 - math.expm1(-4 * arrivals) / (8 * arrivals)
    assert index_of_dispersion(1.0, math.sqrt(0.5), arrivals) == pytest.approx(expected, rel=1e-9, abs=1e-12)


@examples(10)
@given(st.floats(1.2, 10), st.floats(0.5, 20))
def test_the_index_is_that_of_counts(cv: float, arrivals: float) -> None:
    """`arrivals` in a window, counted in 40,000 of them; the spread of such a variance by batches."""
    rng = np.random.default_rng(7)
    times = gamma_times(rng, 1.0, cv, requests=None, end_s=arrivals * 40_000)
    counts = np.histogram(times, 40_000, (0.0, arrivals * 40_000))[0].reshape(40, 1000)
    seen = counts.var(axis=1) / arrivals
    expected = index_of_dispersion(1.0, cv, arrivals)
    assert seen.mean() == pytest.approx(expected, abs=SIGMAS * seen.std() / math.sqrt(40) + 0.02 * expected)


@pytest.mark.parametrize("cv", [1.0, 2.0, 4.0])
@pytest.mark.parametrize("classes", [(CHAT,), MIX], ids=["chat", "mix"])
def test_usage_spreads_as_on_a_path(classes: tuple[RequestClass, ...], cv: float) -> None:
    """Standard deviation to 4 %, probabilities of one and two of them above the mean to a quarter."""
    timing, prefill = Timing(0.0145, 2.5e-7), Prefill("inline")
    roomy = ServingModel(classes, timing, Replica(10**7, prefill=prefill), arrivals=ArrivalProcess(cv))
    tau = iteration_time(roomy)
    assert tau is not None
    std = safety_buffer(roomy, delta=0.01, horizon_s=3600).kv_std_tokens
    assert std is not None
    levels = [int(usage_scale(roomy).mean + k * std) for k in (1, 2)]
    seen = path(roomy, 1 - timing.d0 / tau, levels, [1.0], 1_000_000, 1)
    assert clusters_held(roomy) > 2
    assert std == pytest.approx(math.sqrt(seen.variance), rel=0.04)
    for level, exceeded in zip(levels, seen.exceeded.tolist(), strict=True):
        full = replace(roomy, replica=Replica(level, prefill=prefill))
        found = safety_buffer(full, delta=0.01, horizon_s=3600)
        assert found.overflow_probability_per_iteration == pytest.approx(exceeded, rel=0.25)


@pytest.mark.parametrize("cv", [1.0, 3.0])
def test_a_split_finds_schedule_and_cv_again(cv: float) -> None:
    """A period of an hour, a third of it at three times the rate of the rest."""
    steps = Steps(3600.0, (0.0, 1200.0, 2400.0), ((0.6,), (1.8,), (0.6,)))
    model = ServingModel((replace(CHAT, rate_rps=10.0),), Timing(0.01), Replica(10**6), steps)
    some = renewal(model, np.random.default_rng(5), cv=cv, requests=None, horizon_s=3600.0)
    counts = np.histogram(some.arrival_s, 3600, (0.0, 3600.0))[0].astype(np.float64)
    found = split(counts, 1.0, 5.0)
    assert found.course.factors.tolist() == pytest.approx([0.6, 1.8, 0.6], rel=0.1)
    assert found.course.starts_s.tolist() == pytest.approx([0, 1200, 2400], abs=61)
    assert found.cv == pytest.approx(cv, rel=0.15)
    assert found.enough
    assert max(abs(one.share - 1) for one in found.windows) < 0.3


def test_clusters_that_no_gamma_law_has_are_told() -> None:
    """Twelve at once every three seconds, as Mooncake's clock has it: regular over minutes, not over a second."""
    counts = np.tile([12.0, 0.0, 0.0], 1200)
    found = split(counts, 1.0, 1.0)
    assert found.course.factors.tolist() == [1.0]
    assert not found.enough
