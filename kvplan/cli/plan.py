"""`kvplan plan`: from a model, GPUs and a demand to replicas and price; `kvplan measure`: runs that settle it."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from kvplan import api
from kvplan.cli import common, completion, options
from kvplan.cli.options import argument
from kvplan.cli.output import check_writable, write_result
from kvplan.errors import ExitCode, UsageError
from kvplan.options import MeasureOptions, PlanOptions

_SILENT_S = 5.0  # between two lines where nobody watches


@options.of(PlanOptions)
def plan(
    services: Annotated[
        list[str],
        argument(
            metavar="MODEL|PROFILE...",
            help="A model of the catalogue, a config.json of Hugging Face, or profiles of replicas to compare.",
            autocompletion=completion.models,
        ),
    ],
    asked: options.Asked,
    plot: options.Plot = None,
    format: options.Format = options.DocumentFormat.TEXT,
    full: Annotated[
        bool, typer.Option("--full", help="Name every alternative and every kind refused.")
    ] = False,
    file: options.Output = None,
) -> None:
    """Find the cheapest replicas that meet the objectives of a demand. -o plan.toml keeps the plan as a profile."""
    from kvplan.planning.result import Status
    from kvplan.show.plan import view

    check_writable(file)
    common.check_plot(plot, services, file)
    common.refuse_overwriting(file, [Path(service) for service in services])
    wanted = [common.load(service) if service == "-" else service for service in services]
    with _looking() as progress:
        result = api.plan(wanted, **asked, folder=file and file.parent, progress=progress)
    kept = file if file is not None and file.suffix == ".toml" else None
    shown = view(result, full=full, kept=None if kept is None else str(kept))
    common.write(shown, format, None if kept else file)
    if kept and result.profile is not None:
        write_result(result.profile.text, kept)
    if plot is not None:
        common.write_plot(shown.charts, plot)
    if result.status is Status.IMPOSSIBLE:
        raise typer.Exit(ExitCode.GATE_FAILED)
    if result.status is Status.INTERRUPTED:
        raise KeyboardInterrupt


@contextmanager
def _looking() -> Iterator[Callable[[str], None]]:
    """Show what is being looked at, on standard error: on a terminal always, elsewhere a line in five seconds."""
    if not common.watched():
        yield common.seldom(lambda what: common.say(f"planning: {what}"), _SILENT_S)
        return
    from rich.console import Console
    from rich.text import Text

    with Console(stderr=True).status("") as line:
        yield lambda what: line.update(Text(what))


@options.of(MeasureOptions)
def measure(
    profile: Annotated[
        str,
        argument(
            metavar="PROFILE",
            help="A plan, another TOML file, or the name of a shipped profile.",
            autocompletion=completion.profiles,
        ),
    ],
    format: options.Format = options.DocumentFormat.TEXT,
    output: options.Output = None,
    *,
    asked: options.Asked,
) -> None:
    """Propose the runs of a load generator that settle a plan. -o bench.sh writes them as a script."""
    from kvplan.show.measure import view

    check_writable(output)
    if profile == "-":
        raise UsageError("measure: a file or a shipped profile, which the commands that follow name")
    result = api.measure(common.read(profile, output), **asked)
    script = output if output is not None and output.suffix == ".sh" else None
    common.write(view(result, result.asked), format, None if script else output)
    if script is not None:
        write_result(result.script, script)
