"""Plots drawn with matplotlib, which is optional: as SVG for a page that has its own colours, or as a file.

The same plot gives the same bytes: no time stamps, and the names inside an SVG derive from the plot's key.
"""

import logging
import math
import re
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from kvplan.errors import UsageError
from kvplan.plots import charts, data, fleet, planning, prefix_cache
from kvplan.plots.palette import LIGHT

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

PlotData = data.ReportData | planning.SweepMap | planning.SweepLine | planning.PlanPlot

HOW_TO_INSTALL = "plots need matplotlib; in a checkout of kvplan: pip install '.[plot]'"

_SIZE = (
    4.9,
    3.4,
)  # inches; text of 11 points has then 10 pixels on a telephone and is as large as the page's elsewhere
_SUFFIXES = (".svg", ".png")
_PIXELS_PER_INCH = 160
_MOST_BARS_NAMED = 8
_FEW_ROOTS = 60  # drawn larger
_SPIKE = 3.0  # times the smooth density: how much of a spike is shown
_RC = {
    "axes.axisbelow": True,
    "axes.edgecolor": LIGHT["soft"],
    "axes.grid": True,
    "axes.labelcolor": LIGHT["ink"],
    "axes.spines.right": False,
    "axes.spines.top": False,
    "font.size": 11.0,
    "legend.fontsize": 11.0,
    "grid.color": LIGHT["rule"],
    "grid.linewidth": 0.6,
    "legend.frameon": False,
    "lines.linewidth": 1.8,
    "text.color": LIGHT["ink"],
    "xtick.color": LIGHT["soft"],
    "xtick.labelcolor": LIGHT["ink"],
    "ytick.color": LIGHT["soft"],
    "ytick.labelcolor": LIGHT["ink"],
}
_POLICY_COLOURS = ("orange", "blue", "green", "violet")
_POLICY_WIDTHS = (2.6, 1.1, 0.9, 0.7)  # so that none hides another that is the same


def available() -> bool:
    """Whether matplotlib is installed."""
    return find_spec("matplotlib") is not None


def require() -> None:
    """Refuse politely where it is not.

    Raises
    ------
    UsageError
    """
    if not available():
        raise UsageError(HOW_TO_INSTALL)


def check_file(path: Path) -> None:
    """Refuse a name that says nothing of how to draw, and where matplotlib is not installed.

    Raises
    ------
    UsageError
    """
    if path.suffix not in _SUFFIXES:
        raise UsageError(f"--plot {path}: the name must end in {' or '.join(_SUFFIXES)}")
    require()


def file_of(key: str, content: PlotData, suffix: str) -> bytes:
    """A file of its own, light, with text as outlines: SVG or PNG by its suffix; `key` as for `inline_svg`."""
    if suffix == ".svg":
        return _saved(key, content, "svg", {"svg.fonttype": "path"}, transparent=False)
    return _saved(key, content, "png", {}, transparent=False)


def inline_svg(key: str, content: PlotData) -> str:
    """An ``<svg>`` element for a page that defines ``--paper``, ``--ink`` and the other colours of the palette.

    Names inside it derive from `key`, so that each plot of a page needs a key of its own.
    """
    text = _saved(key, content, "svg", {"svg.fonttype": "none"}, transparent=True).decode()
    text = text[text.index("<svg") :].strip()
    text = re.sub(r' (?:xmlns(?::xlink)?|version)="[^"]*"', "", text)
    text = re.sub(r'(<svg[^>]*?) width="[^"]*"', r"\1", text.replace("xlink:href", "href"), count=1)
    text = re.sub(r'(<svg[^>]*?) height="[^"]*"', r"\1", text, count=1)
    text = re.sub(r"<style.*?</style>", "", text, flags=re.DOTALL)  # it would style the page as well
    for role, colour in LIGHT.items():
        text = text.replace(colour, f"var(--{role})")
    text = re.sub(r"(font(?:-family)?: [^;\"]*?)'DejaVu Sans'[^;\"]*", r"\1inherit", text)
    return _shortened(_own_names(text, key))


def _own_names(text: str, key: str) -> str:
    """Only names that are referred to, and none that another plot on the same page could have."""
    used = set(re.findall(r'(?:url\(#|href="#)([^)"]+)', text))
    text = re.sub(r' id="([^"]*)"', lambda found: f' id="{key}-{found[1]}"' if found[1] in used else "", text)
    return re.sub(r'(url\(#|href="#)', rf"\g<1>{key}-", text)


def _shortened(text: str) -> str:
    """Coordinates to a hundredth of a point, and no blank lines: half the size."""
    text = re.sub(
        r' (?:d|x|y)="[^"]*"',
        lambda found: re.sub(r"-?\d+\.\d{3,}", lambda number: f"{float(number[0]):.2f}", found[0]),
        text,
    )
    return re.sub(r"\s*\n\s*", "\n", text)


def _saved(key: str, content: PlotData, kind: str, rc: dict[str, Any], *, transparent: bool) -> bytes:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.backends.backend_svg import FigureCanvasSVG

    logging.getLogger("matplotlib").setLevel(
        logging.ERROR
    )  # a home that cannot be written is nobody's concern
    out = BytesIO()
    with _own_style({**rc, "svg.hashsalt": key}):
        figure = _drawn(content)
        figure.set_dpi(_PIXELS_PER_INCH)
        figure.set_facecolor("none" if transparent else LIGHT["paper"])
        # Straight to the canvas, as `savefig` draws twice; without what changes from run to run or tells of the maker.
        canvas: Any = FigureCanvasSVG(figure) if kind == "svg" else FigureCanvasAgg(figure)
        if kind == "svg":
            canvas.print_svg(out, metadata=dict.fromkeys(("Date", "Creator", "Format", "Type")))
        else:
            canvas.print_png(out, metadata={"Software": None})
    return out.getvalue()


@contextmanager
def _own_style(more: dict[str, Any]) -> Iterator[None]:
    """Our settings on top of matplotlib's own, whatever the user's are."""
    import matplotlib

    settings: Any = matplotlib.rcParams
    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        settings.update({**_RC, **more})
        yield


def _drawn(content: PlotData) -> "Figure":
    from matplotlib.figure import Figure

    figure = Figure(figsize=_SIZE, layout="constrained")
    match content:
        case data.Roots():
            _roots(figure, content)
            return figure
    axes = figure.add_subplot()
    match content:
        case data.RateThroughput():
            _rate_throughput(axes, content)
        case data.EquilibriumCurve():
            _equilibrium(axes, content)
        case prefix_cache.CacheBranches():
            charts.cache_branches(axes, content)
        case prefix_cache.CacheHits():
            charts.cache_hits(axes, content)
        case fleet.FleetRates():
            charts.fleet_rates(axes, content)
        case data.UsageDensity():
            _density(axes, content)
        case data.SegmentMemory():
            _segments(axes, content)
        case planning.SweepMap():
            charts.sweep_map(figure, axes, content)
        case planning.SweepLine():
            charts.sweep_line(axes, content)
        case planning.PlanPlot():
            charts.plan(axes, content)
    _legend(figure, axes)
    return figure


def _legend(figure: "Figure", axes: "Axes") -> None:
    """Above the axes, where it hides nothing."""
    handles, labels = axes.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper left", ncols=3, handlelength=1.4, columnspacing=1.0)


def _rate_throughput(axes: "Axes", content: data.RateThroughput) -> None:
    rate = content.rate_rps
    if content.danger_zone_rps is not None:
        low, high = content.danger_zone_rps
        axes.axvspan(low, high, color=LIGHT["red"], alpha=0.14, linewidth=0, label="danger zone")
    axes.plot(rate, content.capped_rps, color=LIGHT["blue"], label="with a cap")
    if content.danger_zone_rps is not None:
        label = "greedy, sure after a collapse"
        axes.plot(rate, content.recovered_rps, color=LIGHT["orange"], label=label, linestyle="--")
        axes.axhline(
            content.worst_cycle_rps, color=LIGHT["orange"], linewidth=0.8, label="worst cycle", linestyle=":"
        )
    if content.shows_offered:
        _mark(axes, content.offered_rps, "offered")
    axes.set(xlabel="offered rate, requests/s", ylabel="throughput, requests/s")
    axes.set_xlim(0, rate[-1])
    axes.set_ylim(0, 1.15 * content.sustainable_rps)


def _equilibrium(axes: "Axes", content: data.EquilibriumCurve) -> None:
    axes.plot(content.rate_rps, content.kv_tokens, color=LIGHT["blue"], label="equilibrium")
    _capacity(axes, content.capacity_tokens)
    if content.shows_offered:
        assert content.offered_kv_tokens is not None
        point = ([content.offered_rps], [content.offered_kv_tokens])
        axes.plot(*point, "o", color=LIGHT["ink"], label="at the offered rate")
    axes.set(xlabel="offered rate, requests/s", ylabel="KV, tokens")
    axes.set_xlim(0, 1.05 * content.rate_rps[-1])
    axes.set_ylim(0, 1.02 * content.kv_tokens[-1])
    _thousands(axes.yaxis)


def _density(axes: "Axes", content: data.UsageDensity) -> None:
    smooth, steps = content.with_feedback, content.without_feedback
    top = _highest(content)
    # per so many tokens that the axis needs no power of ten
    per = 10.0 ** max(0, math.floor(-math.log10(top)))
    if steps is not None:
        axes.stairs(
            per * steps.density,
            steps.edge_tokens,
            fill=True,
            color=LIGHT["blue"],
            alpha=0.22,
            label="constant iteration time",
        )
    axes.plot(smooth.tokens, per * smooth.density, color=LIGHT["blue"], label="with feedback")
    if content.mean_tokens >= content.low_tokens:
        axes.axvline(content.mean_tokens, color=LIGHT["soft"], linewidth=1.2, linestyle=":", label="mean")
    axes.axvspan(
        content.mean_tokens,
        content.required_tokens,
        color=LIGHT["green"],
        alpha=0.13,
        linewidth=0,
        label="buffer",
    )
    if content.shows_capacity:
        axes.axvline(
            content.capacity_tokens, color=LIGHT["red"], linewidth=1.4, linestyle="--", label="capacity"
        )
    elif content.has_room:
        edge = ([content.high_tokens], [0.55 * per * top], ">")
        axes.plot(*edge, color=LIGHT["red"], clip_on=False, linewidth=0, label="to the capacity")
    unit = "token" if per == 1 else f"{_prefixed()(per)} tokens"
    axes.set(xlabel="KV, tokens", ylabel=f"probability per {unit}")
    axes.set_xlim(content.low_tokens, content.high_tokens)
    axes.set_ylim(0, 1.1 * per * top)
    axes.ticklabel_format(axis="y", scilimits=(-4, 4), useOffset=False)
    axes.locator_params(axis="x", nbins=6)
    _thousands(axes.xaxis)


def _highest(content: data.UsageDensity) -> float:
    """Top of the density; a lone spike of the steps, as that of an empty memory, may leave the plot."""
    top = float(content.with_feedback.density.max())
    steps = content.without_feedback
    return top if steps is None else max(top, min(float(steps.density.max()), _SPIKE * top))


def _roots(figure: "Figure", content: data.Roots) -> None:
    """In the plane, and by modulus: most are so near the circle that the plane does not tell."""
    plane, moduli = figure.subplots(1, 2, width_ratios=(1.25, 1))
    turn = np.linspace(0, 2 * np.pi, 181)
    circle = {"color": LIGHT["soft"], "linewidth": 1.0}
    plane.plot(np.cos(turn), np.sin(turn), label="unit circle", **circle)
    moduli.axhline(1, **circle)
    modulus = np.abs(content.roots)
    for chosen, colour, mark, label in (
        (modulus <= 1, "blue", "o", "roots inside"),
        (modulus > 1, "red", "D", "roots outside"),
    ):
        found = content.roots[chosen]
        if found.size:
            size = 3.6 if modulus.size < _FEW_ROOTS else 2.0
            style = {"color": LIGHT[colour], "markersize": size, "linewidth": 0}
            plane.plot(found.real, found.imag, mark, label=label, **style)
            upper = found[found.imag >= 0]
            moduli.plot(np.degrees(np.angle(upper)), np.abs(upper), mark, **style)
    reach = 1.08 * max(1.0, float(modulus.max(initial=1.0)))
    plane.set(xlabel="real part", ylabel="imaginary part", aspect="equal")
    plane.set_xlim(-reach, reach)
    plane.set_ylim(-reach, reach)
    moduli.set(xlabel="angle, degrees", ylabel="modulus")
    moduli.set_xlim(-5, 185)
    moduli.set_xticks([0, 90, 180])
    moduli.ticklabel_format(axis="y", useOffset=False)
    _legend(figure, plane)


def _segments(axes: "Axes", content: data.SegmentMemory) -> None:
    place = np.arange(content.count.size)
    below = np.zeros(place.size)
    for part, colour, label in (
        (content.base_tokens, "blue", "filled segments"),
        (content.boundary_tokens, "orange", "waiting at boundaries"),
        (content.buffer_tokens, "green", "buffer"),
    ):
        axes.bar(place, part, 0.8, bottom=below, color=LIGHT[colour], linewidth=0, label=label)
        below = below + part
    best = int(np.flatnonzero(content.count == content.chosen)[0])
    top = float(below.max())
    axes.plot([best], [below[best] + 0.03 * top], "v", color=LIGHT["ink"], label="in the report")
    if content.shows_capacity:
        _capacity(axes, content.capacity_tokens)
        top = max(top, content.capacity_tokens)
    every = -(-place.size // _MOST_BARS_NAMED)
    axes.set_xticks(place[::every], [str(count) for count in content.count[::every]])
    axes.set(xlabel="segments", ylabel="required KV, tokens")
    axes.set_ylim(0, 1.1 * top)
    axes.grid(visible=False, axis="x")
    _thousands(axes.yaxis)


def _capacity(axes: "Axes", tokens: int) -> None:
    axes.axhline(tokens, color=LIGHT["red"], linewidth=1.4, linestyle="--", label="capacity")


def _mark(axes: "Axes", rate: float, label: str) -> None:
    axes.axvline(rate, color=LIGHT["ink"], linewidth=1.4, linestyle=":", label=label)


def _thousands(axis: Any) -> None:
    """Ticks as 50k and 1.2M."""
    axis.set_major_formatter(_prefixed())


def _prefixed() -> Any:
    from matplotlib.ticker import EngFormatter

    return EngFormatter(sep="")
