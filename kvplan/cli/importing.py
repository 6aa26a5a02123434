"""`kvplan import`: whatever there is of a service becomes one profile."""

from pathlib import Path
from typing import Annotated

import typer

from kvplan.cli import common, completion, options
from kvplan.cli.options import argument, option
from kvplan.cli.output import write_result
from kvplan.engine import EngineName
from kvplan.errors import UsageError


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
    kv_dtype: Annotated[str, options.KV_DTYPE] = "auto",
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
    output: options.Output = None,
) -> None:
    """Make one profile of whatever there is: logs, results, requests, metrics, a model."""
    from kvplan.ingest.gathering import Asked, gather_files
    from kvplan.ingest.recognition import named
    from kvplan.show import gathered
    from kvplan.units import parse_time

    paths = named(files or (), told or ())
    if base == "-" and "-" in (files or ()):
        raise UsageError("standard input can be the file or the --base, not both")
    common.refuse_overwriting(output, [path for _, path in paths] + ([] if since is None else [since]))
    kept = None if base is None else common.load(base)
    with common.progress_bar() as progress:
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
            name=name,
            progress=progress,
            announce=common.say_compiling,
        )
        found = gather_files(paths, asked, kept, Path() if output is None else output.parent)
    common.say_section(gathered.build(found))
    write_result(found.profile.text, output)
