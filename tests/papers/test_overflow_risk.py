"""Risk of overflow against paths of KV usage, request by request: per iteration, and of any within a horizon.

Profiles of different kinds, at constant iteration time and with feedback, with pages that lengths align with and that
they do not. Rates are given as requests in flight.
"""

import math
from dataclasses import dataclass, replace

import numpy as np
import pytest
from kv_paths import path

from kvplan.analysis.equilibrium import equilibrium, load
from kvplan.analysis.overflow import has_doubtful_tail, safety_buffer
from kvplan.model import Prefill, Replica, RequestClass, ServingModel, Timing

WINDOWS = 10.0 * 3.0 ** np.arange(14)  # iterations
SIGMAS = (1, 2, 2.5, 3, 3.5, 4)
CLUMPS = 200  # so many overflows apart from each other make a frequency known to a tenth
EVEN = Timing(0.01, 2e-7, 2e-5, 2e-5)  # proportions of what feedback there is, scaled to a work rate
READING, PROMPTS = Timing(0.01, 1e-7), Timing(0.01, 0.0, 1e-5)


@dataclass(frozen=True)
class Kind:
    """Inputs, decode lengths with weights, and rates of classes; requests in flight; pages."""

    classes: tuple[tuple[int, dict[int, float], float], ...]
    in_flight: float
    block_tokens: int = 16
    prefill: Prefill = Prefill.FUSED
    iterations: int = 1_000_000

    def model(self, work_rate: float, feedback: Timing) -> ServingModel:
        """As many requests in flight at any work rate: shorter fixed times make up for longer variable ones."""
        stay = sum(
            rate * (d + (self.prefill is Prefill.INLINE)) * w / sum(lengths.values())
            for _, lengths, rate in self.classes
            for d, w in lengths.items()
        )
        classes = tuple(
            RequestClass(str(i), s, tuple(lengths), tuple(lengths.values()), rate * self.in_flight / stay)
            for i, (s, lengths, rate) in enumerate(self.classes)
        )
        model = ServingModel(classes, feedback, Replica(10**9, self.block_tokens, self.prefill))
        scale = work_rate / load(model).work_rate if work_rate else 0.0
        terms = [scale * term for term in (feedback.d1, feedback.d2, feedback.d3)]
        return replace(model, timing=Timing(1 - work_rate, *terms))  # τ* = 1 s


def alone(s: int, d: int) -> tuple[tuple[int, dict[int, float], float], ...]:
    return ((s, {d: 1.0}, 1.0),)


GEOMETRIC = {float(d): math.exp(-d / 80) for d in range(5, 400, 15)}
KINDS = {
    "aligned": Kind(alone(16, 16), 30),
    "one page more at once": Kind(alone(15, 16), 30),
    "classifier, aligned": Kind(alone(16, 1), 300),
    "inline, aligned": Kind(alone(16, 15), 25, prefill=Prefill.INLINE),
    "disaggregated": Kind(alone(500, 100), 25, 64, Prefill.DISAGGREGATED, iterations=3_000_000),
    "few, pages": Kind(alone(1155, 211), 8, iterations=5_000_000),
    "few": Kind(alone(1155, 211), 5, 1, iterations=5_000_000),
    "short prompts": Kind(alone(64, 200), 30, iterations=5_000_000),
    "four lengths": Kind(((10, {20: 4.0, 40: 3.0, 80: 2.0, 160: 1.0}, 1.0),), 60, 64, iterations=3_000_000),
    "many": Kind(((100, {20: 5.0, 60: 3.0, 300: 2.0}, 1.0),), 500, 1, iterations=5_000_000),
    "memoryless": Kind(((1000, {int(d): w for d, w in GEOMETRIC.items()}, 1.0),), 40, iterations=3_000_000),
    "chat, documents, tools": Kind(
        (
            (800, {50: 0.3, 250: 0.5, 600: 0.2}, 0.6),
            (6000, {100: 0.5, 300: 0.5}, 0.25),
            (1500, {80: 1.0}, 0.15),
        ),
        20,
        iterations=5_000_000,
    ),
    "rare long prompts": Kind(((20, {10: 1.0}, 1.0), (8000, {100: 1.0}, 0.02)), 12, iterations=3_000_000),
}
CASES = [
    *(
        pytest.param(name, work_rate, feedback, marks=() if quick else pytest.mark.nightly)
        for name in KINDS
        for work_rate, feedback, often in (
            (0.0, EVEN, True),
            (0.7, EVEN, True),
            (0.8, EVEN, False),
            (0.7, READING, False),
        )
        for quick in [often and KINDS[name].iterations <= 1_000_000]
    ),
    # prompts that bring further prompts; with fewer in flight see below
    *(
        pytest.param(name, 0.6, PROMPTS, marks=pytest.mark.nightly)
        for name in ("aligned", "inline, aligned", "short prompts", "memoryless", "many")
    ),
]


def risk(model: ServingModel, memory_tokens: int, iterations: float = 1.0) -> tuple[float, float]:
    """P(KV > M) per iteration, and of any in so many of 1 s."""
    there = replace(model, replica=replace(model.replica, memory_tokens=memory_tokens))
    found = safety_buffer(there, delta=0.01, horizon_s=iterations)
    assert found.overflow_probability_per_iteration is not None
    assert found.overflow_probability_horizon is not None
    return found.overflow_probability_per_iteration, found.overflow_probability_horizon


@pytest.mark.parametrize(("name", "work_rate", "feedback"), CASES)
def test_the_risk_is_that_of_simulated_paths(name: str, work_rate: float, feedback: Timing) -> None:
    kind = KINDS[name]
    model = kind.model(work_rate, feedback)
    found, spread = equilibrium(model), safety_buffer(model, delta=0.01, horizon_s=1.0).kv_std_tokens
    assert found.iteration_time_s == pytest.approx(1.0)
    assert found.requests_in_flight == pytest.approx(kind.in_flight)
    page = kind.block_tokens
    levels = [math.floor((found.kv_tokens + k * spread) / page) * page for k in SIGMAS]
    seen = path(model, work_rate, levels, WINDOWS.tolist(), kind.iterations, seed=1)
    assert seen.mean == pytest.approx(found.kv_tokens, rel=0.03)
    assert math.sqrt(seen.variance) == pytest.approx(spread, rel=0.05)
    compared = 0
    for k, level in enumerate(levels):
        if seen.clumps[k] < CLUMPS:
            continue
        assert seen.exceeded[k] / 1.5 <= risk(model, level)[0] <= 1.5 * seen.exceeded[k]
        for frequency, window in zip(seen.any_in[k], WINDOWS, strict=True):
            if SIGMAS[k] >= 2 and 0.01 <= frequency <= 0.9:
                assert 2 / 3 * frequency <= risk(model, level, window)[1] <= 3 * frequency
                compared += 1
    assert compared >= 8


@pytest.mark.nightly
def test_few_clusters_of_prompts_are_told() -> None:
    """Where the saddlepoint is too small, and only there, it is said."""
    wrong, told = {}, {}
    for in_flight in (4, 16):
        for work_rate in (0.4, 0.7):
            model = Kind(alone(1155, 211), in_flight).model(work_rate, PROMPTS)
            mean, spread = (
                equilibrium(model).kv_tokens,
                safety_buffer(model, delta=0.01, horizon_s=1.0).kv_std_tokens,
            )
            level = math.floor((mean + 3 * spread) / 16) * 16
            seen = path(model, work_rate, [level], [1.0], 3_000_000, seed=1)
            wrong[in_flight, work_rate] = (
                not seen.exceeded[0] / 1.5 <= risk(model, level)[0] <= 1.5 * seen.exceeded[0]
            )
            told[in_flight, work_rate] = has_doubtful_tail(model)
    assert wrong == told
    assert set(told.values()) == {True, False}
