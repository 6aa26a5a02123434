"""Theory §13 against whole requests: what a host tier finds, and from which queues it recovers.

The rates that theory §13 calls guaranteed, 4.90 and 7.18 requests/s, are refuted as such: they hold for a replica that
is full and has no queue. A queue longer than what the host keeps takes its hits away, and then only the GPU's rate is
served, for ever.
"""

import pytest
from host_tier_runs import GPU_TOKENS, Served, model, serve

from kvplan.analysis.cache_states import cached_replica
from kvplan.analysis.prefix_cache import prefix_cache, sustainable_rates
from kvplan.model.gaps import Exponential, Gap, Lognormal, Quantiles
from kvplan.model.replica import Offload

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
    assert expected is not None
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
    assert served.outcome.found is not None
    return served.outcome.found.link_busy_s / served.outcome.end_s


def test_a_busy_link_has_a_queue() -> None:
    """At nine tenths of what it carries first tokens wait ten times as long as with a fast one."""
    slow, fast = (
        serve(model(3.0, Offload(3 * GPU_TOKENS, load_s)), 3000.0, after_s=500.0, seed=2)
        for load_s in (300e-6, 20e-6)
    )
    assert 0.7 < link_share(slow) < 1.0
    assert slow.ttft_s > 5 * fast.ttft_s
