"""`[gpu] kv_blocks` and `[[gpu.kv]]`: what they mean, and the one line about what is wrong with them."""

import pytest
from every import every

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
    assert replica.layout.layers == (
        Layers(Attention.WINDOW, 50, 8192, 1024),
        Layers(Attention.FULL, 10, 8192),
    )


def test_layers_alike_are_counted_together() -> None:
    """In as many tables as anybody likes: they are in groups of one size all the same."""
    full = '[[gpu.kv]]\nkind = "full"\nlayers = 4\nbytes = 8192\n'
    apart = changed("layers = 10\n", "layers = 6\n").replace("[timing]", full + "[timing]")
    found = parse_profile(apart.encode(), "x.toml").model.replica
    assert found == parse_profile(PROFILE.encode(), "x.toml").model.replica


@pytest.mark.parametrize(
    ("caching", "states"), [("", 1), ("prefix_caching = true\n", 2), ("prefix_caching = false\n", 1)]
)
def test_a_prefix_cache_that_is_asked_for_keeps_a_second_state(caching: str, states: int) -> None:
    text = changed("block_tokens = 16\n", "block_tokens = 400\n" + caching)
    text = text.replace('kind = "window"\nlayers = 50\nbytes = 8192\nwindow = 1024\n', STATE)
    replica = parse_profile(text.encode(), "x.toml").model.replica
    assert (replica.layout.state_blocks, replica.prefix_caching) == (states, states == 2)


WINDOW = 'kind = "window"\nlayers = 50\nbytes = 8192\nwindow = 1024\n'
KINDS = {
    "window": WINDOW,
    "chunk": WINDOW.replace('"window"', '"chunk"'),
    "state": 'kind = "state"\nlayers = 50\nbytes = 131_072\n\n',
}
SESSIONS = (
    '[[sessions]]\nname = "a"\nrate = 0.1\nfirst = 100\nuser = 30\ndecode = 20\nturns = 2\n'
    'think = { law = "exponential", mean = "10 s" }\n'
)


@every("kind", KINDS)
@every(
    ("more", "line", "key"),
    [
        ("shared = 50\n", 22, "classes[0].shared"),
        ("shared = [{ tokens = 30, weight = 0.6 }]\n", 22, "classes[0].shared"),
        (
            'reuse = { tokens = 0.8, share = 0.9, gap = { law = "fixed", value = "3 s" }, from = "arrival" }\n',
            22,
            "classes[0].reuse",
        ),
        (SESSIONS, 22, "sessions[0]"),
        ("[prefix]\nhit_curve = [[1_000, 0.05], [3_000, 0.1]]\n", 23, "prefix.hit_curve"),
    ],
)
def test_what_requests_share_is_refused_with_the_reason(kind: str, more: str, line: int, key: str) -> None:
    text = changed(WINDOW, KINDS[kind]) + more
    with pytest.raises(ProfileError) as error:
        parse_profile(text.encode(), "x.toml")
    assert str(error.value) == (
        f"x.toml:{line}: {key}: not modelled beside layers of several kinds: of windows, chunks and states a prefix "
        "cache keeps too little"
    )


@every("kind", KINDS)
@every(
    ("memory", "key"),
    [("memory_tokens = 8000", "memory_tokens"), ('memory = "1 GiB"\nkv_bytes_per_token = 9', "memory")],
)
def test_memory_in_tokens_is_refused_beside_any_kind(kind: str, memory: str, key: str) -> None:
    text = changed(WINDOW, KINDS[kind]).replace("kv_blocks = 500", memory)
    with pytest.raises(ProfileError) as error:
        parse_profile(text.encode(), "x.toml")
    assert str(error.value) == f"x.toml:4: gpu.{key}: not allowed beside kv; give kv_blocks"


@pytest.mark.parametrize(
    ("kind", "line", "message"),
    [
        (
            KINDS["chunk"].replace("window = 1024\n", ""),
            6,
            'gpu.kv[0].window: required beside kind = "chunk"',
        ),
        (KINDS["state"] + "window = 9\n", 11, 'gpu.kv[0].window: not allowed beside kind = "state"'),
    ],
)
def test_a_size_goes_with_windows_and_chunks_alone(kind: str, line: int, message: str) -> None:
    with pytest.raises(ProfileError) as error:
        parse_profile(changed(WINDOW, kind).encode(), "x.toml")
    assert str(error.value) == f"x.toml:{line}: {message}"
