"""`kvplan fit`, `calibrate` and `import`: what operators have becomes a profile."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from kvplan.cli.common import (
    Output,
    TableFormat,
    complete_profile,
    read_base,
    refuse_overwriting,
    say,
    say_section,
    section_text,
)
from kvplan.cli.output import write_result
from kvplan.errors import UsageError
from kvplan.version import __version__

Base = Annotated[
    str | None,
    typer.Option(
        "--base",
        metavar="PROFILE",
        help="Keep of this profile what is not measured; else the shipped default supplies it.",
        show_default=False,
        autocompletion=complete_profile,
    ),
]


TensorParallel = Annotated[
    int, typer.Option("--tensor-parallel", "--tp", min=1, help="GPUs that share the model.")
]
KvType = Annotated[str, typer.Option("--kv-dtype", metavar="TYPE", help="Type of the KV cache, such as fp8.")]


class FitFormat(StrEnum):
    """How a fitted timing is written."""

    TOML = "toml"
    TEXT = "text"
    MARKDOWN = "markdown"


def fit(
    trace: Annotated[
        Path,
        typer.Argument(
            metavar="TRACE",
            help="Recorded requests: Azure, BurstGPT, Mooncake, Qwen, ServeGen, vLLM bench, or named columns.",
            show_default=False,
        ),
    ],
    base: Base = None,
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
    from kvplan.ingest.trace import fit as traffic_fit
    from kvplan.ingest.trace import text as traffic_text
    from kvplan.ingest.trace.traffic import measure

    refuse_overwriting(output, [trace])
    kept = read_base(base)
    traffic = measure(trace)
    found = traffic_fit.binned(traffic) if classes is None else traffic_fit.compact(traffic, classes)
    change = None if classes is None else traffic_fit.distortion(traffic, found, kept.model)
    fitted = traffic_text.fitted_profile(traffic, found, kept, default_base=base is None, distortion=change)
    for note in traffic.notes:
        say(f"note: {note}")
    if change is not None:
        say(f"note: {traffic_fit.describe(change)}")
    write_result(fitted.text, output)


def calibrate(
    files: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="[FILE]...",
            help="vLLM or SGLang logs, per-second series, concurrency sweeps, tables of iterations.",
            show_default=False,
        ),
    ] = None,
    base: Base = None,
    capacity: Annotated[
        int | None,
        typer.Option(
            "--capacity",
            min=1,
            metavar="TOKENS",
            help="KV capacity that usage is a share of; else as the log or --base has it.",
            show_default=False,
        ),
    ] = None,
    group: Annotated[
        str | None,
        typer.Option(
            "--group",
            metavar="NAME",
            help="The one to fit, in a file that has several replicas.",
            show_default=False,
        ),
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(
            "--model",
            metavar="MODEL",
            help="Where nothing is measured: a config.json, or a model of the catalogue.",
            show_default=False,
        ),
    ] = None,
    gpu: Annotated[
        str | None,
        typer.Option("--gpu", metavar="NAME", help="Its GPU, of the catalogue.", show_default=False),
    ] = None,
    tensor_parallel: TensorParallel = 1,
    kv_dtype: KvType = "auto",
    format: Annotated[
        FitFormat, typer.Option("--format", help="A profile, or how good the fit is.")
    ] = FitFormat.TOML,
    output: Output = None,
) -> None:
    """Fit the iteration time to what an engine logged."""
    if files and (model is not None or gpu is not None or tensor_parallel != 1 or kv_dtype != "auto"):
        raise UsageError("a FILE is measured; --model, --gpu and their like are for where nothing is")
    if not files and format is not FitFormat.TOML:
        raise UsageError("--format says how good a fit is shown; without a FILE nothing is fitted")
    if files:
        refuse_overwriting(output, files)
        _calibrate(files, base, capacity, group, format, output)
    elif model is not None and gpu is not None:
        _estimate_timing(model, gpu, tensor_parallel, kv_dtype, base, output)
    else:
        raise UsageError("a FILE is wanted, or --model and --gpu where nothing is measured")


def _calibrate(
    files: list[Path],
    base: str | None,
    capacity: int | None,
    group: str | None,
    format: FitFormat,
    output: Path | None,
) -> None:
    from kvplan.ingest import profile_text
    from kvplan.ingest.timing import text as timing_text
    from kvplan.ingest.timing.fit import fit_timing
    from kvplan.ingest.timing.reading import read_groups
    from kvplan.layout import calibration

    kept = read_base(base) if base is not None or format is FitFormat.TOML else None
    known = kept.model.replica.memory_tokens if kept is not None and base is not None else None
    groups = read_groups(files, capacity_tokens=capacity, assumed_tokens=known, group=group)
    found = [calibration.Calibration(samples, fit_timing(*samples)) for samples in groups]
    section, origin = calibration.build(found), f"kvplan {__version__}"
    if kept is None or format is not FitFormat.TOML:
        write_result(section_text(section, origin, TableFormat(format.value), output), output)
        return
    if len(found) > 1:
        names = ", ".join(repr(one.samples[0].group) for one in found)
        message = f"{len(found)} replicas; choose one with --group, or see all with --format text: {names}"
        raise UsageError(f"{files[0]}: {message}")
    say_section(section, origin)
    ((samples, fit),) = found
    fitted = profile_text.composed(
        kept,
        [timing_text.timing_part(fit, samples)],
        source=str(files[0]),
        replica=None if base is not None else f"replica of {files[0].name}",
        default_base=base is None,
    )
    write_result(fitted.text, output)


def _estimate_timing(
    model: str, gpu: str, tensor_parallel: int, kv_dtype: str, base: str | None, output: Path | None
) -> None:
    from kvplan.ingest import profile_text
    from kvplan.ingest.model.config import read_model
    from kvplan.ingest.model.hardware import find_gpu
    from kvplan.ingest.model.roofline import roofline
    from kvplan.ingest.model.text import roofline_part

    shape, device = read_model(model), find_gpu(gpu)
    found = roofline(shape, device, tensor_parallel=tensor_parallel, kv_dtype=kv_dtype)
    kept = read_base(base)
    for note in (*shape.notes, *found.notes):
        say(f"note: {note}")
    estimated = profile_text.composed(
        kept,
        [roofline_part(found, shape, device, tensor_parallel)],
        source=model,
        replica=None if base is not None else f"{shape.name} on {device.name}",
        default_base=base is None,
    )
    write_result(estimated.text, output)
