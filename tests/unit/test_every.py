"""A loop over cases fails where one of them does, and names all that do."""

import pytest
from every import check_every, every


def refuse_even(number: int) -> None:
    assert number % 2, f"{number} is even"


def test_all_failures_are_reported_at_once() -> None:
    says = r"2 of 3 cases fail\n2: AssertionError: 2 is even(.|\n)*\nfour: AssertionError: 4 is even"
    with pytest.raises(AssertionError, match=says):
        check_every({"1": 1, "2": 2, "four": 4}, refuse_even)
    check_every([1, 3], refuse_even)


def test_no_cases_prove_nothing() -> None:
    with pytest.raises(AssertionError, match="no cases"):
        check_every([], refuse_even)


def test_a_looped_test_fails_with_its_cases() -> None:
    @every("number", [1, 2])
    def looped(number: int) -> None:
        refuse_even(number)

    with pytest.raises(AssertionError, match=r"1 of 2 cases fail\n\(2,\): AssertionError: 2 is even"):
        looped()
