"""`kvplan simulate`: what the simulator says."""

from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kvplan.cli import common, completion, options
from kvplan.cli.options import option
from kvplan.cli.output import check_writable, write_result
from kvplan.errors import ExitCode, UsageError
from kvplan.options import RunOptions

if TYPE_CHECKING:
    from kvplan.model import ServingModel
    from kvplan.simulation.requests import Requests


_LARGE, _BYTES_EACH = 2 * 10**7, 60  # requests of all runs, and what each takes


class TableFormat(StrEnum):
    """How a comparison is written."""

    TEXT = "text"
    MARKDOWN = "markdown"
    JSON = "json"
    HTML = "html"
    CSV = "csv"


_RUNS = {
    "arrivals": option(
        "--arrivals",
        help="How requests arrive: at random (poisson), at random but more unevenly (gamma), in bursts (burst), "
        "all at the start (saturated), all at the start and in turns instead of at random (interleaved), or each "
        "client's next when its last is finished (closed). Default: as the profile says, poisson.",
    ),
    "cv": option(
        "--cv",
        help="Coefficient of variation of the time between arrivals, which is then gamma. Default of --arrivals "
        "gamma: 3.",
    ),
    "concurrency": option("--concurrency", help="With --arrivals closed: number of clients. Default: 128."),
    "burst": option(
        "--burst",
        metavar="HIGH,LOW,ON,OFF",
        help="With --arrivals burst: factors of the rates during and between bursts, and the seconds of "
        "each. Default: 1.5,0.5,60,60.",
    ),
    "trace": option(
        "--trace", metavar="FILE", help="Replay the arrival times and lengths of this trace as they are."
    ),
    "requests": option(
        "--requests",
        help="Number of requests that arrive. Default: 10,000, or as many as arrive before --horizon; of sessions "
        "those of ten times the longest.",
    ),
    "horizon": option(
        "--horizon",
        metavar="TIME",
        help='Simulated time at which the run ends, such as "600 s" or "1 h". Default: when all requests are '
        "finished.",
    ),
    "burst_sessions": option(
        "--burst-sessions",
        metavar="N@TIME",
        help="So many sessions of the profile beside the others, all of which begin at a time, such as 600@0.",
    ),
    "seeds": typer.Option("--seeds", help="Number of runs, each with a seed of its own. Default: 1."),
    "seed": typer.Option("--seed", help="First of the seeds. Default: 0."),
}


@options.spread
def simulate(
    profile: options.Profile = None,
    policy: Annotated[
        str | None,
        option(
            "--policy",
            metavar="NAME,...",
            help="Scheduling policies to compare on the same arrivals. Default: those of --grid; else "
            "greedy,rate-limited,vllm, but vllm alone where requests have prefixes in common, which the others do not "
            "cache.",
            autocompletion=completion.listed(completion.policies),
        ),
    ] = None,
    setting: Annotated[
        list[str] | None,
        option(
            "--set",
            metavar="POLICY.KEY=VALUE",
            help="Set a parameter of a policy, such as vllm.watermark=0.05; a list has commas. May be repeated.",
            autocompletion=completion.parameters,
        ),
    ] = None,
    grid: Annotated[
        list[str] | None,
        option(
            "--grid",
            metavar="POLICY.KEY=VALUES",
            help="Try values of a parameter of a policy, all combinations of several, and mark the best: a list with "
            "commas, LOW:HIGH:COUNT, or LOW:HIGH:logCOUNT for even ratios. May be repeated.",
            autocompletion=completion.parameters,
        ),
    ] = None,
    *,
    runs: Annotated[RunOptions, _RUNS],
    slo: options.Slos = None,
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
    full: options.Full = False,
    plot: options.Plot = None,
    format: Annotated[TableFormat, typer.Option("--format", help="Format of the result.")] = TableFormat.TEXT,
    output: options.Output = None,
) -> None:
    """Simulate a profile at its own rates, or with options scheduling policies side by side on the same arrivals."""
    common.check_plot(plot, [profile, None if runs.trace is None else str(runs.trace)], output)
    if runs == RunOptions() and policy is None and not (setting or grid or series or hindsight):
        from kvplan.show import operating_point as shown
        from kvplan.study.operating_point import operating_point

        loaded = common.read(profile, output, slo)
        point = operating_point(loaded.model, loaded.plan)
        common.write(shown.view(point, loaded), format, output, full=full, plot=plot)
        return
    from kvplan.report.study_notes import interruption
    from kvplan.show.simulation import series_csv, view
    from kvplan.simulation.experiments import study
    from kvplan.simulation.experiments.hindsight_bound import study_bounds
    from kvplan.simulation.experiments.options import chosen, drawn, searched

    _check_files(profile, runs.trace, series, output)
    loaded = common.read(profile, output, slo)
    trace = None if runs.trace is None else partial(_recorded, runs.trace)
    load, seeds = drawn(loaded.model, runs, trace)
    usual = "vllm" if loaded.model.finds_prefixes or _is_split(loaded.model) else "greedy,rate-limited,vllm"
    if policy is None:
        policy = ",".join(searched(grid or [])) or usual
    names = [name.strip() for name in policy.split(",") if name.strip()]
    policies = chosen(names, setting or [], grid or [])
    if hindsight and format is TableFormat.CSV:
        raise UsageError("--hindsight does not go with --format csv")
    if hindsight and loaded.model.fleet is not None:
        raise UsageError("--hindsight is about one replica; the profile has a [fleet]")
    # before anything is run: most profiles are too large for it
    bounds = study_bounds(loaded.model, load, names, seeds) if hindsight else ()
    in_all = (load.requests or 0) * len(policies) * len(seeds)
    if in_all >= _LARGE:
        common.say(
            f"note: {in_all:,} requests in all take some {in_all * _BYTES_EACH / 1e9:.2g} GB of memory"
        )
    with common.progress_bar() as progress:
        found = study.study(
            loaded.model, loaded.plan, load, policies, seeds, progress=progress, announce=common.say_compiling
        )
    if series is not None:
        write_result(series_csv(found), series)
    common.write(view(found, loaded, bounds), format, output, full=full, plot=plot)
    if found.interrupted:
        common.say(f"note: {interruption(found)}")
        raise typer.Exit(ExitCode.INTERRUPTED)


def _check_files(profile: str | None, trace: Path | None, series: Path | None, output: Path | None) -> None:
    """Refuse files that could not be written, or only over another, before the work that they are for."""
    common.refuse_one_file_for_both(series, "--series", output)
    read_from = [Path(name) for name in (profile, trace) if name is not None]
    common.refuse_overwriting(output, read_from)
    common.refuse_overwriting(series, read_from, "--series")
    check_writable(series)
    check_writable(output)


def _is_split(model: "ServingModel") -> bool:
    """Tell whether prefill and decode are apart, as `vllm` alone runs them."""
    return model.fleet is not None and model.fleet.is_split


def _recorded(trace: Path) -> "Requests":
    """Read the requests of a trace, and say what was left out of it."""
    from kvplan.ingest.trace.replay import read_trace

    found = read_trace(trace)
    for note in found.notes:
        common.say(f"note: {note}")
    return found.requests
