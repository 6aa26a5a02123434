"""Times between tokens of a run: of every request from its first token to its last, whatever comes between."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvplan.model import Plan, Replica, RequestClass, ServingModel, Timing
from kvplan.simulation.experiments import options, study
from kvplan.simulation.experiments.load import Arrivals, Load
from kvplan.simulation.outcome import Outcome
from kvplan.simulation.requests import Requests

POLICIES = (
    "vllm",
    "vllm-v0",
    "sglang",
    "trtllm-max-utilization",
    "trtllm-no-evict",
    "sarathi",
    "greedy",
    "rate-limited",
)
ENGINES = {"vllm", "vllm-v0", "sglang", "trtllm-max-utilization", "trtllm-no-evict", "sarathi"}


def run(policy: str, memory: int, rate: float, budget: int | None) -> tuple[Requests, Outcome]:
    classes = (
        RequestClass("short", 30, (5, 20), (1.0, 2.0), rate),
        RequestClass("long", 200, (1, 60), (1.0, 1.0), rate / 4),
    )
    replica = Replica(memory, block_tokens=16, max_num_batched_tokens=budget)
    model = ServingModel(classes, Timing(0.01, 1e-5, 1e-4, 1e-4), replica)
    load = Load(kind=Arrivals.POISSON, requests=150)
    found = study.study(model, Plan(), load, options.chosen([policy], []), [3], compile=False, threads=1)
    return found.runs[0][0]


@pytest.mark.parametrize("policy", POLICIES)
@given(
    memory=st.sampled_from([640, 1_600, 100_000]),
    rate=st.floats(0.5, 40.0),
    budget=st.sampled_from([None, 64, 512]),
)
def test_they_add_up_to_what_passes_from_the_first_token_to_the_last(
    policy: str, memory: int, rate: float, budget: int | None
) -> None:
    requests, outcome = run(policy, memory, rate, budget)
    if not outcome.finished:  # a livelock
        return
    tokens = int((requests.decode_tokens - 1).sum())
    if policy in ENGINES or outcome.recomputed_tokens == 0:  # others compute what they had emitted again
        assert outcome.gap_histogram.sum() == tokens
    else:
        assert outcome.gap_histogram.sum() >= tokens
    assert outcome.gap_sum_s == pytest.approx(math.fsum(outcome.finish_s - outcome.first_token_s), rel=1e-9)
