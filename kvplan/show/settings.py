"""Engine settings: lines to paste into a command or a file, a page, and the JSON document.

Lines are meant for a shell or a YAML file, so nothing from a profile may end a comment or mean anything to either:
only printable characters are kept that are no signs of a language there.
"""

import textwrap
from collections.abc import Iterator

from kvplan.emit.base import Flag
from kvplan.emit.settings import EngineSettings, alternatives
from kvplan.report.assembly import Analyses
from kvplan.report.ledger import Ledger, plain
from kvplan.show import page
from kvplan.show.report import first_screen
from kvplan.show.view import Json, View, header
from kvplan.units import ABSENT

_HARMFUL = frozenset("`$!\\|<>#")  # quotes end no comment, and values have them
_WIDTHS = (40, 120)


def view(advised: EngineSettings, report: Analyses) -> View:
    """Show settings with the report of the profile; `text` writes them for an engine."""
    return View(
        lambda: document(advised, report),
        lambda full: page.document([build(advised, report)], report.profile.sha256),
    )


def document(advised: EngineSettings, report: Analyses) -> Json:
    """Return the JSON: settings, and the report without those that are advised."""
    return {
        **header(report.profile),
        "engine": advised.engine.name,
        **{key: plain(getattr(report, key), key) for key in ("verdict", "latency", "advice")},
        "command": advised.start.command,
        "settings": [_setting(advised, flag) for flag in advised.start.flags],
        "others": [[_setting(advised, flag) for flag in flags] for flags in advised.others],
        "notes": [*advised.start.notes, *advised.notes],
    }


def _setting(advised: EngineSettings, flag: Flag) -> Json:
    engine = advised.engine
    return {**flag._asdict(), "since": engine.since(flag.flag), "section": engine.flags[flag.flag].section}


def harmless(text: str) -> str:
    """Replace what could end a comment or be taken for a command, by a shell or in YAML.

    >>> harmless("A & B\\nrm -rf ~; $(reboot) !! `x` #Ü")
    'A & B rm -rf ~; ?(reboot) ?? ?x? ?Ü'
    """
    signs = (" " if c.isspace() else c if c.isprintable() and c not in _HARMFUL else "?" for c in text)
    return "".join(signs)


def text(advised: EngineSettings, report: Analyses, *, width: int = 80) -> str:
    """Write the command for a shell, or the YAML file of TensorRT-LLM; all else is a comment of so many columns."""
    columns = min(max(width, _WIDTHS[0]), _WIDTHS[1])
    engine, start = advised.engine, advised.start
    lines = [*_comment(f"{engine.title} settings for: {report.profile.name}", columns)]
    lines += _comment(page.origin(report.profile.sha256), columns)
    for said in _operating_point(report):
        lines += _comment(said, columns)
    if start.in_file:
        lines += [*_comment(f"To start it: {start.words}", columns), *_file(advised, columns)]
    else:
        for flag in start.flags:
            lines += _comment(f"{flag.words}: {_ended(flag.why)} {engine.since(flag.flag)}".strip(), columns)
    for said in (*_tried(advised), *start.notes, *advised.notes):
        lines += _comment(said, columns)
    if not start.in_file:
        lines.append(page.shell(start.words, start.arguments).text)
    return "\n".join(lines) + "\n"


def _file(advised: EngineSettings, columns: int) -> Iterator[str]:
    """Yield the lines of settings in a file, those of a section together, and comments below each."""
    engine, section = advised.engine, ""
    for flag in sorted(advised.start.flags, key=lambda flag: engine.flags[flag.flag].section):
        known = engine.flags[flag.flag]
        if known.section not in ("", section):
            yield f"{known.section}:"
        section = known.section
        yield f"{'  ' if section else ''}{flag.flag}{engine.assigns}{flag.value}"
        for said in filter(None, (flag.why, engine.since(flag.flag))):
            yield from _comment(said, columns, "  ")


def build(advised: EngineSettings, report: Analyses) -> page.Section:
    """Build a document's part: settings and reasons, what they were tried on, and notes."""
    said = [page.Paragraph(line) for line in _operating_point(report)]
    engine, start = advised.engine, advised.start
    columns: page.Columns[Flag] = {
        page.Column("Setting"): lambda flag: flag.flag,
        page.number("Value"): lambda flag: flag.value or ABSENT,
        page.words("Why"): lambda flag: f"{_ended(flag.why)} {engine.since(flag.flag)}".strip(),
    }
    flags: list[page.Block] = [page.tabulate(columns, start.flags)] if start.flags else []
    flags.append(page.shell(start.words, start.arguments))
    notes = page.Bullets((*_tried(advised), *start.notes, *advised.notes))
    title = f"{advised.engine.title} settings: {report.profile.name}"
    return page.Section("settings", title, (*said, *flags, *([notes] if notes.items else [])), "simulated")


def _ended(sentence: str) -> str:
    return sentence.removesuffix(".") + "."


def _operating_point(report: Analyses) -> Iterator[str]:
    yield f"{report.verdict.status.upper()}: {report.verdict.summary}"
    yield "; ".join(f"{name}: {value}" for name, value, _ in first_screen(Ledger(report), "latency"))


def _tried(advised: EngineSettings) -> Iterator[str]:
    yield from alternatives(advised)
    if advised.advice is None and not advised.others:
        yield "Nothing else to set: no watermark and no other limit of running requests is known to gain."


def _comment(words: str, columns: int, indent: str = "") -> list[str]:
    return textwrap.wrap(
        harmless(words),
        columns,
        initial_indent=f"# {indent}",
        subsequent_indent=f"#   {indent}",
        break_on_hyphens=False,
        break_long_words=True,
    )
