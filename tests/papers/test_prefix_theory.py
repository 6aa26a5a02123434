"""Theory §8 against the block-exact simulator: sessions, prompts in common, and where the formulas end."""

from statistics import fmean
from typing import NamedTuple

import numpy as np
import pytest
from cached import AGENT_LAW, AGENT_MEMORY, THINK, agent_sessions, agents, one_class
from cached_runs import run_cached
from shipped import profile
from strategies import one_class as requests_of_one_kind
from tiers import is_night

from kvplan.analysis.prefix_cache import prefix_cache, with_fluctuations
from kvplan.model import Replica, ServingModel, Timing
from kvplan.model.gaps import Exponential, Gap, Quantiles
from kvplan.model.sessions import SharedPrompt
from kvplan.simulation.requests import poisson
from kvplan.simulation.sessions import stream_of_sessions, with_shared_prompts
from kvplan.study import warm_cache as warm
from kvplan.study.warm_cache import warm_cache

SMOOTH = ("exponential", "lognormal")

GAPS: dict[str, Gap] = {"exponential": Exponential(16.0), "lognormal": THINK, "fixed": Quantiles((16.0,))}
STREAMS = 242.04  # releases that the memory of an agent replica holds
SETTLED_S, LATE_S = 1500.0, 5.0
HIT, PREFILL, TIME, KV = 0.015, 0.04, 0.03, 0.05


class Agents(NamedTuple):
    """Agents on a replica of a size, at a part of its good rate; of the same shape whatever the size."""

    gap: Gap
    streams: float
    part: float

    @property
    def memory(self) -> int:
        return int(AGENT_MEMORY * self.streams / STREAMS)

    @property
    def law(self) -> Timing:
        scale = STREAMS / self.streams
        costs = (constant * scale for constant in AGENT_LAW.constants[1:4])
        return Timing(0.015, *costs, d6=1e-10 * scale)  # a fourth of the time of prefill

    @property
    def rate_rps(self) -> float:
        one = agents(1.0, gap=self.gap, memory=self.memory, law=self.law)
        return self.part * prefix_cache(one).sustainable_rps.good


class Settled(NamedTuple):
    """Means once settled: of prompt tokens found, over iterations, and per second."""

    rate_rps: float
    hit_ratio: float
    prefill_tokens_per_s: float
    iteration_time_s: float
    kv_unique_tokens: float
    waiting: int

    @property
    def collapsed(self) -> bool:
        return self.waiting > 100 or self.hit_ratio < 0.4


def simulated(case: Agents, seed: int, end_s: float = 8000.0) -> Settled:
    """A run from an empty replica."""
    requests = stream_of_sessions(
        [agent_sessions(case.gap)],
        [case.rate_rps / 16],
        np.random.default_rng(seed),
        requests=None,
        horizon_s=end_s,
    )
    run, found = run_cached(requests, case.law, Replica(case.memory, 16), end_s)
    counted = (run.arrival_s > SETTLED_S) & (run.arrival_s < end_s - LATE_S) & ~np.isnan(run.first_token_s)
    seconds = end_s - LATE_S - SETTLED_S
    prompts, hits = requests.input_tokens[counted].sum(), found.hit_tokens[counted].sum()
    late = np.flatnonzero(run.series.time_s > SETTLED_S)
    busy_s = run.series.busy_s[late]
    return Settled(
        rate_rps=np.count_nonzero(counted) / seconds,
        hit_ratio=float(hits / prompts),
        prefill_tokens_per_s=float(prompts - hits) / seconds,
        iteration_time_s=float(busy_s[-1] - busy_s[0]) / ((late.size - 1) * run.series.stride),
        kv_unique_tokens=float(run.series.kv_tokens[late].mean()),
        waiting=int(run.series.waiting[-1]),
    )


def errors(case: Agents, runs: list[Settled]) -> dict[str, float]:
    """How far theory is off, on average over runs, each at the rate that its draw came to.

    With fluctuations, which count at all sizes; think times that are all the same have no density to spread.
    """
    found: list[dict[str, float]] = []
    for run in runs:
        cached = agents(run.rate_rps, gap=case.gap, memory=case.memory, law=case.law)
        state = prefix_cache(cached).warm if isinstance(case.gap, Quantiles) else with_fluctuations(cached)
        names = ("prefill_tokens_per_s", "iteration_time_s", "kv_unique_tokens")
        found.append({name: getattr(state, name) / getattr(run, name) - 1 for name in names})
        found[-1]["hit_ratio"] = state.hit_ratio - run.hit_ratio
    return {name: abs(fmean(one[name] for one in found)) for name in found[0]}


def assert_holds(case: Agents, runs: list[Settled]) -> None:
    assert not any(run.collapsed for run in runs)
    off = errors(case, runs)
    assert off["hit_ratio"] < HIT
    assert off["iteration_time_s"] < TIME
    if isinstance(case.gap, Quantiles):
        return
    assert off["prefill_tokens_per_s"] < PREFILL
    assert off["kv_unique_tokens"] < KV


@pytest.mark.parametrize(
    ("gap", "streams", "part"), [("exponential", 484, 0.8), ("lognormal", 484, 0.8), ("fixed", 242, 0.7)]
)
def test_sessions_are_served_as_theory_says(gap: str, streams: float, part: float) -> None:
    case = Agents(GAPS[gap], streams, part)
    assert_holds(case, [simulated(case, seed, 5000.0) for seed in range(3)])


def test_the_agents_of_the_theory_stay_warm_until_a_burst_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    """An independent simulator found .82 of the prompt tokens for 5,000 s, and 12.28 requests/s served afterwards.

    On a commit an hour is tried, at night as much as the command tries.
    """
    if not is_night():
        monkeypatch.setattr(warm, "_BUDGET_S", 0.5)
    told: list[float] = []
    found = profile("agents-collapse")
    trial = warm_cache(found.model, found.plan, told.append)
    assert (trial.runs, trial.lasted, trial.survived_burst, trial.lasts_s) == (5, 5, 0, None)
    assert trial.hit_ratio == pytest.approx(0.82, abs=0.015)
    assert trial.served_rps == pytest.approx(12.28, rel=0.02)
    assert trial.seconds >= (10_000 if is_night() else 3_600)
    assert trial.of_sessions
    assert 230 < trial.burst < 255  # 4 million tokens of 16,500 that a turn leaves
    assert told
    assert all(0 <= part <= 1 for part in told)


ONE, ZIPF = np.array([0.05]), 1 / np.arange(1, 201) / (1 / np.arange(1, 201)).sum()


@pytest.mark.parametrize(
    ("weights", "rate", "memory"),
    [(ONE, 8.0, 20_000), (ZIPF, 10.0, 60_000), (ZIPF, 14.0, 150_000)],
    ids=["one, for a twentieth of the requests", "200 by Zipf's law", "200 in more memory"],
)
def test_prompts_in_common_are_found_as_theory_says(weights: np.ndarray, rate: float, memory: int) -> None:
    """1,250 tokens, of which 1,000 are shared, 62 pages of 16."""
    shared = tuple(SharedPrompt(1000, float(weight)) for weight in weights)
    law = Timing(0.01, 1e-7, 30e-6, 1e-6)
    model = ServingModel((requests_of_one_kind(1250, 50, rate),), law, Replica(memory, 16))
    rng = np.random.default_rng(3)
    requests = with_shared_prompts(poisson(model, rng, requests=60_000, horizon_s=None), [shared], rng)
    _, found = run_cached(requests, law, model.replica)
    settled = slice(6_000, None)
    measured = found.hit_tokens[settled].sum() / requests.input_tokens[settled].sum()
    state = prefix_cache(one_class(rate, *shared, s=1250, n=50, memory=memory, law=law, block_tokens=16)).warm
    assert state.hit_ratio == pytest.approx(float(measured), abs=0.01)
    assert 0.2 < state.hit_ratio / (weights.sum() * 992 / 1250) < 0.9  # neither always nor never


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("gap", "streams", "part"),
    [
        *((gap, 242, part) for gap in SMOOTH for part in (0.3, 0.5, 0.7, 0.8, 0.9)),
        *((gap, 968, 0.95) for gap in SMOOTH),
        *((gap, 1936, 0.98) for gap in SMOOTH),
        *(("fixed", 242, part) for part in (0.3, 0.5, 0.7)),
        ("fixed", 484, 0.8),
        ("fixed", 1936, 0.9),
    ],
)
def test_sessions_are_served_as_theory_says_as_near_to_the_end_as_it_holds(
    gap: str, streams: float, part: float
) -> None:
    case = Agents(GAPS[gap], streams, part)
    assert_holds(case, [simulated(case, seed, 5000.0 if streams > 1000 else 8000.0) for seed in range(6)])


@pytest.mark.parametrize(
    ("gap", "part"),
    [
        ("fixed", 0.95),
        pytest.param("exponential", 0.98, marks=pytest.mark.nightly),
        pytest.param("lognormal", 0.98, marks=pytest.mark.nightly),
    ],
)
def test_near_its_end_the_good_state_of_few_streams_does_not_last(gap: str, part: float) -> None:
    """Theory has a good state there, and chance leaves it: of four runs two at least end collapsed."""
    case = Agents(GAPS[gap], 242, part)
    assert prefix_cache(agents(case.rate_rps, gap=case.gap)).warm is not None
    assert sum(simulated(case, seed).collapsed for seed in range(4)) >= 2


@pytest.mark.nightly
@pytest.mark.parametrize("gap", SMOOTH)
@pytest.mark.parametrize(
    ("streams", "part"), [*((n, p) for n in (50, 70, 100) for p in (0.5, 0.6, 0.7)), (100, 0.8)]
)
def test_below_a_hundred_streams_fluctuations_are_counted(gap: str, streams: float, part: float) -> None:
    case = Agents(GAPS[gap], streams, part)
    off = errors(case, [simulated(case, seed, 20_000.0) for seed in range(6)])
    assert off["hit_ratio"] < 0.012
    assert off["iteration_time_s"] < 0.015
