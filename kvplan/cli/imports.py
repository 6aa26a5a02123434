"""`kvplan import`: what an engine or a model says of itself becomes a profile."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kvplan.cli.common import Output, read_base, refuse_overwriting, say
from kvplan.cli.ingest import Base, KvType, TensorParallel
from kvplan.cli.output import write_result

if TYPE_CHECKING:
    from kvplan.ingest.profile_text import Part
    from kvplan.profile.reading import Profile


def log(
    file: Annotated[
        Path,
        typer.Argument(
            metavar="FILE",
            help="What vLLM, SGLang, TensorRT-LLM or TGI printed when it started.",
            show_default=False,
        ),
    ],
    base: Base = None,
    output: Output = None,
) -> None:
    """KV capacity and limits from an engine's log."""
    from kvplan.ingest.log.engine_log import read_engine_log
    from kvplan.ingest.log.text import log_part

    refuse_overwriting(output, [file])
    kept = read_base(base)
    found = read_engine_log(file)
    _write(
        kept,
        base,
        [log_part(found, kept)],
        found.notes,
        file,
        replica=f"replica of {file.name}",
        output=output,
    )


def metrics(
    file: Annotated[
        Path,
        typer.Argument(
            metavar="FILE",
            help="What the /metrics of vLLM or SGLang answered, in Prometheus text.",
            show_default=False,
        ),
    ],
    since: Annotated[
        Path | None,
        typer.Option(
            "--since",
            metavar="FILE",
            help="An earlier answer of the same server: count what happened between the two.",
            show_default=False,
        ),
    ] = None,
    interval: Annotated[
        str | None,
        typer.Option(
            "--interval",
            metavar="TIME",
            help='Time between the two, or that the counters of one cover, such as "300 s" or "1 h".',
            show_default=False,
        ),
    ] = None,
    model: Annotated[
        str | None,
        typer.Option("--model", metavar="NAME", help="The one of several models.", show_default=False),
    ] = None,
    base: Base = None,
    output: Output = None,
) -> None:
    """KV capacity, lengths and rates from an engine's metrics."""
    from kvplan.ingest.metrics.server import read_metrics
    from kvplan.ingest.metrics.text import metrics_parts
    from kvplan.units import parse_time

    refuse_overwriting(output, [file] if since is None else [file, since])
    kept = read_base(base)
    interval_s = None if interval is None else parse_time(interval, "--interval")
    found = read_metrics(file, since, interval_s=interval_s, model=model)
    parts = metrics_parts(found, kept)
    _write(
        kept,
        base,
        parts,
        found.notes,
        file,
        replica=f"replica of {file.name}" if found.memory_tokens is not None else None,
        traffic=file.name if found.classes else None,
        output=output,
    )


def model(
    name: Annotated[
        str,
        typer.Argument(
            metavar="MODEL", help="A config.json, or a model of the catalogue.", show_default=False
        ),
    ],
    gpu: Annotated[
        str, typer.Option("--gpu", metavar="NAME", help="A GPU of the catalogue.", show_default=False)
    ],
    tensor_parallel: TensorParallel = 1,
    utilization: Annotated[
        float, typer.Option("--utilization", help="Share of the GPU's memory that the engine takes.")
    ] = 0.9,
    kv_dtype: KvType = "auto",
    weight_dtype: Annotated[
        str | None,
        typer.Option(
            "--weight-dtype",
            metavar="TYPE",
            help="Type of the weights, such as fp8; else that of the configuration.",
            show_default=False,
        ),
    ] = None,
    block_tokens: Annotated[int, typer.Option("--block-tokens", help="Page size of the KV cache.")] = 16,
    base: Base = None,
    output: Output = None,
) -> None:
    """KV capacity estimated from a model and a GPU."""
    from kvplan.ingest.model.config import read_model
    from kvplan.ingest.model.estimate import estimate_replica
    from kvplan.ingest.model.hardware import find_gpu
    from kvplan.ingest.model.text import estimate_part

    shape, device = read_model(name), find_gpu(gpu)
    found = estimate_replica(
        shape,
        device,
        utilization=utilization,
        kv_dtype=kv_dtype,
        tensor_parallel=tensor_parallel,
        block_tokens=block_tokens,
        weight_dtype=weight_dtype,
    )
    kept = read_base(base)
    part = estimate_part(found, shape, device, kept)
    several = f"{tensor_parallel} x " if tensor_parallel > 1 else ""
    replica = f"{shape.name} on {several}{device.name}"
    _write(kept, base, [part], found.notes, Path(name), replica=replica, output=output)


def _write(
    kept: "Profile",
    base: str | None,
    parts: "Sequence[Part]",
    notes: Sequence[str],
    file: Path,
    *,
    replica: str | None = None,
    traffic: str | None = None,
    output: Path | None,
) -> None:
    """Write the profile with these parts measured, and say what there is to say."""
    from kvplan.ingest.profile_text import composed

    profile = composed(
        kept, parts, source=str(file), replica=replica, traffic=traffic, default_base=base is None
    )
    for note in notes:
        say(f"note: {note}")
    write_result(profile.text, output)
