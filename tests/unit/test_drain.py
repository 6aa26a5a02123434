"""How long a burst is felt: where arithmetic knows it, and where a slow simulator does."""

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import shipped
import slow_simulator
from hypothesis import assume, given
from hypothesis import strategies as st
from small_runs import CLASSES, Case, cases
from strategies import mix_model, one_class
from tiers import examples

from kvplan.engine import EngineName
from kvplan.model import ArrivalProcess, Engine, Plan, Prefill, Replica, ServingModel, Timing
from kvplan.simulation.backlog import OpenRun, Queue
from kvplan.simulation.policies import POLICIES
from kvplan.simulation.policies.protocol import Scenario, Settings
from kvplan.study import drain as study
from kvplan.study.drain import ENOUGH, SEEDS, Drain, drain

SERVED_RPS = 50.0
BURST_S = 60.0


def clockwork(load: float, *, cv: float = 0.01) -> ServingModel:
    """One request fits at a time and takes two iterations of 10 ms; they come at all but equal gaps."""
    replica = Replica(9, prefill=Prefill.DISAGGREGATED)
    return ServingModel(
        (one_class(7, 2, load * SERVED_RPS),), Timing(0.01), replica, arrivals=ArrivalProcess(cv=cv)
    )


@given(st.floats(0.3, 0.9))
@examples(4)
def test_a_queue_of_clockwork_is_gone_when_arithmetic_says(load: float) -> None:
    """What a minute at four times the rate leaves, over what is served beyond the rate."""
    felt = drain(clockwork(load), Plan())
    left = max(BURST_S * (4 * load - 1) * SERVED_RPS, 0.0)
    known = left / ((1 - load) * SERVED_RPS)
    assert felt.burst_requests == pytest.approx(4 * load * SERVED_RPS * BURST_S)
    assert felt.high is not None
    assert felt.low <= felt.seconds <= felt.high
    assert [felt.low, felt.seconds, felt.high] == pytest.approx([known] * 3, rel=0.01, abs=0.5)


def test_a_long_stay_makes_the_burst_longer() -> None:
    """One at a time for 2,000 iterations of a second: the burst lasts as long, and is 3.2 requests."""
    replica = Replica(2008, prefill=Prefill.DISAGGREGATED)
    model = ServingModel((one_class(7, 2000, 0.4 / 2000),), Timing(1.0), replica)
    full = 2008 / sum(range(8, 2008))  # admissions an iteration that fill memory
    assert drain(model, Plan()).burst_requests == pytest.approx(4 * 0.4 / 2000 * 2000, rel=1e-9)
    assert full < 1 / 1000


def test_a_queue_that_stays_is_given_up_early_with_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    looked: list[Queue] = []

    class Watched(OpenRun):
        def on(self, until_s: float) -> Queue:
            looked.append(super().on(until_s))
            return looked[-1]

    monkeypatch.setattr(study, "OpenRun", Watched)
    felt = drain(clockwork(1.1, cv=1.0), Plan())
    burst, never = 4 * 1.1 * SERVED_RPS * BURST_S, (math.inf,) * SEEDS
    assert felt == Drain(burst, None, None, None, felt.reason, runs_s=never)
    assert "does not become shorter" in felt.reason
    assert max(queue.end_s for queue in looked) < 3600


def test_a_run_ends_when_it_is_known_to_take_too_long(monkeypatch: pytest.MonkeyPatch) -> None:
    """At .8 of what is served a burst takes 660 s: 132 requests a second for a minute, over 10.

    Two runs that take longer say that four of five are not in time, and four in time that they are.
    """
    ends: list[float] = []

    class Watched(OpenRun):
        def __init__(self, scenario: Scenario, settings: Settings, horizon_s: float) -> None:
            super().__init__(scenario, settings, horizon_s)
            ends.append(horizon_s)

    monkeypatch.setattr(study, "OpenRun", Watched)
    late = drain(clockwork(0.8), Plan(), within_s=600.0)
    assert (late.within(600.0), len(late.runs_s)) == (0, SEEDS - ENOUGH + 1)
    assert max(ends) < 60 + 601
    early = drain(clockwork(0.8), Plan(), within_s=700.0)
    assert early.within(700.0) == len(early.runs_s) == ENOUGH


class Noting(slow_simulator.POLICIES["vllm"]):  # type: ignore[misc]
    """Notes when each iteration begins, and who waits in it."""

    noted: list[tuple[float, int]]

    def kv_held(self, batch: list[Any]) -> int:
        self.noted.append((self.now, len(self.queue)))
        return int(super().kv_held(batch))


@pytest.mark.parametrize("load", [0.5, 0.75])
def test_the_time_is_that_of_a_slow_simulator(load: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """On the same requests: since when the queue is empty once in every eighth of a stay, for a stay."""
    model = mix_model((30, (6, 14, 40), load), memory=16 * 21, prefill="fused", timing=Timing(0.5))
    model = replace(model, replica=replace(model.replica, block_tokens=16, prefix_caching=False))
    model = replace(model, classes=(replace(model.classes[0], rate_rps=load * 0.40),))
    course, settings = study._course(model), study.engine_settings(model)
    for seed in range(SEEDS):
        horizon_s = course.end_s + 600.0
        requests = study._drawn(model, course, horizon_s, seed)
        monkeypatch.setattr(Noting, "noted", [], raising=False)
        monkeypatch.setitem(slow_simulator.POLICIES, "vllm", Noting)
        slow_simulator.simulate("vllm", requests, model.timing, model.replica, {}, horizon_s=horizon_s)
        run = OpenRun(Scenario(model, Plan(), requests, ("a",)), settings, horizon_s)
        found = study._watched(run, course, model.total_rate_rps)
        known = since_when_empty(Noting.noted, course.end_s, course.step_s, horizon_s)
        assert found.drained_s == pytest.approx(known, abs=2.5 * max(course.step_s, 0.5))


def since_when_empty(noted: list[tuple[float, int]], begin_s: float, step_s: float, end_s: float) -> float:
    """Looked for in small steps: the first time from which on each step has a moment at which nobody waits."""
    began = np.array([at for at, _ in noted])
    waiting = np.array([count for _, count in noted])
    for at in np.arange(begin_s, end_s - 8 * step_s, 0.25):
        if all(
            empty(began, waiting, at + k * step_s, max(at + (k + 1) * step_s, at + k * step_s + 0.5))
            for k in range(8)
        ):
            return float(at - begin_s)
    return math.inf


def empty(began: Any, waiting: Any, low: float, high: float) -> bool:
    """Whether nobody waits in an iteration that begins then, or none does."""
    inside = waiting[(began >= low) & (began < high)]
    return inside.size == 0 or bool(inside.min() == 0)


@pytest.mark.parametrize("name", ["greedy", "vllm"])
@given(data=st.data())
@examples(20)
def test_a_run_that_is_looked_at_goes_as_any_other(name: str, data: st.DataObject) -> None:
    case: Case = data.draw(cases(name).filter(lambda c: c.requests.clients is None and c.horizon_s is None))
    assume(not case.some_request_never_fits(name))
    names = tuple(f"class {i}" for i in range(CLASSES))
    model = ServingModel(tuple(one_class(1, 1, name=n) for n in names), case.timing, case.replica)
    apart = {"prefix_caching": (0.0,)} if "prefix_caching" in POLICIES[name].parameters else {}
    settings = Settings(name, apart | case.parameters)
    slow = case.slow(name)
    run = OpenRun(Scenario(model, Plan(), case.requests, names), settings, math.inf)
    until, before = 0.0, 0
    while not run.ended:
        until += data.draw(st.sampled_from([0.3, 5.0, 70.0]))
        queue = run.on(until)
        waited = slow.waiting_per_iteration[before : queue.iterations]
        assert queue.least in (0, min(waited, default=0))
        before = queue.iterations
    assert queue.iterations == slow.iterations
    assert queue.end_s == pytest.approx(slow.end_s)
    assert run.stuck == slow.livelock
    assert queue.completed == sum(at is not None for at in slow.finish_s)


def test_near_the_guaranteed_rate_agents_take_long() -> None:
    """Twelve requests a second are guaranteed: at half of them a burst is nothing, at .97 more than half an hour."""
    model = shipped.profile("agents-collapse").model
    calm, close = (
        drain(
            replace(
                model,
                classes=tuple(
                    replace(c, rate_rps=rate * c.rate_rps / model.total_rate_rps) for c in model.classes
                ),
            ),
            Plan(),
        )
        for rate in (6.0, 11.7)
    )
    [sessions] = [c.sessions for c in model.classes]
    assert sessions is not None
    assert calm.burst_requests == pytest.approx(3 * 120 * 6.0 / sessions.turns.mean, abs=0.5)
    assert calm.of_sessions
    assert calm.high < 60
    assert close.seconds is None or close.seconds > 1800


@pytest.mark.parametrize("engine", EngineName)
def test_every_engine_has_one(engine: EngineName) -> None:
    model = mix_model((30, (6, 14, 40), 1.0), memory=16 * 40, prefill="fused", timing=Timing(0.05))
    model = replace(model, engine=Engine(engine))
    felt = drain(model, Plan())
    assert felt.seconds is None or felt.seconds >= 0
