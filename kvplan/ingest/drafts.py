"""How often an engine says that drafts were accepted: in words, and as ``[speculative]`` of a profile."""

from collections.abc import Sequence
from itertools import accumulate
from typing import Any, NamedTuple

from kvplan.ingest.profile_text import Part, printable, table_text
from kvplan.model import Knowledge, Origin
from kvplan.profile.reading import Profile
from kvplan.units import format_percent


class ObservedDrafts(NamedTuple):
    """Of the iterations with drafts the share that accepted each position, by an engine's own count; and where."""

    accepted: tuple[float, ...]
    stated: str


def observed(accepted: Sequence[float], stated: str) -> ObservedDrafts:
    """Shares as a profile takes them: four digits, and never increasing where counts were rounded.

    >>> observed([0.75, 0.6100001, 0.6100002], "").accepted
    (0.75, 0.61, 0.61)
    """
    return ObservedDrafts(tuple(accumulate((round(min(max(a, 0.0), 1.0), 4) for a in accepted), min)), stated)


def drafts_text(found: ObservedDrafts) -> str:
    """What was accepted.

    >>> drafts_text(ObservedDrafts((0.75, 0.61), "by two counters"))
    'of 2 drafts in an iteration 75%, 61% were accepted, by position (by two counters)'
    """
    shares = ", ".join(format_percent(share) for share in found.accepted)
    return f"of {len(found.accepted)} drafts in an iteration {shares} were accepted, by position ({found.stated})"


def drafts_part(found: ObservedDrafts, base: Profile | None, source: str) -> Part | None:
    """The table [speculative] of `base` with as many drafts, accepted so often; None where it has none.

    What drafts cost no engine states: without a base that says it, there is no table to write.
    """
    old: dict[str, Any] | None = None if base is None else base.tables.get("speculative")
    if base is None or old is None:
        return None
    values = {"tokens": len(found.accepted), "accepted": list(found.accepted)}
    kept = [key for key in old if key not in values]
    about = (
        f"tokens, accepted: stated in {source}; {drafts_text(found)}.",
        f"Kept from {printable(base.source)}: {', '.join(kept)}.",
    )
    return Part(
        "speculative", about, table_text("speculative", old | values), Origin(Knowledge.MEASURED, source)
    )
