"""What is translated does what Python does; what cannot be is refused."""

import math
from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

import numpy as np
import pytest
from every import every
from hypothesis import given
from hypothesis import strategies as st

from kvplan.compiling.native import Loop, _object_code, object_code
from kvplan.compiling.translate import translated
from kvplan.model import FloatArray, IntArray


class Small(NamedTuple):
    whole: IntArray
    real: FloatArray
    table: IntArray


def known(s: Small) -> bool:
    """A function whose value the translator is told."""
    raise NotImplementedError


def half(s: Small, place: int) -> float:
    """A kernel that another one calls."""
    return s.whole[place] / 2


def numbers(s: Small, a: int, b: int) -> int:
    """Every operation on numbers; what they give is left in the state."""
    w, r = s.whole, s.real
    w[0], w[1], w[2], w[3] = a // b, a % b, min(a, b, 3), max(a, b)
    w[4] += (a < b <= 5) + (a != b)
    w[-1] = -a if not a < 0 else int(half(s, 0))
    w[5] -= int(a > 0 and b > 0) - int(a > 7 or b < -7 or a == b)
    r[0], r[1] = r[1], r[0]
    r[2] = a / b + r[0] * 3 - a
    r[3] = math.floor(r[2]) + math.ceil(r[0]) + float(a == b)
    r[4] = math.nan if r[2] < 0 else math.sqrt(r[2])
    r[5] = 1.0 if math.isnan(r[4]) or math.isnan(r[1]) or r[2] != r[2] else math.log(1 + r[2])
    r[6] = max(r[0], r[1]) + min(r[0], 2) ** a
    a = w[4] = counted(s)
    return a + len_of(s) if known(s) else 7


def counted(s: Small) -> int:
    """A kernel that changes something each time it is called."""
    s.whole[6] += 1
    return int(s.whole[6])


def len_of(s: Small) -> int:
    """A loop, left and gone on with in the middle."""
    found = last = 0
    for row in range(s.table.shape[0]):
        for column in range(1, s.table.shape[1]):
            if s.table[row, column] < 0:
                continue
            if s.table[row, column] > 90:
                break
            found += s.table[row, column]
            s.table[row, -1] *= 2
        last = row
    while True:
        last -= 1
        if last < -3:
            return int(found + last)


def state() -> Small:
    table = np.arange(12).reshape(3, 4) * 13 - 30
    return Small(np.arange(8), np.array([0.5, -2.25, 0, 0, 0, 0, 0]), table)


@cache
def compiled(is_known: bool) -> Loop:
    return Loop(_object_code(translated(numbers, Small, {known: is_known})), 2)


NUMBERS = st.integers(-20, 20)


@given(NUMBERS, NUMBERS.filter(bool), st.booleans())
def test_compiled_kernels_do_what_python_does(a: int, b: int, answer: bool) -> None:
    plain, changed = state(), state()
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(globals(), "known", lambda s: answer)
        expected = numbers(plain, a, b)
    assert compiled(answer)(changed, a, b) == expected
    for one, other in zip(plain, changed, strict=True):
        np.testing.assert_array_equal(one, other)


def adds_text(s: Small, a: int, b: int) -> int:
    return len("text")


def changes_its_kind(s: Small, a: int, b: int) -> int:
    a = a / 2  # type: ignore[assignment]
    return a


def makes_a_list(s: Small, a: int, b: int) -> int:
    return [a, b][0]


def returns_a_float(s: Small, a: int, b: int) -> int:
    return a * 0.5  # type: ignore[return-value]


@every("kernel", [adds_text, changes_its_kind, makes_a_list, returns_a_float])
def test_what_cannot_be_translated_is_refused(kernel: Callable[..., int]) -> None:
    with pytest.raises(TypeError, match=kernel.__name__):
        translated(kernel, Small, {})


def test_the_compiler_is_asked_to_stop_and_stops() -> None:
    text = translated(numbers, Small, {known: True})
    assert object_code(text, lambda: False) is None
    whole: Any = object_code(text)
    assert whole == _object_code(text), "in a process of its own, and in this one"
