"""Measurements that are to be foretold: whoever fits does not get them, and whoever has foretold them does."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace

from kvplan.ingest.timing.equations import Kind
from kvplan.ingest.timing.samples import Point, Sweep

Times = Mapping[Kind, float]


class Hidden:
    """Points of a sweep whose loads may be read; what was measured of them is had in exchange for what is foretold."""

    __slots__ = ("__points", "loads")

    def __init__(self, sweep: Sweep) -> None:
        self.__points = sweep.points
        self.loads = replace(sweep, points=tuple(map(unmeasured, sweep.points)))

    def against(self, foretold: Sequence[Times]) -> Iterator[tuple[Point, Times]]:
        """Points as they were measured, each with what was foretold of it."""
        return zip(self.__points, tuple(foretold), strict=True)


def unmeasured(point: Point) -> Point:
    """The load alone.

    Examples
    --------
    >>> unmeasured(Point(line=2, inputs=(9, 9), outputs=(5, 5), concurrency=8, ttft_s=0.1, tpot_s=0.01)).ttft_s
    """
    return replace(point, ttft_s=None, tpot_s=None, e2e_s=None, throughput_rps=None)


def split(sweep: Sweep, held_out: Callable[[Point], bool]) -> tuple[Sweep, Hidden]:
    """The points to fit to, and those to foretell.

    Examples
    --------
    >>> from kvplan.ingest.timing.samples import Deployment
    >>> points = (Point(line=i, inputs=(9, 9), outputs=(5, 5), concurrency=i, tpot_s=0.01) for i in (1, 2, 3))
    >>> known, hidden = split(Sweep("", "", Deployment(), tuple(points)), lambda point: point.concurrency == 3)
    >>> len(known.points), [(point.concurrency, point.tpot_s) for point in hidden.loads.points]
    (2, [(3, None)])
    """
    out = [held_out(point) for point in sweep.points]
    known, hidden = (
        replace(
            sweep, points=tuple(p for p, is_out in zip(sweep.points, out, strict=True) if is_out is wanted)
        )
        for wanted in (False, True)
    )
    return known, Hidden(hidden)
