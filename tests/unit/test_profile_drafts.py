"""`[speculative]`: what it means, and the one line about what is wrong with it."""

import pytest
from every import every

from kvplan.errors import ProfileError
from kvplan.model.drafts import Drafts
from kvplan.profile.reading import parse_profile

PROFILE = """schema = 1
name = "drafts"
[gpu]
memory_tokens = 8000
[timing]
d0 = "10 ms"
d3 = "10 us"
[speculative]
tokens = 2
accepted = [0.7, 0.5, 0.3]
draft_time = "1 ms"
verify_time = "20 us"
overhead = "0.5 ms"
[[classes]]
name = "chat"
input = 100
decode = 50
rate = 1
"""


def changed(old: str, new: str) -> str:
    assert old in PROFILE
    return PROFILE.replace(old, new)


def test_drafts_cost_time() -> None:
    """10 ms + 0.5 ms + 2·1 ms an iteration, 10 µs + 2·20 µs a sequence."""
    model = parse_profile(PROFILE.encode(), "x.toml").model
    assert model.drafts == Drafts(2, (0.7, 0.5, 0.3), 1e-3, 20e-6, 0.5e-3)
    assert (model.timing.d0, model.timing.d3) == (pytest.approx(12.5e-3), pytest.approx(50e-6))


WINDOW = 'kv_blocks = {}\n[[gpu.kv]]\nkind = "window"\nlayers = 1\nbytes = 64\nwindow = 120\n'


@every(
    ("memory", "decode", "needed"),
    [
        ("memory_tokens = {}\n", 50, 154),  # 150 tokens, two drafts and as many slots ahead
        ("memory_tokens = {}\n", 1, 101),  # the iteration of the prompt drafts nothing
        (WINDOW, 50, 124),  # a window of 120, and four slots beyond what is computed
        (WINDOW, 1, 101),
    ],
)
def test_the_longest_request_just_fits(memory: str, decode: int, needed: int) -> None:
    text = changed("memory_tokens = 8000\n", memory).replace("decode = 50", f"decode = {decode}")
    parse_profile(text.format(needed).encode(), "x.toml")
    with pytest.raises(ProfileError, match=f"its longest request holds {needed} KV tokens"):
        parse_profile(text.format(needed - 1).encode(), "x.toml")


@every(
    ("old", "new", "line", "message"),
    [
        ("[0.7, 0.5, 0.3]", "[0.5, 0.7]", 10, "speculative.accepted[1]: must be at most 0.5"),
        ("[0.7, 0.5, 0.3]", "[0.5]", 10, "must say how often each of 2 drafts is accepted, not of 1"),
        ("[0.7, 0.5, 0.3]", "[1.5, 0.1]", 10, "must be at most 1, not 1.5"),
        ("tokens = 2\n", "tokens = 0\n", 9, "speculative.tokens: must be at least 1, not 0"),
        ('verify_time = "20 us"\n', "", 8, "speculative.verify_time: required"),
        ("memory_tokens = 8000\n", 'memory_tokens = 8000\nprefill = "inline"\n', 5, 'must be "fused" beside'),
        (
            'd3 = "10 us"\n',
            'd5 = "1 us"\nknee_tokens = 99\n',
            7,
            "timing.d5: must be 0 beside [speculative], not 1e-06; verify_time",
        ),
        (
            'draft_time = "1 ms"\n',
            'draft_time = "2 h"\n',
            11,
            "speculative.draft_time: must be 0, or a time from 1e-09 s to 3,600 s, not '2 h'",
        ),
        ("rate = 1\n", "rate = 1\nshared = 50\n", 19, "classes[0].shared: not modelled beside [speculative]"),
        ("memory_tokens = 8000\n", "memory_tokens = 153\n", 14, "its longest request holds 154 KV tokens"),
    ],
)
def test_what_is_wrong_is_said_in_a_line(old: str, new: str, line: int, message: str) -> None:
    with pytest.raises(ProfileError) as error:
        parse_profile(changed(old, new).encode(), "x.toml")
    assert str(error.value).startswith(f"x.toml:{line}: ")
    assert message in str(error.value)
