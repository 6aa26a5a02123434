"""What `plan` calls enough for a fitted profile is enough in a replay of the very trace, split among the replicas."""

import json
from pathlib import Path

import numpy as np
import pytest
from command import run

import kvplan
from kvplan.ingest.trace.replay import read_trace
from kvplan.model import FloatArray

DATA = Path(__file__).resolve().parents[3] / "shared/data"
CODE = DATA / "azure-code/AzureLLMInferenceTrace_code.csv"
CONVERSATION = DATA / "azure-conv/AzureLLMInferenceTrace_conv.csv"
MOONCAKE = DATA / "mooncake-conversation/conversation_trace.first8000.jsonl"
LIMIT_S = 5.0
pytestmark = pytest.mark.skipif(not DATA.exists(), reason="the recorded traces are not here")

REPLICA = """schema = 1
name = "a replica"
[gpu]
memory_tokens = {memory}
max_num_seqs = 256
max_num_batched_tokens = 2048
prefix_caching = false
[timing]
d0 = "14 ms"
d1 = "0.01 us"
d2 = "85 us"
[[classes]]
name = "nothing yet"
input = 100
decode = 10
rate = 1.0
"""
Requests = tuple[FloatArray, FloatArray, FloatArray]  # arrival, tokens in and out


def fitted(folder: Path, trace: Path, memory: int) -> Path:
    """The profile that `import` writes, on a replica with that memory."""
    base, file = folder / "base.toml", folder / "fitted.toml"
    base.write_text(REPLICA.format(memory=memory))
    done = run("import", trace, "--base", base, "-o", file)
    assert done.returncode == 0, done.stderr
    return file


def replicas(profile: Path, limit_s: float = LIMIT_S) -> int:
    """How many `plan` calls enough, at the rate of the profile and without headroom that could hide a mistake."""
    slo = ("--slo", f"ttft_s.p95 <= {limit_s:g} s", "--headroom", "0")
    done = run("plan", profile, *slo, "--format", "json")
    assert done.returncode == 0, done.stderr
    return int(json.loads(done.stdout)["plan"]["replicas"])


def first_tokens(folder: Path, profile: Path, requests: Requests, parts: list[FloatArray]) -> FloatArray:
    """Seconds to the first token of all requests, each part of them being replayed on a replica of its own."""
    found = []
    for part in parts:
        file = folder / "part.csv"
        rows = zip(*(column[part].tolist() for column in requests), strict=True)
        file.write_text("time,input,output\n" + "".join(f"{t:.6f},{i},{o}\n" for t, i, o in rows))
        [[(replayed, outcome)]] = kvplan.simulate(kvplan.load(profile), ["vllm"], trace=file).runs
        found.append(outcome.first_token_s - replayed.arrival_s)
    return np.concatenate(found)


def dealt(requests: Requests, count: int) -> list[list[FloatArray]]:
    """Places of the requests by replica: in turns, and at random."""
    places = np.arange(requests[0].size)
    chance = np.random.default_rng(2026).integers(count, size=places.size)
    return [[places[by == i] for i in range(count)] for by in (places % count, chance)]


def columns(trace: Path) -> Requests:
    recorded = read_trace(trace).recorded
    return recorded.arrival_s, recorded.input_tokens, recorded.decode_tokens


@pytest.mark.parametrize(
    ("trace", "memory", "replayed"),
    [
        pytest.param(CODE, 60_000, True, id="azure-code"),
        pytest.param(CONVERSATION, 60_000, False, id="azure-conv"),
        # prompts of up to 120,000 tokens; dozens of replicas, each simulated
        pytest.param(MOONCAKE, 200_000, True, id="mooncake", marks=pytest.mark.nightly),
    ],
)
def test_enough_is_enough_in_a_replay(tmp_path: Path, trace: Path, memory: int, replayed: bool) -> None:
    profile = fitted(tmp_path, trace, memory)
    assert ("\ntrace = " in profile.read_text()) == replayed
    count = replicas(profile)
    requests = columns(trace)
    for parts in dealt(requests, count):
        waits = first_tokens(tmp_path, profile, requests, parts)
        assert waits.size == requests[0].size
        assert np.percentile(waits, 95) <= LIMIT_S
