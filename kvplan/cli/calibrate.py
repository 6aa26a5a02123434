"""`kvplan calibrate`: what an engine logged becomes the timing of a profile."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from kvplan.cli.common import (
    Base,
    KvType,
    Output,
    TensorParallel,
    WeightType,
    argument,
    option,
    read_base,
    refuse_overwriting,
    say,
    say_section,
    sections_text,
)
from kvplan.cli.output import write_result
from kvplan.errors import UsageError


class FitFormat(StrEnum):
    """How a fitted timing is written."""

    TOML = "toml"
    TEXT = "text"
    MARKDOWN = "markdown"


def calibrate(
    files: Annotated[
        list[Path] | None,
        argument(
            metavar="[FILE]...",
            help="What was measured: vLLM or SGLang logs, per-second series, concurrency sweeps, or tables of "
            "iterations.",
        ),
    ] = None,
    base: Base = None,
    capacity: Annotated[
        int | None,
        option(
            "--capacity",
            min=1,
            metavar="TOKENS",
            help="KV cache capacity in tokens, which logged KV cache usage is a share of. "
            "Default: what the log says, or else --base.",
        ),
    ] = None,
    group: Annotated[
        str | None, option("--group", metavar="NAME", help="The replica to fit, where a file has several.")
    ] = None,
    model: Annotated[
        str | None,
        option(
            "--model",
            metavar="MODEL",
            help="Without a FILE: estimate the timing of this model, a config.json or a name of the catalogue.",
        ),
    ] = None,
    gpu: Annotated[
        str | None, option("--gpu", metavar="NAME", help="With --model: its GPU, a name of the catalogue.")
    ] = None,
    tensor_parallel: TensorParallel = 1,
    kv_dtype: KvType = "auto",
    weight_dtype: WeightType = None,
    format: Annotated[
        FitFormat,
        typer.Option("--format", help="toml writes a profile; text and markdown show how good the fit is."),
    ] = FitFormat.TOML,
    output: Output = None,
) -> None:
    """Fit the iteration time to what an engine logged. Without a log, --model and --gpu give an estimate."""
    of_model = (model, gpu, weight_dtype) != (None, None, None) or (tensor_parallel, kv_dtype) != (1, "auto")
    if files and of_model:
        raise UsageError("a FILE is measured; --model, --gpu and their like are for where nothing is")
    if not files and format is not FitFormat.TOML:
        raise UsageError("--format says how good a fit is shown; without a FILE nothing is fitted")
    if files:
        refuse_overwriting(output, files)
        text = _fitted(files, base, capacity, group, format, output)
    elif model is not None and gpu is not None:
        text = _estimated(model, gpu, tensor_parallel, kv_dtype, weight_dtype, base)
    else:
        raise UsageError("a FILE is wanted, or --model and --gpu where nothing is measured")
    write_result(text, output)


def _fitted(
    files: list[Path],
    base: str | None,
    capacity: int | None,
    group: str | None,
    format: FitFormat,
    output: Path | None,
) -> str:
    from kvplan.ingest import profile_text
    from kvplan.ingest.timing import text as timing_text
    from kvplan.ingest.timing.fit import fit_timing
    from kvplan.ingest.timing.reading import read_groups
    from kvplan.layout import calibration

    kept = read_base(base) if base is not None or format is FitFormat.TOML else None
    known = kept.model.replica.memory_tokens if kept is not None and base is not None else None
    groups = read_groups(files, capacity_tokens=capacity, assumed_tokens=known, group=group)
    found = [calibration.Calibration(samples, fit_timing(*samples)) for samples in groups]
    section = calibration.build(found)
    if kept is None or format is not FitFormat.TOML:
        return sections_text([section], output, as_markdown=format is FitFormat.MARKDOWN)
    if len(found) > 1:
        names = ", ".join(repr(one.samples[0].group) for one in found)
        message = f"{len(found)} replicas; choose one with --group, or see all with --format text: {names}"
        raise UsageError(f"{files[0]}: {message}")
    say_section(section)
    ((samples, fit),) = found
    return profile_text.composed(
        kept,
        [timing_text.timing_part(fit, samples)],
        source=str(files[0]),
        replica=None if base is not None else f"replica of {files[0].name}",
        default_base=base is None,
    ).text


def _estimated(
    model: str, gpu: str, tensor_parallel: int, kv_dtype: str, weight_dtype: str | None, base: str | None
) -> str:
    from kvplan.ingest import profile_text
    from kvplan.ingest.model.config import read_model
    from kvplan.ingest.model.hardware import find_gpu
    from kvplan.ingest.model.roofline import roofline
    from kvplan.ingest.model.text import roofline_part

    shape, device = read_model(model), find_gpu(gpu)
    found = roofline(
        shape, device, tensor_parallel=tensor_parallel, kv_dtype=kv_dtype, weight_dtype=weight_dtype
    )
    kept = read_base(base)
    for note in (*shape.notes, *found.notes):
        say(f"note: {note}")
    return profile_text.composed(
        kept,
        [roofline_part(found, shape, device, tensor_parallel)],
        source=model,
        replica=None if base is not None else f"{shape.name} on {device.name}",
        default_base=base is None,
    ).text
