"""What is shipped of GPUs and engines is what the sweeps teach, and foretells models they do not have."""

import json
from dataclasses import asdict, replace
from pathlib import Path

import pytest
from learn_roofline import SWEEPS, Ratio, bands, factors, gpus, held_out, left_out, read_points, ttft_factors
from scoreboard.learning import Load, learn

from kvplan.ingest.model.config import read_model
from kvplan.ingest.model.estimate import estimate_replica
from kvplan.ingest.model.hardware import find_gpu, tables
from kvplan.ingest.model.roofline import roofline
from kvplan.ingest.trace.replay import read_trace
from kvplan.model import Plan, Prefill, Replica, RequestClass, ServingModel
from kvplan.simulation.experiments import load as loads
from kvplan.simulation.experiments.options import chosen
from kvplan.simulation.experiments.study import study

SHIPPED = tables("roofline.toml")
RUNS = SWEEPS.parents[1]

needs_sweeps = pytest.mark.skipif(not SWEEPS.exists(), reason="the sweeps are not here")


@pytest.fixture(scope="module")
def points() -> list[Load]:
    return read_points()


@pytest.fixture(scope="module")
def ratios(points: list[Load]) -> list[Ratio]:
    return held_out(points)


@needs_sweeps
def test_the_constants_shipped_are_those_learnt(points: list[Load]) -> None:
    assert SHIPPED["efficiency"] == pytest.approx(asdict(learn(points)), rel=0.01)
    assert SHIPPED["gpus"] == gpus(points)


@needs_sweeps
def test_the_bands_shipped_are_those_of_models_left_out(ratios: list[Ratio]) -> None:
    shipped = {
        (kind, int(number)): (band["low"], band["high"], band["configurations"])
        for kind, of_kind in SHIPPED["bands"].items()
        for number, band in of_kind.items()
    }
    assert shipped.keys() == bands(ratios).keys()
    for group, band in bands(ratios).items():
        assert shipped[group] == pytest.approx(tuple(band), abs=0.02)


@needs_sweeps
def test_models_left_out_are_foretold(ratios: list[Ratio]) -> None:
    """Without communication, experts and layers the factor of dense models on 8 GPUs was 2.5, of mixtures 0.4 to 6."""
    found = factors(ratios)
    assert max(found["dense", number] for number in (1, 2, 4, 8)) < 1.12
    assert max(found["experts", number] for number in (2, 4, 8)) < 1.3
    assert ttft_factors(ratios)["dense"] < 1.7
    assert ttft_factors(ratios)["experts"] < 1.9


@pytest.mark.parametrize(
    ("run", "gpu", "max_num_seqs", "off"),
    [("vllm-rtx4090", "RTX 4090", 256, 0.4), ("vllm-rtxpro6000", "RTX PRO 6000", 128, 0.06)],
)
def test_a_run_is_foretold_without_any_measurement(run: str, gpu: str, max_num_seqs: int, off: float) -> None:
    """Llama-3.1-8B under vLLM, memory and timing estimated; neither GPU is in the sweeps."""
    file = RUNS / run / "requests.jsonl"
    if not file.exists():
        pytest.skip("the run is not here")
    rows = [json.loads(line) for line in file.read_text("utf-8").splitlines()]
    e2e_s = sum(row["last_token_ts"] - row["queued_ts"] for row in rows) / len(rows)
    makespan_s = max(row["last_token_ts"] for row in rows) - min(row["queued_ts"] for row in rows)
    shape, device = read_model("Llama-3.1-8B"), find_gpu(gpu)
    found, memory = roofline(shape, device), estimate_replica(shape, device)
    replica = Replica(
        memory.memory_tokens, 16, Prefill.FUSED, max_num_seqs=max_num_seqs, max_num_batched_tokens=2048
    )
    model = ServingModel((RequestClass("any", 1, (1,), (1.0,), 0.0),), found.timing, replica)
    load = loads.Load(trace=read_trace(Path(file)).requests)
    (result,) = study(model, Plan(), load, chosen(["vllm"], []), [0]).results
    assert result.makespan_s == pytest.approx(makespan_s, rel=off)
    assert result.e2e_s.mean == pytest.approx(e2e_s, rel=off)
    assert found.band[0] < makespan_s / result.makespan_s < found.band[1]


@needs_sweeps
def test_nothing_is_learnt_from_the_model_that_is_left_out(points: list[Load]) -> None:
    model = "Qwen/Qwen3-32B"
    slower = [
        replace(point, ttft_s=3 * point.ttft_s, tpot_s=3 * point.tpot_s)
        if point.configuration.model == model
        else point
        for point in points
    ]
    thrice, once = left_out(slower, model), left_out(points, model)
    assert [ratio.tpot for ratio in thrice] == pytest.approx([3 * ratio.tpot for ratio in once])
