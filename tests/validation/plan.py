"""Replicas that `kvplan plan` asks for, against the oracle: so many are enough, one less is not."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from oracle import System, live, talk

from validation import product
from validation.profiles import Case
from validation.truths import Truths

REQUESTS = 200_000
RARE = 1e-3  # evictions of a request, up to which it does not count that the evicted find their blocks again
MOST_LOAD = 0.985  # of what is sustainable, beyond which a size is not tried


@dataclass(frozen=True)
class Row:
    """A demand, what was planned, and what the oracle has objectives at: at the estimate and slower, and one less."""

    name: str
    said: product.Planned
    enough: dict[str, float]  # figures over limits; at most 1 each
    fewer: dict[str, float]  # the same of one replica less, slower; empty where that is too much load

    @property
    def confirmed(self) -> bool:
        """So many keep all objectives."""
        return all(ratio <= 1 for ratio in self.enough.values())

    @property
    def least(self) -> bool:
        """One less misses one, is open, or too much."""
        return (
            self.said.below in ("open", "none") or not self.fewer or any(r > 1 for r in self.fewer.values())
        )


def rows(_: Iterable[Case], truths: Truths) -> Iterator[Row]:
    """Judge the demands of `product.DEMANDS`."""
    for name, said in product.planned():
        enough: dict[str, float] = {}
        for slower in (False, True):
            enough |= {
                f"{key}{' slower' * slower}": ratio
                for key, ratio in _ratios(name, said, said.replicas, truths, slower=slower).items()
            }
        fewer = {}
        if said.replicas > 1 and said.load(said.replicas - 1) <= MOST_LOAD:
            fewer = _ratios(name, said, said.replicas - 1, truths, slower=True)
        yield Row(name, said, enough, fewer)


def _ratios(
    name: str, said: product.Planned, replicas: int, truths: Truths, *, slower: bool
) -> dict[str, float]:
    model = said.replica(replicas, slower=slower)

    def compute() -> dict[str, Any]:
        if not model.finds_prefixes:
            seen = live(System.of(model), requests=REQUESTS)
            if seen.preemptions_per_request < RARE:
                return {"figures": seen.figures}
        return {"figures": talk(model, requests=REQUESTS).figures}

    key = f"plan:{name}:{said.digest}:{replicas}:{slower}"
    figures = truths.get(key, compute)["figures"]
    return {key: figures[key] / limit for key, limit in said.limits.items()}


def table(judged: list[Row]) -> str:
    """A line for each demand."""
    lines = []
    for row in judged:
        verdict = f"{'enough' if row.confirmed else 'TOO FEW':8}{'least' if row.least else 'TOO MANY':9}"
        nearest = f"{max(row.enough.values(), default=0):6.3f} {max(row.fewer.values(), default=9):6.3f}"
        size = f"{row.said.replicas:3} x {row.said.kind[:24]:24}"
        lines.append(f"{row.name:28} {size} {verdict}{nearest} {row.said.seconds:5.1f} s")
    return "\n".join(lines)


def broken(judged: list[Row]) -> bool:
    """Whether a promise is."""
    return not all(row.confirmed and row.least for row in judged)
