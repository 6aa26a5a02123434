"""The period of a schedule: its parts by slow sums, replicas by hand, and simulated periods whose figures are known."""

import math
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvplan.analysis.worst_window import PARTS, heaviest, parts
from kvplan.errors import UsageError
from kvplan.model import Plan, Replica, RequestClass, ServingModel, Timing
from kvplan.model.schedule import Sinusoid, Steps
from kvplan.model.slo import parse_slo
from kvplan.planning import day as planning
from kvplan.planning.day import day, schedule_of, served_rps
from kvplan.planning.result import Api
from kvplan.planning.result import Plan as Planned
from kvplan.planning.search import Setting
from kvplan.show.plan import _beside
from kvplan.study.headroom import Headroom
from kvplan.study.objectives import State
from kvplan.study.trial import Judged, Quick, Task

CHAT = RequestClass("chat", 90, (10, 30), (0.5, 0.5), 1.0)
WAVE = Steps(3600.0, (0.0, 900.0, 1800.0, 2700.0), ((0.5,), (2.0,), (0.5,), (1.0,)))
MODEL = ServingModel((CHAT,), Timing(0.02, 0.0, 1e-4), Replica(3000, block_tokens=16, gpus=2), WAVE)
PLAN = Plan(slos=(parse_slo("e2e_s.p95 <= 1 h"),))


@given(
    starts=st.lists(st.integers(1, 239), max_size=6, unique=True),
    factors=st.lists(st.floats(0.1, 5), min_size=7, max_size=7),
)
def test_a_part_has_the_mean_rate_of_its_tenths(starts: list[int], factors: list[float]) -> None:
    """Steps begin at tenths of parts, of which there are 240."""
    begins = [0, *sorted(starts)]
    steps = Steps(240.0, tuple(map(float, begins)), tuple((f,) for f in factors[: len(begins)]))
    tenths = [factors[sum(begin <= tenth for begin in begins) - 1] for tenth in range(240)]
    found = parts(replace(MODEL, schedule=steps))
    for part, mean in zip(found, np.reshape(tenths, (PARTS, 10)).mean(axis=1), strict=True):
        assert part.total_rate_rps == pytest.approx(mean)


def test_a_wave_has_its_peak_in_the_parts_beside_it() -> None:
    found = parts(replace(MODEL, schedule=Sinusoid(24.0, 0.5, 12.0)))
    rates = [0.0 if part is None else part.total_rate_rps for part in found]
    assert max(rates) == rates[11] == rates[12] == pytest.approx(1.5, abs=0.01)
    assert math.fsum(rates) == pytest.approx(24)


def test_what_is_heaviest_is_not_what_comes_most_often() -> None:
    """Ten short requests a second are less than two long ones; in the last part nobody comes."""
    long = RequestClass("long", 2000, (200,), (1.0,), 1.0)
    factors = ((10.0, 0.0), (0.0, 2.0), (0.0, 0.0))
    both = replace(MODEL, classes=(CHAT, long), schedule=Steps(24.0, (0.0, 12.0, 23.0), factors))
    place, model = heaviest(both)
    assert (place, [c.name for c in model.classes], model.total_rate_rps) == (12, ["long"], 2.0)
    assert model.schedule is None
    assert parts(both)[23] is None


@given(st.lists(st.floats(0, 1000), min_size=2, max_size=60))
def test_a_trace_varies_as_its_counts_do(times: list[float]) -> None:
    arrivals = np.sort(np.array(times))
    if arrivals[-1] == arrivals[0]:
        with pytest.raises(UsageError, match="at one time"):
            schedule_of(arrivals)
        return
    table = schedule_of(arrivals)
    assert len(table["schedule"]) == PARTS
    assert math.fsum(step["factor"] for step in table["schedule"]) == pytest.approx(PARTS, abs=1e-4)
    busiest = max(step["factor"] for step in table["schedule"])
    assert busiest >= 1


@dataclass(frozen=True)
class Given:
    """Replicas that serve so much each by short runs, and less by long ones."""

    short_rps: float
    long_rps: float
    headroom: float = 0.0

    @property
    def model(self) -> SimpleNamespace:
        return SimpleNamespace(total_rate_rps=8.0)

    @property
    def rate_rps(self) -> float:
        return 8.0 * (1 + self.headroom)

    def sustainable_rps(self, batched_tokens: int | None) -> float:
        return 10.0

    def quick(self, replicas: int, batched_tokens: int | None) -> Quick:
        return Quick(self.rate_rps / (replicas * self.short_rps), ())

    def judge(self, replicas: int, batched_tokens: int | None) -> Judged:
        holds = self.rate_rps <= replicas * self.long_rps
        return SimpleNamespace(state=State.HOLDS if holds else State.MISSES)  # type: ignore[return-value]


@given(short=st.floats(4.0, 9.9), less=st.floats(0.0, 0.2))
def test_a_replica_serves_what_long_runs_confirm(short: float, less: float) -> None:
    task = Given(short, max(4.0, short * (1 - less)))
    found = served_rps(task, Setting(2, None))  # type: ignore[arg-type]
    assert 0.97 * task.long_rps <= found <= task.long_rps * (1 + 1e-9)
    assert 0.98 * short <= served_rps(task, Setting(2, None), long=False) <= short  # type: ignore[arg-type]


def planned(model: ServingModel, served: float, replicas: int = 4, load_s: float = 100.0, **more: object):  # type: ignore[no-untyped-def]
    task = Task(heaviest(model)[1], PLAN, **more)  # type: ignore[arg-type]
    patch = pytest.MonkeyPatch()
    patch.setattr(planning, "served_rps", lambda *_: served)
    try:
        return day(model, PLAN, task, Setting(replicas, None), load_s)
    finally:
        patch.undo()


def test_each_hour_has_as_many_replicas_as_its_rate_needs() -> None:
    """Half, two, half, one request/s at .6 each: 1, 4, 1, 2 replicas of two GPUs, each a quarter of an hour."""
    found = planned(MODEL, 0.6)
    assert [hour.replicas for hour in found.hours[::6]] == [1, 4, 1, 2]
    assert [hour.demand_rps for hour in found.hours[::6]] == [0.5, 2.0, 0.5, 1.0]
    assert (found.gpu_hours, found.fixed_gpu_hours) == (pytest.approx(4.0), 8.0)
    assert (found.add_rps, found.remove_rps) == (0.6, pytest.approx(0.48))


def test_periods_are_paid_for_as_replicas_come_and_go_and_nobody_is_lost() -> None:
    found = planned(MODEL, 0.6)
    ways = found.ways
    assert list(ways) == ["autoscaled", "scheduled", "fixed"]
    assert [way.within for way in ways.values()] == [pytest.approx(1.0)] * 3
    assert (ways["fixed"].replicas, ways["fixed"].gpu_hours) == (4.0, 8.0)
    # four starts take 100 s of two GPUs each, and those three that go are soon done with what they have
    assert 4 + 4 * 2 * 100 / 3600 < ways["scheduled"].gpu_hours < 4.24
    assert 4 < ways["autoscaled"].gpu_hours < 8
    assert ways["autoscaled"].replicas == pytest.approx(ways["autoscaled"].gpu_hours / 2)


def test_what_cannot_be_simulated_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "shorter than the start of a replica" in planned(MODEL, 0.6, load_s=3500.0).reason
    monkeypatch.setattr(planning, "_MOST_REQUESTS", 3000)
    found = planned(MODEL, 0.6)
    assert found.reason == "not simulated: 3.6e+03 requests; 3,000 is the most"
    assert (found.ways, len(found.hours)) == ({}, PARTS)


@pytest.mark.parametrize(
    ("within", "said"),
    [
        (0.97991, "less than the API, with 97.99% of requests within the objectives."),
        (None, "less than the API."),
    ],
)
def test_the_price_of_a_day_says_which_share_is_within_the_objectives(
    within: float | None, said: str
) -> None:
    way = planning.Way(1.5, 36.0, 20.0, within, None, 9)
    assert beside(day=SimpleNamespace(ways={"autoscaled": way}))[-1].endswith(said)


def beside(**given: Any) -> list[str]:
    """What is said of a plan for 6 requests/s that costs less than an API from 9 on."""
    usual = {"api": Api(8.0, 9.0, 3.0), "mean_rps": 6.0, "day": None, "energy": None, "headroom": None}
    known = {
        "winner": SimpleNamespace(name=""),
        "kind": lambda _: None,
        "request": SimpleNamespace(priced=True),
    }
    return [*_beside(cast(Planned, SimpleNamespace(**{**usual, **known, **given})))]


@pytest.mark.parametrize(
    ("from_rps", "ratio", "at_least", "said"),
    [
        (5.0, 0.02, False, "these replicas cost less from 5 requests/s, 83.3% of the demand."),
        (5.0, -0.5, False, "these replicas cost less from 5 requests/s, 83.3% of the demand."),
        (6.1, 0.02, False, "it costs less up to 6.1 requests/s, 102% of the demand."),
        (9.0, 0.02, False, "it costs less at every rate that these replicas serve."),
        (9.0, 0.5, True, "it costs less up to 9 requests/s, 150% of the demand."),
        (9.1, 0.5, True, "it costs less at every rate that these replicas are known to serve."),
    ],
)
def test_no_break_even_is_named_that_the_replicas_do_not_reach(
    from_rps: float, ratio: float, at_least: bool, said: str
) -> None:
    assert beside(api=Api(8.0, from_rps, None), headroom=Headroom(ratio, "load", at_least))[1:] == [said]


def test_of_a_gpu_whose_power_nobody_says_the_screen_of_a_price_says_so() -> None:
    kind = SimpleNamespace(gpu=SimpleNamespace(name="H100 SXM:1g.10gb", watts=None))
    assert beside(api=None, kind=lambda _: kind) == ["Power: nobody says what H100 SXM:1g.10gb draws."]
    assert beside(api=None, kind=lambda _: kind, request=SimpleNamespace(priced=False)) == []
    assert beside(api=None) == []
