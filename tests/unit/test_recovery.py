"""What a saturated replica serves at least: known cycles, known limits, and an oracle that shares no code."""

from dataclasses import replace

import pytest
from shipped import profile
from strategies import mix_model

from kvplan.analysis.equilibrium import sustainable_rate
from kvplan.engine import Engine, EngineName
from kvplan.model import Plan
from kvplan.report.figures import Figures
from kvplan.report.words import Status
from kvplan.simulation.policies import engine_settings
from kvplan.simulation.policies.protocol import Settings
from kvplan.study.recovery import Recovery, recovery

GREEDY = Settings("greedy", {})
MARGIN = 1 - 0.005  # what is taken off a rate that is known exactly


@pytest.mark.parametrize(
    ("input_tokens", "decode", "multiple"), [(2, 3, 4), (2, 3, 400), (5, 7, 50), (0, 9, 30)]
)
def test_one_length_collapses_to_the_homogeneous_cycle(input_tokens: int, decode: int, multiple: int) -> None:
    """Service-induced congestion: M/(d(s + d)) an iteration, however large a memory of whole cycles is."""
    cycle = decode * (input_tokens + decode)
    found = recovery(mix_model((input_tokens, decode, 1.0), memory=multiple * cycle), GREEDY)
    assert found.served_rps == pytest.approx(multiple, rel=2e-3)
    assert found.rate_rps == pytest.approx(multiple * MARGIN, rel=2e-3)
    assert found.settled


def test_the_limit_cycle_of_the_paper() -> None:
    """M = 600: 40/s in the worst cycle, 50/s in equilibrium."""
    model = profile("paper-sic-limit-cycle").model
    found = recovery(model, engine_settings(model))
    assert engine_settings(model) == GREEDY
    assert found.served_rps == pytest.approx(40.0, rel=1e-3)
    assert found.rate_rps == pytest.approx(40.0 * MARGIN, rel=1e-3)
    assert sustainable_rate(model)[1] == pytest.approx(50.0)


def test_where_nothing_is_ever_evicted_the_sustainable_rate_is_served() -> None:
    """As many as may run fit at their longest: no run says more, and none is made."""
    for prefill, settings in (("disaggregated", GREEDY), ("fused", Settings("vllm", {}))):
        model = mix_model((10, (5, 20), 1.0), memory=40 * 30 + 1, prefill=prefill, max_num_seqs=40)
        assert recovery(model, settings) == Recovery(sustainable_rate(model)[1])
        less = replace(model, replica=replace(model.replica, memory_tokens=30 * 30))
        assert recovery(less, settings).served_rps is not None


def test_a_request_that_does_not_fit_means_that_nothing_is_served() -> None:
    found = recovery(mix_model((3, (2, 40), 1.0), memory=20), GREEDY)
    assert found.rate_rps == 0.0


def test_prompts_that_wait_for_decodes() -> None:
    """In one of five iterations of a second the ten prompts of the token budget: 2 requests/s; formulas say more."""
    model = mix_model(
        (10, 8, 3.0), memory=1_000, prefill="fused", max_num_seqs=50, max_num_batched_tokens=100
    )
    model = replace(model, engine=Engine(EngineName.SGLANG, prefill_interval=5))
    figures = Figures(model, Plan())
    assert sustainable_rate(model)[1] > 3.0
    assert figures.recovery.served_rps == pytest.approx(2.0, rel=2e-3)
    assert figures.load.sustainable_rps == pytest.approx(2.0, rel=2e-3)
    assert figures.status is Status.OVERLOADED


def test_more_requests_than_are_simulated_are_left_alone_and_said() -> None:
    """One token in and two out hold 2 + 3: M/5 admissions an iteration, each for two iterations."""
    found = recovery(mix_model((1, 2, 1.0), memory=30_000), GREEDY)
    assert (found.rate_rps, found.settled) == (None, False)
    assert found.reason.startswith("memory holds some 12,000 requests")
