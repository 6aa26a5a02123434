"""`kvplan mix`: which classes share a replica."""

from typing import Annotated

from kvplan.cli.common import DocumentFormat, Format, Output, Profile, option, read, rendered
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
    format: Format = DocumentFormat.TEXT,
    output: Output = None,
) -> None:
    """Choose which classes share a replica: segregated, mixed and the best placement found, by what they serve."""
    from kvplan.planning.mixing import MAX_REPLICAS, placements_compared
    from kvplan.show import json
    from kvplan.show import mixing as tables

    if not 1 <= replicas <= MAX_REPLICAS:
        raise UsageError(f"--replicas {replicas}: 1 to {MAX_REPLICAS:,}")
    check_writable(output)
    loaded = read(profile, output)
    found = placements_compared(loaded.model, loaded.plan, replicas)
    text = rendered(
        format,
        output,
        lambda: json.mix(found, loaded),
        lambda: [tables.build(found, loaded.name)],
        loaded.sha256,
    )
    write_result(text, output)
