"""`kvplan fit`: a request trace becomes classes and rates of a profile."""

import os
from pathlib import Path
from typing import Annotated

from kvplan.cli.common import Base, Output, argument, option, read_base, read_once, refuse_overwriting, say
from kvplan.cli.output import write_result


def fit(
    trace: Annotated[
        Path,
        argument(
            metavar="TRACE",
            help="File of recorded requests, or '-' for standard input: "
            "an Azure, BurstGPT, Mooncake, Qwen or ServeGen trace, the result of a "
            "vLLM benchmark, or a table with named columns.",
        ),
    ],
    base: Base = None,
    classes: Annotated[
        int | None,
        option(
            "--classes",
            min=1,
            help="Fit so many classes of one decode length each, and say what that distorts. "
            "Default: the lengths as they were recorded, in bins.",
        ),
    ] = None,
    output: Output = None,
) -> None:
    """Turn a request trace into the classes and rates of a profile."""
    from kvplan.ingest.trace import fit as traffic_fit
    from kvplan.ingest.trace import text as traffic_text
    from kvplan.ingest.trace.traffic import measure

    refuse_overwriting(output, [trace])
    reference = _reference(trace, output)
    trace = read_once(trace, beside=base)
    kept = read_base(base)
    traffic = measure(trace)
    found = traffic_fit.binned(traffic) if classes is None else traffic_fit.compact(traffic, classes)
    change = None if classes is None else traffic_fit.distortion(traffic, found, kept.model)
    fitted = traffic_text.fitted_profile(
        traffic, found, kept, default_base=base is None, distortion=change, reference=reference
    )
    for note in traffic.notes:
        say(f"note: {note}")
    if traffic.prefixes is not None:
        say(f"note: {traffic_text.hit_note(traffic.prefixes, kept.model.replica.memory_tokens)}")
    if change is not None:
        say(f"note: {traffic_fit.describe(change)}")
    write_result(fitted.text, output)


def _reference(trace: Path, output: Path | None) -> str | None:
    """How a profile that is written there refers to the trace; None where that is standard input or a pipe."""
    if not trace.is_file():
        return None
    folder = Path() if output is None else output.parent
    return Path(os.path.relpath(trace, folder)).as_posix()
