"""`kvplan mix`: which classes share a replica."""

from typing import Annotated

from kvplan.cli import common, options
from kvplan.cli.options import option
from kvplan.cli.output import check_writable
from kvplan.errors import UsageError


def mix(
    replicas: Annotated[
        int,
        option(
            "--replicas", help="Number of replicas that share the traffic; the profile describes one of them."
        ),
    ],
    profile: options.Profile = None,
    format: options.Format = options.DocumentFormat.TEXT,
    output: options.Output = None,
) -> None:
    """Choose which classes share a replica: segregated, mixed and the best placement found, by what they serve."""
    from kvplan.planning.mixing import MAX_REPLICAS, placements_compared
    from kvplan.show.mixing import view

    if not 1 <= replicas <= MAX_REPLICAS:
        raise UsageError(f"--replicas {replicas}: 1 to {MAX_REPLICAS:,}")
    check_writable(output)
    loaded = common.read(profile, output)
    compared = placements_compared(loaded.model, loaded.plan, replicas)
    common.write(view(compared, loaded), format, output)
