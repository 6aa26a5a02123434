"""Settings that are printed, tried by the oracle: what they serve, and what they cost."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from oracle import System, live, truth

from validation import product
from validation.profiles import Case
from validation.truths import Truths

MOST_LOST = 0.01  # of what is served
_REQUESTS = 2_000_000
_NEAR = 0.25  # of the TTFT that is printed: p95 near saturation


@dataclass(frozen=True)
class Row:
    """One profile: each advice with what it changes, relative, and TTFT p95 with it, as printed and true."""

    name: str
    said: product.Advice | None
    backlogged: float = 0.0
    offered: float = 0.0
    ttft_p95_s: float | None = None

    @property
    def loses(self) -> bool:
        """Throughput, more than allowed."""
        return min(self.backlogged, self.offered) < -MOST_LOST

    @property
    def cost_is_right(self) -> bool:
        """TTFT is printed where the queue does not grow, and near the truth."""
        if self.said is None or self.ttft_p95_s is None:
            return True
        printed = self.said.ttft_p95_s
        return printed is not None and abs(printed / self.ttft_p95_s - 1) <= _NEAR


def known(case: Case, settings: dict[str, float], truths: Truths) -> dict[str, Any]:
    """What settings serve: under a backlog, at the offered rate, and TTFT there."""

    def compute() -> dict[str, Any]:
        seats = settings.get("max_num_seqs")
        system = System.of(
            case.model,
            watermark=settings.get("watermark"),
            max_num_seqs=None if seats is None else int(seats),
        )
        served, seen = truth(system), live(system, requests=_REQUESTS)
        grows = served.rate_rps < 1.01 * system.rate_rps
        return {
            "backlogged": served.rate_rps,
            "offered": seen.completed / seen.seconds,
            "ttft_p95_s": None if grows else seen.figures["ttft_s.p95"],
        }

    return truths.get(f"advice:{case.name}:{case.digest}:{sorted(settings.items())}", compute)


def rows(cases: Iterable[Case], truths: Truths) -> Iterator[Row]:
    """Judge each advice; a profile without one is a row too."""
    for case in cases:
        advised = product.advice(product.without_cache(case.model))
        if not advised:
            yield Row(case.name, None)
        for said in advised:
            without, with_it = (known(case, settings, truths) for settings in ({}, said.settings))
            backlogged, offered = (with_it[key] / without[key] - 1 for key in ("backlogged", "offered"))
            yield Row(case.name, said, backlogged, offered, with_it["ttft_p95_s"])


def table(judged: list[Row]) -> str:
    """Every advice."""
    advised = [(row, row.said) for row in judged if row.said is not None]
    lines = [
        f"{len(advised)} settings for {len({row.name for row, _ in advised})} of "
        f"{len({row.name for row in judged})} profiles: {sum(row.loses for row, _ in advised)} lose throughput, "
        f"{sum(not row.cost_is_right for row, _ in advised)} cost another TTFT than printed"
    ]
    lines += [
        f"  {row.name:32} {said.settings}: backlogged {row.backlogged:+.1%} (said {said.gain_backlogged:+.1%}), "
        f"offered {row.offered:+.1%}, TTFT p95 {row.ttft_p95_s} s (said {said.ttft_p95_s})"
        for row, said in advised
    ]
    return "\n".join(lines)


def broken(judged: list[Row]) -> bool:
    """Whether a promise is."""
    return any(row.loses or not row.cost_is_right for row in judged)
