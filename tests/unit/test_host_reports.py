"""What the report says of a host tier, and its verdict."""

from typing import Any

import pytest

from kvplan.model import Plan
from kvplan.profile.reading import parse_profile
from kvplan.report.assembly import Analyses
from kvplan.report.ledger import plain
from kvplan.report.words import Status

PROFILE = """schema = 1
name = "host tier"
[gpu]
memory_tokens = 400_000
kv_bytes_per_token = 131_072
block_tokens = 16
[gpu.offload]
memory_tokens = 800_000
bandwidth = "26.2144 GB/s"
overlap = false
[timing]
d0 = "12 ms"
d1 = "0.1 us"
d2 = "60 us"
[[classes]]
name = "chat"
input = 3000
decode = 200
rate = 4.4
reuse = { tokens = 3000, share = 0.8, gap = { law = "exponential", mean = "60 s" } }
"""
TIER = PROFILE[PROFILE.index("[gpu.offload]") : PROFILE.index("[timing]")]


def report(*changes: tuple[str, str]) -> Analyses:
    """What a report holds, each block computed where a test looks at it."""
    text = PROFILE
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    return Analyses(parse_profile(text.encode(), "x.toml").model, Plan())


def cache(found: Analyses) -> dict[str, Any]:
    block: dict[str, Any] = plain(found.prefix_cache, "prefix_cache")
    return block


def test_the_tier_raises_the_good_rate_and_not_the_guaranteed_one() -> None:
    """4.1 to 4.98 requests/s, and 3.84 with and without: bytes of a token over the bandwidth are 5 us."""
    found, alone = cache(report()), cache(report((TIER, ""), ("kv_bytes_per_token = 131_072\n", "")))
    assert found["sustainable_rps"]["guaranteed"] == alone["sustainable_rps"]["guaranteed"]
    assert found["sustainable_rps_without_host"] == alone["sustainable_rps"]
    assert found["sustainable_rps"]["good"] == pytest.approx(4.976, abs=0.002)
    assert alone["sustainable_rps"]["good"] == pytest.approx(4.101, abs=0.002)
    assert set(alone["host"].values()) | set(alone["sustainable_rps_without_host"].values()) == {None}
    assert found["host"]["recovers_up_to_rps"] == pytest.approx(4.825, abs=0.002)
    assert found["host"]["link_utilization"] == pytest.approx(4.4 * 3000 * found["host"]["hit_ratio"] * 5e-6)
    assert 0 < found["host"]["hit_ratio"] < found["hit_ratio"]
    assert found["host"]["characteristic_time_s"] > found["characteristic_time_s"]


@pytest.mark.nightly
def test_between_the_rates_the_wait_that_empties_the_cache_is_said() -> None:
    """Three times a full memory at once does not: no bound on waiting is needed, and none advised."""
    found = report()
    assert found.status is Status.NEEDS_CAP
    assert "waits longer than 12.8 s can empty it for good" in found.verdict.summary
    assert not any(setting.name == "shed_after" for one in found.advice for setting in one.settings)
    assert found.actions[-1].startswith("Serve it with 2 replicas")
    assert any("not the guaranteed rate" in note for note in found.notes)
