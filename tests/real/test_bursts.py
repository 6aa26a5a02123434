"""What `plan` calls enough for a fitted profile is enough in a replay of the very trace, split among the replicas."""

import json
from pathlib import Path

import numpy as np
import pytest
from command import run
from tiers import is_night

import kvplan
from kvplan.ingest.trace.replay import read_trace
from kvplan.ingest.trace.servegen import _windows
from kvplan.model import FloatArray

DATA = Path(__file__).resolve().parents[3] / "shared/data"
SERVEGEN = DATA / "servegen/chunk-14-trace.csv"
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


@pytest.mark.nightly
def test_azures_code_trace_is_not_planned_as_poisson(tmp_path: Path) -> None:
    """One replica would do if 2.566 requests/s came at random: its p95 is 1.4 s then, and 68 s in the replay."""
    profile = fitted(tmp_path, CODE, 60_000)
    assert replicas(profile) > 1
    text = profile.read_text()
    head, _, rest = text.partition("[workload]")
    profile.write_text(f"{head}{rest[rest.index('[[classes]]') :]}")
    assert replicas(profile) == 1
    requests = columns(CODE)
    assert np.percentile(first_tokens(tmp_path, profile, requests, dealt(requests, 1)[0]), 95) > 60


def test_the_busiest_time_of_a_described_client_is_served(tmp_path: Path) -> None:
    """ServeGen's client lists no requests: some of its busiest windows, drawn as it describes them, short requests."""
    profile, limit_s = fitted(tmp_path, SERVEGEN, 60_000), 0.3
    count = replicas(profile, limit_s=limit_s)
    assert count > 1
    model = kvplan.load(profile).model
    _, rates, cvs, _ = _windows(SERVEGEN)
    rng = np.random.default_rng(14)
    busiest = np.argsort(rates)[-3 if is_night() else -1 :]
    for window in busiest.tolist():
        shape = 1 / cvs[window] ** 2
        times = np.cumsum(rng.gamma(shape, 1 / shape / rates[window], int(rates[window] * 120)))
        row = rng.choice(model.mix.share.size, times.size, p=model.mix.share)
        requests = times, model.mix.input_tokens[row], model.mix.decode_tokens[row]
        for parts in dealt(requests, count):
            assert np.percentile(first_tokens(tmp_path, profile, requests, parts), 95) <= limit_s
