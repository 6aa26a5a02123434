"""Theory §13 against whole requests: what a host tier finds, and from which queues it recovers.

The rates that theory §13 calls guaranteed, 4.90 and 7.18 requests/s, are refuted as such: they hold for a replica that
is full and has no queue. A queue longer than what the host keeps takes its hits away, and then only the GPU's rate is
served, for ever.
"""

from typing import NamedTuple

import numpy as np
import pytest
from cached_runs import run_cached

from kvplan.analysis.cache_states import cached_replica
from kvplan.analysis.prefix_cache import host_tier, prefix_cache, sustainable_rates
from kvplan.model import Replica, RequestClass, ServingModel, Timing
from kvplan.model.gaps import Exponential, Gap, Lognormal, Quantiles
from kvplan.model.replica import Offload
from kvplan.model.sessions import Reuse
from kvplan.simulation.outcome import Outcome
from kvplan.simulation.requests import Requests
from kvplan.simulation.sessions import heads, with_reuse

GPU_TOKENS = 400_000


def model(rate: float, tier: Offload | None, gap: Gap = Exponential(60.0)) -> ServingModel:  # noqa: B008
    """3,000 tokens in and 200 out, of which 2,992 are asked for again with probability 0.8."""
    one = RequestClass("a", 3000, (200,), (1.0,), rate, reuse=Reuse(3000, 0.8, gap))
    return ServingModel((one,), Timing(12e-3, 1e-7, 60e-6), Replica(GPU_TOKENS, 16, offload=tier))


class Served(NamedTuple):
    """Requests that arrived after a time: what was found of their prompts, and of it on the host; and rates since."""

    hit_ratio: float
    host_hit_ratio: float
    arrived_rps: float
    rate_rps: float
    waiting: float
    ttft_s: float
    outcome: Outcome


def serve(
    some: ServingModel, horizon_s: float, *, after_s: float, seed: int, burst: int = 0, **settings: float
) -> Served:
    """Serve them from an empty replica, with a burst of others at the start."""
    rng = np.random.default_rng(seed)
    first = heads(some)
    count = rng.poisson(first.total_rate_rps * horizon_s)
    arrival = np.concatenate([np.zeros(burst), np.sort(rng.random(count)) * horizon_s])
    none = np.zeros(arrival.size, dtype=np.int64)
    requests = with_reuse(
        Requests(arrival, none, none, none, more_later=True), some, rng, horizon_s=horizon_s
    )
    outcome, found = run_cached(requests, some.timing, some.replica, horizon_s, **settings)
    late = (outcome.arrival_s > after_s) & np.isfinite(outcome.first_token_s)
    tokens = max(int(requests.input_tokens[late].sum()), 1)
    loaded = np.zeros(late.size) if found.loaded_tokens is None else found.loaded_tokens
    records = outcome.series.time_s > after_s
    return Served(
        hit_ratio=float(found.hit_tokens[late].sum() / tokens),
        host_hit_ratio=float(loaded[late].sum() / tokens),
        arrived_rps=float(np.count_nonzero(outcome.arrival_s > after_s) / (horizon_s - after_s)),
        rate_rps=float(np.count_nonzero(outcome.finish_s > after_s) / (horizon_s - after_s)),
        waiting=float(outcome.series.waiting[records].mean()),
        ttft_s=float(np.mean((outcome.first_token_s - outcome.arrival_s)[late])) if late.any() else np.inf,
        outcome=outcome,
    )


GAPS: dict[str, Gap] = {
    "exponential": Exponential(60.0),
    "lognormal": Lognormal(40.0, 1.0),
    "fixed": Quantiles((60.0,)),
}
TWICE = Offload(2 * GPU_TOKENS, 5e-6, overlap=False)


def hits_agree(gap: Gap, tier: Offload, part: float, horizon_s: float) -> None:
    """At the rate that came about: chains of requests make it vary, by some percent in an hour."""
    good = sustainable_rates(cached_replica(model(1.0, tier, gap))).good
    found = serve(model(part * good, tier, gap), horizon_s, after_s=1000.0, seed=3)
    expected = prefix_cache(cached_replica(model(found.arrived_rps, tier, gap))).expected
    edges = [time_s or 1e9 for time_s in (expected.characteristic_time_s, expected.host_time_s)]
    if isinstance(gap, Quantiles) and any(0.75 < edge / 60.0 < 1.4 for edge in edges):
        pytest.skip("a fixed gap so near to a characteristic time is found or not as fluctuations have it")
    assert found.hit_ratio == pytest.approx(expected.hit_ratio, abs=0.015)
    assert found.host_hit_ratio == pytest.approx(expected.host_hit_ratio, abs=0.015)


def tier_of(times: float, *, inclusive: bool, overlap: bool) -> Offload:
    """So many times what the GPU holds in both together."""
    return Offload(round(GPU_TOKENS * (times - (not inclusive))), 5e-6, inclusive, overlap)


@pytest.mark.parametrize("gap", GAPS)
@pytest.mark.parametrize("inclusive", [True, False])
def test_hits_are_those_of_two_characteristic_times(gap: str, inclusive: bool) -> None:
    hits_agree(GAPS[gap], tier_of(3.0, inclusive=inclusive, overlap=True), 0.7, 5000.0)


def test_a_full_replica_recovers_where_the_gpu_alone_would_not() -> None:
    """At 4.4 requests/s, above the 3.84 of the GPU: full, with few waiting."""
    found = serve(model(4.4, TWICE), 4000.0, after_s=3000.0, seed=0, burst=60)
    assert found.waiting < 5
    assert found.hit_ratio == pytest.approx(0.57, abs=0.05)


def test_a_long_queue_is_never_served_from_the_host() -> None:
    """The same behind a queue of 100 s or more, which outlasts T2 = 34 s: 3.84 requests/s, and the queue grows."""
    found = serve(model(4.4, TWICE), 4000.0, after_s=1000.0, seed=0, burst=600)
    alone = sustainable_rates(cached_replica(model(4.4, None))).guaranteed
    assert found.hit_ratio < 0.01
    assert found.rate_rps == pytest.approx(alone, rel=0.01)
    assert found.waiting > 500


def link_share(served: Served) -> float:
    return served.outcome.found.link_busy_s / served.outcome.end_s


def test_a_busy_link_has_a_queue() -> None:
    """At nine tenths of what it carries first tokens wait ten times as long as with a fast one."""
    slow, fast = (
        serve(model(3.0, Offload(3 * GPU_TOKENS, load_s)), 3000.0, after_s=500.0, seed=2)
        for load_s in (300e-6, 20e-6)
    )
    assert 0.7 < link_share(slow) < 1.0
    assert slow.ttft_s > 5 * fast.ttft_s


@pytest.mark.nightly
@pytest.mark.parametrize("gap", GAPS)
@pytest.mark.parametrize("inclusive", [True, False])
@pytest.mark.parametrize("overlap", [True, False])
@pytest.mark.parametrize("times", [1.5, 3.0, 5.0])
@pytest.mark.parametrize("part", [0.2, 0.35, 0.5, 0.65, 0.8])
def test_so_they_are_at_every_load(
    gap: str, inclusive: bool, overlap: bool, times: float, part: float
) -> None:
    hits_agree(GAPS[gap], tier_of(times, inclusive=inclusive, overlap=overlap), part, 20_000.0)


@pytest.mark.parametrize(
    ("times", "rate", "burst"), [(2, 4.4, 600), pytest.param(5, 6.5, 1500, marks=pytest.mark.nightly)]
)
def test_a_bound_on_the_wait_is_enough_to_recover(times: int, rate: float, burst: int) -> None:
    """Where the wait stays below what the report names, without a cap on running requests."""
    some = model(rate, Offload(times * GPU_TOKENS, 5e-6, overlap=False))
    tier = host_tier(cached_replica(some), None)
    assert tier.longest_wait_s is not None
    found = serve(some, 4000.0, after_s=3000.0, seed=0, burst=burst, shed_after=tier.longest_wait_s)
    assert found.waiting < 5
    assert found.hit_ratio > 0.5


@pytest.mark.nightly
@pytest.mark.parametrize(("times", "rate"), [(2, 4.1), (2, 4.4), (5, 5.0), (5, 6.0)])
def test_the_longest_wait_tells_bursts_apart(times: int, rate: float) -> None:
    """A burst that leaves half as many waiting is survived, one that leaves three times as many is not."""
    some = model(rate, Offload(times * GPU_TOKENS, 5e-6, overlap=False))
    tier = host_tier(cached_replica(some), None)
    waiting, fits = rate * tier.longest_wait_s, GPU_TOKENS / 3200
    for part, back in ((0.5, True), (3.0, False)):
        burst = round(0.8 * fits + part * waiting)
        drained = [
            serve(some, 5000.0, after_s=4500.0, seed=seed, burst=burst).waiting < 5 for seed in range(4)
        ]
        assert drained.count(back) >= 3


@pytest.mark.nightly
def test_a_link_that_is_too_slow_costs_more_than_it_brings() -> None:
    """At 1 ms a token it would load for 1.3 s a request: a replica that serves 3 requests/s without it does not."""
    slow = serve(model(3.0, Offload(3 * GPU_TOKENS, 1e-3)), 3000.0, after_s=1000.0, seed=2)
    without = serve(model(3.0, None), 3000.0, after_s=1000.0, seed=2)
    assert slow.waiting > 100 > without.waiting
