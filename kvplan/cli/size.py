"""`kvplan size`: how many replicas a demand needs, and how many GPUs these are."""

import math
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kvplan.cli import completion
from kvplan.cli.common import (
    DocumentFormat,
    Format,
    Output,
    Seeds,
    Slos,
    argument,
    check_plot,
    check_runs,
    option,
    progress_bar,
    read,
    rendered,
    say,
    say_compiling,
    with_slos,
)
from kvplan.cli.output import check_writable, write_bytes, write_result
from kvplan.errors import UsageError, did_you_mean
from kvplan.units import format_number, parse_time

if TYPE_CHECKING:
    from kvplan.decide.autoscaling import Day
    from kvplan.decide.fleet import Sizing
    from kvplan.decide.sizing import Measure, Measured, SoFar, Tell
    from kvplan.model import ServingModel
    from kvplan.model.fleet import Routing
    from kvplan.profile.reading import Profile

_EVERY = "gpu"  # the name under which a price is that of a GPU of any
_AUTO = "auto"  # as many GPUs as it takes
_ALL_OF_TRACE = "--requests does not go with a profile whose trace is replayed, all of it"


class Router(StrEnum):
    """How requests come to replicas; those of `kvplan.model.fleet.Routing`."""

    RANDOM = "random"
    ROUND_ROBIN = "round-robin"
    LEAST_REQUESTS = "least-requests"
    LEAST_KV = "least-kv"
    SESSION = "session"


def size(
    profiles: Annotated[
        list[str],
        argument(
            metavar="PROFILE...",
            help="Kinds of replicas to choose from: TOML files, '-' for standard input, or names of shipped profiles.",
            autocompletion=completion.profiles,
        ),
    ],
    rate: Annotated[
        float | None,
        option(
            "--rate", help="Demand on all replicas together, requests/s. Default: the rate of the profiles."
        ),
    ] = None,
    slo: Slos = None,
    headroom: Annotated[
        float,
        typer.Option(
            "--headroom",
            help="Share by which the demand may grow while everything still holds; 0.2 is 20%.",
        ),
    ] = 0.2,
    price: Annotated[
        list[str] | None,
        option(
            "--price",
            metavar="NAME=PRICE",
            help="Price per hour: of a GPU, as gpu=2.50, or of a replica, by the name of its profile. May be repeated.",
        ),
    ] = None,
    compare: Annotated[
        bool,
        typer.Option("--compare", help="Only rank the profiles: cost, GPUs, and what decides, in one table."),
    ] = False,
    split: Annotated[
        str | None,
        option(
            "--split",
            metavar="GPUS",
            help="Should so many GPUs prefill and decode apart, in which ratio, or together? What each serves within "
            "the objectives, of one profile. auto: the fewest for the demand.",
        ),
    ] = None,
    prefill: Annotated[
        str | None,
        option(
            "--prefill",
            metavar="PROFILE",
            help="With --split: prefill replicas have [gpu] and [timing] of this profile.",
            autocompletion=completion.profiles,
        ),
    ] = None,
    decode: Annotated[
        str | None,
        option(
            "--decode",
            metavar="PROFILE",
            help="With --split: decode replicas have [gpu] and [timing] of this profile.",
            autocompletion=completion.profiles,
        ),
    ] = None,
    schedule: Annotated[
        bool,
        typer.Option(
            "--schedule",
            help="Also simulate a period of the profile's schedule, or its trace, with replicas that come and go as "
            "the thresholds for an autoscaler say: goodput and GPU-hours against a fixed fleet.",
        ),
    ] = False,
    load_time: Annotated[
        str | None,
        option(
            "--load-time",
            metavar="TIME",
            help='With --schedule: from the start of a replica until its model is loaded, such as "90 s". '
            "Default: 2 min.",
        ),
    ] = None,
    router: Annotated[
        Router | None,
        option(
            "--routing",
            help="Which replica a request goes to, in a simulation of all of them. Default: as [fleet] of the profile "
            "says; without one any, which one replica stands for, and the turns of a session stay.",
        ),
    ] = None,
    policy: Annotated[
        str,
        typer.Option(
            "--policy",
            metavar="NAME",
            help="Scheduling policy to simulate.",
            autocompletion=completion.policies,
        ),
    ] = "vllm",
    requests: Annotated[
        int | None,
        option(
            "--requests",
            help="Number of requests in each run. Default: ten times what memory holds, and from 2,000 to 20,000; with "
            "--split a thousand for each replica, and from 6,000 to 60,000.",
        ),
    ] = None,
    seeds: Seeds = 5,
    format: Format = DocumentFormat.TEXT,
    output: Output = None,
    plot: Annotated[
        Path | None,
        option(
            "--plot",
            metavar="FILE",
            help="Draw replicas against demand to this file, .svg or .png; with --compare cost or GPUs; with --split "
            "what either way serves against the limit on the time between tokens.",
        ),
    ] = None,
) -> None:
    """Find the fewest replicas for a demand. Their number is confirmed by simulation, and refuted at one less."""
    from kvplan.formats import json
    from kvplan.layout import sizing as tables

    check_plot(plot)
    check_writable(output)
    if rate is not None and not 1e-12 <= rate <= 1e12:
        raise UsageError(f"--rate {rate:g}: requests/s, from 1e-12 to 1e12")
    if not 0 <= headroom <= 100:
        raise UsageError(f"--headroom {headroom:g}: a share from 0 to 100, such as 0.2")
    if load_time is not None and not schedule:
        raise UsageError("--load-time goes with --schedule")
    if split is not None:
        for name, given in (("--compare", compare), ("--schedule", schedule)):
            if given:
                raise UsageError(f"{name} does not go with --split, which compares two ways to use GPUs")
        if router is not None:
            raise UsageError("--routing does not go with --split, which goes by [fleet]")
        gpus = _gpus(split, rate)
        sides = prefill, decode
        _split(
            profiles,
            sides,
            gpus,
            rate,
            headroom,
            slo or [],
            price or [],
            policy,
            requests,
            seeds,
            format,
            output,
            plot,
        )
        return
    if prefill is not None or decode is not None:
        raise UsageError("--prefill and --decode go with --split")
    loaded = [with_slos(read(profile), slo) for profile in profiles]
    simulated_day = (
        _day(loaded, rate, load_time, router, policy, seeds, compare=compare) if schedule else None
    )
    found = _sizing(loaded, rate, headroom, price or [], router, policy, requests, seeds)
    one_day = None if simulated_day is None else simulated_day(found)
    hashes = [offer.sha256 for offer in found.offers]
    text = rendered(
        format,
        output,
        lambda: json.size(found, one_day),
        lambda: tables.build(found, compare=compare, day=one_day),
        *hashes,
    )
    if plot is not None:
        from kvplan.plots import drawing, planning

        write_bytes(drawing.file_of("size", planning.fleet_plot(found, compare=compare), plot.suffix), plot)
    write_result(text, output)


def _day(
    loaded: "Sequence[Profile]",
    rate: float | None,
    load_time: str | None,
    router: Router | None,
    policy: str,
    seeds: int,
    *,
    compare: bool,
) -> "Callable[[Sizing], Day | None]":
    """What simulates a period once the size is known; what cannot be simulated is refused before."""
    from kvplan.analysis.population import with_part_of_users
    from kvplan.decide.autoscaling import LOAD_S, day, period
    from kvplan.model.fleet import Routing
    from kvplan.simulation.experiments.options import seeds as chosen

    if compare or len(loaded) > 1:
        raise UsageError("--schedule goes with one profile, and without --compare")
    [one] = loaded
    model = _of_one(one).model
    if rate is not None:
        model = with_part_of_users(model, rate / model.total_rate_rps)
    load_s = LOAD_S if load_time is None else parse_time(load_time, "--load-time")
    period(model, load_s)

    def simulated(found: "Sizing") -> "Day | None":
        [offer] = found.offers
        with progress_bar() as progress:
            return day(
                model,
                one.plan,
                offer.fleet,
                policy,
                seeds=chosen(0, seeds),
                load_s=load_s,
                routing=_asked(one.model, router) or Routing.RANDOM,
                price=offer.price,
                progress=progress,
                announce=say_compiling,
            )

    return simulated


def _sizing(
    given: "Sequence[Profile]",
    rate: float | None,
    headroom: float,
    price: Sequence[str],
    router: Router | None,
    policy: str,
    requests: int | None,
    seeds: int,
) -> "Sizing":
    from kvplan.decide.fleet import Offer, Sizing, fleet, notes
    from kvplan.decide.host_tier import weighed
    from kvplan.decide.sizing import MOST_REQUESTS, simulated
    from kvplan.engines.advice import default_requests
    from kvplan.report.verdict import requests_in_memory
    from kvplan.simulation.experiments.options import seeds as chosen

    check_runs(seeds, requests)
    routers = [_router(one.model, router) for one in given]
    loaded = [_of_one(one) for one in given]
    slos = loaded[0].plan.slos
    differ = sorted({s.key for one in loaded for s in set(one.plan.slos) ^ set(slos)})
    if differ:
        raise UsageError(f"the profiles differ in {', '.join(differ)} of [slo]: give it to all, with --slo")
    rates = [one.model.total_rate_rps for one in loaded]
    if rate is None and not all(math.isclose(one, rates[0], rel_tol=1e-9) for one in rates):
        offered = ", ".join(map(format_number, rates))
        raise UsageError(f"the profiles offer {offered} requests/s; compare them at one demand, with --rate")
    labels = _labels(loaded)
    prices = _prices(
        price,
        {label: one.model.replica.gpus for label, one in zip(labels, loaded, strict=True)},
        {label: one.plan.gpu_hour for label, one in zip(labels, loaded, strict=True)},
    )
    traces = [one.model.arrivals.trace for one in loaded]
    if requests is not None and any(traces):
        raise UsageError(_ALL_OF_TRACE)
    sizes = [
        requests or default_requests(one.model) if trace is None else trace.arrival_s.size
        for one, trace in zip(loaded, traces, strict=True)
    ]
    announce = _once(say_compiling)
    measures = [
        simulated(
            one.plan,
            policy,
            requests=count,
            most_requests=MOST_REQUESTS,
            seeds=chosen(0, seeds),
            announce=announce,
        )
        for one, count in zip(loaded, sizes, strict=True)
    ]
    with _watching() as watch, _telling() as tell:
        fleets, tiers = [], []
        for label, one, measure, routed in zip(labels, loaded, measures, routers, strict=True):
            sized = partial(
                fleet,
                rate_rps=rate,
                headroom=headroom,
                slos=slos,
                measure=watch(label, measure),
                router=routed,
                tell=tell(label),
            )
            fleets.append(sized(one.model))
            of_gpus = _of_gpus(price, label, one)
            costs = (prices.get(label) if of_gpus is None else of_gpus, prices.get(label))
            tiers.append(weighed(one.model, fleets[-1], sized, costs))
    offers = tuple(
        Offer(
            label,
            one.name,
            one.sha256,
            found,
            one.model.replica.gpus,
            prices.get(label),
            requests_in_memory(one.model),
            notes(one.model, found.heaviest),
            any(c.sessions is not None for c in one.model.classes),
            one.model.arrivals,
            one.model.mix.mean(one.model.mix.decode_tokens),
            tier,
        )
        for label, one, found, tier in zip(labels, loaded, fleets, tiers, strict=True)
    )
    return Sizing(offers, headroom, slos, policy, tuple(sizes), seeds)


def _of_gpus(price: Sequence[str], label: str, profile: "Profile") -> float | None:
    """What the GPUs of a replica cost an hour, whatever the price of the replica; None where nothing says it."""
    of_any = [text for text in price if text.partition("=")[0].strip() == _EVERY]
    return _prices(of_any, {label: profile.model.replica.gpus}, {label: profile.plan.gpu_hour}).get(label)


def _router(model: "ServingModel", given: Router | None) -> "Routing | None":
    """How requests come to replicas; None where one of them stands for all, and keeps its sessions."""
    asked = _asked(model, given)
    bring = any(c.sessions is not None or c.reuse is not None for c in model.classes)
    return None if asked is None or (asked.value == Router.RANDOM and not bring) else asked


def _asked(model: "ServingModel", given: Router | None) -> "Routing | None":
    from kvplan.model.fleet import Routing

    if given is not None:
        return Routing(given.value)
    return None if model.fleet is None else model.fleet.routing


def _of_one(profile: "Profile") -> "Profile":
    """The profile of one replica: how many of a fleet there are is the question."""
    return replace(profile, model=replace(profile.model, fleet=None))


def _gpus(split: str, rate: float | None) -> int | None:
    """The budget; None where it is asked for."""
    if split == _AUTO:
        return None
    if not split.isascii() or not split.isdigit():
        raise UsageError(f"--split {split[:80]!r}: a number of GPUs is wanted, or {_AUTO}")
    if rate is not None:
        raise UsageError(f"--rate goes with --split {_AUTO}; of {split[:80]} GPUs the largest rate is found")
    return int(split[:9])


def _split(
    profiles: Sequence[str],
    sides: tuple[str | None, str | None],
    gpus: int | None,
    rate: float | None,
    headroom: float,
    slo: Sequence[str],
    price: Sequence[str],
    policy: str,
    requests: int | None,
    seeds: int,
    format: DocumentFormat,
    output: Path | None,
    plot: Path | None,
) -> None:
    from kvplan.decide.crossing import limited, lines
    from kvplan.decide.sizing import simulated
    from kvplan.decide.splitting import (
        default_requests,
        fewest_gpus,
        gpus_by_formula,
        long_enough,
        split_or_together,
        with_sides,
    )
    from kvplan.formats import json
    from kvplan.layout import splitting as tables
    from kvplan.simulation.experiments.options import seeds as chosen

    if len(profiles) > 1:
        raise UsageError("--split goes with one profile; --prefill and --decode take others for either side")
    check_runs(seeds, requests)
    given = [side or profiles[0] for side in (*sides, profiles[0])]
    known = {name: read(name) for name in dict.fromkeys(given)}
    labels = dict(zip(known, _labels(list(known.values())), strict=True))
    prices = _prices(
        price,
        {labels[name]: one.model.replica.gpus for name, one in known.items()},
        {labels[name]: one.plan.gpu_hour for name, one in known.items()},
    )
    loaded = with_slos(known[profiles[0]], slo)
    model = with_sides(loaded, *(None if side is None else known[side] for side in sides))
    slos = loaded.plan.slos
    if plot is not None:
        limited(slos)
    needed = (rate or model.total_rate_rps) * (1 + headroom)
    trace = model.arrivals.trace
    if requests is not None and trace is not None:
        raise UsageError(_ALL_OF_TRACE)
    size = gpus or gpus_by_formula(model, needed, slos)
    count = (requests or default_requests(model, size)) if trace is None else trace.arrival_s.size
    measure = simulated(
        loaded.plan,
        policy,
        requests=count,
        seeds=chosen(0, seeds),
        announce=_once(say_compiling),
        compile=True,  # dozens of runs, each of all replicas
    )
    with _watching() as watch:
        measure = watch(labels[profiles[0]], long_enough(measure, count, slos))
        demand = fewest_gpus(model, needed, slos, measure) if gpus is None else None
        found = split_or_together(model, gpus or 0, slos, measure) if demand is None else demand.found
        drawn = None if plot is None else lines(model, found.gpus, slos, measure)
    kinds = tuple(known[name] for name in given)
    shown = tables.Shown(
        found,
        slos,
        policy,
        count,
        seeds,
        demand,
        drawn,
        tuple(prices[labels[name]] for name in given) if prices else None,
        kinds if model.fleet is not None and model.fleet.sides_differ else None,
    )
    text = rendered(
        format,
        output,
        lambda: json.splitting(shown, loaded),
        lambda: [tables.build(shown, loaded.name)],
        *dict.fromkeys([loaded.sha256, *(one.sha256 for one in shown.kinds or ())]),
    )
    if plot is not None and drawn is not None:
        from kvplan.plots import drawing

        write_bytes(drawing.file_of("split", drawn, plot.suffix), plot)
    write_result(text, output)


def _once(announce: Callable[[str, bool], None]) -> Callable[[str, bool], None]:
    """The same, silent after the first time: every run of every size would say it, in threads at that."""
    unsaid = [announce]

    def told(policy: str, kept: bool) -> None:
        with suppress(IndexError):  # taking from a list is atomic
            unsaid.pop()(policy, kept)

    return told


@contextmanager
def _watching() -> "Iterator[Callable[[str, Measure], Measure]]":
    """What is being simulated, on standard error if that is a terminal."""
    if sys.stderr is None or not sys.stderr.isatty():
        yield lambda label, measure: measure
        return
    from rich.console import Console
    from rich.text import Text

    with Console(stderr=True).status("") as line:

        def watch(label: str, measure: "Measure") -> "Measure":
            def told(model: "ServingModel") -> "Measured":
                replicas = 1 if model.fleet is None else model.fleet.size
                rate = format_number(model.total_rate_rps / replicas)
                line.update(Text(f"{label}: simulating {rate} requests/s a replica"))
                return measure(model)

            return told

        yield watch


@contextmanager
def _telling() -> "Iterator[Callable[[str], Tell]]":
    """Whoever interrupts the search hears what it has found."""
    known: dict[tuple[str, float], SoFar] = {}

    def told(label: str, found: "SoFar") -> None:
        known[label, found.demand_rps] = found

    try:
        yield lambda label: partial(told, label)
    except KeyboardInterrupt:
        from kvplan.layout.sizing import so_far

        for (label, _), found in known.items():
            say(f"note: interrupted; {label}: {so_far(found)}")
        raise


def _labels(profiles: "Sequence[Profile]") -> list[str]:
    """What a price is given to: the stem of each file, or the name of a shipped profile."""
    labels = [Path(one.source).name.removesuffix(".toml") for one in profiles]
    for label in labels:
        if labels.count(label) > 1:
            raise UsageError(f"two profiles are called {label!r}; each must have a name of its own")
    return labels


def _prices(
    given: Sequence[str], gpus: Mapping[str, int], stated: Mapping[str, float | None]
) -> dict[str, float]:
    """The price of a replica of each profile, which has so many GPUs; empty where none is given.

    What is not given is as the profiles have `stated` it, for a GPU.
    """
    found: dict[str, float] = {}
    for text in given:
        name, equals, value = (part.strip() for part in text.partition("="))
        shown = f"--price {text[:80]!r}"
        if not equals or not name:
            raise UsageError(f"{shown}: NAME=PRICE is wanted, such as gpu=2.50")
        if name not in gpus and name != _EVERY:
            names = [*gpus, _EVERY]
            raise UsageError(
                f"{shown}: no profile has that name; {did_you_mean(name, names, 'the names are')}"
            )
        if name in found:
            raise UsageError(f"{shown}: {name} has a price already")
        try:
            number = float(value)
        except ValueError:
            number = math.nan
        if not 0 <= number <= 1e9:
            raise UsageError(f"{shown}: a number from 0 to 1e9 is wanted, the price of an hour")
        found[name] = number
    every = found.get(_EVERY)
    prices: dict[str, float | None] = {}
    for label, count in gpus.items():
        one = stated[label] if every is None else every
        prices[label] = found.get(label, None if one is None else one * count)
    without = [label for label, price in prices.items() if price is None]
    if without and len(without) < len(prices):
        raise UsageError(
            f"--price: none for {without[0]}; give every profile one, or all the same for a GPU by gpu=PRICE"
        )
    return {label: price for label, price in prices.items() if price is not None}
