"""Whatever the bytes, a profile is loaded or refused in one line; nothing else is raised."""

from fractions import Fraction

from hypothesis import given
from hypothesis import strategies as st

from kvplan.model import as_written
from kvplan.profile.positions import line_at, offsets
from kvplan.profile.reading import parse_profile

GOOD = b"""\
schema = 1
name = "a profile"
[gpu]
memory_tokens = 40_000
block_tokens = 16
prefill = "fused"
[timing]
d0 = "14.5 ms"
d1 = 2.5e-7
[workload]
rate = 10
[[classes]]
name = "chat"
input = 1155
decode = 211
share = 0.4
[[classes]]
name = "code"
input = 20
decode = { 50 = 0.2, 200 = 0.8 }
share = 0.6
[plan]
segments = "auto"
[gate]
require = [
  "load.headroom >= 0.2",
]
"""


@given(st.integers(1, 999), st.integers(1, 10_000).map(lambda n: n / 100))
def test_rates_from_shares_are_the_decimals_written(thousandths: int, rate: float) -> None:
    shares = (f"0.{thousandths:03}", f"0.{1000 - thousandths:03}")
    text = GOOD.decode().replace("rate = 10", f"rate = {rate}")
    first, _, second = text.partition("share = 0.4")
    text = first + f"share = {shares[0]}" + second.replace("share = 0.6", f"share = {shares[1]}")
    classes = parse_profile(text.encode(), "profile.toml").model.classes
    assert [as_written(c.rate_rps) for c in classes] == [Fraction(s) * Fraction(str(rate)) for s in shares]


KEYS = st.text("ab-_", min_size=1, max_size=3) | st.sampled_from(['"a b"', "'#'", '"]"', '"="', '"\\""'])
NOISE = ["", "# x = [", '  # """', " "]
VALUE_LINES = [
    ["1"],
    ['"a # b"'],
    ["[", "  1,", "]"],
    ['"""', "x = 1", '[t]"""'],
    ["{ p = [1, 2] }"],
    ["'''", "'''"],
]


@given(
    st.lists(
        st.tuples(KEYS, st.sampled_from(VALUE_LINES), st.sampled_from(NOISE)),
        unique_by=lambda statement: statement[0].strip("\"'"),
    )
)
def test_every_key_is_found_on_the_line_it_was_put(statements: list[tuple[str, list[str], str]]) -> None:
    lines: list[str] = []
    expected = []
    for key, value, noise in statements:
        lines += [noise, "[[tables]]", f"{key} = {value[0]}", *value[1:]]
        expected.append(len(lines) - len(value) + 1)
    text = "\n".join(lines)
    names = ['"' if key == '"\\""' else key.strip("\"'") for key, _, _ in statements]
    found = offsets(text, [("tables", i, name) for i, name in enumerate(names)])
    assert [line_at(text, offset) for offset in found] == expected
