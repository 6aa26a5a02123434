"""`kvplan simulate --hindsight`: a bound beside the policies, only where it is asked for and can be had."""

import io

import pytest
from command import Run, document

from kvplan.profile.reading import load_profile
from kvplan.show.page import Bullets
from kvplan.show.simulation import build
from kvplan.simulation.experiments.hindsight_bound import StudyBound
from kvplan.simulation.experiments.load import Arrivals, Load
from kvplan.simulation.experiments.options import chosen
from kvplan.simulation.experiments.study import Study, study

COMMAND = ["simulate"]


def test_the_bound_is_a_further_key_and_nothing_else_changes(run: Run) -> None:
    few = ["paper-fc-budgets", "--policy", "greedy", "--requests", "6", "--arrivals", "interleaved"]
    plain, bounded = document(run, *few), document(run, *few, "--hindsight")
    bound = bounded.pop("hindsight")
    assert bounded == plain
    # all six fit at once: two of each of 20, 40 and 60 slots
    assert bound == {"e2e_s.mean": {"bound": 40.0, "proven": True, "gap": 0.0}}
    assert plain["policies"][0]["e2e_s"]["mean"] == 40.0


def test_with_a_horizon_rates_are_bounded(run: Run) -> None:
    """Memory for 600 tokens, 3 + 4 + 5 for a request: 50 an iteration at most, from the third on."""
    until = ["paper-sic-limit-cycle", "--policy", "greedy", "--requests", "240", "--horizon", "6 s"]
    found = document(run, *until, "--arrivals", "saturated", "--hindsight")
    (greedy,) = found["policies"]
    rate, tokens = found["hindsight"]["throughput_rps"], found["hindsight"]["decode_tokens_per_s"]
    assert greedy["throughput_rps"] <= rate["bound"] <= 50.0
    assert tokens["bound"] == pytest.approx(3 * rate["bound"], rel=1e-3)


def test_a_bound_that_is_not_proven_tells_its_gap() -> None:
    model, plan = (loaded := load_profile("paper-fc-budgets", stdin=io.BytesIO())).model, loaded.plan
    few = Load(Arrivals.SATURATED, requests=3)
    found = study(model, plan, few, chosen(["greedy", "vllm"], []), [0])

    def said(policies: Study, gap: float | None) -> str:
        section = build(policies, "some", [StudyBound("e2e_s.mean", 5.73, False, gap)])
        (notes,) = (block for block in section.blocks if isinstance(block, Bullets))
        return " ".join(notes.items)

    assert (
        "at least 5.73 s mean time end to end on these requests; computed, a bound: no schedule is proven to "
        "reach it, a schedule was found 3.1% off it." in said(found, 0.031)
    )
    assert "no schedule is proven to reach it, no schedule was found." in said(found, None)
    assert "The bound is to hold for vllm too, with KV counted as engines do" in said(found, None)
    alone = found._replace(results=found.results[1:], runs=found.runs[1:])
    assert "The bound is to hold for" not in said(alone, None)  # nobody's bound is loosened
