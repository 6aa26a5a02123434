"""`kvplan mix`: which classes share a replica."""

from dataclasses import replace
from typing import Annotated

import typer

from kvplan.cli.common import (
    DocumentFormat,
    Format,
    Output,
    Profile,
    Seeds,
    check_runs,
    option,
    progress_bar,
    read,
    rendered,
    say_compiling,
)
from kvplan.cli.output import check_writable, write_result
from kvplan.errors import UsageError


def mix(
    replicas: Annotated[
        int,
        option(
            "--replicas", help="Number of replicas that share the traffic; the profile describes one of them."
        ),
    ],
    profile: Profile = None,
    simulate: Annotated[
        bool,
        typer.Option("--simulate/--no-simulate", help="Simulate the placements too, or only compute them."),
    ] = True,
    requests: Annotated[
        int | None,
        option(
            "--requests",
            help="Number of simulated requests, over all replicas. Default: for each replica as many as replace the "
            "longest 30 times over, and from 6,000 to 200,000.",
        ),
    ] = None,
    seeds: Seeds = 5,
    format: Format = DocumentFormat.TEXT,
    output: Output = None,
) -> None:
    """Choose which classes share a replica: segregated, mixed and the best placement found, by what they serve."""
    from kvplan.analysis.mixing import MAX_REPLICAS
    from kvplan.decide.mixing import placements_compared, refuse_prefixes
    from kvplan.formats import json
    from kvplan.layout import mixing as tables
    from kvplan.simulation.experiments.options import seeds as chosen

    if not 1 <= replicas <= MAX_REPLICAS:
        raise UsageError(f"--replicas {replicas}: 1 to {MAX_REPLICAS:,}")
    check_runs(seeds, requests)
    if requests is not None and not simulate:
        raise UsageError("--requests goes with --simulate only")
    check_writable(output)
    loaded = read(profile, output)
    loaded = replace(loaded, model=replace(loaded.model, fleet=None))  # --replicas says how many there are
    refuse_prefixes(loaded.model)
    with progress_bar() as progress:
        found = placements_compared(
            loaded.model,
            loaded.plan,
            replicas,
            requests=requests,
            seeds=chosen(0, seeds) if simulate else (),
            progress=progress,
            announce=say_compiling,
        )
    text = rendered(
        format,
        output,
        lambda: json.mix(found, loaded),
        lambda: [tables.build(found, loaded.name)],
        loaded.sha256,
    )
    write_result(text, output)
