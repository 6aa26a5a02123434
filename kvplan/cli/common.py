"""What commands share: options, reading the profile, what is said on the way, the width of a terminal."""

import io
import os
import shutil
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, BinaryIO

import typer

from kvplan.cli import completion
from kvplan.cli.output import check_writable, tell, write_result
from kvplan.errors import UsageError
from kvplan.show.commands import printable, without_commands  # now: later no file may be left to open

if TYPE_CHECKING:
    from kvplan.profile import reading as profile_file
    from kvplan.show.chart import Chart
    from kvplan.show.elements import Section


class DocumentFormat(StrEnum):
    """How an outcome is written."""

    TEXT = "text"
    MARKDOWN = "markdown"
    JSON = "json"
    HTML = "html"


# Where nothing stands for itself: the help says what is taken then.
option, argument = partial(typer.Option, show_default=False), partial(typer.Argument, show_default=False)

Profile = Annotated[
    str | None,
    argument(
        metavar="PROFILE",
        help="A TOML file, '-' for standard input, or the name of a shipped profile. "
        "Default: the shipped llama-3.1-8b-rtx4090.",
        autocompletion=completion.profiles,
    ),
]
KvType = Annotated[
    str,
    typer.Option(
        "--kv-dtype",
        metavar="TYPE",
        help="Data type of the KV cache, such as fp8; auto is the type of the model.",
    ),
]
Slos = Annotated[
    list[str] | None,
    option(
        "--slo",
        metavar="KEY<=VALUE",
        help="Objective, such as ttft-p95=2s or 'itl_s.p99 <= 80 ms', beside those of [slo]. May be repeated.",
    ),
]
Plot = Annotated[
    Path | None, option("--plot", metavar="FILE.svg", help="Also draw the plots of the result to this file.")
]
Format = Annotated[DocumentFormat, typer.Option("--format", help="Format of the result.")]
Full = Annotated[bool, typer.Option("--full", help="Show everything, not the first screen alone.")]
Output = Annotated[
    Path | None,
    option(
        "--output", "-o", metavar="FILE", help="Write the result to this file instead of standard output."
    ),
]


def read(profile: str | None, output: Path | None) -> "profile_file.Profile":
    """The profile that was asked for; says which where none was, and refuses to write the result over it."""
    refuse_overwriting(output, [] if profile in (None, "-") else [Path(profile)])
    loaded = load(profile)
    if profile is None:
        say(f"note: no profile given; using the shipped {loaded.source}")
    return loaded


def with_slos(loaded: "profile_file.Profile", texts: Sequence[str] | None) -> "profile_file.Profile":
    """The profile with further objectives, which take the place of its own on the same figure."""
    if not texts:
        return loaded
    from kvplan.api import arguments

    return arguments.with_slos(loaded, texts)


def refuse_overwriting(output: Path | None, inputs: Sequence[Path], option: str = "-o") -> None:
    """Refuse to write a result over what it is made from, unless that is a device or a pipe."""
    for path in inputs:
        if output is not None and output.is_file() and path.exists() and os.path.samefile(output, path):
            raise UsageError(f"{option} {output}: would overwrite what is read")


def refuse_one_file_for_both(one: Path | None, option: str, output: Path | None) -> None:
    """Refuse to write what an option names where the result goes."""
    if one is not None and output is not None and os.path.realpath(one) == os.path.realpath(output):
        raise UsageError(f"{option} and -o are both {output}; one would overwrite the other")


def load(profile: str | None) -> "profile_file.Profile":
    """The profile that goes by this reference, with the trace that it refers to."""
    from kvplan.profile.reading import load_profile

    return replaying(load_profile(profile, stdin=standard_input()))


def replaying(loaded: "profile_file.Profile") -> "profile_file.Profile":
    """The profile with the trace that it refers to, if it does."""
    if loaded.trace is None:
        return loaded
    from kvplan.ingest.trace.replay import with_trace

    return with_trace(loaded)


def standard_input() -> BinaryIO:
    """The bytes of standard input; none where it is closed."""
    return sys.stdin.buffer if sys.stdin else io.BytesIO()


def check_plot(plot: Path | None, profiles: Sequence[str | None], output: Path | None) -> None:
    """Refuse a plot that could not be drawn or written, or only over another file, before the work that it shows."""
    if plot is not None:
        if plot.suffix != ".svg":
            raise UsageError(f"--plot {plot}: the name must end in .svg")
        refuse_overwriting(plot, [Path(profile) for profile in profiles if profile is not None], "--plot")
        refuse_one_file_for_both(plot, "--plot", output)
        check_writable(plot)


def write_plot(charts: "Sequence[Chart]", plot: Path | None) -> None:
    """Draw charts to the file of --plot, where it was given; says so where there is none."""
    if plot is not None:
        from kvplan.show import svg

        if not charts:
            say("note: --plot: there is nothing to draw")
        else:
            write_result(svg.file(charts), plot)


def rendered(
    format: DocumentFormat,
    output: Path | None,
    document: Callable[[], dict[str, Any]],
    sections: "Callable[[], Sequence[Section]]",
    *sha256: str,
    charts: "Sequence[Chart]" = (),
) -> str:
    """A result in the format that was asked for; the hashes are those of the profiles it is about."""
    from kvplan.show.elements import origin

    if format is DocumentFormat.JSON:
        from kvplan.show import json

        return json.render(document())
    if format is DocumentFormat.MARKDOWN:
        from kvplan.show import markdown

        return markdown.render_sections(sections(), origin(*sha256))
    if format is DocumentFormat.HTML:
        from kvplan.show import html

        return html.render_sections(sections(), origin(*sha256), charts)
    from kvplan.show import terminal as to_terminal

    width, colour = terminal(output)
    return to_terminal.render_sections(sections(), origin(*sha256), width=width, colour=colour)


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
    """What a second of waiting is for; for whoever sees it pass."""
    if sys.stderr is not None and sys.stderr.isatty():
        later = "later runs find it on disk" if kept else "there is no folder to keep it in"
        say(f"note: compiling the loop for {policy}; {later}")


def say(message: str) -> None:
    tell(_harmless(" ".join(message.splitlines())))


def _harmless(line: str) -> str:
    """A line that neither moves the cursor nor commands GitHub's runner, whatever names it quotes."""
    return without_commands(printable(line))


def say_section(section: "Section") -> None:
    """A section on standard error, for what goes with a result and is not part of it."""
    from kvplan.show import terminal as to_terminal
    from kvplan.show.elements import origin

    if sys.stderr is not None:
        width = shutil.get_terminal_size().columns
        text = to_terminal.render_sections([section], origin(), width=width)
        tell("\n".join(map(_harmless, text.split("\n"))))
