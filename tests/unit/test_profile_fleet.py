"""`[fleet]`: what it means, and the one line about what is wrong with it."""

import pytest
from every import every

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
LAYERS = """kv_blocks = 4096
block_tokens = 16
kv = [{ kind = "full", layers = 10, bytes = 4096 }, { kind = "window", layers = 20, bytes = 4096, window = 128 }]
"""
MEMORY = 'memory = "5 GiB"\nkv_bytes_per_token = 131_072\n'
DRAFTS = '[speculative]\ntokens = 1\naccepted = [0.7]\ndraft_time = "1 ms"\nverify_time = "1 us"\n'


def changed(old: str, new: str) -> Fleet | None:
    assert old in PROFILE
    return parse_profile(PROFILE.replace(old, new).encode(), "x.toml").model.fleet


def test_prefill_and_decode_apart() -> None:
    """2,000 tokens of 128 KiB at 20 GB/s take 13.1072 ms."""
    fleet = changed("", "")
    assert fleet == Fleet(3, 5, 0, Routing.LEAST_REQUESTS, 20e9, 131_072)
    assert fleet is not None
    assert (fleet.is_split, fleet.size) == (True, 8)
    assert fleet.transfer_s(2000) == pytest.approx(13.1072e-3)


def test_replicas_that_do_both() -> None:
    split = PROFILE[PROFILE.index("prefill = 3") : PROFILE.index("[[classes]]")]
    fleet = changed(split, 'replicas = 8\nrouting = "session"\n')
    assert fleet == Fleet(replicas=8, routing=Routing.SESSION, bytes_per_token=131_072)
    assert fleet is not None
    assert (fleet.is_split, fleet.size, fleet.transfer_s(2000)) == (False, 8, 0.0)


def test_without_a_rate_a_transfer_takes_no_time() -> None:
    fleet = changed('transfer = "20 GB/s"\n', "")
    assert fleet is not None
    assert fleet.transfer_s(2000) == 0.0


def test_bytes_of_a_pool_token_are_those_of_a_group() -> None:
    """Of 10 and 20 layers a group has 10; a token in each of them takes 40,960 bytes."""
    fleet = changed(MEMORY, LAYERS)
    assert fleet is not None
    assert fleet.bytes_per_token == 10 * 4096


def test_tokens_of_memory_and_their_bytes_go_together_where_they_are_moved() -> None:
    fleet = changed('memory = "5 GiB"', "memory_tokens = 8000")
    assert fleet is not None
    assert fleet.bytes_per_token == 131_072


def test_bytes_of_layers_are_those_of_all_gpus() -> None:
    fleet = changed(MEMORY, f"gpus = 4\n{LAYERS}")
    assert fleet is not None
    assert fleet.bytes_per_token == 4 * 10 * 4096


def test_layers_of_one_kind_say_the_bytes_of_a_token() -> None:
    kv = 'kv_blocks = 40_000\nkv = [{ kind = "full", layers = 32, bytes = 4096 }]\n'
    fleet = changed(MEMORY, kv)
    assert fleet is not None
    assert fleet.bytes_per_token == 131_072


@every(
    ("old", "new", "line", "message"),
    [
        ("prefill = 3\n", "prefill = 0\n", 9, "fleet.prefill: must be at least 1, not 0"),
        ("prefill = 3\n", "", 8, "fleet: needs prefill"),
        ("decode = 5\n", "", 8, "fleet: needs decode"),
        ('prefill = 3\ndecode = 5\ntransfer = "20 GB/s"\n', "", 8, "needs replicas, or prefill and decode"),
        ("prefill = 3\n", "replicas = 3\n", 10, "fleet.decode: not allowed beside replicas"),
        ('"20 GB/s"', '"20 GB"', 11, "fleet.transfer: '20 GB' is not a bandwidth"),
        ('"20 GB/s"', "20", 11, 'fleet.transfer: must be a string such as "20 GB/s", not 20'),
        (
            '"20 GB/s"',
            '"0 GB/s"',
            11,
            "fleet.transfer: must be a bandwidth from 1,000 B/s to 1e+15 B/s, not '0 GB/s'",
        ),
        ("decode = 5\n", 'decode = 5\nrouting = "nearest"\n', 11, "'least-kv' or 'session', not 'nearest'"),
        ("decode = 5\n", 'decode = 5\nroute = "random"\n', 11, "fleet.route: unknown key; did you mean rou"),
        (MEMORY, "memory_tokens = 8000\n", 3, "gpu: needs kv_bytes_per_token beside memory_tokens"),
        (MEMORY, f'{MEMORY}prefill = "disaggregated"\n', 6, 'gpu.prefill: must be "fused" or "inline"'),
        ("[fleet]\n", f"{DRAFTS}[fleet]\n", 14, "fleet.prefill: not modelled beside [speculative]"),
    ],
)
def test_what_is_wrong_is_said_in_a_line(old: str, new: str, line: int, message: str) -> None:
    with pytest.raises(ProfileError) as error:
        changed(old, new)
    assert str(error.value).startswith(f"x.toml:{line}: ")
    assert message in str(error.value)


def test_bytes_of_a_token_stand_beside_memory_tokens_only_where_kv_moves() -> None:
    text = PROFILE.replace('memory = "5 GiB"', "memory_tokens = 8000").replace('transfer = "20 GB/s"\n', "")
    with pytest.raises(
        ProfileError, match=r"x.toml:5: gpu.kv_bytes_per_token: .* unless KV goes over a link"
    ):
        parse_profile(text.encode(), "x.toml")
