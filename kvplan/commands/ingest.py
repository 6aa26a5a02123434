"""`kvplan fit`, `calibrate` and `import`: what operators have becomes a profile."""

from pathlib import Path
from typing import Annotated

import typer

from kvplan.commands.common import Output, complete_profile, read, say
from kvplan.output import write_result


def fit(
    trace: Annotated[
        Path,
        typer.Argument(
            metavar="TRACE",
            help="Recorded requests: Azure, BurstGPT, Mooncake, Qwen, ServeGen, vLLM bench, or named columns.",
            show_default=False,
        ),
    ],
    base: Annotated[
        str | None,
        typer.Option(
            "--base",
            metavar="PROFILE",
            help="Keep replica, timing, plan and gate of this profile.",
            show_default=False,
            autocompletion=complete_profile,
        ),
    ] = None,
    classes: Annotated[
        int | None,
        typer.Option(
            "--classes",
            min=1,
            help="So many classes of one decode length each, and what they distort; else the lengths as seen.",
            show_default=False,
        ),
    ] = None,
    output: Output = None,
) -> None:
    """Turn a request trace into the classes and rates of a profile."""
    from kvplan.ingest import traffic_fit, traffic_text

    kept = read(base)
    traffic = traffic_fit.measure(trace)
    found = traffic_fit.binned(traffic) if classes is None else traffic_fit.compact(traffic, classes)
    change = None if classes is None else traffic_fit.distortion(traffic, found, kept.model)
    fitted = traffic_text.fitted_profile(traffic, found, kept, default_base=base is None, distortion=change)
    for note in traffic.notes:
        say(f"note: {note}")
    if change is not None:
        say(f"note: {traffic_fit.describe(change)}")
    write_result(fitted.text, output)
