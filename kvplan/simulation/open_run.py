"""A run of open arrivals at one replica that stops at times, so that somebody can look at the queue and decide."""

import math
from typing import NamedTuple

from kvplan.simulation import engine
from kvplan.simulation.policies import POLICIES
from kvplan.simulation.policies.protocol import Scenario, Settings
from kvplan.simulation.state import Clock, Counter, Span

_SLICE = 200_000  # iterations in one go


class Queue(NamedTuple):
    """The queue in a stretch of a run."""

    end_s: float  # where the stretch ended: the end of an iteration, or an arrival after idle time
    least: int  # fewest requests that waited in an iteration of it; 0 where there was none
    waiting: int  # in the last iteration
    completed: int  # this and what follows: of the run so far
    iterations: int
    preempted: int


class OpenRun:
    """Requests that arrive by themselves, or follow each other, at one replica; run on from one time to the next."""

    def __init__(self, scenario: Scenario, settings: Settings, horizon_s: float) -> None:
        model, policy = scenario.model, POLICIES[settings.policy]
        setup, _ = policy.prepare(scenario, settings)
        self._run = engine.Run(
            scenario.requests, model.timing, model.replica, setup, horizon_s, model.request_overhead_s
        )
        self._loop = self._run.loop(policy.form_batch)
        self.ended = False  # by the horizon, by the last completion, or stuck
        self.stuck = False

    def on(self, until_s: float) -> Queue:
        """Go on until the first iteration that ends at this time or later."""
        state = self._run.state
        state.clock[Clock.PAUSE] = until_s
        state.span[0, Span.LEAST_WAITING] = math.inf
        while not self.ended and state.clock[Clock.NOW] < until_s:
            code = self._run.step(self._loop, _SLICE)
            self.stuck, self.ended = code == engine.LIVELOCK, code in engine.ENDINGS
        c, least = state.counter, float(state.span[0, Span.LEAST_WAITING])
        return Queue(
            end_s=float(state.clock[Clock.NOW]),
            least=0 if least == math.inf else int(least),
            waiting=int(c[Counter.WAITING]),
            completed=int(c[Counter.COMPLETED]),
            iterations=int(c[Counter.ITERATIONS]),
            preempted=int(c[Counter.EVICTED]),
        )
