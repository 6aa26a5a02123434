"""`kvplan import`: whatever there is of a service becomes one profile."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kvplan.cli import completion
from kvplan.cli.common import (
    KvType,
    Output,
    argument,
    load,
    option,
    progress_bar,
    reference_to,
    refuse_overwriting,
    say_compiling,
    say_section,
)
from kvplan.cli.output import write_result
from kvplan.engine import EngineName
from kvplan.errors import UsageError

if TYPE_CHECKING:
    from kvplan.ingest.recognition import FileKind


def importing(
    files: Annotated[
        list[str] | None,
        argument(
            metavar="[FILE]...",
            help="Whatever there is, told apart by content: logs of engines, results of load generators, tables of "
            "iterations, requests or traces, an answer of /metrics, a config.json, a profile; '-' for standard input.",
        ),
    ] = None,
    model: Annotated[
        str | None,
        option(
            "--model",
            metavar="MODEL",
            help="With --gpu: estimate what no FILE measures. A name of the catalogue, or a config.json.",
            autocompletion=completion.models,
        ),
    ] = None,
    gpu: Annotated[
        str | None,
        option("--gpu", metavar="NAME", help="GPU of --model, such as H100.", autocompletion=completion.gpus),
    ] = None,
    engine: Annotated[
        EngineName | None, option("--engine", help="The engine. Default: the one whose log is read, or vllm.")
    ] = None,
    capacity: Annotated[
        int | None,
        option("--capacity", min=1, metavar="TOKENS", help="KV cache capacity. Default: what the log says."),
    ] = None,
    tensor_parallel: Annotated[
        int | None, option("--tp", min=1, help="GPUs that share the model. Default: what the log says, or 1.")
    ] = None,
    weights: Annotated[
        str | None,
        option("--weights", metavar="TYPE", help="Type of the weights, such as fp8. Default: the model's."),
    ] = None,
    kv_dtype: KvType = "auto",
    utilization: Annotated[
        float,
        typer.Option("--utilization", help="Share of the GPU's memory that the engine may use; 0.9 is 90%."),
    ] = 0.9,
    base: Annotated[
        str | None,
        option(
            "--base",
            metavar="PROFILE",
            help="Profile that supplies what is neither measured nor estimated. Default: it is left out.",
            autocompletion=completion.profiles,
        ),
    ] = None,
    told: Annotated[
        list[str] | None,
        option(
            "--as",
            metavar="KIND=FILE",
            help="What a file is that is not recognized: log, timing, drafts, requests, metrics, model or profile.",
        ),
    ] = None,
    group: Annotated[
        str | None, option("--group", metavar="NAME", help="The replica, or model, where a file has several.")
    ] = None,
    since: Annotated[
        Path | None,
        option("--since", metavar="FILE", help="Earlier answer of /metrics, to count from there."),
    ] = None,
    interval: Annotated[
        str | None, option("--interval", metavar="TIME", help='Time that /metrics covers, such as "300 s".')
    ] = None,
    classes: Annotated[
        int | None,
        option(
            "--classes", min=1, help="So many classes of one decode length. Default: lengths as recorded."
        ),
    ] = None,
    name: Annotated[str | None, option("--name", metavar="NAME", help="Name of the profile.")] = None,
    output: Output = None,
) -> None:
    """Make one profile of whatever there is: logs, results, requests, metrics, a model."""
    from kvplan.ingest.gathering import Asked, gather
    from kvplan.ingest.recognition import FileKind
    from kvplan.ingest.text_file import held
    from kvplan.layout import gathered
    from kvplan.units import parse_time

    known = [(kind, _path(file)) for kind, file in map(_told, told or ())]
    unknown = [_path(file) for file in files or ()]
    paths = [*(path for _, path in known), *unknown]
    if not paths and model is None and capacity is None:
        raise UsageError("a FILE is wanted, or --model and --gpu where nothing is measured")
    if base == "-" and "-" in (files or ()):
        raise UsageError("standard input can be the file or the --base, not both")
    refuse_overwriting(output, paths if since is None else [*paths, since])
    kept = None if base is None else load(base)
    with held(paths):
        kinds = _kinds(known, unknown)
        with progress_bar() as progress:
            asked = Asked(
                model=model,
                gpu=gpu,
                engine=engine,
                capacity=capacity,
                tensor_parallel=tensor_parallel,
                weights=weights,
                kv_dtype=kv_dtype,
                utilization=utilization,
                group=group,
                since=since,
                interval_s=None if interval is None else parse_time(interval, "--interval"),
                classes=classes,
                reference=next(
                    (reference_to(path, output) for path in kinds.get(FileKind.REQUESTS, ())), None
                ),
                name=name,
                progress=progress,
                announce=say_compiling,
            )
            found = gather(kinds, asked, kept)
    say_section(gathered.build(found))
    write_result(found.profile.text, output)


def _told(text: str) -> "tuple[FileKind, str]":
    from kvplan.ingest.recognition import FileKind

    kind, equals, file = text.partition("=")
    if not equals or kind not in list(FileKind):
        raise UsageError(f"--as {text[:80]!r}: KIND=FILE, where KIND is {', '.join(FileKind)}")
    return FileKind(kind), file


def _path(file: str) -> Path:
    from kvplan.ingest.text_file import STANDARD_INPUT

    return STANDARD_INPUT if file == "-" else Path(file)


def _kinds(known: "list[tuple[FileKind, Path]]", unknown: list[Path]) -> "dict[FileKind, list[Path]]":
    from kvplan.ingest.recognition import kind_of

    kinds: dict[FileKind, list[Path]] = {}
    for kind, path in [*known, *((kind_of(path), path) for path in unknown)]:
        kinds.setdefault(kind, []).append(path)
    return kinds
