"""Fitted profiles beside the traces they come from."""

import json
from dataclasses import replace
from io import BytesIO
from pathlib import Path

import pytest

from kvplan.ingest.facts import merged
from kvplan.ingest.trace.fit import binned, compact, distortion
from kvplan.ingest.trace.replay import read_trace
from kvplan.ingest.trace.text import traffic_parts
from kvplan.ingest.trace.traffic import measure
from kvplan.model import Plan, Replica, RequestClass, ServingModel, Timing
from kvplan.profile.reading import load_profile
from kvplan.simulation.experiments.runner import Job, run_to_the_end
from kvplan.simulation.policies.protocol import Scenario, Settings
from kvplan.simulation.requests import prefixes_of_hashes

DATA = Path(__file__).resolve().parents[3] / "shared/data"
AZURE = DATA / "azure-conv/AzureLLMInferenceTrace_conv.csv"
MOONCAKE = DATA / "mooncake-conversation/conversation_trace.first8000.jsonl"
SERVEGEN = DATA / "servegen/chunk-14-trace.csv"
RTX_4090 = DATA / "vllm-rtx4090/requests.jsonl"
pytestmark = pytest.mark.skipif(not DATA.exists(), reason="the recorded traces are not here")


@pytest.fixture(scope="module")
def like() -> ServingModel:
    """The shipped timing on a replica without pages, large enough for every trace."""
    shipped = load_profile(None, stdin=BytesIO()).model
    return ServingModel(shipped.classes, shipped.timing, Replica(10**6))


def test_azure_conv_is_counted_right() -> None:
    traffic = measure(AZURE)
    assert (traffic.rows, traffic.count.sum()) == (19_366, 19_366)
    assert (round(traffic.mean_input), round(traffic.mean_decode)) == (1155, 211)
    assert traffic.rate_rps == pytest.approx(5.53, abs=0.005)
    assert traffic.notes == ()


@pytest.mark.parametrize("path", [AZURE, MOONCAKE, SERVEGEN, RTX_4090], ids=lambda path: path.parent.name)
def test_the_profile_keeps_what_decides_about_the_trace(path: Path, like: ServingModel) -> None:
    """The same verdict on stability, 1 - ρ to 20 %, footprint and variance to 2 %."""
    traffic = measure(path)
    kept = distortion(traffic, binned(traffic), like)
    assert kept.stable == kept.trace_stable
    assert kept.gap == pytest.approx(kept.trace_gap, rel=0.2)
    assert abs(kept.footprint) < 0.02
    assert abs(kept.variance) < 0.02


def test_what_else_the_traces_say() -> None:
    mooncake = measure(MOONCAKE)
    assert mooncake.count.sum() == 8000
    assert mooncake.prefixes is not None
    assert (mooncake.prefixes.block_tokens, mooncake.prefixes.complete) == (512, True)
    simulated = {
        1e6: 0.052,
        3e6: 0.135,
        1e7: 0.284,
    }  # found by a replica of so many tokens that replays the trace
    for memory, ratio in simulated.items():
        assert mooncake.prefixes.found_by(memory) == pytest.approx(ratio, abs=0.005)
    assert 1 / (1 - mooncake.prefixes.reusable) == pytest.approx(1.6, abs=0.05)  # overcounted without a cache
    client = measure(SERVEGEN)
    assert client.rows == 2016
    assert client.span_s == 2016 * 600
    run = measure(RTX_4090)
    assert run.count.sum() == 300
    assert run.rate_rps == pytest.approx(10.3, abs=0.1)


@pytest.mark.nightly
@pytest.mark.parametrize("memory_tokens", [1_000_000, 3_000_000, 10_000_000])
def test_the_curve_of_mooncake_is_what_a_replica_finds_that_replays_it(memory_tokens: int) -> None:
    """Block by block, in pages of 16, by a replica so fast that next to nothing is in progress."""
    rows = [json.loads(line) for line in MOONCAKE.read_text().splitlines()]
    requests = read_trace(MOONCAKE).requests
    shared = prefixes_of_hashes([row["hash_ids"] for row in rows], requests.input_tokens, 512)
    nobody = RequestClass("", 1, (1,), (1.0,), 0.0)
    model = ServingModel((nobody,), Timing(0.005, d1=1e-9, d2=1e-7), Replica(memory_tokens, 16))
    scenario = Scenario(model, Plan(), replace(requests, prefixes=shared), ("",))
    ((run,),) = run_to_the_end([[Job(Settings("vllm", {"prefix_caching": (1.0,)}), scenario)]], compile=True)
    assert run.found is not None
    found = run.found.hit_tokens.sum() / run.found.looked_up_tokens
    curve = measure(MOONCAKE).prefixes
    assert curve is not None
    assert curve.found_by(memory_tokens) == pytest.approx(found, abs=0.002)


def test_the_written_profile_of_azure_conv_keeps_it_too(like: ServingModel) -> None:
    traffic = measure(AZURE)
    base = load_profile(None, stdin=BytesIO())
    fitted = merged(base, traffic_parts(traffic, binned(traffic), base.model), source="x")
    kept = distortion(traffic, fitted.model.classes, like)
    assert (kept.stable, kept.trace_stable) == (True, True)
    assert kept.gap == pytest.approx(kept.trace_gap, rel=0.05)
    assert abs(kept.footprint) < 0.003
    assert abs(kept.variance) < 0.01


def test_few_fixed_lengths_turn_azure_conv_unstable_and_that_is_seen(like: ServingModel) -> None:
    traffic = measure(AZURE)
    for k in (1, 4):
        kept = distortion(traffic, compact(traffic, k), like)
        assert (kept.trace_stable, kept.stable) == (True, False)
