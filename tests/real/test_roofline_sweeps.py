"""What is shipped of GPUs and engines is what the sweeps teach, and foretells runs that they do not have."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import tomli
from learn_roofline import ON_OTHER_GPUS, document, held_out, read_points
from scoreboard.sweeps import FILE

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
RUNS = Path(__file__).resolve().parents[3] / "shared/data"

needs_sweeps = pytest.mark.skipif(not (RUNS / FILE).exists(), reason="the sweeps are not here")


@pytest.mark.nightly
@needs_sweeps
def test_what_is_shipped_is_what_is_learnt() -> None:
    learnt = tomli.loads(document(read_points(RUNS)))
    assert SHIPPED["gpus"] == learnt["gpus"]
    for name, answer in learnt["answer"].items():
        assert SHIPPED["answer"][name] == pytest.approx(answer, rel=0.02)
    assert SHIPPED["belief"] | {"date": None} == learnt["belief"] | {"date": None}
    assert SHIPPED["efficiency"] == pytest.approx(learnt["efficiency"], rel=0.02)
    for table in (*(("bands", kind) for kind in ("dense", "experts")), ("unseen_gpu",)):
        shipped, again = SHIPPED, learnt
        for name in table:
            shipped, again = shipped[name], again[name]
        assert shipped.keys() == again.keys()
        for group, band in shipped.items():
            assert band == pytest.approx(again[group], abs=0.02)
    assert SHIPPED["ratios"].keys() == learnt["ratios"].keys()
    for model, ratios in SHIPPED["ratios"].items():
        assert ratios.keys() == learnt["ratios"][model].keys()
        for where, ratio in ratios.items():
            assert ratio == pytest.approx(learnt["ratios"][model][where], abs=0.02)


@pytest.mark.parametrize(
    ("run", "gpu", "max_num_seqs", "off"),
    [("vllm-rtx4090", "RTX 4090", 256, 0.12), ("vllm-rtxpro6000", "RTX PRO 6000", 128, 0.2)],
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
    limits = {"max_num_seqs": max_num_seqs, "max_num_batched_tokens": 2048}
    found, memory = roofline(shape, device), estimate_replica(shape, device, version="0.19.0", limits=limits)
    replica = Replica(memory.memory_tokens, 16, Prefill.FUSED, **limits)
    model = ServingModel((RequestClass("any", 1, (1,), (1.0,), 0.0),), found.timing, replica)
    load = loads.Load(trace=read_trace(Path(file)).requests)
    (result,) = study(model, Plan(), load, chosen(["vllm"], []), [0]).results
    assert result.figures["makespan_s"] == pytest.approx(makespan_s, rel=off)
    assert result.figures["e2e_s.mean"] == pytest.approx(e2e_s, rel=off)
    assert makespan_s / result.figures["makespan_s"] == pytest.approx(ON_OTHER_GPUS[gpu], abs=0.005)
    assert found.band[0] <= ON_OTHER_GPUS[gpu] <= found.band[1]


@pytest.mark.nightly
@needs_sweeps
def test_nothing_is_learnt_from_the_model_that_is_left_out() -> None:
    points, model = read_points(RUNS), "MiniMaxAI/MiniMax-M2.5"
    measured = [replace(load.point, tpot_s=3 * load.measured_s[1]) for load in points.loads]
    slower = [
        replace(load, point=point) if load.configuration.model == model else load
        for load, point in zip(points.loads, measured, strict=True)
    ]
    thrice, once = (
        {ratio.point.point.line: ratio.tpot for ratio in held_out(some, lambda of: of.model)}
        for some in (points._replace(loads=slower), points)
    )
    lines = {load.point.line for load in points.loads if load.configuration.model == model}
    assert [thrice[line] for line in lines] == pytest.approx([3 * once[line] for line in lines])
    assert any(thrice[line] != once[line] for line in once.keys() - lines)
