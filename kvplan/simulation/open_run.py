"""A run of open arrivals at one replica that stops at times, so that somebody can look at the queue and decide."""

import math
from typing import NamedTuple

from kvplan.simulation import engine
from kvplan.simulation.initial_state import most_stages, new_state
from kvplan.simulation.policies import POLICIES
from kvplan.simulation.policies.protocol import Scenario, Settings
from kvplan.simulation.rows import Rows
from kvplan.simulation.state import Clock, Counter, Span, features

_SLICE = 200_000  # iterations in one go


class Queue(NamedTuple):
    """The queue in a stretch of a run.

    Attributes
    ----------
    end_s
        Where the stretch ended: the end of an iteration, or an arrival after idle time.
    least
        Fewest requests that waited in an iteration of it; 0 where there was none.
    waiting
        Requests that waited in the last one.
    completed, iterations, preempted
        Of the run so far.
    """

    end_s: float
    least: int
    waiting: int
    completed: int
    iterations: int
    preempted: int


class OpenRun:
    """Requests that arrive by themselves, or follow each other, at one replica; run on from one time to the next.

    Examples
    --------
    Three requests of a second each, of which one fits at a time:

    >>> import numpy as np
    >>> from kvplan.model import Plan, Replica, RequestClass, ServingModel, Timing
    >>> from kvplan.simulation.requests import Requests
    >>> model = ServingModel((RequestClass("a", 7, (1,), (1.0,), 0.1),), Timing(1.0), Replica(9))
    >>> three = Requests(np.zeros(3), np.full(3, 7), np.ones(3, dtype=np.int64), np.zeros(3, dtype=np.int64))
    >>> run = OpenRun(Scenario(model, Plan(), three, ("a",)), Settings("greedy", {}), 99.0)
    >>> run.on(2.0).least, run.on(3.0).least
    (1, 0)
    """

    def __init__(self, scenario: Scenario, settings: Settings, horizon_s: float) -> None:
        model, policy = scenario.model, POLICIES[settings.policy]
        setup, _ = policy.prepare(scenario, settings)
        self._rows = Rows(scenario.requests, setup, model.replica, engine.ROWS)
        self._state = new_state(
            scenario.requests,
            model.timing,
            model.replica,
            setup,
            horizon_s,
            model.request_overhead_s,
            self._rows.number.size,
        )
        longest = most_stages(scenario.requests, setup, model.replica.prefill)
        self._patience = (
            engine.PATIENCE * (longest + int(scenario.requests.input_tokens.max(initial=1))) + 1000
        )
        self._loop = engine.PROGRAM.compiled(policy.form_batch, features(self._state))
        self.ended = False  # by the horizon, by the last completion, or stuck
        self.stuck = False

    def on(self, until_s: float) -> Queue:
        """Go on until the first iteration that ends at this time or later."""
        clock = self._state.clock
        clock[Clock.PAUSE] = until_s
        self._state.span[0, Span.LEAST_WAITING] = math.inf
        while not self.ended and clock[Clock.NOW] < until_s:
            self._go_on()
            clock = self._state.clock
        c, least = self._state.counter, float(self._state.span[0, Span.LEAST_WAITING])
        return Queue(
            float(clock[Clock.NOW]),
            0 if least == math.inf else int(least),
            int(c[Counter.WAITING]),
            int(c[Counter.COMPLETED]),
            int(c[Counter.ITERATIONS]),
            int(c[Counter.EVICTED]),
        )

    def _go_on(self) -> None:
        c = self._state.counter
        assert self._loop is not None
        code = self._loop(self._state, int(c[Counter.ITERATIONS]) + _SLICE, self._patience)
        if code == engine.LACKS_ROWS:
            (self._state,), c[Counter.JOINED], c[Counter.RELEASED] = self._rows.refilled(
                (self._state,), int(c[Counter.ROWLESS])
            )
            c[Counter.ROWLESS] -= c[Counter.RELEASED] - c[Counter.JOINED]
        self.stuck = code == engine.LIVELOCK
        self.ended = code in engine.ENDINGS
