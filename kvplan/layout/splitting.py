"""Split or together, for people: what was simulated, the best first, and why."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from kvplan.decide.crossing import Lines
from kvplan.decide.splitting import LONG, Candidate, Fewest, Splitting, too_short
from kvplan.layout.elements import Block, Bullets, Column, Paragraph, Section, number, table
from kvplan.model.slo import Slo
from kvplan.units import ABSENT, format_number, format_rate, format_seconds

if TYPE_CHECKING:
    from kvplan.profile.reading import Profile

_USUAL = ("ttft_s.p95", "itl_s.p99")


class Shown(NamedTuple):
    """A search, and how it was made.

    Attributes
    ----------
    demand
        For which GPUs were counted; None where their number was given.
    lines
        What either way serves under each limit on the time between tokens, if that was asked for.
    prices, kinds
        Of a prefill, a decode and a replica that does both: what an hour costs, None where nothing has a price; and the
        profiles they are of, None where they are all alike.
    """

    found: Splitting
    slos: tuple[Slo, ...]
    policy: str
    requests: int
    seeds: int
    demand: Fewest | None = None
    lines: Lines | None = None
    prices: tuple[float, ...] | None = None
    kinds: "tuple[Profile, ...] | None" = None

    def per_hour(self, one: Candidate) -> float | None:
        """What a candidate costs; None where nothing has a price."""
        if self.prices is None:
            return None
        fleet = one.fleet
        counts = (fleet.prefill, fleet.decode, fleet.replicas)
        return sum(count * price for count, price in zip(counts, self.prices, strict=True))


def build(shown: Shown, name: str) -> Section:
    """The verdict, a row for each candidate, and the reason by formula."""
    found = shown.found
    rows = sorted(found.tried, key=lambda one: -one.goodput_rps)
    keys = list(dict.fromkeys([*_USUAL, *(slo.key for slo in shown.slos)]))
    priced = shown.prices is not None
    blocks: list[Block] = [
        *(() if shown.demand is None else (Paragraph(_fewest(shown.demand)),)),
        Paragraph(_verdict(found)),
        table(
            (
                Column("Replicas"),
                number("GPUs"),
                *(number("Cost/h"),) * priced,
                number("Formula"),
                number("Goodput"),
                *map(number, map(_named, keys)),
            ),
            [
                (
                    replicas_of(one),
                    format_number(one.gpus),
                    *(format_number(shown.per_hour(one)),) * priced,
                    format_number(one.formula_rps),
                    format_number(one.goodput_rps),
                    *(_figure(one, key, shown.slos) for key in keys),
                )
                for one in rows
            ],
        ),
        Paragraph(found.reason),
        *(() if shown.lines is None else (Paragraph(_crossed(shown.lines)),)),
        Bullets(notes(shown)),
    ]
    return Section("split", name, tuple(blocks), "simulated")


def notes(shown: Shown) -> tuple[str, ...]:
    """How to read it."""
    held = ", ".join(slo.text for slo in shown.slos) or "the queue alone: there are no objectives"
    return (
        *_kinds(shown),
        *_transfers(shown),
        f"Goodput: the largest simulated rate, requests/s, at which the queue stays and all holds, to 2%; {held}. "
        "Figures are those at that rate.",
        f"Simulated with {shown.policy}, {format_number(shown.requests)} requests a run, {shown.seeds} seeds. Formula: "
        "means of iterations; it says where to look, simulation decides.",
        *_short(shown),
    )


def _short(shown: Shown) -> tuple[str, ...]:
    best = shown.found.best
    if best is None:
        return ()
    wanted = too_short(shown.requests, best.goodput_rps, best.figures, LONG)
    if wanted is None:
        return ()
    return (
        f"Runs last {format_seconds(shown.requests / best.goodput_rps)}, less than {LONG:g} times what a request "
        "takes: much of that is filling and draining, and goodput can be less. "
        f"{format_number(wanted)} with --requests are enough.",
    )


def _kinds(shown: Shown) -> tuple[str, ...]:
    if shown.kinds is None:
        return ()
    prefill, decode, both = (f"{one.name}, {_gpus(one.model.replica.gpus)} each" for one in shown.kinds)
    return (
        f"Prefill: {prefill}. Decode: {decode}. Together: {both}. GPUs count alike, whatever their kind and price: "
        "what serves most with so many wins.",
    )


def _transfers(shown: Shown) -> tuple[str, ...]:
    split = shown.found.split
    if split is None or split.fleet.transfer_s(1) > 0:
        return ()
    return ("KV is taken to go from side to side in no time: [fleet] has no transfer.",)


def replicas_of(one: Candidate) -> str:
    """Such as "5 + 3" or "8 together"."""
    fleet = one.fleet
    if fleet.is_split:
        return f"{fleet.prefill} + {fleet.decode}"
    budget = "" if one.budget_tokens is None else f", budget {format_number(one.budget_tokens)}"
    return f"{fleet.replicas} together{budget}"


def _fewest(demand: Fewest) -> str:
    said = f"{_gpus(demand.gpus)} for {format_rate(demand.needed_rps, 'requests')}, headroom included"
    if demand.fewer is None:
        return f"{said}; fewer are not a replica."
    fewer, most_rps = demand.fewer
    return f"{said}; {_gpus(fewer)} would serve {format_rate(most_rps, 'requests')}."


def _crossed(lines: Lines) -> str:
    """Where the best of either way serve the same, as the limit on the time between tokens moves."""
    name, found = _named(lines.key), lines.crossed
    said = "The best split and the best together change places, "
    if not np.isnan(lines.formula).any():
        where = (
            "nowhere" if lines.crossing is None else f"at {format_seconds(lines.crossing.itl_s)} of mean ITL"
        )
        said += f"by formula, {where}; "
    said += "simulated, "
    if found is None:
        more = "the split" if lines.simulated[0].sum() > lines.simulated[1].sum() else "together"
        return f"{said}nowhere: {more} serves more whatever the limit on {name}."
    at, low, high = (format_seconds(limit) for limit in (found.itl_s, found.low_s, found.high_s))
    where = "below" if found.split_wins_below else "above"
    return f"{said}at {at} of {name}, {where} which the split serves more; from {low} to {high} they are alike to 2%."


def _gpus(count: int) -> str:
    return f"{format_number(count)} GPU{'s' * (count != 1)}"


def _verdict(found: Splitting) -> str:
    split, together, best = found.split, found.together, found.best
    if best is None or together is None:
        return "There are too few GPUs for a replica."
    if split is None:
        return "There are too few GPUs for a replica of each kind: together."
    if best.goodput_rps == 0:
        return "Neither serves anything within the objectives."
    rates = [format_rate(one.goodput_rps, "requests") for one in (split, together)]
    even = together.budget_tokens
    how = "" if even is None else f" with max_num_batched_tokens = {format_number(even)}"
    if best is split:
        return f"Split {replicas_of(split)}: {rates[0]} within the objectives, {rates[1]} together{how}."
    return f"Together{how}: {rates[1]} within the objectives, {rates[0]} split {replicas_of(split)}."


def _named(key: str) -> str:
    block, _, name = key.partition(".")
    return f"{block.removesuffix('_s').upper()} {name}"


def _figure(one: Candidate, key: str, slos: Sequence[Slo]) -> str:
    found = one.figures.get(key)
    if found is None:
        return ABSENT
    return Slo("", key, False, 0.0).written(found.mean)
