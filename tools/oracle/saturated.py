"""Rates that a replica serves under an endless backlog, from states in which it may have collapsed."""

import math
from dataclasses import dataclass
from functools import reduce
from typing import Any

import numpy as np

from oracle.kernel import DONE, GAP_BINS, LIVELOCK, SUMS, Law, footprint, simulate
from oracle.system import System

TIMES_LONGER = 20  # than what is judged
LARGEST_ERROR = 0.002  # of the rate, relative
BATCHES = 24
AGREE_ERRORS, AGREE = 4.0, 0.015  # starts that differ by no more are of one rate


@dataclass(frozen=True)
class Served:
    """What is served from one start: requests/s with the standard error, 0 where nothing ever ends."""

    start: str
    rate_rps: float
    se: float
    completions: int
    evictions_per_request: float


@dataclass(frozen=True)
class Truth:
    """The rate from the worst start; `settled` where its error is as small as asked for."""

    rate_rps: float
    se: float
    start: str
    settled: bool
    starts: tuple[Served, ...]


@dataclass(frozen=True)
class Means:
    """Means over the requests of a system, and what a full replica does: the fluid without evictions."""

    footprint: float  # blocks times iterations, of emitted tokens
    emitted: float
    prompt: float
    pairs: float
    admissions: float  # an iteration, at most what memory and seats allow
    resident: float
    longest: float  # iterations, the quantile .9999
    prefill_share: float  # of the time
    seats_bind: bool

    @classmethod
    def of(cls, system: System) -> "Means":
        """From the law of lengths."""
        rules, share, law = system.rules, system.share, system.law
        tokens, iterations = system.tokens, system.iterations
        skipped = rules.silent
        emitting = np.array(
            [
                footprint(s + n - 1, rules.block) - footprint(s + skipped - 1, rules.block)
                for s, n in zip(tokens.tolist(), iterations.tolist(), strict=True)
            ],
            dtype=np.float64,
        )
        held = float(share @ (emitting + skipped * -(-tokens // rules.block)))
        stay = float(share @ system.stay)
        by_memory, by_seats = rules.blocks / held, rules.seats / stay
        admissions = min(by_memory, by_seats)
        prompt = float(share @ system.prompts)
        read = float(share @ (iterations * tokens + iterations * (iterations - 1) / 2))
        prefill = 0.0 if rules.ready_made else admissions * prompt
        pairs = float(share @ (system.prompts**2 + system.prompts)) / 2
        computed = 0.0 if rules.ready_made else admissions * pairs
        time = seconds(law, admissions * read, prefill, admissions * stay, computed)
        order = np.argsort(system.stay)
        quantile = np.searchsorted(np.cumsum(share[order]), 0.9999)
        return cls(
            footprint=float(share @ emitting),
            emitted=float(share @ (iterations - skipped)),
            prompt=prompt,
            pairs=pairs,
            admissions=admissions,
            resident=admissions * stay,
            longest=float(system.stay[order][min(quantile, order.size - 1)]),
            prefill_share=min((law.d2 * prefill + law.d6 * computed) / time, 1.0),
            seats_bind=by_seats < by_memory,
        )

    @property
    def least_completions(self) -> float:
        """Of a run that is to be judged."""
        return max(4_000.0, 20 * self.longest * self.admissions, 4 * self.resident)


def seconds(law: Law, read: float, prefill: float, sequences: float, pairs: float) -> float:
    """Time of an iteration."""
    beyond = max(0.0, prefill + sequences - law.knee)
    linear = law.d0 + law.d1 * read + law.d2 * prefill + law.d3 * sequences + law.d6 * pairs
    woken = 1 - (1 - law.chosen) ** (prefill + sequences)
    return linear + law.d4 * math.sqrt(sequences) + law.d5 * beyond + law.experts * woken


def starts(system: System) -> dict[str, float | None]:
    """Names of starts, and the period of the cohorts of each pulse."""
    lengths = np.unique(system.iterations)
    ages = 8 if lengths.size == 1 else 2
    known: dict[str, float | None] = {"flood": None} | {f"ages-{i}": None for i in range(ages)}
    divisor = reduce(math.gcd, lengths.tolist())
    periods = {"gcd": divisor, "mean": float(system.share @ system.iterations), "half": lengths[-1] / 2}
    for name, period in periods.items():
        if 1 < round(period) < lengths[-1]:
            known[f"pulse-{name}"] = float(round(period))
    return known


def residents(system: System, period: float | None, rng: np.random.Generator) -> tuple[Any, Any, Any]:
    """A full replica: (request, age) by share until the next does not fit; ages 1, 2, …, or 1, 1 + period, …."""
    step = 1 if period is None else int(period)
    choices = -(-(system.iterations - 1) // step)  # ages below the last iteration
    weight = system.share * choices
    if weight.sum() == 0:
        return (np.zeros(0, np.int64),) * 3
    many = int(min(system.rules.seats, system.rules.blocks + 1, 2_000_000))
    row = np.searchsorted(np.cumsum(weight / weight.sum())[:-1], rng.random(many), side="right")
    age = 1 + step * np.floor(rng.random(many) * choices[row]).astype(np.int64)
    held = -(-(system.tokens[row] + age - 1) // system.rules.block)
    fitting = int(np.searchsorted(np.cumsum(held), system.rules.blocks, side="right"))
    kept = np.argsort(-age[:fitting], kind="stable")
    row, age = row[:fitting][kept], age[:fitting][kept]
    return system.tokens[row], system.iterations[row], age


def served(
    system: System, means: Means, start: str, period: float | None, completions: int, seed: int
) -> Served:
    """The rate from a start: the first quarter of the completions is dropped, the rest counted smoothly."""
    rng = np.random.default_rng([seed, *start.encode()])
    first = (np.zeros(0, np.int64),) * 3 if start == "flood" else residents(system, period, rng)
    drawn = system.draw(int(completions * 1.02) + 4 * int(means.resident) + 10_000, rng)
    inputs, decodes = (np.concatenate(pair) for pair in zip(first[:2], drawn, strict=True))
    marks = np.linspace(completions / 4, completions, BATCHES + 1).astype(np.int64)
    sums = np.zeros((marks.size, len(SUMS)))
    nothing, none = np.zeros(0), np.zeros(0, np.int64)
    gaps = np.zeros(GAP_BINS, np.int64)
    ended = simulate(
        inputs, decodes, nothing, first[2], system.rules, system.law, marks, (0.0, math.inf),
        sums, gaps, nothing, nothing, none,
    )  # fmt: skip
    if ended.status == LIVELOCK:
        return Served(start, 0.0, 0.0, ended.completed, math.inf)
    if ended.status != DONE:
        raise RuntimeError(f"a run ended with status {ended.status}")
    time, footprints, emitted, prompts, done, evictions, _ = np.diff(sums, axis=0).T
    theta = 1 - means.prefill_share
    work = emitted / means.emitted if means.seats_bind else footprints / means.footprint
    if theta < 1:
        work = theta * work + (1 - theta) * prompts / means.prompt
    rate = float(work.sum() / time.sum())
    residual = work - rate * time
    se = math.sqrt(float(residual @ residual) / (BATCHES - 1) * BATCHES) / float(time.sum())
    return Served(start, rate, se, ended.completed, float(evictions.sum() / done.sum()))


def truth(
    system: System, *, seed: int = 0, times_longer: float = TIMES_LONGER, most_completions: int = 20_000_000
) -> Truth:
    """The rate that the worst of the starts serves, by runs as much longer; doubled until the error is small."""
    means = Means.of(system)
    known = starts(system)
    completions = min(int(times_longer * means.least_completions), most_completions)
    runs = {name: served(system, means, name, period, completions, seed) for name, period in known.items()}
    size = dict.fromkeys(runs, completions)
    while True:
        least = min(runs.values(), key=lambda run: run.rate_rps)
        worst = [run for run in runs.values() if _agree(run, least)]
        longer = [
            run.start
            for run in worst
            if run.se > LARGEST_ERROR * run.rate_rps and 2 * size[run.start] <= most_completions
        ]
        if not longer:
            break
        for name in longer:
            size[name] *= 2
            runs[name] = served(system, means, name, known[name], size[name], seed + len(runs) + size[name])
    if len(worst) == len(runs):
        weight = np.array([1 / max(run.se, 1e-12) ** 2 for run in worst])
        rate = float(weight @ [run.rate_rps for run in worst] / weight.sum())
        se, start = float(1 / math.sqrt(weight.sum())), "all"
    else:
        rate, se, start = least.rate_rps, least.se, least.start
    settled = se <= LARGEST_ERROR * rate
    return Truth(rate, se, start, settled, tuple(runs.values()))


def _agree(run: Served, least: Served) -> bool:
    gap = run.rate_rps - least.rate_rps
    return gap <= AGREE_ERRORS * math.hypot(run.se, least.se) and gap <= AGREE * least.rate_rps
