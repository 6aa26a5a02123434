"""Placements of classes on replicas for people and programs."""

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from kvplan.analysis.mixing import CYCLE_ITERATIONS, Change, Group, Mixing, Placement, Search
from kvplan.analysis.worst_cycle import CycleKind
from kvplan.layout.document import MAX_ROWS, Block, Bullets, Column, Paragraph, Section, Table
from kvplan.simulation.experiments.pools import Loads, Runs
from kvplan.simulation.intervals import over_runs
from kvplan.units import ABSENT, format_number, format_percent, format_seconds

SCHEMA_VERSION = 1
_SHOWN_CHANGES = 6
_NO_WIDTH = 1e-9  # of an interval, over the mean: rounding
_NAMES = ("segregated", "mixed", "best")
_Written = Callable[[float], str]


class Simulated(NamedTuple):
    """Figures of a placement: of each group, and of all of it; None where a run could not be ended."""

    groups: tuple[Loads | None, ...]
    whole: Loads | None


class Outcome(NamedTuple):
    """All there is to say.

    Attributes
    ----------
    names : tuple of str
        Of the classes.
    replicas : int
    mixing : Mixing
    changes : tuple of Change
        To the best placement.
    policy : str
    requests : int
        Of the simulated workload.
    seeds : tuple of int
        None where nothing was simulated.
    simulated : tuple of Simulated
        Segregated, mixed, best; empty where nothing was simulated.
    scheduled : bool
        Whether the profile has a schedule, which all this leaves out.
    """

    names: tuple[str, ...]
    replicas: int
    mixing: Mixing
    changes: tuple[Change, ...]
    policy: str
    requests: int
    seeds: tuple[int, ...]
    simulated: tuple[Simulated, ...]
    scheduled: bool = False

    @property
    def placements(self) -> tuple[Placement, ...]:
        """In the order of their names."""
        return self.mixing.segregated, self.mixing.mixed, self.mixing.best


def build(found: Outcome, name: str) -> Section:
    """For people: what to do, the three placements side by side, their groups, what a token more or less does."""
    blocks: list[Block] = [Paragraph(_advice(found)), _side_by_side(found)]
    for at, (label, placement) in enumerate(zip(_NAMES, found.placements, strict=True)):
        same = [
            n for n, p in zip(_NAMES[:at], found.placements, strict=False) if p.groups == placement.groups
        ]
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


def _advice(found: Outcome) -> str:
    best, apart = found.mixing.best, found.mixing.segregated
    groups = "; ".join(f"{_classes(found, g)} on {_replicas(g.replicas)}" for g in best.groups)
    losses = (format_percent(placement.score.expected_loss) for placement in (best, apart))
    loss = "expected loss {}, segregated {}".format(*losses)
    beyond = ""
    if best.score.unserved > 0:
        beyond = (
            f" {format_percent(best.score.unserved)} of the requests are more than these replicas can serve."
        )
    return f"Best: {groups} ({loss}).{beyond}"


def _replicas(count: int) -> str:
    return "1 replica" if count == 1 else f"{count:,} replicas"


def _classes(found: Outcome, group: Group) -> str:
    shown = [found.names[i] for i in group.classes[:MAX_ROWS]]
    left = len(group.classes) - len(shown)
    return ", ".join(shown) + (f" and {left} more" if left else "")


def _definition(found: Outcome, label: str) -> str:
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


def _side_by_side(found: Outcome) -> Table:
    """A column for each placement that differs from those before it."""
    placements = found.placements
    first = [next(i for i, p in enumerate(placements) if p.groups == one.groups) for one in placements]
    shown = sorted(set(first))
    names = [" = ".join(_NAMES[i] for i, at in enumerate(first) if at == one).capitalize() for one in shown]
    columns = (Column("Figure"), *(Column(name, right=True) for name in names), Column("Basis"))
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
    return Table(columns, tuple(rows))


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
    width = 0.0 if interval is None else interval[1] - mean
    return written(mean) if width <= _NO_WIDTH * mean else f"{written(mean)} ± {written(width)}"


def _groups(found: Outcome, placement: Placement, simulated: Simulated | None) -> Table:
    columns = [
        Column("Classes", wraps=True),
        Column("Replicas", right=True),
        Column("gcd", right=True),
        Column("Radius", right=True),
        Column("Stable"),
        Column("Loss", right=True),
    ]
    if simulated is not None:
        columns += [
            Column("Evictions", right=True),
            Column("Requests/s", right=True),
            Column("Mean E2E", right=True),
        ]
    rows = []
    for at, g in enumerate(placement.groups[:MAX_ROWS]):
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
    left = len(placement.groups) - len(rows)
    return Table(tuple(columns), tuple(rows), f"{left} more groups; all are in the JSON" if left else None)


def _stable(group: Group) -> str:
    if not group.pool.certified:
        return "uncertified"
    return "yes" if group.pool.stable else "no"


def _changes(found: Outcome) -> Table:
    columns = (
        Column("Class", wraps=True),
        Column("Limit", right=True),
        Column("gcd", right=True),
        Column("Radius", right=True),
        Column("Group's loss", right=True),
        Column("Expected loss", right=True),
        Column("Asked for", right=True),
        Column("Served at worst", right=True),
    )
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
        for c in found.changes[:_SHOWN_CHANGES]
    )
    left = len(found.changes) - _SHOWN_CHANGES
    return Table(columns, tuple(rows), f"{left} more changes; all are in the JSON" if left > 0 else None)


def notes(found: Outcome) -> tuple[str, ...]:
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


def to_document(found: Outcome, *, name: str, sha256: str, version: str) -> dict[str, Any]:
    """The JSON document (schema_version 1)."""
    mixing = found.mixing
    return {
        "schema_version": SCHEMA_VERSION,
        "kvplan_version": version,
        "profile": {"name": name, "sha256": sha256},
        "replicas": found.replicas,
        "search": {
            "method": mixing.search.value,
            "partitions": mixing.partitions,
            "complete": mixing.complete,
        },
        "simulated": {"policy": found.policy, "requests": found.requests, "seeds": list(found.seeds)}
        if found.simulated
        else None,
        "placements": [
            _plain_placement(found, label, placement, found.simulated[at] if found.simulated else None)
            for at, (label, placement) in enumerate(zip(_NAMES, found.placements, strict=True))
        ],
        "diversification": [
            {
                "class": found.names[c.class_index],
                "group": c.group_index,
                "decode": {"from": c.old_decode, "to": c.new_decode},
                "gcd": c.pool.gcd,
                "spectral_radius": c.pool.spectral_radius,
                "stable": c.pool.stable,
                "loss": c.pool.loss,
                "expected_loss": c.expected_loss,
                "offered_decode_tokens_per_s_change": c.offered_tokens_per_s,
                "worst_decode_tokens_per_s_relative_change": c.collapsed_tokens,
            }
            for c in found.changes
        ],
        "sources": _SOURCES if found.simulated else {k: v for k, v in _SOURCES.items() if k != "simulated"},
        "notes": list(notes(found)),
    }


_SOURCES = {
    "placements": {
        "source": "SIC eq. 9, 10, Theorem 3; worst cycles as in kvplan analyze; search: new",
        "basis": "computed",
    },
    "placements.groups.worst_cycle": {
        "source": "by kind: homogeneous and pulse computed, simulated: the fluid map iterated, none: stable",
        "basis": "computed",
    },
    "diversification": {"source": "SIC 5.3; its price: new", "basis": "computed"},
    "routing": {"source": "traffic splits evenly over a group's replicas", "basis": "assumption"},
    "simulated": {"source": "whole requests, as SIC 6.2 compares", "basis": "simulated"},
}


def _plain_placement(
    found: Outcome, label: str, placement: Placement, simulated: Simulated | None
) -> dict[str, Any]:
    return {
        "name": label,
        **placement.score._asdict(),
        "groups": [
            _plain_group(found, g, None if simulated is None else simulated.groups[at])
            for at, g in enumerate(placement.groups)
        ],
        "simulated": _plain_loads(None if simulated is None else simulated.whole),
    }


def _plain_group(found: Outcome, group: Group, loads: Loads | None) -> dict[str, Any]:
    p = group.pool
    return {
        "classes": [found.names[i] for i in group.classes],
        "replicas": group.replicas,
        "gcd": p.gcd,
        "spectral_radius": p.spectral_radius,
        "stable": p.stable,
        "certified": p.certified,
        "worst_cycle": {
            "kind": p.kind.value,
            "loss": p.loss,
            "throughput_rps": p.worst_rps * group.replicas,
            "settled": p.settled,
        },
        "offered_rps": p.offered_rps,
        "sustainable_rps": p.sustainable_rps * group.replicas,
        "headroom": group.headroom,
        "simulated": _plain_loads(loads),
    }


def _plain_loads(loads: Loads | None) -> dict[str, Any] | None:
    if loads is None:
        return None
    return {load: _plain_runs(runs) for load, runs in loads._asdict().items()}


def _plain_runs(runs: Runs) -> dict[str, Any]:
    figures: dict[str, Sequence[float]] = {key: getattr(runs, key) for _, key, _ in _FIGURES}
    return {
        "requests": runs.requests,
        **{
            key: {"mean": math.fsum(values) / len(values), "ci95": _interval(values)}
            for key, values in figures.items()
        },
    }


def _interval(values: Sequence[float]) -> list[float] | None:
    interval = over_runs([float(value) for value in values])
    return None if interval is None else list(interval)
