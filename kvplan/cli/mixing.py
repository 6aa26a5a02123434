"""`kvplan mix`: which classes share a replica."""

from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

import typer

from kvplan.cli.common import (
    DocumentFormat,
    Output,
    Profile,
    progress_bar,
    read,
    say_compiling,
    sections_text,
)
from kvplan.cli.output import check_writable, write_result
from kvplan.errors import UsageError
from kvplan.version import __version__

if TYPE_CHECKING:
    from collections.abc import Callable

    from kvplan.analysis.mixing import Mixing
    from kvplan.layout.mixing import Simulated
    from kvplan.model import Plan, ServingModel
    from kvplan.profile.reading import Profile as Loaded

_LEAST_SEEDS = 2  # below there is no interval
_LONGER = 3  # than the runs of `emit`: evictions build up slowly from a clean beginning


def mix(
    replicas: Annotated[
        int, typer.Option("--replicas", help="How many there are; the profile is of one.", show_default=False)
    ],
    profile: Profile = None,
    simulate: Annotated[
        bool, typer.Option("--simulate/--no-simulate", help="Simulate each of the placements.")
    ] = True,
    requests: Annotated[
        int | None,
        typer.Option(
            "--requests",
            help="Of the simulated workload, over all replicas; 30 times what memory holds, 6,000 to 30,000 a replica.",
            show_default=False,
        ),
    ] = None,
    seeds: Annotated[int, typer.Option("--seeds", help="Seeds of the simulation, at least 2.")] = 5,
    format: Annotated[
        DocumentFormat, typer.Option("--format", help="How to write it.")
    ] = DocumentFormat.TEXT,
    output: Output = None,
) -> None:
    """Which classes share a replica so that the least is lost: segregated, mixed, and the best found."""
    from kvplan.analysis.mixing import MAX_REPLICAS, compare, diversifications
    from kvplan.formats import json
    from kvplan.layout import mixing as tables
    from kvplan.simulation.experiments.load import MAX_REQUESTS
    from kvplan.simulation.experiments.options import seeds as chosen

    if not 1 <= replicas <= MAX_REPLICAS:
        raise UsageError(f"--replicas {replicas}: 1 to {MAX_REPLICAS:,}")
    if seeds < _LEAST_SEEDS:
        raise UsageError(f"--seeds {seeds}: at least {_LEAST_SEEDS}, for there is no interval with one")
    if requests is not None and not 1 <= requests <= MAX_REQUESTS:
        raise UsageError(f"--requests {requests}: 1 to {MAX_REQUESTS:,}")
    if requests is not None and not simulate:
        raise UsageError("--requests goes with --simulate only")
    check_writable(output)
    loaded = read(profile)
    model = replace(
        loaded.model, schedule=None
    )  # formulas are for the rates as they stand, and so are the runs
    size, all_seeds = requests or _default_requests(loaded, replicas), chosen(0, seeds)
    with progress_bar() as progress:
        searching = None if progress is None else _part(progress, 0.0, 0.5)
        found = compare(model, replicas, progress=searching)
        simulated: tuple[Simulated, ...] = ()
        if simulate:
            simulating = None if progress is None else _part(progress, 0.5, 1.0)
            simulated = _simulated(model, loaded.plan, found, size, all_seeds, simulating)
    outcome = tables.Outcome(
        names=tuple(c.name for c in model.classes),
        replicas=replicas,
        mixing=found,
        changes=diversifications(model, found.best),
        policy="greedy",
        requests=size,
        seeds=tuple(all_seeds),
        simulated=simulated,
        scheduled=loaded.model.schedule is not None,
    )
    if format is DocumentFormat.JSON:
        document = tables.to_document(outcome, name=loaded.name, sha256=loaded.sha256, version=__version__)
        text = json.render(document)
    else:
        section = tables.build(outcome, loaded.name)
        origin = f"kvplan {__version__}, profile {loaded.sha256[:12]} (sha256)"
        text = sections_text([section], origin, output, as_markdown=format is DocumentFormat.MARKDOWN)
    write_result(text, output)


def _default_requests(loaded: "Loaded", replicas: int) -> int:
    from kvplan.engines.advice import default_requests

    return _LONGER * replicas * default_requests(loaded.model)


def _part(progress: "Callable[[float], None]", first: float, last: float) -> "Callable[[float], None]":
    return lambda done: progress(first + (last - first) * done)


def _simulated(
    model: "ServingModel",
    plan: "Plan",
    found: "Mixing",
    requests: int,
    seeds: list[int],
    progress: "Callable[[float], None] | None",
) -> "tuple[Simulated, ...]":
    """Every group once, though several placements may have it."""
    from kvplan.analysis.mixing import subset
    from kvplan.layout.mixing import Simulated
    from kvplan.simulation.experiments.pools import Loads, Pooled, measure, spread, together

    placements = (found.segregated, found.mixed, found.best)
    groups = list(dict.fromkeys(g for p in placements for g in p.groups))
    total = model.total_rate_rps
    pooled = [
        Pooled(
            subset(model, g.classes, g.replicas),
            g.replicas,
            spread(requests, g.pool.offered_rps / total, g.replicas),
        )
        for g in groups
    ]
    measured = measure(pooled, plan, seeds=seeds, progress=progress, announce=say_compiling)
    by_group = dict(zip(groups, measured, strict=True))
    simulated = []
    for placement in placements:
        parts = tuple(by_group[g] for g in placement.groups)
        ended = [part for part in parts if part is not None]
        whole = None
        if len(ended) == len(parts):
            whole = Loads(together([p.saturated for p in ended]), together([p.offered for p in ended]))
        simulated.append(Simulated(parts, whole))
    return tuple(simulated)
