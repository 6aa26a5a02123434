"""Options of a plan: names, prices, shares and lengths, read into a request."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from io import BytesIO
from itertools import product, starmap
from pathlib import Path
from typing import Any

import tomli

from kvplan.errors import UsageError, did_you_mean
from kvplan.ingest.gathering import Asked, gather
from kvplan.ingest.model.config import read_model
from kvplan.ingest.model.estimate import takes
from kvplan.ingest.model.hardware import find_gpu, gpus
from kvplan.ingest.model.shape import kv_layers, with_adapters, with_weights
from kvplan.ingest.reader import FileKind
from kvplan.ingest.text_file import reference_to
from kvplan.ingest.trace.replay import read_trace, with_trace
from kvplan.model import Parallelism
from kvplan.model.fleet import Routing
from kvplan.model.slo import Slo, parse_slo
from kvplan.options import LIMITS, RANKS, PlanOptions, Router, read_engine
from kvplan.planning.day import LOAD_S, schedule_of
from kvplan.planning.demand import Demand, Replay, parse_length
from kvplan.planning.kinds import TENSOR_PARALLEL, Kind, kinds
from kvplan.planning.result import Request
from kvplan.planning.service import SETTINGS, TRAFFIC, with_demand, with_rates
from kvplan.profile.reading import Profile, load_profile, shipped_profiles
from kvplan.ranges import LEAST_RATE, MAX_TOKENS, MOST_RATE
from kvplan.units import parse_time


def request(services: Sequence[str | Profile], asked: PlanOptions, folder: Path = Path()) -> Request:
    """Read what is asked of a plan of a model, or of profiles; a trace is referred to from `folder`.

    Raises
    ------
    UsageError
        An option is not of its form, or does not go with the others.
    ProfileError
        A profile cannot be read, or lacks what the options do not supply.
    """
    slos, settings = _slos(asked.slo), _settings(asked.settings)
    if twice := [key for key in asked.limits if key in settings]:
        raise UsageError(f"--settings {twice[0]} and --{twice[0].replace('_', '-')}: one of them")
    settings |= asked.limits
    engine, version = read_engine(asked.engine)
    takes(engine, version)  # refuses one that is not known
    demand: Demand | Replay | None = _demand(asked)
    if asked.trace is not None:
        demand = _replay(asked.trace, reference_to(asked.trace, folder) or str(asked.trace), asked.rate)
    load_s = _load_s(asked.schedule, asked.load_time)
    profiles = _profiles(services)
    if profiles and demand is not None:
        profiles = [with_demand(profile, demand) for profile in profiles]
    if profiles:
        if asked.gpu or any(asked.ranks) or asked.says_how or any(asked.gpu_figures.values()):
            raise UsageError(
                "--gpu, --tp and its like, --weights, --kv-dtype and --loras go with a model, not profiles"
            )
        profiles = [profile.with_slos(slos) for profile in profiles]
        options: Sequence[Kind | Profile] = profiles
        _check_alike(profiles, asked.rate)
        slos = profiles[0].plan.slos
    else:
        if demand is None:
            raise _lacking(str(services[0]), asked.gpu)
        options = _kinds(str(services[0]), asked, settings)
    return Request(
        options,
        demand,
        tuple(slos),
        rate_rps=asked.rate,
        slower=_share(asked.slower, "--slower", 0.05),
        headroom=_share(asked.headroom, "--headroom", 0.0),
        engine=engine,
        settings=settings,
        schedule=_schedule(asked.schedule),
        load_s=load_s,
        split=asked.split,
        prices=_prices(options, asked.gpu_hour, asked.replica_hour),
        router=None if asked.router is Router.ANY else Routing(asked.router),
    )


_NO_GPU = "--gpu is missing: which GPUs? Known are "


def _lacking(model: str, gpu: str | None) -> UsageError:
    """All that a model has to be asked with."""
    read_model(model)
    error = UsageError("a demand is missing: --rate or --users, with --in and --out; or --trace FILE")
    if gpu is None:
        error.others = (UsageError(_NO_GPU + ", ".join(one.name for one in gpus())),)
    return error


def _settings(texts: Sequence[str]) -> dict[str, Any]:
    """Settings of an engine by key; values are those that a profile may have."""
    found: dict[str, Any] = {}
    for text in texts:
        key, _, value = (part.strip() for part in text.partition("="))
        if key not in SETTINGS:
            raise UsageError(
                f"--settings {text[:60]!r}: {did_you_mean(key, sorted(SETTINGS), 'KEY=VALUE with')}"
            )
        try:
            found[key] = tomli.loads(f"value = {value}")["value"]
        except tomli.TOMLDecodeError:
            found[key] = value  # a word, such as first-chunk
    return found


def _slos(texts: Sequence[str]) -> tuple[Slo, ...]:
    found = {slo.key: slo for slo in map(parse_slo, texts)}
    if "recomputed_share" in found:
        raise UsageError("--slo recomputed_share: a plan holds times, ttft, itl, tpot and e2e")
    return tuple(found.values())


def _demand(asked: PlanOptions) -> Demand | None:
    """Return the demand of the options; None where a profile or a trace has to say it."""
    rate, users, turns, system_prompt = asked.rate, asked.users, asked.turns, asked.system_prompt
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
        if users is not None or turns != 1 or system_prompt:
            raise UsageError("--users, --turns and --system-prompt go with --in and --out")
        return None
    if rate is None and users is None:
        raise UsageError("--rate R, or --users N, says how much is asked for")
    if not 1 <= turns <= 1000:
        raise UsageError(f"--turns {turns:g}: 1 to 1000")
    if not 0 <= system_prompt <= MAX_TOKENS:
        raise UsageError(f"--system-prompt {system_prompt}: 0 to {MAX_TOKENS:,} tokens")
    if asked.think is not None and users is None and turns == 1:
        raise UsageError("--think goes with --users or --turns")
    return Demand(
        parse_length(asked.input, "--in"),
        parse_length(asked.output, "--out"),
        rate,
        users,
        None if asked.think is None else _time(asked.think, "--think"),
        system_prompt,
        turns,
    )


def _replay(path: Path, reference: str, rate: float | None) -> Replay:
    """The requests of a file, at another rate if one is given."""
    traffic = gather({FileKind.REQUESTS: [path]}, Asked(reference=reference)).profile.tables
    tables: dict[str, Any] = {name: traffic[name] for name in TRAFFIC if name in traffic}
    recorded = read_trace(path).recorded
    if rate is not None and recorded.rate_rps is not None:
        tables = with_rates(tables, rate / recorded.rate_rps)
    return Replay(tables, recorded, path.name)


def _profiles(services: Sequence[str | Profile]) -> list[Profile]:
    """The profiles that were named; none where a model was."""
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
        one if isinstance(one, Profile) else with_trace(load_profile(one, stdin=BytesIO()))
        for one in services
    ]


def _kinds(model: str, asked: PlanOptions, settings: Mapping[str, Any]) -> list[Kind]:
    shape, gpu = with_adapters(read_model(model), asked.loras, asked.lora_rank), asked.gpu
    kv_layers(shape, kv_dtype=asked.kv_dtype)  # refuses a type that there is not
    if gpu is None:
        raise UsageError(_NO_GPU + ", ".join(one.name for one in gpus()))
    stated = {"memory": asked.gpu_memory, "bandwidth": asked.gpu_bandwidth, "flops": asked.gpu_flops}
    names = gpu.split(",")
    if len(names) > 1 and any(stated.values()):
        raise UsageError(
            "--gpu-memory, --gpu-bandwidth and --gpu-flops describe one GPU; name one with --gpu"
        )
    found = [find_gpu(name.strip(), **stated) for name in names]
    types = [text.strip() for text in (asked.weights or "").split(",") if text.strip()]
    if not types:
        with_weights(shape, None)  # refuses weights that are kept in a way not known
    parallelism = [*starmap(Parallelism, product(*_ranks(asked)))]
    engine, version = asked.engine_named
    how: dict[str, Any] = {"weights": types, "kv_dtype": asked.kv_dtype, "engine": engine, "version": version}
    how |= {key: given for key in LIMITS[:2] if type(given := settings.get(key)) is int and given > 0}
    return list(kinds(shape, found, parallelism=parallelism, **how))


def _ranks(asked: PlanOptions) -> Iterator[Sequence[int]]:
    """Yield the numbers to try of each kind of parallelism."""
    for option, written in zip(RANKS, asked.ranks, strict=True):
        numbers = []
        for text in (written or "").split(","):
            if text.strip():
                if not text.strip().isdecimal() or not 1 <= int(text) <= 64:
                    seen = f"{option} {text.strip()[:40]!r}"
                    raise UsageError(f"{seen}: whole numbers from 1 to 64, with commas between")
                numbers.append(int(text))
        yield numbers or (TENSOR_PARALLEL if option == "--tp" else (1,))


def _prices(
    options: Sequence[Kind | Profile], gpu_hour: str | None, replica_hour: str | None
) -> dict[str, float] | None:
    """Price of a replica an hour, by the name of each kind and the source of each profile; None: nobody says."""
    of_gpu, of_replica = _named_prices(gpu_hour, "--gpu-hour"), _named_prices(replica_hour, "--replica-hour")
    prices: dict[str, float | None] = {}
    names = set()
    for one in options:
        if isinstance(one, Kind):
            name, key, gpus, own = one.gpu.name, one.name, one.parallelism.gpus, None
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
    prices: dict[str, float] = {}
    for part in () if text is None else text.split(","):
        name, _, value = part.removeprefix("./").rpartition("=")
        name = name.removesuffix(".toml")
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
    if schedule is None:
        if load_time is not None:
            raise UsageError("--load-time goes with --schedule")
        return None
    return LOAD_S if load_time is None else _time(load_time, "--load-time")


def _schedule(text: str | None) -> dict[str, Any] | None:
    """The table [workload] of a file; None where the profile has its own."""
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
    """Refuse to compare what is not asked for the same."""
    differ = sorted({s.key for one in profiles for s in set(one.plan.slos) ^ set(profiles[0].plan.slos)})
    if differ:
        raise UsageError(f"the profiles differ in {', '.join(differ)} of [slo]: give it to all, with --slo")
    rates = sorted({float(f"{one.model.total_rate_rps:.9g}") for one in profiles})
    if len(rates) > 1 and rate is None:
        offered = ", ".join(f"{one:g}" for one in rates)
        raise UsageError(f"the profiles offer {offered} requests/s; compare them at one demand, with --rate")


def _time(text: str, option: str) -> float:
    """Seconds of a time with a unit."""
    with suppress(ValueError):
        raise UsageError(f"{option} {text!r}: a unit is missing, such as {float(text):g}s")
    return parse_time(text, option)


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
