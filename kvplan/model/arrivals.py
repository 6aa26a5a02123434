"""How requests arrive at a replica: with gaps of some law, or as they were recorded."""

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from kvplan.errors import UsageError

if TYPE_CHECKING:
    from kvplan.model.arrays import FloatArray, IntArray


@dataclass(frozen=True, eq=False)
class Recorded:
    """Requests of a trace, in order of arrival; arrays of shape (n_requests,)."""

    arrival_s: "FloatArray"  # from the first one on
    input_tokens: "IntArray"
    decode_tokens: "IntArray"
    # of each prompt the hashes of its blocks of `block_tokens`; None: nothing tells which prompts begin alike
    block_hashes: tuple[list[int], ...] | None = None
    block_tokens: int = 1

    @property
    def rate_rps(self) -> float | None:
        """Requests/s from the first to the last; None where all came at one time."""
        span = float(self.arrival_s[-1] - self.arrival_s[0])
        return (self.arrival_s.size - 1) / span if span > 0 else None

    def within(self, most: int | None) -> "Recorded":
        """Leave out requests of more tokens, prompt and answer together."""
        tokens, hashes = self.input_tokens + self.decode_tokens, self.block_hashes
        if most is None or tokens.max() <= most:
            return self
        if not (kept := (tokens <= most).nonzero()[0]).size:
            raise UsageError(f"all requests of the trace are longer than max_model_len, {most:,} tokens")
        of_kept = None if hashes is None else tuple(hashes[i] for i in kept.tolist())
        arrival, inputs, decode = self.arrival_s[kept], self.input_tokens[kept], self.decode_tokens[kept]
        return Recorded(arrival - arrival[0], inputs, decode, of_kept, self.block_tokens)


@dataclass(frozen=True, slots=True)
class ArrivalProcess:
    """Gaps between arrivals, beside their rates."""

    cv: float = 1.0  # coefficient of variation of the gaps between all arrivals, of a gamma law; 1: Poisson
    trace: Recorded | None = None  # that simulations replay, at the mean rate of the model
    share: float = 1.0  # part of the trace that a router sends here, each request at random

    @property
    def is_poisson(self) -> bool:
        """Tell whether arrivals are independent of each other."""
        return self.cv == 1 and self.trace is None

    def split(self, parts: float) -> "ArrivalProcess":
        """Thin arrivals to those of one of so many replicas to which a router sends requests at random.

        A gap is then the sum of a geometric number of gaps: cv² - 1 falls as the share does, exactly.
        """
        if self.is_poisson:
            return self
        return replace(self, cv=math.sqrt(1 + (self.cv**2 - 1) / parts), share=self.share / parts)
