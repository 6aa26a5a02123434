"""Latencies by the closed form are those of simulations: what the campaign says of some profiles."""

import pytest
from latency_campaign import (
    JUDGING,
    NAMED,
    RANDOM,
    REQUESTS,
    Compared,
    at_share,
    compare,
    named,
    named_at_shares,
    profile,
)

# Prompts so long or so many that what waits lengthens the iterations that let it wait, seen and not solved.
KNOWN_MISSES = {
    "long-context-h100 at 5%",
    "long-context-h100 at 60%",
    "spread prompts, 2048 at 80%",
}


def share_right(found: list[Compared], wrong: int) -> float:
    return 1 - wrong / sum(len(one.figures) for one in found)


@pytest.mark.parametrize("number", [JUDGING, JUDGING + 1, JUDGING + 2])
def test_a_few_random_profiles(number: int) -> None:
    found = compare(str(number), profile(number), RANDOM, 30_000)
    assert found.reason is None
    assert found.misses(RANDOM) == []


def test_drafts_at_most_of_what_can_be_sustained() -> None:
    model = at_share(named()["chat and documents, five drafts"], 0.6)
    found = compare("drafts", model, NAMED, 20_000)
    assert found.reason is None
    assert found.misses(NAMED) == []


@pytest.mark.nightly
def test_of_random_profiles_at_least_99_percent_of_the_figures_are_right() -> None:
    """And at most 15 % of the profiles have none; a mean may be off by 3.5 %, a percentile by 10 %."""
    found = [compare(str(n), profile(n), RANDOM, REQUESTS) for n in range(JUDGING, JUDGING + 110)]
    assert sum(one.reason is not None for one in found) <= 0.15 * len(found)
    assert share_right(found, sum(len(one.misses(RANDOM)) for one in found)) >= 0.99


@pytest.mark.nightly
def test_profiles_known_by_name_are_right_at_every_load_but_for_known_misses() -> None:
    """Means within 3 %, percentiles within 8 %."""
    found = [compare(name, model, NAMED, REQUESTS) for name, model in named_at_shares()]
    assert {one.name for one in found if one.misses(NAMED)} <= KNOWN_MISSES
