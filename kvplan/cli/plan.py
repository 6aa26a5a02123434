"""`kvplan plan`: from a model, GPUs and a demand to replicas, settings and price."""

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

import kvplan
from kvplan.cli import completion
from kvplan.cli.common import (
    DocumentFormat,
    Format,
    KvType,
    Output,
    Plot,
    Slos,
    argument,
    check_plot,
    load,
    option,
    refuse_overwriting,
    rendered,
    write_plot,
)
from kvplan.cli.output import check_writable, write_result
from kvplan.engine import EngineName
from kvplan.errors import ExitCode

if TYPE_CHECKING:
    from kvplan.show.chart import Chart


class Router(StrEnum):
    """What sends requests to replicas."""

    ANY = "any"
    SESSION = "session"
    ROUND_ROBIN = "round-robin"
    LEAST_REQUESTS = "least-requests"


def plan(
    services: Annotated[
        list[str],
        argument(
            metavar="MODEL|PROFILE...",
            help="A model of the catalogue, a config.json of Hugging Face, or profiles of replicas to compare.",
            autocompletion=completion.models,
        ),
    ],
    gpu: Annotated[
        str | None, option("--gpu", metavar="NAME,...", help="GPUs to compare, such as H100,B200.")
    ] = None,
    tp: Annotated[
        str | None, option("--tp", metavar="N,...", help="GPUs that share the model. Default: 1,2,4,8.")
    ] = None,
    weights: Annotated[
        str | None,
        option(
            "--weights",
            metavar="TYPE,...",
            help="Types of the weights, such as bf16,fp8. Default: the model's own, and fp8 where the GPU has it.",
        ),
    ] = None,
    kv_dtype: KvType = "auto",
    engine: Annotated[EngineName, typer.Option("--engine", help="The engine.")] = EngineName.VLLM,
    rate: Annotated[
        float | None, option("--rate", help="Requests/s of the whole service; of conversations, turns/s.")
    ] = None,
    users: Annotated[
        int | None, option("--users", help="Users who ask, read the answer, think, and ask again.")
    ] = None,
    think: Annotated[
        str | None,
        option("--think", metavar="TIME", help="From an answer to the next question. Default: 30 s."),
    ] = None,
    input: Annotated[
        str | None,
        option(
            "--in", metavar="N[:CV]", help="Tokens of a prompt, mean and coefficient of variation (0.95)."
        ),
    ] = None,
    out: Annotated[
        str | None, option("--out", metavar="N[:CV]", help="Tokens of an answer; like --in.")
    ] = None,
    trace: Annotated[
        Path | None,
        option(
            "--trace",
            metavar="FILE",
            help="Requests to replay, instead of --in and --out; faster with --rate.",
        ),
    ] = None,
    system_prompt: Annotated[
        int, typer.Option("--system-prompt", help="Tokens that all prompts begin with, beside --in.")
    ] = 0,
    turns: Annotated[
        float,
        typer.Option("--turns", help="Turns of a conversation, in the mean; each carries all before it."),
    ] = 1.0,
    slo: Slos = None,
    gpu_hour: Annotated[
        str | None,
        option("--gpu-hour", metavar="PRICE", help="Price of a GPU an hour: 3, or H100=3,B200=5.5."),
    ] = None,
    replica_hour: Annotated[
        str | None,
        option(
            "--replica-hour",
            metavar="PRICE",
            help="Price of a replica an hour: 12, or NAME=12 by GPU or file name.",
        ),
    ] = None,
    headroom: Annotated[
        str | None,
        option("--headroom", metavar="SHARE", help="Added to the demand, such as 20%. Default: 0."),
    ] = None,
    slower: Annotated[
        str | None,
        option(
            "--slower",
            metavar="SHARE",
            help="Objectives must hold with iterations longer by this share, too. Default: 5%.",
        ),
    ] = None,
    settings: Annotated[
        list[str] | None,
        option(
            "--settings",
            metavar="KEY=VALUE",
            help="A setting of the engine that is given instead of searched, such as max_num_batched_tokens=8192. "
            "May be repeated.",
        ),
    ] = None,
    router: Annotated[Router, typer.Option("--router", help="What sends requests to replicas.")] = Router.ANY,
    executor: Annotated[
        str,
        option(
            "--executor",
            metavar="NAME",
            help="Where kinds of replicas are looked at: in this process (serial), on all cores (cores), in a local "
            "Dask cluster (dask), or by a running Dask scheduler (tcp://HOST:PORT).",
        ),
    ] = "serial",
    split: Annotated[
        bool,
        typer.Option("--split", help="Also look at prefill and decode on replicas of their own."),
    ] = False,
    schedule: Annotated[
        str | None,
        option(
            "--schedule",
            metavar="FILE",
            help="Plan a day with replicas that come and go: a TOML file with a [workload] period and schedule, a "
            "trace, or 'own' for the profile's schedule.",
        ),
    ] = None,
    load_time: Annotated[
        str | None,
        option(
            "--load-time",
            metavar="TIME",
            help="With --schedule: from the start of a replica until it serves. Default: 2 min.",
        ),
    ] = None,
    plot: Plot = None,
    format: Format = DocumentFormat.TEXT,
    full: Annotated[
        bool, typer.Option("--full", help="Name every alternative and every kind refused.")
    ] = False,
    output: Output = None,
) -> None:
    """Find the cheapest replicas that meet the objectives of a demand. -o plan.toml keeps the plan as a profile."""
    from kvplan.planning.result import Status
    from kvplan.show import json
    from kvplan.show import plan as screen

    check_writable(output)
    check_plot(plot, services, output)
    refuse_overwriting(output, [Path(one) for one in services])
    with _looking() as progress:
        found = kvplan.plan(
            [load(one) if one == "-" else one for one in services],
            gpu=gpu,
            tp=tp,
            weights=weights,
            kv_dtype=kv_dtype,
            engine=engine,
            rate=rate,
            users=users,
            think=think,
            input=input,
            output=out,
            trace=trace,
            folder=None if output is None else output.parent,
            system_prompt=system_prompt,
            turns=turns,
            slo=slo or (),
            gpu_hour=gpu_hour,
            replica_hour=replica_hour,
            headroom=headroom,
            slower=slower,
            settings=settings or (),
            router=router,
            split=split,
            schedule=schedule,
            load_time=load_time,
            executor=executor,
            progress=progress,
        )
    keeps = output is not None and output.suffix == ".toml"
    section = screen.build(found, full=full, kept=keeps)
    shown = None if keeps else output
    charts: Sequence[Chart] = ()
    if plot is not None or format is DocumentFormat.HTML:
        from kvplan.show.charts import of_plan

        charts = of_plan(found)
    write_result(rendered(format, shown, lambda: json.plan(found), lambda: [section], charts=charts), shown)
    if keeps and found.profile is not None:
        write_result(found.profile.text, output)
    write_plot(charts, plot)
    if found.status is Status.IMPOSSIBLE:
        raise typer.Exit(ExitCode.GATE_FAILED)
    if found.status is Status.INTERRUPTED:
        raise KeyboardInterrupt


@contextmanager
def _looking() -> Iterator[Callable[[str], None] | None]:
    """What is being looked at, on standard error if that is a terminal."""
    if sys.stderr is None or not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.text import Text

    with Console(stderr=True).status("") as line:
        yield lambda what: line.update(Text(what))
