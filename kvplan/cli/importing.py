"""`kvplan import`: what an engine or a model says of itself becomes a profile."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kvplan.cli import completion
from kvplan.cli.common import (
    Base,
    KvType,
    Output,
    TensorParallel,
    WeightType,
    argument,
    option,
    read_base,
    read_once,
    refuse_overwriting,
    say,
)
from kvplan.cli.output import write_result

if TYPE_CHECKING:
    from kvplan.ingest.drafts import ObservedDrafts
    from kvplan.ingest.hits import ObservedHits
    from kvplan.ingest.profile_text import Part
    from kvplan.profile.reading import Profile


def log(
    file: Annotated[
        Path,
        argument(
            metavar="FILE",
            help="File with what vLLM, SGLang, TensorRT-LLM or TGI printed when it started, or '-' for standard input.",
        ),
    ],
    base: Base = None,
    output: Output = None,
) -> None:
    """Read KV cache capacity and limits from an engine's log."""
    from kvplan.ingest.log.engine_log import read_engine_log
    from kvplan.ingest.log.text import log_part

    refuse_overwriting(output, [file])
    file = read_once(file, beside=base)
    kept = read_base(base)
    found = read_engine_log(file, kept.model.replica)
    _write(
        kept,
        base,
        [log_part(found, kept)],
        found.notes,
        file,
        replica=f"replica of {file.name}",
        hits=found.hits,
        drafts=found.drafts,
        output=output,
    )


def metrics(
    file: Annotated[
        Path,
        argument(
            metavar="FILE",
            help="File with what /metrics of vLLM or SGLang answered, in Prometheus' text format.",
        ),
    ],
    since: Annotated[
        Path | None,
        option(
            "--since",
            metavar="FILE",
            help="Earlier answer of the same server: only what happened between the two is counted.",
        ),
    ] = None,
    interval: Annotated[
        str | None,
        option(
            "--interval",
            metavar="TIME",
            help='Time that the counters cover, between the two answers or in all, such as "300 s" or "1 h". '
            "Default: what the answers say of it.",
        ),
    ] = None,
    model: Annotated[
        str | None, option("--model", metavar="NAME", help="Model to read, where the metrics are of several.")
    ] = None,
    base: Base = None,
    output: Output = None,
) -> None:
    """Read KV cache capacity, lengths and rates from metrics."""
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
        hits=found.hits,
        drafts=found.drafts,
        output=output,
    )


def model(
    name: Annotated[
        str,
        argument(
            metavar="MODEL",
            help="Model: a config.json of Hugging Face, or a name of the catalogue, such as Llama-3.1-8B.",
            autocompletion=completion.models,
        ),
    ],
    gpu: Annotated[
        str,
        option(
            "--gpu",
            metavar="NAME",
            help="GPU: a name of the catalogue, such as 'H100 SXM'.",
            autocompletion=completion.gpus,
        ),
    ],
    tensor_parallel: TensorParallel = 1,
    utilization: Annotated[
        float,
        typer.Option("--utilization", help="Share of the GPU's memory that the engine may use; 0.9 is 90%."),
    ] = 0.9,
    kv_dtype: KvType = "auto",
    weight_dtype: WeightType = None,
    block_tokens: Annotated[
        int, typer.Option("--block-tokens", help="Page size of the KV cache, in tokens.")
    ] = 16,
    base: Base = None,
    output: Output = None,
) -> None:
    """Estimate KV cache capacity from a model and a GPU."""
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
    part = estimate_part(found, shape, device, kept, default_base=base is None)
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
    hits: "ObservedHits | None" = None,
    drafts: "ObservedDrafts | None" = None,
    output: Path | None,
) -> None:
    """Write the profile with these parts measured, and say what there is to say."""
    from kvplan.ingest.profile_text import composed

    if drafts is not None:
        from kvplan.ingest.drafts import drafts_part

        part = drafts_part(drafts, kept, file.name)
        if part is None:
            notes = (*notes, "accepted drafts go into a --base with [speculative], which says what they cost")
        else:
            parts = (*parts, part)
    profile = composed(
        kept, parts, source=str(file), replica=replica, traffic=traffic, default_base=base is None
    )
    for note in notes:
        say(f"note: {note}")
    if hits is not None and base is not None:
        from kvplan.ingest.hits import compared_with_plan
        from kvplan.report.prefix_cache import cache_block

        plan = cache_block(kept.model)
        if plan is not None and plan.hit_ratio is not None:
            say(f"note: {compared_with_plan(hits, plan.hit_ratio)}")
    write_result(profile.text, output)
