"""How the numbers of a profile are known, where they come from, and in what range they were measured."""

import datetime
from dataclasses import dataclass
from enum import StrEnum

Range = tuple[float, float]  # least and most


class Knowledge(StrEnum):
    """How a part of a profile is known, the surest first.

    Examples
    --------
    >>> Knowledge.weakest(Knowledge.STATED, Knowledge.ASSUMED, Knowledge.MEASURED)
    <Knowledge.ASSUMED: 'assumed'>
    """

    MEASURED = "measured"
    STATED = "stated"  # by whoever wrote the profile
    ESTIMATED = "estimated"  # from data sheets, or by a formula
    ASSUMED = "assumed"  # of something else, for want of better

    @classmethod
    def weakest(cls, *several: "Knowledge") -> "Knowledge":
        """What holds for all of them."""
        return max(several, key=list(cls).index)


@dataclass(frozen=True, slots=True)
class Origin:
    """How a part of a profile is known, where it comes from in a few words, and when it was recorded.

    Of a part with several origins the weakest counts, and `source` says which.
    """

    basis: Knowledge = Knowledge.STATED
    source: str = ""
    date: datetime.date | None = None


@dataclass(frozen=True, slots=True)
class Provenance:
    """Origins of the replica, of its timing, and of the traffic: classes and rates."""

    gpu: Origin = Origin()
    timing: Origin = Origin()
    workload: Origin = Origin()


@dataclass(frozen=True, slots=True)
class MeasuredRange:
    """The iterations that a timing was measured on, least and most of each amount; None where nobody says.

    Attributes
    ----------
    kv_tokens, prefill_tokens, sequences
        In an iteration.
    band
        Iterations took so many times as long as the timing says, from the least to the most.

    Examples
    --------
    >>> MeasuredRange(kv_tokens=(0, 900_000), band=(0.9, 1.3)).sequences is None
    True
    """

    kv_tokens: Range | None = None
    prefill_tokens: Range | None = None
    sequences: Range | None = None
    band: Range | None = None
