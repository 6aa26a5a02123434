"""`[gpu.offload]`: what it means, and the one line about what is wrong with it."""

import pytest

from kvplan.model.replica import Offload
from kvplan.profile.reading import parse_profile

PROFILE = """schema = 1
name = "host tier"
[gpu]
memory_tokens = 8000
kv_bytes_per_token = 131_072
block_tokens = 16
[gpu.offload]
memory = "2 GiB"
bandwidth = "25 GB/s"
[timing]
d0 = "10 ms"
[[classes]]
name = "chat"
input = 100
decode = 50
rate = 1
"""


def changed(old: str, new: str) -> str:
    assert old in PROFILE
    return PROFILE.replace(old, new)


def tier(text: str) -> Offload | None:
    return parse_profile(text.encode(), "x.toml").model.replica.offload


def test_memory_and_bandwidth_are_told_in_tokens() -> None:
    """2 GiB are 16,384 tokens of 128 KiB, and each takes 131,072/25e9 s."""
    assert tier(PROFILE) == Offload(
        16_384, pytest.approx(5.24288e-6), inclusive=True, overlap=True, memory_bytes=2**31
    )  # type: ignore[arg-type]


def test_memory_in_tokens_and_the_other_kind() -> None:
    found = tier(
        changed('"2 GiB"', '"2 GiB"\ninclusive = false\noverlap = false').replace(
            'memory = "2 GiB"', "memory_tokens = 500"
        )
    )
    assert found == Offload(
        500, pytest.approx(5.24288e-6), inclusive=False, overlap=False, memory_bytes=500 * 131_072
    )  # type: ignore[arg-type]
