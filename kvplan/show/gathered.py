"""Sources of an imported profile: a row for each table, and the JSON document."""

from kvplan.ingest.facts import Part
from kvplan.ingest.gathering import Gathered
from kvplan.profile.reading import supply
from kvplan.show import page
from kvplan.show.view import Json, View

_MOST_NOTES = 5
_COLUMNS: page.Columns[Part] = {
    page.words("From"): lambda part: part.source,
    page.words("Kind"): lambda part: part.kind,
    page.words("Table"): lambda part: part.table and f"[{part.table}]",
    page.words("Figures"): lambda part: part.row["figures"],
}


def view(gathered: Gathered) -> View:
    """Show the sources."""
    return View(
        lambda: document(gathered),
        lambda full: page.document([build(gathered)]),
        rows=lambda written: written["given"],
    )


def document(gathered: Gathered) -> Json:
    """Return the JSON."""
    return {
        "profile": {"name": gathered.profile.name, "sha256": gathered.profile.sha256},
        "given": [part.row for part in gathered.given],
        "missing": list(gathered.profile.missing),
        "notes": list(gathered.notes),
    }


def build(gathered: Gathered) -> page.Section:
    """Build a row for each table that a file gave, then what is missing, and notes."""
    notes = (*map(supply, gathered.profile.missing), *gathered.notes)
    if (left := len(notes) - _MOST_NOTES) > 0:
        notes = (*notes[:_MOST_NOTES], f"{left} more notes stand in the comments of the profile")
    return page.section("import", gathered.profile.name, page.tabulate(_COLUMNS, gathered.given), notes=notes)
