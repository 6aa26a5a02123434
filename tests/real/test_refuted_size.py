"""A number of replicas that short runs got wrong: TPOT is 30.9 ms at the rate that four leave each, with headroom."""

from pathlib import Path

import pytest

from kvplan.model.slo import parse_slo
from kvplan.planning.plan import plan
from kvplan.planning.result import Request
from kvplan.profile.reading import parse_profile
from kvplan.study.objectives import State

CASE = Path(__file__).resolve().parents[2].parent / "shared/cases/refuted/c5_70b-4h100_reason_1.toml"


@pytest.mark.skipif(not CASE.exists(), reason="the refuted cases are not there")
@pytest.mark.parametrize(("headroom", "replicas"), [(0.2, 5), (0.0, 4)])
def test_long_runs_decide_about_the_headroom(headroom: float, replicas: int) -> None:
    profile = parse_profile(CASE.read_bytes(), CASE.name)
    slos = (parse_slo("tpot-mean=30ms"), parse_slo("ttft-p99=2s"))
    tokens = {"max_num_batched_tokens": 8192}
    found = plan(
        Request([profile], None, slos, rate_rps=4.323, slower=0.0, headroom=headroom, settings=tokens)
    )
    assert found.setting.replicas == replicas
    assert found.sizes[0].state is not State.HOLDS
