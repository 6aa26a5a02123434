"""What files gave to a profile, for people."""

from kvplan.ingest.gathering import Gathered
from kvplan.layout.elements import Block, Bullets, Section, table, words
from kvplan.profile.reading import supply

_MOST_NOTES = 8


def build(found: Gathered) -> Section:
    """A row for each table that a file gave, then notes, and what is missing."""
    columns = (words("From"), words("Kind"), words("Table"), words("Figures"))
    rows = ((one.source, one.kind, one.table and f"[{one.table}]", one.figures) for one in found.given)
    left = len(found.notes) - _MOST_NOTES
    more = (f"{left} more notes stand in the comments of the profile",) if left > 0 else ()
    said = (*found.notes[:_MOST_NOTES], *more, *map(supply, found.profile.missing))
    blocks: list[Block] = [table(columns, rows)]
    if said:
        blocks.append(Bullets(said))
    return Section("import", found.profile.name, tuple(blocks))
