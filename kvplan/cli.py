"""The command line: parse, call, render, write.

Results go to standard output, everything else to standard error. What a command needs is imported inside it, so
that ``--help`` and ``--version`` answer at once.
"""

import io
import os
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kvplan import __version__
from kvplan.errors import ExitCode, UsageError
from kvplan.output import ClosedPipeError, abandon_standard_output, write_result

if TYPE_CHECKING:
    from kvplan import profile as profile_file
    from kvplan.render.document import Section
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


class PageFormat(StrEnum):
    """How an explanation is written."""

    TEXT = "text"
    MARKDOWN = "markdown"


class TableFormat(StrEnum):
    """How a comparison is written."""

    TEXT = "text"
    MARKDOWN = "markdown"
    JSON = "json"
    CSV = "csv"


class Kind(StrEnum):
    """How requests arrive; those of `kvplan.simulation.study.Arrivals`."""

    POISSON = "poisson"
    GAMMA = "gamma"
    BURST = "burst"
    SATURATED = "saturated"
    CLOSED = "closed"


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


def _complete_key(incomplete: str) -> list[str]:
    from kvplan.explanations import BLOCKS, EXPLANATIONS

    keys = {*BLOCKS, *(explanation.key for explanation in EXPLANATIONS)}
    return sorted(key for key in keys if key.startswith(incomplete))


Profile = Annotated[
    str | None,
    typer.Argument(
        metavar="PROFILE",
        help="A TOML file, '-' for standard input, or the name of a shipped profile.",
        show_default=False,
        autocompletion=_complete_profile,
    ),
]


Key = Annotated[
    str,
    typer.Argument(
        metavar="KEY",
        help="A key of the JSON report such as load.headroom or wait.classes[].threshold, or a block such as load.",
        show_default=False,
        autocompletion=_complete_key,
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
    simulate: Annotated[
        bool, typer.Option("--simulate", help="Put simulated figures beside the formulas.")
    ] = False,
    section: Annotated[
        list[str] | None,
        typer.Option(
            "--section",
            metavar="KEY",
            help="Show only this block of the details, such as load or wait; may be repeated.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Load, worst cycle, stability, rate cap, WAIT thresholds and safety buffer of a replica."""
    from kvplan import report

    loaded = _read(profile)
    result = report.analyze(loaded.model, name=loaded.name, sha256=loaded.sha256, plan=loaded.plan)
    if simulate:
        from kvplan.simulation.beside import beside

        with _progress() as progress:
            figures = beside(result, loaded.model, loaded.plan, progress=progress, announce=_say_compiling)
        result = result._replace(simulation=figures)
    write_result(_rendered(result, format, output, section), output)


@app.command(epilog="Example: kvplan simulate --policy greedy,vllm --set vllm.watermark=0.05 --seeds 4")
def simulate(
    profile: Profile = None,
    policy: Annotated[
        str, typer.Option("--policy", metavar="NAME,...", help="Policies to compare on the same arrivals.")
    ] = "greedy,rate-limited,vllm",
    setting: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="POLICY.KEY=VALUE",
            help="Set a parameter of a policy; lists with commas. May be repeated.",
            show_default=False,
        ),
    ] = None,
    arrivals: Annotated[
        Kind | None, typer.Option("--arrivals", help="How requests arrive; poisson.", show_default=False)
    ] = None,
    cv: Annotated[
        float | None,
        typer.Option("--cv", help="Coefficient of variation of gamma gaps.", show_default=False),
    ] = None,
    concurrency: Annotated[
        int | None, typer.Option("--concurrency", help="Clients of a closed loop.", show_default=False)
    ] = None,
    burst: Annotated[
        str | None,
        typer.Option(
            "--burst",
            metavar="HIGH,LOW,ON,OFF",
            help="Factors of the rates while on and off, and the seconds of each.",
            show_default=False,
        ),
    ] = None,
    trace: Annotated[
        Path | None,
        typer.Option(
            "--trace", metavar="FILE", help="Replay recorded arrivals and lengths.", show_default=False
        ),
    ] = None,
    requests: Annotated[
        int | None, typer.Option("--requests", help="Requests in all; 10,000.", show_default=False)
    ] = None,
    horizon: Annotated[
        str | None,
        typer.Option(
            "--horizon",
            metavar="TIME",
            help='Stop the clock there, such as "600 s" or "1 h".',
            show_default=False,
        ),
    ] = None,
    seeds: Annotated[int, typer.Option("--seeds", help="How many seeds.")] = 1,
    seed: Annotated[int, typer.Option("--seed", help="The first of them.")] = 0,
    series: Annotated[
        Path | None,
        typer.Option(
            "--series",
            metavar="FILE.csv",
            help="Write the state over time, first seed, to this file.",
            show_default=False,
        ),
    ] = None,
    format: Annotated[TableFormat, typer.Option("--format", help="How to write it.")] = TableFormat.TEXT,
    output: Output = None,
) -> None:
    """Policies side by side on the same arrivals, with confidence intervals."""
    from kvplan.render import json
    from kvplan.render import simulation as tables
    from kvplan.simulation import options, study

    loaded = _read(profile)
    load = options.load(
        kind=None if arrivals is None else arrivals.value,
        cv=cv,
        concurrency=concurrency,
        burst=burst,
        trace=trace,
        requests=requests,
        horizon=horizon,
    )
    policies = study.chosen([name.strip() for name in policy.split(",") if name.strip()], setting or [])
    with _progress() as progress:
        found = study.study(
            loaded.model,
            loaded.plan,
            load,
            policies,
            options.seeds(seed, seeds),
            progress=progress,
            announce=_say_compiling,
        )
    if series is not None:
        write_result(tables.series_csv(found), series)
    if format is TableFormat.JSON:
        document = study.to_document(found, name=loaded.name, sha256=loaded.sha256, version=__version__)
        text = json.render(document)
    elif format is TableFormat.CSV:
        text = tables.as_csv(found)
    else:
        section = tables.build(found, loaded.name)
        text = _section_text(
            section, f"kvplan {__version__}, profile {loaded.sha256[:12]} (sha256)", format, output
        )
    write_result(text, output)
    if found.interrupted:
        raise typer.Exit(ExitCode.INTERRUPTED)


@app.command(epilog="Example: kvplan explain worst_cycle.loss tool-calls-h100")
def explain(
    key: Key,
    profile: Profile = None,
    format: Annotated[PageFormat, typer.Option("--format", help="How to write it.")] = PageFormat.TEXT,
    output: Output = None,
) -> None:
    """What a number of the report means: formula, source, and the profile's figures put into it."""
    from kvplan import explain as explaining
    from kvplan import report
    from kvplan.render import explanation

    found = explaining.find(key)
    loaded = _read(profile)
    result = report.analyze(loaded.model, name=loaded.name, sha256=loaded.sha256, plan=loaded.plan)
    page = explaining.page(found, result, loaded.model, loaded.plan)
    width = shutil.get_terminal_size().columns if output is None else 80
    as_text = format is PageFormat.TEXT
    write_result(explanation.text(page, width=width) if as_text else explanation.markdown(page), output)


@app.command(epilog="Example: kvplan fit trace.csv --base my-service.toml -o fitted.toml")
def fit(
    trace: Annotated[
        Path,
        typer.Argument(
            metavar="TRACE",
            help="Recorded requests: Azure, BurstGPT, Mooncake, Qwen, ServeGen, vLLM bench, or named columns.",
            show_default=False,
        ),
    ],
    base: Annotated[
        str | None,
        typer.Option(
            "--base",
            metavar="PROFILE",
            help="Keep replica, timing, plan and gate of this profile.",
            show_default=False,
            autocompletion=_complete_profile,
        ),
    ] = None,
    classes: Annotated[
        int | None,
        typer.Option(
            "--classes",
            min=1,
            help="So many classes of one decode length each, and what they distort; else the lengths as seen.",
            show_default=False,
        ),
    ] = None,
    output: Output = None,
) -> None:
    """Turn a request trace into the classes and rates of a profile."""
    from kvplan.ingest import profile_text, traffic_fit

    kept = _read(base)
    traffic = traffic_fit.measure(trace)
    found = traffic_fit.binned(traffic) if classes is None else traffic_fit.compact(traffic, classes)
    change = None if classes is None else traffic_fit.distortion(traffic, found, kept.model)
    fitted = profile_text.fitted_profile(traffic, found, kept, default_base=base is None, distortion=change)
    for note in traffic.notes:
        _say(f"note: {note}")
    if change is not None:
        _say(f"note: {traffic_fit.describe(change)}")
    write_result(fitted.text, output)


@app.command(epilog="Example: kvplan init my-service.toml")
def init(
    file: Annotated[
        Path | None,
        typer.Argument(
            metavar="FILE", help="Where to write it; standard output if left out.", show_default=False
        ),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace FILE where it exists.")] = False,
) -> None:
    """Write a commented profile to start from."""
    from kvplan import catalogue

    if file is not None and not force:
        catalogue.refuse_existing(file)
    write_result(catalogue.starter(), file)


@app.command(epilog="Example: kvplan profiles tool-calls-h100 > mine.toml")
def profiles(
    name: Annotated[
        str | None,
        typer.Argument(
            metavar="NAME",
            help="Print this one, to be copied.",
            show_default=False,
            autocompletion=_complete_profile,
        ),
    ] = None,
    output: Output = None,
) -> None:
    """List the shipped profiles, or print one."""
    from kvplan import catalogue

    write_result(catalogue.listing() if name is None else catalogue.shipped_text(name), output)


@app.command(epilog="Example: kvplan schema -o kvplan.schema.json")
def schema(output: Output = None) -> None:
    """Print the JSON Schema of a profile, for editors."""
    from kvplan.render import json
    from kvplan.schema import json_schema

    write_result(json.render(json_schema()), output)


def _read(profile: str | None) -> "profile_file.Profile":
    """The profile that was asked for; says which where none was."""
    from kvplan.profile import load_profile

    loaded = load_profile(profile, stdin=sys.stdin.buffer if sys.stdin else io.BytesIO())
    if profile is None:
        _say(f"note: no profile given; using the shipped {loaded.source}")
    return loaded


def _rendered(result: "Report", format: Format, output: Path | None, sections: list[str] | None) -> str:
    """The report as text; colour and width only where a terminal reads it."""
    from kvplan.render import document

    if format is Format.JSON:
        if sections:
            raise UsageError("--section chooses what text and Markdown show; JSON is always whole")
        from kvplan.render import json
        from kvplan.report import to_document

        return json.render(to_document(result))
    if format is Format.MARKDOWN:
        from kvplan.render import markdown

        return markdown.render(document.build(result, sections))
    from kvplan.render import terminal

    width, colour = _terminal(output)
    return terminal.render(document.build(result, sections), width=width, colour=colour)


def _section_text(section: "Section", origin: str, format: TableFormat, output: Path | None) -> str:
    if format is TableFormat.MARKDOWN:
        from kvplan.render import markdown

        return markdown.render_section(section, origin)
    from kvplan.render import terminal

    width, colour = _terminal(output)
    return terminal.render_section(section, origin, width=width, colour=colour)


def _terminal(output: Path | None) -> tuple[int, bool]:
    """Columns to fill, and whether colours are wanted."""
    on_terminal = output is None and sys.stdout is not None and sys.stdout.isatty()
    plain = bool(os.environ.get("NO_COLOR")) or os.environ.get("TERM") == "dumb"
    return (shutil.get_terminal_size().columns if output is None else 80), on_terminal and not plain


@contextmanager
def _progress() -> Iterator[Callable[[float], None] | None]:
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


def _say_compiling(policy: str) -> None:
    _say(f"note: compiling the loop for {policy}, some ten seconds; later runs find it on disk")


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
    os.environ.setdefault(
        "OPENBLAS_NUM_THREADS", "1"
    )  # our matrices are small: threads only get in their way
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
