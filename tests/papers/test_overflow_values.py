"""The cluster law of KV usage reproduces its table of formulas and simulations."""

import math
import tomllib
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from every import every
from strategies import mix_model

from kvplan.analysis.equilibrium import equilibrium, load
from kvplan.analysis.overflow import flow_control_bound, safety_buffer
from kvplan.model import Prefill, Replica, RequestClass, ServingModel, Timing

TABLE = tomllib.loads(Path(__file__).with_name("overflow.toml").read_text(encoding="utf-8"))


def model_of(case: dict[str, Any], memory_tokens: int = 10**6) -> ServingModel:
    classes = tuple(
        RequestClass(str(i), s, (d,), (1.0,), float(rate)) for i, (s, d, rate) in enumerate(case["classes"])
    )
    return ServingModel(
        classes, Timing(case["d0"], case["d1"]), Replica(memory_tokens, prefill=Prefill.INLINE)
    )


@every("case", TABLE["case"])
def test_the_standard_deviation_and_the_tail_are_those_of_the_table(case: dict[str, Any]) -> None:
    model = model_of(case)
    assert load(model).work_rate == pytest.approx(case["work_rate"], abs=0.005)
    mean = equilibrium(model).kv_tokens
    for k, (formula, simulated) in enumerate(zip(case["formula"], case["simulated"], strict=True), start=1):
        memory = math.floor(mean + k * case["threshold_std"])
        buffer = safety_buffer(
            replace(model, replica=replace(model.replica, memory_tokens=memory)), delta=0.01, horizon_s=3600
        )
        assert buffer.kv_std_tokens == pytest.approx(case["std"], rel=TABLE["std_tolerance"])
        assert buffer.kv_std_tokens == pytest.approx(case["simulated_std"], rel=TABLE["std_tolerance"])
        assert buffer.saddlepoint_probability == pytest.approx(formula, rel=TABLE["tail_tolerance"])
        ratio = buffer.saddlepoint_probability / simulated
        assert 1 / TABLE["simulated_factor"] <= ratio <= TABLE["simulated_factor"]


@every(("prefill", "stages", "prompt"), [("disaggregated", 60, 10), ("fused", 60, 10), ("inline", 61, 9)])
def test_the_theorem_of_flow_control_is_least_just_above_the_arrivals(
    prefill: str, stages: int, prompt: int
) -> None:
    """McDiarmid with C slots of span 2AC and AC requests of span 2C: 2x²/(C(2AC)² + AC(2C)²), by mean budget b."""
    memory, slots, c = 16_492, 3600, max(stages, prompt)
    lengths = {20: 1.5, 40: 1.5, 60: 1.5}
    model = mix_model(*((10, d, rate) for d, rate in lengths.items()), memory=memory, prefill=prefill)
    footprint = (
        sum((10 + d / 2) * (d + 1) if prefill == "inline" else 10 * d + d * (d + 1) / 2 for d in lengths) / 3
    )

    def bound(b: float) -> float:
        budget, spare = math.ceil(b), memory - b * footprint
        return slots * math.exp(-2 * spare**2 / (c * (2 * budget * c) ** 2 + budget * c * (2 * c) ** 2))

    least = min(map(bound, np.linspace(4.5, memory / footprint, 10_001)))
    assert flow_control_bound(model, slots) == pytest.approx(least, rel=1e-9)


def test_a_slot_in_two_hundred_overflows_at_most_in_the_example_of_flow_control() -> None:
    """5 arrive in a slot, budgets of 6 at most hold 6,766 tokens in the mean: 3600·exp(-9725.33²/(2·42·60³))."""
    thirds = mix_model(*((10, d, 5 / 3) for d in (20, 40, 60)), memory=16_492)
    assert flow_control_bound(thirds, 3600) == pytest.approx(19.6, abs=0.05)
