"""The shipped conversation profiles against the trace they were taken from."""

import csv
from datetime import datetime
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest

from kvplan.analysis.equilibrium import sustainable_rate
from kvplan.analysis.stability import model_spectrum
from kvplan.model import Replica, RequestClass, ServingModel
from kvplan.profile.reading import Profile, load_profile
from kvplan.report.assembly import analyze

Trace = tuple[np.ndarray, np.ndarray, float]

TRACE = Path(__file__).resolve().parents[3] / "shared/data/azure-conv/AzureLLMInferenceTrace_conv.csv"
pytestmark = pytest.mark.skipif(not TRACE.exists(), reason="the Azure conversation trace is not here")


@pytest.fixture(scope="module")
def trace() -> Trace:
    """Prompt lengths, generated lengths, requests per second."""
    with TRACE.open(newline="") as file:
        rows = list(csv.DictReader(file))
    arrivals = [datetime.fromisoformat(row["TIMESTAMP"][:26]) for row in (rows[0], rows[-1])]
    prompt = np.array([int(row["ContextTokens"]) for row in rows])
    generated = np.array([int(row["GeneratedTokens"]) for row in rows])
    return prompt, generated, (len(rows) - 1) / (arrivals[1] - arrivals[0]).total_seconds()


@pytest.fixture(scope="module")
def shipped() -> Profile:
    return load_profile("llama-3.1-8b-rtx4090", stdin=BytesIO())


def test_the_shipped_classes_are_eighths_of_the_trace_by_prompt_length(
    trace: Trace, shipped: Profile
) -> None:
    prompt, generated, _ = trace
    eighths = np.array_split(np.argsort(prompt, kind="stable"), 8)
    assert len(shipped.model.classes) == len(eighths)
    for shipped_class, rows in zip(shipped.model.classes, eighths, strict=True):
        assert shipped_class.input_tokens == round(prompt[rows].mean())
        weights = np.array(shipped_class.decode_weights)
        mean = weights @ np.array(shipped_class.decode_tokens) / weights.sum()
        assert mean == pytest.approx(generated[rows].mean(), rel=0.01)
        assert shipped_class.rate_rps == pytest.approx(1.5 / 8)


def whole_trace(trace: Trace, like: ServingModel, replica: Replica) -> ServingModel:
    """Every request of the trace, one class for each prompt length, at the trace's own rate."""
    prompt, generated, rate = trace
    classes = []
    for length in np.unique(prompt):
        decode, counts = np.unique(generated[prompt == length], return_counts=True)
        weights = tuple(counts.astype(float).tolist())
        share = counts.sum() / prompt.size
        classes.append(RequestClass(f"{length}", int(length), tuple(decode.tolist()), weights, rate * share))
    return ServingModel(tuple(classes), like.timing, replica)


def test_binning_keeps_footprint_variance_and_spectral_radius(trace: Trace, shipped: Profile) -> None:
    """To 0.3 % and 0.3 %, and 2·10⁻⁴ of the radius, page rounding left out of both."""
    replica = Replica(shipped.model.replica.memory_tokens)
    whole = whole_trace(trace, shipped.model, replica)
    binned = ServingModel(shipped.model.classes, shipped.model.timing, replica)

    def moments(model: ServingModel) -> tuple[float, float]:
        first, second = 0.0, 0.0
        for a, n, p in zip(model.mix.read.first, model.mix.stages, model.mix.share, strict=True):
            held = a + np.arange(n)
            first, second = first + p * held.sum(), second + p * (held**2).sum()
        return first, second

    assert moments(binned) == pytest.approx(moments(whole), rel=0.003)
    whole_radius, binned_radius = model_spectrum(whole), model_spectrum(binned)
    assert whole_radius.radius == pytest.approx(0.9974, abs=5e-5)
    assert whole_radius.certified
    assert binned_radius.radius == pytest.approx(whole_radius.radius, abs=2e-4)


@pytest.mark.nightly
def test_the_trace_itself_is_1_4_times_what_one_replica_sustains(trace: Trace, shipped: Profile) -> None:
    whole = whole_trace(trace, shipped.model, shipped.model.replica)
    assert whole.total_rate_rps == pytest.approx(5.53, abs=0.005)
    _, sustainable = sustainable_rate(whole)
    assert whole.total_rate_rps / sustainable == pytest.approx(1.4, abs=0.05)
    report = analyze(whole, name="trace", sha256="")
    assert report.verdict.status == "overloaded"
    overloaded = load_profile("azure-conv-overloaded", stdin=BytesIO()).model
    assert overloaded.total_rate_rps == pytest.approx(whole.total_rate_rps, rel=1e-3)
    assert sustainable_rate(overloaded)[1] == pytest.approx(sustainable, rel=0.003)
