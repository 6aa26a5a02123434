"""Simulated days of five workloads: what was derived keeps the objectives, and no guess that does costs less.

Bursts reach 8 times what a replica serves within the objectives, the mean is 3.3 times that. Of agents it is that of
the profile, for their day has a million turns. No objective had to be widened: an idle replica keeps all.
"""

from pathlib import Path
from typing import NamedTuple

import pytest

import kvplan
from kvplan.model.slo import parse_slo
from kvplan.study.operations import derive, service_of
from kvplan.study.replicas import scaled
from kvplan.study.verification import verify

CASES = Path(__file__).resolve().parents[3] / "shared/cases/realistic"


class Workload(NamedTuple):
    profile: str
    rate_rps: float | None  # None: that of the profile
    objectives: tuple[str, ...]


WORKLOADS = {
    "chat": Workload("llama-3.1-8b-rtx4090", 12.24, ("ttft-p95=2s",)),
    "mix": Workload(str(CASES / "8b-h100_mixed_256_16384.toml"), 19.2, ("ttft-p95=3s", "itl-p95=100ms")),
    "long context": Workload(
        str(CASES / "8b-h100_summ_1024_8192.toml"), 6.43, ("ttft-p95=3s", "itl-p95=100ms")
    ),
    "reasoning": Workload("reasoning-h100", 5.0, ("ttft-p95=10s", "tpot-p95=50ms")),
    "agents": Workload("agents-collapse", None, ("ttft-p95=2s",)),
}
TIE = 0.98  # of the GPU-hours


@pytest.mark.nightly
@pytest.mark.usefixtures("days")
@pytest.mark.skipif(not CASES.exists(), reason="the shared cases are not here")
@pytest.mark.parametrize("name", WORKLOADS)
def test_derived_targets_keep_the_objectives_at_the_least_cost(name: str) -> None:
    profile, rate, objectives = WORKLOADS[name]
    loaded = kvplan.load(profile).with_slos(map(parse_slo, objectives))
    model = loaded.model if rate is None else scaled(loaded.model, rate)
    day = service_of(model, loaded.plan, day_mean=True)
    operations = derive(day)
    assert operations is not None
    derived, *others = verify(day, operations)
    assert derived.within >= 0.995
    cheaper = [way for way in others if way.gpu_hours < TIE * derived.gpu_hours]
    assert [way for way in cheaper if way.within >= 0.995] == []
