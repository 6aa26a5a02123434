"""Real runs as records: where they come from, what is fitted, what is foretold, and how far off it may be."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, NamedTuple

import tomli

_TOLD: dict[str, Any] = tomli.loads(Path(__file__).with_name("runs.toml").read_text("utf-8"))


class Configuration(NamedTuple):
    """What was measured: its name, and what it is looked up by."""

    name: str
    kind: str
    model: str = ""
    engine: str = ""


class Row(NamedTuple):
    """A figure as foretold and as measured, of a load of a configuration; shares have the unit "%"."""

    configuration: Configuration
    load: str
    quantity: str
    unit: str
    foretold: float
    measured: float


class Off(StrEnum):
    """How far off a row is."""

    RELATIVE = "relative"
    FACTOR = "factor"
    SECONDS = "seconds"
    POINTS = "points"  # of per cent

    def of(self, row: Row) -> float:
        """The error of a row; endless where nothing was foretold.

        Examples
        --------
        >>> row = Row(Configuration("a", "dense"), "", "TPOT", "s", 0.02, 0.025)
        >>> [round(off.of(row), 3) for off in Off]
        [0.2, 1.25, 0.005, 0.005]
        """
        if not math.isfinite(row.foretold):
            return math.inf
        match self:
            case Off.RELATIVE:
                return abs(row.foretold / row.measured - 1)
            case Off.FACTOR:
                ratio = row.measured / row.foretold if row.foretold > 0 else math.inf
                return max(ratio, 1 / ratio)
            case Off.SECONDS | Off.POINTS:
                return abs(row.foretold - row.measured)


class Over(StrEnum):
    """How errors of rows become one figure: within each configuration, then over these."""

    MEDIAN = "median"
    MEAN = "mean"
    WORST = "worst"


@dataclass(frozen=True, slots=True, kw_only=True)
class Bound:
    """How far off a quantity may be.

    Attributes
    ----------
    kind
        Of the configurations; None: all.
    must
        What is asked for; None where nothing is.
    recorded
        What it has been, with a margin: beyond that, something got worse.
    """

    quantity: str
    kind: str | None = None
    over: Over = Over.MEDIAN
    off: Off = Off.RELATIVE
    must: float | None = None
    recorded: float


@dataclass(frozen=True, slots=True, kw_only=True)
class RealRun:
    """Something measured, and how it is foretold.

    Attributes
    ----------
    source
        Who published it, where.
    licence
        Of the data, as stated there.
    protocol
        What is fitted, what is foretold.
    files
        In the folder of data; without them nothing can be compared.
    rows
        Makes the rows of what is in that folder.
    """

    name: str
    title: str
    source: str
    licence: str
    protocol: str
    files: tuple[str, ...]
    bounds: tuple[Bound, ...]
    rows: Callable[[Path], Sequence[Row]]

    def has_data(self, folder: Path | None) -> bool:
        """Whether a folder has its files; some runs need none."""
        return all(folder is not None and (folder / file).is_file() for file in self.files)


def real_run(name: str, files: tuple[str, ...], rows: Callable[[Path], Sequence[Row]]) -> RealRun:
    """The run of that name in `runs.toml`."""
    told = _TOLD[name]
    bounds = (
        Bound(**one | {"over": Over(one.get("over", "median")), "off": Off(one.get("off", "relative"))})
        for one in told.pop("bounds")
    )
    told["protocol"] = " ".join(told["protocol"].split())
    return RealRun(name=name, files=files, rows=rows, bounds=tuple(bounds), **told)
