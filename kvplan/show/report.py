"""The report of `kvplan analyze` for people: headline, key figures and actions, then a section for each block.

Built once from a `Report` by pure functions. Every figure carries its basis (`Basis`).
"""

from collections.abc import Collection, Sequence

from kvplan.errors import UsageError
from kvplan.profile.reading import Profile
from kvplan.report import first_screen
from kvplan.report.assembly import Report, to_document
from kvplan.report.words import Basis
from kvplan.show.chart import Chart
from kvplan.show.page import Block, Document, Section, Table, origin, table
from kvplan.show.sections import BASIS, FIGURES, SECTIONS, figure_row
from kvplan.show.view import View
from kvplan.units import ABSENT


def build(report: Report, sections: Collection[str] | None = None) -> Document:
    """Lay a report out for people; below the first screen only the sections asked for, if any are.

    Raises
    ------
    UsageError
        A key that no section has.

    Examples
    --------
    >>> from kvplan.model import Prefill, Replica, RequestClass, ServingModel, Timing
    >>> from kvplan.report.assembly import analyze
    >>> one = RequestClass("tools", 2, (3,), (1.0,), 0.9)
    >>> model = ServingModel((one,), Timing(1.0), Replica(12, prefill=Prefill.DISAGGREGATED))
    >>> document = build(analyze(model, name="small", sha256="5e6f"))
    >>> document.title, str(document.status), [section.key for section in document.sections][:3]
    ('small', 'needs_cap', ['load', 'equilibrium', 'latency'])
    >>> document.summary.rows[0]
    ('Headroom', '+11.1%', 'theorem')
    """
    asked = {"kv_layout": report.kv_layout, "speculative": report.speculative, "fleet": report.fleet}
    known = [key for key in SECTIONS if asked.get(key, key) is not None]
    for key in sections or ():
        if key not in known:
            raise UsageError(f"--section {key!r} does not exist; the sections are {', '.join(known)}")
    return Document(
        title=report.profile.name,
        status=report.verdict.status,
        headline=report.verdict.summary,
        summary=table(FIGURES, (figure_row(*row) for row in first_screen.rows(report))),
        actions=report.actions,
        sections=tuple(_section(report, key) for key in known if not sections or key in sections),
        origin=origin(report.profile.sha256),
        caveat=report.caveat and f"Inputs: {report.caveat}.",
    )


def view(
    report: Report, profile: Profile, sections: Collection[str] | None = None, *, more: str = ""
) -> View:
    """Show a report of a profile; `more` ends the first screen where it is shown alone."""

    def screen(full: bool) -> Document:
        document = build(report, sections)
        if full or sections:
            return document
        return document._replace(sections=(), origin=document.origin + more)

    def draw() -> Sequence[Chart]:
        from kvplan.show.charts import of_report

        return of_report(report, profile.model, profile.plan)

    return View(lambda: to_document(report), screen, draw)


def _section(report: Report, key: str) -> Section:
    """A section, with its basis said once if its tables all give the same."""
    title, blocks_of = SECTIONS[key]
    basis = report.sources[key].kind if key in report.sources else Basis.SIMULATED
    blocks = tuple(blocks_of(report, basis))
    tables = [b for b in blocks if isinstance(b, Table) and BASIS in b.columns]
    found = {row[t.columns.index(BASIS)] for t in tables for row in t.rows} - {ABSENT}
    if len(found) > 1:
        return Section(key, title, blocks)
    kept = tuple(_without_basis(b) if b in tables else b for b in blocks)
    return Section(key, title, kept, found.pop() if found else None)


def _without_basis(block: Block) -> Block:
    assert isinstance(block, Table)
    at = block.columns.index(BASIS)
    rows = tuple(row[:at] + row[at + 1 :] for row in block.rows)
    return block._replace(columns=block.columns[:at] + block.columns[at + 1 :], rows=rows)
