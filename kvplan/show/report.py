"""The report of `kvplan analyze` for people: headline, key figures and actions, then a section for each block.

The layout, and the sentences between, is in `kvplan/report/keys.toml`; every figure carries its basis.
"""

import math
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

from kvplan.errors import UsageError
from kvplan.profile.reading import Profile
from kvplan.report.assembly import Report, ledger_of, to_document
from kvplan.report.keys import BLOCKS, RECORDS, SCREENS, Kind
from kvplan.report.ledger import Ledger
from kvplan.report.wording import first_key, sentence
from kvplan.report.words import PAPERS, Basis
from kvplan.show.chart import Chart
from kvplan.show.page import (
    MAX_ROWS,
    Block,
    Bullets,
    Column,
    Document,
    Paragraph,
    Section,
    Table,
    number,
    origin,
    table,
    words,
)
from kvplan.show.view import View
from kvplan.units import ABSENT

_BASIS = Column("Basis")
_FIGURES = (words("Figure"), words("Value"), _BASIS)
_Row = tuple[str, ...]


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
    >>> requests = RequestClass("tools", 2, (3,), (1.0,), 0.9)
    >>> model = ServingModel((requests,), Timing(1.0), Replica(12, prefill=Prefill.DISAGGREGATED))
    >>> document = build(analyze(model, name="small", sha256="5e6f"))
    >>> document.title, str(document.status), [section.key for section in document.sections][:3]
    ('small', 'needs_cap', ['load', 'equilibrium', 'latency'])
    >>> document.summary.rows[0]
    ('Headroom', '-30% with slower iterations, then saturation is within 1.5%', 'simulated')
    """
    ledger = ledger_of(report)
    specs = SCREENS["sections"]
    known = [key for key in specs if ledger.value(key) is not None or "optional" not in specs[key]]
    for key in sections or ():
        if key not in known:
            raise UsageError(f"--section {key!r} does not exist; the sections are {', '.join(known)}")
    return Document(
        title=report.profile.name,
        status=report.verdict.status,
        headline=report.verdict.summary,
        summary=table(_FIGURES, first_screen(ledger)),
        actions=report.actions,
        sections=tuple(_section(ledger, key) for key in known if not sections or key in sections),
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


def first_screen(ledger: Ledger, block: str = "") -> Iterator[_Row]:
    """Yield the rows of the first screen with their basis, or those about a block; none that says nothing."""
    for label, texts in SCREENS["rows"].items():
        if not texts:  # a heading
            if not block:
                yield from _by_class(ledger)
                yield label, "", ""
            continue
        if not first_key(texts).startswith(block):
            continue
        every = [texts] if isinstance(texts, str) else texts
        for text in every:
            if (said := sentence(text, ledger)) is not None:
                yield _row(label, said, ledger.basis(first_key([text, *every])))
                break


def _by_class(ledger: Ledger) -> Iterator[_Row]:
    """Yield what classes were promised, with what runs at the offered rate say, and the room for the last."""
    yield from [("By class", "", "")] if ledger.value("promised") else ()
    for slo in ledger.value("promised") or ():
        value = ledger.value(f"latency.classes[{slo.which}].{slo.figure}")
        limit = f", limit {slo.written(slo.bound)}" if slo.bound < math.inf else ""
        kept = f": {slo.judged(value) or 'not known'}" if limit else ""
        yield slo.key.replace("_s.", " "), f"{slo.written(value)}{limit}{kept}", str(Basis.SIMULATED)
    if room := ledger.value("room"):
        yield "Room", room, str(Basis.COMPUTED)


def _section(ledger: Ledger, key: str) -> Section:
    """Build a section, with its basis said once if its tables all give the same."""
    spec = SCREENS["sections"][key]
    if (only := sentence(spec.get("instead", ()), ledger)) is None and ledger.value(key) is None:
        only = BLOCKS[key].absent
    if only is not None:
        return Section(key, spec["title"], (Paragraph(only),))
    blocks = [block for part in spec.get("blocks", ["figures"]) for block in _blocks(ledger, key, part)]
    bases = {row[-1] for block in blocks for row in _with_basis(block)} - {ABSENT}
    if len(bases) > 1:
        return Section(key, spec["title"], tuple(blocks))
    kept = (_without_basis(block) if _with_basis(block) else block for block in blocks)
    return Section(key, spec["title"], tuple(kept), bases.pop() if bases else None)


def _with_basis(block: Block) -> Sequence[_Row]:
    return block.rows if isinstance(block, Table) and block.columns[-1] == _BASIS else ()


def _without_basis(block: Block) -> Block:
    assert isinstance(block, Table)
    return block._replace(columns=block.columns[:-1], rows=tuple(row[:-1] for row in block.rows))


def _blocks(ledger: Ledger, key: str, part: Any) -> Iterator[Block]:
    """Yield what a part of a section is made of: sentences, or a table that has rows."""
    match part:
        case "figures":
            yield table(_FIGURES, _figures(ledger, key))
        case "sources":
            yield from _sources(ledger)
        case {"bullets": name}:
            yield Bullets(tuple(ledger.value(name)))
        case {"each": rows, "text": text}:
            yield from (Paragraph(sentence(text, ledger, row) or ABSENT) for row in ledger.rows(rows))
        case {"rows": _} | {"grid": _}:
            shown = _entries(ledger, part["rows"]) if "rows" in part else _grid(ledger, **part)
            if len({row[0] for row in shown.rows}) >= part.get("least", 1):
                yield from [Paragraph(part["before"])] if "before" in part else []
                yield shown
        case _ if (said := sentence(part, ledger)) is not None:
            yield Paragraph(said)


def _figures(ledger: Ledger, block: str) -> Iterator[_Row]:
    """Yield the figures of a block that have a label: first those that its section names first."""
    first = SCREENS["sections"][block].get("first", "").split()
    rest = (r.key for r in BLOCKS[block].records if r.label and not r.list_key and r.key not in first)
    for key in (*first, *rest):
        record, value = RECORDS[key], ledger.value(key)
        if value or not record.rare:
            shown = sentence(record.shown, ledger) if record.shown else None
            yield _row(record.label, shown or record.written(value), record.basis or ledger.basis(block))


def _row(label: str, value: str, basis: str) -> _Row:
    """Return a row; a missing figure has no basis either."""
    return label, value, ABSENT if value == ABSENT else str(basis)


def _entries(ledger: Ledger, key: str) -> Table:
    """Build the table of a list, from its figures that have a label and from lists of its block alongside."""
    records = [r for r in RECORDS.values() if r.label and r.list_key == key]
    if key.endswith(".classes"):
        block = BLOCKS[key.partition(".")[0]]
        records += [r for r in block.records if r.label and r.by_class and ledger.value(r.list_key)]
    own = [r.key for r in records].index(f"{key}[].basis") if f"{key}[].basis" in RECORDS else None
    columns = [words(r.label) if r.kind is Kind.TEXT else number(r.label) for r in records]
    rows = []
    for i in range(len(ledger.rows(key))):
        cells = [r.written(ledger.value(r.key.replace("[]", f"[{i}]", 1))) for r in records]
        basis = str(ledger.basis(key)) if own is None else cells.pop(own)
        if {*cells[1:]} != {ABSENT}:
            rows.append((*cells, basis))
    if own is not None:
        del columns[own]
    return _cut([*columns, _BASIS], rows)


def _grid(ledger: Ledger, grid: Mapping[str, str], of: str = "", **_: Any) -> Table:
    """Build a table with a row for each of some keys, of what stands below them; for each entry of a list, if named."""
    rows, named = [], []
    for entry in ledger.rows(of) if of else [""]:
        for label, key in grid.items():
            prefix = f"{entry}{key}."
            below = [r for r in RECORDS.values() if r.key.startswith(re.sub(r"\[\d+\]", "[]", prefix))]
            named = [r for r in below if r.label] or below
            cells = [r.written(ledger.value(f"{prefix}{r.key.rpartition('.')[2]}")) for r in named]
            if {*cells} != {ABSENT}:
                about = [ledger.value(f"{entry}.name")] if of else []
                rows.append((*about, label, *cells, str(ledger.basis(prefix[:-1]))))
    heads = [number(r.label or r.key.rpartition(".")[2]) for r in named]
    return _cut([*([words("Class")] if of else []), Column(""), *heads, _BASIS], rows)


def _sources(ledger: Ledger) -> Iterator[Block]:
    sources = ledger.value("sources")
    rows = [(block, source["kind"], source["source"]) for block, source in sources.items()]
    yield table((Column("Block"), Column("Basis"), words("Source")), rows)
    cited = " ".join(source["source"] for source in sources.values())
    yield Bullets(
        tuple(f"{key}: {title}" for key, title in PAPERS.items() if re.search(rf"\b{key}\b", cited))
    )


def _cut(columns: Iterable[Column], rows: Iterable[_Row]) -> Table:
    return table(columns, rows, MAX_ROWS, "… {} more; see --format json")
