"""`kvplan simulate`: what the simulator says."""

import os
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kvplan.cli.common import (
    Output,
    Profile,
    TableFormat,
    progress_bar,
    read,
    say,
    say_compiling,
    section_text,
)
from kvplan.cli.output import check_writable, write_result
from kvplan.errors import ExitCode, UsageError
from kvplan.version import __version__

if TYPE_CHECKING:
    from kvplan.simulation.requests import Requests


class Kind(StrEnum):
    """How requests arrive; those of `kvplan.simulation.experiments.load.Arrivals`."""

    POISSON = "poisson"
    GAMMA = "gamma"
    BURST = "burst"
    SATURATED = "saturated"
    CLOSED = "closed"


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
    hindsight: Annotated[
        bool,
        typer.Option(
            "--hindsight", help="Add what no policy can surpass; small runs, iterations of d0 alone."
        ),
    ] = False,
    format: Annotated[TableFormat, typer.Option("--format", help="How to write it.")] = TableFormat.TEXT,
    output: Output = None,
) -> None:
    """Policies side by side on the same arrivals."""
    from kvplan.formats import json
    from kvplan.layout import simulation as tables
    from kvplan.simulation.experiments import options, study
    from kvplan.simulation.experiments.hindsight_bound import study_bounds

    if series is not None and output is not None and os.path.realpath(series) == os.path.realpath(output):
        raise UsageError(f"--series and -o are both {output}; one would overwrite the other")
    check_writable(series)
    check_writable(output)
    loaded = read(profile)
    load = options.load(
        kind=None if arrivals is None else arrivals.value,
        cv=cv,
        concurrency=concurrency,
        burst=burst,
        trace=None if trace is None else partial(_recorded, trace),
        requests=requests,
        horizon=horizon,
    )
    policies = options.chosen([name.strip() for name in policy.split(",") if name.strip()], setting or [])
    all_seeds = options.seeds(seed, seeds, replayed=trace is not None)
    if hindsight and format is TableFormat.CSV:
        raise UsageError("--hindsight does not go with --format csv")
    # before anything is run: most profiles are too large for it
    bounds = study_bounds(loaded.model, load, list(policies), all_seeds) if hindsight else ()
    with progress_bar() as progress:
        found = study.study(
            loaded.model, loaded.plan, load, policies, all_seeds, progress=progress, announce=say_compiling
        )
    if series is not None:
        write_result(tables.series_csv(found), series)
    if format is TableFormat.JSON:
        document = study.to_document(found, name=loaded.name, sha256=loaded.sha256, version=__version__)
        if hindsight:
            document["hindsight"] = {one.figure: tables.plain_bound(one) for one in bounds}
        text = json.render(document)
    elif format is TableFormat.CSV:
        text = tables.as_csv(found)
    else:
        section = tables.build(found, loaded.name, bounds)
        text = section_text(
            section, f"kvplan {__version__}, profile {loaded.sha256[:12]} (sha256)", format, output
        )
    write_result(text, output)
    if found.interrupted:
        say(f"note: {tables.interruption(found)}")
        raise typer.Exit(ExitCode.INTERRUPTED)


def _recorded(trace: Path) -> "Requests":
    """The requests of a trace; says what was left out of it."""
    from kvplan.ingest.trace.replay import read_trace

    found = read_trace(trace)
    for note in found.notes:
        say(f"note: {note}")
    return found.requests
