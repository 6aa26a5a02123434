"""`kvplan simulate`: what the simulator says."""

from collections.abc import Sequence
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kvplan.cli import completion
from kvplan.cli.common import (
    DocumentFormat,
    Full,
    Output,
    Plot,
    Profile,
    Slos,
    check_plot,
    option,
    progress_bar,
    read,
    refuse_one_file_for_both,
    refuse_overwriting,
    rendered,
    say,
    say_compiling,
    with_slos,
    write_plot,
)
from kvplan.cli.output import check_writable, write_result
from kvplan.errors import ExitCode, UsageError

if TYPE_CHECKING:
    from kvplan.model import ServingModel
    from kvplan.profile.reading import Profile as Loaded
    from kvplan.show.chart import Chart
    from kvplan.simulation.requests import Requests


_LARGE, _BYTES_EACH = 2 * 10**7, 60  # requests of all runs, and what each takes


class TableFormat(StrEnum):
    """How a comparison is written."""

    TEXT = "text"
    MARKDOWN = "markdown"
    JSON = "json"
    HTML = "html"
    CSV = "csv"


class Kind(StrEnum):
    """How requests arrive; those of `kvplan.simulation.experiments.load.Arrivals`."""

    POISSON = "poisson"
    GAMMA = "gamma"
    BURST = "burst"
    SATURATED = "saturated"
    INTERLEAVED = "interleaved"
    CLOSED = "closed"


def simulate(
    profile: Profile = None,
    policy: Annotated[
        str | None,
        option(
            "--policy",
            metavar="NAME,...",
            help="Scheduling policies to compare on the same arrivals. Default: greedy,rate-limited,vllm; vllm alone "
            "where requests have prefixes in common, which the others do not cache.",
            autocompletion=completion.listed(completion.policies),
        ),
    ] = None,
    setting: Annotated[
        list[str] | None,
        option(
            "--set",
            metavar="POLICY.KEY=VALUE",
            help="Set a parameter of a policy, such as vllm.watermark=0.05; a list has commas. May be repeated.",
        ),
    ] = None,
    arrivals: Annotated[
        Kind | None,
        option(
            "--arrivals",
            help="How requests arrive: at random (poisson), at random but more unevenly (gamma), in bursts (burst), "
            "all at the start (saturated), all at the start and in turns instead of at random (interleaved), or each "
            "client's next when its last is finished (closed). Default: as the profile says, poisson.",
        ),
    ] = None,
    cv: Annotated[
        float | None,
        option(
            "--cv",
            help="Coefficient of variation of the time between arrivals, which is then gamma. Default of --arrivals "
            "gamma: 3.",
        ),
    ] = None,
    concurrency: Annotated[
        int | None, option("--concurrency", help="With --arrivals closed: number of clients. Default: 128.")
    ] = None,
    burst: Annotated[
        str | None,
        option(
            "--burst",
            metavar="HIGH,LOW,ON,OFF",
            help="With --arrivals burst: factors of the rates during and between bursts, and the seconds of "
            "each. Default: 1.5,0.5,60,60.",
        ),
    ] = None,
    trace: Annotated[
        Path | None,
        option(
            "--trace",
            metavar="FILE",
            help="Replay the arrival times and lengths of this trace as they are.",
        ),
    ] = None,
    requests: Annotated[
        int | None,
        option(
            "--requests",
            help="Number of requests that arrive. Default: 10,000, or as many as arrive before --horizon; of sessions "
            "those of ten times the longest.",
        ),
    ] = None,
    horizon: Annotated[
        str | None,
        option(
            "--horizon",
            metavar="TIME",
            help='Simulated time at which the run ends, such as "600 s" or "1 h". Default: when all requests are '
            "finished.",
        ),
    ] = None,
    burst_sessions: Annotated[
        str | None,
        option(
            "--burst-sessions",
            metavar="N@TIME",
            help="So many sessions of the profile beside the others, all of which begin at a time, such as 600@0.",
        ),
    ] = None,
    slo: Slos = None,
    seeds: Annotated[
        int | None, typer.Option("--seeds", help="Number of runs, each with a seed of its own. Default: 1.")
    ] = None,
    seed: Annotated[int | None, typer.Option("--seed", help="First of the seeds. Default: 0.")] = None,
    series: Annotated[
        Path | None,
        option(
            "--series",
            metavar="FILE.csv",
            help="Also write the state over time to this file: KV tokens, waiting and running requests, of the first "
            "seed.",
        ),
    ] = None,
    hindsight: Annotated[
        bool,
        typer.Option(
            "--hindsight",
            help="Add bounds that no policy can surpass. For small runs whose iterations take d0 alone.",
        ),
    ] = False,
    full: Full = False,
    plot: Plot = None,
    format: Annotated[TableFormat, typer.Option("--format", help="Format of the result.")] = TableFormat.TEXT,
    output: Output = None,
) -> None:
    """Simulate a profile at its own rates, or with options scheduling policies side by side on the same arrivals."""
    check_plot(plot, [profile, None if trace is None else str(trace)], output)
    given = (policy, setting, arrivals, cv, concurrency, burst, trace, requests, horizon, burst_sessions)
    if all(option is None for option in (*given, seeds, seed, series)) and not hindsight:
        _operating_point(with_slos(read(profile, output), slo), format, output, plot, full=full)
        return
    from kvplan.show import csv, json
    from kvplan.show import simulation as tables
    from kvplan.simulation.experiments import options, study
    from kvplan.simulation.experiments.hindsight_bound import study_bounds

    refuse_one_file_for_both(series, "--series", output)
    read_from = [Path(name) for name in (profile, trace) if name is not None]
    refuse_overwriting(output, read_from)
    refuse_overwriting(series, read_from, "--series")
    check_writable(series)
    check_writable(output)
    loaded = with_slos(read(profile, output), slo)
    load = options.load(
        kind=None if arrivals is None else arrivals.value,
        cv=cv,
        concurrency=concurrency,
        burst=burst,
        trace=None if trace is None else partial(_recorded, trace),
        requests=requests,
        horizon=horizon,
        burst_sessions=burst_sessions,
        model=loaded.model,
    )
    options.check_sessions(load, loaded.model)
    if requests is None and horizon is None and trace is None:
        load = options.with_sessions(load, loaded.model)
    usual = "vllm" if loaded.model.finds_prefixes or _is_split(loaded.model) else "greedy,rate-limited,vllm"
    names = [name.strip() for name in (usual if policy is None else policy).split(",") if name.strip()]
    policies = options.chosen(names, setting or [])
    fixed = "--arrivals interleaved" if arrivals is Kind.INTERLEAVED else None
    if load.trace is not None:
        fixed = "the trace of the profile" if trace is None else "--trace"
    all_seeds = options.seeds(seed or 0, 1 if seeds is None else seeds, without_chance=fixed)
    if hindsight and format is TableFormat.CSV:
        raise UsageError("--hindsight does not go with --format csv")
    if hindsight and loaded.model.fleet is not None:
        raise UsageError("--hindsight is about one replica; the profile has a [fleet]")
    # before anything is run: most profiles are too large for it
    bounds = study_bounds(loaded.model, load, list(policies), all_seeds) if hindsight else ()
    in_all = (load.requests or 0) * len(policies) * len(all_seeds)
    if in_all >= _LARGE:
        say(f"note: {in_all:,} requests in all take some {in_all * _BYTES_EACH / 1e9:.2g} GB of memory")
    with progress_bar() as progress:
        found = study.study(
            loaded.model, loaded.plan, load, policies, all_seeds, progress=progress, announce=say_compiling
        )
    if series is not None:
        write_result(csv.series(found), series)
    charts: Sequence[Chart] = ()
    if plot is not None or format is TableFormat.HTML:
        from kvplan.show.charts import of_study

        charts = of_study(found, loaded.model.replica.capacity_tokens)
    if format is TableFormat.CSV:
        text = csv.study(found)
    else:
        text = rendered(
            DocumentFormat(format.value),
            output,
            lambda: json.simulate(found, loaded, bounds),
            lambda: [tables.build(found, loaded.name, bounds, full=full or format is not TableFormat.TEXT)],
            loaded.sha256,
            charts=charts,
        )
    write_result(text, output)
    write_plot(charts, plot)
    if found.interrupted:
        say(f"note: {tables.interruption(found)}")
        raise typer.Exit(ExitCode.INTERRUPTED)


def _operating_point(
    loaded: "Loaded", format: TableFormat, output: Path | None, plot: Path | None, *, full: bool
) -> None:
    """The same figures as in the report of the profile."""
    from kvplan.show import csv, json
    from kvplan.show import operating_point as table
    from kvplan.simulation.experiments.load import Load
    from kvplan.study.operating_point import operating_point

    point = operating_point(loaded.model, loaded.plan)
    charts: Sequence[Chart] = ()
    if plot is not None or format is TableFormat.HTML:
        from kvplan.show.charts import of_profile

        charts = of_profile(loaded.model, loaded.plan)
    if format is TableFormat.CSV:
        text = csv.operating_point(point)
    else:
        text = rendered(
            DocumentFormat(format.value),
            output,
            lambda: json.operating_point(point, loaded),
            lambda: [
                table.build(
                    point, Load().on(loaded.model), loaded.name, full=full or format is not TableFormat.TEXT
                )
            ],
            loaded.sha256,
            charts=charts,
        )
    write_result(text, output)
    write_plot(charts, plot)


def _is_split(model: "ServingModel") -> bool:
    """Whether prefill and decode are apart, as `vllm` alone runs them."""
    return model.fleet is not None and model.fleet.is_split


def _recorded(trace: Path) -> "Requests":
    """The requests of a trace; says what was left out of it."""
    from kvplan.ingest.trace.replay import read_trace

    found = read_trace(trace)
    for note in found.notes:
        say(f"note: {note}")
    return found.requests
