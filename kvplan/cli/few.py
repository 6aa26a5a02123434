"""Commands of a few lines: analyze, import, explain, diff, mix, init, profiles, models, gpus, schema, reproduce."""

from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from kvplan import api
from kvplan.cli import common, completion, options
from kvplan.cli.options import argument, option
from kvplan.cli.output import check_writable, write_result
from kvplan.errors import ExitCode, UsageError, did_you_mean
from kvplan.options import AnalyzeOptions, ImportOptions


class PageFormat(StrEnum):
    """Formats of an explanation."""

    TEXT = "text"
    MARKDOWN = "markdown"


class Described(StrEnum):
    """Subjects of a JSON Schema."""

    PROFILE = "profile"
    REPORT = "report"
    SIMULATE = "simulate"
    PLAN = "plan"
    CHECK = "check"
    MIX = "mix"


def explain(
    key: Annotated[
        str,
        argument(
            metavar="KEY",
            help="Key of the JSON report, such as load.work_rate or wait.classes[].threshold, or a block, as load.",
            autocompletion=completion.keys_to_explain,
        ),
    ],
    profile: options.Profile = None,
    full: options.Full = False,
    format: Annotated[PageFormat, typer.Option("--format", help="Format of the result.")] = PageFormat.TEXT,
    output: options.Output = None,
) -> None:
    """Explain a number of the report: its meaning, formula and source, and the values that it rests on."""
    from kvplan.report.assembly import Analyses, ProfileIdentity
    from kvplan.report.explain import find, page
    from kvplan.show.explanation import view

    asked = find(key)
    loaded = common.read(profile, output)
    full = full or format is PageFormat.MARKDOWN
    figures = Analyses(loaded.model, loaded.plan, {"profile": ProfileIdentity(loaded.name, loaded.sha256)})
    shown = page(asked, figures, loaded.model, loaded.plan, full=full)
    common.write(view(shown, loaded.sha256, full=full), format, output)


_A_SIDE = argument(
    help="A profile (a TOML file, '-' for standard input, or the name of a shipped profile), "
    "or a report that kvplan analyze --format json wrote.",
    autocompletion=completion.profiles,
)


def diff(
    before: Annotated[str, _A_SIDE],
    after: Annotated[str, _A_SIDE],
    full: options.Full = False,
    format: options.Format = options.DocumentFormat.TEXT,
    output: options.Output = None,
) -> None:
    """Show what differs between two profiles or reports: inputs, then the figures that decide."""
    from kvplan.gate.diff import compare, read_side
    from kvplan.profile.reading import read_reference
    from kvplan.show.diff import view

    common.refuse_overwriting(output, [Path(side) for side in (before, after) if side != "-"])
    sides = [read_side(*read_reference(side, stdin=common.standard_input())) for side in (before, after)]
    common.write(view(compare(*sides)), format, output, full=full)


def mix(
    replicas: Annotated[
        int,
        option(
            "--replicas", help="Number of replicas that share the traffic; the profile describes one of them."
        ),
    ],
    profile: options.Profile = None,
    format: options.Format = options.DocumentFormat.TEXT,
    output: options.Output = None,
) -> None:
    """Choose which classes share a replica: segregated, mixed and the best placement found, by what they serve."""
    from kvplan.planning.mixing import MAX_REPLICAS, placements_compared
    from kvplan.show.mixing import view

    if not 1 <= replicas <= MAX_REPLICAS:
        raise UsageError(f"--replicas {replicas}: 1 to {MAX_REPLICAS:,}")
    check_writable(output)
    loaded = common.read(profile, output)
    compared = placements_compared(loaded.model, loaded.plan, replicas)
    common.write(view(compared, loaded), format, output)


def init(
    file: Annotated[
        Path | None, argument(metavar="FILE", help="File to write. Default: standard output.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace FILE if it exists.")] = False,
) -> None:
    """Write a commented profile to start from."""
    from kvplan.profile.reading import starter

    if file is not None and not force and (file.is_file() or file.is_fifo()):
        raise UsageError(f"{file}: exists already; --force replaces it")
    write_result(starter(), file)


def profiles(
    name: Annotated[
        str | None,
        argument(
            metavar="NAME",
            help="Profile to print, to be copied and changed. Without a name the profiles are listed.",
            autocompletion=completion.profiles,
        ),
    ] = None,
    output: options.Output = None,
) -> None:
    """List the shipped profiles, or print one."""
    from kvplan.profile.reading import listing, shipped_text

    write_result(listing() if name is None else shipped_text(name), output)


def _word(complete: completion.Completer) -> Any:
    help = "Only those with this word in a name. Default: all."
    return argument(metavar="WORD", help=help, autocompletion=complete)


def models(
    word: Annotated[str, _word(completion.models)] = "",
    format: options.Format = options.DocumentFormat.TEXT,
    output: options.Output = None,
) -> None:
    """List the models of the catalogue: sizes, and other names."""
    from kvplan.show import catalogue

    common.write(catalogue.models(word), format, output)


def gpus(
    word: Annotated[str, _word(completion.gpus)] = "",
    format: options.Format = options.DocumentFormat.TEXT,
    output: options.Output = None,
) -> None:
    """List the GPUs of the catalogue: sizes, and other names."""
    from kvplan.show import catalogue

    common.write(catalogue.gpus_of(word), format, output)


def schema(
    of: Annotated[
        Described,
        typer.Option(
            "--of",
            help="What the schema describes: a profile, the JSON report of analyze, or what another command writes "
            "as JSON.",
        ),
    ] = Described.PROFILE,
    output: options.Output = None,
) -> None:
    """Print the JSON Schema of a profile, for editors, or of what a command writes, for programs that read it."""
    from kvplan.profile.schema import json_schema as of_profile
    from kvplan.report.keys import json_schema as of_report
    from kvplan.show import schemas
    from kvplan.show.view import json_text

    known = {Described.PROFILE: of_profile, Described.REPORT: of_report}
    write_result(json_text(known[of]() if of in known else schemas.json_schema(of)), output)


def reproduce(
    names: Annotated[
        list[str] | None,
        argument(
            metavar="[NAME]...",
            help="Experiments to show in detail, or the start of their names, such as sic, wait or fc. Without one, or "
            "with papers, an overview of all.",
            autocompletion=completion.experiments,
        ),
    ] = None,
    coverage: Annotated[
        bool,
        option(
            "--coverage",
            help="List what the papers contain, and which experiment covers it, or why none does.",
        ),
    ] = False,
    format: options.Format = options.DocumentFormat.TEXT,
    output: options.Output = None,
) -> None:
    """Compare what papers print with what kvplan computes."""
    from kvplan import executors
    from kvplan.reproduction import experiment
    from kvplan.reproduction.judge import Reproduction
    from kvplan.reproduction.runs import reproduced
    from kvplan.show.reproduction import coverage_view, view

    check_writable(output)
    if coverage:
        common.write(coverage_view(experiment.coverage()), format, output)
        return
    known = sorted(experiment.shipped_experiments())
    wanted: dict[str, None] = {}
    for name in names or ["papers"]:
        meant = [each for each in known if name in ("papers", each) or each.startswith(f"{name}-")]
        if not meant:
            raise UsageError(f"no experiment {name!r}; {did_you_mean(name, known, 'there are')}")
        wanted |= dict.fromkeys(meant)
    made: list[Reproduction] = []
    where = "cores" if len(wanted) > 1 else "serial"
    with common.progress_bar() as progress, executors.started(where, None) as engine:
        for each in executors.results(engine, partial(reproduced, announce=common.say_compiling), wanted):
            made.append(each)
            progress(len(made) / len(wanted))
    detailed = len(made) == 1 or bool(set(names or ()) & set(known))
    common.write(view(made, detailed=detailed), format, output)
    changed = [each.experiment.name for each in made if not all(c.as_recorded for c in each.compared)]
    if changed:
        common.say(f"error: other verdicts than on record, please report: {', '.join(changed)}")
        raise typer.Exit(ExitCode.INTERNAL)


@options.of(AnalyzeOptions)
def analyze(
    profile: options.Profile = None,
    format: options.Format = options.DocumentFormat.TEXT,
    output: options.Output = None,
    section: Annotated[
        list[str] | None,
        option(
            "--section",
            metavar="KEY",
            help="Show this part of the details, such as load or wait. May be repeated.",
            autocompletion=completion.sections,
        ),
    ] = None,
    full: options.Full = False,
    plot: options.Plot = None,
    *,
    asked: options.Asked,
) -> None:
    """Analyze a profile. The report has load, worst cycle, stability, caps and thresholds, and says what to do."""
    from kvplan.show.report import view

    if format is not options.DocumentFormat.TEXT and full:
        raise UsageError("--full goes with --format text; the other formats are always whole")
    if format is options.DocumentFormat.JSON and section:
        raise UsageError("--section chooses what text and Markdown show; JSON is always whole")
    common.check_plot(plot, [profile], output)
    loaded = common.read(profile, output)
    with common.progress_bar() as progress:
        report = api.analyze(loaded, **asked, progress=progress)
    shown = view(report, report.of, section, more="; --full shows the details")
    common.write(shown, format, output, full=full, plot=plot)


@options.of(ImportOptions)
def importing(
    files: Annotated[
        list[str] | None,
        argument(
            metavar="[FILE]...",
            help="Whatever there is, told apart by content: logs of engines, results of load generators, tables of "
            "iterations, requests or traces, an answer of /metrics, a config.json, a profile; '-' for standard input.",
        ),
    ] = None,
    *,
    asked: options.Asked,
    base: Annotated[
        str | None,
        option(
            "--base",
            metavar="PROFILE",
            help="Profile that supplies what is neither measured nor estimated; --output may replace it. "
            "Default: it is left out.",
            autocompletion=completion.profiles,
        ),
    ] = None,
    output: options.Output = None,
) -> None:
    """Make one profile of whatever there is: logs, results, requests, metrics, a model."""
    from kvplan.show import gathered

    files = files or []
    if base == "-" and "-" in files:
        raise UsageError("standard input can be the file or the --base, not both")
    read_from = [*files, *(each.partition("=")[2] for each in asked.get("told", ())), asked.get("since", "")]
    common.refuse_overwriting(output, [Path(path) for path in read_from if path])
    kept = None if base is None else common.load(base)
    with common.progress_bar() as progress:
        imported = api.import_files(
            files,
            **asked,
            base=kept,
            folder=output and output.parent,
            announce=common.say_compiling,
            progress=progress,
        )
    common.say_section(gathered.build(imported))
    write_result(imported.profile.text, output)
