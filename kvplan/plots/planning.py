"""What is in the plots of sweeps and plans: arrays from their results; nothing is drawn here."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from kvplan.errors import UsageError
from kvplan.model import FloatArray
from kvplan.planning.day import served_rps
from kvplan.report.keys import Kind
from kvplan.report.words import Status

if TYPE_CHECKING:
    from kvplan.planning.plan import Plan
    from kvplan.sweeps.definition import Sweep

STATUSES = (Status.STABLE, Status.NEEDS_CAP, Status.OVERLOADED)  # by the number that stands for each
STATUS_KEY = "verdict.status"
MOST_POINTS = 10**6
_USUAL = "load.headroom"


class Scale(NamedTuple):
    """An axis: its key, ascending values, and whether their logarithms are spaced evenly."""

    key: str
    values: FloatArray
    log: bool


@dataclass(frozen=True)
class SweepMap:
    """A figure and the verdict over a grid of two keys.

    Attributes
    ----------
    column
        Name of the figure.
    figure : ndarray, shape (n_y, n_x)
        NaN where there is none.
    status : ndarray, shape (n_y, n_x), or None
        Places in `STATUSES`, NaN where there is none; None where the sweep does not have it.
    """

    x: Scale
    y: Scale
    column: str
    figure: FloatArray
    status: FloatArray | None


@dataclass(frozen=True)
class SweepLine:
    """A figure and the verdict over one key; the arrays of a `SweepMap` with shape (n_x,)."""

    x: Scale
    column: str
    figure: FloatArray
    status: FloatArray | None


class Steps(NamedTuple):
    """What replicas of a kind cost against demand: `each` a replica, which serves `served_rps`."""

    name: str
    each: float
    served_rps: float

    def cost(self, demand_rps: FloatArray) -> FloatArray:
        """Of as many as serve each demand.

        >>> Steps("a", 3.0, 2.0).cost(np.array([1.0, 2.0, 5.0])).tolist()
        [3.0, 3.0, 9.0]
        """
        return np.asarray(self.each * np.ceil(np.maximum(demand_rps, 1e-9) / self.served_rps * (1 - 1e-9)))


@dataclass(frozen=True)
class PlanPlot:
    """Replicas and cost against demand: the plan first, then its alternatives; `unit` is that of the cost."""

    kinds: tuple[Steps, ...]
    demand_rps: float
    cost: float
    unit: str


def plan_plot(found: "Plan") -> PlanPlot:
    """The plot of a plan, around its demand, by short runs."""
    chosen = [(found.winner, found.setting), *((one.candidate, one.setting) for one in found.alternatives)]
    task = found.winner.task
    kinds = tuple(
        Steps(c.name, c.price, served_rps(c.task, s, long=False) / (1 + task.headroom)) for c, s in chosen
    )
    unit = "cost per hour" if found.request.priced else "GPUs"
    return PlanPlot(kinds, task.model.total_rate_rps, found.setting.replicas * found.winner.price, unit)


def check_sweep(sweep: "Sweep") -> None:
    """Refuse a sweep that is no line and no map, before it is run.

    Raises
    ------
    UsageError
    """
    if sweep.sample is not None:
        raise UsageError("--plot draws grids; --sample does not go with it")
    if len(sweep.axes) > 2:
        raise UsageError(f"--plot draws one or two keys, not the {len(sweep.axes)} that are varied")
    for axis in sweep.axes:
        if axis.count < 2:
            raise UsageError(
                f"--plot: {axis.key} has a single value; leave it out of --vary, or give it more"
            )
    if sweep.points > MOST_POINTS:
        raise UsageError(f"--plot: {sweep.points:,} points; {MOST_POINTS:,} is the most that can be drawn")
    figure_of(sweep)


def figure_of(sweep: "Sweep") -> str:
    """The figure that is drawn: the first simulated number, if any; else headroom, or the first number there is."""
    numbers = [column.name for column in sweep.columns if column.kind is Kind.NUMBER]
    if not numbers:
        raise UsageError("--plot: a number is wanted among --columns, such as load.headroom")
    usual = _USUAL if _USUAL in numbers else numbers[0]
    return next((name for name in numbers if is_simulated(name)), usual)


def is_simulated(column: str) -> bool:
    """Whether a figure of a sweep comes from the simulator, rather than from a formula."""
    return column.startswith("simulation.")


def columns_of(sweep: "Sweep") -> tuple[str, ...]:
    """The columns that a plot of a sweep needs."""
    shown = (figure_of(sweep),)
    return (*shown, STATUS_KEY) if STATUS_KEY in sweep.names else shown


def sweep_plot(sweep: "Sweep", found: Mapping[str, Sequence[object]]) -> SweepMap | SweepLine:
    """The plot of a finished sweep.

    Parameters
    ----------
    sweep
        That `check_sweep` has accepted.
    found : mapping of str to sequence, each of length n_points
        The columns of `columns_of`; None where a point has no figure.

    Examples
    --------
    >>> from kvplan import load
    >>> from kvplan.sweeps.definition import define
    >>> sweep = define(load("tool-calls-h100"), ["timing.d0=2,1"], columns=["load.headroom"])
    >>> sweep_plot(sweep, {"load.headroom": [0.5, None]}).figure.tolist()
    [nan, 0.5]
    """
    scales, orders = [], []
    for axis in sweep.axes:
        values = np.array([axis.at(i) for i in range(axis.count)], dtype=np.float64)
        order = np.argsort(values)
        scales.append(Scale(axis.key, values[order], axis.log))
        orders.append(order)
    shape = tuple(axis.count for axis in sweep.axes)

    def arranged(values: Sequence[float | None]) -> FloatArray:
        flat = np.array([np.nan if value is None else value for value in values], dtype=np.float64)
        return np.asarray(flat.reshape(shape)[np.ix_(*orders)])

    name = figure_of(sweep)
    figure = arranged([value if isinstance(value, int | float) else None for value in found[name]])
    status = None
    if STATUS_KEY in found:
        place = {one.value: float(number) for number, one in enumerate(STATUSES)}
        status = arranged([place.get(str(value)) for value in found[STATUS_KEY]])
    if len(scales) == 1:
        return SweepLine(scales[0], name, figure, status)
    # the first key of a grid changes slowest: rows of the map
    return SweepMap(scales[1], scales[0], name, figure, status)
