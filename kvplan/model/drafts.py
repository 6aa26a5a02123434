"""Speculative decoding: how many tokens an iteration emits, and how long requests stay (theory §11).

Of k drafts the i-th is accepted with probability r_i, and only after those before it; with the token that the model
adds itself an iteration emits G tokens, P(G ≥ 1 + i) = r_i. The iteration of the prompt emits one. What is emitted
until a request is done is a renewal process, so that a fixed length becomes a random number of iterations.
"""

from dataclasses import dataclass, replace
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from kvplan.model.arrays import FloatArray, IntArray
from kvplan.model.timing import Timing

_NEVER = 1e-13  # what is as good as no chance


@dataclass(frozen=True, slots=True)
class Drafts:
    """Drafts of an iteration, and what they cost.

    Attributes
    ----------
    tokens
        Drafts of an iteration, k.
    accepted
        r_1 ≥ r_2 ≥ …, of at least so many.
    draft_s, verify_s, overhead_s
        Seconds of a draft, of verifying one draft of one sequence, and of drafting whatever the number.
    lookahead
        Whether a request holds a slot more for each draft, as with EAGLE, MTP and draft models; n-grams need none.

    Examples
    --------
    >>> drafts = Drafts(3, (0.7, 0.49, 0.343))
    >>> round(drafts.mean, 3), round(drafts.variance, 4), drafts.slots
    (2.533, 1.5349, 6)
    """

    tokens: int
    accepted: tuple[float, ...]
    draft_s: float = 0.0
    verify_s: float = 0.0
    overhead_s: float = 0.0
    lookahead: bool = True

    @property
    def _used(self) -> tuple[float, ...]:
        return self.accepted[: self.tokens]

    @property
    def mean(self) -> float:
        """Tokens that an iteration emits on average, Ḡ."""
        return 1 + sum(self._used)

    @property
    def variance(self) -> float:
        """Of the tokens that an iteration emits."""
        squares = sum((2 * i - 1) * r for i, r in enumerate(self._used, 1))
        return squares - sum(self._used) ** 2

    @property
    def slots(self) -> int:
        """Tokens that a request holds in an iteration beyond those that it has: drafts, and as many ahead."""
        return self.tokens * (2 if self.lookahead else 1)

    @property
    def emitted(self) -> FloatArray:
        """P(G = 1), P(G = 2), …, shape (k + 1,)."""
        reached = np.array([1.0, *self._used, 0.0])
        return np.asarray(reached[:-1] - reached[1:])

    @property
    def fixed_s(self) -> float:
        """What drafting costs an iteration, whatever runs."""
        return self.overhead_s + self.tokens * self.draft_s if self.tokens else 0.0

    def slowed(self, timing: Timing) -> Timing:
        """The law with what drafts cost; a sequence in the iteration of its prompt has none (`verified`)."""
        return replace(timing, d0=timing.d0 + self.fixed_s, d3=timing.d3 + self.tokens * self.verify_s)

    def unslowed(self, timing: Timing) -> Timing:
        """The law without that."""
        d3 = max(timing.d3 - self.tokens * self.verify_s, 0.0)
        return replace(timing, d0=timing.d0 - self.fixed_s, d3=d3)

    def verified(self, stages: FloatArray, slowed: Timing) -> FloatArray:
        """Sequence-iterations that cost so much time by the slowed law: the iteration of a prompt verifies nothing."""
        verifying = self.tokens * self.verify_s
        return stages - verifying / slowed.d3 if verifying > 0 else stages


class Stays(NamedTuple):
    """How long requests of one decode length stay, and how far they are meanwhile.

    Attributes
    ----------
    stages, share : ndarray, shape (n_lengths,)
        Iterations, the first with the prompt, and how often.
    begin : ndarray of int64, shape (most stages,)
        Tokens emitted before each iteration: the least that is possible, but for no chance.
    emitted : tuple of ndarray
        Chances of as many, of one more, … of those that are still there; they sum to 1.
    """

    stages: IntArray
    share: FloatArray
    begin: IntArray
    emitted: tuple[FloatArray, ...]

    @property
    def most_emitted(self) -> int:
        """Before any iteration."""
        return max(int(b) + p.size for b, p in zip(self.begin, self.emitted, strict=True)) - 1

    def mean_of(self, amounts: FloatArray) -> FloatArray:
        """Mean in each iteration of amounts by tokens emitted before it, shape (most stages,)."""
        return np.array([p @ amounts[b : b + p.size] for b, p in zip(self.begin, self.emitted, strict=True)])


@lru_cache(maxsize=64)
def stays(drafts: Drafts, decode_tokens: int) -> Stays:
    """The renewal process of one decode length, by convolution (theory §11; new).

    Examples
    --------
    A draft that is always accepted: after the prompt's iteration two tokens at a time.

    >>> found = stays(Drafts(1, (1.0,)), 6)
    >>> found.stages.tolist(), found.share.tolist(), found.begin.tolist()
    ([4], [1.0], [0, 1, 3, 5])
    """
    most, pmf = decode_tokens, drafts.emitted
    begin, emitted, alive = [0], [np.ones(1)], [1.0]
    start, there = 1, np.ones(1 if most > 1 else 0)
    while there.size:
        total = float(there.sum())
        begin.append(start)
        emitted.append(there / total)
        alive.append(total)
        later = np.convolve(there, pmf)[: most - start - 1]
        kept = np.flatnonzero(later > _NEVER)
        if not kept.size:
            break
        start += 1 + int(kept[0])
        there = later[kept[0] : kept[-1] + 1]
    chance = np.array(alive) - np.array([*alive[1:], 0.0])
    some = np.flatnonzero(chance > 0)
    return Stays(some + 1, chance[some] / chance[some].sum(), np.array(begin), tuple(emitted))
