"""The cluster law of KV usage reproduces its table of formulas and simulations."""

import math
import tomllib
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from every import every

from kvplan.analysis.equilibrium import equilibrium, load
from kvplan.analysis.overflow import FlowControl, flow_control_bound, safety_buffer
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


def test_the_theorem_of_flow_control_has_the_constant_of_its_proof() -> None:
    """McDiarmid with C slots of span 2AC and AC requests of span 2C: 2(εM)²/(C(2AC)² + AC(2C)²)."""
    budget, longest, spare = 4, 60, 9000.0
    exponent = 2 * spare**2 / (longest * (2 * budget * longest) ** 2 + budget * longest * (2 * longest) ** 2)
    bound = flow_control_bound(
        FlowControl(
            iterations=1000.0,
            memory_tokens=16_492.0,
            mean_tokens=16_492.0 - spare,
            largest_budget=budget,
            longest=longest,
        )
    )
    assert bound == pytest.approx(1000 * math.exp(-exponent))
