"""Gain of thresholds by predicted length over those that need no prediction."""

from dataclasses import replace

import numpy as np

from kvplan.analysis.wait import Beats
from kvplan.errors import UsageError
from kvplan.model import FloatArray, Plan, ServingModel
from kvplan.simulation.engine import run
from kvplan.simulation.estimates import t_quantile
from kvplan.simulation.experiments.load import Load, generate
from kvplan.simulation.policies import POLICIES
from kvplan.simulation.policies.protocol import Scenario, Settings
from kvplan.study.operating_point import BUDGET_S, counted_work_s
from kvplan.study.windows import warm_up_s

_RUNS, _STEPS, _REQUESTS = 4, 20, 10_000


def beats_nested(model: ServingModel, plan: Plan) -> Beats:
    """Find the accuracy, to 5 %, from which on WAIT has fewer requests in the system than Nested WAIT, by runs.

    By Little's law they are then served sooner, or more of them are. All classes have the same accuracy. The result is
    empty if the profile has no predictions, a policy has no thresholds, or runs would take too long.
    """
    length_s = max(4 * warm_up_s(model), _REQUESTS / model.total_rate_rps)
    work_s = counted_work_s(model, model.total_rate_rps, length_s) * _RUNS
    if all(c.accuracy is None for c in model.classes) or work_s > BUDGET_S:
        return Beats()

    def fewer(steps: int) -> bool:
        change = _in_system("wait", model, plan, steps / _STEPS, length_s) - nested
        return bool(change.mean() < -t_quantile(_RUNS - 1) * change.std(ddof=1) / _RUNS**0.5)

    try:
        nested = _in_system("nested-wait", model, plan, 1.0, length_s)
        most = next((steps for steps in range(_STEPS, -1, -1) if not fewer(steps)), -1)  # that does not
    except UsageError:  # no thresholds, turns of sessions, layers of several kinds, drafts
        return Beats()
    return Beats(most < _STEPS, (most + 1) / _STEPS if most < _STEPS else None)


def _in_system(name: str, model: ServingModel, plan: Plan, accuracy: float, length_s: float) -> FloatArray:
    """Average the requests that wait or run, by run."""
    model, policy = (
        replace(model, classes=tuple(replace(c, accuracy=accuracy) for c in model.classes)),
        POLICIES[name],
    )
    names, means = tuple(c.name for c in model.classes), []
    for seed in range(_RUNS):
        requests = generate(model, Load(requests=None, horizon_s=length_s), seed)
        setup, _ = policy.set_up(Scenario(model, plan, requests, names, seed), Settings(name, {}))
        done = run(policy.form_batch, requests, model.timing, model.replica, setup, horizon_s=length_s)
        means.append((np.fmin(done.finish_s, length_s) - requests.arrival_s).sum() / length_s)
    return np.array(means)
