"""A host tier behind the prefix cache: theory §13's example, and its map written out for exponential gaps."""

import math
from dataclasses import replace

import pytest
from cached import root
from hypothesis import given
from hypothesis import strategies as st

from kvplan.analysis.cache_states import CachedReplica
from kvplan.analysis.prefix_cache import full_rate, host_tier, prefix_cache
from kvplan.model import Replica, Timing
from kvplan.model.gaps import Exponential
from kvplan.model.replica import Offload
from kvplan.model.streams import PromptKind, Stream

S, N, M, D0, D1, D2 = 3000, 200, 400_000, 12e-3, 1e-7, 60e-6
FOOTPRINT = S * N + N * (N + 1) / 2
THINK_S = 60.0


def example(rate: float, tier: Offload | None, left: float = 3000.0) -> CachedReplica:
    """Requests leave what they are given there, and 2,400 tokens on average are asked for again."""
    stream = Stream(
        rate_rps=rate,
        stages=N,
        read=FOOTPRINT,
        held=FOOTPRINT,
        held_squares=FOOTPRINT**2 / N,
        prompt=S,
        prompt_squares=S**2,
        prefill=S,
        prefill_pairs=S * (S + 1) / 2,
        computed=S + N - 1,
        decode=N,
        left=left,
        left_squares=left**2,
        reused=2400.0,
        reused_squares=2400.0 * 3000,
        gap=Exponential(THINK_S),
        prompts=(PromptKind(0.2, S, 0), PromptKind(0.8, S, 3000)),
    )
    return CachedReplica((stream,), Timing(D0, D1, D2), Replica(M, offload=tier))


@pytest.mark.parametrize(("times", "rate"), [(2, 4.90), (5, 7.18)])
def test_the_example_of_the_theory_is_what_a_full_replica_serves_while_nobody_waits(
    times: int, rate: float
) -> None:
    found = host_tier(example(3.0, Offload(times * M, 5e-6, overlap=False)), None)
    assert found.recovery_rps == pytest.approx(rate, abs=0.005)


def stock(rate: float, age: float, wait: float = 0.0) -> float:
    """What was left in the last `age` seconds and not asked for since: 2,400 tokens of it after an exponential gap."""
    after = max(age - wait, 0.0)
    return rate * (600 * age + 2400 * (min(age, wait) + THINK_S * (1 - math.exp(-after / THINK_S))))


def gone_after(rate: float, room: float, wait: float = 0.0) -> float:
    return root(lambda t: stock(rate, t, wait) - room, 0.0, 1e7) if room > 0 else 0.0


def mapped(rate: float, tier: Offload, tau: float) -> tuple[float, float, float]:
    """Theory §13's map of τ, and tokens of a request found on the GPU and on the host."""
    used = rate * FOOTPRINT * tau
    here = gone_after(rate, M - used)
    room = (tier.memory_tokens if tier.inclusive else M + tier.memory_tokens) - used
    there = max(here, gone_after(rate, room))
    on_gpu, all_told = (2400 * (1 - math.exp(-t / THINK_S)) for t in (here, there))
    loads = all_told - on_gpu
    work = rate * (FOOTPRINT * D1 + S * D2 - D2 * all_told + (0 if tier.overlap else tier.load_s * loads))
    return D0 / (1 - work) if work < 1 else math.inf, on_gpu, loads


@given(
    rate=st.floats(0.5, 3.8),
    tokens=st.integers(50_000, 4_000_000),
    load_us=st.floats(0.1, 30),
    inclusive=st.booleans(),
    overlap=st.booleans(),
)
def test_the_warm_state_is_a_fixed_point_of_the_map(
    rate: float, tokens: int, load_us: float, inclusive: bool, overlap: bool
) -> None:
    tier = Offload(tokens, load_us * 1e-6, inclusive, overlap)
    warm = prefix_cache(example(rate, tier)).warm
    tau, on_gpu, loads = mapped(rate, tier, warm.iteration_time_s)
    assert warm.iteration_time_s == pytest.approx(tau, rel=1e-6)
    assert warm.hit_tokens == pytest.approx(on_gpu + loads, rel=1e-5)
    assert warm.host_hit_ratio * S == pytest.approx(loads, rel=1e-4, abs=1e-3)
    assert warm.link_utilization == pytest.approx(rate * loads * tier.load_s, rel=1e-4, abs=1e-9)


@given(
    wait=st.floats(0.0, 60.0),
    tokens=st.integers(500_000, 3_000_000),
    inclusive=st.booleans(),
    overlap=st.booleans(),
)
def test_a_full_replica_serves_what_waits_leave_of_the_hits(
    wait: float, tokens: int, inclusive: bool, overlap: bool
) -> None:
    """K = M: nothing on the GPU, and on the host what is asked for within T2, of which the wait is a part."""
    tier = Offload(tokens, 5e-6, inclusive, overlap)
    served = full_rate(replace(example(3.0, tier), wait_s=wait))

    def short_of(rate: float) -> float:
        age = gone_after(rate, tokens - M * inclusive, wait)
        loads = 2400 * (1 - math.exp(-max(age - wait, 0.0) / THINK_S))
        saved = rate * loads * (D2 - (0 if overlap else tier.load_s))
        work = rate * (FOOTPRINT * D1 + S * D2) - saved
        return rate * FOOTPRINT * D0 - M * (1 - work)

    assert served == pytest.approx(root(short_of, 1.0, 20.0), rel=1e-6)


def test_the_longest_wait_is_where_a_full_replica_serves_what_is_offered() -> None:
    cached = example(4.4, Offload(2 * M, 5e-6, overlap=False))
    found = host_tier(cached, None)
    assert found.longest_wait_s is not None
    assert full_rate(replace(cached, wait_s=found.longest_wait_s)) == pytest.approx(4.4, rel=1e-6)
    for rate in (3.8, 4.95):  # from any queue, and from none
        other = host_tier(example(rate, Offload(2 * M, 5e-6, overlap=False)), None)
        assert other.longest_wait_s is None


@pytest.mark.parametrize("inclusive", [True, False])
def test_the_loop_gain_is_the_slope_of_the_map(inclusive: bool) -> None:
    """Loads that nearly take as long as computing: a longer iteration finds less on the GPU and loads more."""
    tier = Offload(M, 50e-6, inclusive, overlap=False)
    warm = prefix_cache(example(3.6, tier)).warm
    tau, step = warm.iteration_time_s, warm.iteration_time_s * 1e-4
    slope = (mapped(3.6, tier, tau + step)[0] - mapped(3.6, tier, tau - step)[0]) / (2 * step)
    assert warm.loop_gain == pytest.approx(slope, rel=1e-3)
    assert slope > 0.05


def test_a_curve_is_read_at_what_both_tiers_hold() -> None:
    curve = ((float(M), 0.1), (3.0 * M, 0.5))
    cached = replace(example(3.0, Offload(M, 5e-6, inclusive=False)), hit_curve=curve)
    warm = prefix_cache(cached).warm
    assert (warm.hit_ratio, warm.host_hit_ratio) == (pytest.approx(0.3), pytest.approx(0.2))
    copies = prefix_cache(
        replace(cached, replica=replace(cached.replica, offload=Offload(M // 2, 5e-6)))
    ).warm
    assert (copies.hit_ratio, copies.host_hit_ratio) == (pytest.approx(0.1), 0.0)
