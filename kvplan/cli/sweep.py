"""`kvplan sweep`: figures at many points of a profile."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kvplan.cli import common, options
from kvplan.cli.options import option
from kvplan.errors import UsageError
from kvplan.options import SweepOptions

if TYPE_CHECKING:
    from kvplan.profile import reading as profile_file
    from kvplan.sweeps.definition import Runs, Sweep
    from kvplan.sweeps.run import Progress


@options.of(SweepOptions)
def sweep(
    profile: options.Profile = None,
    *,
    asked: options.Asked,
    output: Annotated[
        Path | None,
        option("--output", "-o", metavar="FILE", help="File for the results, required: .csv or .jsonl."),
    ] = None,
    executor: Annotated[
        str,
        typer.Option(
            "--executor",
            metavar="NAME",
            help="Where points are computed: in this process (serial), on all cores (cores), in a local Dask cluster "
            "(dask), or by a running Dask scheduler (tcp://HOST:PORT).",
        ),
    ] = "cores",
    workers: Annotated[
        int | None, option("--workers", help="Number of processes. Default: one for each core.")
    ] = None,
    resume: Annotated[
        bool,
        typer.Option("--resume", help="Continue the file that an interrupted run of the same sweep left."),
    ] = False,
    plot: options.Plot = None,
) -> None:
    """Compute figures of the report at many points. A point is the profile with other values of some numbers."""
    from kvplan import executors
    from kvplan.sweeps import store
    from kvplan.sweeps.definition import asked_for
    from kvplan.sweeps.run import sweep as run

    if output is None:
        raise UsageError("-o FILE is wanted: a name that ends in .csv or .jsonl")
    store.format_of(output)
    executors.check(executor, workers)
    common.check_plot(plot, [profile], output)
    loaded = common.read(profile, output)
    definition = asked_for(loaded, SweepOptions(**asked))
    if plot is not None:
        from kvplan.show.sweeps import check_sweep

        check_sweep(definition)
    if definition.runs is not None and definition.compiled and executor in ("serial", "cores", "dask"):
        if executor == "cores" and (workers or executors.cores()) > 1:
            executors.get_ready()
        _compile(loaded, definition.runs)
    try:
        with _bar(definition.points) as progress:
            outcome = run(
                definition, output, executor=executor, workers=workers, resume=resume, progress=progress
            )
    except KeyboardInterrupt:
        common.say(f"note: interrupted; --resume goes on with {output}")
        raise
    if outcome.dropped:
        common.say("note: the last line was cut off; its point was computed again")
    if resume:
        common.say(f"note: {outcome.resumed:,} of {outcome.points:,} points were there already")
    if plot is not None:
        _draw(definition, output, plot)


def _draw(definition: "Sweep", results: Path, plot: Path) -> None:
    """Draw the plot of what the file of results holds."""
    from kvplan.show import sweeps
    from kvplan.sweeps.store import read as read_back

    columns = read_back(definition, results, sweeps.columns_of(definition))
    if sweeps.STATUS_KEY not in columns:
        common.say(f"note: --plot has no boundary, since {sweeps.STATUS_KEY} is not among --columns")
    common.write_plot(sweeps.of_sweep(definition, columns), plot)


def _compile(profile: "profile_file.Profile", runs: "Runs") -> None:
    """Compile the loops once, before several processes would; they find them on disk."""
    from contextlib import suppress

    from kvplan.simulation.experiments import study
    from kvplan.simulation.experiments.load import Load
    from kvplan.simulation.experiments.options import chosen

    for name in runs.policies:
        with suppress(UsageError):  # what one point cannot run, others may
            study.study(
                profile.model,
                profile.plan,
                Load(requests=1),
                chosen([name], []),
                [0],
                announce=common.say_compiling,
                compile=True,
            )


@contextmanager
def _bar(points: int) -> "Iterator[Progress | None]":
    """Show points done, how many a second, and the time left, on standard error if that is a terminal."""
    if not common.watched():
        yield None
        return
    from time import monotonic

    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

    from kvplan.units import format_rate, format_seconds

    shown = Progress(
        TextColumn("points"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[pace]}"),
        console=Console(stderr=True),
        transient=True,
    )
    began = monotonic()
    with shown as bar:
        task = bar.add_task("points", total=points, pace="")

        def progress(done: int, mine: int) -> None:
            rate = mine / (monotonic() - began + 1e-9)  # of this call, which a resumed one has not all of
            left = format_seconds((points - done) / rate, 2)
            bar.update(task, completed=done, pace=f"{format_rate(rate, digits=3)}, {left} left")

        yield progress
