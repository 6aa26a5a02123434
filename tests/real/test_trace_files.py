"""Real traces as they were published, read whole."""

from pathlib import Path

import numpy as np
import pytest

from kvplan.errors import UsageError
from kvplan.ingest.trace.replay import read_trace

DATA = Path(__file__).resolve().parents[3] / "shared/data"


def existing(name: str) -> Path:
    path = DATA / name
    if not path.exists():
        pytest.skip(f"{name} is not here")
    return path


def test_the_azure_conversation_trace_has_all_its_requests() -> None:
    """19,366 requests in 3,502 s."""
    path = existing("azure-conv/AzureLLMInferenceTrace_conv.csv")
    trace = read_trace(path)
    requests = trace.requests
    assert trace.notes == ()
    assert requests.arrival_s.size == 19_366
    assert requests.arrival_s[:3].tolist() == [0.0, 4.314579, 4.541877]
    assert requests.arrival_s[-1] == pytest.approx(3502, abs=0.5)
    assert (np.diff(requests.arrival_s) >= 0).all()
    tokens = np.loadtxt(path, delimiter=",", skiprows=1, usecols=(1, 2), dtype=np.int64)
    assert requests.input_tokens.tolist() == tokens[:, 0].tolist()
    assert requests.decode_tokens.tolist() == tokens[:, 1].tolist()


@pytest.mark.parametrize(
    "name",
    [
        "servegen/chunk-14-trace.csv",
        "servegen/chunk-14-dataset.json",
        "splitwise-sim/perf_model.csv",
        "vllm-rtx4090/timeseries.csv",
        "vllm-rtx4090/meta.json",
        "engine-logs/startup_lines.txt",
    ],
)
def test_other_files_are_refused_by_their_first_line(name: str) -> None:
    path = existing(name)
    with pytest.raises(UsageError) as refusal:
        read_trace(path)
    assert str(refusal.value).startswith(f"{path}:1: ")


def test_the_measured_vllm_run_has_all_its_requests() -> None:
    """300 requests at about ten a second."""
    trace = read_trace(existing("vllm-rtx4090/requests.jsonl"))
    requests = trace.requests
    assert trace.notes == ()
    assert requests.arrival_s.size == 300
    assert requests.arrival_s[:2].tolist() == [0.0, 0.265091]
    assert 299 / requests.arrival_s[-1] == pytest.approx(10, abs=0.5)
    assert (requests.input_tokens[0], requests.decode_tokens[0]) == (2358, 531)
    assert (requests.input_tokens[-1], requests.decode_tokens[-1]) == (582, 768)
