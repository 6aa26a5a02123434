"""Hits of a prefix cache and accepted drafts as an engine counts them; in words, and as facts."""

from collections.abc import Sequence
from itertools import accumulate
from typing import NamedTuple

from kvplan.ingest.facts import Part, facts
from kvplan.model import Knowledge, Origin
from kvplan.profile.reading import Profile
from kvplan.units import format_percent


def of_prefix_cache(ratio: float, stated: str) -> str:
    """Say what share of the prompt tokens a prefix cache found, and where the engine says so.

    >>> of_prefix_cache(0.382, "in line 7, of the last requests")
    'the prefix cache found 38.2% of the prompt tokens (in line 7, of the last requests)'
    """
    return f"the prefix cache found {format_percent(min(ratio, 1.0))} of the prompt tokens ({stated})"


class ObservedDrafts(NamedTuple):
    """Of the iterations with drafts the share that accepted each position, and where the engine says so.

    >>> drafts = ObservedDrafts.of_shares([0.75, 0.6100001, 0.6100002], "by two counters")
    >>> drafts.accepted
    (0.75, 0.61, 0.61)
    >>> drafts.text
    'of 3 drafts in an iteration 75%, 61%, 61% were accepted, by position (by two counters)'
    """

    accepted: tuple[float, ...]
    stated: str

    @classmethod
    def of_shares(cls, shares: Sequence[float], stated: str) -> "ObservedDrafts":
        """Round to the digits of a profile, never increasing where counts were rounded."""
        return cls(tuple(accumulate((round(min(max(s, 0.0), 1.0), 4) for s in shares), min)), stated)

    @property
    def text(self) -> str:
        """In words."""
        shares = ", ".join(format_percent(share) for share in self.accepted)
        return f"of {len(self.accepted)} drafts in an iteration {shares} were accepted, by position ({self.stated})"

    def part(self, base: Profile | None, source: str) -> Part | None:
        """Set drafts and acceptance in [speculative] of `base`; None where it has none: no engine states the cost."""
        if base is None or "speculative" not in base.tables:
            return None
        values = {"tokens": len(self.accepted), "accepted": list(self.accepted)}
        said = f"stated in {source}; {self.text}"
        told = facts("speculative", values, Origin(Knowledge.MEASURED, source), said)
        return Part("speculative", told, source, "counters", "tokens, accepted")
