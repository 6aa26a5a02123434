"""Speculative decoding: how many tokens an iteration emits, and how long requests stay (theory §11).

Of k drafts the i-th is accepted with probability r_i, and only after those before it; with the token that the model
adds itself an iteration emits G tokens, P(G ≥ 1 + i) = r_i. The iteration of the prompt emits one. What is emitted
until a request is done is a renewal process, so that a fixed length becomes a random number of iterations.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
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
    """How long requests of several decode lengths stay, and what they are meanwhile.

    Attributes
    ----------
    stages, share : tuples of ndarray, each of shape (n_stays,)
        Of each length: iterations, the first with the prompt, and how often.
    means : tuple of ndarray, each of shape (n_lengths, most stages)
        Of each of some amounts: the mean in each iteration, of those still there; after the last its own.
    """

    stages: tuple[IntArray, ...]
    share: tuple[FloatArray, ...]
    means: tuple[FloatArray, ...]


def stays(drafts: Drafts, decode_tokens: IntArray, kind: IntArray, amounts: Sequence[FloatArray]) -> Stays:
    """The renewal process of decode lengths, by convolution (theory §11; new).

    Until a request is done, what it has emitted does not depend on its length: one convolution serves all of them.

    Parameters
    ----------
    decode_tokens, kind : ndarray of int64, shape (n_lengths,)
    amounts : ndarrays, each of shape (n_kinds, longest)
        Of each kind by tokens emitted before an iteration.

    Examples
    --------
    A draft that is always accepted: after the prompt's iteration two tokens at a time.

    >>> found = stays(Drafts(1, (1.0,)), np.array([6]), np.array([0]), [np.arange(6.0)[None]])
    >>> found.stages[0].tolist(), found.share[0].tolist(), found.means[0].tolist()
    ([4], [1.0], [[0.0, 1.0, 3.0, 5.0]])
    """
    rows = np.concatenate([np.ones((1, int(decode_tokens.max()))), *amounts])
    row = np.stack([np.zeros_like(kind), *(kind + 1 + i * len(a) for i, a in enumerate(amounts))])
    sums = []
    for begin, chances in _emitted(drafts, rows.shape[1]):
        last = decode_tokens - 1 - begin  # of the chances, that of whoever is not done
        below = np.cumsum(rows[:, begin : begin + chances.size] * chances, axis=1)
        sums.append(np.where(last >= 0, below[row, last.clip(0, chances.size - 1)], 0.0))
    alive, *totals = np.stack(sums, axis=2)
    chance = alive - np.pad(alive[:, 1:], ((0, 0), (0, 1)))
    some = [np.flatnonzero(one > _NEVER) for one in chance]
    at = np.minimum(np.arange(alive.shape[1]), np.count_nonzero(alive, axis=1)[:, None] - 1)
    alive = np.take_along_axis(alive, at, 1)
    return Stays(
        tuple(n + 1 for n in some),
        tuple(one[n] / one[n].sum() for one, n in zip(chance, some, strict=True)),
        tuple(np.take_along_axis(total, at, 1) / alive for total in totals),
    )


def _emitted(drafts: Drafts, most: int) -> Iterator[tuple[int, FloatArray]]:
    """Before each iteration: the fewest tokens that can be emitted, and the chances of as many, of one more, ….

    Only those below `most`, but for no chance.
    """
    yield 0, np.ones(1)
    pmf = drafts.emitted
    start, there = 1, np.ones(1 if most > 1 else 0)
    while there.size:
        yield start, there
        later = np.convolve(there, pmf)[: most - start - 1]
        kept = np.flatnonzero(later > _NEVER)
        if not kept.size:
            return
        start += 1 + int(kept[0])
        there = later[kept[0] : kept[-1] + 1]
