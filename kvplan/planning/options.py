"""Options of a plan: names, prices, shares and lengths, read into a request."""

from collections.abc import Mapping, Sequence
from io import BytesIO
from itertools import product, starmap
from pathlib import Path
from typing import Any

import tomli

from kvplan.arguments import Engine
from kvplan.engine import EngineName
from kvplan.errors import UsageError, did_you_mean
from kvplan.ingest.gathering import Asked, gather
from kvplan.ingest.model.config import read_model
from kvplan.ingest.model.estimate import check_parallelism, takes
from kvplan.ingest.model.hardware import Gpu, find_gpu, gpus
from kvplan.ingest.model.shape import ModelShape, kv_layers, with_adapters, with_weights
from kvplan.ingest.reader import FileKind
from kvplan.ingest.text_file import reference_to
from kvplan.ingest.trace.replay import read_trace, with_trace
from kvplan.model import Parallelism
from kvplan.model.fleet import Routing
from kvplan.options import LIMITS, PlanOptions, Router
from kvplan.planning.day import LOAD_S, schedule_of
from kvplan.planning.demand import Demand, Replay, parse_length, parse_turns
from kvplan.planning.kinds import TENSOR_PARALLEL, Kind, kinds
from kvplan.planning.result import Request
from kvplan.planning.saved import (
    TRAFFIC,
    Stated,
    asked_again,
    catalogued,
    price_left_out,
    restated,
    shape_of,
    traffic_of,
)
from kvplan.planning.service import SETTINGS, with_demand, with_rates
from kvplan.profile.reading import Profile, load_profile, shipped_profiles
from kvplan.ranges import LEAST_RATE, MAX_MEMORY_TOKENS, MAX_TOKENS, MOST_RATE


def request(services: Sequence[str | Profile], asked: PlanOptions) -> Request:
    """Put together what is asked of a plan of a model, or of profiles.

    Raises
    ------
    UsageError
        An option is not of its form, or does not go with the others.
    ProfileError
        A profile cannot be read, or lacks what the options do not supply.
    """
    slos, settings = {slo.key: slo for slo in asked.slo}, _settings(asked.settings)
    if "recomputed_share" in slos:
        raise UsageError("--slo recomputed_share: a plan holds times, ttft, itl, tpot and e2e")
    if twice := [key for key in asked.limits if key in settings]:
        raise UsageError(f"--settings {twice[0]} and --{twice[0].replace('_', '-')}: one of them")
    settings |= asked.limits
    takes(*_engine(asked))  # refuses a version that is not known
    if asked.load_time is not None and asked.schedule is None:
        raise UsageError("--load-time goes with --schedule")
    profiles, rate, unpriced = _profiles(services), asked.rate, ""
    demand: Demand | Replay | Stated | None = None
    if asked.trace is not None or not profiles or _states_all(asked):
        demand = _demand(asked)
    if asked.trace is not None:
        demand = _replay(
            asked.trace, reference_to(asked.trace, asked.folder or Path()) or str(asked.trace), rate
        )
    estimates = any((asked.gpu, *asked.ranks, asked.weights, asked.adapted, *asked.gpu_figures.values()))
    if profiles:
        _refuse_other_engine(profiles, None if estimates else asked.engine)
        if demand is not None:
            profiles = [with_demand(profile, demand) for profile in profiles]
        else:
            profiles = [restated(profile, asked, _demand) for profile in profiles]
        profiles = [profile.with_slos(slos.values()) for profile in profiles]
        _check_alike(profiles, rate)
        slos = {slo.key: slo for slo in profiles[0].plan.slos}
        if len(profiles) == 1:
            unpriced = price_left_out(profiles[0], asked)
            asked = asked_again(profiles[0], asked, priced=not unpriced)
    options: Sequence[Kind | Profile] = profiles
    if estimates and profiles:
        if len(profiles) > 1:
            raise UsageError(
                "--gpu, --tp and its like, --weights, --kv-dtype and --loras go with a model, or one profile"
            )
        (profile,) = profiles
        options = _kinds(shape_of(profile), asked, settings)
        demand, rate = traffic_of(_at_rate(profile, rate)), None
    elif not profiles:
        if demand is None:
            raise _lacking(str(services[0]), asked.gpu)
        options = _kinds(read_model(str(services[0])), asked, settings)
    prices = _prices(options, asked.gpu_hour or {}, asked.replica_hour or {})
    if asked.api_price is not None and prices is None:
        raise UsageError("--api-price goes with a price of what is planned: --gpu-hour")
    if asked.memory_hour and (asked.offload is None or prices is None):
        raise UsageError("--memory-hour goes with --offload, and a price of what is planned: --gpu-hour")
    return Request(
        options,
        demand,
        tuple(slos.values()),
        rate_rps=rate,
        slower=Request.slower if asked.slower is None else asked.slower,
        headroom=asked.headroom or 0.0,
        spare=asked.spare or 0,
        recover_s=asked.recover,
        engine=_engine(asked).name,
        settings=settings,
        schedule=_schedule(asked.schedule),
        load_s=None if asked.schedule is None else asked.load_time or LOAD_S,
        split=asked.split,
        prices=prices,
        unpriced=unpriced,
        api_price=asked.api_price,
        offload=asked.offload,
        memory_hour=asked.memory_hour,
        router=None if asked.router in (None, Router.ANY) else Routing(asked.router),
        folder=asked.folder or Path(),
    )


def _engine(asked: PlanOptions) -> Engine:
    return asked.engine or Engine(EngineName.VLLM, "")


def _refuse_other_engine(profiles: Sequence[Profile], engine: Engine | None) -> None:
    if engine is None:
        return
    for profile in profiles:
        table = profile.tables.get("engine", {})
        own = Engine(EngineName(table.get("name", EngineName.VLLM)), table.get("version", ""))
        if engine.name is not own.name or engine.version not in ("", own.version):
            asked, known = ("==".join(filter(None, each)) for each in (engine, own))
            why = f"{profile.source} is of {known}; with --gpu its model is estimated anew"
            raise UsageError(f"--engine {asked}: {why}")


def _states_all(asked: PlanOptions) -> bool:
    """Tell whether the options state a whole demand."""
    return None not in (asked.input, asked.output) and (asked.rate, asked.users) != (None, None)


def _at_rate(profile: Profile, rate: float | None) -> Profile:
    if rate is None:
        return profile
    tables = with_rates(profile.tables, rate / profile.model.total_rate_rps)
    return profile.changed({(name,): tables.get(name) for name in TRAFFIC})


_NO_GPU = "--gpu is missing: which GPUs? Known are "


def _lacking(model: str, gpu: Sequence[str]) -> UsageError:
    """List all options that a model needs."""
    read_model(model)
    error = UsageError("a demand is missing: --rate or --users, with --in and --out; or --trace FILE")
    if not gpu:
        error.others = (UsageError(_NO_GPU + ", ".join(one.name for one in gpus())),)
    return error


def _settings(texts: Sequence[str]) -> dict[str, Any]:
    """Read settings of an engine by key; values as in a profile."""
    settings: dict[str, Any] = {}
    for text in texts:
        key, _, value = (part.strip() for part in text.partition("="))
        if key not in SETTINGS:
            raise UsageError(
                f"--settings {text[:60]!r}: {did_you_mean(key, sorted(SETTINGS), 'KEY=VALUE with')}"
            )
        if key in settings:
            raise UsageError(f"--settings {key} is there twice")
        try:
            settings[key] = tomli.loads(f"value = {value}")["value"]
        except tomli.TOMLDecodeError:
            settings[key] = value  # a word, such as first-chunk
    return settings


def _demand(asked: PlanOptions) -> Demand | None:
    """Return the demand of the options; None where a profile or a trace has to say it."""
    rate, users, system_prompt = asked.rate, asked.users, asked.system_prompt or 0
    turns = parse_turns(asked.turns or "1")
    if rate is not None and users is not None:
        raise UsageError("--rate and --users: one of them says how much is asked for")
    if rate is not None and not LEAST_RATE <= rate <= MOST_RATE:
        raise UsageError(f"--rate {rate:g}: {LEAST_RATE:g} to {MOST_RATE:g} requests/s")
    if users is not None and not 1 <= users <= 10**7:
        raise UsageError(f"--users {users}: 1 to 10,000,000")
    if (asked.input is None) != (asked.output is None):
        missing = "in" if asked.input is None else "out"
        raise UsageError(f"--{missing} is missing: prompts and answers both have lengths")
    if asked.trace is not None and not (asked.input is None and users is None):
        raise UsageError("--trace has lengths and arrivals; --in, --out and --users do not go with it")
    if asked.input is None or asked.output is None:
        if users is not None or turns.mean > 1 or system_prompt:
            raise UsageError("--users, --turns and --system-prompt go with --in and --out")
        return None
    if rate is None and users is None:
        raise UsageError("--rate R, or --users N, says how much is asked for")
    if not 0 <= system_prompt <= MAX_TOKENS:
        raise UsageError(f"--system-prompt {system_prompt}: 0 to {MAX_TOKENS:,} tokens")
    if asked.think is not None and users is None and turns.mean == 1:
        raise UsageError("--think goes with --users or --turns")
    return Demand(
        parse_length(asked.input, "--in"),
        parse_length(asked.output, "--out"),
        rate,
        users,
        asked.think,
        system_prompt,
        turns,
    )


def _replay(path: Path, reference: str, rate: float | None) -> Replay:
    """Read the requests of a file, at another rate if given."""
    traffic = gather({FileKind.REQUESTS: [path]}, Asked(reference=reference)).profile.tables
    tables: dict[str, Any] = {name: traffic[name] for name in TRAFFIC if name in traffic}
    recorded = read_trace(path).recorded
    if rate is not None and recorded.rate_rps is not None:
        tables = with_rates(tables, rate / recorded.rate_rps)
    return Replay(tables, recorded, path.name)


def _profiles(services: Sequence[str | Profile]) -> list[Profile]:
    """Load the profiles named; none if it is a model."""
    shipped = shipped_profiles()
    models = [
        one for one in services if isinstance(one, str) and not one.endswith(".toml") and one not in shipped
    ]
    if models and len(models) < len(services):
        raise UsageError(
            f"{models[0][:80]}: a model does not go with profiles; kvplan plan either, or write a profile"
        )
    if len(models) > 1:
        raise UsageError("one model at a time; several profiles can be compared")
    if models:
        return []
    return [
        service if isinstance(service, Profile) else with_trace(load_profile(service, stdin=BytesIO()))
        for service in services
    ]


def _refuse_misfits(parallelism: Sequence[Parallelism], shape: ModelShape, on: Sequence[Gpu]) -> None:
    """Refuse ranks of which none shares out the model; some that do not are named on the screen."""
    refused: UsageError | None = None
    for ranks, gpu in product(parallelism, on):
        try:
            check_parallelism(ranks, shape, gpu)
        except UsageError as error:
            refused = refused or error
        else:
            return
    if refused is not None:
        raise refused


def _kinds(model: ModelShape, asked: PlanOptions, settings: Mapping[str, Any]) -> list[Kind]:
    shape, gpu = with_adapters(model, asked.loras, asked.lora_rank), asked.gpu
    kv_layers(shape, kv_dtype=asked.kv_dtype)  # refuses a type that there is not
    if not gpu:
        raise UsageError(_NO_GPU + ", ".join(one.name for one in gpus()))
    if len(gpu) > 1 and any(asked.gpu_figures.values()):
        raise UsageError(
            "--gpu-memory, --gpu-bandwidth and --gpu-flops describe one GPU; name one with --gpu"
        )
    chosen = [find_gpu(name, **asked.gpu_figures) for name in gpu]
    if not asked.weights:
        with_weights(shape, None)  # refuses weights that are kept in a way not known
    tensor, *others = asked.ranks
    ranks = product(tensor or TENSOR_PARALLEL, *(numbers or (1,) for numbers in others))
    parallelism = [*starmap(Parallelism, ranks)] if any(asked.ranks) else []
    _refuse_misfits(parallelism, shape, chosen)
    engine, version = _engine(asked)
    how: dict[str, Any] = {"weights": asked.weights, "kv_dtype": asked.kv_dtype}
    how |= {"engine": engine, "version": version}
    how |= {
        key: given
        for key in LIMITS
        if type(given := settings.get(key)) is int and 0 < given <= MAX_MEMORY_TOKENS
    }
    config = None if shape.like else reference_to(Path(shape.source), asked.folder or Path())
    about = {"config": config, "loras": asked.loras, "lora_rank": asked.lora_rank}
    how["about"] = tuple((key, value) for key, value in about.items() if value is not None)
    return list(kinds(shape, chosen, parallelism=parallelism, **how))


def _prices(
    options: Sequence[Kind | Profile], gpu_hour: Mapping[str, float], replica_hour: Mapping[str, float]
) -> dict[str, float] | None:
    """Price a replica's hour, by the name of each kind and the source of each profile; None: nobody says."""
    of_gpu, of_replica = (
        {catalogued(name): price for name, price in prices.items()} for prices in (gpu_hour, replica_hour)
    )
    prices: dict[str, float | None] = {}
    names = set()
    for option in options:
        if isinstance(option, Kind):
            name, key, gpus, own = option.gpu.name, option.name, option.parallelism.gpus, None
        else:
            name, key = Path(option.source).name.removesuffix(".toml"), option.source
            gpus, own = option.model.replica.gpus, option.plan.gpu_hour
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


def _schedule(text: str | None) -> dict[str, Any] | None:
    """Read table [workload] of a file; None where the profile has its own."""
    if text is None or text == "own":
        return None
    path = Path(text)
    if path.suffix != ".toml":
        return schedule_of(read_trace(path).requests.arrival_s)
    try:
        table = tomli.loads(path.read_text(encoding="utf-8")).get("workload", {})
    except OSError as error:
        raise UsageError(f"--schedule {path}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise UsageError(f"--schedule {path}: must be text in UTF-8") from None
    except tomli.TOMLDecodeError as error:
        raise UsageError(f"--schedule {path}: not valid TOML: {error}") from None
    if not isinstance(table, dict) or not {"period", "schedule"} <= table.keys():
        raise UsageError(f"--schedule {path}: a table [workload] with period and schedule is wanted")
    return {key: table[key] for key in ("period", "schedule")}


def _check_alike(profiles: Sequence[Profile], rate: float | None) -> None:
    """Refuse to compare profiles of different demands."""
    differ = sorted({s.key for each in profiles for s in set(each.plan.slos) ^ set(profiles[0].plan.slos)})
    if differ:
        raise UsageError(f"the profiles differ in {', '.join(differ)} of [slo]: give it to all, with --slo")
    rates = sorted({float(f"{each.model.total_rate_rps:.9g}") for each in profiles})
    if len(rates) > 1 and rate is None:
        offered = ", ".join(f"{each:g}" for each in rates)
        raise UsageError(f"the profiles offer {offered} requests/s; compare them at one demand, with --rate")
