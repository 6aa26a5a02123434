"""The chart of a sweep over one key or two."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from kvplan.errors import UsageError
from kvplan.model import FloatArray
from kvplan.report.keys import SCREENS, Kind
from kvplan.report.words import Status
from kvplan.show.chart import Axis, Chart, Line, Patch
from kvplan.units import format_number

if TYPE_CHECKING:
    from kvplan.sweeps.definition import Sweep

STATUS_KEY = "verdict.status"
_STATUSES = {Status.STABLE: "green", Status.NEEDS_CAP: "orange", Status.OVERLOADED: "red"}  # from good to bad
_MOST_POINTS = 40_000
_SHADES = 6  # of a map


def check_sweep(sweep: "Sweep") -> None:
    """Refuse a sweep that is no line and no map, before it is run."""
    if sweep.sample is not None:
        raise UsageError("--plot draws grids; --sample does not go with it")
    if len(sweep.axes) > 2:
        raise UsageError(f"--plot draws one or two keys, not the {len(sweep.axes)} that are varied")
    for axis in sweep.axes:
        if axis.count < 2:
            raise UsageError(
                f"--plot: {axis.key} has a single value; leave it out of --vary, or give it more"
            )
    if sweep.points > _MOST_POINTS:
        raise UsageError(f"--plot: {sweep.points:,} points; {_MOST_POINTS:,} is the most that can be drawn")
    figure_of(sweep)


def figure_of(sweep: "Sweep") -> str:
    """Return the figure that is drawn: the first simulated number, else headroom, else the first number there is."""
    numbers = [column.name for column in sweep.columns if column.kind is Kind.NUMBER]
    if not numbers:
        raise UsageError(f"--plot: a number is wanted among --columns, such as {SCREENS['usual']}")
    usual = SCREENS["usual"] if SCREENS["usual"] in numbers else numbers[0]
    return next((name for name in numbers if name.startswith("simulation.")), usual)


def columns_of(sweep: "Sweep") -> tuple[str, ...]:
    """Return the columns that the chart of a sweep needs."""
    shown = (figure_of(sweep),)
    return (*shown, STATUS_KEY) if STATUS_KEY in sweep.names else shown


def of_sweep(sweep: "Sweep", columns: Mapping[str, Sequence[object]]) -> tuple[Chart, ...]:
    """Return the chart of a finished sweep that `check_sweep` has accepted.

    Parameters
    ----------
    columns : mapping of str to sequence, each of length n_points
        The columns of `columns_of`; None where a point has no figure.
    """
    axes = [np.array([axis.at(i) for i in range(axis.count)], dtype=np.float64) for axis in sweep.axes]
    orders = [np.argsort(values) for values in axes]
    logs = [axis.log for axis in sweep.axes]

    def arranged(values: Sequence[object]) -> FloatArray:
        flat = [np.nan if value is None else float(str(value)) for value in values]
        return np.array(flat).reshape([values.size for values in axes])[np.ix_(*orders)]

    name = figure_of(sweep)
    figure, status = arranged(columns[name]), np.full([values.size for values in axes], np.nan)
    if STATUS_KEY in columns:
        place = {each.value: number for number, each in enumerate(_STATUSES)}
        status = arranged([place.get(str(value)) for value in columns[STATUS_KEY]])
    ordered = [values[order] for values, order in zip(axes, orders, strict=True)]
    if len(ordered) == 1:
        return (_line(name, sweep.axes[0].key, ordered[0], logs[0], figure, status),)
    # the first key of a grid changes slowest: rows of the map
    keys = sweep.axes[1].key, sweep.axes[0].key
    return (_map(name, keys, (ordered[1], ordered[0]), (logs[1], logs[0]), figure, status),)


def _line(name: str, key: str, x: FloatArray, log: bool, figure: FloatArray, status: FloatArray) -> Chart:
    known = figure[~np.isnan(figure)]
    low, high = (min(0.0, known.min()), max(0.0, known.max())) if known.size else (0.0, 1.0)
    margin = 0.05 * (high - low or 1.0)
    kind = "simulated" if name.startswith("simulation.") else "formula"
    lines = [Line(kind, x, figure)]
    for number, (verdict, colour) in enumerate(_STATUSES.items()):
        mine = (status == number) & ~np.isnan(figure)
        if mine.any():
            lines.append(Line(verdict.value.replace("_", " "), x[mine], figure[mine], colour, "dots"))
    return Chart(
        f"{name} against {key}",
        f"From {format_number(low)} to {format_number(high)}.",
        Axis(key, x[0], x[-1], log),
        Axis(name, low - margin * (low < 0), high + margin),
        lines,
    )


def _map(
    name: str, keys: tuple[str, str], values: tuple[FloatArray, FloatArray], logs: tuple[bool, bool],
    figure: FloatArray, status: FloatArray,
) -> Chart:  # fmt: skip
    """Draw a figure by shade, and where the verdict becomes worse."""
    x, y = (_edges(value, log) for value, log in zip(values, logs, strict=True))
    known = figure[~np.isnan(figure)]
    low, high = (known.min(), known.max()) if known.size else (0.0, 0.0)
    levels = np.unique(np.quantile(known, np.linspace(0, 1, _SHADES + 1))) if known.size else np.zeros(1)
    last = max(levels.size - 2, 0)
    shade = np.clip(np.searchsorted(levels, figure, side="right") - 1, 0, last)
    patches = []
    for number in range(last + 1):
        rows, columns = np.nonzero((shade == number) & ~np.isnan(figure))
        boxes = np.stack([x[columns], y[rows], x[columns + 1], y[rows + 1]], axis=1)
        label = " to ".join(format_number(level, 3) for level in levels[number : number + 2])
        patches.append(Patch(label, boxes, "blue", 0.08 + 0.72 * number / max(last, 1)))
    lines = []
    for number, (verdict, colour) in list(enumerate(_STATUSES.items()))[1:]:
        path = _border(x, y, status >= number, ~np.isnan(status))
        if path[0].size:
            lines.append(Line(f"beyond: {verdict.value.replace('_', ' ')}", *path, colour))
    return Chart(
        name,
        f"From {format_number(low)} (light) to {format_number(high)} (dark); nothing where there is no figure.",
        Axis(keys[0], x[0], x[-1], logs[0]),
        Axis(keys[1], y[0], y[-1], logs[1]),
        lines,
        patches,
    )


def _edges(values: FloatArray, log: bool) -> FloatArray:
    """Return edges of cells around ascending values: half-way between two, evenly or by ratio; the ends are values."""
    if log:
        return np.asarray(np.exp(_edges(np.log(values), log=False)))
    return np.concatenate([values[:1], (values[1:] + values[:-1]) / 2, values[-1:]])


def _border(
    x: FloatArray, y: FloatArray, worse: NDArray[np.bool_], known: NDArray[np.bool_]
) -> tuple[FloatArray, FloatArray]:
    """Return edges between two known cells, one of which is worse: pairs of points with NaN between."""
    beside = np.nonzero((worse[:, 1:] != worse[:, :-1]) & known[:, 1:] & known[:, :-1])
    above = np.nonzero((worse[1:] != worse[:-1]) & known[1:] & known[:-1])
    ends = [
        (x[beside[1] + 1], y[beside[0]], x[beside[1] + 1], y[beside[0] + 1]),
        (x[above[1]], y[above[0] + 1], x[above[1] + 1], y[above[0] + 1]),
    ]
    x0, y0, x1, y1 = (np.concatenate(pair) for pair in zip(*ends, strict=True))
    gap = np.full(x0.size, np.nan)
    return np.stack([x0, x1, gap], axis=1).ravel(), np.stack([y0, y1, gap], axis=1).ravel()
