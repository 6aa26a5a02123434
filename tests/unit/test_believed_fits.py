"""Fits to a few loads: what is believed of an estimate, and what files and options say of the loads."""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from result_files import VLLM, guidellm, report, stage, summary
from scipy.optimize import minimize

from kvplan.api import import_files, load
from kvplan.errors import UsageError
from kvplan.ingest.timing.belief import posterior
from kvplan.ingest.timing.fit import fit_measured
from kvplan.ingest.timing.played import Law, foretold
from kvplan.ingest.timing.samples import Deployment, Point, Sweep
from kvplan.model import Knowledge, Timing

LAW = Timing(0.008, d1=5e-8, d3=3e-6, d5=4e-5, knee_tokens=200)
BASE = """schema = 1
name = "base"
gpu = { memory_tokens = 200_000, max_num_batched_tokens = 2048, prefix_caching = true }
timing = { d0 = "8 ms", d1 = "0.05 us", d3 = "3 us", d5 = "40 us", knee_tokens = 200, request_overhead = "20 ms", \
measured = { band = [0.8, 1.25] } }
provenance = { timing = "estimated" }
classes = [{ name = "chat", input = 1000, decode = 100, rate = 1 }]
"""


def result(path: Path, concurrency: int, ttft_s: float, tpot_s: float) -> Path:
    """A closed loop of 200 requests, of 1,000 tokens in and 100 out."""
    stay = ttft_s + 99 * tpot_s
    said = {"completed": 200, "total_input_tokens": 200_000, "total_output_tokens": 20_000}
    said |= {"max_concurrency": concurrency, "mean_ttft_ms": 1e3 * ttft_s, "mean_tpot_ms": 1e3 * tpot_s}
    said |= {"duration": 200 * stay / concurrency, "request_throughput": concurrency / stay}
    path.write_text(json.dumps(VLLM | said))
    return path


@pytest.fixture
def base(tmp_path: Path) -> Path:
    (tmp_path / "base.toml").write_text(BASE)
    return tmp_path / "base.toml"


def test_the_posterior_is_where_a_general_search_finds_it() -> None:
    rng = np.random.default_rng(3)
    parts, spread, noise = (
        rng.uniform(0.1, 2.0, (4, 3)),
        np.array([0.4, 0.4, 0.8]),
        np.array([0.05, 0.12] * 2),
    )
    seconds = (parts * np.exp([0.2, -0.3, 0.1])).sum(axis=1) * np.exp(0.3 * noise * rng.standard_normal(4))

    def lost(theta: Any) -> float:
        off = np.log(seconds / (parts * np.exp(theta)).sum(axis=1)) / noise
        return float((off**2).sum() + ((theta / spread) ** 2).sum())

    found = posterior(parts, seconds, noise, spread)
    assert found.mean == pytest.approx(minimize(lost, np.zeros(3), tol=1e-12).x, abs=1e-4)
    drawn = rng.multivariate_normal(found.mean, found.covariance, 20_000)
    times = np.log((parts[None] * np.exp(drawn[:, None])).sum(axis=2))
    assert found.spread(parts) == pytest.approx(times.std(axis=0), rel=0.15)  # to first order


def test_one_load_twice_as_slow_moves_what_takes_its_time_and_leaves_the_rest() -> None:
    point = Point(line=1, inputs=(1000, 1000), outputs=(100, 100), concurrency=1)
    blank = Sweep("c1.json", "", Deployment(), (point,))
    (times,) = foretold([blank], Law(LAW, 0.02))
    slow = Point(
        line=1,
        inputs=(1000, 1000),
        outputs=(100, 100),
        concurrency=1,
        ttft_s=2 * times["TTFT"],
        tpot_s=2 * times["TPOT"],
    )
    fit = fit_measured([Sweep("c1.json", "", Deployment(), (slow,))], LAW, request_overhead_s=0.02)
    assert fit.timing.d0 == pytest.approx(2 * LAW.d0, rel=0.06)  # decoding alone is all but d0
    assert fit.timing.d3 == pytest.approx(LAW.d3, rel=0.01)
    assert fit.request_overhead_s > 0.02
    assert fit.band is not None
    assert fit.band[0] > math.exp(-1.2816 * 0.12)
    assert {"d1", "d3"} <= fit.undetermined.keys()


def test_a_fit_of_one_load_is_called_scaled_and_compared_with_the_plan(tmp_path: Path, base: Path) -> None:
    expected = result(tmp_path / "c1.json", 1, 0.062, 0.0081)
    found = import_files([expected], base=base, against=base)
    assert found.profile.provenance.timing.basis is Knowledge.ESTIMATED
    assert "estimated, scaled" in found.profile.provenance.timing.source
    assert found.notes[0].startswith(f"against {base}: as expected")
    two = import_files([expected, result(tmp_path / "c16.json", 16, 0.09, 0.0095)], base=base)
    assert "scaled" not in two.profile.provenance.timing.source
    assert not any("one load" in note for note in two.notes)
    again = import_files([expected, result(tmp_path / "again.json", 1, 0.063, 0.0082)], base=base)
    assert "estimated, scaled" in again.profile.provenance.timing.source
    one_line = {"time_per_output_token_ms": summary(9.0), "request_latency": summary(1.0)}
    several = [guidellm({"type_": "concurrent", "streams": streams}, **one_line) for streams in (1, 16)]
    (tmp_path / "several.json").write_text(json.dumps(report(*several)))
    assert not any("one load" in note for note in import_files([tmp_path / "several.json"], base=base).notes)
    slow = result(tmp_path / "slow.json", 1, 0.2, 0.0162)
    assert "off by more than is left open" in import_files([slow], base=base, against=base).notes[0]
    with pytest.raises(UsageError, match="--against goes with results"):
        import_files(model="Llama-3.1-8B", gpu="H100", against=base)


def test_loads_that_contradict_each_other_widen_the_band(tmp_path: Path, base: Path) -> None:
    """Of one load measured twice, once as fast and once as slow by a fifth each; agreeing ones narrow it."""

    def band(*factors: float) -> tuple[tuple[float, float], str]:
        files = [result(tmp_path / f"{i}.json", 16, 0.5 * f, 0.012 * f) for i, f in enumerate(factors)]
        found = import_files(files, base=base)
        ends = found.profile.model.measured.band
        assert ends is not None
        return ends, str(found)

    agreed, said = band(1.0, 1.01)
    assert "the loads contradict" not in said
    apart, said = band(1 / 1.2, 1.2)
    assert "the loads contradict each other" in said
    times = (
        math.log(1.2) / 0.05
    )  # each is as far from their middle, and √2 times in the mean from one of them
    wider = math.log(apart[1] / apart[0]) / math.log(agreed[1] / agreed[0])
    assert 0.9 * times < wider < 1.1 * math.sqrt(2) * times


def test_the_engine_of_the_base_stays_whatever_a_client_calls_it(tmp_path: Path, base: Path) -> None:
    base.write_text(base.read_text() + 'engine = { name = "sglang" }\n')
    found = import_files([result(tmp_path / "run.json", 16, 0.5, 0.012)], base=base)
    assert found.profile.tables["engine"]["name"] == "sglang"


def test_loads_nearly_alike_count_as_one(tmp_path: Path, base: Path) -> None:
    """Four, of which two are about the same, leave to the estimate what they are made of, as three do."""
    loads = ((1, 0.1, 0.0085), (44, 0.9, 0.018), (45, 0.92, 0.0182), (90, 1.8, 0.027))
    found = import_files(
        [result(tmp_path / f"{c}.json", c, ttft, tpot) for c, ttft, tpot in loads], base=base
    )
    assert "estimated after" in found.profile.model.provenance.timing.source
    assert found.profile.model.measured.band is not None


@pytest.mark.parametrize("tpot_ms", [0, 25.0])
def test_answers_of_one_token_have_no_time_between_tokens(tmp_path: Path, base: Path, tpot_ms: float) -> None:
    """93 ms: 8 are d0, up to 20 the overhead, and the rest 800 tokens beyond the knee, whatever stands for TPOT."""
    told = result(tmp_path / "c1.json", 1, 0.093, 0.008)
    of_one = json.loads(told.read_text()) | {"total_output_tokens": 200, "mean_tpot_ms": tpot_ms}
    of_one |= {"duration": 200 * 0.093, "request_throughput": 1 / 0.093}
    told.write_text(json.dumps(of_one))
    timing = import_files([told], base=base).profile.model.timing
    assert 0.065 / 800 < timing.d5 < 0.085 / 800
    assert timing.d3 == pytest.approx(3e-6, rel=0.01)


def test_prompts_that_were_found_are_not_taken_for_fast_prefill(tmp_path: Path, base: Path) -> None:
    """Of 1,000 tokens 992 are found, 62 blocks, so that the same TTFT leaves prompts as slow as the base has them."""
    fast = result(tmp_path / "c16.json", 16, 0.03, 0.0085)
    plain, whole, share = (
        import_files([fast], base=base, **said).profile.model.timing.d5
        for said in ({}, {"repeated": True}, {"cached_share": "99.2%"})
    )
    assert whole == share == pytest.approx(40e-6, rel=0.05)
    assert plain < 0.8 * whole
    with pytest.raises(UsageError, match="--repeated and --cached-share: one of them"):
        import_files([fast], base=base, repeated=True, cached_share=0.5)


def test_inference_perf_is_read_with_what_its_config_asked_for(tmp_path: Path) -> None:
    (tmp_path / "stage_0_lifecycle.json").write_text(json.dumps(stage(10.0, 10.0, 10.0, 1.0)))
    config = "data:\n  shared_prefix:\n    num_unique_system_prompts: 2\n    num_users_per_system_prompt: 5\n"
    config += "    output_len: 120\nserver:\n  ignore_eos: true\n"
    (tmp_path / "config.yaml").write_text(config)
    found = import_files([tmp_path / "stage_0_lifecycle.json"], model="Llama-3.1-8B", gpu="H100")
    assert any("with ignore_eos all 120 came" in note for note in found.notes)
    assert any("its 10 prompts recur" in note for note in found.notes)


def test_a_request_log_tells_what_requests_wait_for_outside_the_engine(tmp_path: Path, base: Path) -> None:
    """Short requests that are far apart: their TTFT is an iteration of their prompt, and 30 ms more."""
    lines = ["arrival_time,input_tokens,output_tokens,first_token_time,last_token_time"]
    for number in range(40):
        prompt, answer = 20 + number, 20 + number
        first = 10.0 * number + LAW(prompt, prompt, 1) + 0.030
        last = first + sum(LAW(prompt + token, 0, 1) for token in range(1, answer))
        lines.append(f"{10.0 * number},{prompt},{answer},{first},{last}")
    (tmp_path / "requests.csv").write_text("\n".join(lines))
    profile = import_files([tmp_path / "requests.csv"], base=base).profile
    assert profile.model.request_overhead_s == pytest.approx(0.030, rel=0.1)
    assert load(base).model.request_overhead_s == 0.02


def test_the_band_is_that_of_the_longest_iterations_and_narrows_where_they_are_measured(
    base: Path, tmp_path: Path
) -> None:
    def width(*loads: int) -> float:
        files = [result(tmp_path / f"c{n}-{i}.json", n, 0.2, 0.008 + 4e-4 * n) for i, n in enumerate(loads)]
        low, high = import_files(files, base=base).profile.model.measured.band or (0.0, math.inf)
        return math.log(high / low)

    alone, again, low = width(1, 32), width(1, 32, 31), width(1, 32, 2)
    assert again < 0.8 * alone
    assert low == pytest.approx(alone, rel=0.03)  # a low load says little of a high one
