"""How the numbers of a profile are known, where they come from, and in what range they were measured."""

import datetime
from dataclasses import dataclass
from enum import StrEnum

Range = tuple[float, float]  # least and most


class Knowledge(StrEnum):
    """How a part of a profile is known, the surest first."""

    MEASURED = "measured"
    STATED = "stated"  # by whoever wrote the profile
    ESTIMATED = "estimated"  # from data sheets, or by a formula
    ASSUMED = "assumed"  # of something else, for want of better

    @classmethod
    def weakest(cls, *several: "Knowledge") -> "Knowledge":
        """Return the least sure of them."""
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
    """Iterations that a timing was measured on, least and most of each amount; None where nobody says."""

    kv_tokens: Range | None = None
    prefill_tokens: Range | None = None
    sequences: Range | None = None
    band: Range | None = None  # iterations took so many times as long as the timing says, least and most

    def of_ranks(self, ranks: int) -> "MeasuredRange":
        """Turn the iterations of one of several ranks that step together into those of all."""
        kv, prefill, sequences = (
            ends and (ranks * ends[0], ranks * ends[1])
            for ends in (self.kv_tokens, self.prefill_tokens, self.sequences)
        )
        return MeasuredRange(kv, prefill, sequences, self.band)
