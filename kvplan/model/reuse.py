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
    """What later requests of a class ask for again of what a request leaves in the cache.

    Attributes
    ----------
    tokens
        Leading tokens that are asked for: a count if whole, else a share of what is left in full pages.
    share
        Probability that a later request asks.
    gap
        How long after the request completed, or after it arrived.
    from_arrival
        Think times run from a completion: whoever answers waits for it. Gaps between arrivals do not wait.
    """

    tokens: int | float
    share: float
    gap: Gap
    from_arrival: bool = False
