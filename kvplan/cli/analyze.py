"""`kvplan analyze`: the report of a replica."""

from typing import Annotated

from kvplan import api
from kvplan.cli import common, completion, options
from kvplan.cli.options import option
from kvplan.errors import UsageError
from kvplan.options import AnalyzeOptions


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
