"""Agents on one replica (theory §8), a seed each: served from the cache, collapsed after a burst, and brought back.

`kvplan reproduce prefix-collapse` has the figures of longer runs.
"""

from typing import Any

import pytest
from shipped import profile

from kvplan.reproduction.experiment import Run
from kvplan.reproduction.runs import document

CAP, SHEDDING = "vllm.max_num_seqs=117", "vllm.shed_after=5"


def served(*settings: str, burst: str | None = "600@0") -> dict[str, Any]:
    agents = profile("agents-collapse")
    run = Run(
        name="run", workload="agents", policy="vllm", set=settings, horizon="6000 s", burst_sessions=burst
    )
    (found,) = document(run, agents.model, agents.plan)["seeds"]
    return dict(found)


def test_from_empty_agents_are_served_from_the_cache() -> None:
    found = served(burst=None)
    assert found["prefix_cache.hit_rate"] == pytest.approx(0.822, abs=0.03)
    assert found["kv_tokens.mean"] == pytest.approx(0.14 * 4e6, rel=0.15)
    assert found["queue.end"] < 5
    assert found["status"] == "steady"


def test_a_burst_of_sessions_empties_the_cache_for_good() -> None:
    found = served()
    assert found["prefix_cache.hit_rate"] < 0.01
    assert found["kv_tokens.mean"] > 0.98 * 4e6
    assert found["throughput_rps"] == pytest.approx(12.28, rel=0.05)
    assert found["queue.end"] > 300
    assert found["status"] == "growing"


def test_a_cap_with_shedding_brings_the_cache_back() -> None:
    found = served(CAP, SHEDDING)
    assert found["prefix_cache.hit_rate"] == pytest.approx(0.822, abs=0.03)
    assert 300 < found["shed"] < 1000
    assert found["queue.end"] < 5
    assert found["status"] == "steady"


@pytest.mark.parametrize("setting", [CAP, SHEDDING])
def test_neither_alone_does(setting: str) -> None:
    assert served(setting)["prefix_cache.hit_rate"] < 0.3
