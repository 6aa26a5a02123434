"""What files gave to a profile, for people."""

from kvplan.ingest.gathering import Gathered
from kvplan.profile.reading import supply
from kvplan.show.elements import Block, Bullets, Section, table, words

_MOST_NOTES = 5


def build(found: Gathered) -> Section:
    """A row for each table that a file gave, then what is missing, and notes."""
    columns = (words("From"), words("Kind"), words("Table"), words("Figures"))
    rows = ((one.source, one.kind, one.table and f"[{one.table}]", one.figures) for one in found.given)
    said = (*map(supply, found.profile.missing), *found.notes)
    if (left := len(said) - _MOST_NOTES) > 0:
        said = (*said[:_MOST_NOTES], f"{left} more notes stand in the comments of the profile")
    blocks: list[Block] = [table(columns, rows)]
    if said:
        blocks.append(Bullets(said))
    return Section("import", found.profile.name, tuple(blocks))
