"""`kvplan size`: how many replicas a demand needs, and how many GPUs these are."""

import math
from collections.abc import Callable, Sequence
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
    say_compiling,
    with_slos,
)
from kvplan.cli.output import check_writable, write_bytes, write_result
from kvplan.cli.prices import labels_of, price_of_gpus, prices_of
from kvplan.cli.searching import ALL_OF_TRACE, telling, watching
from kvplan.cli.splitting import compare_split, gpus_of
from kvplan.errors import UsageError
from kvplan.ranges import LEAST_RATE, MOST_RATE
from kvplan.units import format_number, parse_time

if TYPE_CHECKING:
    from kvplan.decide.autoscaling import Day
    from kvplan.decide.fleet import Sizing
    from kvplan.model import ServingModel
    from kvplan.model.fleet import Routing
    from kvplan.profile.reading import Profile


_HEADROOM = 0.2


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
        float | None,
        option(
            "--headroom",
            help="Share by which the demand may grow while everything still holds. Default: 0.2, which is 20%.",
        ),
    ] = None,
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
            help="Number of requests in each of the first runs, which then get longer until they decide. Default: ten "
            "times what memory holds, and from 2,000 to 20,000; with --split of each run, a thousand for each replica, "
            "and from 6,000 to 60,000.",
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

    check_plot(plot, [*profiles, prefill, decode], output)
    check_writable(output)
    if rate is not None and not LEAST_RATE <= rate <= MOST_RATE:
        raise UsageError(f"--rate {rate:g}: requests/s, from {LEAST_RATE:g} to {MOST_RATE:g}")
    growth = _HEADROOM if headroom is None else headroom
    if not 0 <= growth <= 100:
        raise UsageError(f"--headroom {growth:g}: a share from 0 to 100, such as 0.2")
    if load_time is not None and not schedule:
        raise UsageError("--load-time goes with --schedule")
    if split is not None:
        for name, given in (("--compare", compare), ("--schedule", schedule)):
            if given:
                raise UsageError(f"{name} does not go with --split, which compares two ways to use GPUs")
        if router is not None:
            raise UsageError("--routing does not go with --split, which goes by [fleet]")
        gpus = gpus_of(split, {"--rate": rate, "--headroom": headroom})
        sides = prefill, decode
        compare_split(
            profiles,
            sides,
            gpus,
            rate,
            growth,
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
    loaded = [with_slos(read(profile, output), slo) for profile in profiles]
    simulated_day = (
        _day(loaded, rate, load_time, router, policy, seeds, compare=compare) if schedule else None
    )
    found = _sizing(loaded, rate, growth, price or [], router, policy, requests, seeds)
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
    from kvplan.decide.sizing import MOST_REQUESTS, default_requests, simulated
    from kvplan.report.verdict import requests_in_memory

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
    labels = labels_of(loaded)
    prices = prices_of(
        price,
        {label: one.model.replica.gpus for label, one in zip(labels, loaded, strict=True)},
        {label: one.plan.gpu_hour for label, one in zip(labels, loaded, strict=True)},
    )
    traces = [one.model.arrivals.trace for one in loaded]
    if requests is not None and any(traces):
        raise UsageError(ALL_OF_TRACE)
    sizes = [
        requests or default_requests(one.model) if trace is None else trace.arrival_s.size
        for one, trace in zip(loaded, traces, strict=True)
    ]
    measures = [
        simulated(one.plan, policy, slos, requests=count, most_requests=MOST_REQUESTS, runs=seeds)
        for one, count in zip(loaded, sizes, strict=True)
    ]
    with watching() as watch, telling() as tell:
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
            of_gpus = price_of_gpus(price, label, one)
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
