"""Files that people have, each read as its page of expectations says, or refused with what is missing."""

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
from command import run

from kvplan.ingest.timing.reading import read_groups
from kvplan.ingest.timing.samples import Point, Samples, Sweep

CASES = Path(__file__).resolve().parents[3] / "shared/cases/inputs3"
pytestmark = pytest.mark.skipif(not CASES.exists(), reason="the shared cases are not here")


def imported(case: str, files: str, *options: str) -> tuple[dict[str, Any], str]:
    """The profile, or nothing where the input is refused; and what was said, in one line."""
    folder = next(CASES.glob(f"{case}-*"))
    paths = [str(folder / name) for name in files.split()]
    done = run("import", *paths, *options)
    code = done.returncode
    assert code == 0 or (code == 2 and done.stderr.count("\n") == 1), done.stderr
    text = done.stdout if code == 0 else ""
    return tomllib.loads(text), " ".join((done.stderr + text.replace("\n#", "")).split())


def traffic(profile: dict[str, Any]) -> tuple[float, float, float]:
    """Rate, and the mean lengths of prompts and answers."""
    rate = sum(one["rate"] for one in profile["classes"])

    def mean(lengths: Any) -> float:
        if not isinstance(lengths, dict):
            return float(lengths)
        return sum(int(length) * share for length, share in lengths.items()) / sum(lengths.values())

    means = (sum(mean(one[key]) * one["rate"] for one in profile["classes"]) for key in ("input", "decode"))
    return rate, *(total / rate for total in means)


def timing(profile: dict[str, Any]) -> dict[str, float]:
    """Of a law, seconds."""
    units = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "ns": 1e-9}
    texts = {
        key: str(value).split() for key, value in profile["timing"].items() if not isinstance(value, dict)
    }
    return {
        key: float(text[0]) * units[text[1]] if text[1:] else float(text[0]) for key, text in texts.items()
    }


A100 = ("--model", "Qwen3-14B", "--gpu", "A100 80GB")


@pytest.mark.parametrize("file", ["input.csv", "input.json"])
def test_buckets_of_usage_are_sums(file: str) -> None:
    """12,430 requests in 12 hours, of 1,350 tokens and 280."""
    profile, said = imported("01", file)
    assert traffic(profile) == pytest.approx((12_430 / 43_200, 1350, 280), rel=0.005)
    assert profile["workload"]["period"] == 43_200
    assert profile["provenance"]["workload"]["basis"] == "estimated"
    assert "sums of several requests" in said
    assert "assumed" in said


@pytest.mark.parametrize("file", ["input.csv", "input.json"])
def test_days_of_activity_are_sums(file: str) -> None:
    """14 days of 1,000, 1,100 … 2,300 requests: 1,650 a day."""
    assert traffic(imported("02", file)[0]) == pytest.approx((1650 / 86_400, 2100, 310), rel=0.005)


def test_a_call_in_several_lines_is_one_request() -> None:
    profile, said = imported("03", "input.jsonl")
    assert traffic(profile) == pytest.approx((0.0417, 62_140, 493), rel=0.005)
    assert re.search("120 rows repeat a response", said)
    assert profile["prefix"]["hit_curve"][-1][1] == pytest.approx(0.975, abs=0.001)


def test_what_a_buffering_client_says_of_tokens_gives_way_to_e2e() -> None:
    """512 clients, 14.14 requests/s of 30.19 s: TPOT is (30.19 - 4.07) / 280.4 = 93.1 ms, not 25.89."""
    for file, law in (
        ("input.txt", (30.19 - 4.07264) / 280.412),
        ("input-generation.txt", (57.43 - 1.91555) / 1999),
    ):
        profile, said = imported("10", file, "--model", "Qwen3.5-35B-A3B", "--gpu", "H200")
        assert "TPOT is taken from E2E" in said
        assert timing(profile)["d0"] > 1e-3
        runs = read_groups([next(CASES.glob("10-*")) / file])
        assert isinstance(runs[0][0], Sweep)
        assert runs[0][0].points[0].tpot_s == pytest.approx(law, rel=1e-3)


@pytest.mark.parametrize(
    ("file", "groups"),
    [
        ("input.md", ("vllm", "sglang", "trtllm")),
        ("input-types.md", ("14B, vllm", "14B-FP8, vllm", "14B-AWQ, vllm")),
    ],
)
def test_engines_and_weights_on_one_page_are_not_pooled(file: str, groups: tuple[str, ...]) -> None:
    _, said = imported("13", file, *A100)
    assert all(group in said for group in ("--group", *groups))


def test_all_at_once_is_what_a_peak_of_all_requests_says() -> None:
    """256 run, 242 of them decode beside 260 prompt tokens: 114 ms are d0, d1 and 226 us for each beyond the knee.

    Twice as much if 607 were in flight.
    """
    profile, _ = imported("13", "input.md", *A100, "--group", "Qwen/Qwen3-14B, vllm")
    assert timing(profile)["d5"] == pytest.approx(226e-6, rel=0.1)
    for file in ("input.txt", "input-inf.txt"):
        assert timing(imported("33", file, *A100)[0])["d5"] == pytest.approx(146e-6, rel=0.05)


@pytest.mark.parametrize(
    ("case", "file", "capacity"),
    [
        ("40", "input.log", {"memory_tokens": 860_320, "block_tokens": 32, "max_num_seqs": 4096,
                             "max_num_batched_tokens": 23_552}),
        ("20", "input.log", {"memory_tokens": 116_617 * 32, "block_tokens": 32}),
        ("31", "input.log", {"memory_tokens": 375_360}),
        ("31", "input-total.log", {"memory_tokens": 375_360}),
        ("34", "input.log", {"memory_tokens": 347_680, "pipeline_parallel": 3}),
        ("14", "input.log", {"memory_tokens": 655_360, "max_num_seqs": 10}),
        ("14", "input-excerpt.log", {"memory_tokens": 655_360, "max_num_seqs": 10}),
        ("14", "input-older.log", {"memory_tokens": 65_536, "max_num_seqs": 4}),
    ],
)  # fmt: skip
def test_logs_state_capacities(case: str, file: str, capacity: dict[str, int]) -> None:
    gpu = imported(case, file)[0]["gpu"]
    assert {key: gpu.get(key) for key in capacity} == capacity


@pytest.mark.parametrize(
    ("case", "gpu", "full", "windows"),
    [
        ("17", "H100 SXM", (12, 2 * 8 * 128 * 1 // 4), 36),  # fp8: 24,576 B a token on 4 GPUs
        ("18", "H200", (12, 2 * 8 * 128 * 2 // 4), 33),  # 49,152 B
    ],
)
def test_configurations_say_which_layers_keep_all_tokens(
    case: str, gpu: str, full: tuple[int, int], windows: int
) -> None:
    model = next(CASES.glob(f"{case}-*")) / "input.json"
    kept = imported(case, "", "--model", str(model), "--gpu", gpu, "--tp", "4")[0]["gpu"]["kv"]
    assert {one["kind"]: (one["layers"], one["bytes"]) for one in kept}["full"] == full
    assert {one["kind"]: (one["layers"], one.get("window")) for one in kept}["window"] == (windows, 512)


def points(case: str, file: str) -> list[Point]:
    (runs,) = read_groups([next(CASES.glob(f"{case}-*")) / file])
    assert isinstance(runs[0], Sweep)
    return list(runs[0].points)


@pytest.mark.parametrize(
    ("file", "load", "times", "lengths", "tpot"),
    [
        ("input.txt", (100, 100), (1.1381, 26.3642, 2.6363), (247.97, 365.61), 69.2e-3),
        ("input.json", (10, 480), (0.047, 7.823, 1.278), (26.558, 800), 9.73e-3),
    ],
)
def test_evalscope_prints_one_load(
    file: str, load: tuple[int, int], times: tuple[float, ...], lengths: tuple[float, ...], tpot: float
) -> None:
    (point,) = points("04", file)
    assert (point.concurrency, point.requests) == load
    assert (point.ttft_s, point.e2e_s, point.throughput_rps) == times
    assert (sum(point.inputs) / 2, sum(point.outputs) / 2) == pytest.approx(lengths, abs=0.5)
    assert point.tpot_s == pytest.approx(tpot, rel=0.002)
    assert imported("04", file, *A100)[0]["timing"]["d0"]


def test_iterations_of_one_batch_are_exact() -> None:
    """8 x 1,024 tokens in .4301 s, then 8.11 ms with 8 sequences and about 8,704 KV tokens."""
    ((found,),) = read_groups([next(CASES.glob("26-*")) / "input.jsonl"])
    assert isinstance(found, Samples)
    rows = zip(found.kv_tokens, found.prefill_tokens, found.sequences, found.seconds, strict=True)
    assert [row for row in rows if row[2] == 8][:2] == [(8192, 8192, 8, 0.4301), (8704, 0, 8, 0.00811)]


@pytest.mark.parametrize(
    ("case", "file", "said"),
    [
        ("07", "input.txt", ("MLPerf", "11.07 requests/s", "TTFT 169 ms", "TPOT 36.8 ms", "114.2 tokens", "prompts")),
        ("20", "input-primary-pool.log", ("TensorRT-LLM", "primary pool", "tokens_per_block", "--capacity")),
        ("21", "input.csv", ("03.11.2026 09:00:01", "ISO 8601")),
        ("21", "input-english.csv", ("11/3/2026", "day or month", "ISO 8601")),
        ("22", "input.yaml", ("--model meta-llama/Llama-3.1-70B-Instruct --gpu NVIDIA-H100-80GB-HBM3 --tp 4",
                              "--max-model-len 16384", "--max-num-seqs 128", "--utilization 0.92 --kv-dtype fp8")),
        ("23", "input.prom", ("llama-server", "without a count of requests", "neither rate nor lengths")),
        ("27", "input.csv", ("Locust", "no tokens in and out")),
        ("32", "input.json", ("counters and histograms themselves",)),
        ("32", "input-named.json", ("counters and histograms themselves",)),
        ("37", "input.json", ("vllm bench throughput", "vllm bench serve --save-result")),
        ("37", "input-latency.json", ("vllm bench latency", "vllm bench serve --save-result")),
    ],
)  # fmt: skip
def test_what_lacks_something_is_refused_by_name_and_with_what_is_missing(
    case: str, file: str, said: tuple[str, ...]
) -> None:
    profile, text = imported(case, file)
    assert not profile
    assert [part for part in said if part not in text] == []


def test_a_panel_of_grafana_is_a_series() -> None:
    ((found,),) = read_groups([next(CASES.glob("32-*")) / "input-grafana.csv"], capacity_tokens=400_000)
    assert isinstance(found, Samples)
    assert found.sequences[0] == 38
    assert found.seconds[0] == pytest.approx(38 / 843.6)
    assert found.prefill_tokens[0] == pytest.approx(12_400 * 38 / 843.6)
    assert found.kv_tokens[0] == pytest.approx(0.885 * 400_000)


def test_what_was_right_stays_right() -> None:
    assert traffic(imported("08", "input.json")[0]) == pytest.approx((2.415, 1689, 210), rel=0.005)
    assert traffic(imported("19", "input.csv")[0]) == pytest.approx((1.459, 577, 84), rel=0.005)
    earlier = str(next(CASES.glob("11-*")) / "input-earlier.prom")
    pods = imported("11", "input.prom", "--since", earlier)[0]
    assert (pods["gpu"]["memory_tokens"], traffic(pods)[0]) == (446_704, pytest.approx(1.0))
    assert imported("39", "input.json", "--capacity", "3000000")[0]["gpu"]["memory_tokens"] == 3_000_000
    fp8 = str(next(CASES.glob("17-*")) / "input-fp8-kv.json")
    assert "made for a KV cache in fp8" in imported("17", "", "--model", fp8, "--gpu", "H100 SXM")[1]


def test_a_version_before_march_2026_admits_by_the_first_chunk() -> None:
    """Case 29: the eighth client starts, is preempted and starts again, as only such an admission has it."""
    given = ("--gpu-memory", "64GB", "--gpu-bandwidth", "1.6TB/s", "--gpu-flops", "350TFLOPS", "--tp", "8")
    told = ("--model", "GLM-4.6", "--gpu", "910B", *given, "--weights", "int8")
    old, said = imported("29", "", *told, "--engine", "vllm==0.11.0")
    assert old["engine"]["admission"] == "first-chunk"
    assert "once its first chunk fits" in said
    assert "admission" not in imported("29", "", *told, "--engine", "vllm==0.19.0")[0].get("engine", {})
