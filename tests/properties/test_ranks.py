"""Ranks that share their load evenly are so many replicas: figures of all are those of one, times their number."""

from dataclasses import replace

import pytest

from kvplan.analysis import equilibrium
from kvplan.gate import check as checking
from kvplan.gate.remedy import Lever
from kvplan.gate.requirement import parse
from kvplan.model.fleet import Fleet
from kvplan.model.slo import parse_slo
from kvplan.profile.reading import Profile, parse_profile
from kvplan.report.assembly import Analyses
from kvplan.study.trial import Task

RANKS = 4
# Prompts take four iterations; memory is no whole number of pages.
ONE = """\
schema = 1
name = "a rank, or so many"
gpu = {{ memory_tokens = 60_009, block_tokens = 16, {limits}{more} }}
timing = {{ d0 = "8 ms", d1 = "0.2 us", d2 = "40 us", d3 = "50 us"{law} }}
classes = [{{ name = "a", input = 1900, decode = {{ 60 = 1, 200 = 2 }}, rate = {rate} }}]
"""


def profiles(
    rate: float, limits: str = "max_num_seqs = 24, max_num_batched_tokens = 512"
) -> tuple[Profile, Profile]:
    """One replica, and one of several ranks with so many times its load."""
    ranks = f", data_parallel = {RANKS}, expert_parallel = {RANKS}"
    each, every_rank = (
        ONE.format(limits=limits, more=more, rate=times * rate, law="")
        for more, times in (("", 1), (ranks, RANKS))
    )
    return parse_profile(each.encode(), "one.toml"), parse_profile(every_rank.encode(), "ranks.toml")


def test_ranks_of_a_dense_model_are_replicas() -> None:
    """In lock step they are where experts, or times, are of all of them."""
    limits, parts = "max_num_seqs = 24", "tensor_parallel = 2"
    for engine, routing in (("vllm", "least-requests"), ("sglang", "round-robin")):
        text = ONE.format(limits=limits, more=f", {parts}, data_parallel = 4", rate=3, law="")
        one = ONE.format(limits=limits, more=f", {parts}", rate=3, law="")
        said, fleet = (
            f'engine = {{ name = "{engine}" }}\n',
            f'fleet = {{ replicas = 4, routing = "{routing}" }}\n',
        )
        given, alike = (
            parse_profile((head + body).encode(), "a.toml").model
            for head, body in ((said, text), (said + fleet, one))
        )
        assert given == replace(alike, replica=replace(alike.replica, memory_tokens=60_000))  # whole pages
        two = parse_profile((said + "fleet = { replicas = 2 }\n" + text).encode(), "a.toml").model
        assert two.fleet == Fleet(replicas=8)
    for more, law in ((", expert_parallel = 2", ""), ("", ', all_ranks = "1 us"')):
        text = ONE.format(limits=limits, more=f", data_parallel = 4{more}", rate=3, law=law)
        assert parse_profile(text.encode(), "a.toml").model.replica.ranks == 4


@pytest.mark.parametrize("rate", [0.05, 1.0, 2.5])
def test_formulas_are_those_of_one_rank_times_their_number(rate: float) -> None:
    one, several = (equilibrium.blocks([profile.model])[0] for profile in profiles(rate))
    assert several.load.load_factor_max == pytest.approx(one.load.load_factor_max, rel=1e-12)
    assert several.load.sustainable_rps == pytest.approx(RANKS * one.load.sustainable_rps, rel=1e-12)
    assert several.equilibrium.iteration_time_s == pytest.approx(one.equilibrium.iteration_time_s, rel=1e-12)
    for name in ("kv_tokens", "requests_in_flight"):
        seen, each = getattr(several.equilibrium, name), getattr(one.equilibrium, name)
        assert seen == pytest.approx(RANKS * each, rel=1e-12)
    assert several.saturation.throughput_rps == pytest.approx(
        RANKS * one.saturation.throughput_rps, rel=1e-12
    )


def test_the_most_that_always_fit_are_so_many_of_each_rank() -> None:
    one, several = (Analyses(profile.model, profile.plan) for profile in profiles(1.0))
    assert several.rate_cap.engine_max_num_seqs == RANKS * one.rate_cap.engine_max_num_seqs == RANKS * 28


@pytest.mark.parametrize(
    ("lever", "limits", "headroom"),
    [(Lever.MAX_NUM_SEQS, "max_num_seqs = 4", 1.0), (Lever.MEMORY, "max_num_seqs = 4_000", 1.2)],
)
def test_remedies_are_written_as_those_of_one_rank(lever: Lever, limits: str, headroom: float) -> None:
    changes = []
    for profile in profiles(2.5, limits):
        (result,) = checking.check(profile, None, [parse(f"load.headroom >= {headroom}")]).results
        changes.append([remedy.changes for remedy in result.remedies if remedy.lever is lever])
    assert changes[0] == changes[1] != []


def test_budgets_that_a_plan_tries_are_those_of_of_rank() -> None:
    slos = (parse_slo("itl-p95=40ms"),)
    one, several = (Task(profile.model, replace(profile.plan, slos=slos)) for profile in profiles(1.0))
    assert several.even_budgets(1) == one.even_budgets(1) != []
    assert several.at(1, 1024, slower=False).replica.max_num_batched_tokens == RANKS * 1024
    assert several.sustainable_rps(1024) == pytest.approx(RANKS * one.sustainable_rps(1024), rel=1e-12)
