"""What kvplan says about greedy admission, judged by whole requests on random profiles: a few of them on a commit."""

import math
import os
from functools import cache

import pytest
from recovery_campaign import JUDGING, KNOWN, MOST_FALSE_CAPS, Findings, campaign, profile
from saturated_greedy import Server

from kvplan.model import Prefill


@cache
def night() -> Findings:
    return campaign([KNOWN, *range(JUDGING, JUDGING + 2000)], 50_000, os.cpu_count() or 1)


def check(found: Findings) -> None:
    """Nothing that kvplan promises is refuted."""
    refuted = [
        row.number
        for row in found.rows
        if row.wrongly_stable or row.wrong_rate or row.drained is False or row.overflowed
    ]
    assert not refuted, found.table()


def test_a_few_profiles() -> None:
    check(campaign(range(20), 5_000))


@pytest.mark.nightly
def test_two_thousand_profiles() -> None:
    check(night())


@pytest.mark.nightly
def test_caps_are_needed_where_they_are_said_to_be() -> None:
    assert night().false_caps <= MOST_FALSE_CAPS, night().table()


@pytest.mark.nightly
def test_enough_backlogs_are_drained() -> None:
    assert night().counted(lambda row: row.drained is not None) >= 300


@pytest.mark.nightly
def test_large_replicas_are_served_under_the_cap() -> None:
    assert not night().capped_badly, night().table()


def test_profiles_are_of_every_kind() -> None:
    """As the campaign asks: three conventions, three pages, one to eight classes, 5 to 5,000 requests in memory."""
    models = [profile(number) for number in range(200)]
    servers = [Server.of(model) for model in models]
    replicas = [model.replica for model in models]

    def share(chosen: list[bool]) -> object:
        return pytest.approx(sum(chosen) / len(chosen), abs=4 * 0.5 / math.sqrt(len(chosen)))

    assert share([r.prefill is Prefill.FUSED for r in replicas]) == 0.6
    assert share([r.prefill is Prefill.INLINE for r in replicas]) == 0.2
    assert share([r.block_tokens == 1 for r in replicas]) == 0.6
    assert share([r.block_tokens == 16 for r in replicas]) == 0.3
    assert share([r.max_num_seqs is not None for r in replicas]) == 0.2
    assert share([s.in_memory < math.sqrt(5 * 5000) for s in servers]) == 0.5
    assert {len(model.classes) for model in models} == set(range(1, 9))
    loads = [model.total_rate_rps / s.sustainable_rps for model, s in zip(models, servers, strict=True)]
    assert 0.3 <= min(loads) < 0.35
    assert 0.95 < max(loads) <= 0.99
    assert share([load < 0.645 for load in loads]) == 0.5
