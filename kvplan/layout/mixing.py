"""Placements of classes on replicas for people and programs."""

import math
from collections.abc import Callable

from kvplan.analysis.mixing import CYCLE_ITERATIONS, Group, Mixing, Placement, Search
from kvplan.analysis.worst_cycle import CycleKind
from kvplan.decide.mixing import Comparison, Simulated
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
from kvplan.simulation.experiments.pools import Loads, Runs
from kvplan.simulation.intervals import over_runs
from kvplan.units import ABSENT, format_number, format_percent, format_seconds

_SHOWN_CHANGES = 6
NAMES = ("segregated", "mixed", "best")
_Written = Callable[[float], str]


def build(found: Comparison, name: str) -> Section:
    """For people: what to do, the three placements side by side, their groups, what a token more or less does."""
    blocks: list[Block] = [Paragraph(_advice(found)), _side_by_side(found)]
    for at, (label, placement) in enumerate(zip(NAMES, found.placements, strict=True)):
        same = [n for n, p in zip(NAMES[:at], found.placements, strict=False) if p.groups == placement.groups]
        title = f"{label.capitalize()}: {_definition(found, label)}"
        if same:
            blocks.append(Paragraph(f"{title} Here the same as {same[0]}."))
            continue
        simulated = found.simulated[at] if found.simulated else None
        blocks += [Paragraph(title), _groups(found, placement, simulated)]
    if found.changes:
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
    best, apart = found.mixing.best, found.mixing.segregated
    groups = "; ".join(f"{_classes(found, g)} on {replicas(g.replicas)}" for g in best.groups)
    losses = (format_percent(placement.score.expected_loss) for placement in (best, apart))
    loss = "expected loss {}, segregated {}".format(*losses)
    beyond = ""
    if best.score.unserved > 0:
        beyond = (
            f" {format_percent(best.score.unserved)} of the requests are more than these replicas can serve."
        )
    return f"Best: {groups} ({loss}).{beyond}"


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
    placements = found.placements
    first = [next(i for i, p in enumerate(placements) if p.groups == one.groups) for one in placements]
    shown = sorted(set(first))
    names = [" = ".join(NAMES[i] for i, at in enumerate(first) if at == one).capitalize() for one in shown]
    columns = (Column("Figure"), *(number(name) for name in names), Column("Basis"))
    scores = [placements[i].score for i in shown]
    iterated = any(g.pool.kind is CycleKind.SIMULATED for i in shown for g in placements[i].groups)
    loss_basis = "simulated" if iterated else "computed"
    rows = [
        ("Groups", *(str(len(placements[i].groups)) for i in shown), "assumption"),
        ("Demand beyond capacity", *(format_percent(s.unserved) for s in scores), "computed"),
        ("Expected loss", *(format_percent(s.expected_loss) for s in scores), loss_basis),
        ("Spectral radius, worst", *(format_number(s.spectral_radius, 6) for s in scores), "computed"),
        ("Headroom, tightest", *(format_percent(s.headroom, signed=True) for s in scores), "computed"),
    ]
    if found.simulated:
        wholes = [found.simulated[i].whole for i in shown]
        for load in Loads._fields:
            for label, key, written in _FIGURES:
                cells = (_mean_and_width(_runs(whole, load), key, written) for whole in wholes)
                rows.append((f"{label}, {_LOADS[load]}", *cells, "simulated"))
    return table(columns, rows)


_LOADS = {"saturated": "saturated", "offered": "offered rate"}
_FIGURES: tuple[tuple[str, str, _Written], ...] = (
    ("Evictions", "evictions", format_number),
    ("Requests/s", "throughput_rps", format_number),
    ("Mean E2E", "e2e_s", format_seconds),
)


def _runs(loads: Loads | None, load: str) -> Runs | None:
    return None if loads is None else getattr(loads, load)


def _mean_and_width(runs: Runs | None, key: str, written: _Written) -> str:
    if runs is None:
        return ABSENT
    values = [float(value) for value in getattr(runs, key)]
    mean, interval = math.fsum(values) / len(values), over_runs(values)
    return written(mean) if interval is None else f"{written(mean)} ± {written(interval[1] - mean)}"


def _groups(found: Comparison, placement: Placement, simulated: Simulated | None) -> Table:
    columns = [
        words("Classes"),
        *map(number, ("Replicas", "gcd", "Radius")),
        Column("Stable"),
        number("Loss"),
    ]
    if simulated is not None:
        columns += [number(label) for label, _, _ in _FIGURES]
    rows = []
    for at, g in enumerate(placement.groups):
        row = [
            _classes(found, g),
            f"{g.replicas:,}",
            f"{g.pool.gcd:,}",
            format_number(g.pool.spectral_radius, 6),
            _stable(g),
            format_percent(g.pool.loss),
        ]
        if simulated is not None:
            runs = _runs(simulated.groups[at], "saturated")
            row += [_mean_and_width(runs, key, written) for _, key, written in _FIGURES]
        rows.append(tuple(row))
    return table(columns, rows, MAX_ROWS, "{} more groups; all are in the JSON")


def _stable(group: Group) -> str:
    if not group.pool.certified:
        return "uncertified"
    return "yes" if group.pool.stable else "no"


def _changes(found: Comparison) -> Table:
    numbers = ("Limit", "gcd", "Radius", "Group's loss", "Expected loss", "Asked for", "Served at worst")
    rows = (
        (
            found.names[c.class_index],
            f"{c.old_decode:,} to {c.new_decode:,}",
            f"{c.pool.gcd:,}",
            format_number(c.pool.spectral_radius, 6),
            format_percent(c.pool.loss),
            format_percent(c.expected_loss),
            f"{'+' if c.offered_tokens_per_s > 0 else ''}{format_number(c.offered_tokens_per_s)}",
            format_percent(c.collapsed_tokens, signed=True),
        )
        for c in found.changes
    )
    more = "{} more changes; all are in the JSON"
    return table((words("Class"), *map(number, numbers)), rows, _SHOWN_CHANGES, more)


def notes(found: Comparison) -> tuple[str, ...]:
    """What was assumed."""
    said = [
        "The profile's rates are those of all replicas together; a group's replicas share its traffic evenly, and no "
        "class is split between groups (assumption). Prefix caches that routing by class would help are not modelled.",
        "Expected loss: the share of completions lost in each group's worst cycle, weighted by its requests; 0 where "
        "it is proved stable. It is lost only while greedy admission is collapsed.",
    ]
    pools = [g.pool for p in found.placements for g in p.groups]
    if any(p.kind is CycleKind.SIMULATED for p in pools):
        ended = "" if all(p.settled is not False for p in pools) else ", not always settled"
        said.append(
            f"Worst cycles without a closed form: the fluid map iterated, {CYCLE_ITERATIONS:,} times at most{ended}."
        )
    if any(g.headroom < 0 for p in found.placements for g in p.groups):
        said.append(
            "A group of negative headroom is overloaded: its latency grows with the length of the run."
        )
    if found.scheduled:
        said.append(
            "The schedule of the profile is left out: all of this is for the rates of the classes as they stand."
        )
    if found.simulated:
        said.append(
            f"Simulated: policy {found.policy}, {found.requests:,} requests over all replicas, "
            f"{len(found.seeds)} seeds, 95% intervals; a replica of each group stands for all of them. Saturated: all "
            "requests are there at the beginning; a placement is done when its last group is."
        )
        if any(loads is None for one in found.simulated for loads in one.groups):
            said.append("No figures where a run could not be ended, because a request never fits.")
    return tuple(said)
