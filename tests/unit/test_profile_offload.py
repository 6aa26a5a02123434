"""`[gpu.offload]`: what it means, and the one line about what is wrong with it."""

import pytest
from every import every

from kvplan.errors import ProfileError
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
LAYERS = 'kv_blocks = 500\nblock_tokens = 16\nkv = [{ kind = "full", layers = 32, bytes = 4096 }]\n'
GIVEN = "memory_tokens = 8000\nkv_bytes_per_token = 131_072\nblock_tokens = 16\n"


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


def test_layers_of_one_kind_say_the_bytes_of_a_token() -> None:
    """32 layers of 4,096 bytes on each of two GPUs: 256 KiB a token."""
    found = tier(changed(GIVEN, f"gpus = 2\n{LAYERS}"))
    assert found == Offload(8192, pytest.approx(262_144 / 25e9), memory_bytes=2**31)  # type: ignore[arg-type]


def test_bytes_of_memory_are_enough() -> None:
    text = changed("memory_tokens = 8000\n", 'memory = "1 GiB"\n')
    assert tier(text) == tier(PROFILE)


@every(
    ("old", "new", "line", "message"),
    [
        (
            "block_tokens = 16\n",
            "prefix_caching = false\n",
            6,
            "gpu.prefix_caching: must be true beside [gpu.offload]",
        ),
        (
            "block_tokens = 16\n",
            'prefill = "disaggregated"\n',
            6,
            'gpu.prefill: must be "fused" or "inline" beside [gpu.offload], not "disaggregated"',
        ),
        (
            GIVEN,
            LAYERS.replace("}]", '}, { kind = "state", layers = 1, bytes = 64 }]'),
            7,
            "beside layers of several",
        ),
        (
            GIVEN,
            LAYERS.replace("}]", '}, { kind = "full", layers = 1, bytes = 2048 }]'),
            7,
            "beside layers of several",
        ),
        ("kv_bytes_per_token = 131_072\n", "", 3, "gpu: needs kv_bytes_per_token beside memory_tokens"),
        ('memory = "2 GiB"\n', "", 7, "gpu.offload: needs memory, or memory_tokens"),
        (
            'memory = "2 GiB"\n',
            'memory = "2 GiB"\nmemory_tokens = 9\n',
            9,
            "memory_tokens: not allowed beside memory",
        ),
        ('"2 GiB"', '"1 MiB"', 8, "gpu.offload.memory: must hold 16 to 10,000,000,000 tokens, not 8"),
        ('"2 GiB"', "5", 8, 'gpu.offload.memory: must be a string such as "5.05 GiB", not 5'),
        ('bandwidth = "25 GB/s"\n', "", 7, "gpu.offload.bandwidth: required"),
        ('"25 GB/s"', '"25 GB"', 9, "'25 GB' is not a bandwidth; write a number and one of B/s, kB/s"),
        ('"25 GB/s"', "25", 9, 'must be a string such as "20 GB/s", not 25'),
        (
            '"25 GB/s"',
            '"0 GB/s"',
            9,
            "gpu.offload.bandwidth: must be a bandwidth from 1,000 B/s to 1e+15 B/s, not '0 GB/s'",
        ),
        ('"25 GB/s"', '"1e999 GB/s"', 9, "gpu.offload.bandwidth"),
        ("bandwidth", "bandwith", 9, "gpu.offload.bandwith: unknown key; did you mean bandwidth?"),
        (
            "[timing]",
            "[speculative]\ntokens = 1\naccepted = [0.5]\ndraft_time = 0\nverify_time = 0\n[timing]",
            7,
            "gpu.offload: not modelled beside [speculative]",
        ),
        (
            '[gpu.offload]\nmemory = "2 GiB"\nbandwidth = "25 GB/s"\n',
            "",
            5,
            "kv_bytes_per_token: not allowed beside",
        ),
    ],
)
def test_what_is_wrong_is_said_in_a_line(old: str, new: str, line: int, message: str) -> None:
    with pytest.raises(ProfileError) as error:
        parse_profile(changed(old, new).encode(), "x.toml")
    assert str(error.value).startswith(f"x.toml:{line}: ")
    assert message in str(error.value)
