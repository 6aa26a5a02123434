"""What WAIT serves where whole thresholds do not fit: short runs say what much longer ones do."""

import math
from typing import Any

import numpy as np
import pytest
from strategies import mix_model
from tiers import at_night, is_night

from kvplan.analysis.wait import Overload, wait
from kvplan.model import Plan, ServingModel, Timing
from kvplan.simulation.backlog import OpenRun
from kvplan.simulation.experiments.load import Load, generate
from kvplan.simulation.policies.protocol import Scenario, Settings
from kvplan.study import operating_point
from kvplan.study.operating_point import run_window, tried
from kvplan.study.windows import Window

FAST, BOUND = Timing(0.008, 4e-8, 1e-6), Timing(0.02, 1e-7, 2e-4)
THREE = (4000, 100, 5.0), (4000, 200, 5.0), (4000, 300, 5.0)
LONG, SHORT = (
    ((600, 50, 1.0), (600, 150, 1.0), (600, 900, 1.0)),
    ((10, 20, 4e3), (10, 40, 3e3), (10, 80, 2e3)),
)
OVERLOADED = {
    "three lengths": mix_model(*THREE, memory=100_000, prefill="fused", timing=FAST),
    "long answers": mix_model(*LONG, memory=12_800, prefill="fused", timing=BOUND),
    "many short": mix_model(*SHORT, memory=60_000, prefill="inline", timing=Timing(0.01, 1e-7)),
    "one length": mix_model((1000, 200, 30.0), memory=60_000, prefill="fused", timing=FAST),
    "two rates": mix_model((500, 100, 9.0), (500, 100, 2.0), memory=40_000, prefill="fused", timing=FAST),
    "ready-made": mix_model((300, 60, 60.0), (900, 90, 20.0), memory=50_000, timing=FAST),
    "inline": mix_model((300, 60, 60.0), (900, 90, 20.0), memory=50_000, prefill="inline", timing=FAST),
    "far beyond": mix_model((200, 50, 900.0), (100, 200, 900.0), memory=90_000, timing=FAST),
    "few held": mix_model((5000, 40, 8.0), (2000, 80, 8.0), memory=30_000, prefill="fused", timing=FAST),
    "slow prompts": mix_model((2000, 30, 4.0), (100, 300, 4.0), memory=40_000, prefill="fused", timing=BOUND),
}


def served_for_long(model: ServingModel, thresholds: tuple[float, ...], requests: int) -> float:
    """Requests done in a second of the second half of a run, while so many come."""
    horizon_s = requests / model.total_rate_rps
    drawn = generate(model, Load(requests=None, horizon_s=horizon_s), 77)
    whole = tuple(max(1.0, float(int(n))) for n in thresholds)
    scenario = Scenario(model, Plan(), drawn, tuple(c.name for c in model.classes))
    run = OpenRun(scenario, Settings("wait", {"thresholds": whole}), horizon_s)
    half = run.on(horizon_s / 2).completed
    return (run.on(horizon_s).completed - half) / (horizon_s / 2)


@pytest.mark.parametrize("name", ["three lengths", "long answers", *at_night(*list(OVERLOADED)[2:])])
def test_short_runs_say_what_long_ones_do(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """At night of twenty times as many requests."""
    model, arrived = OVERLOADED[name], 0

    def counted(*given: Any) -> Window:
        nonlocal arrived
        seen = run_window(*given)
        arrived = seen.arrived
        return seen

    monkeypatch.setattr(operating_point, "run_window", counted)
    overload = wait(model).overload
    assert overload.thresholds is not None
    found = tried(overload, model, Plan())
    assert found.simulated_rps == pytest.approx(
        served_for_long(model, overload.thresholds, 40 * arrived if is_night() else 400_000), rel=0.02
    )
    assert found.simulated_shares is not None
    assert np.sum(found.simulated_shares) == pytest.approx(1)
    served = found.simulated_rps * np.array(found.simulated_shares)
    assert (served <= 1.05 * np.array(model.class_rates_rps)).all()  # no class more than is offered


def test_thresholds_that_are_whole_but_for_rounding_stay_as_they_are() -> None:
    assert Overload(thresholds=(math.nextafter(4.0, 0.0), 0.02, 2.7)).whole == (4, 1, 2)
    assert Overload().whole == ()
