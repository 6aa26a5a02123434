"""Decisions about profiles whose requests have prefixes in common: settings, remedies, sweeps, placements."""

import math
from functools import cache
from pathlib import Path

import pytest
from every import every

from kvplan.analysis.cached_equilibrium import users_of, with_part_of_users
from kvplan.cli.app import main
from kvplan.gate.check import check
from kvplan.gate.remedy import Lever
from kvplan.gate.requirement import parse
from kvplan.model import Plan
from kvplan.profile.reading import Profile, parse_profile
from kvplan.report.assembly import Analyses

AGENTS = """
schema = 1
name = "agents"
[gpu]
memory_tokens = 4_000_000
block_tokens = 16
{gpu}
[timing]
d0 = "15 ms"
d1 = "0.005 us"
d2 = "4 us"
d3 = "1 us"
[[sessions]]
name = "agent"
{arrive}
first = {{ uniform = [4000, 12000] }}
user = {{ uniform = [300, 1500] }}
decode = {{ uniform = [40, 200] }}
turns = {{ uniform = [8, 24] }}
think = {{ law = "lognormal", median = "10 s", sigma = 1.0 }}
"""
SHARED = """
schema = 1
name = "shared"
gpu = { memory_tokens = 100_000 }
timing = { d0 = "12 ms", d1 = "0.1 us", d2 = "60 us" }
classes = [{ name = "a", input = 1000, decode = 200, shared = 800, rate = 15 }]
"""


@cache
def agents(arrive: str = "rate = 0.834", gpu: str = "") -> Profile:
    return parse_profile(AGENTS.format(arrive=arrive, gpu=gpu).encode(), "agents.toml")


@cache
def reported(arrive: str = "rate = 0.834", gpu: str = "") -> Analyses:
    """What a report says, each block made when a test looks at it."""
    return Analyses(agents(arrive, gpu).model, Plan())


# -------------------------------------------------------------------------------------------------------- fleets


@every("parts", [2, 3, 7, 200])
def test_parts_of_users_make_up_all_of_them(parts: int) -> None:
    users = users_of(with_part_of_users(agents("users = 200").model, 1 / parts))
    assert (users - 1) * parts < 200 <= users * parts


# ---------------------------------------------------------------------------------------------- remedies, the gate


def remedy(profile: Profile, text: str, lever: Lever) -> dict[str, float | int | str]:
    (result,) = check(profile, None, [parse(text)]).results
    (found,) = [one for one in result.remedies if one.lever is lever]
    return {change.key: change.after for change in found.changes}


def test_a_lower_rate_is_the_guaranteed_one() -> None:
    changed = remedy(agents(), "prefix_cache.collapse_possible == false", Lever.RATE)
    assert changed["sessions[0].rate"] == pytest.approx(12.035 / 16, rel=1e-3)


def test_a_cache_that_is_not_there_cannot_be_judged_and_says_why() -> None:
    demand = parse("prefix_cache.collapse_possible == false")
    (problem,) = check(agents(gpu="prefix_caching = false"), None, [demand]).problems
    assert "(The engine keeps no prefixes: prefix_caching = false." in problem.message


# ------------------------------------------------------------------------------------------------ other commands


def test_placements_are_of_strangers(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    for name, text in (("sessions", AGENTS.format(arrive="rate = 0.5", gpu="")), ("prefixes", SHARED)):
        file = tmp_path / f"{name}.toml"
        file.write_text(text)
        assert main(["mix", "--replicas", "2", str(file)]) == 2
        assert name in capfd.readouterr().err
    file.write_text(SHARED.replace("100_000", "100_000, prefix_caching = false"))
    assert main(["mix", "--replicas", "2", str(file)]) == 0


def test_the_longest_turn_counts_where_no_eviction_is_claimed() -> None:
    """12,000 + 23·(1,500 + 200) + 200 tokens, of which an engine computes all but one, in pages of 16."""
    longest = 12_000 + 23 * 1_700 + 200
    for gpu in ("", "prefix_caching = false"):
        report = reported("rate = 0.5", gpu)
        assert report.rate_cap.engine_max_num_seqs == (250_000 - 1) // math.ceil((longest - 1) / 16)
