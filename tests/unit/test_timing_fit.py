"""Constants found again from what they would make: the measured times come from a simulator that shares no code."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from slow_simulator import simulate

from kvplan.ingest.timing.fit import TimingFit, fit_measured
from kvplan.ingest.timing.played import requests_of
from kvplan.ingest.timing.sweep import Deployment, Point, Sweep
from kvplan.model import Prefill, Replica, Timing

NOWHERE_NEAR = Timing(0.5, d1=1e-4, d2=1e-3, d3=1e-3)
LIMITS = Replica(100_000, 16, Prefill.FUSED, max_num_batched_tokens=512)
OVERHEAD_S = 0.004
SHAPES = ((120, 24), (400, 9))
LOADS = (1, 2, 3, 5, 8, 12)


def seen(point: Point, timing: Timing, engine: str = "vllm") -> Point:
    """The point with the times a client would see."""
    requests = requests_of(point)
    result = simulate(engine, requests, timing, LIMITS, {})
    arrival = np.array(result.arrival_s)
    ttft = np.array(result.first_token_s) - arrival + OVERHEAD_S
    e2e = np.array(result.finish_s) - arrival + OVERHEAD_S
    tpot = (e2e - ttft) / (requests.decode_tokens - 1)
    return replace(point, ttft_s=float(ttft.mean()), tpot_s=float(tpot.mean()))


def sweep(timing: Timing, *, loads: Sequence[int] = LOADS, engine: str = "vllm") -> Sweep:
    points = [
        Point(line=2 + i, inputs=(s, s), outputs=(d - d // 3, d), concurrency=c)
        for i, (c, (s, d)) in enumerate((c, shape) for shape in SHAPES for c in loads)
    ]
    deployment = Deployment(engine=engine)
    return Sweep("sweep.csv", "", deployment, tuple(seen(point, timing, engine) for point in points))


def fitted(measured: Sweep, prior: Timing = NOWHERE_NEAR) -> TimingFit:
    return fit_measured([measured], prior, replica=LIMITS)


@pytest.mark.parametrize(
    "timing",
    [
        Timing(0.01, d1=2e-6, d2=5e-5, d3=1e-4),
        Timing(0.01, d1=2e-6, d2=5e-5, d4=2e-3),
        Timing(0.01, d1=2e-6, d2=2e-5, d5=1e-4, knee_tokens=256),
    ],
)
def test_a_law_is_found_again_from_what_clients_of_a_closed_loop_saw(timing: Timing) -> None:
    fit = fitted(sweep(timing))
    assert fit.timing.constants == pytest.approx(timing.constants, rel=1e-2, abs=1e-9)
    assert fit.request_overhead_s == pytest.approx(OVERHEAD_S, rel=1e-2)
    assert fit.from_prior == ()
