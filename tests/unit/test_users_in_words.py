"""What is said of people who ask again when they are answered: users are counted, not only the rates they come to."""

from pathlib import Path

import pytest
from every import every

from kvplan.analysis.equilibrium import sustainable_rate
from kvplan.cli.app import main
from kvplan.gate.check import check
from kvplan.gate.requirement import parse
from kvplan.planning.measuring import First
from kvplan.planning.result import Next
from kvplan.profile.reading import Profile, parse_profile
from kvplan.report.assembly import Analyses
from kvplan.report.inputs import band_notes
from kvplan.show.check import advice_text
from kvplan.show.plan import _first
from kvplan.simulation.experiments.load import Load

TALK = """\
schema = 1
name = "talk"
gpu = { memory_tokens = 40_000, block_tokens = 16, max_num_seqs = 64, max_num_batched_tokens = 2_048 }
timing = { d0 = "10 ms", d1 = "0.03 us", d2 = "20 us", measured = { band = [0.9, 1.2] } }
sessions = [{ name = "talk", users = 12, shared = 0, first = 300, user = 300, decode = 20, turns = 1,
think = { law = "exponential", mean = "5 s" } }]
FLEET
"""


def talk(fleet: str = "") -> str:
    return TALK.replace("FLEET", fleet)


def profile(text: str) -> Profile:
    return parse_profile(text.encode(), "talk.toml")


def said(command: str, text: str, folder: Path, capfd: pytest.CaptureFixture[str]) -> str:
    file = folder / "talk.toml"
    file.write_text(text)
    assert main([command, str(file)]) == 0
    return " ".join(capfd.readouterr().out.split())


def test_beside_others_a_population_is_not_all_who_come() -> None:
    both = talk('classes = [{ name = "more", input = 30, decode = 9, rate = 1.0 }]').splitlines()
    mixed, alone = (Load().on(profile(text).model) for text in ("\n".join(both), talk()))
    assert (mixed.users, mixed.name) == (0, "poisson")
    assert (alone.users, alone.name) == (12, "users")


def test_a_population_of_a_fleet_does_not_come_at_random(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """And tokens, of a replica each, are told from requests, of all together."""
    text = said("simulate", talk('fleet = { replicas = 2, routing = "round-robin" }'), tmp_path, capfd)
    assert "Policy vllm, 12 users, each of whom asks again after an answer," in text
    assert "poisson" not in text
    assert "Running in all Waiting in all KV tokens a replica" in text


def test_the_verdict_counts_users_beside_the_rate_that_simulate_prints(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Users who can grow by half do so at a rate that grows by less."""
    run = said("simulate", talk(), tmp_path, capfd)
    rate = run.partition("Preemptions/request ")[2].split()[0]
    text = said("analyze", talk(), tmp_path, capfd)
    assert f"{rate}" in text.partition(" requests/s of 12 users offered")[0].split()[-1]
    assert "at least +50% users with slower iterations" in text


def test_the_band_says_that_capacity_counts_users() -> None:
    """Of users the capacity is not the ratio of the two rates beside it."""
    found = profile(talk())
    (note, *_) = band_notes(found.model, Analyses(found.model, found.plan).load, 1.0)
    assert "a capacity for more users of +" in note


def test_a_band_promises_no_verdict_that_a_burst_decides() -> None:
    """Rates scale with iterations, what a burst leaves does not: only the load that is too much is told."""
    table = (
        'classes = [{ name = "all", input = 200, decode = 20, rate = RATE }]\nslo = { ttft_s.p95 = "9 s" }'
    )
    text = "\n".join([*talk().splitlines()[:4], table])
    full = profile(text.replace("RATE", "1.0")).model
    near = profile(text.replace("RATE", f"{sustainable_rate(full)[1] / 1.1:.4f}"))
    found = Analyses(near.model, near.plan)
    assert found.drains_up_to_rps is None
    assert list(band_notes(near.model, found.load, None))[1:] == [
        "Within that band more is offered than sustainable beyond 1.1 times its iteration times."
    ]


def test_where_headroom_fails_no_cache_is_blamed() -> None:
    (result,) = check(profile(talk()), None, [parse("headroom.ratio >= 90%")]).results
    assert "kvplan plan" in advice_text(result)
    assert "cache" not in advice_text(result)


@every(
    ("left", "words"),
    [
        ((6, 6), ", first 1 and 29 at once (2.4 min), which would leave one number of replicas"),
        ((4, 7), ", first 1 and 29 at once (2.4 min), which would leave 4 numbers of replicas"),
        ((2, None), ", first 1 and 29 at once (2.4 min)"),
        ((2, 9), ", first 1 and 29 at once (2.4 min)"),
    ],
)
def test_runs_foretell_how_many_numbers_they_leave_and_not_which(
    left: tuple[int, int | None], words: str
) -> None:
    assert _first(Next("timing", (2, 9), "", First((1, 29), 144.0, left))) == words
