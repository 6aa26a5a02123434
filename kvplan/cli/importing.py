"""`kvplan import`: whatever there is of a service becomes one profile."""

from pathlib import Path
from typing import Annotated

from kvplan.cli import common, completion, options
from kvplan.cli.options import argument, option
from kvplan.cli.output import write_result
from kvplan.errors import UsageError
from kvplan.options import ImportOptions

_OPTIONS = {
    "model": option(
        "--model",
        metavar="MODEL",
        help="With --gpu: estimate what no FILE measures. A name of the catalogue, or a config.json.",
        autocompletion=completion.models,
    ),
    "gpu": option(
        "--gpu",
        metavar="NAME",
        help="GPU of --model, such as H100, or a slice of it, H100:3g.40gb. One that kvplan does not know is described "
        "with --gpu-memory, --gpu-bandwidth and --gpu-flops.",
        autocompletion=completion.gpus,
    ),
    "capacity": option(
        "--capacity", min=1, metavar="TOKENS", help="KV cache capacity. Default: what the log says."
    ),
    "tp": option("--tp", min=1, help="GPUs that share each layer. Default: what the log says, or 1."),
    "dp": option("--dp", min=1, help="Data-parallel ranks with --tp GPUs each. Default: like --tp."),
    "ep": option("--ep", min=1, help="GPUs that experts are spread over. Default: like --tp."),
    "pp": option("--pp", min=1, help="Pipeline stages with --tp x --dp GPUs each. Default: like --tp."),
    "dcp": option("--dcp", min=1, help="GPUs of --tp that share a request's KV. Default: like --tp."),
    "weights": option(
        "--weights", metavar="TYPE", help="Type of the weights, such as fp8. Default: the model's."
    ),
    **options.MODEL,
    "utilization": option(
        "--utilization",
        help="Share of the GPU's memory that the engine may use. Default: its own, such as 0.92.",
    ),
    "group": option("--group", metavar="NAME", help="The replica, or model, where a file has several."),
    "since": option("--since", metavar="FILE", help="Earlier answer of /metrics, to count from there."),
    "interval": option("--interval", metavar="TIME", help='Time that /metrics covers, such as "300 s".'),
    "unit": option("--unit", help="What times of requests are in, where the file does not say."),
    "classes": option(
        "--classes", min=1, help="So many classes of one decode length. Default: lengths as recorded."
    ),
    "name": option("--name", metavar="NAME", help="Name of the profile."),
}


@options.spread
def importing(
    files: Annotated[
        list[str] | None,
        argument(
            metavar="[FILE]...",
            help="Whatever there is, told apart by content: logs of engines, results of load generators, tables of "
            "iterations, requests or traces, an answer of /metrics, a config.json, a profile; '-' for standard input.",
        ),
    ] = None,
    *,
    asked: Annotated[ImportOptions, _OPTIONS],
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
    output: options.Output = None,
) -> None:
    """Make one profile of whatever there is: logs, results, requests, metrics, a model."""
    from kvplan.ingest.gathering import Asked, gather_files
    from kvplan.ingest.recognition import named
    from kvplan.show import gathered

    paths = named(files or (), told or ())
    if base == "-" and "-" in (files or ()):
        raise UsageError("standard input can be the file or the --base, not both")
    read_from = [path for _, path in paths] + ([] if asked.since is None else [asked.since])
    common.refuse_overwriting(output, read_from)
    kept = None if base is None else common.load(base)
    with common.progress_bar() as progress:
        told_of = Asked(**vars(asked), progress=progress, announce=common.say_compiling)
        found = gather_files(paths, told_of, kept, Path() if output is None else output.parent)
    common.say_section(gathered.build(found))
    write_result(found.profile.text, output)
