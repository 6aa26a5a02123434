"""`kvplan plan`: from a model, GPUs and a demand to replicas, settings and price."""

import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

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
    option,
    refuse_overwriting,
    rendered,
    write_plot,
)
from kvplan.cli.output import check_writable, write_result
from kvplan.engine import EngineName
from kvplan.errors import ExitCode, UsageError, did_you_mean

if TYPE_CHECKING:
    from kvplan.model.fleet import Routing
    from kvplan.model.slo import Slo
    from kvplan.planning.demand import Demand
    from kvplan.planning.kinds import Kind
    from kvplan.planning.plan import Plan, Request
    from kvplan.plots.chart import Chart
    from kvplan.profile.reading import Profile


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
    tokens: Annotated[
        int | None,
        option("--max-num-batched-tokens", help="Token budget of an iteration. Default: the best found."),
    ] = None,
    router: Annotated[Router, typer.Option("--router", help="What sends requests to replicas.")] = Router.ANY,
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
    from kvplan.formats import json
    from kvplan.layout import plan as screen
    from kvplan.planning import plan as planning

    check_writable(output)
    slos = _slos(slo)
    demand = _demand(rate, users, think, input, out, system_prompt, turns)
    check_plot(plot, services, output)
    load_s = _load_s(schedule, load_time)
    profiles = _profiles(services)
    if profiles and demand is not None:
        profiles = [planning.with_demand(one, demand) for one in profiles]
    if profiles:
        if gpu or tp or weights:
            raise UsageError(
                "--gpu, --tp and --weights go with a model; profiles say what their replicas are"
            )
        options: Sequence[Kind | Profile] = [_with_slos(one, slos) for one in profiles]
        refuse_overwriting(output, [Path(one) for one in services])
        _check_alike(profiles, slos, rate)
        slos = slos or profiles[0].plan.slos
    else:
        if demand is None:
            raise UsageError("a model needs a demand: --rate or --users, --in and --out")
        options = _kinds(services, gpu, tp, weights, kv_dtype)
    found = _planned(
        planning.Request(
            options,
            demand,
            tuple(slos),
            rate_rps=rate,
            slower=_share(slower, "--slower", 0.05),
            headroom=_share(headroom, "--headroom", 0.0),
            engine=engine,
            batched_tokens=tokens,
            schedule=_schedule(schedule),
            load_s=load_s,
            split=split,
            prices=_prices(options, gpu_hour, replica_hour),
            router=_router(router),
        )
    )
    section = screen.build(found, full=full)
    keeps = output is not None and output.suffix == ".toml"
    shown = None if keeps else output
    charts: Sequence[Chart] = ()
    if plot is not None or format is DocumentFormat.HTML:
        from kvplan.plots.charts import of_plan

        charts = of_plan(found)
    write_result(rendered(format, shown, lambda: json.plan(found), lambda: [section], charts=charts), shown)
    if keeps and found.profile is not None:
        write_result(found.profile.text, output)
    write_plot(charts, plot)
    if found.status is planning.Status.IMPOSSIBLE:
        raise typer.Exit(ExitCode.GATE_FAILED)


def _planned(request: "Request") -> "Plan":
    """Search, with what is being looked at on standard error if that is a terminal."""
    from kvplan.planning.plan import plan as search

    if sys.stderr is None or not sys.stderr.isatty():
        return search(request)
    from rich.console import Console
    from rich.text import Text

    with Console(stderr=True).status("") as line:
        return search(request, lambda what: line.update(Text(what)))


def _slos(texts: Sequence[str] | None) -> "tuple[Slo, ...]":
    from kvplan.model.slo import parse_slo

    found = {slo.key: slo for slo in map(parse_slo, texts or ())}
    if "recomputed_share" in found:
        raise UsageError("--slo recomputed_share: a plan holds times, ttft, itl, tpot and e2e")
    return tuple(found.values())


def _with_slos(profile: "Profile", slos: "Sequence[Slo]") -> "Profile":
    return replace(profile, plan=replace(profile.plan, slos=tuple(slos))) if slos else profile


def _demand(
    rate: float | None,
    users: int | None,
    think: str | None,
    prompt: str | None,
    answer: str | None,
    system_prompt: int,
    turns: float,
) -> "Demand | None":
    """What was asked for; None where a profile has to say it."""
    from kvplan.planning.demand import Demand, parse_length
    from kvplan.ranges import LEAST_RATE, MAX_TOKENS, MOST_RATE
    from kvplan.units import parse_time

    if rate is not None and users is not None:
        raise UsageError("--rate and --users: one of them says how much is asked for")
    if rate is not None and not LEAST_RATE <= rate <= MOST_RATE:
        raise UsageError(f"--rate {rate:g}: {LEAST_RATE:g} to {MOST_RATE:g} requests/s")
    if users is not None and not 1 <= users <= 10**7:
        raise UsageError(f"--users {users}: 1 to 10,000,000")
    if (prompt is None) != (answer is None):
        raise UsageError(
            f"--{'in' if prompt is None else 'out'} is missing: prompts and answers both have lengths"
        )
    if prompt is None or answer is None:
        if users is not None or turns != 1 or system_prompt:
            raise UsageError("--users, --turns and --system-prompt go with --in and --out")
        return None
    if rate is None and users is None:
        raise UsageError("--rate R, or --users N, says how much is asked for")
    if not 1 <= turns <= 1000:
        raise UsageError(f"--turns {turns:g}: 1 to 1000")
    if not 0 <= system_prompt <= MAX_TOKENS:
        raise UsageError(f"--system-prompt {system_prompt}: 0 to {MAX_TOKENS:,} tokens")
    if think is not None and users is None and turns == 1:
        raise UsageError("--think goes with --users or --turns")
    return Demand(
        parse_length(prompt, "--in"),
        parse_length(answer, "--out"),
        rate,
        users,
        None if think is None else parse_time(think, "--think"),
        system_prompt,
        turns,
    )


def _profiles(services: Sequence[str]) -> "list[Profile]":
    """The profiles that were named; none where a model was."""
    from kvplan.cli.common import replaying, standard_input
    from kvplan.profile.reading import load_profile, shipped_profiles

    shipped = shipped_profiles()
    named = [one for one in services if one.endswith(".toml") or one == "-" or one in shipped]
    if named and len(named) < len(services):
        other = next(one for one in services if one not in named)
        raise UsageError(
            f"{other[:80]}: a model does not go with profiles; kvplan plan either, or write a profile"
        )
    if not named and len(services) > 1:
        raise UsageError("one model at a time; several profiles can be compared")
    return [replaying(load_profile(one, stdin=standard_input())) for one in named]


def _kinds(
    services: Sequence[str],
    gpu: str | None,
    tp: str | None,
    weights: str | None,
    kv_dtype: str,
) -> "list[Kind]":
    from kvplan.ingest.model.config import read_model
    from kvplan.ingest.model.hardware import find_gpu, gpus
    from kvplan.planning.kinds import kinds

    shape = read_model(services[0])
    if gpu is None:
        raise UsageError(f"--gpu is missing: which GPUs? Known are {', '.join(one.name for one in gpus())}")
    found = [find_gpu(name.strip()) for name in gpu.split(",")]
    numbers = []
    for text in (tp or "").split(","):
        if text.strip():
            if not text.strip().isdecimal() or not 1 <= int(text) <= 64:
                raise UsageError(
                    f"--tp {text.strip()[:40]!r}: whole numbers from 1 to 64, with commas between"
                )
            numbers.append(int(text))
    types = [text.strip() for text in (weights or "").split(",") if text.strip()]
    return list(kinds(shape, found, tensor_parallel=numbers, weights=types, kv_dtype=kv_dtype))


def _prices(
    options: "Sequence[Kind | Profile]", gpu_hour: str | None, replica_hour: str | None
) -> "dict[str, float] | None":
    """Price of a replica an hour, by the name of each kind and the source of each profile; None: nobody says."""
    from kvplan.planning.kinds import Kind

    of_gpu, of_replica = _named_prices(gpu_hour, "--gpu-hour"), _named_prices(replica_hour, "--replica-hour")
    prices: dict[str, float | None] = {}
    names = set()
    for one in options:
        if isinstance(one, Kind):
            name, key, gpus, own = one.gpu.name, one.name, one.tensor_parallel, None
        else:
            name, key = Path(one.source).name.removesuffix(".toml"), one.source
            gpus, own = one.model.replica.gpus, one.plan.gpu_hour
        names.add(name)
        each = of_gpu.get(name, of_gpu.get("", own))
        prices[key] = of_replica.get(name, of_replica.get("", None if each is None else gpus * each))
        if prices[key] is None and (of_gpu or of_replica):
            given = "--gpu-hour" if of_gpu else "--replica-hour"
            raise UsageError(f"{given}: no price for {name}; give every one a price, or none")
    for name in (*of_gpu, *of_replica):
        if name and name not in names:
            raise UsageError(
                f"no replica is called {name!r}; {did_you_mean(name, sorted(names), 'there are')}"
            )
    known = {key: price for key, price in prices.items() if price is not None}
    return known if known and len(known) == len(prices) else None


def _named_prices(text: str | None, option: str) -> dict[str, float]:
    """Prices by name, of GPUs as the catalogue has them; of all by the empty name."""
    from kvplan.ingest.model.hardware import find_gpu

    prices: dict[str, float] = {}
    for part in () if text is None else text.split(","):
        name, _, value = part.rpartition("=")
        try:
            price = float(value)
        except ValueError:
            price = -1.0
        if not 0 < price <= 1e6:
            raise UsageError(
                f"{option} {part.strip()[:40]!r}: a price above 0, or NAME=PRICE, such as H100=3"
            )
        name = name.strip()
        with suppress(UsageError):
            name = find_gpu(name).name if name else name
        prices[name] = price
    return prices


def _load_s(schedule: str | None, load_time: str | None) -> float | None:
    """Time that a replica takes to start; None where the period of a schedule is not asked for."""
    from kvplan.planning.day import LOAD_S
    from kvplan.units import parse_time

    if schedule is None:
        if load_time is not None:
            raise UsageError("--load-time goes with --schedule")
        return None
    return LOAD_S if load_time is None else parse_time(load_time, "--load-time")


def _schedule(text: str | None) -> "dict[str, Any] | None":
    """The table [workload] of a file; None where the profile has its own."""
    if text is None or text == "own":
        return None
    import tomli

    from kvplan.ingest.trace.replay import read_trace
    from kvplan.planning.day import schedule_of

    path = Path(text)
    if path.suffix != ".toml":
        return schedule_of(read_trace(path).requests.arrival_s)
    try:
        table = tomli.loads(path.read_text(encoding="utf-8")).get("workload", {})
    except (tomli.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UsageError(f"--schedule {path}: {error}") from None
    if not isinstance(table, dict) or not {"period", "schedule"} <= table.keys():
        raise UsageError(f"--schedule {path}: a table [workload] with period and schedule is wanted")
    return {key: table[key] for key in ("period", "schedule")}


def _check_alike(profiles: "Sequence[Profile]", slos: "Sequence[Slo]", rate: float | None) -> None:
    """Refuse to compare what is not asked for the same."""
    differ = sorted({s.key for one in profiles for s in set(one.plan.slos) ^ set(profiles[0].plan.slos)})
    if differ and not slos:
        raise UsageError(f"the profiles differ in {', '.join(differ)} of [slo]: give it to all, with --slo")
    rates = sorted({float(f"{one.model.total_rate_rps:.9g}") for one in profiles})
    if len(rates) > 1 and rate is None:
        offered = ", ".join(f"{one:g}" for one in rates)
        raise UsageError(f"the profiles offer {offered} requests/s; compare them at one demand, with --rate")


def _share(text: str | None, name: str, default: float) -> float:
    if text is None:
        return default
    try:
        share = float(text.rstrip("% ")) / (100 if text.rstrip().endswith("%") else 1)
    except ValueError:
        share = -1.0
    if not 0 <= share <= 1:
        raise UsageError(f"{name} {text[:40]!r}: a share from 0 to 1, or a percentage, such as 20%")
    return share


def _router(router: Router) -> "Routing | None":
    from kvplan.model.fleet import Routing

    return None if router is Router.ANY else Routing(str(router))
