"""Speculative decoding: how many tokens an iteration emits, and how long requests stay (theory §11).

Of k drafts the i-th is accepted with probability r_i, and only after those before it; with the token that the model
adds itself an iteration emits G tokens, P(G ≥ 1 + i) = r_i. The iteration of the prompt emits one. What is emitted
until a request is done is a renewal process, so that a fixed length becomes a random number of iterations.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from kvplan.model.arrays import FloatArray, IntArray
from kvplan.model.timing import Timing

_NEVER = 1e-13  # a chance to end that is as good as none
_NOWHERE = 1e-16  # to have emitted so many tokens: what is left out adds up over thousands of iterations


@dataclass(frozen=True, slots=True)
class Drafts:
    """Drafts of an iteration, and what they cost."""

    tokens: int  # k
    accepted: tuple[float, ...]  # r_1 ≥ r_2 ≥ …, of at least so many
    draft_s: float = 0.0  # of a draft ...
    verify_s: float = 0.0  # ... of verifying one draft of one sequence ...
    overhead_s: float = 0.0  # ... and of drafting whatever the number
    lookahead: bool = True  # a request holds a slot more for each draft, as with EAGLE, MTP and draft models

    @property
    def _used(self) -> tuple[float, ...]:
        return self.accepted[: self.tokens]

    @property
    def mean(self) -> float:
        """Tokens that an iteration emits on average, Ḡ."""
        return 1 + sum(self._used)

    @property
    def variance(self) -> float:
        """Variance of the tokens that an iteration emits."""
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
        """Seconds that drafting costs an iteration, whatever runs."""
        return self.overhead_s + self.tokens * self.draft_s if self.tokens else 0.0

    def of_ranks(self, ranks: int) -> "Drafts":
        """Turn the costs of one of several ranks that step together into those of all, as `Timing.of_ranks` does."""
        return replace(self, verify_s=self.verify_s / ranks)

    def slowed(self, timing: Timing) -> Timing:
        """Add what drafts cost to a law; a sequence in the iteration of its prompt has none (`verified`)."""
        return replace(timing, d0=timing.d0 + self.fixed_s, d3=timing.d3 + self.tokens * self.verify_s)

    def unslowed(self, timing: Timing) -> Timing:
        """Take that off a law."""
        d3 = max(timing.d3 - self.tokens * self.verify_s, 0.0)
        return replace(timing, d0=timing.d0 - self.fixed_s, d3=d3)

    def verified(self, stages: FloatArray, slowed: Timing) -> FloatArray:
        """Sequence-iterations that cost so much time by the slowed law: the iteration of a prompt verifies nothing."""
        verifying = self.tokens * self.verify_s
        return stages - verifying / slowed.d3 if verifying > 0 else stages


class Stays(NamedTuple):
    """How long requests stay, and amounts meanwhile."""

    stages: IntArray  # (n_stays,), iterations, the first with the prompt ...
    share: FloatArray  # ... and how often
    decode_tokens: FloatArray  # (n_stays,), mean decode length of those who stay so long
    means: FloatArray  # (n_amounts, most stages), of each amount in each iteration, over those still there


def stays(drafts: Drafts, lengths: Sequence[int], weights: Sequence[float], amounts: FloatArray) -> Stays:
    """Run the renewal process until a decode length, by convolution (theory §11; new).

    What is emitted does not depend on the length that ends it, so that all lengths have one process. `weights`, not
    normalised, say how often each length is; `amounts`, of shape (n_amounts, max(lengths)), go by tokens emitted before
    an iteration.

    Examples
    --------
    A draft that is always accepted: after the prompt's iteration two tokens at a time.

    >>> law = stays(Drafts(1, (1.0,)), (2, 6), (1.0, 3.0), np.arange(6.0)[None])
    >>> law.stages.tolist(), law.share.tolist(), law.decode_tokens.tolist(), law.means.tolist()
    ([2, 4], [0.25, 0.75], [2.0, 6.0], [[0.0, 1.0, 3.0, 5.0]])
    """
    most, pmf = max(lengths), drafts.emitted
    share = np.bincount(lengths, weights)[1:] / sum(weights)
    longer, tokens = np.stack([share, share * np.arange(1, most + 1)])[:, ::-1].cumsum(axis=1)[:, ::-1]
    there: list[tuple[float, float]] = []  # how many are, and the tokens of all of them in the end
    means: list[FloatArray] = []
    start, reached, step = 0, np.ones(1), np.ones(1)  # the iteration of the prompt emits a token
    while True:
        here = slice(start, start + reached.size)
        staying = reached * longer[here]
        kept = np.flatnonzero(staying > _NOWHERE)
        if not kept.size:
            break
        total = float(staying.sum())
        there.append((total, float(reached @ tokens[here])))
        means.append(amounts[:, here] @ (staying / total))
        start += int(kept[0]) + 1
        reached = np.convolve(reached[kept[0] : kept[-1] + 1], step)[: most - start]
        step = pmf
    ended = np.array(there)
    ended[:-1] -= ended[1:]
    some = np.flatnonzero(ended[:, 0] > _NEVER)
    chance, of_length = ended[some].T
    mean_length = np.clip(of_length / chance, min(lengths), most)
    return Stays(some + 1, chance / chance.sum(), mean_length, np.array(means[: some[-1] + 1]).T)
