"""`kvplan emit`: the plan as settings of an engine."""

from enum import StrEnum
from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer

from kvplan import __version__
from kvplan.commands.common import DocumentFormat, Output, Profile, progress_bar, read, say_compiling
from kvplan.errors import UsageError
from kvplan.output import check_writable, write_result

if TYPE_CHECKING:
    from kvplan.engines import Advice
    from kvplan.profile import Profile as Loaded

_LEAST_SEEDS = 2  # below there is no interval


class EngineName(StrEnum):
    """Engines; those of `kvplan.engines.Engine`."""

    VLLM = "vllm"
    SGLANG = "sglang"
    TRTLLM = "trtllm"


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
            help="Requests of each run; ten times what memory holds, 2,000 to 10,000.",
            show_default=False,
        ),
    ] = None,
    seeds: Annotated[int, typer.Option("--seeds", help="Seeds of each comparison, at least 2.")] = 5,
) -> None:
    """The plan as engine settings, those that gain in simulation, and how much."""
    from kvplan import report
    from kvplan.engines import Engine, advise, default_requests
    from kvplan.simulation.options import seeds as chosen
    from kvplan.simulation.paired import measure
    from kvplan.simulation.study import MAX_REQUESTS

    if seeds < _LEAST_SEEDS:
        raise UsageError(f"--seeds {seeds}: at least {_LEAST_SEEDS}, for there is no interval with one")
    if requests is not None and not 1 <= requests <= MAX_REQUESTS:
        raise UsageError(f"--requests {requests}: 1 to {MAX_REQUESTS:,}")
    check_writable(output)
    loaded = read(profile)
    size, all_seeds = requests or default_requests(loaded.model), chosen(0, seeds)
    result = report.analyze(loaded.model, name=loaded.name, sha256=loaded.sha256, plan=loaded.plan)
    with progress_bar() as progress:
        run = partial(
            measure,
            loaded.model,
            loaded.plan,
            requests=size,
            seeds=all_seeds,
            progress=progress,
            announce=say_compiling,
        )
        advice = advise(Engine(engine.value), result, loaded.model, loaded.plan, requests=size, measure=run)
    write_result(_rendered(advice, loaded, format, size, all_seeds), output)


def _rendered(
    advice: "Advice", loaded: "Loaded", format: DocumentFormat, requests: int, seeds: list[int]
) -> str:
    from kvplan.render import json, markdown, settings

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
            return settings.text(advice, loaded.name, origin, requests, seeds)
