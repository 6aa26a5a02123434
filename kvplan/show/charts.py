"""The charts of reports and plans, made from their results."""

from collections.abc import Iterator, Sequence
from itertools import cycle
from typing import TYPE_CHECKING

import numpy as np

from kvplan.analysis.worst_window import planned_for
from kvplan.model import FloatArray, ServingModel
from kvplan.model import Plan as ServicePlan
from kvplan.planning.day import Day, served_rps
from kvplan.planning.host_memory import Tier
from kvplan.planning.search import Setting
from kvplan.report.assembly import Analyses, Report
from kvplan.report.blocks import CacheBlock
from kvplan.show.chart import COLOURS, Axis, Chart, Line, Patch, stairs, time_axis
from kvplan.study.goodput import Goodput, load_curve
from kvplan.study.trial import Task
from kvplan.units import format_number, format_seconds

if TYPE_CHECKING:
    from kvplan.planning.result import Plan

_AROUND = 1.2
_FAR = 4.0  # times what is sustainable: an offered rate beyond is named in the caption instead
_USUAL = ("p50", "p95", "p99")
_FIGURES = {"mean": "green", "p50": "blue", "p90": "green", "p95": "orange", "p99": "violet"}
_POINTS = 1_000  # of the demands of a plan
_NEAR = 1e-6
_DEMAND = 2.0  # times that of the plan


def of_report(report: Report, model: ServingModel, plan: ServicePlan) -> tuple[Chart, ...]:
    """Return throughput and latency against load."""
    return (*_throughput(report), *of_profile(model, plan, None if model.schedule else report.goodput))


def of_profile(model: ServingModel, plan: ServicePlan, good: Goodput | None = None) -> tuple[Chart, ...]:
    """Return latency against load, of a schedule that of its heaviest part; `good` where it is known already."""
    model = planned_for(model)
    return tuple(_latency(model, plan, good or Analyses(model, plan).goodput))


def of_plan(plan: "Plan") -> tuple[Chart, ...]:
    """Return cost against demand, a day and host memory where asked for, and latency against load."""
    if plan.profile is None or plan.status != "planned":
        return ()
    days = () if plan.day is None else (_day(plan.day),)
    host = (_host_memory(plan.host_memory, plan.host_curve),) if plan.host_curve else ()
    return (_demand(plan), *days, *host, *of_profile(plan.profile.model, plan.profile.plan))


def _throughput(report: Report) -> Iterator[Chart]:
    """Draw a replica's sure rate; with a prefix cache `load` and the danger zone say less than is true."""
    if isinstance(report.prefix_cache, CacheBlock) and report.prefix_cache.reusable_ratio is not None:
        return
    offered, most = report.load.offered_rps, report.load.sustainable_rps
    zone = report.worst_cycle.danger_zone_rps
    top = _AROUND * (max(offered, most) if offered <= _FAR * most else most)
    x, y = Axis("offered, requests/s", 0.0, top), Axis("served, requests/s", 0.0, _AROUND * most)
    caption = f"Offered {format_number(offered)}, sustainable {format_number(most)} requests/s."
    rate = np.array([0.0, most, top])
    lines = [Line("with a rate cap", rate, np.minimum(rate, most))]
    patches: tuple[Patch, ...] = ()
    if zone is not None:
        low, high = zone
        rate = np.array([0.0, low, top])
        lines.append(Line("greedy, sure after a collapse", rate, np.minimum(rate, low), "orange", "dashed"))
        patches = (Patch("danger zone", np.array([[low, 0.0, high, y.high]]), "red"),)
        caption += (
            f" Danger zone from {format_number(low)} to {format_number(high)} requests/s: the load fits, but a greedy "
            "replica that has collapsed can stay so."
        )
    chart = Chart("Throughput against load", caption, x, y, patches=patches)
    if offered <= top:
        lines.append(chart.upright("offered", offered, "ink", "dotted"))
    yield chart._replace(lines=lines)


def _latency(model: ServingModel, plan: ServicePlan, good: Goodput | None) -> Iterator[Chart]:
    """Draw TTFT, ITL, and each other time that has an objective."""
    curve = load_curve(model, plan)
    if len(curve.rates_rps) < 2:
        return
    limits = plan.limits
    rates, offered = np.array(curve.rates_rps), model.total_rate_rps
    marks = [("offered", offered, "ink", "dotted"), ("sustainable", curve.sustainable_rps, "soft", "dashed")]
    if good is not None:
        marks.insert(0, ("goodput", good.rate_rps, "green", "dashed"))
    end = max(float(rates[-1]), curve.sustainable_rps)
    x = Axis("offered, requests/s", 0.0, 1.05 * (max(end, offered) if offered <= _FAR * end else end))
    said = ", ".join(f"{name} {format_number(rate)}" for name, rate, *_ in marks)
    for time in ("ttft_s", "itl_s", "tpot_s", "e2e_s"):
        mine = {key.partition(".")[2]: limit for key, limit in limits.items() if key.startswith(f"{time}.")}
        if not mine and time not in ("ttft_s", "itl_s"):
            continue
        name = time.removesuffix("_s").upper()
        known = {
            figure: np.array(
                [getattr(getattr(latency, time), figure) for latency in curve.latencies], dtype=float
            )
            for figure in _FIGURES
            if figure in mine or figure in _USUAL
        }
        values = np.concatenate([*known.values(), np.array([*mine.values()], dtype=float)])
        values = values[values > 0]
        if not values.size:
            continue
        y = Axis(name, values.min() / 1.3, values.max() * 1.3, log=True, shown=_time)
        objectives = "".join(
            f" Objective: {name} {figure} at most {format_seconds(limit)}." for figure, limit in mine.items()
        )
        chart = Chart(
            f"{name} against load", f"Simulated. {said[0].upper()}{said[1:]} requests/s.{objectives}", x, y
        )
        lines = [Line(figure, rates, line, _FIGURES[figure]) for figure, line in known.items()]
        lines += [
            chart.level(f"{figure} at most {format_seconds(limit)}", limit, "red")
            for figure, limit in mine.items()
        ]
        lines += [chart.upright(*mark) for mark in marks if mark[1] <= x.high]
        yield chart._replace(lines=lines)


def _time(seconds: float) -> str:
    return format_seconds(seconds) if seconds < 60 else f"{seconds:,.4g} s"


def _demand(plan: "Plan") -> Chart:
    """Draw cost against demand, of the plan and its alternatives, by short runs."""
    kinds = [(plan.winner, plan.setting), *((each.candidate, each.setting) for each in plan.alternatives)]
    demand_rps = plan.winner.task.model.total_rate_rps
    demand = np.linspace(0.0, _DEMAND * demand_rps, _POINTS)[1:]
    lines = []
    for colour, (candidate, setting) in zip(COLOURS, kinds, strict=False):
        each = _served_rps(candidate.task, setting)
        lines.append(
            Line(candidate.name, demand, cost(demand, candidate.price, each, plan.request.spare), colour)
        )
    own = plan.bought(plan.setting.replicas) * plan.winner.price
    unit = "cost per hour" if plan.request.priced else "GPUs"
    paid = f"{format_number(own)} {unit.removeprefix('cost ')}"
    count = f"{plan.setting.replicas:,} replica{'s' * (plan.setting.replicas != 1)}"
    caption = (
        f"The plan: {count}, {paid}, for {format_number(demand_rps)} requests/s. A step is one replica more."
    )
    dot = Line("the plan", np.array([demand_rps]), np.array([own]), "ink", "dots")
    top = 1.05 * max(own, *(float(line.y.max()) for line in lines))
    return Chart(
        "Replicas and cost against demand",
        caption,
        Axis("demand, requests/s", 0.0, float(demand[-1])),
        Axis(unit, 0.0, top),
        [*lines, dot],
        right=(f"replicas of {plan.winner.name}", plan.winner.price),
    )


def _served_rps(task: Task, setting: Setting) -> float:
    """Measure a replica's rate; where short runs say more than the plan, one less is too few."""
    served = served_rps(task, setting, long=False)
    if setting.replicas > 1:
        served = min(served, (1 - _NEAR) * task.rate_rps / (setting.replicas - 1))
    return served / (1 + task.headroom)


def cost(demand_rps: FloatArray, each: float, served_rps: float, spare: int = 0) -> FloatArray:
    """Return the cost of replicas for each demand, and spare ones.

    >>> cost(np.array([1.0, 2.0, 5.0]), each=3.0, served_rps=2.0, spare=1).tolist()
    [6.0, 6.0, 12.0]
    """
    return np.asarray(each * (spare + np.ceil(demand_rps / served_rps * (1 - 1e-9))))


def _host_memory(tiers: Sequence[Tier], curve: Sequence[Tier]) -> Chart:
    """Draw rate and hits of a replica with more host memory, and where fewer replicas are enough."""
    gib, hits = (
        np.array([getattr(tier, name) for tier in curve], dtype=float) for name in ("gib", "hit_ratio")
    )
    sure, warm = (
        np.array([getattr(tier, name) for tier in curve]) for name in ("guaranteed_rps", "good_rps")
    )
    top = 1.1 * float(max(sure.max(), warm.max()))
    replicas = {
        tier.gib: f"{tier.replicas:,} replica{'s' * (tier.replicas != 1)} with {format_number(tier.gib, 3)} GiB"
        for tier in tiers
    }
    said = ", ".join(f"{count} each" for count in replicas.values())
    chart = Chart(
        "Host memory",
        f"Rates and hits of one replica by formulas; by short runs {said}.",
        Axis("host memory a replica, GiB", 0.0, float(gib[-1])),
        Axis("requests/s", 0.0, top),
        right=("share of prompts found", top),
    )
    lines = [
        Line("guaranteed", gib, sure),
        Line("with a warm cache", gib, warm, "orange"),
        Line("found, on the right", gib, top * hits, "green", "dashed"),
        *(
            chart.upright(count, gib, colour, "dotted")
            for (gib, count), colour in zip(replicas.items(), cycle(("ink", *COLOURS[3:])), strict=False)
            if gib
        ),
    ]
    return chart._replace(lines=lines)


def _day(day: Day) -> Chart:
    """Draw demand over a period, and the rate of each part's replicas."""
    edges = np.array([*(hour.begin_s for hour in day.hours), day.period_s])
    demand = np.array([hour.demand_rps for hour in day.hours])
    serving = day.add_rps * np.array([hour.replicas for hour in day.hours])
    most, least = (pick(hour.replicas for hour in day.hours) for pick in (max, min))
    x = time_axis(day.period_s)
    y = Axis("requests/s", 0.0, 1.1 * max(float(serving.max()), float(demand.max())))
    caption = (
        f"{least:,} to {most:,} replicas, {format_number(day.gpu_hours)} GPU-hours; {most:,} all the time would be "
        f"{format_number(day.fixed_gpu_hours)}."
    )
    chart = Chart("The day", caption, x, y, right=("replicas", day.add_rps))
    lines = [
        Line("demand", *stairs(edges, demand), "orange"),
        Line("replicas by the hour", *stairs(edges, serving)),
        chart.level("all the time", day.add_rps * most, "soft"),
    ]
    return chart._replace(lines=lines)
