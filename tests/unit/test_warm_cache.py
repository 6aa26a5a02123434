"""Trials of a warm prefix cache: what the theory's own runs showed, and who has them made."""

from collections.abc import Sequence
from functools import cache
from pathlib import Path

import pytest
from command import run
from every import every
from hypothesis import given
from hypothesis import strategies as st
from measured import brief
from tiers import examples

from kvplan.analysis.cache_states import cached_replica
from kvplan.analysis.prefix_cache import prefix_cache
from kvplan.model import ServingModel
from kvplan.profile.reading import Profile, parse_profile, shipped_profiles
from kvplan.report.words import Status
from kvplan.study import warm_cache as warm
from kvplan.study.warm_cache import Trial, warm_cache

AGENTS = shipped_profiles()["agents-collapse"].read_text("utf-8")
SMALL = AGENTS.replace("281.088 GB", "56.2176 GB").replace('"4 us"', '"20 us"')  # some 48 requests' KV
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


@pytest.mark.usefixtures("_short")
def test_near_the_good_rate_chance_alone_ends_it() -> None:
    """At .99 of 16.67 requests/s; seven of eight runs had collapsed within 8,000 s at .98."""
    trial = tried(AGENTS, ("0.834", "1.0313"))
    assert trial.lasted < trial.runs
    assert trial.lasts_s < 10_000
    assert 11.5 < trial.served_rps < 13.5  # 12.03 are guaranteed


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
    base = SMALL.replace("56.2176 GB", f"{memory * 70_272} B")
    rates = prefix_cache(cached_replica(profile(base).model)).sustainable_rps
    rate = (rates.guaranteed + part * (rates.good - rates.guaranteed)) / 16
    found = profile(base, ("0.834", repr(rate)))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(warm, "_BUDGET_S", 0.05)
        trial = warm_cache(found.model, found.plan)
        assert trial == warm_cache(found.model, found.plan)
    assert 0 <= trial.lasted <= trial.runs
    assert 0 <= trial.survived_burst <= trial.runs
    assert (trial.hit_ratio is None) == (trial.lasted == 0)
    assert trial.hit_ratio is None or 0 < trial.hit_ratio <= 1
    assert (trial.lasts_s is None) == (trial.lasted == trial.runs)
    assert (trial.served_rps is None) == (trial.lasted == trial.survived_burst == trial.runs)


ACCEPT = [part for name in ("gpu", "timing", "workload") for part in ("--accept", name)]


@pytest.fixture
def small(tmp_path: Path, brief: None) -> Path:
    path = tmp_path / "small.toml"
    path.write_text(SMALL.replace("0.834", "0.1748"), encoding="utf-8")
    return path


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


@pytest.mark.parametrize("memory", [600_000, 4_000_000])  # 36 and 242 requests' KV
def test_above_the_guaranteed_rate_a_burst_can_empty_the_cache_however_much_memory_there_is(
    memory: int,
) -> None:
    base = SMALL.replace("56.2176 GB", f"{memory * 70_272} B")
    rates = prefix_cache(cached_replica(profile(base).model)).sustainable_rps
    for part in (0.05, 0.95):
        model = at(base, rates.guaranteed + part * (rates.good - rates.guaranteed))
        assert brief(model).status is not Status.STABLE


def at(text: str, rate_rps: float) -> ServingModel:
    return profile(text, ("0.834", repr(rate_rps / 16))).model
