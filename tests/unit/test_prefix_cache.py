"""The states of a prefix cache: theory §8's values, its map written out, and simulations from the rules alone."""

import math
from dataclasses import replace

import numpy as np
import pytest
from cached import AGENT_LAW, AGENT_MEMORY, agents, mapped_time, one_class, root
from every import every

from kvplan.analysis.cache_states import CachedReplica
from kvplan.analysis.cached_equilibrium import with_rates_of_users
from kvplan.analysis.equilibrium import sustainable_rates
from kvplan.analysis.prefix_cache import guaranteed_rates, prefix_cache
from kvplan.model import Prefill, Replica, RequestClass, ServingModel, Timing
from kvplan.model.gaps import Exponential
from kvplan.model.lengths import Lengths
from kvplan.model.sessions import Reuse, Sessions, SharedPrompt


def test_a_prompt_that_all_share_raises_the_guaranteed_rate() -> None:
    """M - c, A - λ(c·n), Λ - d2·λ·c in α = M/(A·d0 + M·Λ)."""
    memory, held = 100_000 - 800, 1000 * 200 + 200 * 201 / 2 - 800 * 200
    work = 1e-7 * (1000 * 200 + 200 * 201 / 2) + 60e-6 * 200
    assert memory / (held * 0.012 + memory * work) == pytest.approx(24.2247, abs=5e-5)
    with_it = prefix_cache(one_class(8.0, SharedPrompt(800))).sustainable_rps
    assert with_it.guaranteed == pytest.approx(memory / (held * 0.012 + memory * work), rel=1e-9)
    assert with_it.good == pytest.approx(with_it.guaranteed)
    assert prefix_cache(one_class(8.0)).sustainable_rps.guaranteed == pytest.approx(9.223, abs=5e-4)


def test_agents_at_their_offered_rate() -> None:
    """Offered 13.35: hit .822, usage .14, τ 21.1 ms from empty; collapse serves 12.03 (12.06 of a sample)."""
    found = prefix_cache(agents(13.35))
    assert found.sustainable_rps == pytest.approx((12.03, 16.7), abs=0.05)
    assert found.warm.hit_ratio == pytest.approx(0.822, abs=0.004)
    assert found.warm.kv_unique_tokens / AGENT_MEMORY == pytest.approx(0.14, abs=0.002)
    assert found.warm.iteration_time_s == pytest.approx(21.1e-3, abs=1e-4)
    assert found.warm.rate_rps == pytest.approx(13.35, rel=1e-9)
    assert found.collapse_possible
    assert found.collapsed == pytest.approx((12.03, 0.168), abs=0.01)
    assert [state.stable for state in found.states] == [True, False]
    assert found.streams_in_memory == pytest.approx(242, abs=1)


LIMITS = {"block_tokens": 16, "max_num_seqs": 40, "max_num_batched_tokens": 1100}


@every("law", [Timing(0.012, 1e-7, 60e-6), Timing(0.012, 1e-7, 60e-6, 2e-6, 3e-4)])
@every("prefill", Prefill)
@every("limits", [{}, LIMITS, {**LIMITS, "max_num_seqs": 400}])
@every("reuse", [None, Reuse(0.9, 0.8, Exponential(3.0))])
def test_the_guaranteed_rates_are_those_without_a_cache(
    law: Timing, prefill: Prefill, limits: dict[str, int], reuse: Reuse | None
) -> None:
    """The budget takes whole prompts."""
    cached = one_class(5.0, reuse=reuse, law=law, prefill=prefill, **limits)
    model = ServingModel((RequestClass("a", 1000, (200,), (1.0,), 5.0),), law, cached.replica)
    known = sustainable_rates(model)
    expected = {name if name in cached_limits else "memory": rate for name, rate in known.items()}
    assert guaranteed_rates(cached) == pytest.approx(expected, rel=1e-12)


cached_limits = ("max_num_seqs", "max_num_batched_tokens")


def test_parts_of_prompts_count_in_the_guaranteed_rates() -> None:
    """1000 tokens by 300 keep a seat for three iterations more than 200."""
    limits = {"max_num_seqs": 40, "max_num_batched_tokens": 300}
    cached = one_class(5.0, prefill=Prefill.FUSED, **limits)
    whole = replace(cached.replica, max_num_batched_tokens=None)
    classes = (RequestClass("a", 1000, (200,), (1.0,), 5.0),)
    counted, uncounted = (
        sustainable_rates(ServingModel(classes, cached.timing, replica))
        for replica in (cached.replica, whole)
    )
    assert guaranteed_rates(cached)["max_num_seqs"] == pytest.approx(counted["max_num_seqs"], rel=1e-12)
    assert counted["max_num_seqs"] < uncounted["max_num_seqs"] < counted["max_num_seqs"] * 203 / 200


def test_a_hit_curve_hits_by_memory_alone() -> None:
    """Half way between 50k tokens, 10 %, and 150k, 50 %: 30 % of the prompt costs no time."""
    plain = one_class(5.0)
    found = prefix_cache(
        CachedReplica(plain.streams, plain.timing, plain.replica, ((50_000, 0.1), (150_000, 0.5)))
    )
    held = 1000 * 200 + 200 * 201 / 2
    work = 1e-7 * held + 60e-6 * 1000 * 0.7
    assert found.warm.hit_ratio == pytest.approx(0.3)
    assert found.warm.iteration_time_s == pytest.approx(0.012 / (1 - 5 * work))
    assert found.sustainable_rps == pytest.approx((100_000 / (held * 0.012 + 100_000 * work),) * 2)
    assert not found.collapse_possible


CASES = {
    "private": {"shared": 0.0, "law": Timing(0.012, 1e-7, 60e-6, 1e-6)},
    "shared": {"shared": 400.0, "law": Timing(0.012, 1e-7, 60e-6, 1e-6)},
    "concave": {"shared": 400.0, "law": Timing(0.012, 1e-7, 60e-6, 1e-6, 1e-3)},
    "convex": {"shared": 400.0, "law": Timing(0.012, 1e-7, 55e-6, 1e-6, d5=5e-6)},
}


@every("name", CASES)
@every("part", [0.3, 0.7, 0.95, 0.999])
def test_states_are_fixed_points_and_loop_gains_their_slopes(name: str, part: float) -> None:
    case = CASES[name]
    common, law = int(case["shared"]), case["law"]
    reuse = Reuse(900, 0.9, Exponential(4.0))
    shared = (SharedPrompt(common),) if common else ()

    def at(rate: float) -> CachedReplica:
        return one_class(rate, *shared, reuse=reuse, law=law, memory=400_000)

    good, guaranteed = (prefix_cache(at(1.0)).sustainable_rps[i] for i in (1, 0))
    rate = guaranteed + (good - guaranteed) * part if part > 0.9 else good * part
    cached = at(rate)
    states = prefix_cache(cached).states
    assert len(states) == (2 if rate > guaranteed else 1)
    left = 1000 + 200 - 1 - common
    q = 0.9 * (900 - common) / left
    given = {"rate": rate, "memory": 400_000, "law": law, "s": 1000, "n": 200}
    given |= {"left": left, "q": q, "think_s": 4.0, "shared": common}
    for state in states:
        tau, step = state.iteration_time_s, state.iteration_time_s * 1e-5
        assert mapped_time(tau, **given) == pytest.approx(tau, rel=1e-6)
        slope = (mapped_time(tau + step, **given) - mapped_time(tau - step, **given)) / (2 * step)
        assert state.loop_gain == pytest.approx(slope, rel=0.01, abs=2e-4)
        assert state.stable == (slope < 1)


def asked_by(*users: int, law: Timing = Timing(0.012, 1e-7, 60e-6)) -> ServingModel:  # noqa: B008
    """Kinds of users who ask once a session, 1000 tokens each, and think for 5 s."""
    s, once = Lengths.of({1000: 1.0}), Lengths.of({1: 1.0})
    kinds = [Sessions(s, once, Lengths.of({200: 1.0}), once, Exponential(5.0), users=n) for n in users]
    classes = tuple(
        RequestClass(str(i), 1000, (200,), (1.0,), 1.0, sessions=one) for i, one in enumerate(kinds)
    )
    return ServingModel(classes, law, Replica(100_000))


@pytest.mark.parametrize("rate", [9.0, 13.35, 16.5])
def test_the_loop_gain_of_agents_is_the_slope_too(rate: float) -> None:
    """Theory §8's map of sessions, its integrals as sums."""
    cached = agents(rate)
    (own,) = cached.streams
    ages = np.geomspace(1e-3, 1e6, 400_001)
    reached = np.array([math.erfc(-math.log(age / 10.0) / math.sqrt(2)) / 2 for age in ages[::100].tolist()])
    law = np.interp(ages, ages[::100], reached)
    flow = rate * (own.left - own.reused * law)
    stock = flow[0] * ages[0] + np.concatenate([[0.0], np.cumsum((flow[1:] + flow[:-1]) / 2 * np.diff(ages))])

    def mapped(tau: float) -> float:
        kept = np.interp(AGENT_MEMORY - rate * own.held * tau, stock, ages)
        computed = rate * (own.prompt - own.reused * np.interp(kept, ages, law))
        return root(
            lambda t: t - AGENT_LAW(rate * own.read * t, computed * t, rate * own.stages * t), 0.0, 1.0
        )

    states = prefix_cache(cached).states
    assert [state.stable for state in states] == ([True] if rate < 12 else [True, False])
    for state in states:
        tau, step = state.iteration_time_s, state.iteration_time_s * 2e-3
        assert mapped(tau) == pytest.approx(tau, rel=1e-4)
        slope = (mapped(tau + step) - mapped(tau - step)) / (2 * step)
        assert state.loop_gain == pytest.approx(slope, rel=0.01, abs=2e-4)


@pytest.mark.parametrize("users", [1, 40, 90])
def test_users_who_think_ask_as_often_as_they_are_answered(users: int) -> None:
    """λ·(Z + nτ) = users, without reuse: τ = d0/(1 - λ·work), a quadratic in λ."""
    work = 1e-7 * (1000 * 200 + 200 * 201 / 2) + 60e-6 * 1000
    rate = root(lambda x: x * (5.0 + 200 * 0.012 / (1 - x * work)) - users, 0.0, 0.999 / work)
    assert with_rates_of_users(asked_by(users)).total_rate_rps == pytest.approx(rate, rel=1e-9)
    if users > 1:
        split = with_rates_of_users(asked_by(users // 4, users - users // 4))
        assert split.total_rate_rps == pytest.approx(rate, rel=1e-9)


@every("budget", [300, 600, 2000])
def test_a_token_budget_serves_users_as_fast_as_arrivals_at_a_rate(budget: int) -> None:
    """Beyond the budget there are no states: users wait, and do not vanish."""
    asking = asked_by(40)
    limited = replace(asking, replica=replace(asking.replica, max_num_batched_tokens=budget))
    open_ = RequestClass("a", 1000, (200,), (1.0,), 1.0)
    rate = min(sustainable_rates(replace(limited, classes=(open_,))).values())
    assert min(sustainable_rates(limited).values()) == pytest.approx(rate, rel=0.01)


def test_users_who_do_not_fit_beside_others_ask_half_as_often_on_a_clock_twice_as_slow() -> None:
    def rates(clock: float) -> list[float]:
        (users,) = asked_by(1000).classes
        assert users.sessions is not None
        users = replace(users, sessions=replace(users.sessions, think=Exponential(5.0 * clock)))
        other = RequestClass("b", 3000, (20,), (1.0,), 0.5 / clock)
        law = Timing(0.012 * clock, 1e-7 * clock, 60e-6 * clock)
        model = ServingModel((users, other), law, Replica(100_000))
        return [c.rate_rps for c in with_rates_of_users(model).classes]

    assert rates(2.0) == pytest.approx([rate / 2 for rate in rates(1.0)])
