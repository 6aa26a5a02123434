"""Plots of characters against the lines they stand for."""

from fractions import Fraction

import numpy as np
from every import every

from kvplan.layout.plot import ASCII, BLOCKS, Ink, running, throughput
from kvplan.plots.data import RateThroughput
from kvplan.plots.prefix_cache import CacheBranches


def content(sustainable: float, worst: float, offered: float, top: float) -> RateThroughput:
    rate = np.unique([0.0, worst, sustainable, top])
    zone = (worst, sustainable) if worst < sustainable else None
    collapsed = np.minimum(rate, worst)
    return RateThroughput(rate, np.minimum(rate, sustainable), collapsed, zone, worst, offered, sustainable)


@every("ink", [BLOCKS, ASCII])
@every(
    ("sustainable", "worst", "offered", "top"),
    [(8, 4, 6, 10), (8, 7, 9, 11), (50, 3, 45, 60), (2, 2, 1, 3), (1e12, 5e11, 1e11, 2e12)],
)
def test_areas_are_as_high_as_what_is_served(
    sustainable: float, worst: float, offered: float, top: float, ink: Ink
) -> None:
    lines = throughput(content(sustainable, worst, offered, top), width=98, ink=ink).splitlines()
    assert max(map(len, lines)) <= 98
    corner = lines[8].index(ink.corner)
    columns = len(lines[8]) - corner - 1
    rows = [line[corner + 1 :].ljust(columns) for line in lines[:8]]
    for i in range(columns):
        rate = (i + Fraction(1, 2)) * Fraction(top) / columns
        cells = [row[i] for row in reversed(rows)]
        filled = sum(cell != " " for cell in cells)
        assert abs(filled - 8 * min(rate, Fraction(sustainable)) / Fraction(sustainable)) <= Fraction(3, 4)
        dark = sum(cell in (ink.full, ink.half) for cell in cells)
        assert abs(dark - 8 * min(rate, Fraction(worst)) / Fraction(sustainable)) <= Fraction(3, 4)
        assert cells == sorted(cells, key=(ink.full, ink.half, ink.light, " ").index)  # nothing floats
        assert (lines[8][corner + 1 + i] == ink.zone) == (worst <= rate < sustainable)


def test_labels_stand_where_their_rates_are() -> None:
    lines = throughput(content(8, 4, 6, 10), width=98).splitlines()
    corner = lines[8].index("└")
    columns = len(lines[8]) - corner - 1
    for label, rate in (("0", 0), ("4", 4), ("^ 6 offered", 6), ("8", 8)):
        assert lines[9].index(label) - corner - 1 == rate * columns // 10
    assert [lines[i].split()[0] for i in (0, 4, 7)] == ["8", "4", "0"]


def test_labels_do_not_run_into_each_other_and_the_offered_rate_comes_first() -> None:
    lines = throughput(content(8.123, 8.122, 8.1, 10), width=98).splitlines()
    assert lines[9].split() == ["0", "^", "8.1", "offered"]
    assert "8.123" in lines[0]


def test_what_is_not_there_is_not_explained() -> None:
    text = throughput(content(8, 8, 100, 10), width=98)
    assert "danger zone" not in text
    assert "only with a cap" not in text
    assert "offered" not in text  # beyond the right edge


@every("ink", [BLOCKS, ASCII])
@every("width", [60, 76])
def test_branches_go_through_their_states(width: int, ink: Ink) -> None:
    """From 1 at load 0 to 10 at the fold of 8 and back to 100 at 6: at load 7 the states are 10^(7/8) and 10^1.5."""
    curve = np.array([0.0, 8.0, 6.0]), np.array([1.0, 10.0, 100.0]), np.array([True, False, False])
    levels = {
        "full_from": 6.0,
        "full_in_flight": 100.0,
        "warm_in_flight": 10 ** (7 / 8),
        "separatrix_in_flight": 10**1.5,
    }
    one = CacheBranches(
        "requests/s",
        *curve,
        offered=7.0,
        guaranteed=6.0,
        good=8.0,
        **levels,
        low=0.0,
        high=10.0,
        low_in_flight=1.0,
    )
    lines = running(one, width=width, ink=ink).splitlines()
    assert max(map(len, lines)) <= width
    start = lines[12].index(ink.corner) + 1
    columns = len(lines[12]) - start
    rows = [line[start:].ljust(columns) for line in lines[:12]]
    at = [row[7 * columns // 10] for row in reversed(rows)]
    span = np.log10(one.high_in_flight)
    for level, mark in ((7 / 8, ink.full), (1.5, ink.light), (2, ink.zone)):
        assert abs(at.index(mark) + 0.5 - level / span * 12) <= 1.5
    assert sorted(set(at)) == sorted({ink.full, ink.light, ink.zone, ":"})
    assert [line.split()[0] for line in lines if line[0].isdigit() or line[1].isdigit()] == [
        "100",
        "31.6",
        "7.5",
    ]
    assert lines[13].index("^ 7 offered") - start == 7 * columns // 10
