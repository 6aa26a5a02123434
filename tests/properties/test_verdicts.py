"""Up to which rate a replica recovers, against the oracle: a sample of the validation campaign."""

import pytest
from oracle import System, truth
from validation.profiles import random_cases
from validation.promises import recovers_up_to_rps, sustainable_rps

WITHIN = (-0.03, 0.01)  # of the truth
# evictions in all of them; 174 has a start of its own that serves least
NUMBERS = (1, 3, 5, 6, 14, 16, 18, 21, 24, 49, 58, 70, 71, 73, 143, 151, 174, 188, 213, 244)


@pytest.mark.parametrize("number", NUMBERS)
def test_a_replica_recovers_up_to_the_rate_that_is_said(number: int) -> None:
    (case,) = random_cases(number, 1)
    known = truth(System.of(case.model))
    said, sustainable = recovers_up_to_rps(case.model), sustainable_rps(case.model)
    assert known.settled
    assert said <= known.rate_rps + 3 * known.se
    low, high = WITHIN
    assert low <= said / min(known.rate_rps, sustainable) - 1 <= high
