"""`[gpu] kv_blocks` and `[[gpu.kv]]`: what they mean, and the one line about what is wrong with them."""

import pytest

from kvplan.errors import ProfileError
from kvplan.model.kv_layout import Attention, Layers
from kvplan.profile.reading import parse_profile

PROFILE = """schema = 1
name = "layers"
[gpu]
kv_blocks = 500
block_tokens = 16
[[gpu.kv]]
kind = "window"
layers = 50
bytes = 8192
window = 1024
[[gpu.kv]]
kind = "full"
layers = 10
bytes = 8192
[timing]
d0 = "10 ms"
[[classes]]
name = "chat"
input = 100
decode = 50
rate = 1
"""
STATE = 'kind = "state"\nlayers = 30\nbytes = 3_207_168\n'


def changed(old: str, new: str) -> str:
    assert old in PROFILE
    return PROFILE.replace(old, new)


def test_pool_tokens_are_the_memory() -> None:
    replica = parse_profile(PROFILE.encode(), "x.toml").model.replica
    assert (replica.memory_tokens, replica.block_tokens) == (8000, 16)
    assert replica.layout is not None
    assert replica.layout.layers == (
        Layers(Attention.WINDOW, 50, 8192, 1024),
        Layers(Attention.FULL, 10, 8192),
    )


def test_layers_that_keep_all_are_one_kind() -> None:
    one = changed(
        'kind = "window"\nlayers = 50\nbytes = 8192\nwindow = 1024\n',
        'kind = "full"\nlayers = 5\nbytes = 8192\n',
    )
    assert parse_profile(one.encode(), "x.toml").model.replica.layout is None


@pytest.mark.parametrize(
    ("caching", "states"), [("", 1), ("prefix_caching = true\n", 2), ("prefix_caching = false\n", 1)]
)
def test_a_prefix_cache_that_is_asked_for_keeps_a_second_state(caching: str, states: int) -> None:
    text = changed("block_tokens = 16\n", "block_tokens = 400\n" + caching)
    text = text.replace('kind = "window"\nlayers = 50\nbytes = 8192\nwindow = 1024\n', STATE)
    layout = parse_profile(text.encode(), "x.toml").model.replica.layout
    assert layout is not None
    assert layout.state_blocks == states


@pytest.mark.parametrize(
    ("old", "new", "line", "message"),
    [
        ("window = 1024\n", "", 6, "gpu.kv[0]: needs window"),
        (
            'kind = "full"\n',
            'kind = "full"\nwindow = 9\n',
            13,
            'gpu.kv[1].window: goes with kind = "window" or "chunk"',
        ),
        (
            '"window"\n',
            '"sliding"\n',
            7,
            "gpu.kv[0].kind: must be 'full', 'window', 'chunk' or 'state', not 'sliding'",
        ),
        ("kv_blocks = 500\n", "", 3, "gpu: needs kv_blocks"),
        (
            "kv_blocks = 500\n",
            "memory_tokens = 8000\n",
            4,
            "gpu.memory_tokens: not allowed beside [[gpu.kv]]",
        ),
        ("kv_blocks = 500\n", "kv_blocks = 0\n", 4, "gpu.kv_blocks: must be at least 1, not 0"),
        (
            'kind = "window"\nlayers = 50\nbytes = 8192\nwindow = 1024\n',
            STATE,
            5,
            "gpu.block_tokens: must be at least 400",
        ),
        ("bytes = 8192\nwindow", "bytes = 5000\nwindow", 5, "gpu.block_tokens: 5000 bytes; must divide"),
        (
            "rate = 1\n",
            "rate = 1\nshared = 50\n",
            22,
            "classes[0].shared: not modelled beside layers of several kinds",
        ),
        (
            "kv_blocks = 500\n",
            "kv_blocks = 59\n",
            17,
            "does not fit: its longest request holds 960 KV tokens",
        ),
    ],
)
def test_what_is_wrong_is_said_in_a_line(old: str, new: str, line: int, message: str) -> None:
    with pytest.raises(ProfileError) as error:
        parse_profile(changed(old, new).encode(), "x.toml")
    assert str(error.value).startswith(f"x.toml:{line}: ")
    assert message in str(error.value)


def test_blocks_without_layers_are_refused() -> None:
    text = PROFILE[: PROFILE.index("[[gpu.kv]]")] + PROFILE[PROFILE.index("[timing]") :]
    with pytest.raises(ProfileError, match=r"x.toml:4: gpu.kv_blocks: needs \[\[gpu.kv\]\]"):
        parse_profile(text.encode(), "x.toml")
