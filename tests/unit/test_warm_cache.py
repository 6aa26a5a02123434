"""Trials of a warm prefix cache: what the theory's own runs showed, and who has them made."""

import re
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from command import run
from every import every
from hypothesis import given
from hypothesis import strategies as st
from measured import brief, brief_report
from tiers import at_night, examples

from kvplan.analysis.cache_states import cached_replica
from kvplan.analysis.prefix_cache import prefix_cache
from kvplan.model import ServingModel
from kvplan.profile.reading import Profile, parse_profile, shipped_profiles
from kvplan.report.assembly import Analyses, plain, to_document
from kvplan.report.words import Status
from kvplan.simulation.state import Spans
from kvplan.study import warm_cache as warm
from kvplan.study.warm_cache import Trial, warm_cache

AGENTS = shipped_profiles()["agents-collapse"].read_text("utf-8")
SMALL = AGENTS.replace("4_000_000", "800_000").replace('"4 us"', '"20 us"')  # some 48 requests' KV
SHORT_S = 0.5  # counted work: runs of an hour
CHAINS = """
schema = 1
name = "chains"
gpu = { memory_tokens = 400_000, block_tokens = 16 }
timing = { d0 = "12 ms", d1 = "0.1 us", d2 = "60 us" }
[[classes]]
name = "a"
input = 3000
decode = 200
rate = 3.9
reuse = { tokens = 2992, share = 0.8, gap = { law = "exponential", mean = "60 s" } }
"""
NOTHING = {"runs": None, "lasted": None, "survived_burst": None, "hit_ratio": None}


def profile(text: str, *changes: tuple[str, str]) -> Profile:
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    return parse_profile(text.encode(), "some.toml")


def tried(text: str, *changes: tuple[str, str]) -> Trial | None:
    found = profile(text, *changes)
    return warm_cache(found.model, found.plan)


@pytest.fixture
def _short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(warm, "_BUDGET_S", SHORT_S)


# ------------------------------------------------------------------------------------------------ what runs show


@pytest.mark.usefixtures("_short")
def test_near_the_good_rate_chance_alone_ends_it() -> None:
    """At .99 of 16.67 requests/s; seven of eight runs had collapsed within 8,000 s at .98."""
    trial = tried(AGENTS, ("0.834", "1.0313"))
    assert trial is not None
    assert trial.lasted < trial.runs
    assert trial.lasts_s is not None
    assert trial.lasts_s < 10_000
    assert trial.served_rps is not None
    assert 11.5 < trial.served_rps < 13.5  # 12.03 are guaranteed


@pytest.mark.usefixtures("_short")
def test_few_requests_in_memory_stay_warm_too() -> None:
    trial = tried(SMALL, ("0.834", "0.1748"))
    assert trial is not None
    assert trial.lasted == trial.runs
    assert trial.hit_ratio == pytest.approx(0.79, abs=0.04)
    assert 45 < trial.burst < 52


def test_chains_are_met_by_strangers_of_one_memory() -> None:
    found = profile(CHAINS)
    spans = Spans(500.0, 10.0, 32)
    made = warm._run(found.model, found.plan, spans, warm._Warmth(0.1, 2.0), 126, 7)
    plain = warm._run(found.model, found.plan, spans, warm._Warmth(0.1, 2.0), 0, 7)
    requests, others = made.scenario.requests, plain.scenario.requests
    at_once = np.flatnonzero(requests.arrival_s == 500.0)
    assert at_once.size == 126 == requests.arrival_s.size - others.arrival_s.size
    assert requests.turns is not None
    assert (requests.turns.following[at_once] == -1).all()
    assert requests.prefixes is not None
    assert (requests.prefixes.parent[requests.prefixes.stream[at_once]] == -1).all()
    trial = warm_cache(found.model, found.plan)
    assert trial is not None
    assert (trial.burst, trial.of_sessions) == (126, False)  # 400,000 tokens of 3,184 that each leaves


@cache
def of_chains() -> Trial | None:
    return tried(CHAINS)


@pytest.mark.usefixtures("_short")
@pytest.mark.parametrize("change", ["fleet", "schedule"])
def test_a_replica_is_tried_at_the_rates_of_its_classes(change: str) -> None:
    plain = of_chains()
    if change == "fleet":
        assert (
            tried(CHAINS, ("rate = 3.9", "rate = 7.8"), ("[[classes]]", "[fleet]\nreplicas = 2\n[[classes]]"))
            == plain
        )
    elif change == "schedule":
        day = '[workload]\nperiod = "1 h"\nschedule = [{ at = "0 s", factor = 1.5 }, { at = "30 min", factor = 0.5 }]\n'
        assert tried(CHAINS, ("[[classes]]", f"{day}[[classes]]")) == plain


@every(
    ("text", "changes"),
    [
        (AGENTS, [("rate = 0.834", "rate = 0.7")]),  # less than guaranteed
        (AGENTS, [("rate = 0.834", "rate = 1.1")]),  # more than a warm cache serves
        (AGENTS, [("block_tokens = 16", "block_tokens = 16\nprefix_caching = false")]),
        (AGENTS, [("rate = 0.834", "users = 240")]),
        (CHAINS, [("reuse =", "# ")]),
        (
            CHAINS.replace("reuse =", "# "),
            [("[[classes]]", "prefix.hit_curve = [[50_000, 0.1], [150_000, 0.3]]\n[[classes]]")],
        ),
    ],
)
def test_there_is_nothing_to_try_where_nothing_can_be_lost(text: str, changes: list[tuple[str, str]]) -> None:
    assert tried(text, *changes) is None


@examples(3)
@given(st.floats(0.02, 0.98), st.sampled_from([600_000, 800_000, 2_000_000]))
def test_counts_are_of_runs_and_hits_of_what_can_be_found(part: float, memory: int) -> None:
    base = SMALL.replace("800_000", str(memory))
    rates = prefix_cache(cached_replica(profile(base).model)).sustainable_rps
    rate = (rates.guaranteed + part * (rates.good - rates.guaranteed)) / 16
    found = profile(base, ("0.834", repr(rate)))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(warm, "_BUDGET_S", 0.05)
        trial = warm_cache(found.model, found.plan)
        assert trial == warm_cache(found.model, found.plan)
    assert trial is not None
    assert 0 <= trial.lasted <= trial.runs
    assert 0 <= trial.survived_burst <= trial.runs
    assert (trial.hit_ratio is None) == (trial.lasted == 0)
    assert trial.hit_ratio is None or 0 < trial.hit_ratio <= 1
    assert (trial.lasts_s is None) == (trial.lasted == trial.runs)
    assert (trial.served_rps is None) == (trial.lasted == trial.survived_burst == trial.runs)


# ------------------------------------------------------------------------------------------------ who asks


@pytest.mark.usefixtures("_short")
def test_a_trial_fills_its_own_keys_alone() -> None:
    found = profile(SMALL, ("0.834", "0.1748"))
    analyses = Analyses(found.model, found.plan)
    asked, not_asked = (
        plain(block, "prefix_cache") for block in (analyses.tried_prefix_cache, analyses.prefix_cache)
    )
    made = asked.pop("trial")
    assert set(made) == set(NOTHING)
    assert made["runs"] == 5
    assert not_asked.pop("trial") == NOTHING
    assert asked == not_asked


def test_who_does_not_ask_has_none(monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*_: object) -> None:
        raise AssertionError

    monkeypatch.setattr("kvplan.report.figures.warm_cache", never)
    report = brief_report(profile(SMALL, ("0.834", "0.1748")).model)
    assert report.verdict.status is Status.NEEDS_CAP
    assert to_document(report)["prefix_cache"]["trial"] == NOTHING


# ------------------------------------------------------------------------------------------------ commands

ACCEPT = [part for name in ("gpu", "timing", "workload") for part in ("--accept", name)]


@pytest.fixture
def small(tmp_path: Path, brief: None) -> Path:
    path = tmp_path / "small.toml"
    path.write_text(SMALL.replace("0.834", "0.1748"), encoding="utf-8")
    return path


@pytest.mark.usefixtures("_short")
def test_analyze_says_in_words_what_runs_showed(small: Path) -> None:
    text = " ".join(run("analyze", small, "--trial", "--section", "load").stdout.split())
    assert "NEEDS CAP" in text
    assert "Warm cache, tried served" in text
    assert "at hit ratio" in text
    assert "in 5 of 5" in text


@pytest.mark.usefixtures("_short")
def test_check_makes_a_trial_where_a_requirement_names_it(small: Path) -> None:
    def checked(*requirements: str, more: Sequence[str] = ()) -> tuple[int, str]:
        required = [part for text in requirements for part in ("--require", text)]
        result = run("check", small, *ACCEPT, *required, *more)
        return result.returncode, " ".join((result.stdout + result.stderr).split())

    assert checked("prefix_cache.trial.lasted == 5")[0] == 0
    code, text = checked("prefix_cache.trial.runs >= 6", "load.headroom >= 0", more=["--remedies"])
    assert code == 1
    assert "no change is tried on a warm prefix cache" in text
    assert "load.headroom >= 0: rate down" in text
    assert "All of them together" not in text


def test_check_cannot_judge_what_was_not_tried(tmp_path: Path) -> None:
    path = tmp_path / "calm.toml"
    path.write_text(AGENTS.replace("0.834", "0.7"), encoding="utf-8")
    result = run("check", path, *ACCEPT, "--require", "prefix_cache.trial.lasted == 5")
    assert result.returncode == 2
    assert "prefix_cache.trial.lasted is null" in result.stderr


# ------------------------------------------------------------------------------------------------ the verdict


@pytest.mark.parametrize("memory", [600_000, 4_000_000])  # 36 and 242 requests' KV
def test_above_the_guaranteed_rate_a_burst_can_empty_the_cache_however_much_memory_there_is(
    memory: int,
) -> None:
    base = SMALL.replace("800_000", str(memory))
    rates = prefix_cache(cached_replica(profile(base).model)).sustainable_rps
    for part in (0.05, 0.95):
        model = at(base, rates.guaranteed + part * (rates.good - rates.guaranteed))
        assert brief(model).status is Status.NEEDS_CAP
    assert "burst can empty" in brief(model).verdict.summary


@pytest.mark.parametrize("command", ["check", "sweep", *at_night("explain", "diff")])
def test_every_command_calls_it_needs_cap(command: str, small: Path) -> None:
    """Memory holds 48 requests' KV; 2.8 requests/s are offered, 2.66 guaranteed."""
    calm, swept = small.with_name("calm.toml"), small.with_name("sweep.csv")
    calm.write_text(small.read_text("utf-8").replace("0.1748", "0.1"), encoding="utf-8")
    vary = ("--vary", "sessions[0].rate=0.1,0.1748", "--columns", "verdict.status")
    arguments, said = {
        "check": ((small, *ACCEPT, "--require", "verdict.status == needs_cap"), "PASSED"),
        "sweep": ((small, *vary, "-o", swept), ""),
        "explain": (("verdict.status", small), "needs_cap"),
        "diff": ((calm, small), r"verdict.status +stable +needs_cap"),
    }[command]
    result = run(command, *arguments)
    assert result.returncode == 0, result.stderr
    assert re.search(said, result.stdout)
    if command == "sweep":
        assert re.findall("stable|needs_cap", swept.read_text("utf-8")) == ["stable", "needs_cap"]


def test_up_to_the_guaranteed_rate_recovery_decides() -> None:
    base = SMALL
    guaranteed = prefix_cache(cached_replica(profile(base).model)).sustainable_rps.guaranteed
    measured = Analyses(at(base, guaranteed / 2), profile(base).plan).recovery.rate_rps
    assert 0.9 * guaranteed < measured <= guaranteed
    for rate, status in ((0.999 * measured, Status.STABLE), ((measured + guaranteed) / 2, Status.NEEDS_CAP)):
        found = brief(at(base, rate))
        assert found.verdict.status is status
        assert "burst" not in found.verdict.summary


def at(text: str, rate_rps: float) -> ServingModel:
    return profile(text, ("0.834", repr(rate_rps / 16))).model
