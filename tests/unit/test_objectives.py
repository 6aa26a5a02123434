"""Objectives decided by runs: shares and means of a queue whose laws are known, and of made-up windows."""

import math
from collections.abc import Mapping
from fractions import Fraction
from io import BytesIO
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from every import every
from hypothesis import example, given
from hypothesis import strategies as st
from tiers import examples, is_night

from kvplan.analysis.cached_equilibrium import users_of, with_part_of_users, with_rates_of_users
from kvplan.gate.judgement import Subject, judge, standing
from kvplan.gate.requirement import parse, parse_key
from kvplan.model import ArrivalProcess, Plan, Replica, RequestClass, ServingModel, Timing
from kvplan.model.arrivals import Recorded
from kvplan.model.classes import Prompt
from kvplan.model.gaps import Exponential
from kvplan.model.lengths import Lengths
from kvplan.model.sessions import Sessions
from kvplan.model.slo import Slo, parse_slo
from kvplan.profile.reading import load_profile
from kvplan.report.assembly import Analyses
from kvplan.simulation.estimates import Trend
from kvplan.simulation.policies.protocol import Settings
from kvplan.simulation.state import GAPS, GAPS_IN_E, SHORTEST_GAP_S
from kvplan.study.goodput import Goodput, at_rate, goodput
from kvplan.study.lasting import Trial, trial
from kvplan.study.objectives import Decision, State, decide, decisions
from kvplan.study.operating_point import Observation
from kvplan.study.replicas import keeps, stand_in
from kvplan.study.sample import Sample
from kvplan.study.windows import Window

SERVICE_S = 0.01


@pytest.fixture(autouse=True)
def longer_days(monkeypatch: pytest.MonkeyPatch) -> None:
    """Days of enough requests to tell rates a per cent apart."""
    monkeypatch.setattr("kvplan.study.lasting._MOST_REQUESTS", 100_000)


def server(rate_rps: float) -> ServingModel:
    """Requests of one token, each of which takes an iteration."""
    replica = Replica(1000, max_num_seqs=1, prefix_caching=False)
    return ServingModel((RequestClass("a", 1, (1,), (1.0,), rate_rps),), Timing(SERVICE_S), replica)


def mean_ttft_s(rate_rps: float) -> float:
    load = rate_rps * SERVICE_S
    return SERVICE_S * (1 + load / (2 * (1 - load)))


def rate_of_mean_ttft(limit_s: float) -> float:
    """The rate at which it is that."""
    waits = 2 * (limit_s / SERVICE_S - 1)
    return waits / (1 + waits) / SERVICE_S


def share_above(limit_s: float, rate_rps: float) -> float:
    """Of the requests, those whose TTFT exceeds a limit: Erlang's alternating sum, in exact fractions."""
    load, wait = Fraction(rate_rps * SERVICE_S), Fraction(limit_s - SERVICE_S) / Fraction(SERVICE_S)
    total = Fraction(0)
    for k in range(math.floor(wait) + 1):
        x = load * (k - wait)
        total += x**k / math.factorial(k) * Fraction(math.exp(-x))
    return float(1 - (1 - load) * total)


VLLM = Settings("vllm", {})
BATCHES = 16


def window(beyond: list[int], size: int, gaps: Mapping[int, int] | None = None) -> Window:
    """Batches of so many requests, of which these many take 2 s and the others 1 s; gaps by bin."""
    late = np.concatenate([np.arange(size) < count for count in beyond])
    values = np.where(late, 2.0, 1.0)
    return Window(
        begin_s=0.0,
        width_s=10.0,
        batch=np.repeat(np.arange(len(beyond)), size),
        values={"ttft_s": values, "tpot_s": np.full(values.size, np.nan), "e2e_s": values},
        class_index=np.zeros(values.size, np.int64),
        evictions=np.zeros(values.size, np.int64),
        sums=np.zeros((len(beyond), 12)),
        gaps=np.tile(np.bincount(list(gaps or [0]), list((gaps or {0: 0}).values()), GAPS), (len(beyond), 1)),
        arrived=values.size,
        iterations=1,
        recomputed_tokens=0,
        computed_tokens=1,
        stuck=False,
    )


def seen(*runs: Window, trend: Trend = Trend.STEADY, is_replay: bool = False) -> Observation:
    return Observation(Sample.of(runs, 10.0), trend, runs, 0.0, is_replay)


def decided(observation: Observation, text: str) -> Decision:
    return decisions(observation, [parse_slo(text)])[0]


def test_a_percentile_is_decided_by_the_share_beyond_its_limit() -> None:
    """Of 32 batches of 2,000 half have 50 beyond the limit and half 60: 2.75%, less than 5 and more than 1."""
    many = seen(window([50, 60] * 8, 2000), window([60, 50] * 8, 2000))
    found = decided(many, "ttft_s.p95 <= 1.5 s")
    assert found.share == pytest.approx(0.0275)
    assert found.allowed == pytest.approx(0.05)
    assert found.state is State.HOLDS
    assert decided(many, "ttft_s.p99 <= 1.5 s").state is State.MISSES
    assert decided(many, "ttft_s.p99 <= 2 s").share == 0  # what is exactly the limit is within it
    assert decided(many, "ttft_s.p99 <= 2 s").state is State.HOLDS


def test_nothing_holds_unless_the_queue_is_steady() -> None:
    runs = [window([10] * BATCHES, 2000)] * 2
    states = {trend: decided(seen(*runs, trend=trend), "ttft_s.p95 <= 1.5 s").state for trend in Trend}
    assert states == {Trend.STEADY: State.HOLDS, Trend.UNDECIDED: State.OPEN, Trend.GROWING: State.MISSES}
    assert decided(seen(*runs, trend=Trend.UNDECIDED), "ttft_s.p99 <= 0.5 s").state is State.MISSES


def test_the_bin_of_a_limit_counts_in_part_unless_its_gaps_are_all_alike() -> None:
    """Three bins of 100 gaps and a limit a quarter into the middle one; then only that one."""
    limit = SHORTEST_GAP_S * math.exp(5000.25 / GAPS_IN_E)
    even = decided(seen(window([0] * 4, 10, {4999: 100, 5000: 100, 5001: 100})), f"itl_s.p90 <= {limit!r}")
    assert even.share == pytest.approx(175 / 300, abs=1e-3)
    alike = decided(seen(window([0] * 4, 10, {5000: 100})), f"itl_s.p90 <= {limit!r}")
    assert alike.share == 0
    beyond = decided(seen(window([0] * 4, 10, {5001: 100})), f"itl_s.p90 <= {limit!r}")
    assert beyond.share == 1


@every("load", [0.3, 0.6, 0.85])
def test_shares_of_a_single_server_are_those_of_erlang(load: float) -> None:
    rate = load / SERVICE_S
    [found] = decide(server(rate), Plan(), VLLM, [parse_slo("ttft_s.p95 <= 25 ms")])
    truth = share_above(0.025, rate)
    assert abs(found.share - truth) <= found.width
    assert found.state is (State.HOLDS if truth < 0.05 else State.MISSES)


@every("margin", [0.9, 1.1])
def test_a_mean_is_decided_by_its_interval(margin: float) -> None:
    limit = margin * mean_ttft_s(70.0)
    [found] = decide(server(70.0), Plan(), VLLM, [Slo("", "ttft_s.mean", False, limit)])
    assert found.state is (State.HOLDS if margin > 1 else State.MISSES)


def test_what_is_served_at_once_is_exactly_within_its_limit() -> None:
    """Iterations of 10 ms whoever runs: no gap between tokens is longer, and none is shorter."""
    model = ServingModel((RequestClass("a", 20, (5,), (1.0,), 10.0),), Timing(0.01), Replica(10_000))
    slos = [parse_slo(f"{key} <= 10 ms") for key in ("itl_s.mean", "itl_s.p99", "tpot_s.mean", "tpot_s.p99")]
    assert {d.state for d in decide(model, Plan(), VLLM, slos)} == {State.HOLDS}
    assert {
        d.state for d in decide(model, Plan(), VLLM, [s.__class__("", s.key, False, 0.0099) for s in slos])
    } == {State.MISSES}


@every("limit_ms", [10.5, 12, 18, 60] if is_night() else [10.5, 60])
def test_goodput_of_a_single_server_is_that_of_pollaczek_and_khinchine(limit_ms: float) -> None:
    truth = rate_of_mean_ttft(limit_ms / 1e3)
    found = goodput(server(1.0), Plan(), VLLM, [parse_slo(f"ttft_s.mean <= {limit_ms} ms")])
    assert found.high is not None
    assert found.low <= truth <= found.high
    assert found.crossing_rps == pytest.approx(truth, rel=0.03)
    assert 0.96 * truth <= found.rate_rps <= truth  # at 1.01 times the rate the mean is within its limit
    assert found.binding == "ttft_s.mean"


def test_goodput_is_nothing_where_an_idle_replica_misses() -> None:
    found = goodput(server(1.0), Plan(), VLLM, [parse_slo("ttft_s.p50 <= 9 ms")])
    assert (found.rate_rps, found.crossing_rps, found.low, found.binding) == (0, 0, 0, "ttft_s.p50")


@every("factor", [0.985, 1.015])
def test_a_rate_lasts_up_to_that_of_pollaczek_and_khinchine(factor: float) -> None:
    there = server(factor * rate_of_mean_ttft(0.02))
    found = trial(there, Plan(), VLLM, [parse_slo("ttft_s.mean <= 20 ms")])
    assert found.lasts is (factor < 1)


@pytest.mark.usefixtures("days")
def test_a_rate_that_looks_steady_for_minutes_and_collapses_within_hours_does_not_last() -> None:
    profile = load_profile("tool-calls-h100", stdin=BytesIO())
    there, objective = at_rate(profile.model, 53.7), parse_slo("ttft_s.p95 <= 2 s")
    [seen] = decide(there, profile.plan, VLLM, [objective], stream=3)
    assert seen.state is State.HOLDS
    assert not trial(there, profile.plan, VLLM, [objective]).lasts


def test_what_is_never_missed_ends_where_the_queue_grows() -> None:
    """Every request takes 10 ms once it is served: 100 a second are, and no objective on that binds."""
    model = ServingModel((RequestClass("a", 1, (2,), (1.0,), 1.0),), Timing(0.01), Replica(20))
    found = goodput(model, Plan(), VLLM, [parse_slo("tpot_s.mean <= 15 ms")])
    assert found.binding == "kv_memory"
    assert found.rate_rps <= found.low <= found.crossing_rps <= (found.high or 0)


def replayed(rate_rps: float) -> ServingModel:
    rng = np.random.default_rng(8)
    arrival = np.cumsum(rng.exponential(1.0, 4000))
    ones = np.ones(4000, np.int64)
    return ServingModel(
        server(rate_rps).classes,
        server(1.0).timing,
        server(1.0).replica,
        arrivals=ArrivalProcess(trace=Recorded(arrival - arrival[0], ones, ones)),
    )


def test_a_trace_is_replayed_faster_until_it_misses() -> None:
    """The wait of each request from the one before (Lindley 1952), at rates on both sides of the one found."""
    model = replayed(20.0)
    found = goodput(model, Plan(), VLLM, [parse_slo("ttft_s.mean <= 20 ms")])
    arrival = model.arrivals.trace.arrival_s

    def mean_ttft(rate: float) -> float:
        time, wait, total = arrival * (arrival.size - 1) / arrival[-1] / rate, 0.0, 0.0
        counted = 0
        for before, now in pairwise(time):
            wait = max(wait + SERVICE_S - (now - before), 0.0)
            if now > 0.2 * time[-1]:
                total, counted = total + wait + SERVICE_S, counted + 1
        return total / counted

    assert found.high / found.low < 1.011
    assert mean_ttft(0.97 * found.low) < 0.02 < mean_ttft(1.03 * found.high)


class Law(SimpleNamespace):
    """A share beyond the limit that grows with the rate, seen through noise of a known width."""

    truth: float
    steepness: float
    noise: float
    tried: list[float]

    def observe(self, model: ServingModel, *_: Any, stream: int, **__: Any) -> Any:
        rate = model.total_rate_rps
        self.tried.append(rate)
        share = 0.05 * (rate / self.truth) ** self.steepness
        off = float(np.random.default_rng([stream, int(1e6 * self.truth)]).uniform(-1, 1))
        sample = SimpleNamespace(completed=10**6, cliff=lambda *_: None)
        return SimpleNamespace(share=share + off * self.noise, trend=Trend.STEADY, sample=sample)

    def decisions(self, observation: Any, objectives: Any) -> tuple[Decision, ...]:
        share, width = observation.share, self.noise
        state = State.OPEN
        if share + width <= 0.05:
            state = State.HOLDS
        elif share - width > 0.05:
            state = State.MISSES
        return (Decision("ttft_s.p95", 1.0, state, None, None, None, max(share, 0.0), width, 0.05),)


@examples(60)
@example(truth=291.0, steepness=2.0, noise=0.0078125)  # open at all that is sustainable
@given(st.floats(2.0, 300.0), st.floats(2.0, 40.0), st.floats(0.0, 0.01))
def test_the_truth_is_between_what_holds_and_what_misses(
    truth: float, steepness: float, noise: float
) -> None:
    law = Law(truth=truth, steepness=steepness, noise=noise, tried=[])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("kvplan.study.goodput.observe", law.observe)
        patch.setattr("kvplan.study.goodput.decisions", law.decisions)
        patch.setattr("kvplan.study.goodput.trial", lambda *_: Trial(True, 1.0))
        found = goodput(server(1.0), Plan(), VLLM, [parse_slo("ttft_s.p95 <= 1 s")])
    assert isinstance(found, Goodput)
    assert found.low <= truth * (1 + 1e-9)
    assert truth <= found.high * (1 + 1e-9)
    assert found.low <= found.crossing_rps <= found.high
    assert len(law.tried) < 40
    if noise == 0:
        assert found.high <= 1.011 * found.low
        assert found.crossing_rps == pytest.approx(truth, rel=0.003)


def test_as_many_replicas_keep_an_objective_as_pollaczek_and_khinchine_say() -> None:
    """230 requests/s with a mean TTFT of 20 ms at most, which 66.7 are served with: four replicas, not three."""
    slos = [parse_slo("ttft_s.mean <= 20 ms")]
    assert rate_of_mean_ttft(0.02) == pytest.approx(200 / 3)
    states = [
        keeps(stand_in(server(1.0), 230.0, count), Plan(), VLLM, slos, requests=10).state for count in (3, 4)
    ]
    assert states == [State.MISSES, State.HOLDS]


@every("key", ["latency.ttft_s.mean", "latency.classes[a].ttft_s.mean", "latency.classes[0].ttft_s.mean"])
def test_a_limit_of_a_requirement_is_decided_by_runs(key: str) -> None:
    analyses, truth = Analyses(server(70.0), Plan()), mean_ttft_s(70.0)
    states = []
    for limit in (0.9 * truth, truth, 1.1 * truth):
        stands = standing(parse_key(key), limit, analyses, tries=True)
        assert bool(stands.doubt) == (stands.state is State.OPEN)
        states.append(stands.state)
    assert states == [State.MISSES, State.OPEN, State.HOLDS]


def judged(model: ServingModel, text: str, *slos: str) -> tuple[bool, str]:
    analyses = Analyses(model, Plan(slos=tuple(map(parse_slo, slos))))
    found = judge(parse(text), Subject(analyses, tries=True))
    return found.passed, found.doubt


def test_goodput_of_users_who_overfill_a_prefix_cache_is_the_most_that_fewer_ask_at() -> None:
    """More users than the cache has room for ask less often: 75 hold, at 9 requests/s, and 62 of them ask at 25."""
    law = Sessions(*[Lengths.of({20: 1.0})] * 3, Lengths.of({30: 1.0}), Exponential(2.0), users=20)
    prompts = tuple(Prompt(20 + 40 * turn, 1.0) for turn in range(30))
    users = RequestClass("turns", 600, (20,), (1.0,), 30.0, sessions=law, prompts=prompts)
    model = with_rates_of_users(ServingModel((users,), Timing(0.01, d2=4e-4), Replica(40_000)))

    def observe(there: ServingModel, *_: Any, **__: Any) -> Any:
        sample = SimpleNamespace(completed=10**6, cliff=lambda *_: None)
        return SimpleNamespace(users=users_of(there), trend=Trend.STEADY, sample=sample)

    def decisions(observation: Any, _: Any) -> tuple[Decision, ...]:
        state = State.HOLDS if observation.users <= 75 else State.MISSES
        share = 0.05 * observation.users / 75.5
        return (Decision("ttft_s.p95", 1.0, state, None, None, None, share, 0.0, 0.05),)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("kvplan.study.goodput.observe", observe)
        patch.setattr("kvplan.study.goodput.decisions", decisions)
        patch.setattr("kvplan.study.goodput.trial", lambda *_: Trial(True, 1.0))
        found = goodput(model, Plan(), VLLM, [parse_slo("ttft_s.p95 <= 1 s")])
    rates = [with_rates_of_users(with_part_of_users(model, n / 20)).total_rate_rps for n in range(55, 76)]
    assert found is not None
    assert model.total_rate_rps < 0.8 * max(rates) < found.rate_rps <= max(rates)
    assert found.low <= found.crossing_rps <= max(rates)
    assert found.users == 74  # of the 75.5 where the share is what is allowed, 1 % less


def test_goodput_is_required_of_a_rate_between_what_holds_and_what_misses() -> None:
    """An M/D/1 has a mean TTFT of 20 ms at 66.7 requests/s."""
    slo = "ttft_s.mean <= 20 ms"
    assert judged(server(70.0), "goodput.rate_rps >= 63", slo)[0]
    assert not judged(server(70.0), "goodput.rate_rps >= 67.5", slo)[0]
    assert judged(server(70.0), "goodput.rate_rps <= 67.5", slo)[0]
