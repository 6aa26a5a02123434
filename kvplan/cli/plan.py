"""`kvplan plan`: from a model, GPUs and a demand to replicas, settings and price."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from kvplan.cli import common, completion, options
from kvplan.cli.options import argument, option
from kvplan.cli.output import check_writable, write_result
from kvplan.errors import ExitCode
from kvplan.options import PlanOptions

_OPTIONS = {
    "gpu": option("--gpu", metavar="NAME,...", help="GPUs to compare, such as H100,B200 or H100:3g.40gb."),
    "tp": option("--tp", metavar="N,...", help="GPUs that share each layer. Default: 1,2,4,8."),
    "dp": option("--dp", metavar="N,...", help="Data-parallel ranks with --tp GPUs each. Default: 1."),
    "ep": option("--ep", metavar="N,...", help="GPUs that experts are spread over. Default: 1."),
    "pp": option("--pp", metavar="N,...", help="Pipeline stages with --tp x --dp GPUs each. Default: 1."),
    "dcp": option("--dcp", metavar="N,...", help="GPUs of --tp that share a request's KV. Default: 1."),
    "weights": option(
        "--weights",
        metavar="TYPE,...",
        help="Types of the weights, such as bf16,fp8. Default: the model's own, and fp8 where the GPU has it.",
    ),
    **options.MODEL,
    "rate": option("--rate", help="Requests/s of the whole service; of conversations, turns/s."),
    "users": option("--users", help="Users who ask, read the answer, think, and ask again."),
    "think": option("--think", metavar="TIME", help="From an answer to the next question. Default: 30 s."),
    "input": option(
        "--in", metavar="N[:CV]", help="Tokens of a prompt, mean and coefficient of variation (0.95)."
    ),
    "output": option("--out", metavar="N[:CV]", help="Tokens of an answer; like --in."),
    "trace": option(
        "--trace", metavar="FILE", help="Requests to replay, instead of --in and --out; faster with --rate."
    ),
    "system_prompt": typer.Option("--system-prompt", help="Tokens that all prompts begin with, beside --in."),
    "turns": typer.Option(
        "--turns", help="Turns of a conversation, in the mean; each carries all before it."
    ),
    "slo": options.SLO,
    "gpu_hour": option("--gpu-hour", metavar="PRICE", help="Price of a GPU an hour: 3, or H100=3,B200=5.5."),
    "replica_hour": option(
        "--replica-hour",
        metavar="PRICE",
        help="Price of a replica an hour: 12, or NAME=12 by GPU or file name.",
    ),
    "headroom": option("--headroom", metavar="SHARE", help="Added to the demand, such as 20%. Default: 0."),
    "slower": option(
        "--slower",
        metavar="SHARE",
        help="Objectives must hold with iterations longer by this share, too. Default: 5%.",
    ),
    "settings": option(
        "--settings",
        metavar="KEY=VALUE",
        help="A setting of the engine that is given instead of searched, such as max_num_batched_tokens=8192. "
        "May be repeated.",
    ),
    "router": typer.Option("--router", help="What sends requests to replicas."),
    "split": typer.Option("--split", help="Also look at prefill and decode on replicas of their own."),
    "schedule": option(
        "--schedule",
        metavar="FILE",
        help="Plan a day with replicas that come and go: a TOML file with a [workload] period and schedule, a "
        "trace, or 'own' for the profile's schedule.",
    ),
    "load_time": option(
        "--load-time",
        metavar="TIME",
        help="With --schedule: from the start of a replica until it serves. Default: 2 min.",
    ),
}


@options.spread
def plan(
    services: Annotated[
        list[str],
        argument(
            metavar="MODEL|PROFILE...",
            help="A model of the catalogue, a config.json of Hugging Face, or profiles of replicas to compare.",
            autocompletion=completion.models,
        ),
    ],
    asked: Annotated[PlanOptions, _OPTIONS],
    executor: Annotated[
        str,
        option(
            "--executor",
            metavar="NAME",
            help="Where kinds of replicas are looked at: in this process (serial), on all cores (cores), in a local "
            "Dask cluster (dask), or by a running Dask scheduler (tcp://HOST:PORT).",
        ),
    ] = "serial",
    plot: options.Plot = None,
    format: options.Format = options.DocumentFormat.TEXT,
    full: Annotated[
        bool, typer.Option("--full", help="Name every alternative and every kind refused.")
    ] = False,
    file: options.Output = None,
) -> None:
    """Find the cheapest replicas that meet the objectives of a demand. -o plan.toml keeps the plan as a profile."""
    from kvplan import executors
    from kvplan.planning.options import request
    from kvplan.planning.plan import plan as search
    from kvplan.planning.result import Status
    from kvplan.show.plan import view

    check_writable(file)
    common.check_plot(plot, services, file)
    common.refuse_overwriting(file, [Path(service) for service in services])
    executors.check(executor, None)
    wanted = [common.load(service) if service == "-" else service for service in services]
    demanded = request(wanted, asked, Path() if file is None else file.parent)
    with _looking() as progress, executors.started(executor, None) as place:
        found = search(demanded, progress, engine=place)
    keeps = file is not None and file.suffix == ".toml"
    shown = view(found, full=full, kept=keeps)
    common.write(shown, format, None if keeps else file)
    if keeps and found.profile is not None:
        write_result(found.profile.text, file)
    if plot is not None:
        common.write_plot(shown.charts, plot)
    if found.status is Status.IMPOSSIBLE:
        raise typer.Exit(ExitCode.GATE_FAILED)
    if found.status is Status.INTERRUPTED:
        raise KeyboardInterrupt


@contextmanager
def _looking() -> Iterator[Callable[[str], None]]:
    """Show what is being looked at, on standard error if that is a terminal."""
    if not common.watched():
        yield lambda _: None
        return
    from rich.console import Console
    from rich.text import Text

    with Console(stderr=True).status("") as line:
        yield lambda what: line.update(Text(what))
