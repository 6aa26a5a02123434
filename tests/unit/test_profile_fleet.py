"""`[fleet]`: what it means, and the one line about what is wrong with it."""

import pytest

from kvplan.errors import ProfileError
from kvplan.model.fleet import Fleet, Routing
from kvplan.profile.reading import parse_profile

PROFILE = """schema = 1
name = "fleet"
[gpu]
memory = "5 GiB"
kv_bytes_per_token = 131_072
[timing]
d0 = "8 ms"
[fleet]
prefill = 3
decode = 5
transfer = "20 GB/s"
[[classes]]
name = "chat"
input = 100
decode = 50
rate = 1
"""


def changed(old: str, new: str) -> Fleet | None:
    assert old in PROFILE
    return parse_profile(PROFILE.replace(old, new).encode(), "x.toml").model.fleet


def test_prefill_and_decode_apart() -> None:
    """2,000 tokens of 128 KiB at 20 GB/s take 13.1072 ms."""
    fleet = changed("", "")
    assert fleet == Fleet(3, 5, 0, Routing.LEAST_REQUESTS, 20e9, 131_072)
    assert (fleet.is_split, fleet.size) == (True, 8)
    assert fleet.transfer_s(2000) == pytest.approx(13.1072e-3)


def test_replicas_that_do_both() -> None:
    split = PROFILE[PROFILE.index("prefill = 3") : PROFILE.index("[[classes]]")]
    fleet = changed(split, 'replicas = 8\nrouting = "session"\n')
    assert fleet == Fleet(replicas=8, routing=Routing.SESSION, bytes_per_token=131_072)
    assert (fleet.is_split, fleet.size, fleet.transfer_s(2000)) == (False, 8, 0.0)


def test_tokens_of_memory_and_their_bytes_go_together_where_they_are_moved() -> None:
    fleet = changed('memory = "5 GiB"', "memory_tokens = 8000")
    assert fleet.bytes_per_token == 131_072


def test_bytes_of_a_token_stand_beside_memory_tokens_only_where_kv_moves() -> None:
    text = PROFILE.replace('memory = "5 GiB"', "memory_tokens = 8000").replace('transfer = "20 GB/s"\n', "")
    with pytest.raises(
        ProfileError, match=r"x.toml:5: gpu.kv_bytes_per_token: .* unless KV goes over a link"
    ):
        parse_profile(text.encode(), "x.toml")
