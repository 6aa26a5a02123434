"""What must hold of a prefix cache whatever the traffic, the replica and the law of the iteration time."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvplan.analysis.cache_states import FOREVER_S, CachedReplica, cached_replica
from kvplan.analysis.equilibrium import iteration_time, sustainable_rates
from kvplan.analysis.prefix_cache import guaranteed_rates, prefix_cache
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


@given(served(), st.floats(0.01, 0.99), st.floats(1.001, 1.5))
def test_a_longer_iteration_lengthens_the_next_or_leaves_it(
    cached: CachedReplica, part: float, longer: float
) -> None:
    """Theory's map at one rate: memory in flight, what is kept, hits, and so the time; think times only."""
    streams = tuple(replace(s, from_arrival=False, shared=()) for s in cached.streams)
    cached = CachedReplica(streams, cached.timing, cached.replica)
    end = cached.states(np.array([full(cached)]), warm=False)
    rate = float(end.rate_rps[0]) * part
    tau = float(end.iteration_time_s[0]) * part * np.array([1.0, longer])
    x = rate * tau
    age = cached.keeps(x, tau, np.zeros(2))
    hits = cached.hits(x, tau, age)
    assert hits[1] <= hits[0] * (1 + 1e-9) + 1e-9


@given(served())
def test_the_guaranteed_rate_is_at_most_the_good_one(cached: CachedReplica) -> None:
    found = prefix_cache(cached)
    assert 0 < found.sustainable_rps.guaranteed <= found.sustainable_rps.good
    assert found.collapse_possible or found.collapsed is None
    assert found.collapse_possible == (found.collapsed is not None) or len(found.states) >= 3
    if found.warm is not None:
        assert 0 <= found.warm.hit_ratio <= found.reusable_ratio * (1 + 1e-12)
        assert found.warm.rate_rps == pytest.approx(cached.rate_rps, rel=1e-6)


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
        assert found.warm is not None
        assert found.warm.iteration_time_s == pytest.approx(iteration_time(model), rel=1e-6)
        assert found.warm.hit_tokens == 0


@given(served(share=False, arrivals=False))
def test_reuse_of_ones_own_never_raises_the_guaranteed_rate(cached: CachedReplica) -> None:
    alone = CachedReplica(
        tuple(replace(s, reused=0.0, reused_squares=0.0, gap=None) for s in cached.streams),
        cached.timing,
        cached.replica,
    )
    assert guaranteed_rates(cached) == pytest.approx(guaranteed_rates(alone), rel=1e-11)


@given(served(reuse=False))
def test_a_shared_prompt_never_lowers_the_guaranteed_rate(cached: CachedReplica) -> None:
    alone = CachedReplica(tuple(replace(s, shared=()) for s in cached.streams), cached.timing, cached.replica)
    more, less = prefix_cache(cached).sustainable_rps, prefix_cache(alone).sustainable_rps
    assert more.guaranteed >= less.guaranteed * (1 - 1e-9)
    assert more.good >= less.good * (1 - 1e-9)


@given(served(), st.floats(0.1, 10.0))
def test_a_slower_clock_slows_everything_alike(cached: CachedReplica, factor: float) -> None:
    """All times so many times longer and rates so many times lower: the same hits."""

    def slower(gap: Gap | None) -> Gap | None:
        match gap:
            case Exponential(mean):
                return Exponential(mean * factor)
            case Lognormal(median, sigma):
                return Lognormal(median * factor, sigma)
            case Quantiles(values):
                return Quantiles(tuple(v * factor for v in values))
            case _:
                return None

    slow = CachedReplica(
        tuple(replace(s, rate_rps=s.rate_rps / factor, gap=slower(s.gap)) for s in cached.streams),
        Timing(*(constant * factor for constant in cached.timing.constants)),
        cached.replica,
    )
    x = full(cached) * np.geomspace(1e-3, 1.0, 9)
    before, after = cached.states(x), slow.states(x)
    assert after.iteration_time_s == pytest.approx(before.iteration_time_s * factor, rel=1e-6)
    assert after.hits == pytest.approx(before.hits, rel=1e-4, abs=1e-6)


@given(served(arrivals=False), st.integers(2, 8))
def test_tokens_can_be_counted_in_larger_ones(cached: CachedReplica, factor: int) -> None:
    """Every amount of tokens so many times larger, the time of each so many times shorter: the same rates."""
    tokens = ("read", "held", "prompt", "prefill", "left", "reused")
    streams = tuple(
        replace(
            s,
            **{name: getattr(s, name) * factor for name in tokens},
            left_squares=s.left_squares * factor**2,
            reused_squares=s.reused_squares * factor**2,
            held_squares=s.held_squares * factor**2,
            shared=tuple(SharedPrompt(p.tokens * factor, p.weight) for p in s.shared),
        )
        for s in cached.streams
    )
    t = cached.timing
    pages = cached.replica.capacity_tokens
    large = CachedReplica(
        streams,
        Timing(t.d0, t.d1 / factor, t.d2 / factor, t.d3, t.d4),
        replace(cached.replica, memory_tokens=pages * factor, max_num_batched_tokens=None),
    )
    small = CachedReplica(cached.streams, t, replace(cached.replica, max_num_batched_tokens=None))
    assert prefix_cache(large).sustainable_rps == pytest.approx(prefix_cache(small).sustainable_rps, rel=1e-6)
