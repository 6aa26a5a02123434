"""What options commands share, and options from the fields of a frozen record."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields, is_dataclass
from enum import StrEnum
from functools import partial
from inspect import Parameter, Signature, signature
from pathlib import Path
from typing import Annotated, Any, get_args, get_origin, get_type_hints

import typer

from kvplan.cli import completion


class DocumentFormat(StrEnum):
    """How an outcome is written."""

    TEXT = "text"
    MARKDOWN = "markdown"
    JSON = "json"
    HTML = "html"


# Where nothing stands for itself: the help says what is taken then.
option, argument = partial(typer.Option, show_default=False), partial(typer.Argument, show_default=False)

Profile = Annotated[
    str | None,
    argument(
        metavar="PROFILE",
        help="A TOML file, '-' for standard input, or the name of a shipped profile. "
        "Default: the shipped llama-3.1-8b-rtx4090.",
        autocompletion=completion.profiles,
    ),
]
KV_DTYPE = typer.Option(
    "--kv-dtype",
    metavar="TYPE",
    help="Data type of the KV cache, such as fp8; auto is the type of the model.",
)
MODEL = {  # how a model runs, by field
    "gpu_memory": option(
        "--gpu-memory", metavar="SIZE", help="Memory of a GPU as --gpu names it, such as 96GB."
    ),
    "gpu_bandwidth": option(
        "--gpu-bandwidth", metavar="RATE", help="Bandwidth of its memory, such as 4TB/s."
    ),
    "gpu_flops": option(
        "--gpu-flops", metavar="RATE", help="Its dense 16-bit operations per second, such as 148TFLOPS."
    ),
    "kv_dtype": KV_DTYPE,
    "loras": option("--loras", min=1, max=10_000, help="LoRA adapters that are loaded at once."),
    "lora_rank": option("--lora-rank", min=1, max=10_000, help="The largest rank of the adapters."),
    "engine": option(
        "--engine",
        metavar="NAME[==VERSION]",
        help="The engine, and its version if that is known: vllm==0.15.1. Default: that of a log, or vllm.",
        autocompletion=completion.engines,
    ),
    "max_num_seqs": option("--max-num-seqs", min=1, help="Most requests that the engine runs at once."),
    "max_num_batched_tokens": option(
        "--max-num-batched-tokens", min=1, help="Most tokens that the engine computes in an iteration."
    ),
    "max_model_len": option(
        "--max-model-len", min=1, help="Most tokens of a request; the engine refuses longer ones."
    ),
}
SLO = option(
    "--slo",
    metavar="KEY<=VALUE",
    help="Objective, such as ttft-p95=2s or 'itl_s.p99 <= 80 ms', beside those of [slo]. May be repeated.",
)
Slos = Annotated[list[str] | None, SLO]
Plot = Annotated[
    Path | None, option("--plot", metavar="FILE.svg", help="Also draw the plots of the result to this file.")
]
Format = Annotated[DocumentFormat, typer.Option("--format", help="Format of the result.")]
Full = Annotated[bool, typer.Option("--full", help="Show everything, not the first screen alone.")]
Output = Annotated[
    Path | None,
    option(
        "--output", "-o", metavar="FILE", help="Write the result to this file instead of standard output."
    ),
]


def spread(command: Callable[..., None]) -> Callable[..., None]:
    """Make options of the fields of a frozen record that a command takes.

    The annotation of its parameter has the record and the options by name of the field. A field that is a tuple is an
    option that may be repeated.
    """
    parameters: list[Parameter] = []
    records: dict[str, Any] = {}
    for parameter in signature(command, eval_str=True).parameters.values():
        record, *options = get_args(parameter.annotation) or (None,)
        if is_dataclass(record):
            records[parameter.name] = record
            parameters += _options_of(record, options[0])
        else:
            parameters.append(parameter.replace(kind=Parameter.KEYWORD_ONLY))

    def run(**given: Any) -> None:
        for name, record in records.items():
            values = {field.name: given.pop(field.name) for field in fields(record)}
            many = {key: tuple(value) for key, value in values.items() if isinstance(value, list)}
            given[name] = record(
                **{key: value for key, value in (values | many).items() if value is not None}
            )
        command(**given)

    run.__doc__, run.__name__ = command.__doc__, command.__name__
    run.__signature__ = Signature(parameters)  # type: ignore[attr-defined]
    return run


def _options_of(record: Any, options: Mapping[str, Any]) -> Iterator[Parameter]:
    types, defaults = get_type_hints(record), {field.name: field.default for field in fields(record)}
    for name, of_field in options.items():
        many = get_origin(types[name]) is tuple
        kind: Any = list[str] | None if many else types[name]
        yield Parameter(
            name,
            Parameter.KEYWORD_ONLY,
            default=None if many else defaults[name],
            annotation=Annotated[kind, of_field],
        )
