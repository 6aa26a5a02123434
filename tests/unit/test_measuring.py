"""Which runs settle a plan, what is believed before and after them, and the scripts that run them."""

import math
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest
from every import every

from kvplan.api import measure, plan
from kvplan.api.outcomes import Measured
from kvplan.emit.benchmarks import next_commands, script
from kvplan.errors import UsageError
from kvplan.options import Aim, MeasureOptions
from kvplan.planning.measuring import first_runs
from kvplan.profile.reading import parse_profile

TOOLS = (
    "vllm",
    "vllm==0.15.1",
    "sglang",
    "guidellm",
    "guidellm==0.5.4",
    "guidellm==0.3.0",
    "aiperf",
    "inference-perf",
)
PROFILE = """schema = 1
name = "fixed; $(touch pwned)\\" `id`"
gpu = {{ memory_tokens = 40_000 }}
timing = {{ d0 = "20 ms" }}
provenance = {{ timing = "estimated" }}
slo = {{ ttft_s = {{ mean = "1 h" }} }}
classes = [{{ name = "chat", input = 100, decode = 50, rate = {rate} }}]
"""
FIXED = parse_profile(PROFILE.format(rate=1000.0).encode(), "fixed.toml")
Z = 1.2815515655446004  # of the quantile .9 of a normal distribution


@cache
def proposed() -> Measured:
    return measure(FIXED)


def width(interval: tuple[float, float]) -> float:
    """The standard deviation of a logarithm."""
    return math.log(interval[1] / interval[0]) / (2 * Z)


def test_the_interval_of_a_law_with_one_constant_is_that_of_the_belief() -> None:
    """Of an iteration of fixed time a rate is in proportion to its inverse, and TPOT and TTFT are all of it.

    Rates are looked for to 2 %.
    """
    found = proposed()
    assert width(found.band) == pytest.approx(math.hypot(0.4, 0.05), rel=1e-3)
    assert width(found.interval_rps) == pytest.approx(math.hypot(0.4, 0.05), abs=0.01)
    alone, at = found.runs
    told = 1 / (0.4**-2 + 0.05**-2 + 0.12**-2)  # variance after a run
    alike = math.exp(-math.log(at.concurrency) / math.log(4))
    left = math.sqrt(told + 0.05**2 * (1 - alike**2))
    assert width(alone.rate_rps) == pytest.approx(left, abs=0.01)
    left = 1 / math.sqrt(0.4**-2 + 2 * (0.05**-2 + 0.12**-2))
    assert width(at.rate_rps) == pytest.approx(left, abs=0.01)
    assert alone.tpot_s == pytest.approx(0.02)
    assert at.tpot_s == pytest.approx(0.02, rel=0.02)  # memory is full: some begin again
    assert alone.seconds == pytest.approx(21 * 50 * 0.02)  # 20 requests and one before, an iteration a token


@pytest.mark.nightly
def test_a_plan_says_the_same_numbers_before_any_run() -> None:
    """An error band of the timing is what is believed, and how many replicas it takes is the plan's own search."""
    text = PROFILE.format(rate=1000.0).replace('"20 ms" }', '"20 ms", measured = { band = [0.8, 1.5] } }')
    banded = parse_profile(text.encode(), "banded.toml")
    found, planned = measure(banded), plan(banded, recover="never")
    assert found.band == (0.8, 1.5)
    assert planned.band is not None
    assert found.replicas == planned.band.replicas
    assert width(found.runs[0].rate_rps) < 0.5 * width(found.interval_rps)


def test_the_run_that_counts_is_at_the_requests_in_flight_where_the_rate_ends() -> None:
    """By Little's law: a request stays 50 iterations of 20 ms."""
    found = proposed()
    assert found.runs[-1].concurrency == pytest.approx(found.rate_rps * 50 * 0.02, rel=0.02)
    low, high = found.interval_rps
    for replicas, rate in zip(found.replicas, (high, low), strict=True):
        assert replicas in (math.ceil(1000 / (1.02 * rate)), math.ceil(1000 / rate))


def test_with_little_time_only_the_run_that_counts_is_proposed() -> None:
    assert [run.concurrency > 1 for run in measure(FIXED, minutes=0.1).runs] == [True]
    assert "takes more than the 0.1 minutes" in measure(FIXED, minutes=0.1).stopped


def test_what_a_measured_range_tells_is_not_asked_for_again() -> None:
    was = proposed()
    sequences = f"[1, {was.runs[-1].concurrency}]"
    text = PROFILE.format(rate=1000.0).replace(
        '"20 ms" }', f'"20 ms", measured = {{ sequences = {sequences} }} }}'
    )
    text = text.replace("rate = 1000.0", "rate = 30000.0")  # so that something is left to settle
    again = measure(parse_profile(text.encode(), "again.toml"))
    assert again.interval_rps == pytest.approx(was.runs[-1].rate_rps)
    assert 1 not in [run.concurrency for run in again.runs]


@every("tool", TOOLS)
def test_a_script_is_one_and_quotes_what_is_not_its_own(tool: str, tmp_path: Path) -> None:
    url = "http://host:8000/'$(touch pwned)'"
    found = proposed()
    asked = MeasureOptions(tool=tool, url=url, aim=Aim.MEMORY)
    text = script(found, asked)
    shellcheck = Path(sys.executable).with_name("shellcheck")
    for reads in (["bash", "-n"], [shellcheck, "--exclude=SC2016", "-"]):  # the URL is quoted on purpose
        checked = subprocess.run(reads, input=text, text=True, capture_output=True, check=False)
        assert (checked.returncode, checked.stdout + checked.stderr) == (0, "")
    head = text.partition("mkdir")[0]
    shown = subprocess.run(
        ["bash"], input=head + 'printf %s "$URL"', text=True, capture_output=True, cwd=tmp_path,
        env={"MODEL": "m", "PATH": "/usr/bin:/bin"}, check=True,
    )  # fmt: skip
    assert shown.stdout == url
    assert [*tmp_path.iterdir()] == []
    for run in found.runs:
        assert {str(run.concurrency), "100", "50", str(run.prompts)} <= set(_numbers(text))
    assert all(
        "$((SEED))" in word for word in text.split() if "run-" in word
    )  # no later run is written over it


def _numbers(text: str) -> list[str]:
    return "".join(c if c.isdigit() else " " for c in text).split()


def test_a_fit_that_leaves_two_numbers_is_settled() -> None:
    """Of one that a range of sequences and a narrow band say to be a fit; an estimate as narrow is measured once."""
    told = '"20 ms", measured = { sequences = [1, 200], band = [0.999, 1.001] }'
    text = PROFILE.format(rate=1000.0).replace('"20 ms"', told)
    low, high = measure(parse_profile(text.encode(), "fit.toml")).replicas
    assert high is not None
    assert high - low <= 1
    assert measure(parse_profile(text.encode(), "fit.toml")).runs == ()
    assert first_runs(parse_profile(text.encode(), "fit.toml")).concurrencies == ()


def test_a_plan_names_the_runs_that_are_proposed() -> None:
    """Up to the one where the objectives end, and the replicas that are left after it."""
    first, whole = first_runs(FIXED), proposed()
    assert first.concurrencies == tuple(run.concurrency for run in whole.runs)[: len(first.concurrencies)]
    last = whole.runs[len(first.concurrencies) - 1]
    assert (last.concurrency > 1, last.replicas) == (True, first.replicas)


def test_a_fit_is_proposed_to_go_on_from_the_estimate_it_was_fitted_after(tmp_path: Path) -> None:
    (tmp_path / "plan.toml").write_text(PROFILE.format(rate=1000.0))
    source = f"run.json; estimated, scaled, estimated after {tmp_path}/plan.toml"
    text = PROFILE.format(rate=1000.0).replace(
        '"estimated"', f'{{ basis = "estimated", source = "{source}" }}'
    )
    found = measure(parse_profile(text.encode(), "fit.toml"))
    command = next_commands(found, found.asked)[0]
    assert f"--base {tmp_path}/plan.toml --against fit.toml" in command


@pytest.mark.parametrize("url", ["", "not a url", "host:8000", "ftp://host"])
def test_what_is_no_address_is_refused(url: str) -> None:
    with pytest.raises(UsageError, match="--url"):
        measure(FIXED, url=url)


@pytest.mark.parametrize("tool", ["vllm==v0.19", "vllm==abc", "sglang==main"])
def test_what_is_no_version_is_refused(tool: str) -> None:
    with pytest.raises(UsageError, match="a version is such as"):
        measure(FIXED, tool=tool)


def test_objectives_of_options_go_on_with_the_commands() -> None:
    assert measure(FIXED, slo="tpot-mean=30ms").script.count("tpot_s.mean <= 30ms") == 2


def test_the_screen_is_short() -> None:
    assert str(proposed()).count("\n") < 40


def test_what_cannot_be_settled_is_refused() -> None:
    few = parse_profile(PROFILE.format(rate=0.01).encode(), "few.toml")
    with pytest.raises(UsageError, match="no run is proposed: 1 is the one number that is left"):
        _ = measure(few).script
    assert measure(few).runs == ()
    with pytest.raises(UsageError, match=r"idle replica misses ttft_s\.mean"):
        measure(FIXED, slo="ttft-mean=1ms")
