"""How requests arrive at a replica: with gaps of some law, or as they were recorded."""

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kvplan.model.arrays import FloatArray, IntArray


@dataclass(frozen=True, eq=False)
class Recorded:
    """Requests of a trace, in order of arrival.

    Attributes
    ----------
    arrival_s : ndarray, shape (n_requests,)
        Seconds from the first one on.
    input_tokens, decode_tokens : ndarray of int64, shape (n_requests,), tokens
    block_hashes
        Of each prompt the hashes of its blocks of `block_tokens`; None: nothing tells which prompts begin alike.
    """

    arrival_s: "FloatArray"
    input_tokens: "IntArray"
    decode_tokens: "IntArray"
    block_hashes: tuple[list[int], ...] | None = None
    block_tokens: int = 1

    @property
    def rate_rps(self) -> float | None:
        """Requests/s from the first to the last; None where all came at one time."""
        span = float(self.arrival_s[-1] - self.arrival_s[0])
        return (self.arrival_s.size - 1) / span if span > 0 else None


@dataclass(frozen=True, slots=True)
class ArrivalProcess:
    """What says when requests arrive, beside their rates.

    Attributes
    ----------
    cv
        Coefficient of variation of the gaps between all arrivals, which follow a gamma law; 1: Poisson.
    trace
        What simulations replay, faster or slower such that its mean rate is that of the model.
    share
        The part of the trace that a router sends here, each request at random.

    Examples
    --------
    Half of the arrivals of a regular stream, at random, are not regular:

    >>> round(ArrivalProcess(cv=0.0).split(2).cv ** 2, 9)
    0.5
    """

    cv: float = 1.0
    trace: Recorded | None = None
    share: float = 1.0

    @property
    def is_poisson(self) -> bool:
        """Whether arrivals are independent of each other."""
        return self.cv == 1 and self.trace is None

    def split(self, parts: float) -> "ArrivalProcess":
        """What one of so many replicas sees to which a router sends requests at random.

        A gap is then the sum of a geometric number of gaps: cv² - 1 falls as the share does, exactly.
        """
        if self.is_poisson:
            return self
        return replace(self, cv=math.sqrt(1 + (self.cv**2 - 1) / parts), share=self.share / parts)
