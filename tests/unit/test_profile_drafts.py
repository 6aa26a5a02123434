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
