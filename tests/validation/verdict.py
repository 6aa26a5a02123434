"""`recovers_up_to_rps` against the rate that the oracle's replicas serve under a backlog."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from time import perf_counter
from typing import Any

from oracle import System, truth

from validation import product
from validation.profiles import Case
from validation.truths import Truths

WITHIN = (-0.03, 0.01)  # of the truth, for 95 %
ERRORS = 3.0  # standard errors of the truth that a wrong `stable` exceeds
OFFERED = 0.99  # of the truth: a profile that is offered less needs no cap


@dataclass(frozen=True)
class Row:
    """One profile: what is said, and what is true, requests/s."""

    name: str
    said: float
    sustainable: float
    rate: float
    se: float
    start: str
    settled: bool

    @property
    def true(self) -> float:
        """What `recovers_up_to_rps` should be."""
        return min(self.rate, self.sustainable)

    @property
    def wrong_stable(self) -> bool:
        """Some rate is called stable that the replica does not serve."""
        return self.said > self.rate + ERRORS * self.se

    @property
    def needless_cap(self) -> bool:
        """A rate well below the truth is not called stable."""
        return self.said < OFFERED * self.true

    @property
    def off(self) -> float:
        """Relative to the truth."""
        return self.said / self.true - 1 if self.true else 0.0


def known(case: Case, truths: Truths) -> dict[str, Any]:
    """The truth about a profile."""

    def compute() -> dict[str, Any]:
        started = perf_counter()
        whole = truth(System.of(case.model))
        starts = {run.start: [run.rate_rps, run.se, run.evictions_per_request] for run in whole.starts}
        return {
            "rate": whole.rate_rps,
            "se": whole.se,
            "start": whole.start,
            "settled": whole.settled,
            "starts": starts,
            "seconds": round(perf_counter() - started, 2),
        }

    return truths.get(f"verdict:{case.name}:{case.digest}", compute)


def rows(cases: Iterable[Case], truths: Truths) -> Iterator[Row]:
    """Judge each."""
    for case in cases:
        at = known(case, truths)
        said, sustainable = product.recovers_up_to_rps(case.model), product.sustainable_rps(case.model)
        yield Row(case.name, said, sustainable, at["rate"], at["se"], at["start"], at["settled"])


def table(judged: list[Row]) -> str:
    """Counts, and the profiles that break a promise."""
    low, high = WITHIN
    inside = sum(low <= row.off <= high for row in judged)
    offs = sorted(row.off for row in judged)
    lines = [
        f"{len(judged)} profiles, truth not settled in {sum(not row.settled for row in judged)}",
        f"wrong stable       {sum(row.wrong_stable for row in judged)}",
        f"needless needs_cap {sum(row.needless_cap for row in judged)}",
        f"within {low:+.0%} … {high:+.0%}  {inside / len(judged):.1%}; "
        f"off by {offs[0]:+.2%} … {offs[-1]:+.2%}, {offs[len(offs) // 2]:+.2%} in the median",
    ]
    lines += [
        f"  {row.name:32} says {row.said:.5g}, true {row.true:.5g} ± {row.se:.2g} ({row.start}), "
        f"sustainable {row.sustainable:.5g}: {row.off:+.2%}"
        for row in judged
        if row.wrong_stable or row.needless_cap or not low <= row.off <= high
    ]
    return "\n".join(lines)


def broken(judged: list[Row]) -> bool:
    """Whether a promise is."""
    low, high = WITHIN
    inside = sum(low <= row.off <= high for row in judged)
    needless = sum(row.needless_cap for row in judged)
    return (
        any(row.wrong_stable for row in judged)
        or needless > 0.01 * len(judged)
        or inside < 0.95 * len(judged)
    )
