"""Start-up lines as engines' users quoted them, and a snapshot of metrics."""

import os
from pathlib import Path

import numpy as np
import pytest

from kvplan.ingest.engine_log import ReadLog, read_log
from kvplan.ingest.metrics import read_metrics

DATA = Path(__file__).resolve().parents[3] / "shared/data/engine-logs"
STARTUP = DATA / "startup_lines.txt"
SNAPSHOT = DATA / "vllm_metrics_snapshot.prom"
pytestmark = pytest.mark.skipif(not DATA.exists(), reason="the engine logs are not here")


def quotations() -> list[list[str]]:
    """The lines of each source, which a comment with its address begins."""
    found: list[list[str]] = []
    for line in STARTUP.read_text(encoding="utf-8").splitlines()[1:]:
        if line.startswith("# ") and ("github.com" in line or "by hand" in line):
            found.append([])
        else:
            found[-1].append(line)
    return found


def test_every_quotation_gives_the_capacity_it_states() -> None:
    found = []
    for lines in quotations():
        if "Avg prompt throughput" not in lines[0]:
            limits = ReadLog("quoted").add(lines).limits()
            found.append((limits.engine, limits.memory_tokens, limits.block_tokens, limits.max_num_seqs))
            assert not any("the log's maximum concurrency" in note for note in limits.notes)
    assert found == [
        ("vLLM", 1478 * 16, 16, None),
        ("vLLM", 1381 * 16, 16, None),
        ("vLLM", 2_042_016, None, None),
        ("vLLM", 446_320, None, None),
        ("SGLang", 2_086_558, None, 33),
        ("SGLang", 60_000, 1, None),
        ("TensorRT-LLM", 3_731_744, 32, None),
        ("TensorRT-LLM", 132_608, None, None),
        ("TGI", 446_320, None, None),
    ]


def test_the_snapshot_of_metrics_gives_the_traffic_it_was_made_of(tmp_path: Path) -> None:
    """Azure conv: 19,366 requests in 3,502 s; by hand, 22,361,870 and 4,088,665 tokens, 27,895 blocks of 16."""
    created = 1795227125.4
    snapshot = tmp_path / SNAPSHOT.name
    snapshot.write_bytes(SNAPSHOT.read_bytes())
    os.utime(snapshot, (created, created + 3502))
    found = read_metrics(snapshot)
    assert (found.memory_tokens, found.block_tokens) == (446_320, 16)
    assert (found.requests, found.preemptions) == (19_366, 0)
    assert found.mean_input == pytest.approx(1154.7, abs=0.05)
    assert found.mean_decode == pytest.approx(211.1, abs=0.05)
    assert found.rate_rps == pytest.approx(5.53, abs=0.005)
    assert found.rate_from == "since the counters were created, 3,502 s"
    assert found.models == ("meta-llama/Llama-3.1-8B-Instruct",)
    rates = [c.rate_rps for c in found.classes]
    assert len(rates) == 8
    assert sum(rates) == pytest.approx(found.rate_rps)
    assert np.average([c.input_tokens for c in found.classes], weights=rates) == pytest.approx(
        1154.7, rel=0.005
    )
    decode = found.classes[0]
    assert np.average(decode.decode_tokens, weights=decode.decode_weights) == pytest.approx(211.1, rel=0.005)


def test_of_all_of_them_in_one_file_the_last_counts() -> None:
    found = read_log(STARTUP).limits()
    assert (found.engine, found.memory_tokens) == ("TGI", 446_320)
    (note,) = found.notes
    assert note.startswith("9 KV capacities are stated one after the other; the last, in line 25, counts")
    assert "23,648 tokens in line 3, 22,096 tokens in line 6, 2,042,016 tokens in line 9" in note
