"""Engine settings: lines to paste into a command or a file, a page, and the JSON document.

Lines are meant for a shell or a YAML file, so nothing from a profile may end a comment or mean anything to either:
only printable characters are kept that are no signs of a language there.
"""

import textwrap
from collections.abc import Iterator

from kvplan.emit.base import Flag
from kvplan.emit.settings import EngineSettings, alternatives
from kvplan.report.assembly import Report, ledger_of
from kvplan.report.ledger import plain
from kvplan.show import page
from kvplan.show.report import first_screen
from kvplan.show.view import Json, View, header
from kvplan.units import ABSENT

_HARMFUL = frozenset('`$!\\"|<>#')
_WIDTHS = (40, 120)
_COLUMNS: page.Columns[Flag] = {
    page.Column("Setting"): lambda flag: flag.flag,
    page.number("Value"): lambda flag: flag.value or ABSENT,
    page.words("Why"): lambda flag: f"{flag.why}. {flag.since}".strip(),
}


def view(advised: EngineSettings, report: Report) -> View:
    """Show settings with what the report says of the profile; `text` writes them for an engine."""
    return View(
        lambda: document(advised, report),
        lambda full: page.document([build(advised, report)], report.profile.sha256),
    )


def document(advised: EngineSettings, report: Report) -> Json:
    """Return the JSON: settings, and what the report says without those that are advised."""
    return {
        **header(report.profile),
        "engine": advised.engine.name,
        **{key: plain(getattr(report, key), key) for key in ("verdict", "latency", "advice")},
        "settings": [flag._asdict() for flag in advised.flags],
        "others": [[flag._asdict() for flag in flags] for flags in advised.others],
        "notes": list(advised.notes),
    }


def harmless(text: str) -> str:
    """Replace what could end a comment or be taken for a command, by a shell or in YAML.

    >>> harmless("A & B\\nrm -rf ~; $(reboot) !! `x` #Ü")
    'A & B rm -rf ~; ?(reboot) ?? ?x? ?Ü'
    """
    signs = (" " if c.isspace() else c if c.isprintable() and c not in _HARMFUL else "?" for c in text)
    return "".join(signs)


def text(advised: EngineSettings, report: Report, *, width: int = 80) -> str:
    """Write lines for a command line, or of a YAML file for TensorRT-LLM; all else is a comment of so many columns."""
    columns = min(max(width, _WIDTHS[0]), _WIDTHS[1])
    lines = [*_comment(f"{advised.engine.title} settings for: {report.profile.name}", columns)]
    lines += _comment(page.origin(report.profile.sha256), columns)
    for said in _operating_point(report):
        lines += _comment(said, columns)
    section = ""
    for flag in advised.flags:
        if flag.section not in ("", section):
            lines.append(f"{flag.section}:")
        section = flag.section
        lines += _setting(flag, advised.engine.assigns, columns)
    for said in (*_tried(advised), *advised.notes):
        lines += _comment(said, columns)
    return "\n".join(lines) + "\n"


def build(advised: EngineSettings, report: Report) -> page.Section:
    """Build the part of a document: what to set and why, what that was tried on, what else there is to know."""
    said = [page.Paragraph(line) for line in _operating_point(report)]
    flags = [page.tabulate(_COLUMNS, advised.flags)] if advised.flags else []
    notes = page.Bullets((*_tried(advised), *advised.notes))
    title = f"{advised.engine.title} settings: {report.profile.name}"
    return page.Section("settings", title, (*said, *flags, *([notes] if notes.items else [])), "simulated")


def _operating_point(report: Report) -> Iterator[str]:
    yield f"{report.verdict.status.upper()}: {report.verdict.summary}"
    yield "; ".join(f"{name}: {value}" for name, value, _ in first_screen(ledger_of(report), "latency"))


def _tried(advised: EngineSettings) -> Iterator[str]:
    yield from alternatives(advised)
    if advised.advice is None:
        yield "Nothing else to set: no watermark and no other limit of running requests is known to gain."


def _setting(flag: Flag, assigns: str, columns: int) -> Iterator[str]:
    """Yield the line of a setting, and comments below it."""
    value = "" if flag.value is None else f"{assigns}{flag.value}"
    yield f"{'  ' if flag.section else ''}{flag.flag}{value}"
    for said in filter(None, (flag.why, flag.since)):
        yield from _comment(said, columns, "  ")


def _comment(words: str, columns: int, indent: str = "") -> list[str]:
    return textwrap.wrap(
        harmless(words),
        columns,
        initial_indent=f"# {indent}",
        subsequent_indent=f"#   {indent}",
        break_on_hyphens=False,
        break_long_words=True,
    )
