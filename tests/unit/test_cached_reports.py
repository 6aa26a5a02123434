"""What a report says where a prefix cache finds something: rates, verdict, and what keeps it from collapsing."""

import math
import re
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from measured import UNDRAINED, brief

from kvplan.analysis.cache_states import cached_replica
from kvplan.analysis.equilibrium import sustainable_rate
from kvplan.analysis.prefix_cache import population_of, prefix_cache
from kvplan.analysis.wait import Overload
from kvplan.errors import ProfileError
from kvplan.model import Plan, ServingModel
from kvplan.profile.reading import Profile, parse_profile
from kvplan.report.assembly import Analyses, report_of
from kvplan.report.blocks import enough_memory
from kvplan.report.ledger import plain
from kvplan.report.words import Status
from kvplan.show.report import build
from kvplan.show.terminal import render
from kvplan.study import operating_point
from kvplan.study.drain import Drain

AGENTS = """
schema = 1
name = "agents"
gpu = { memory_tokens = 4_000_000, block_tokens = 16 }
timing = { d0 = "15 ms", d1 = "0.005 us", d2 = "4 us", d3 = "1 us" }
[[sessions]]
name = "agent"
rate = 0.834
first = { uniform = [4000, 12000] }
user = { uniform = [300, 1500] }
decode = { uniform = [40, 200] }
turns = { uniform = [8, 24] }
think = { law = "lognormal", median = "10 s", sigma = 1.0 }
"""
CHAT = """
schema = 1
name = "chat"
gpu = { memory_tokens = 100_000 }
timing = { d0 = "12 ms", d1 = "0.1 us", d2 = "60 us" }
[[classes]]
name = "a"
input = 1000
decode = 200
rate = 20
"""


def profile(text: str, *changes: tuple[str, str]) -> Profile:
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    return parse_profile(text.encode(), "some.toml")


def analyses(text: str, *changes: tuple[str, str]) -> Analyses:
    """What a report holds but for a burst and advice, each block computed where a test looks at it."""
    return brief(profile(text, *changes).model)


def test_agents_of_the_theory() -> None:
    """Figures of theory §8: guaranteed 12.03, good 16.7; at 13.35 requests/s .822, .14 and 21.1 ms."""
    found = analyses(AGENTS)
    cache, offered, state = plain(found.prefix_cache, "prefix_cache"), found.load, found.equilibrium
    assert offered.offered_rps == pytest.approx(0.834 * 16)
    assert offered.sustainable_rps == cache["sustainable_rps"]["guaranteed"]
    assert cache["sustainable_rps"] == pytest.approx({"guaranteed": 12.03, "good": 16.67}, abs=0.01)
    assert cache["hit_ratio"] == pytest.approx(0.822, abs=0.004)
    assert state.kv_utilization == pytest.approx(0.14, abs=0.002)
    assert state.iteration_time_s == pytest.approx(0.0211, rel=0.01)
    assert found.saturation.throughput_rps == pytest.approx(cache["collapsed"]["throughput_rps"])
    assert offered.headroom is not None
    assert offered.headroom < 0
    assert cache["collapse_possible"] is True
    assert found.status is Status.NEEDS_CAP
    assert "branches" not in cache


def test_a_burst_that_is_over_too_late_is_said_to_be_over() -> None:
    """All five runs come back, after hours: the cache was not lost for good, as a larger burst may have it."""
    hours = Drain(
        300, 3.0 * 3600, 2.0 * 3600, 4.0 * 3600, runs_s=(7200.0, 9000.0, 10_800.0, 12_000.0, 14_400.0)
    )
    model = profile(AGENTS).model
    found = Analyses(model, Plan(), {"advice": (), "drain": hours, "headroom": None})
    assert found.verdict.status is Status.NEEDS_CAP
    assert "a standard burst empties it and is over after 3 h only; a larger one may" in found.verdict.summary
    assert "can empty it for good" in analyses(AGENTS).verdict.summary


@pytest.mark.nightly
def test_it_says_what_keeps_agents_from_collapsing() -> None:
    found = Analyses(profile(AGENTS).model, Plan())
    assert found.prefix_cache is not None
    assert found.equilibrium.requests_in_flight is not None
    assert found.prefix_cache.separatrix_in_flight is not None
    limits = {setting.name: setting.value for setting in found.advice[0].settings}
    seats = limits.pop("max_num_seqs")
    assert found.equilibrium.requests_in_flight < seats < found.prefix_cache.separatrix_in_flight
    # an eighth of the time after which what nobody asks for is gone
    age = found.prefix_cache.characteristic_time_s
    assert limits == {"shed_after": pytest.approx(age and age / 8, rel=0.02)}
    assert re.match(
        rf"Set max_num_seqs = {seats} and shed_after = .*: tried, .* then drains", found.actions[0]
    )
    assert "2 replicas" in found.actions[1]


def test_sessions_stay_on_a_replica_where_there_are_any() -> None:
    """Of prompts that begin alike 24.2 requests/s are guaranteed: 35 take two replicas."""
    shared = profile(CHAT, ("rate = 20", "rate = 35\nshared = 800")).model
    cache = brief(shared).prefix_cache
    assert cache is not None
    known = {"status": Status.NEEDS_CAP, "advice": (), "headroom": None, "drain": UNDRAINED, "goodput": None}
    chat = Analyses(shared, Plan(), {**known, "prefix_cache": cache._replace(collapse_possible=True)})
    assert "Serve it with 2 replicas: by formula it cannot collapse then." in chat.actions
    agents = Analyses(profile(AGENTS).model, Plan(), known)
    assert (
        "Serve it with 2 replicas, each session on one of them: by formula it cannot collapse then."
        in agents.actions
    )


def test_enough_memory_guarantees_the_rate() -> None:
    """Agents at .75 sessions/s: 12.0 are served by a little less memory than there is, 12.2 by a little more."""
    model = profile(AGENTS, ("0.834", "0.77")).model
    memory = enough_memory(model)
    assert memory is not None
    more = profile(AGENTS, ("0.834", "0.77"), ("4_000_000", str(memory))).model
    assert sustainable_rate(more)[1] >= model.total_rate_rps
    less = profile(AGENTS, ("0.834", "0.77"), ("4_000_000", str(int(memory * 0.98)))).model
    assert sustainable_rate(less)[1] < model.total_rate_rps


def test_a_shared_prompt_raises_what_is_sustainable() -> None:
    assert analyses(CHAT).load.sustainable_rps == pytest.approx(9.2232, abs=1e-4)
    found = analyses(CHAT, ("rate = 20", "rate = 20\nshared = 800"))
    assert found.load.sustainable_rps == pytest.approx(24.2247, abs=1e-4)
    assert found.prefix_cache is not None
    assert found.prefix_cache.collapse_possible is False
    assert found.equilibrium.kv_tokens is not None
    # K = λ·S·τ - c·(λnτ - 1 + e^(-λnτ)), τ = d0/(1 - λ·work)
    work = 1e-7 * (1000 * 200 + 200 * 201 / 2) + 60e-6 * 200
    tau = 0.012 / (1 - 20 * work)
    held = 20 * tau * (1000 * 200 + 200 * 201 / 2) - 800 * (20 * 200 * tau - 1)
    assert found.equilibrium.kv_tokens == pytest.approx(held, rel=1e-9)


@pytest.mark.parametrize(("input_tokens", "counts"), [((0,), False), ((0, 1), True)])
def test_a_measured_curve_counts_as_soon_as_one_prompt_has_tokens(
    input_tokens: tuple[int, ...], counts: bool
) -> None:
    text = (
        'schema = 1\nname = "x"\ngpu = { memory_tokens = 9999, prefix_caching = false }\ntiming.d0 = 0.01\n'
        "prefix.hit_curve = [[1000, 0.1]]\n"
    )
    classes = (f'[[classes]]\nname = "{n}"\ninput = {n}\ndecode = 9\nrate = 1\n' for n in input_tokens)
    found = analyses(text + "".join(classes))
    assert any("counts for nothing" in note for note in found.notes) is counts
    assert not found.model.finds_prefixes


def test_more_than_a_warm_cache_serves_is_too_much() -> None:
    found = analyses(AGENTS, ("0.834", "1.1"))
    assert found.status is Status.OVERLOADED
    assert "even a warm prefix cache" in found.verdict.summary
    assert found.equilibrium.kv_tokens is None


def users(count: int) -> ServingModel:
    return profile(AGENTS, ("rate = 0.834", f"users = {count}")).model


@pytest.mark.parametrize("count", [40, 240, 340])
def test_users_ask_as_fast_as_they_are_answered(count: int) -> None:
    """users = λ·(nτ + think), n = 120 stages and a think time of 10·e^½ s."""
    model = users(count)
    found = brief(model)
    tau = found.equilibrium.iteration_time_s
    assert tau is not None
    assert model.total_rate_rps * (120 * tau + 10 * math.exp(0.5)) == pytest.approx(count, rel=1e-6)
    assert found.load.load_factor_max == pytest.approx(
        population_of(cached_replica(model)).guaranteed / count, rel=1e-9
    )
    assert found.prefix_cache is not None
    assert found.prefix_cache.collapse_possible is False


ASKING = """
schema = 1
name = "asking"
timing = { d0 = "10 ms", d2 = "60 us" }
[[sessions]]
name = "a"
users = 40
shared = 3000
first = 900
user = 900
decode = 100
turns = 1
think = { law = "exponential", mean = "5 s" }
[gpu]
block_tokens = 16
"""
LAYERS = """kv_blocks = 25_000
kv = [{ kind = "window", layers = 1, bytes = 8, window = 512 }, { kind = "full", layers = 1, bytes = 8 }]
"""


@pytest.mark.parametrize(
    ("memory", "computed"),
    [
        ("memory_tokens = 400_000\n", 3900 - 2992),
        ("memory_tokens = 400_000\nprefix_caching = false\n", 3900),
        (f"prefix_caching = false\n{LAYERS}", 3900),
        (LAYERS, 3900),
    ],
)
def test_users_ask_for_whole_prompts_where_nothing_is_found(memory: str, computed: int) -> None:
    """users = λ·(nτ + think) and τ = d0 + d2·λτ·s: two lines that meet once, found by halving."""
    low, high = 0.0, 1 / (60e-6 * computed)
    for _ in range(60):
        rate = (low + high) / 2
        asked = rate * (100 * 10e-3 / (1 - 60e-6 * computed * rate) + 5)
        low, high = (rate, high) if asked < 40 else (low, rate)
    assert profile(ASKING + memory).model.total_rate_rps == pytest.approx(rate, rel=1e-6)


SMALL = (("4_000_000", "400_000"), ("0.005 us", "0.05 us"), ('"4 us"', '"40 us"'), ("1 us", "10 us"))


def test_the_guaranteed_rate_is_that_of_the_users_who_ask_most() -> None:
    """More ask less: some 440 fill memory with requests, and find nothing any more."""
    population = population_of(cached_replica(users(240)))

    def asked_rps(count: float) -> float:
        warm = prefix_cache(cached_replica(users(round(count)))).warm
        assert warm is not None
        return warm.rate_rps

    assert asked_rps(population.busiest) == pytest.approx(population.guaranteed_rps, rel=1e-3)
    for part in (0.9, 1.1):
        assert asked_rps(part * population.busiest) < 0.97 * population.guaranteed_rps
    assert population.guaranteed > 1.2 * population.busiest


def test_of_too_many_users_it_says_what_they_are_served_and_which_cap_serves_more() -> None:
    """CONCUR's setting. Runs of 4 h serve 1.21 requests/s, and 1.53 with a cap of 30; a replica of 34 users is warm."""
    found = profile(AGENTS, ("rate = 0.834", "users = 100"), *SMALL).model
    report = report_of(brief(found), trial=True)
    assert report.prefix_cache is not None
    assert report.prefix_cache.collapsed.throughput_rps == pytest.approx(1.21, rel=0.01)
    cap, gain = re.findall(r"^Cap conversations in flight at (\d+) .*, \+([\d.]+)% with", report.actions[0])[
        0
    ]
    assert 25 <= int(cap) <= 36
    assert float(gain) == pytest.approx(100 * (1.53 / 1.21 - 1), abs=8)
    assert report.actions[0] in report.notes
    assert report.actions[1].startswith("Serve it with 3 replicas")
    text = " ".join(render(build(report)).split())
    assert "no warm state: 1.203 requests/s are served;" in text
    assert len(re.findall(r"1\.667 requests/s with 36\.18 users", text)) == 2
    assert "requests/s if none waited" in text
    assert not any("Cap" in action for action in report_of(brief(found)).actions)


def test_memory_holds_the_conversations_of_many_users_whatever_they_would_ask_for() -> None:
    """Of 300 who begin at once, runs find a third or more again after 4 h with so much, nothing with 4.3 million."""
    memory = enough_memory(profile(AGENTS, ("rate = 0.834", "users = 300"), *SMALL).model)
    assert memory == pytest.approx(4.61e6, rel=0.02)


@pytest.mark.parametrize("count", [500, 1000])
def test_enough_memory_or_replicas_for_users_are_for_so_many_of_them(count: int) -> None:
    found = brief(users(count))
    memory, least = enough_memory(found.model), math.ceil(1 / found.load.load_factor_max)
    assert memory is not None
    assert found.status is Status.NEEDS_CAP
    assert any(f"Serve it with {least} replicas" in action for action in found.actions)

    def collapses(part: float, tokens: float) -> bool:
        fewer = users(math.ceil(count * part))
        replica = replace(fewer.replica, memory_tokens=int(tokens))
        return prefix_cache(cached_replica(replace(fewer, replica=replica))).collapse_possible

    tokens = found.model.replica.memory_tokens
    assert (collapses(1 / least, tokens), collapses(1 / (least - 1), tokens)) == (False, True)
    assert (collapses(1.0, memory), collapses(1.0, 0.98 * memory)) == (False, True)


def test_a_hit_curve_makes_prefill_shorter() -> None:
    """Half way between the points; work without it: 1e-7·S + 60e-6·1000."""
    curve = "[prefix]\nhit_curve = [[50_000, 0.1], [150_000, 0.3]]"
    found = analyses(CHAT + curve)
    footprint = 1000 * 200 + 200 * 201 / 2
    work = 1e-7 * footprint + 60e-6 * 1000 * 0.8
    assert found.load.sustainable_rps == pytest.approx(100_000 / (footprint * 0.012 + 100_000 * work))
    assert found.prefix_cache is not None
    assert found.prefix_cache.hit_ratio is None or found.prefix_cache.hit_ratio == pytest.approx(0.2)


@settings(max_examples=15)
@given(
    st.integers(20_000, 3_000_000),
    st.floats(0.02, 2.0),
    st.integers(100, 4000),
    st.integers(0, 3000),
    st.floats(1.0, 60.0),
)
def test_what_can_collapse_is_never_called_stable(
    memory: int, rate: float, first: int, shared: int, think: float
) -> None:
    try:
        found = analyses(
            AGENTS,
            ("4_000_000", str(memory)),
            ("0.834", repr(rate)),
            ("uniform = [4000, 12000]", f"uniform = [{first}, {2 * first}]"),
            ('"10 s"', repr(think)),
            ("first =", f"shared = {shared}\nfirst ="),
        )
    except ProfileError:
        return  # the longest session does not fit
    cache: Any = found.prefix_cache
    assert cache.sustainable_rps.guaranteed <= cache.sustainable_rps.good
    if cache.collapse_possible:
        assert found.status is not Status.STABLE
    if found.status is Status.STABLE:
        assert found.load.offered_rps <= cache.sustainable_rps.guaranteed
        assert found.recovery.rate_rps is not None
        assert found.recovery.rate_rps <= cache.sustainable_rps.guaranteed


@pytest.mark.nightly
def test_with_a_limit_of_its_own_the_wait_is_what_is_missing() -> None:
    seats = ("block_tokens = 16", "block_tokens = 16, max_num_seqs = 117")
    found = Analyses(profile(AGENTS, seats).model, Plan())
    assert [setting.name for setting in found.advice[0].settings] == ["shed_after"]
    assert found.advice[0].sustains_offered
    assert found.actions[0].startswith("Set shed_after = ")
    assert found.actions[1].startswith("Serve it with 2 replicas")


def test_what_users_could_send_bounds_a_run_of_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """All of it is drawn, so that runs that double until they settle, and these never do, end before memory does."""
    run_window, runs = operating_point.run_window, []

    def counted(*given: Any) -> Any:
        runs.append(given)
        return run_window(*given)

    monkeypatch.setattr(operating_point, "run_window", counted)
    monkeypatch.setattr(operating_point, "_AGREE", 0.0)
    monkeypatch.setattr(operating_point, "_WAIT_S", math.inf)
    monkeypatch.setattr(operating_point, "_MOST_DRAWN", 2000)
    model = profile(ASKING + "memory_tokens = 60_000\nprefix_caching = false\n").model
    operating_point.tried(Overload(thresholds=(5.0,)), model, Plan())
    assert 1 < len(runs) < 8
