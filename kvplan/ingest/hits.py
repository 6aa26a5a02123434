"""What an engine says its prefix cache found, in words."""

from typing import NamedTuple

from kvplan.units import format_percent


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
