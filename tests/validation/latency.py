"""Figures of the operating point against runs of the oracle that are 20 times as long, caches off."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from oracle import System, live

from validation import product
from validation.profiles import Case
from validation.truths import Truths

FRACTIONS = (0.5, 0.7, 0.3, 0.1, 0.85, 0.95)  # of the sustainable rate
TIMES = ("ttft_s", "tpot_s", "itl_s", "e2e_s")
STEADY_UP_TO = 0.9  # of what the replica recovers to
COVERAGE, LEAST = (0.92, 0.99), 0.88  # pooled over latencies, and of each figure
MOST_UNSETTLED = 8  # profiles at the fraction .7
_BIN = 5e-4  # of the oracle's gaps
_LONGER, _FEWEST, _MOST = 20, 100_000, 4_000_000  # requests, as many times those that are judged


@dataclass(frozen=True)
class Row:
    """One profile at one fraction: what is said, and for each figure with an interval whether the truth is in it."""

    name: str
    fraction: float
    of_recovery: float
    said: product.Point
    truth: dict[str, Any]
    inside: dict[str, bool]

    @property
    def absent(self) -> list[str]:
        """Latencies without figure or interval."""
        if self.said.status == "growing":
            return []
        keys = [key for key in self.said.figures if key.split(".")[0] in TIMES]
        return [k for k in keys if self.said.figures[k] is None or self.said.intervals[k] is None]


def known(case: Case, rate_rps: float, judged: int, truths: Truths) -> dict[str, Any]:
    """The truth about a profile at a rate, from a run that is longer than one of so many requests that is judged."""
    requests = min(_MOST, max(_FEWEST, _LONGER * judged))

    def compute() -> dict[str, Any]:
        seen = live(System.of(case.model), rate_rps=rate_rps, requests=requests)
        over_time = {
            "preemptions_per_request": seen.preemptions_per_request,
            "running": seen.running,
            "waiting": seen.queued,
            "kv_tokens_mean": seen.kv_tokens,
            "throughput_rps": seen.completed / seen.seconds,
        }
        return {"figures": seen.figures | over_time, "halves": seen.halves, "requests": requests}

    key = f"latency:{case.name}:{case.digest}:{rate_rps:.6g}"
    return truths.get(key, compute, lambda record: bool(record["requests"] >= requests))


def rows(cases: Iterable[Case], truths: Truths) -> Iterator[Row]:
    """Judge each at each fraction, all at one before any at the next."""
    known_cases = [
        (case, product.sustainable_rps(case.model), product.recovers_up_to_rps(case.model)) for case in cases
    ]
    for fraction in FRACTIONS:
        for case, sustainable, recovers in known_cases:
            rate = float(f"{fraction * sustainable:.6g}")
            model = product.without_cache(product.at_rate(case.model, rate))
            said = product.operating_point(model)
            truth = known(case, rate, said.requests, truths) if said.status != "growing" else {"figures": {}}
            inside = {
                key: _holds(interval, truth["figures"][key])
                for key, interval in said.intervals.items()
                if interval is not None and key in truth["figures"]
            }
            yield Row(case.name, fraction, rate / recovers, said, truth, inside)


def _holds(interval: tuple[float, float | None], value: float) -> bool:
    low, high = interval
    return low * (1 - _BIN) <= value and (high is None or value <= high * (1 + _BIN))


def table(judged: list[Row]) -> str:
    """Statuses by fraction, coverage by figure."""
    lines = [f"{'fraction':>8} statuses"]
    for fraction in sorted({row.fraction for row in judged}):
        at = [row for row in judged if row.fraction == fraction]
        unsettled = sum(bool(row.said.unsettled) for row in at)
        statuses = dict(Counter(row.said.status for row in at))
        lines.append(f"{fraction:8} {statuses}, a figure not settled in {unsettled} of {len(at)}")
    lines += [
        f"  {row.name} at {row.fraction} ({row.of_recovery:.2f} of what it recovers to): {row.said.status}"
        for row in judged
        if _cries(row)
    ]
    lines += [f"  {row.name} at {row.fraction} lacks {', '.join(row.absent)}" for row in judged if row.absent]
    hits = coverage(judged)
    for key, inside in sorted(hits.items()):
        lines.append(f"{key:26} {sum(inside) / len(inside):6.1%} of {len(inside)}")
    pooled = _pooled(hits)
    lines.append(f"{'all latencies':26} {sum(pooled) / max(len(pooled), 1):6.1%} of {len(pooled)}")
    return "\n".join(lines)


def coverage(judged: list[Row]) -> dict[str, list[bool]]:
    """Of each figure, whether intervals hold the truth."""
    hits = defaultdict(list)
    for row in judged:
        for key, inside in row.inside.items():
            hits[key].append(inside)
    return dict(hits)


def broken(judged: list[Row]) -> bool:
    """Whether a promise is."""
    hits = coverage(judged)
    pooled = _pooled(hits)
    low, high = COVERAGE
    latencies = [inside for key, inside in hits.items() if key.split(".")[0] in TIMES]
    at = [row for row in judged if row.fraction == 0.7]
    return (
        any(_cries(row) or row.absent for row in judged)
        or not low <= sum(pooled) / max(len(pooled), 1) <= high
        or any(sum(inside) < LEAST * len(inside) for inside in latencies)
        or sum(bool(row.said.unsettled) for row in at) > MOST_UNSETTLED * len(at) / 42
    )


def _cries(row: Row) -> bool:
    return row.of_recovery <= STEADY_UP_TO and row.said.status in ("growing", "undecided")


def _pooled(hits: dict[str, list[bool]]) -> list[bool]:
    return [hit for key, inside in hits.items() if key.split(".")[0] in TIMES for hit in inside]
