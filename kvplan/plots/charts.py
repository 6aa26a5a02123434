"""Drawing prefix caches, sweeps and plans on axes of matplotlib; `kvplan.plots.drawing` makes files of them."""

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from kvplan.plots import planning
from kvplan.plots.fleet import FleetRates
from kvplan.plots.palette import LIGHT
from kvplan.plots.prefix_cache import CacheBranches, CacheHits

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_KIND_COLOURS = ("blue", "orange", "green", "violet", "red")
_AROUND, _POINTS = 2.0, 2_000  # times the demand of a plan; of a line
_LEAST_PERCENT = 1e-9  # that an axis can end at
_THOUSANDS_FROM = 10_000
_STATUS_NAMES = ("stable", "needs cap", "overloaded")
_STATUS_COLOURS = ("green", "orange", "red")


def cache_branches(axes: "Axes", content: CacheBranches) -> None:
    """Running requests against the load: what is stable, what is not, and where others wait."""
    for stable, colour, style in ((True, "blue", "-"), (False, "orange", "--")):
        shown = _joined(content.stable == stable)
        if shown.any():
            line = np.where(shown, content.in_flight, np.nan)
            label = "stable" if stable else "unstable"
            axes.plot(content.load, line, style, color=LIGHT[colour], label=label)
    full = [content.full_in_flight] * 2
    axes.plot([content.full_from, content.high], full, color=LIGHT["red"], label="full, with a queue")
    marks = [(content.guaranteed, "soft", "guaranteed"), (content.good, "green", "warm cache")]
    for at, colour, label in marks[: 1 + (content.good > content.guaranteed)]:
        axes.axvline(at, color=LIGHT[colour], linewidth=1.0, linestyle="--", label=label)
    if content.shows_offered:
        axes.axvline(content.offered, color=LIGHT["ink"], linewidth=1.4, linestyle=":", label="offered")
        if content.warm_in_flight is not None:
            axes.plot([content.offered], [content.warm_in_flight], "o", color=LIGHT["ink"])
    what = "users" if content.unit == "users" else f"offered rate, {content.unit}"
    axes.set(xlabel=what, ylabel="running requests", yscale="log")
    axes.set_xlim(content.low, content.high)
    axes.set_ylim(content.low_in_flight, content.high_in_flight)
    _plain_log(axes.yaxis)


def cache_hits(axes: "Axes", content: CacheHits) -> None:
    """Hit ratio against memory, and where a burst can end it."""
    memory, ratio = content.memory_tokens, 100 * content.hit_ratio
    for risky, colour, style, label in (
        (False, "blue", "-", "guaranteed"),
        (True, "orange", "--", "a burst can end it"),
    ):
        shown = _joined((content.collapse == risky) & ~np.isnan(ratio))
        if shown.any():
            line = np.where(shown, ratio, np.nan)
            axes.plot(memory, line, style, color=LIGHT[colour], label=label)
    limit = 100 * content.reusable_ratio
    axes.axhline(limit, color=LIGHT["soft"], linewidth=1.0, linestyle="--", label="infinite memory")
    axes.axvline(content.own_tokens, color=LIGHT["ink"], linewidth=1.4, linestyle=":", label="this replica")
    if content.own_ratio is not None:
        axes.plot([content.own_tokens], [100 * content.own_ratio], "o", color=LIGHT["ink"])
    axes.set(xlabel="KV memory, tokens", ylabel="prompt tokens found, %", xscale="log")
    axes.set_xlim(memory[0], memory[-1])
    axes.set_ylim(0, min(1.12 * limit, 105) if limit > _LEAST_PERCENT else None)
    _plain_log(axes.xaxis)


def fleet_rates(axes: "Axes", content: FleetRates) -> None:
    """What split and together serve against the limit on the time between tokens, and where they cross."""
    limit = 1000 * content.itl_s
    axes.plot(limit, content.split_rps, color=LIGHT["orange"], label=content.split)
    axes.plot(limit, content.together_rps, color=LIGHT["blue"], label=content.together)
    axes.plot(limit, content.parts_rps, ":", color=LIGHT["orange"], linewidth=1.2, label="apart, in parts")
    marks = [
        (content.iteration_s, "soft", "--", "full prefill"),
        (content.own_itl_s, "ink", ":", "objective"),
    ]
    for at, colour, style, label in marks:
        if at is not None and limit[0] <= 1000 * at <= limit[-1]:
            axes.axvline(1000 * at, color=LIGHT[colour], linewidth=1.0, linestyle=style, label=label)
    if content.crossing_itl_s is not None:
        height = np.interp(content.crossing_itl_s, content.itl_s, content.split_rps)
        axes.plot([1000 * content.crossing_itl_s], [height], "o", color=LIGHT["ink"], label="even")
    axes.set(xlabel="limit on the time between tokens, ms", ylabel="requests/s", xscale="log")
    axes.set_xlim(limit[0], limit[-1])
    axes.set_ylim(0, None)
    _plain_log(axes.xaxis)


def _joined(shown: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """And the point after each, so that a line has no gap where its kind changes."""
    joined: NDArray[np.bool_] = shown | np.append(False, shown[:-1])
    return joined


def _plain_log(axis: Any) -> None:
    """Ticks of a logarithmic axis as 20, 50k and 1M, not as powers of ten."""
    from matplotlib.ticker import EngFormatter, LogLocator, NullFormatter

    axis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axis.set_major_formatter(EngFormatter(sep=""))
    axis.set_minor_formatter(NullFormatter())


def sweep_map(figure: "Figure", axes: "Axes", content: planning.SweepMap) -> None:
    """A figure by colour, and where the verdict becomes worse."""
    x, y = content.x, content.y
    cells = axes.pcolormesh(
        x.values,
        y.values,
        np.ma.masked_invalid(content.figure),
        shading="nearest",
        cmap="cividis",
        rasterized=True,
    )
    bar = figure.colorbar(cells, ax=axes)
    bar.set_label(content.column)
    _scale(axes, x, "x")
    _scale(axes, y, "y")
    axes.grid(visible=False)
    if content.status is None:
        return
    unknown = np.isnan(content.status)
    known = set(np.unique(content.status[~unknown]).tolist())
    for number in (1, 2):
        if number in known and min(known) < number:
            # of "this or worse", not of the numbers: from stable to overloaded is a single step
            worse = np.ma.array(content.status >= number, mask=unknown, dtype=np.float64)
            colour = LIGHT[_STATUS_COLOURS[number]]
            for ink, width in ((LIGHT["paper"], 3.4), (colour, 1.8)):  # seen on any colour
                axes.contour(x.values, y.values, worse, levels=[0.5], colors=[ink], linewidths=width)
            axes.plot([], [], color=colour, label=f"beyond: {_STATUS_NAMES[number]}")


def sweep_line(axes: "Axes", content: planning.SweepLine) -> None:
    """A figure over one key, its points in the colours of the verdict."""
    known = "simulated" if planning.is_simulated(content.column) else "formula"
    axes.plot(content.x.values, content.figure, color=LIGHT["blue"], linewidth=1.2, label=known)
    if content.status is not None:
        for number, name in enumerate(_STATUS_NAMES):
            mine = content.status == number
            if mine.any():
                colour, at = LIGHT[_STATUS_COLOURS[number]], content.x.values[mine]
                axes.plot(at, content.figure[mine], "o", color=colour, markersize=3.6, label=name)
    _scale(axes, content.x, "x")
    axes.set_ylabel(content.column)


def _scale(axes: "Axes", scale: planning.Scale, which: str) -> None:
    from matplotlib.ticker import EngFormatter

    axes.set(**{f"{which}label": scale.key})
    if scale.log:
        axes.set(**{f"{which}scale": "log"})
    elif scale.values[-1] >= _THOUSANDS_FROM:
        getattr(axes, f"{which}axis").set_major_formatter(EngFormatter(sep=""))


def plan(axes: "Axes", content: planning.PlanPlot) -> None:
    """Cost against demand, of a plan and its alternatives, and the replicas of the plan."""
    from matplotlib.ticker import MaxNLocator

    demand = np.linspace(0, _AROUND * content.demand_rps, _POINTS)
    for number, one in enumerate(content.kinds):
        colour, width = LIGHT[_KIND_COLOURS[number % len(_KIND_COLOURS)]], 1.2 if number else 2.2
        line: dict[str, Any] = {"color": colour, "linewidth": width, "drawstyle": "steps-pre"}
        axes.plot(demand, one.cost(demand), label=one.name, **line)
    axes.axvline(content.demand_rps, color=LIGHT["soft"], linewidth=1.0, linestyle="--")
    axes.plot([content.demand_rps], [content.cost], "o", color=LIGHT["ink"], label="the plan")
    top, each = axes.get_ylim()[1], content.kinds[0].each
    axes.set(xlabel="demand, requests/s", ylabel=content.unit, xlim=(0, demand[-1]), ylim=(0, top))
    scales: Any = (lambda cost: cost / each, lambda count: count * each)
    replicas = axes.secondary_yaxis("right", functions=scales)
    replicas.set_ylabel(f"replicas of {content.kinds[0].name}")
    replicas.yaxis.set_major_locator(MaxNLocator(integer=True))
