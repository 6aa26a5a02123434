"""`stable` is stable: what the campaign of session profiles says of a few of them."""

import pytest
from session_campaign import judge
from tiers import at_night

from kvplan.report.words import Status


@pytest.mark.parametrize("number", [7, *at_night(*range(100, 140))])
def test_what_is_called_stable_drains_after_a_burst_of_sessions(number: int) -> None:
    found = judge(number)
    assert found.drained or found.status is not Status.STABLE


def test_a_collapse_that_is_foretold_happens_and_is_mended_as_the_report_says() -> None:
    found = judge(6)
    assert (found.status, found.drained, found.back) == (Status.NEEDS_CAP, False, True)
