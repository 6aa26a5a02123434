"""`kvplan calibrate`: what an engine logged becomes the timing of a profile."""

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple

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
    progress_bar,
    read_base,
    read_once,
    refuse_overwriting,
    say,
    say_compiling,
    say_section,
    sections_text,
)
from kvplan.cli.output import write_result
from kvplan.errors import UsageError

if TYPE_CHECKING:
    from kvplan.ingest.model.hardware import Gpu
    from kvplan.ingest.model.roofline import Roofline
    from kvplan.ingest.model.shape import ModelShape
    from kvplan.ingest.timing.drafts import DraftRuns
    from kvplan.ingest.timing.reading import Measured
    from kvplan.layout.calibration import Calibration
    from kvplan.profile.reading import Profile


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
            help="What was measured, '-' for standard input: "
            "logs of vLLM or SGLang, results of load generators (vLLM bench, GuideLLM, AIPerf, "
            "inference-perf and others), requests of a run, or tables of iterations.",
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
            help="Model, a config.json or a name of the catalogue: its estimated timing counts where a FILE leaves "
            "something open, or without a FILE altogether.",
            autocompletion=completion.models,
        ),
    ] = None,
    gpu: Annotated[
        str | None,
        option(
            "--gpu",
            metavar="NAME",
            help="With --model: its GPU, a name of the catalogue.",
            autocompletion=completion.gpus,
        ),
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
    if (model is None) != (gpu is None):
        raise UsageError("--model and --gpu go together")
    if model is None and (tensor_parallel, kv_dtype, weight_dtype) != (1, "auto", None):
        raise UsageError("--tensor-parallel, --kv-dtype and --weight-dtype say how --model runs on --gpu")
    if not files and format is not FitFormat.TOML:
        raise UsageError("--format says how good a fit is shown; without a FILE nothing is fitted")
    estimate = None
    if model is not None and gpu is not None:
        estimate = _Estimate(model, gpu, tensor_parallel, kv_dtype, weight_dtype)
    if files:
        refuse_overwriting(output, files)
        files = [read_once(file, beside=base) for file in files]
        text = _fitted(files, base, capacity, group, estimate, format, output)
    elif estimate is not None:
        text = _estimated(estimate, base)
    else:
        raise UsageError("a FILE is wanted, or --model and --gpu where nothing is measured")
    write_result(text, output)


class _Estimate(NamedTuple):
    """What is asked of a model on GPUs nobody has measured."""

    model: str
    gpu: str
    tensor_parallel: int
    kv_dtype: str
    weight_dtype: str | None

    def roofline(self) -> tuple["Roofline", "ModelShape", "Gpu"]:
        from kvplan.ingest.model.config import read_model
        from kvplan.ingest.model.hardware import find_gpu
        from kvplan.ingest.model.roofline import roofline

        shape, device = read_model(self.model), find_gpu(self.gpu)
        found = roofline(
            shape,
            device,
            tensor_parallel=self.tensor_parallel,
            kv_dtype=self.kv_dtype,
            weight_dtype=self.weight_dtype,
        )
        return found, shape, device


def _fitted(
    files: list[Path],
    base: str | None,
    capacity: int | None,
    group: str | None,
    estimate: _Estimate | None,
    format: FitFormat,
    output: Path | None,
) -> str:
    from kvplan.ingest import profile_text
    from kvplan.ingest.timing import text as timing_text
    from kvplan.ingest.timing.drafts import read_drafts
    from kvplan.ingest.timing.reading import listed, read_groups
    from kvplan.layout import calibration

    kept = read_base(base, silent=format is not FitFormat.TOML)
    if (drafts := read_drafts(files[0], group)) is not None:
        if len(files) > 1:
            raise UsageError(f"{files[1]}: runs with drafts are fitted alone")
        return _drafted(drafts, kept, base is None, format, output)
    known = kept.model.replica.memory_tokens if base is not None else None
    groups = read_groups(files, capacity_tokens=capacity, assumed_tokens=known, group=group)
    if format is FitFormat.TOML and len(groups) > 1:
        names = listed([one[0].group for one in groups])
        message = f"{len(groups)} replicas; choose one with --group, or see all with --format text: {names}"
        raise UsageError(f"{files[0]}: {message}")
    found = [_calibrated(measured, kept, base is not None, capacity, estimate) for measured in groups]
    section = calibration.build(found)
    if format is not FitFormat.TOML:
        return sections_text([section], output, as_markdown=format is FitFormat.MARKDOWN)
    say_section(section)
    ((measured, fit, prior),) = found
    return profile_text.composed(
        kept,
        [timing_text.timing_part(fit, measured, prior)],
        source=str(files[0]),
        replica=None if base is not None else f"replica of {files[0].name}",
        default_base=base is None,
    ).text


def _drafted(
    measured: "DraftRuns", base: "Profile", default_base: bool, format: FitFormat, output: Path | None
) -> str:
    from kvplan.ingest.profile_text import composed
    from kvplan.ingest.timing.drafts import drafts_part, fit_drafts
    from kvplan.layout import drafts

    found = fit_drafts(measured)
    section = drafts.build(found)
    if format is not FitFormat.TOML:
        return sections_text([section], output, as_markdown=format is FitFormat.MARKDOWN)
    say_section(section)
    known = base.model.drafts
    part = drafts_part(found, lookahead=known is None or known.lookahead)
    return composed(base, [part], source=measured.source, default_base=default_base).text


def _calibrated(
    measured: tuple["Measured", ...],
    base: "Profile",
    wanted: bool,
    capacity: int | None,
    estimate: _Estimate | None,
) -> "Calibration":
    """The fit of one replica; `wanted` is whether somebody asked for the base."""
    from kvplan.ingest.timing import prior as priors
    from kvplan.ingest.timing.fit import fit_measured
    from kvplan.layout.calibration import Calibration

    if estimate is not None:
        found, shape, device = estimate.roofline()
        prior: priors.Prior | None = priors.Prior(
            found.timing, f"the estimate for {shape.name} on {device.name}"
        )
    else:
        prior = None if wanted else priors.of_measured(measured)
    believed = wanted or prior is not None
    drafts, timing = base.model.drafts, base.model.timing
    if wanted and drafts is not None:
        say("note: what is measured is taken to be without the drafts of the base")
    prior = prior or priors.Prior(timing if drafts is None else drafts.unslowed(timing), base.source)
    replica = base.model.replica if wanted else None
    with progress_bar() as progress:
        fit = fit_measured(
            measured,
            prior.timing,
            believed=believed,
            replica=replica,
            capacity_tokens=capacity,
            progress=progress,
            announce=say_compiling,
        )
    return Calibration(measured, fit, prior)


def _estimated(estimate: _Estimate, base: str | None) -> str:
    from kvplan.ingest import profile_text
    from kvplan.ingest.model.text import roofline_part

    found, shape, device = estimate.roofline()
    kept = read_base(base)
    for note in (*shape.notes, *found.notes):
        say(f"note: {note}")
    return profile_text.composed(
        kept,
        [roofline_part(found, shape, device, estimate.tensor_parallel)],
        source=estimate.model,
        replica=None if base is not None else f"{shape.name} on {device.name}",
        default_base=base is None,
    ).text
