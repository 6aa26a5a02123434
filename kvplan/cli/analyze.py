"""`kvplan analyze`: the report of a replica."""

from typing import Annotated

import typer

from kvplan.cli import common, completion, options
from kvplan.cli.options import option
from kvplan.errors import UsageError


def analyze(
    profile: options.Profile = None,
    format: options.Format = options.DocumentFormat.TEXT,
    output: options.Output = None,
    slo: options.Slos = None,
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
    trial: Annotated[
        bool,
        typer.Option(
            "--trial",
            help="Also run the replica where a burst can empty its prefix cache, to see how long that lasts.",
        ),
    ] = False,
    plot: options.Plot = None,
) -> None:
    """Analyze a profile. The report has load, worst cycle, stability, caps and thresholds, and says what to do."""
    from kvplan.report.assembly import analyze as report
    from kvplan.show.report import view

    if format is not options.DocumentFormat.TEXT and full:
        raise UsageError("--full goes with --format text; the other formats are always whole")
    if format is options.DocumentFormat.JSON and section:
        raise UsageError("--section chooses what text and Markdown show; JSON is always whole")
    common.check_plot(plot, [profile], output)
    loaded = common.read(profile, output, slo)
    with common.progress_bar() as progress:
        result = report(
            loaded.model,
            name=loaded.name,
            sha256=loaded.sha256,
            plan=loaded.plan,
            trial=trial,
            progress=progress,
        )
    shown = view(result, loaded, section, more="; --full shows the details")
    common.write(shown, format, output, full=full, plot=plot)
