"""Placements of classes on replicas for people."""

from collections.abc import Callable, Iterator
from functools import partial

from kvplan.planning.mixing import MOST_PARTS, Comparison, Figure, Placement, Pool
from kvplan.show.elements import (
    MAX_ROWS,
    Block,
    Bullets,
    Column,
    Paragraph,
    Section,
    Table,
    number,
    replicas,
    table,
    words,
)
from kvplan.study.operating_point import Status
from kvplan.units import ABSENT, format_number, format_percent, format_seconds

_signed = partial(format_percent, signed=True)
_NAMED, _LINES = 2, 10  # classes in a line, groups of all placements


def build(found: Comparison, name: str) -> Section:
    """For people: what is best, the placements side by side, their groups, and what this profile needs to be told."""
    shown = list({id(one): one for one in found.placements.values()}.values())
    names = [[name for name, other in found.placements.items() if other is one] for one in shown]
    labels = [" = ".join(each).capitalize() for each in names]
    rows = [(label, *map(cell, shown)) for label, cell in _rows(found)]
    several = [(one, label) for one, label in zip(shown, labels, strict=True) if len(one.groups) > 1]
    groups = [_groups(one, label, _LINES // len(several)) for one, label in reversed(several)]
    said = tuple(notes(found))
    blocks: list[Block] = [Paragraph(_headline(found)), table((Column("Figure"), *map(number, labels)), rows)]
    blocks += [*groups, *([Bullets(said)] if said else [])]
    return Section("mix", f"Which classes share a replica: {name}", tuple(blocks))


def _groups(placement: Placement, label: str, most: int) -> Table:
    columns = (words(label), *map(number, ("Replicas", "Offered/s", "Served/s", "Headroom", "TTFT", "E2E")))
    rows = (
        (
            _classes(pool, _NAMED),
            f"{pool.replicas:,}",
            *(format_number(pool.replicas * rate) for rate in (pool.offered_rps, pool.served_rps)),
            _signed(pool.headroom),
            *(format_seconds(time.mean) for time in (pool.latency.ttft_s, pool.latency.e2e_s)),
        )
        for pool in placement.groups
    )
    return table(columns, rows, most, "{} more groups; all are in the JSON")


def _headline(found: Comparison) -> str:
    best, apart = found.placements["best"], found.placements["segregated"]
    groups = "; ".join(f"{_classes(p, MAX_ROWS)} on {replicas(p.replicas)}" for p in best.groups)
    if best is found.placements["mixed"]:
        groups = f"mixed, all classes on {replicas(found.replicas)}"
    served = "all" if best.headroom.value >= 0 else f"{format_number(best.served_rps)} of"
    other = "" if apart is best else f", segregated {_signed(apart.headroom.value)}"
    return (
        f"Best: {groups}. Under a backlog {served} {format_number(best.offered_rps)} requests/s are served; headroom "
        f"{_signed(best.headroom.value)}{other}."
    )


def _rows(found: Comparison) -> Iterator[tuple[str, Callable[[Placement], str]]]:
    """Rows of the table, without those that say nothing."""
    yield "Groups", lambda one: str(len(one.groups))
    if any(one.beyond_rps > 0 for one in found.placements.values()):
        yield "Beyond capacity, requests/s", lambda one: format_number(one.beyond_rps)
    if any(one.headroom.value < 0 for one in found.placements.values()):
        yield "Served under a backlog, requests/s", lambda one: format_number(one.served_rps)
    yield "Headroom under a backlog, tightest", lambda one: _with_error(one.headroom, format_percent)
    yield "TTFT, mean", lambda one: _with_error(one.ttft_s, format_seconds)
    yield "E2E, mean", lambda one: _with_error(one.e2e_s, format_seconds)
    yield "Preemptions/request", lambda one: _with_error(one.preemptions_per_request, format_number)


def _with_error(figure: Figure | None, written: Callable[[float], str]) -> str:
    if figure is None:
        return ABSENT
    low, high = figure.ci95 or (figure.value, None)
    return written(figure.value) + ("" if high in (None, low) else f" ± {written((high - low) / 2)}")


def _classes(pool: Pool, most: int) -> str:
    left = len(pool.classes) - most
    return ", ".join(pool.classes[:most]) + (f" and {left:,} more" if left > 0 else "")


def notes(found: Comparison) -> Iterator[str]:
    """Yield what this profile needs to be told: how far the search went, and what runs do not say."""
    pools, search = [p for one in found.placements.values() for p in one.groups], found.search
    status = {p.latency.status for p in pools}
    if search.ways > 1:
        end = "no other can be worth 1% more" if search.complete else "ended when its budget was spent"
        yield f"Of {search.ways:,} ways to group the classes, {search.measured:,} groups were measured: {end}."
    if sum(len(p.classes) for p in found.placements["mixed"].groups) > found.parts:
        yield f"More than {MOST_PARTS} classes: neighbours in decode length stay together, in {found.parts} sets."
    if found.left_out:
        yield f"Left out: {' and '.join(found.left_out)}. Requests come at random at the rates of the classes."
    if reasons := sorted({p.recovery.reason for p in pools if p.recovery.reason is not None}):
        yield f"Sustainable rates stand for runs under a backlog: {'; '.join(reasons)}."
    elif not all(p.recovery.settled for p in pools):
        yield "Some rates under a backlog are not settled: the budget of their runs was spent."
    if Status.GROWING in status:
        yield "No latency where more is offered than the replicas of a group serve: the queue grows."
    elif status != {Status.STEADY}:
        yield "Some latencies are not settled; the JSON says which."
