"""What an engine says its prefix cache found, in words, and beside what a plan expects."""

from typing import NamedTuple

from kvplan.units import format_percent

_AS_EXPECTED = 0.05  # of the prompt tokens


class ObservedHits(NamedTuple):
    """The share of the prompt tokens that a prefix cache found, by an engine's own count; and where it says so."""

    ratio: float
    stated: str


def hits_text(observed: ObservedHits) -> str:
    """What was found.

    Examples
    --------
    >>> hits_text(ObservedHits(0.382, "in line 7, of the last requests"))
    'the prefix cache found 38.2% of the prompt tokens (in line 7, of the last requests)'
    """
    return f"the prefix cache found {format_percent(observed.ratio)} of the prompt tokens ({observed.stated})"


def compared_with_plan(observed: ObservedHits, expected_ratio: float) -> str:
    """What was found, beside the hit ratio that a plan expects.

    Examples
    --------
    >>> compared_with_plan(ObservedHits(0.51, "by two counters"), 0.382)
    'the prefix cache found 51% of the prompt tokens, the plan expects 38.2%: requests share more than it says'
    >>> compared_with_plan(ObservedHits(0.36, "by two counters"), 0.382)
    'the prefix cache found 36% of the prompt tokens, the plan expects 38.2%: as expected'
    """
    off = observed.ratio - expected_ratio
    if abs(off) <= _AS_EXPECTED:
        verdict = "as expected"
    elif off > 0:
        verdict = "requests share more than it says"
    else:
        verdict = (
            "requests share less than it says, the replica has just been started, or its cache has collapsed"
        )
    return (
        f"the prefix cache found {format_percent(observed.ratio)} of the prompt tokens, the plan expects "
        f"{format_percent(expected_ratio)}: {verdict}"
    )
