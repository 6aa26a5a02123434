"""A loop over cases fails where one of them does, and names all that do."""

import pytest
from every import check_every


def refuse_even(number: int) -> None:
    assert number % 2, f"{number} is even"


def test_all_failures_are_reported_at_once() -> None:
    with pytest.raises(
        AssertionError, match=r"2 of 3 cases fail\n2: AssertionError: 2 is even(.|\n)*\nfour: "
    ) as failure:
        check_every({"1": 1, "2": 2, "four": 4}, refuse_even)
    assert "1: " not in str(failure.value).splitlines()[0]
    check_every([1, 3], refuse_even)


def test_no_cases_prove_nothing() -> None:
    with pytest.raises(AssertionError, match="no cases"):
        check_every([], refuse_even)
