"""What requests of a class share, and what of them is asked for again: what a prefix cache lives on (theory §8)."""

from dataclasses import dataclass

from kvplan.model.gaps import Gap


@dataclass(frozen=True, slots=True)
class SharedPrompt:
    """Leading tokens that a share `weight` of a class's requests have in common."""

    tokens: int
    weight: float = 1.0


@dataclass(frozen=True, slots=True)
class Reuse:
    """Part of what a request leaves in the cache that later requests of its class ask for again."""

    tokens: int | float  # leading ones: a count if whole, else a share of what is left in full pages
    share: float  # probability that a later request asks
    gap: Gap  # after the request completed, or after it arrived
    from_arrival: bool = False  # think times run from a completion; gaps between arrivals do not wait for it
