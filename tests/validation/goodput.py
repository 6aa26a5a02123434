"""Searches for the largest rate within an objective, against the rate at which the oracle's figure meets the limit."""

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from statistics import median
from typing import Any

import numpy as np
from oracle import System, live
from scipy.optimize import brentq

from validation import product, verdict
from validation.profiles import Case
from validation.truths import Truths

REQUESTS = 600_000
PRECISE = 0.002  # of the rate
SEARCHES = 3  # of each profile
INSIDE, ERROR = 0.9, 0.01  # the share of brackets that hold the truth, and the median error
KEYS = (
    "ttft_s.mean", "ttft_s.p90", "ttft_s.p95", "ttft_s.p99", "tpot_s.mean", "tpot_s.p95", "tpot_s.p99",
    "itl_s.mean", "itl_s.p95", "itl_s.p99", "e2e_s.mean", "e2e_s.p95",
)  # fmt: skip


@dataclass(frozen=True)
class Row:
    """One search: what is said, and the true rate."""

    name: str
    objective: str
    said: product.Goodput
    true: float

    @property
    def inside(self) -> bool:
        """The truth is in the bracket."""
        high = math.inf if self.said.high is None else self.said.high
        return self.said.low <= self.true <= high

    @property
    def off(self) -> float:
        """Relative to the truth."""
        return self.said.rate_rps / self.true - 1


def known(case: Case, search: int, truths: Truths) -> dict[str, Any]:
    """An objective that a part of the recovered rate meets, and the rate at which it is met exactly."""
    served = verdict.known(case, truths)["rate"]

    def compute() -> dict[str, Any]:
        rng = np.random.default_rng([int(case.digest, 16), search])
        system, key = System.of(case.model), str(rng.choice(KEYS))
        near = float(rng.uniform(0.5, 0.92)) * served
        limit = float(f"{live(system, rate_rps=near, requests=100_000, seed=1).figures[key]:.3g}")

        def excess(log_rate: float) -> float:
            seen = live(system, rate_rps=math.exp(log_rate), requests=REQUESTS, seed=2)
            return math.log(seen.figures[key] / limit)

        low, high = math.log(0.93 * near), math.log(1.07 * near)
        while excess(low) > 0:
            low -= 0.1
        while excess(high) < 0:
            high += 0.1
        rate = math.exp(brentq(excess, low, high, xtol=PRECISE))
        return {"key": key, "limit_s": limit, "rate": rate}

    return truths.get(f"goodput:{case.name}:{case.digest}:{search}", compute)


def rows(cases: Iterable[Case], truths: Truths) -> Iterator[Row]:
    """Judge searches on each."""
    for case in cases:
        for search in range(SEARCHES):
            truth = known(case, search, truths)
            said = product.goodput(product.without_cache(case.model), truth["key"], truth["limit_s"])
            yield Row(case.name, f"{truth['key']} <= {truth['limit_s']} s", said, truth["rate"])


def table(judged: list[Row]) -> str:
    """Brackets that hold the truth, errors, and the searches that miss it."""
    errors = [abs(row.off) for row in judged]
    lines = [
        f"{sum(row.inside for row in judged)} of {len(judged)} brackets hold the truth; "
        f"error {median(errors):.2%} in the median, {max(errors):.2%} at most"
    ]
    lines += [
        f"  {row.name:32} {row.objective:24} says {row.said.rate_rps:.4g} [{row.said.low:.4g}, {row.said.high}], "
        f"true {row.true:.4g}: {row.off:+.2%}"
        for row in judged
        if not row.inside or abs(row.off) > 3 * ERROR
    ]
    return "\n".join(lines)


def broken(judged: list[Row]) -> bool:
    """Whether a promise is."""
    held = sum(row.inside for row in judged)
    return held < INSIDE * len(judged) or median(abs(row.off) for row in judged) > ERROR
