"""Timings fitted to recorded runs: do they foretell what they have not seen?"""

from pathlib import Path

import pytest
from sampled import parse_samples, read_samples

from kvplan.ingest.timing.equations import Kind
from kvplan.ingest.timing.fit import TimingFit, fit_measured
from kvplan.ingest.trace.replay import read_trace
from kvplan.model import Plan, Prefill, Replica, RequestClass, ServingModel, Timing
from kvplan.simulation.experiments.load import Load
from kvplan.simulation.experiments.options import chosen
from kvplan.simulation.experiments.study import study

DATA = Path(__file__).resolve().parents[3] / "shared/data"
RUN = DATA / "vllm-rtx4090"
MEASUREMENTS = DATA / "splitwise-sim/perf_model.csv"
PRIOR = Timing(0.01, d1=1e-7, d2=1e-5)  # of no replica here: powers of ten
BLOCKS, BLOCK = 2588, 16  # meta.json: kv_cache

needs_run = pytest.mark.skipif(not RUN.exists(), reason="the RTX 4090 run is not here")
needs_measurements = pytest.mark.skipif(not MEASUREMENTS.exists(), reason="splitwise-sim's are not here")


@pytest.fixture(scope="module")
def first_half() -> TimingFit:
    with (RUN / "timeseries.csv").open(newline="") as file:
        header, *lines = file.readlines()
    half = [header, *lines[: len(lines) // 2]]
    return fit_measured(parse_samples(half, "timeseries.csv", capacity_tokens=BLOCKS * BLOCK), PRIOR)


@needs_run
def test_half_a_run_foretells_the_whole(first_half: TimingFit) -> None:
    replica = Replica(BLOCKS * BLOCK, BLOCK, Prefill.FUSED, max_num_seqs=256, max_num_batched_tokens=2048)
    model = ServingModel((RequestClass("any", 1, (1,), (1.0,), 0.0),), first_half.timing, replica)
    load = Load(trace=read_trace(RUN / "requests.jsonl").requests)
    (result,) = study(model, Plan(), load, chosen(["vllm"], []), [0]).results
    assert result.figures["makespan_s"] == pytest.approx(183.5, rel=0.05)
    assert result.figures["e2e_s.mean"] == pytest.approx(86.6, rel=0.08)


@pytest.fixture(scope="module")
def fits() -> dict[str, TimingFit]:
    """Of each model and GPU."""
    return {found.group: fit_measured([found], PRIOR) for found in read_samples(MEASUREMENTS)}


@needs_measurements
def test_every_model_and_gpu_is_fitted_with_its_held_out_error(fits: dict[str, TimingFit]) -> None:
    assert len(fits) == 12
    errors = []
    for fit in fits.values():
        timing = fit.timing
        assert min(timing.d0, timing.d1, timing.d2, timing.d3) >= 0  # monotone
        assert timing.d0 > 0.02
        assert fit.error(Kind.ITERATION) < 0.1
        assert fit.trimmed_share < 0.2
        held_out = fit.held_out_error(Kind.ITERATION)
        assert held_out is not None
        assert held_out < 0.12
        errors.append(held_out)
    assert sum(errors) / 12 < 0.08


@needs_run
def test_what_half_a_run_cannot_tell_is_said(first_half: TimingFit) -> None:
    """Memory was full from the fourth second on."""
    assert first_half.envelope
    assert 0.1 < first_half.trimmed_share <= 0.5
    held_out = first_half.held_out_error(Kind.ITERATION)
    assert held_out is not None
    assert held_out < 0.05
    assert "d1" in first_half.undetermined


@needs_measurements
def test_the_outliers_of_two_gpus_are_named(fits: dict[str, TimingFit]) -> None:
    """Batches of 64 on two GPUs, faster than those of 32."""
    for group, fit in fits.items():
        lines = [outlier.line for outlier in fit.outliers if outlier.sequences == 64]
        assert len(lines) == (5 if group.endswith("TP2") else 0)
