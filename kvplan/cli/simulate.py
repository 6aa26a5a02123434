"""`kvplan simulate`: results of simulations."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from kvplan import api
from kvplan.cli import common, options
from kvplan.cli.options import option
from kvplan.cli.output import check_writable, write_result
from kvplan.errors import ExitCode, UsageError
from kvplan.options import SimulateOptions


class TableFormat(StrEnum):
    """Formats of a comparison."""

    TEXT = "text"
    MARKDOWN = "markdown"
    JSON = "json"
    HTML = "html"
    CSV = "csv"


@options.of(SimulateOptions)
def simulate(
    profile: options.Profile = None,
    *,
    asked: options.Asked,
    series: Annotated[
        Path | None,
        option(
            "--series",
            metavar="FILE.csv",
            help="Also write the state over time to this file: KV tokens, waiting and running requests, of the first "
            "seed.",
        ),
    ] = None,
    full: options.Full = False,
    plot: options.Plot = None,
    format: Annotated[TableFormat, typer.Option("--format", help="Format of the result.")] = TableFormat.TEXT,
    output: options.Output = None,
) -> None:
    """Simulate a profile at its own rates, or with options scheduling policies side by side on the same arrivals."""
    trace = asked.get("trace")
    common.check_plot(plot, [profile, trace and str(trace)], output)
    if asked.keys() <= {"slo"} and series is None:
        from kvplan.show.operating_point import view as view_point
        from kvplan.study.operating_point import operating_point

        loaded = common.read(profile, output).with_slos(SimulateOptions(**asked).slo)
        point = operating_point(loaded.model, loaded.plan)
        common.write(view_point(point, loaded), format, output, full=full, plot=plot)
        return
    from kvplan.report.study_notes import interruption
    from kvplan.show.simulation import series_csv, view

    _check_files(profile, trace, series, output)
    loaded = common.read(profile, output)
    model = loaded.model
    if "policy" not in asked and not asked.get("grid"):
        apart = model.fleet is not None and model.fleet.is_split  # as `vllm` alone runs them
        asked["policy"] = "vllm" if model.finds_prefixes or apart else "greedy,rate-limited,vllm"
    if "hindsight" in asked and format is TableFormat.CSV:
        raise UsageError("--hindsight does not go with --format csv")
    with common.progress_bar() as progress:
        study = api.simulate(
            loaded,
            **asked,
            note=lambda text: common.say(f"note: {text}"),
            announce=common.say_compiling,
            progress=progress,
        )
    if series is not None:
        write_result(series_csv(study), series)
    shown = view(study, study.profile, study.bounds)
    common.write(shown, format, output, full=full, plot=plot)
    if study.interrupted:
        common.say(f"note: {interruption(study)}")
        raise typer.Exit(ExitCode.INTERRUPTED)


def _check_files(profile: str | None, trace: Path | None, series: Path | None, output: Path | None) -> None:
    """Refuse files that could not be written, or only over another, before the work that they are for."""
    common.refuse_one_file_for_both(series, "--series", output)
    read_from = [Path(name) for name in (profile, trace) if name is not None]
    common.refuse_overwriting(output, read_from)
    common.refuse_overwriting(series, read_from, "--series")
    check_writable(series)
    check_writable(output)
