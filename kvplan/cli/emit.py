"""`kvplan emit`: the plan as settings of an engine."""

from typing import TYPE_CHECKING, Annotated

import typer

from kvplan.cli.common import (
    DocumentFormat,
    Output,
    Profile,
    progress_bar,
    read,
    say_compiling,
    terminal,
)
from kvplan.cli.output import check_writable, write_result
from kvplan.engines import EngineName
from kvplan.errors import UsageError
from kvplan.version import __version__

if TYPE_CHECKING:
    from kvplan.decide.requirement import Requirement
    from kvplan.engines.advice import Advice
    from kvplan.profile.reading import Profile as Loaded

_LEAST_SEEDS = 2  # below there is no interval


def emit(
    engine: Annotated[EngineName, typer.Option("--engine", help="For which engine.", show_default=False)],
    profile: Profile = None,
    format: Annotated[
        DocumentFormat, typer.Option("--format", help="How to write them.")
    ] = DocumentFormat.TEXT,
    output: Output = None,
    requests: Annotated[
        int | None,
        typer.Option(
            "--requests",
            help="Requests of each run; ten times what memory holds, 2,000 to 20,000.",
            show_default=False,
        ),
    ] = None,
    seeds: Annotated[int, typer.Option("--seeds", help="Seeds of each comparison, at least 2.")] = 5,
) -> None:
    """The plan as engine settings, those that gain in simulation, and how much."""
    from kvplan.engines import engine as record
    from kvplan.engines.advice import advise, default_requests
    from kvplan.report import assembly as report
    from kvplan.simulation.experiments.load import MAX_REQUESTS
    from kvplan.simulation.experiments.options import seeds as chosen
    from kvplan.simulation.experiments.paired import Bench

    if seeds < _LEAST_SEEDS:
        raise UsageError(f"--seeds {seeds}: at least {_LEAST_SEEDS}, for there is no interval with one")
    if requests is not None and not 1 <= requests <= MAX_REQUESTS:
        raise UsageError(f"--requests {requests}: 1 to {MAX_REQUESTS:,}")
    check_writable(output)
    loaded = read(profile)
    size, all_seeds = requests or default_requests(loaded.model), chosen(0, seeds)
    required = _required(loaded)
    result = report.analyze(loaded.model, name=loaded.name, sha256=loaded.sha256, plan=loaded.plan)
    with progress_bar() as progress:
        bench = Bench(
            loaded.model,
            loaded.plan,
            requests=size,
            seeds=all_seeds,
            progress=progress,
            announce=say_compiling,
        )
        advice = advise(
            record(engine),
            result,
            loaded.model,
            loaded.plan,
            requests=size,
            measure=bench.measure,
            required=required,
        )
    width, _ = terminal(output)
    write_result(_rendered(advice, loaded, format, size, all_seeds, width), output)


def _required(loaded: "Loaded") -> "list[Requirement]":
    """What the profile demands of itself."""
    from kvplan.decide.requirement import parse

    found = []
    for i, text in enumerate(loaded.requirements):
        try:
            found.append(parse(text))
        except UsageError as error:
            raise loaded.error(str(error), "gate", "require", i) from None
    return found


def _rendered(
    advice: "Advice", loaded: "Loaded", format: DocumentFormat, requests: int, seeds: list[int], width: int
) -> str:
    from kvplan.formats import json, markdown
    from kvplan.layout import settings

    origin = f"kvplan {__version__}, profile {loaded.sha256[:12]} (sha256)"
    match format:
        case DocumentFormat.JSON:
            document = settings.to_document(
                advice,
                name=loaded.name,
                sha256=loaded.sha256,
                version=__version__,
                requests=requests,
                seeds=seeds,
            )
            return json.render(document)
        case DocumentFormat.MARKDOWN:
            return markdown.render_section(settings.build(advice, loaded.name, requests, seeds), origin)
        case DocumentFormat.TEXT:
            return settings.text(advice, loaded.name, origin, requests, seeds, width=width)
