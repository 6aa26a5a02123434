"""Random profiles whose verdicts are judged by whole requests: is `stable` stable, is a cap needed?

    PYTHONPATH=tests python tests/recovery_campaign.py --first 1000000 --profiles 2000 --processes 2

A profile follows from its number. Those below 1,000,000 are for tuning, those from there on for judging: whoever
changes the rule looks at the former, and reports the latter. Where a verdict looks wrong the run that refutes it is
made again, much longer, with other requests.
"""

import argparse
import csv
import math
import sys
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, fields, replace
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from time import perf_counter

import numpy as np
from saturated_greedy import EMPTY, Server, drain, judge, measure, run, starts

from kvplan.model import Plan, Prefill, Replica, RequestClass, ServingModel, Timing
from kvplan.report.assembly import Analyses
from kvplan.report.words import Status

JUDGING = 1_000_000  # the first number that is not for tuning
SIZES = (15, 50, 200)  # requests in memory: bounds of the sizes that are told apart
MOST_FALSE_CAPS = 0.15  # of the profiles that recover
LEAST_SHARE, MOST_EVICTIONS = 0.97, 0.01  # of the sustainable rate and of the cap, from SIZES[-1] requests on
RESOLUTION = 1e-3  # of a rate, what runs of this length tell apart
_DRAINS = 4  # the backlog of every fourth profile that is called stable has to drain

# a counterexample to a rule by the fluid map that trims a stage in proportion, not the latest admitted of it
KNOWN = -1
_KNOWN = ServingModel(
    (RequestClass("pages of 16", 4, (2, 10, 19, 99), (0.1934, 0.1892, 0.5049, 0.1125), 24_875.0),),
    Timing(5.309e-3),
    Replica(156_558, 16, Prefill.INLINE),
)


# ----------------------------------------------------------------------------------------------------- profiles


def profile(number: int) -> ServingModel:
    """The profile of a number."""
    if number == KNOWN:
        return _KNOWN
    rng = np.random.default_rng(number)
    convention = Prefill(rng.choice(["fused", "inline", "disaggregated"], p=[0.6, 0.2, 0.2]))
    block = int(rng.choice([1, 16, 64], p=[0.6, 0.3, 0.1]))
    in_memory = _log_uniform(rng, 5, 5000)
    while True:
        classes = _classes(rng)
        unlimited = Server.of(ServingModel(classes, Timing(1.0), Replica(block, block, convention)))
        pages = round(in_memory * unlimited.mean_footprint / unlimited.mean_stages)
        if pages >= unlimited.held.max():
            break
    memory = pages * block + int(rng.integers(block))
    limit = max(1, round(in_memory * _log_uniform(rng, 0.5, 2))) if rng.random() < 0.2 else None
    timing = _timing(rng, replace(unlimited, pages=pages))
    model = ServingModel(classes, timing, Replica(memory, block, convention, limit))
    factor = rng.uniform(0.3, 0.99) * Server.of(model).sustainable_rps / sum(c.rate_rps for c in classes)
    return replace(model, classes=tuple(replace(c, rate_rps=c.rate_rps * factor) for c in classes))


def _classes(rng: np.random.Generator) -> tuple[RequestClass, ...]:
    count = int(rng.integers(1, 9))
    common = round(_log_uniform(rng, 1, 4000))
    inputs = [common if rng.random() < 0.25 else round(_log_uniform(rng, 1, 4000)) for _ in range(count)]
    if rng.random() < 0.2:  # whole pages, or a token less
        inputs = [16 * max(1, s // 16) - int(rng.integers(2)) for s in inputs]
    step = int(rng.integers(2, 9)) if rng.random() < 0.15 else 1  # lengths with a common divisor
    shares = rng.dirichlet(np.ones(count)) + 0.01
    return tuple(
        RequestClass(f"class {i}", s, *_lengths(rng, step), rate)
        for i, (s, rate) in enumerate(zip(inputs, shares.tolist(), strict=True))
    )


def _lengths(rng: np.random.Generator, step: int) -> tuple[tuple[int, ...], tuple[float, ...]]:
    """Decode lengths and their weights: one, a few, or a wide law."""
    typical = _log_uniform(rng, 1, 600)
    kind = rng.choice(["fixed", "few", "range", "geometric", "lognormal"], p=[0.5, 0.2, 0.1, 0.1, 0.1])
    if kind == "fixed":
        lengths, weights = [typical], [1.0]
    elif kind == "few":
        lengths = [typical * _log_uniform(rng, 0.2, 5) for _ in range(int(rng.integers(2, 6)))]
        weights = rng.dirichlet(np.ones(len(lengths))) + 0.01
    elif kind == "range":
        lengths = np.linspace(typical * rng.uniform(0.1, 0.9), typical * rng.uniform(1.0, 2.0), 100)
        weights = np.ones(100)
    elif kind == "geometric":
        lengths = typical * np.linspace(0.01, 4, 100)
        weights = np.exp(-lengths / typical)
    else:
        width, score = rng.uniform(0.2, 1.2), np.linspace(-2.5, 2.5, 60)
        lengths, weights = typical * np.exp(width * score), np.exp(-(score**2) / 2)
    merged: dict[int, float] = {}
    for length, weight in zip(lengths, weights, strict=True):
        tokens = step * max(1, round(min(length, 2000) / step))
        merged[tokens] = merged.get(tokens, 0.0) + float(weight)
    return tuple(sorted(merged)), tuple(merged[d] for d in sorted(merged))


def _timing(rng: np.random.Generator, full: Server) -> Timing:
    """Terms in proportion to d0 where memory is full, each of them sometimes 0."""
    d0 = _log_uniform(rng, 0.002, 0.05)
    admitted = full.in_memory / full.mean_stages
    prompts = admitted * float(full.share @ full.input_tokens)
    amounts = (full.pages * full.block_tokens, prompts, full.in_memory)
    ranges = ((0.8, 0.01, 3), (0.5, 0.01, 5), (0.5, 0.01, 1))  # how often, and times d0
    d1, d2, d3 = (
        d0 * _log_uniform(rng, low, high) / amount if rng.random() < often else 0.0
        for amount, (often, low, high) in zip(amounts, ranges, strict=True)
    )
    return Timing(d0, d1=d1, d2=min(d2, 3e-4), d3=d3)


def _log_uniform(rng: np.random.Generator, low: float, high: float) -> float:
    return math.exp(rng.uniform(math.log(low), math.log(high)))


# ----------------------------------------------------------------------------------------------------- judgement


@dataclass(frozen=True)
class Judged:
    """What kvplan says of a profile, and what whole requests do; None where it was not asked.

    Attributes
    ----------
    in_memory
        Requests that fill memory.
    radius_below_one
        Whether the roots of the equilibrium are proved to be inside the circle.
    worst_rps
        The smallest rate served from any start, and how uncertain it is.
    drained
        Whether the backlog of a burst was gone in the end, at the offered rate.
    capped_share, capped_evictions
        Under the printed cap: share of the sustainable rate served, evictions over the cap.
    overflowed
        Whether anything was evicted under the integer budgets; None where their peak does not fit.
    """

    number: int
    convention: str
    block_tokens: int
    classes: int
    in_memory: float
    max_num_seqs: int | None
    load: float
    sustainable_rps: float
    offered_rps: float
    status: str
    recovers_up_to_rps: float | None
    radius_below_one: bool
    worst_rps: float
    worst_error_rps: float
    worst_start: str
    drained: bool | None = None
    capped_share: float | None = None
    capped_evictions: float | None = None
    overflowed: bool | None = None

    @property
    def wrongly_stable(self) -> bool:
        """`stable`, and whole requests stay below the offered rate."""
        return self.status == Status.STABLE and self.worst_rps < (1 - RESOLUTION) * self.offered_rps

    @property
    def wrong_rate(self) -> bool:
        """Whole requests stay below the rate up to which they are said to recover."""
        return self.worst_rps < (1 - RESOLUTION) * (self.recovers_up_to_rps or 0.0)

    @property
    def recovers(self) -> bool:
        """Whole requests serve what is offered, from every start."""
        return self.worst_rps >= (1 + RESOLUTION) * self.offered_rps

    @property
    def size(self) -> int:
        """Which of the sizes it is of."""
        return int(np.searchsorted(SIZES, self.in_memory, side="right"))


def judged(number: int, completions: int) -> Judged:
    """Ask kvplan about a profile, and judge the answers."""
    model, seed = profile(number), abs(number)
    server = Server.of(model)
    said = Analyses(model, Plan())
    limit = said.verdict.recovers_up_to_rps
    offered, sustainable = sum(c.rate_rps for c in model.classes), server.sustainable_rps
    assert math.isclose(said.load.sustainable_rps, sustainable, rel_tol=1e-9)
    stable = said.verdict.status == Status.STABLE
    claimed = max(offered if stable else 0.0, limit or 0.0)
    served = judge(server, seed, completions=completions, claimed_rps=claimed)
    start, worst = min(served.items(), key=lambda item: item[1].rate_rps)
    found = Judged(
        number=number,
        convention=str(model.replica.prefill),
        block_tokens=server.block_tokens,
        classes=len(model.classes),
        in_memory=server.in_memory,
        max_num_seqs=model.replica.max_num_seqs,
        load=offered / sustainable,
        sustainable_rps=sustainable,
        offered_rps=offered,
        status=str(said.verdict.status),
        recovers_up_to_rps=limit,
        radius_below_one=said.stability.stable and said.stability.certified,
        worst_rps=worst.rate_rps,
        worst_error_rps=worst.standard_error_rps,
        worst_start=start,
        overflowed=_overflowed(server, model, [c.integer_budget for c in said.rate_cap.classes], seed),
    )
    if stable:
        if number % _DRAINS:
            return found
        return replace(found, drained=_drained(server, seed, offered))
    share, evictions = _capped(server, seed, completions, said.rate_cap.per_iteration)
    return replace(found, capped_share=share, capped_evictions=evictions)


def _drained(server: Server, seed: int, rate_rps: float) -> bool:
    """Whether the backlog of a burst that outlasts the longest request twice goes away, however slowly."""
    most = min(server.in_memory, server.max_num_seqs)
    excess = 4 * rate_rps - server.sustainable_rps
    longest_s = int(server.stages.max()) * most / server.mean_stages / server.sustainable_rps
    burst_s = max(4 * most / excess, 2 * longest_s)
    backlog = 4 * rate_rps * burst_s
    limit = min(int(300 * backlog) + 20_000, 10_000_000)
    return drain(server, EMPTY, seed, rate_rps=rate_rps, burst_s=burst_s, limit=limit).left == 0


def _capped(server: Server, seed: int, completions: int, cap: float) -> tuple[float, float]:
    """Share of the sustainable rate, and evictions over the cap: from empty and from a collapse, the worse of each."""
    collapsed = list(starts(server, np.random.default_rng([seed, 3])))[-1][1]
    runs = [measure(server, s, seed, completions=completions, cap=cap) for s in (EMPTY, collapsed)]
    share = min(m.rate_rps for m in runs) / server.sustainable_rps
    return share, max(m.evictions_per_iteration for m in runs) / cap


def _overflowed(server: Server, model: ServingModel, budgets: Sequence[int | None], seed: int) -> bool | None:
    """Whether anything is evicted where so many of each class begin in every iteration; None: the peak does not fit."""
    whole = [b for b in budgets if b is not None]
    ends = np.cumsum([len(c.decode_tokens) for c in model.classes])
    rows = [slice(end - len(c.decode_tokens), end) for end, c in zip(ends, model.classes, strict=True)]
    if (
        not whole
        or sum(b * server.footprint[at].max() for b, at in zip(whole, rows, strict=True)) > server.pages
    ):
        return None
    rng, longest, each = np.random.default_rng([seed, 4]), int(server.stages.max()), sum(whole)
    columns = []
    for b, at in zip(whole, rows, strict=True):
        share = server.share[at]
        drawn = rng.choice(share.size, (4 * longest, b), p=share / share.sum())
        drawn[longest : 3 * longest] = server.footprint[at].argmax()  # all the longest, for a while
        columns.append(drawn + at.start)
    fresh = np.hstack(columns).ravel()
    limited = replace(server, max_num_seqs=each * longest)
    table = run(limited, EMPTY, fresh, np.array([each * 3 * longest - each]), cap=each)
    return bool(table["evicted"][-1] > 0)


# ------------------------------------------------------------------------------------------------------- a table


@dataclass(frozen=True)
class Findings:
    """All that was judged."""

    rows: tuple[Judged, ...]

    def counted(self, choose: Callable[[Judged], object]) -> int:
        """How many are so."""
        return sum(bool(choose(row)) for row in self.rows)

    @property
    def false_caps(self) -> float:
        """Share of `needs_cap` among those that recover."""
        return self._false_caps(lambda _: True)

    def _false_caps(self, choose: Callable[[Judged], bool]) -> float:
        recover = [row for row in self.rows if row.recovers and choose(row)]
        return sum(row.status == Status.NEEDS_CAP for row in recover) / len(recover) if recover else math.nan

    @property
    def capped_badly(self) -> list[Judged]:
        """Large replicas that under the printed cap serve too little or evict too much."""
        return [
            row
            for row in self.rows
            if row.capped_share is not None
            and row.in_memory >= SIZES[-1]
            and (row.capped_share < LEAST_SHARE or row.capped_evictions > MOST_EVICTIONS)
        ]

    def table(self) -> str:
        """As text."""
        n, stable = len(self.rows), self.counted(lambda r: r.status == Status.STABLE)
        lines = [
            f"{n} profiles: {stable} stable, {self.counted(lambda r: r.status == Status.NEEDS_CAP)} needs_cap, "
            f"{self.counted(lambda r: r.recovers)} recover from every start",
            f"stable, and below the offered rate: {self.counted(lambda r: r.wrongly_stable)}",
            f"below the rate that recovers: {self.counted(lambda r: r.wrong_rate)} of "
            f"{self.counted(lambda r: r.recovers_up_to_rps is not None)}",
            f"backlog of a burst drained: {self.counted(lambda r: r.drained)} of "
            f"{self.counted(lambda r: r.drained is not None)}",
            f"evictions under integer budgets whose peak fits: {self.counted(lambda r: r.overflowed)} of "
            f"{self.counted(lambda r: r.overflowed is not None)}",
            f"needs_cap among those that recover: {self.false_caps:.1%}",
            f"from {SIZES[-1]} requests in memory, capped: {len(self.capped_badly)} serve less than "
            f"{LEAST_SHARE:.0%} or evict more than {MOST_EVICTIONS:.0%} of the cap",
            "",
            f"{'in memory':>12} {'profiles':>9} {'false caps':>11} {'radius < 1':>11} {'others':>8}   "
            f"capped: {'n':>4} {'share served':>13} {'smallest':>9} {'evictions':>10}",
            *map(self._size, range(len(SIZES) + 1)),
            "",
        ]
        lines += [_exception(r) for r in self.rows if r.wrongly_stable or r.wrong_rate]
        lines += [
            f"{r.number}: backlog not drained at load {r.load:.3f}" for r in self.rows if r.drained is False
        ]
        lines += [f"{r.number}: evictions under integer budgets" for r in self.rows if r.overflowed]
        lines += [
            f"{r.number}: {r.in_memory:.0f} in memory, capped: {r.capped_share:.3f} of the sustainable rate, "
            f"evictions {r.capped_evictions:.2%} of the cap"
            for r in self.capped_badly
        ]
        return "\n".join(lines)

    def _size(self, size: int) -> str:
        """A line about profiles of a size; of those capped, medians and the smallest share."""
        rows = [row for row in self.rows if row.size == size]
        capped = [row for row in rows if row.capped_share is not None]
        share = [row.capped_share for row in capped] or [math.nan]
        evictions = [row.capped_evictions for row in capped] or [math.nan]
        false = (
            self._false_caps(lambda r: r.size == size),
            self._false_caps(lambda r: r.size == size and r.radius_below_one),
            self._false_caps(lambda r: r.size == size and not r.radius_below_one),
        )
        low, high = ("", *SIZES, "")[size : size + 2]
        return (
            f"{f'{low} … {high}':>12} {len(rows):>9} {false[0]:>11.1%} {false[1]:>11.1%} {false[2]:>8.1%}   "
            f"        {len(capped):>4} {np.median(share):>13.3f} {min(share):>9.3f} {np.median(evictions):>10.4f}"
        )


def _exception(r: Judged) -> str:
    limit = math.nan if r.recovers_up_to_rps is None else r.recovers_up_to_rps
    return (
        f"{r.number}: {r.status}, {r.in_memory:.0f} in memory ({r.convention}, pages of {r.block_tokens}, {r.classes} "
        f"classes, max_num_seqs {r.max_num_seqs}); served "
        f"{r.worst_rps:.5g} ± {r.worst_error_rps:.2g} from {r.worst_start}: "
        f"{r.worst_rps / r.offered_rps:.4f} of the offered rate, {r.worst_rps / limit:.4f} of the one that recovers"
    )


def campaign(numbers: Iterable[int], completions: int, processes: int = 1) -> Findings:
    """Judge the profiles of some numbers."""
    work = partial(judged, completions=completions)
    if processes == 1:
        return Findings(tuple(map(work, numbers)))
    with ProcessPoolExecutor(processes, get_context("spawn")) as pool:
        return Findings(tuple(pool.map(work, numbers, chunksize=4)))


def main(arguments: Sequence[str]) -> None:
    """Run from the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--first", type=int, default=JUDGING, help="number of the first profile")
    parser.add_argument("--profiles", type=int, default=2000)
    parser.add_argument("--completions", type=int, default=50_000, help="from each start, at least")
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--csv", type=Path, help="where every profile gets a row")
    options = parser.parse_args(arguments)
    began = perf_counter()
    numbers = [KNOWN, *range(options.first, options.first + options.profiles)]
    findings = campaign(numbers, options.completions, options.processes)
    print(findings.table())
    print(f"\n{perf_counter() - began:.0f} s")
    if options.csv:
        with options.csv.open("w", newline="") as file:
            writer = csv.DictWriter(file, [field.name for field in fields(Judged)])
            writer.writeheader()
            writer.writerows(map(asdict, findings.rows))


if __name__ == "__main__":
    main(sys.argv[1:])
