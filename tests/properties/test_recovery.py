"""What kvplan says about greedy admission, judged by whole requests on random profiles: a few of them on a commit."""

import math
import os
from functools import cache

import numpy as np
import pytest
from recovery_campaign import JUDGING, KNOWN, MOST_FALSE_CAPS, SIZES, Findings, campaign, profile
from saturated_greedy import Server

from kvplan.model import Prefill


@cache
def night() -> Findings:
    return campaign([KNOWN, *range(JUDGING, JUDGING + 2000)], 50_000, os.cpu_count() or 1)


MOST_WRONG_RATES = 0.01  # of the profiles: coexisting attractors, and few requests of very different sizes
LEAST_CAPPED_SHARE, MOST_CAPPED_BADLY = 0.96, 0.65  # what the cap at n* does for large replicas


def refuted(found: Findings) -> list[int]:
    """Profiles of which something is promised at their own load that whole requests do not keep."""
    return [row.number for row in found.rows if row.wrongly_stable or row.drained is False or row.overflowed]


def test_a_few_profiles() -> None:
    found = campaign(range(6), 5_000)
    assert not refuted(found), found.table()
    assert not found.counted(lambda row: row.wrong_rate), found.table()


@pytest.mark.nightly
def test_two_thousand_profiles() -> None:
    assert not refuted(night()), night().table()


@pytest.mark.nightly
def test_the_known_counterexample_is_none_any_more() -> None:
    assert not any(row.wrong_rate for row in night().rows if row.number < 0), night().table()


@pytest.mark.nightly
def test_the_rate_that_recovers_is_seldom_too_high() -> None:
    assert night().counted(lambda row: row.wrong_rate) <= MOST_WRONG_RATES * len(night().rows), (
        night().table()
    )


@pytest.mark.nightly
def test_caps_are_needed_where_they_are_said_to_be() -> None:
    assert night().false_caps <= MOST_FALSE_CAPS, night().table()


@pytest.mark.nightly
def test_enough_backlogs_are_drained() -> None:
    assert night().counted(lambda row: row.drained is not None) >= 300


@pytest.mark.nightly
def test_large_replicas_are_mostly_served_under_the_cap() -> None:
    """Not all: evicted requests, longer than the traffic, can use up a cap at n*."""
    capped = [r.capped_share for r in night().rows if r.capped_share is not None and r.in_memory >= SIZES[-1]]
    assert np.median(capped) >= LEAST_CAPPED_SHARE, night().table()
    assert len(night().capped_badly) <= MOST_CAPPED_BADLY * len(capped), night().table()


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
