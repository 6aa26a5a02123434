"""Placements of classes on replicas, side by side; and the JSON document."""

from collections.abc import Callable, Iterator
from functools import partial

from kvplan.planning.mixing import MOST_PARTS, Comparison, Figure, Placement, Pool
from kvplan.profile.reading import Profile
from kvplan.report.keys import FORMATS
from kvplan.report.ledger import plain
from kvplan.show import page
from kvplan.show.view import Json, View, fields, header
from kvplan.study.operating_point import Status
from kvplan.units import ABSENT, format_number, format_percent, format_seconds

_signed = partial(format_percent, signed=True)
_NAMED, _LINES = 2, 10  # classes in a line, groups of all placements
_SOURCES = {
    "served_rps": {"source": "new: saturated runs, as of the verdict", "basis": "simulated"},
    "latency": {"source": "new: runs at the offered rate, as latency", "basis": "simulated"},
    "groups": {"source": "traffic splits evenly over a group's replicas", "basis": "assumption"},
}


def view(comparison: Comparison, profile: Profile) -> View:
    """Show placements of the classes of a profile."""
    return View(
        lambda: document(comparison, profile),
        lambda full: page.document([build(comparison, profile.name)], profile.sha256),
    )


def document(comparison: Comparison, profile: Profile) -> Json:
    """Return the JSON: the extent of the search, the placements, and notes on them."""
    return {
        **header(profile),
        **fields(comparison, "replicas", "parts", "left_out"),
        "search": fields(comparison.search, "ways", "measured", "complete"),
        "placements": [{"name": name, **plain(each)} for name, each in comparison.placements.items()],
        "sources": _SOURCES,
        "notes": list(notes(comparison)),
    }


def build(comparison: Comparison, name: str) -> page.Section:
    """Build the best placement, all side by side, their groups, and notes on this profile."""
    shown = list({id(each): each for each in comparison.placements.values()}.values())
    names = [[name for name, other in comparison.placements.items() if other is each] for each in shown]
    labels = [" = ".join(each).capitalize() for each in names]
    rows = [(label, *map(cell, shown)) for label, cell in _rows(comparison)]
    several = [(each, label) for each, label in zip(shown, labels, strict=True) if len(each.groups) > 1]
    groups = [_groups(each, label, _LINES // len(several)) for each, label in reversed(several)]
    side_by_side = page.table((page.Column("Figure"), *map(page.number, labels)), rows)
    title, headline = f"Which classes share a replica: {name}", page.Paragraph(_headline(comparison))
    return page.section("mix", title, headline, side_by_side, *groups, notes=notes(comparison))


def _groups(placement: Placement, label: str, most: int) -> page.Table:
    columns: page.Columns[Pool] = {
        page.words(label): lambda pool: _classes(pool, _NAMED),
        page.number("Replicas"): lambda pool: f"{pool.replicas:,}",
        page.number("Offered/s"): lambda pool: format_number(pool.replicas * pool.offered_rps),
        page.number("Served/s"): lambda pool: format_number(pool.replicas * pool.served_rps),
        page.number("Headroom"): lambda pool: _signed(pool.headroom),
        page.number("TTFT"): lambda pool: format_seconds(pool.latency.ttft_s.mean),
        page.number("E2E"): lambda pool: format_seconds(pool.latency.e2e_s.mean),
    }
    return page.tabulate(columns, placement.groups, most, "{} more groups; all are in the JSON")


def _headline(comparison: Comparison) -> str:
    best, apart = comparison.placements["best"], comparison.placements["segregated"]
    groups = "; ".join(
        f"{_classes(p, page.MAX_ROWS)} on {FORMATS['replicas'](p.replicas)}" for p in best.groups
    )
    if best is comparison.placements["mixed"]:
        groups = f"mixed, all classes on {FORMATS['replicas'](comparison.replicas)}"
    served = "all" if best.headroom.value >= 0 else f"{format_number(best.served_rps)} of"
    other = "" if apart is best else f", segregated {_signed(apart.headroom.value)}"
    return (
        f"Best: {groups}. Under a backlog {served} {format_number(best.offered_rps)} requests/s are served; headroom "
        f"{_signed(best.headroom.value)}{other}."
    )


def _rows(comparison: Comparison) -> Iterator[tuple[str, Callable[[Placement], str]]]:
    """Yield rows of the table, without those that say nothing."""
    yield "Groups", lambda placed: str(len(placed.groups))
    if any(each.beyond_rps > 0 for each in comparison.placements.values()):
        yield "Beyond capacity, requests/s", lambda placed: format_number(placed.beyond_rps)
    if any(each.headroom.value < 0 for each in comparison.placements.values()):
        yield "Served under a backlog, requests/s", lambda placed: format_number(placed.served_rps)
    yield "Headroom under a backlog, tightest", lambda placed: _with_error(placed.headroom, format_percent)
    yield "TTFT, mean", lambda placed: _with_error(placed.ttft_s, format_seconds)
    yield "E2E, mean", lambda placed: _with_error(placed.e2e_s, format_seconds)
    yield "Preemptions/request", lambda placed: _with_error(placed.preemptions_per_request, format_number)


def _with_error(figure: Figure | None, written: Callable[[float], str]) -> str:
    if figure is None:
        return ABSENT
    low, high = figure.ci95 or (figure.value, None)
    return written(figure.value) + ("" if high in (None, low) else f" ± {written((high - low) / 2)}")


def _classes(pool: Pool, most: int) -> str:
    left = len(pool.classes) - most
    return ", ".join(pool.classes[:most]) + (f" and {left:,} more" if left > 0 else "")


def notes(comparison: Comparison) -> Iterator[str]:
    """Yield notes on this profile: the extent of the search, and what runs do not say."""
    pools, search = [p for each in comparison.placements.values() for p in each.groups], comparison.search
    status = {p.latency.status for p in pools}
    if search.ways > 1:
        end = "no other can be worth 1% more" if search.complete else "ended when its budget was spent"
        yield f"Of {search.ways:,} ways to group the classes, {search.measured:,} groups were measured: {end}."
    if sum(len(p.classes) for p in comparison.placements["mixed"].groups) > comparison.parts:
        yield f"More than {MOST_PARTS} classes: neighbours in decode length stay together, in {comparison.parts} sets."
    if comparison.left_out:
        yield f"Left out: {' and '.join(comparison.left_out)}. Requests come at random at the rates of the classes."
    if reasons := sorted({p.recovery.reason for p in pools if p.recovery.reason is not None}):
        yield f"Sustainable rates stand for runs under a backlog: {'; '.join(reasons)}."
    elif not all(p.recovery.settled for p in pools):
        yield "Some rates under a backlog are not settled: the budget of their runs was spent."
    if Status.GROWING in status:
        yield "No latency where more is offered than the replicas of a group serve: the queue grows."
    elif status != {Status.STEADY}:
        yield "Some latencies are not settled; the JSON says which."
