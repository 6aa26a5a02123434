"""Steps that commands share: read the profile, say what goes on, write the result."""

import io
import os
import re
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, TypeVar

from kvplan.cli.output import check_writable, tell, write_result
from kvplan.errors import UsageError
from kvplan.show.page import printable, without_commands  # now: later no file may be left to open

if TYPE_CHECKING:
    from kvplan.profile import reading as profile_file
    from kvplan.show.chart import Chart
    from kvplan.show.page import Section
    from kvplan.show.view import View

T = TypeVar("T")

_SILENT_S = 30.0  # between two lines where nobody watches
_LONGEST, _END = 200, 50  # characters of what is quoted, and of its end that are left
_LONG = re.compile(rf"(?<=[ (:=])(['\"])(?:(?!\1).){{{_LONGEST - 1},}}\1(?=[ .,;:)]|$)|\S{{{_LONGEST + 1},}}")


def read(profile: str | None, output: Path | None) -> "profile_file.Profile":
    """Read the profile that was asked for; say which where none was.

    Refuses to write the result over it.
    """
    refuse_overwriting(output, [] if profile in (None, "-") else [Path(profile)])
    loaded = load(profile)
    if profile is None:
        say(f"note: no profile given; using the shipped {loaded.source}")
    return loaded


def refuse_overwriting(output: Path | None, inputs: Sequence[Path | None], option: str = "-o") -> None:
    """Refuse to write a result over what it is made from, unless that is a device or a pipe."""
    for path in inputs:
        if output and path and output.is_file() and path.exists() and os.path.samefile(output, path):
            raise UsageError(f"{option} {output}: would overwrite what is read")


def refuse_one_file_for_both(file: Path | None, option: str, output: Path | None) -> None:
    """Refuse to write what an option names where the result goes; devices and pipes take both."""
    both = file is not None and output is not None and os.path.realpath(file) == os.path.realpath(output)
    if both and not (output and output.exists() and not output.is_file()):
        raise UsageError(f"{option} and -o are both {output}; one would overwrite the other")


def load(profile: str | None) -> "profile_file.Profile":
    """Read the profile that goes by this reference, with the trace that it refers to."""
    from kvplan.profile.reading import load_profile

    loaded = load_profile(profile, stdin=standard_input())
    if loaded.trace is None:
        return loaded
    from kvplan.ingest.trace.replay import with_trace

    return with_trace(loaded)


def standard_input() -> BinaryIO:
    """Return the bytes of standard input; none where it is closed."""
    return sys.stdin.buffer if sys.stdin else io.BytesIO()


def check_plot(plot: Path | None, profiles: Sequence[str | None], output: Path | None) -> None:
    """Refuse a plot that could not be drawn or written, or only over another file, before the work that it shows."""
    if plot is not None:
        if plot.suffix not in (".svg", ".png"):
            raise UsageError(f"--plot {plot}: the name must end in .svg or .png")
        if plot.suffix == ".png":
            from kvplan.show import png

            png.check()
        refuse_overwriting(plot, [Path(profile) for profile in profiles if profile is not None], "--plot")
        refuse_one_file_for_both(plot, "--plot", output)
        check_writable(plot)


def write_plot(charts: "Sequence[Chart]", plot: Path) -> None:
    """Draw charts to the file of --plot; say so where there is none."""
    from kvplan.show import png, svg

    if charts:
        drawn = svg.file(charts)
        write_result(png.drawn(drawn) if plot.suffix == ".png" else drawn, plot)
    else:
        say("note: --plot: there is nothing to draw")


def write(
    view: "View", format: str, output: Path | None, *, full: bool = False, plot: Path | None = None
) -> None:
    """Write a result in a format, and its charts to the file of --plot."""
    from kvplan.show.view import render

    charts = () if plot is None else view.charts
    width, colour = terminal(output)
    write_result(render(view, format, full=full, width=width, colour=colour), output)
    if plot is not None:
        write_plot(charts, plot)


def terminal(output: Path | None) -> tuple[int, bool]:
    """Return the columns to fill, and whether colours are wanted."""
    on_terminal = output is None and sys.stdout is not None and sys.stdout.isatty()
    plain = bool(os.environ.get("NO_COLOR")) or os.environ.get("TERM") == "dumb"
    return (shutil.get_terminal_size().columns if output is None else 80), on_terminal and not plain


def watched() -> bool:
    """Tell whether somebody sees what is said on standard error."""
    return sys.stderr is not None and sys.stderr.isatty()


@contextmanager
def progress_bar() -> Iterator[Callable[[float], None]]:
    """Show a bar on standard error where a run takes longer than a second; a line now and then, if nobody watches."""
    if not watched():
        yield seldom(lambda part: say(f"simulating: {part:.0%}"), _SILENT_S)
        return
    from time import monotonic

    from rich.console import Console
    from rich.progress import Progress

    began = monotonic()
    with Progress(console=Console(stderr=True), transient=True, disable=False) as bar:
        task = bar.add_task("simulating", total=1.0, visible=False)
        yield lambda part: bar.update(task, completed=part, visible=monotonic() - began > 1)


def seldom(say: Callable[[T], None], silent_s: float) -> Callable[[T], None]:
    """Pass on a message after so many seconds without any."""
    from time import monotonic

    last = monotonic()

    def passed(what: T) -> None:
        nonlocal last
        if monotonic() - last >= silent_s:
            last = monotonic()
            say(what)

    return passed


def say_compiling(policy: str, kept: bool) -> None:
    """Say that a loop is being compiled, to whoever watches."""
    if watched():
        later = "later runs find it on disk" if kept else "there is no folder to keep it in"
        say(f"note: compiling the loop for {policy}; {later}")


def say(message: str, given: Iterable[str] = ()) -> None:
    """Write a message in one line, in which long words, quotations and words `given` are shortened."""
    line = " ".join(message.splitlines())
    for words in (part for word in given for part in (word, word.partition("=")[2]) if len(part) > _LONGEST):
        line = line.replace(words, shortened(words))
    tell(_harmless(_LONG.sub(lambda match: shortened(match[0]), line)))


def shortened(text: str) -> str:
    """Leave the beginning and the end of a text that is long."""
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - _END - 1]}…{text[-_END:]}"


def _harmless(line: str) -> str:
    """Keep a line from moving the cursor or commanding GitHub's runner, whatever names it quotes."""
    return without_commands(printable(line))


def say_section(section: "Section") -> None:
    """Write a section on standard error, for what goes with a result and is not part of it."""
    from kvplan.show import page
    from kvplan.show import terminal as to_terminal

    if sys.stderr is not None:
        width = shutil.get_terminal_size().columns
        text = to_terminal.render(page.document([section]), width=width)
        tell("\n".join(map(_harmless, text.split("\n"))))
