"""How far off a real run was foretold: each bound, and models by kind and engine."""

import math
from collections.abc import Callable, Hashable, Iterable, Sequence
from pathlib import Path
from statistics import fmean, median
from typing import NamedTuple, TypeVar

from scoreboard.record import Bound, Configuration, Off, Over, RealRun, Row

Key = TypeVar("Key", bound=Hashable)
_OVER: dict[Over, Callable[[Sequence[float]], float]] = {
    Over.MEDIAN: median,
    Over.MEAN: fmean,
    Over.WORST: max,
}


class Scored(NamedTuple):
    """A bound, what came out, of how many configurations, and the error of the worst of them."""

    bound: Bound
    value: float
    configurations: int
    worst: float

    @property
    def holds(self) -> bool | None:
        """Whether it is as good as it must be; None where nothing is asked for."""
        return None if self.bound.must is None else self.value <= self.bound.must

    @property
    def as_recorded(self) -> bool:
        """Whether it is no worse than it has been."""
        return self.value <= self.bound.recorded


class Scoreboard(NamedTuple):
    """A real run, foretold; no rows where its data is not here."""

    run: RealRun
    rows: tuple[Row, ...]
    scored: tuple[Scored, ...]

    @property
    def as_recorded(self) -> bool:
        """Whether nothing got worse."""
        return all(one.as_recorded for one in self.scored)


def foretell(run: RealRun, folder: Path | None) -> Scoreboard:
    """Foretell a real run from a folder of data, if that has it."""
    if not run.has_data(folder):
        return Scoreboard(run, (), ())
    rows = tuple(run.rows(folder or Path()))
    return Scoreboard(run, rows, tuple(scored(bound, rows) for bound in run.bounds))


def scored(bound: Bound, rows: Iterable[Row]) -> Scored:
    """What rows make of a bound: one that no row is of is missed by far.

    Examples
    --------
    >>> some = [Row(Configuration(name, "dense"), "", "TPOT", "s", time, 1.0)
    ...     for name, time in (("a", 1.1), ("a", 1.3), ("b", 1.4))]
    >>> found = scored(Bound(quantity="TPOT", recorded=0.35), some)
    >>> round(found.value, 3), found.configurations, round(found.worst, 3), found.as_recorded
    (0.3, 2, 0.4, True)
    """
    mine = [
        row for row in rows if row.quantity == bound.quantity and bound.kind in (None, row.configuration.kind)
    ]
    errors = list(errors_by(mine, lambda row: row.configuration, bound.over, bound.off).values())
    if not errors:
        return Scored(bound, math.inf, 0, math.inf)
    return Scored(bound, _OVER[bound.over](errors), len(errors), max(errors))


def errors_by(rows: Iterable[Row], key: Callable[[Row], Key], over: Over, off: Off) -> dict[Key, float]:
    """The error of each group of rows."""
    groups: dict[Key, list[float]] = {}
    for row in rows:
        groups.setdefault(key(row), []).append(off.of(row))
    return {of: _OVER[over](errors) for of, errors in groups.items()}


class Standing(NamedTuple):
    """Errors of a quantity over configurations of a kind, a model and an engine: the median and the worst."""

    kind: str
    model: str
    engine: str
    quantity: str
    off: Off
    configurations: int
    middle: float
    worst: float


def standings(board: Scoreboard) -> list[Standing]:
    """By kind, model and engine, in that order."""
    found = []
    for quantity, off in _quantities(board):
        errors = _by_configuration(board, quantity, off)
        groups: dict[tuple[str, str, str], list[float]] = {}
        for of, error in errors.items():
            groups.setdefault((of.kind, of.model, of.engine), []).append(error)
        found += [
            Standing(*group, quantity, off, len(values), median(values), max(values))
            for group, values in groups.items()
        ]
    return sorted(found, key=lambda one: one[:3])


def _quantities(board: Scoreboard) -> list[tuple[str, Off]]:
    """Those that bounds are of, in their order."""
    return list(dict.fromkeys((one.bound.quantity, one.bound.off) for one in board.scored))


def _by_configuration(board: Scoreboard, quantity: str, off: Off) -> dict[Configuration, float]:
    mine = (row for row in board.rows if row.quantity == quantity)
    over = next(one.bound.over for one in board.scored if one.bound.quantity == quantity)
    return errors_by(mine, lambda row: row.configuration, over, off)
