"""What commands share: options, reading the profile, what is said on the way, the width of a terminal."""

import io
import os
import shutil
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, BinaryIO

import typer

from kvplan.cli.output import tell
from kvplan.errors import UsageError

if TYPE_CHECKING:
    from kvplan.layout.document import Section
    from kvplan.profile import reading as profile_file


class DocumentFormat(StrEnum):
    """How an outcome is written."""

    TEXT = "text"
    MARKDOWN = "markdown"
    JSON = "json"


class TableFormat(StrEnum):
    """How a comparison is written."""

    TEXT = "text"
    MARKDOWN = "markdown"
    JSON = "json"
    CSV = "csv"


def complete_profile(incomplete: str) -> list[str]:
    from kvplan.profile.reading import shipped_profiles

    return sorted(name for name in shipped_profiles() if name.startswith(incomplete))


Profile = Annotated[
    str | None,
    typer.Argument(
        metavar="PROFILE",
        help="A TOML file, '-' for standard input, or the name of a shipped profile.",
        show_default=False,
        autocompletion=complete_profile,
    ),
]
Output = Annotated[
    Path | None,
    typer.Option("--output", "-o", metavar="FILE", help="Write the result to this file.", show_default=False),
]


def read(profile: str | None) -> "profile_file.Profile":
    """The profile that was asked for; says which where none was."""
    loaded = _loaded(profile)
    if profile is None:
        say(f"note: no profile given; using the shipped {loaded.source}")
    return loaded


def read_base(base: str | None) -> "profile_file.Profile":
    """The profile that supplies what is not measured; says which where none was asked for."""
    loaded = _loaded(base)
    if base is None:
        say(f"note: no --base given; what is not measured is that of the shipped {loaded.source}")
    return loaded


def refuse_overwriting(output: Path | None, inputs: Sequence[Path], option: str = "-o") -> None:
    """Refuse to write a result over what it is made from, unless that is a device or a pipe."""
    for path in inputs:
        if output is not None and output.is_file() and path.exists() and os.path.samefile(output, path):
            raise UsageError(f"{option} {output}: would overwrite what is read")


def _loaded(profile: str | None) -> "profile_file.Profile":
    from kvplan.profile.reading import load_profile

    return load_profile(profile, stdin=standard_input())


def standard_input() -> BinaryIO:
    """The bytes of standard input; none where it is closed."""
    return sys.stdin.buffer if sys.stdin else io.BytesIO()


def section_text(section: "Section", origin: str, format: TableFormat, output: Path | None) -> str:
    return sections_text([section], origin, output, as_markdown=format is TableFormat.MARKDOWN)


def sections_text(
    sections: "Sequence[Section]", origin: str, output: Path | None, *, as_markdown: bool
) -> str:
    if as_markdown:
        from kvplan.formats import markdown

        return markdown.render_sections(sections, origin)
    from kvplan.formats import terminal as to_terminal

    width, colour = terminal(output)
    return to_terminal.render_sections(sections, origin, width=width, colour=colour)


def terminal(output: Path | None) -> tuple[int, bool]:
    """Columns to fill, and whether colours are wanted."""
    on_terminal = output is None and sys.stdout is not None and sys.stdout.isatty()
    plain = bool(os.environ.get("NO_COLOR")) or os.environ.get("TERM") == "dumb"
    return (shutil.get_terminal_size().columns if output is None else 80), on_terminal and not plain


@contextmanager
def progress_bar() -> Iterator[Callable[[float], None] | None]:
    """A bar on standard error, if that is a terminal; it appears when a run takes longer than a second."""
    if sys.stderr is None or not sys.stderr.isatty():
        yield None
        return
    from time import monotonic

    from rich.console import Console
    from rich.progress import Progress

    began = monotonic()
    with Progress(console=Console(stderr=True), transient=True, disable=False) as bar:
        task = bar.add_task("simulating", total=1.0, visible=False)
        yield lambda part: bar.update(task, completed=part, visible=monotonic() - began > 1)


def say_compiling(policy: str, kept: bool) -> None:
    later = (
        "later runs find it on disk" if kept else "there is no folder to keep it in, so every long run does"
    )
    say(f"note: compiling the loop for {policy}, some ten seconds; {later}")


def say(message: str) -> None:
    tell(" ".join(message.splitlines()))


def say_section(section: "Section", origin: str) -> None:
    """A section on standard error, for what goes with a result and is not part of it."""
    from kvplan.formats import terminal as to_terminal

    if sys.stderr is not None:
        width = shutil.get_terminal_size().columns
        print(to_terminal.render_section(section, origin, width=width), file=sys.stderr)
