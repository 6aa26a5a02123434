"""The command line: parse, call, render, write.

Results go to standard output, everything else to standard error. What a command needs is imported inside it, so
that ``--help`` and ``--version`` answer at once.
"""

import io
import os
import shutil
import sys
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kvplan import __version__
from kvplan.errors import ExitCode, UsageError
from kvplan.output import ClosedPipeError, abandon_standard_output, write_result

if TYPE_CHECKING:
    from kvplan.report import Report

_CLOSED_PIPE = 141  # as if the signal had ended the process, which is what shells expect

app = typer.Typer(
    help="Capacity planner for LLM serving: does this traffic fit this replica's KV cache?",
    epilog="Example: kvplan analyze my-service.toml",
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)


class Format(StrEnum):
    """How a report is written."""

    TEXT = "text"
    MARKDOWN = "markdown"
    JSON = "json"


def _print_version(wanted: bool) -> None:
    if wanted:
        write_result(f"kvplan {__version__}\n")
        raise typer.Exit


@app.callback()
def _kvplan(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_print_version, is_eager=True, help="Show the version and exit."),
    ] = False,
) -> None:
    pass  # keeps `analyze` a subcommand while it is the only one


def _complete_profile(incomplete: str) -> list[str]:
    from kvplan.profile import shipped_profiles

    return sorted(name for name in shipped_profiles() if name.startswith(incomplete))


Profile = Annotated[
    str | None,
    typer.Argument(
        metavar="PROFILE",
        help="A TOML file, '-' for standard input, or the name of a shipped profile.",
        show_default=False,
        autocompletion=_complete_profile,
    ),
]
Output = Annotated[
    Path | None,
    typer.Option("--output", "-o", metavar="FILE", help="Write the result to this file.", show_default=False),
]


@app.command(epilog="Example: kvplan analyze llama-3.1-8b-rtx4090 --format markdown -o capacity.md")
def analyze(
    profile: Profile = None,
    format: Annotated[Format, typer.Option("--format", help="How to write the report.")] = Format.TEXT,
    output: Output = None,
) -> None:
    """Load, headroom, worst cycle, stability and rate cap of a replica."""
    from kvplan import report
    from kvplan.profile import load_profile

    loaded = load_profile(profile, stdin=sys.stdin.buffer if sys.stdin else io.BytesIO())
    if profile is None:
        _say(f"note: no profile given; using the shipped {loaded.source}")
    result = report.analyze(loaded.model, name=loaded.name, sha256=loaded.sha256)
    write_result(_rendered(result, format, output), output)


def _rendered(result: "Report", format: Format, output: Path | None) -> str:
    """The report as text; colour and width only where a terminal reads it."""
    from kvplan.render import document

    if format is Format.JSON:
        from kvplan.render import json
        from kvplan.report import to_document

        return json.render(to_document(result))
    if format is Format.MARKDOWN:
        from kvplan.render import markdown

        return markdown.render(document.build(result))
    from kvplan.render import terminal

    on_terminal = output is None and sys.stdout is not None and sys.stdout.isatty()
    plain = bool(os.environ.get("NO_COLOR")) or os.environ.get("TERM") == "dumb"
    width = shutil.get_terminal_size().columns if output is None else 80
    return terminal.render(document.build(result), width=width, colour=on_terminal and not plain)


def _say(message: str) -> None:
    if sys.stderr is not None:
        print(" ".join(message.splitlines()), file=sys.stderr)


def main(argv: list[str] | None = None) -> int:
    """Run a command line and return the exit code; every failure is one line on standard error.

    Parameters
    ----------
    argv : list of str, optional
        Arguments after the program's name; those of the process if None.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     print(main(["analyze", "tool-calls-h100", "-o", f"{folder}/report.txt"]))
    0
    """
    try:
        command = typer.main.get_command(app)
        result = command.main(args=argv, prog_name="kvplan", standalone_mode=False)
        return result if isinstance(result, int) else ExitCode.DONE  # an int is what typer.Exit carried
    except ClosedPipeError:
        return _CLOSED_PIPE
    except (KeyboardInterrupt, typer.Abort):
        return ExitCode.INTERRUPTED
    except SystemExit as stop:  # Typer's own output: completion, or help into a pipe that closed
        closed = isinstance(stop.__context__, BrokenPipeError)
        return _CLOSED_PIPE if closed else int(stop.code or 0)
    except UsageError as error:
        _say(f"error: {error}")
        return ExitCode.USAGE
    except OSError as error:  # only Typer writes without `write_result`: help onto a full disk
        abandon_standard_output()
        _say(f"error: standard output: cannot be written: {error.strerror}")
        return ExitCode.USAGE
    except Exception as error:
        return _explain(error)


def _explain(error: Exception) -> ExitCode:
    """One line about a refusal of Typer, or about a defect of kvplan."""
    # Typer's usage errors have a base class of its own or of click, by version; all can describe themselves.
    describe = getattr(error, "format_message", None)
    if describe is not None:
        _say(f"error: {describe()} See: kvplan --help")
        return ExitCode.USAGE
    if os.environ.get("KVPLAN_DEBUG"):
        import traceback

        traceback.print_exc()
    what = f"{type(error).__name__}: {error}"
    _say(f"error: kvplan itself failed, please report it ({what}); KVPLAN_DEBUG=1 shows where")
    return ExitCode.INTERNAL
