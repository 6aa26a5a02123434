"""Placements of classes on replicas for people and programs."""

import math
from collections.abc import Callable, Sequence

from kvplan.analysis.mixing import MAX_NEAR, Mixing, Search
from kvplan.analysis.placement import Group, Placement
from kvplan.analysis.worst_cycle import CycleKind
from kvplan.decide.mixing import Comparison, Contender, Simulated, over_groups
from kvplan.layout.elements import (
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
from kvplan.simulation.intervals import over_runs
from kvplan.units import ABSENT, format_number, format_percent, format_seconds

_SHOWN_CHANGES = 6
NAMES = ("segregated", "mixed", "best")
_Written = Callable[[float], str]
_Values = Callable[[Placement, Simulated], Sequence[float] | None]


def build(found: Comparison, name: str) -> Section:
    """For people: what to do, the three placements side by side, their groups, what a token more or less does."""
    blocks: list[Block] = [Paragraph(_advice(found)), _side_by_side(found)]
    placements = [one.placement for one in found.shown]
    for at, (label, one) in enumerate(zip(NAMES, found.shown, strict=True)):
        same = [n for n, p in zip(NAMES[:at], placements, strict=False) if p.groups == one.placement.groups]
        title = f"{label.capitalize()}: {_definition(found, label)}"
        if same:
            blocks.append(Paragraph(f"{title} Here the same as {same[0]}."))
            continue
        blocks += [Paragraph(title), _groups(found, one)]
    if found.diversification.changes:
        blocks.append(
            Paragraph(
                "One decode limit of the best placement a token shorter or longer, and what becomes of its group "
                "(rates kept; tokens/s asked for, and tokens/s that the group serves in its worst cycle):"
            )
        )
        blocks.append(_changes(found))
    blocks.append(Bullets(notes(found)))
    return Section("mix", f"Which classes share a replica: {name}", tuple(blocks))


def _advice(found: Comparison) -> str:
    best, score = found.best.placement, found.best.placement.score
    groups = _written(found, best)
    worst = (format_number(_worst_rps(found, one.placement)) for one in (found.best, found.segregated))
    served = "{} requests/s served in the worst state, segregated {}".format(*worst)
    beyond = ""
    if score.unserved > 0:
        beyond = f" {format_percent(score.unserved)} of the requests are more than these replicas can serve."
    return f"Best: {groups} ({served}).{beyond}"


def _worst_rps(found: Comparison, placement: Placement) -> float:
    return placement.score.worst_served * found.offered_rps


def _written(found: Comparison, placement: Placement) -> str:
    return "; ".join(f"{_classes(found, g)} on {replicas(g.replicas)}" for g in placement.groups)


def _classes(found: Comparison, group: Group) -> str:
    shown = [found.names[i] for i in group.classes[:MAX_ROWS]]
    left = len(group.classes) - len(shown)
    return ", ".join(shown) + (f" and {left} more" if left else "")


def _definition(found: Comparison, label: str) -> str:
    count = len(found.names)
    match label:
        case "segregated" if count > found.replicas:
            return "neighbours in decode length together, as many groups as replicas."
        case "segregated":
            return "each class alone."
        case "mixed":
            return "every replica serves all classes."
        case _:
            return f"{_search(found.mixing)}."


def _search(mixing: Mixing) -> str:
    partitions = f"{mixing.partitions:,} ways to group the classes"
    if mixing.search is Search.EXACT:
        return (
            f"the best of all {partitions}"
            if mixing.partitions > 1
            else "there is one way to group the classes"
        )
    ended = "" if mixing.complete else ", ended when its budget was spent"
    return f"the best of {partitions}, by moves and swaps{ended}"


def _side_by_side(found: Comparison) -> Table:
    """A column for each placement that differs from those before it."""
    placements = [one.placement for one in found.shown]
    first = [next(i for i, p in enumerate(placements) if p.groups == one.groups) for one in placements]
    shown = [found.shown[i] for i in sorted(set(first))]
    names = [
        " = ".join(NAMES[i] for i, at in enumerate(first) if at == one).capitalize()
        for one in sorted(set(first))
    ]
    columns = (Column("Figure"), *(number(name) for name in names), Column("Basis"))
    iterated = any(g.pool.kind is CycleKind.SIMULATED for one in shown for g in one.placement.groups)
    basis = "fluid map" if iterated else "computed"

    def signed(value: float) -> str:
        return format_percent(value, signed=True)

    def formula(label: str, basis: str, cell: Callable[[Placement], str]) -> tuple[str, ...]:
        return label, *(cell(one.placement) for one in shown), basis

    def simulation(label: str, written: _Written, values: _Values) -> tuple[str, ...]:
        drawn = [None if one.simulated is None else values(one.placement, one.simulated) for one in shown]
        return label, *(ABSENT if v is None else _mean_and_width(v, written) for v in drawn), "simulated"

    def of_groups(load: str, figure: str) -> _Values:
        def values(placement: Placement, simulated: Simulated) -> Sequence[float] | None:
            runs = getattr(simulated, load)
            return None if runs is None else over_groups(placement, runs, figure)

        return values

    rows = [
        formula("Groups", "assumption", lambda p: str(len(p.groups))),
        formula("Demand beyond capacity", "computed", lambda p: format_percent(p.score.unserved)),
        formula("Requests/s, worst state", basis, lambda p: format_number(_worst_rps(found, p))),
    ]
    if found.seeds:
        offered = found.offered_rps
        rows.append(
            simulation("Requests/s, saturated", format_number, lambda _, s: [offered * x for x in s.served])
        )
    rows += [
        formula("Headroom, tightest", "computed", lambda p: signed(p.score.headroom)),
        formula("Headroom, worst state", basis, lambda p: signed(p.worst_headroom)),
    ]
    if found.seeds:
        rows += [
            simulation("Headroom, saturated", signed, lambda _, s: s.headroom),
            simulation("Preemptions/request, saturated", format_number, of_groups("saturated", "evictions")),
            simulation("Preemptions/request, offered", format_number, of_groups("offered", "evictions")),
            simulation("Mean E2E, offered rate", format_seconds, of_groups("offered", "e2e_s")),
        ]
    return table(columns, rows)


def _mean_and_width(values: Sequence[float], written: _Written) -> str:
    mean, interval = math.fsum(values) / len(values), over_runs(values)
    return written(mean) if interval is None else f"{written(mean)} ± {written(interval[1] - mean)}"


def _groups(found: Comparison, one: Contender) -> Table:
    columns = [
        words("Classes"),
        *map(number, ("Replicas", "gcd", "Radius")),
        Column("Stable"),
        *map(number, ("Offered/s", "Sustainable/s", "Worst/s")),
    ]
    if one.simulated is not None:
        columns.append(number("Saturated/s"))
    rows = []
    for at, g in enumerate(one.placement.groups):
        row = [
            _classes(found, g),
            f"{g.replicas:,}",
            f"{g.pool.gcd:,}",
            format_number(g.pool.spectral_radius, 6),
            _stable(g),
            format_number(g.pool.offered_rps),
            format_number(g.replicas * g.pool.sustainable_rps),
            format_number(g.replicas * g.pool.worst_rps),
        ]
        if one.simulated is not None:
            row.append(_mean_and_width(one.simulated.saturated[at].throughput_rps, format_number))
        rows.append(tuple(row))
    return table(columns, rows, MAX_ROWS, "{} more groups; all are in the JSON")


def _stable(group: Group) -> str:
    if not group.pool.certified:
        return "uncertified"
    return "yes" if group.pool.stable else "no"


def _changes(found: Comparison) -> Table:
    numbers = ("Limit", "gcd", "Radius", "Loss at worst", "Asked for", "Served at worst")
    rows = (
        (
            found.names[c.class_index],
            f"{c.old_decode:,} to {c.new_decode:,}",
            f"{c.pool.gcd:,}",
            format_number(c.pool.spectral_radius, 6),
            format_percent(c.pool.loss),
            f"{'+' if c.offered_tokens_per_s > 0 else ''}{format_number(c.offered_tokens_per_s)}",
            format_percent(c.collapsed_tokens, signed=True),
        )
        for c in found.diversification.changes
    )
    more = "{} more changes; all are in the JSON"
    return table((words("Class"), *map(number, numbers)), rows, _SHOWN_CHANGES, more)


def notes(found: Comparison) -> tuple[str, ...]:
    """What was assumed, and what decided."""
    said = [
        "The profile's rates are those of all replicas together; a group's replicas share its traffic evenly, and no "
        "class is split between groups (assumption). Prefix caches that routing by class would help are not modelled.",
        "Better is less demand beyond capacity, then more of the demand served in the worst state, then more headroom. "
        "Worst state: every group is in its worst cycle, by the clock; greedy admission need not be there.",
    ]
    pools = [g.pool for one in found.shown for g in one.placement.groups]
    if any(p.kind is CycleKind.SIMULATED for p in pools):
        ended = "" if all(p.settled is not False for p in pools) else ", not always settled"
        said.append(f"Worst cycles without a closed form: the fluid map iterated{ended}.")
    if any(g.headroom < 0 for one in found.shown for g in one.placement.groups):
        said.append(
            "A group of negative headroom is overloaded: its latency grows with the length of the run."
        )
    if found.scheduled:
        said.append(
            "The schedule of the profile is left out: all of this is for the rates of the classes as they stand."
        )
    if found.diversification.untried:
        said.append(
            f"{found.diversification.untried:,} changes of a limit were not tried: outputs are too long to try all."
        )
    said += _decision(found)
    if found.seeds:
        said.append(
            f"Simulated: policy {found.policy}, {len(found.seeds)} seeds, 95% intervals; the same arrivals for every "
            "placement, a replica of each group stands for all of them. Saturated: all requests are there at the "
            "beginning; a group serves no more than it is offered."
        )
        if not found.arrivals.is_poisson:
            how = "gamma" if found.arrivals.trace is None else "those of its trace, with classes at random"
            said.append(f"Arrivals at the offered rates: {how}, as the profile says.")
        if any(one.simulated is None for one in found.shown):
            said.append("No figures where a run could not be ended, because a request never fits.")
    return tuple(said)


def _decision(found: Comparison) -> list[str]:
    """What the formulas leave open, and what simulation made of it."""
    near, first = found.mixing.near_count, found.mixing.best
    said = []
    if near > 1:
        count = f"{near:,} placements are within 1% of the best by the formulas"
        tried = f"; the first {MAX_NEAR} were simulated" if found.seeds and near > MAX_NEAR else ""
        said.append(f"{count}{tried}{'' if found.seeds else ': only a simulation could tell them apart'}.")
    if first.groups != found.best.placement.groups:
        rps = format_number(_worst_rps(found, first))
        said.append(
            f"By the formulas alone the best is {_written(found, first)}: {rps} requests/s in the worst state, "
            f"headroom {format_percent(first.score.headroom, signed=True)}. In simulation it serves less, or has less "
            "to spare."
        )
    best = found.best.simulated
    for name, one in zip(NAMES, found.shown, strict=True):
        if best is not None and one.simulated is not None and one.simulated.key < best.key:
            said.append(
                f"{name.capitalize()} serves more in simulation, or has more to spare, and is not chosen for the "
                f"{format_percent(one.placement.score.unserved)} of the requests that no policy could serve there."
            )
    return said
