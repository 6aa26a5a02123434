"""Drawing sweeps and sizes on axes of matplotlib; `kvplan.plots.drawing` makes files of them."""

from typing import TYPE_CHECKING

import numpy as np

from kvplan.plots import planning
from kvplan.plots.palette import LIGHT

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_FLEET_COLOURS = ("blue", "orange", "green", "violet", "red")
_THOUSANDS_FROM = 10_000
_STATUS_NAMES = ("stable", "needs cap", "overloaded")
_STATUS_COLOURS = ("green", "orange", "red")


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
    axes.plot(content.x.values, content.figure, color=LIGHT["blue"], linewidth=1.2)
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


def fleet(axes: "Axes", content: planning.FleetPlot) -> None:
    """Replicas against demand: steps by formula, and what was simulated."""
    from matplotlib.ticker import MaxNLocator

    top = 0.0
    for number, one in enumerate(content.profiles):
        colour = LIGHT[_FLEET_COLOURS[number % len(_FLEET_COLOURS)]]
        axes.stairs(one.replicas, one.demand_rps, baseline=None, color=colour, label=one.label)
        for points, mark in ((one.enough, "o"), (one.not_enough, "x")):
            axes.plot(points[:, 0], points[:, 1], mark, color=colour, markersize=5)
            top = max(top, float(points[:, 1].max(initial=0)))
        top = max(top, float(one.replicas[-1]))
    axes.plot([], [], "o", color=LIGHT["ink"], label="simulated: enough")
    axes.plot([], [], "x", color=LIGHT["ink"], label="not enough")
    axes.set(xlabel="demand, requests/s", ylabel="replicas")
    axes.set_xlim(0, max(float(one.demand_rps[-1]) for one in content.profiles))
    axes.set_ylim(0, 1.08 * top)
    axes.yaxis.set_major_locator(MaxNLocator(integer=True))
