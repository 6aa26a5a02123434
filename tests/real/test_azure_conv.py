"""The shipped conversation profiles against the trace they were taken from."""

import csv
from datetime import datetime
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest

from kvplan.profile.reading import Profile, load_profile

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
