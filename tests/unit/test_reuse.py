"""Arrivals that ask again for what an earlier one has left, and several kinds of arrivals in one."""

from dataclasses import replace

import numpy as np
import pytest
from small_runs import Case, run

from kvplan.errors import UsageError
from kvplan.model import Replica, RequestClass, ServingModel, Timing
from kvplan.model.gaps import Exponential, Gap, Lognormal, Quantiles
from kvplan.model.sessions import Reuse, SharedPrompt
from kvplan.simulation.requests import Prefixes, Requests, poisson
from kvplan.simulation.sessions import heads, merged, with_reuse

LAW = Timing(0.012, 1e-7, 60e-6)
CHAT = RequestClass("chat", 1000, (50, 150), (1.0, 1.0), 10.0)
PLAIN = RequestClass("plain", 300, (20,), (1.0,), 5.0)


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def in_common(prefixes: Prefixes, one: int, other: int) -> int:
    """Leading tokens that two requests share: down to the last stream on both ways."""

    def way(stream: int) -> list[int]:
        return [] if stream < 0 else [*way(int(prefixes.parent[stream])), stream]

    shared = set(way(int(prefixes.stream[one]))) & set(way(int(prefixes.stream[other])))
    return max((int(prefixes.end_tokens[s]) for s in shared), default=0)


def drawn(model: ServingModel, end_s: float, seed: int = 0) -> Requests:
    generator = rng(seed)
    first = poisson(heads(model), generator, requests=None, horizon_s=end_s)
    return with_reuse(first, model, generator, horizon_s=end_s)


def chains(requests: Requests) -> list[list[int]]:
    following = requests.turns.following
    found = []
    for at in sorted(set(range(following.size)) - set(following.tolist())):
        found.append([at])
        while following[found[-1][-1]] >= 0:
            found[-1].append(int(following[found[-1][-1]]))
    return found


@pytest.mark.parametrize("tokens", [640, 0.9])
def test_requests_share_with_the_next_what_it_asks_for_and_chains_share_their_prompt(tokens: float) -> None:
    """Asked for is a count, or a share of the full pages of all but the last token, and never a whole prompt."""
    shared = (SharedPrompt(200, 0.4), SharedPrompt(900, 0.4))
    some = RequestClass(
        "a", 1000, (1, 20, 300), (1.0,) * 3, 2.0, shared, Reuse(tokens, 0.8, Exponential(3.0))
    )
    requests = drawn(ServingModel((some,), LAW, Replica(10_000, 16)), 60.0)
    parent = requests.prefixes.parent
    assert (parent < np.arange(parent.size)).all()
    long = 0
    for chain in chains(requests):
        trunk = max(
            (t for t in (200, 900) if in_common(requests.prefixes, chain[0], chain[0]) >= t), default=0
        )
        left = (1000 + requests.decode_tokens[chain] - 1) // 16 * 16
        asked = np.minimum(left * tokens if tokens < 1 else np.minimum(left, tokens), 999).astype(int)
        for i in range(len(chain)):
            for j in range(i + 1, len(chain)):
                expected = int(asked[i:j].min())
                found = in_common(requests.prefixes, chain[i], chain[j])
                assert found == expected or (found > expected and found in (200, 900) and trunk)
        long += len(chain) > 3
    assert long > 5


@pytest.mark.parametrize("gap", [Exponential(30.0), Lognormal(20.0, 1.0), Quantiles((5.0, 20.0, 60.0))])
def test_gaps_between_arrivals_leave_a_class_its_rate_from_the_beginning(gap: Gap) -> None:
    """Within four standard errors, for chains of so many; with and without, and whatever the gap."""
    asking = replace(CHAT, reuse=Reuse(0.5, 0.7, gap, from_arrival=True))
    model = ServingModel((asking, PLAIN), LAW, Replica(300_000))
    requests = drawn(model, 2000.0)
    assert not np.isnan(requests.arrival_s).any()
    assert (np.diff(requests.arrival_s) >= 0).all()
    for index, c in enumerate(model.classes):
        mine = requests.arrival_s[requests.class_index == index]
        for begin, end in ((0.0, 10.0), (0.0, 100.0), (1900.0, 2000.0)):
            wanted = c.rate_rps * (end - begin)
            clumped = 17 / 3 if index == 0 else 1  # (1 + p)/(1 - p): chains come together at most
            assert abs(((mine >= begin) & (mine < end)).sum() - wanted) < 4 * np.sqrt(clumped * wanted)


def test_think_times_run_from_completions_and_a_chain_ends_with_the_number_asked_for() -> None:
    asking = replace(CHAT, reuse=Reuse(0.5, 0.9, Exponential(2.0)))
    model = ServingModel((asking,), LAW, Replica(300_000))
    first = poisson(heads(model), rng(), requests=500, horizon_s=None)
    requests = with_reuse(first, model, rng(1), requests=500)
    assert requests.arrival_s.size == 500
    outcome = run("vllm", Case(requests, LAW, model.replica, {"prefix_caching": (1.0,)}))
    followed = requests.turns.following >= 0
    assert followed.mean() == pytest.approx(0.9, abs=0.05)
    gaps = outcome.arrival_s[requests.turns.following[followed]] - outcome.finish_s[followed]
    np.testing.assert_allclose(gaps, requests.turns.think_s[followed], rtol=1e-9, atol=1e-9)


def test_more_that_is_still_to_be_asked_for_than_memory_holds_is_refused() -> None:
    late = replace(CHAT, reuse=Reuse(9, 0.5, Exponential(1e12)))
    model = ServingModel((late,), LAW, Replica(9000))
    first = poisson(heads(model), rng(), requests=5, horizon_s=None)
    with pytest.raises(UsageError, match=r"most of them of class chat; 3,000,000 is the most"):
        with_reuse(first, model, rng(), requests=5)


def test_merged_strangers_stay_strangers() -> None:
    model = ServingModel((PLAIN,), LAW, Replica(10_000_000, 8))
    plain = poisson(model, rng(1), requests=70, horizon_s=None)
    both = merged([plain, replace(plain, more_later=True)])
    assert both.more_later
    outcome = run(
        "vllm", Case(replace(both, more_later=False), LAW, model.replica, {"prefix_caching": (1.0,)})
    )
    assert not outcome.found.hit_tokens.any()
