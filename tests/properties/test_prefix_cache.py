"""What must hold of a prefix cache whatever the traffic, the replica and the law of the iteration time."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvplan.analysis.cache_states import FOREVER_S, CachedReplica, cached_replica
from kvplan.analysis.equilibrium import iteration_time, sustainable_rates
from kvplan.analysis.prefix_cache import prefix_cache
from kvplan.model import Prefill, Replica, RequestClass, ServingModel, Timing
from kvplan.model.gaps import Exponential, Gap, Lognormal, Quantiles
from kvplan.model.sessions import Reuse, SharedPrompt

SECONDS = st.floats(0.05, 200.0)


@st.composite
def gaps(draw: st.DrawFn) -> Gap:
    """Any law of gaps."""
    kind = draw(st.integers(0, 2))
    if kind == 0:
        return Exponential(draw(SECONDS))
    if kind == 1:
        return Lognormal(draw(SECONDS), draw(st.floats(0.2, 2.0)))
    return Quantiles(tuple(draw(st.lists(SECONDS, min_size=1, max_size=6))))


@st.composite
def served(
    draw: st.DrawFn, *, reuse: bool = True, share: bool = True, arrivals: bool = True
) -> CachedReplica:
    """Up to three classes on a replica that holds at least four of the largest requests."""
    classes = []
    for i in range(draw(st.integers(1, 3))):
        s, d = (
            draw(st.integers(1, 4000)),
            draw(st.lists(st.integers(1, 300), min_size=1, max_size=3, unique=True)),
        )
        rate = draw(st.floats(0.01, 20.0))
        prompts = []
        if share and draw(st.booleans()):
            weights = draw(st.lists(st.floats(0.05, 0.5), min_size=1, max_size=2))
            prompts = [SharedPrompt(draw(st.integers(0, s)), w) for w in weights]
        again = None
        if reuse and draw(st.booleans()):
            tokens = draw(st.one_of(st.floats(0.0, 1.0), st.integers(0, 5000)))
            from_arrival = arrivals and draw(st.booleans())
            again = Reuse(tokens, draw(st.floats(0.0, 1.0)), draw(gaps()), from_arrival)
        lengths = tuple(sorted(d)), (1.0,) * len(d)
        classes.append(RequestClass(f"class {i}", s, *lengths, rate, tuple(prompts), again))
    page = draw(st.sampled_from([1, 16, 64]))
    largest = max(c.max_tokens for c in classes) + page
    timing = Timing(
        draw(st.floats(1e-3, 0.1)),
        *(draw(st.sampled_from([0.0, unit / 10, unit])) for unit in (1e-7, 5e-5, 1e-5, 1e-3)),
        d6=draw(st.sampled_from([0.0, 2e-9])),
    )
    replica = Replica(
        int(largest * draw(st.floats(4.0, 400.0))),
        page,
        draw(st.sampled_from(Prefill)),
        draw(st.sampled_from([None, 64])),
        draw(st.sampled_from([None, 2048])),
    )
    return cached_replica(ServingModel(tuple(classes), timing, replica))


def full(cached: CachedReplica) -> float:
    """Admissions an iteration at which requests in flight fill memory, if nothing is shared."""
    return cached.replica.capacity_tokens / cached.held


@given(served())
def test_at_any_admissions_there_is_one_state(cached: CachedReplica) -> None:
    """It fills memory or keeps everything, takes as long as it says, and hits no more than can be found."""
    x = full(cached) * np.geomspace(1e-4, 1.0, 25)
    found = cached.states(x)
    tau, age = found.iteration_time_s, found.keeps_s
    total, _ = cached.memory(x, tau, age)
    between = (age > 0) & (age < FOREVER_S)
    assert total[between] == pytest.approx(np.full(between.sum(), cached.replica.capacity_tokens), rel=1e-6)
    assert (found.hits <= cached.reusable * (1 + 1e-12)).all()
    assert (found.hits <= cached.mean("prompt")).all()
    assert (found.hits >= 0).all()


@given(served(reuse=False, share=False))
def test_without_reuse_everything_is_as_it_was(cached: CachedReplica) -> None:
    classes = tuple(
        RequestClass(str(i), int(s.prompt), (int(s.decode),), (1.0,), s.rate_rps)
        for i, s in enumerate(cached.streams)
    )
    model = ServingModel(classes, cached.timing, cached.replica)
    found, known = prefix_cache(cached_replica(model)), min(sustainable_rates(model).values())
    assert found.sustainable_rps == pytest.approx((known, known), rel=1e-11)
    if cached.rate_rps < known * (1 - 1e-9):
        assert found.warm.iteration_time_s == pytest.approx(iteration_time(model), rel=1e-6)
        assert found.warm.hit_tokens == 0
