"""Weights of requests: the one place that knows how many tokens they have at each stage (theory §1, §2).

A request of input length s and decode length d is at stage k = 0 .. n-1 for one iteration each. The prefill convention
fixes its tokens a at stage 0 and its stages n; every further stage adds a token:

=================  =====  =====  ===============================================
convention         a      n      prefill
=================  =====  =====  ===============================================
``disaggregated``  s + 1  d      arrives ready-made
``inline``         s      d + 1  an iteration of its own, which emits nothing
``fused``          s + 1  d      in the iteration that emits the first token
=================  =====  =====  ===============================================

Two weights follow, and differ: the context *read*, which costs time, and the memory *held*, which pages round up.
Everything downstream uses only those, so `inline` (s, d) and `disaggregated` (s-1, d+1) are one system.
"""

from collections.abc import Iterator
from dataclasses import dataclass, fields
from enum import StrEnum
from functools import cached_property

import numpy as np

from kvplan.model.arrays import FloatArray, IntArray, sum_by, survival
from kvplan.model.timing import attention_pairs


class Prefill(StrEnum):
    """Where a prompt's KV comes from (theory §1)."""

    FUSED = "fused"
    INLINE = "inline"
    DISAGGREGATED = "disaggregated"


def first_tokens(prefill: Prefill, input_tokens: IntArray) -> IntArray:
    """Tokens a of a request at stage 0."""
    return input_tokens if prefill is Prefill.INLINE else input_tokens + 1


def stage_count(prefill: Prefill, decode_tokens: IntArray) -> IntArray:
    """Stages n of a request."""
    return decode_tokens + 1 if prefill is Prefill.INLINE else decode_tokens


def prompt_stages(prefill: Prefill) -> int:
    """Stages before the first that emits a token."""
    return 1 if prefill is Prefill.INLINE else 0


def prefill_work(prefill: Prefill, input_tokens: IntArray) -> FloatArray:
    """Prompt tokens computed for a fresh request: none where they arrive ready-made."""
    ready_made = prefill is Prefill.DISAGGREGATED
    return np.zeros(input_tokens.shape) if ready_made else input_tokens.astype(np.float64)


def prefill_pairs(prefill: Prefill, input_tokens: IntArray, variance: FloatArray) -> FloatArray:
    """Pairs of prompt tokens with their context, computed for a fresh request; in the mean, where lengths vary."""
    tokens = prefill_work(prefill, input_tokens)
    return attention_pairs(tokens) + np.where(tokens > 0, variance, 0.0) / 2


def computed_tokens(prefill: Prefill, input_tokens: IntArray, stages: IntArray, drafts: int = 0) -> IntArray:
    """All tokens computed for a fresh request, `drafts` more in each stage but the first.

    The iteration that ends a prefill computes none beyond the prompt, and one where there is no prompt.
    """
    prompt = 0 if prefill is Prefill.DISAGGREGATED else np.maximum(input_tokens - 1, 0)
    return np.asarray(prompt + stages + (stages - 1) * drafts)


class _ByValue:
    """Weights that are equal where their arrays are, so that what follows from them can be looked up."""

    @cached_property
    def _key(self) -> tuple[object, ...]:
        values = (getattr(self, field.name) for field in fields(self))  # type: ignore[arg-type]
        return tuple((v.shape, v.tobytes()) if isinstance(v, np.ndarray) else v for v in values)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _ByValue) and type(self) is type(other) and self._key == other._key

    def __hash__(self) -> int:
        return hash(self._key)


@dataclass(frozen=True, eq=False)
class Weights(_ByValue):
    """Tokens of a request at each of its stages, ``first + k`` at stage k in whole pages; one request a row.

    Arrays have shape (n_rows,), or (n_models, n_rows) for many models side by side; `lattice_tokens`, `by_stage`,
    `by_pages` and `survival` are for one model only.

    Examples
    --------
    >>> held = Weights(np.array([5.0]), np.array([3]), block_tokens=3)  # 6, 6, 9
    >>> held.at_start.tolist(), held.at_end.tolist(), held.footprint.tolist(), held.squares.tolist()
    ([6.0], [9.0], [21.0], [153.0])
    >>> held.by_pages(np.array([0.5])).tolist(), held.survival(np.array([0.5])).tolist()
    ([0.0, 0.0, 1.0, 0.5], [3.0, 3.0, 4.5])
    """

    first: FloatArray  # at stage 0, before it is rounded up to pages
    stages: IntArray
    block_tokens: float | FloatArray = 1.0  # of a page; 1 where tokens are counted as they are

    @cached_property
    def at_start(self) -> FloatArray:
        return _rounded_up(self.first, self.block_tokens)

    @cached_property
    def at_end(self) -> FloatArray:
        return _rounded_up(self.first + self.stages - 1, self.block_tokens)

    @property
    def largest(self) -> FloatArray:
        return self.at_end

    @property
    def grows(self) -> bool:
        """Tell whether some request ever weighs more than at the stage before."""
        return bool((self.at_end > self.at_start).any())

    @property
    def falls(self) -> bool:
        """Tell whether some request ever weighs less than at the stage before."""
        return False

    @property
    def drops(self) -> IntArray:
        """Stages at which some request has gone that was there at the one before, or weighs less."""
        return np.unique(self.stages)

    @property
    def kind(self) -> FloatArray:
        """Number that is the same for requests that weigh the same at each stage; shape (n_rows,)."""
        return self.first

    def of(self, kind: FloatArray, stages: IntArray) -> "Weights":
        """Weights of requests of these kinds that stay so long."""
        return Weights(kind, stages, self.block_tokens)

    def by_stage(self) -> Iterator[FloatArray]:
        """Weights of each row at its stages, of shape (stages,)."""
        for first, n in zip(self.first, self.stages, strict=True):
            yield _rounded_up(first + np.arange(n), self.block_tokens)

    @cached_property
    def _pages(self) -> tuple[FloatArray, FloatArray, FloatArray, FloatArray]:
        """Pages p at stage 0, stages spent with them, how many further pages are filled, stages with the last one."""
        p = self.at_start / self.block_tokens
        n = self.stages.astype(np.float64)
        on_first = np.minimum(self.at_start - self.first + 1, n)
        filled = (n - on_first) // self.block_tokens
        return p, on_first, filled, n - on_first - filled * self.block_tokens

    @cached_property
    def footprint(self) -> FloatArray:
        """Token-iterations, the sum over all stages: S in theory §1, exact with pages (§2)."""
        p, on_first, m, rest = self._pages
        b = self.block_tokens
        return b * (on_first * p + b * (m * p + m * (m + 1) / 2) + rest * (p + m + 1))

    @cached_property
    def squares(self) -> FloatArray:
        p, on_first, m, rest = self._pages
        filled = m * p**2 + p * m * (m + 1) + m * (m + 1) * (2 * m + 1) / 6
        return self.block_tokens**2 * (on_first * p**2 + self.block_tokens * filled + rest * (p + m + 1) ** 2)

    @property
    def lattice_tokens(self) -> float:
        """Largest number of tokens that every weight of every row is a multiple of.

        >>> Weights(np.array([17.0, 49.0]), np.array([16, 16]), block_tokens=16).lattice_tokens  # 32 and 64
        32.0
        """
        pages = np.concatenate([self.at_start, self.at_end]) / self.block_tokens
        # a request that takes a page after its first has both p and p + 1 of them, which share no divisor
        common = 1 if (self.at_end > self.at_start).any() else np.gcd.reduce(pages.astype(np.int64))
        return float(self.block_tokens * common)

    def by_pages(self, amount: FloatArray) -> FloatArray:
        """`amount` of each row times its stages with p pages, summed over rows; shape (most pages + 1,)."""
        p, on_first, filled, rest = self._pages
        start, end = p.astype(np.int64), (p + filled).astype(np.int64) + 1
        size = int(self.at_end.max() / self.block_tokens) + 3
        on_full = np.cumsum(np.bincount(start + 1, amount, size) - np.bincount(end, amount, size))
        at_ends = np.bincount(start, amount * on_first, size) + np.bincount(end, amount * rest, size)
        return np.maximum(at_ends + self.block_tokens * on_full, 0.0)[:-2]

    def survival(self, share: FloatArray) -> FloatArray:
        """Tokens that one unit of admissions holds at each stage, W_k = Σ_{n_i > k} p_i·w_i(k); shape (max(stages),).

        References
        ----------
        SIC eq. 9; for empirical length distributions new, theory §3 ("Traces"); pages new, theory §2.
        """
        over = self.first % self.block_tokens  # on a page that is not full, alike for rows of one input
        weights = survival(self.stages, share * (self.first - over))
        stage = np.arange(weights.size)
        for alike in np.unique(over):
            present = survival(self.stages, np.where(over == alike, share, 0.0))
            weights += present * _rounded_up(alike + stage, self.block_tokens)
        return weights


@dataclass(frozen=True, eq=False)
class TabledWeights(_ByValue):
    """Tokens of a request at its stages where no formula says it, with the attributes of `Weights`.

    Examples
    --------
    >>> held = TabledWeights(np.array([[4.0, 2.0, 3.0]]), np.array([0, 0]), np.array([2, 3]))
    >>> held.at_end.tolist(), held.largest.tolist(), held.footprint.tolist(), held.squares.tolist()
    ([2.0, 3.0], [4.0, 4.0], [6.0, 9.0], [20.0, 29.0])
    >>> held.survival(np.array([0.5, 0.5])).tolist(), held.drops.tolist()
    ([4.0, 2.0, 1.5], [1, 2, 3])
    """

    table: FloatArray  # (n_kinds, most stages)
    kind: IntArray  # (n_rows,), which row of the table
    stages: IntArray
    block_tokens: float = 1.0  # that all weights are multiples of

    def _until_the_end(self, table: FloatArray) -> FloatArray:
        return np.asarray(table[self.kind, self.stages - 1])

    @cached_property
    def at_start(self) -> FloatArray:
        return np.asarray(self.table[self.kind, 0])

    @cached_property
    def at_end(self) -> FloatArray:
        return self._until_the_end(self.table)

    @cached_property
    def largest(self) -> FloatArray:
        return self._until_the_end(np.maximum.accumulate(self.table, axis=1))

    @cached_property
    def footprint(self) -> FloatArray:
        return self._until_the_end(np.cumsum(self.table, axis=1))

    @cached_property
    def squares(self) -> FloatArray:
        return self._until_the_end(np.cumsum(self.table**2, axis=1))

    @property
    def grows(self) -> bool:
        return any(bool((np.diff(row) > 0).any()) for row in self._used())

    @property
    def falls(self) -> bool:
        return any(bool((np.diff(row) < 0).any()) for row in self._used())

    @property
    def drops(self) -> IntArray:
        falls = [np.flatnonzero(np.diff(row) < 0) + 1 for row in self._used()]
        return np.unique(np.concatenate([self.stages, *falls]))

    def of(self, kind: FloatArray | IntArray, stages: IntArray) -> "TabledWeights":
        return TabledWeights(self.table, kind.astype(np.int64), stages, self.block_tokens)

    def by_stage(self) -> Iterator[FloatArray]:
        for kind, n in zip(self.kind, self.stages, strict=True):
            yield self.table[kind, :n]

    def _used(self) -> Iterator[FloatArray]:
        """Weights of each kind at the stages that some request has."""
        most = np.zeros(len(self.table), dtype=np.int64)
        np.maximum.at(most, self.kind, self.stages)
        return (row[:n] for row, n in zip(self.table, most, strict=True))

    @property
    def lattice_tokens(self) -> float:
        blocks = np.concatenate(list(self._used())) / self.block_tokens
        return float(self.block_tokens * np.gcd.reduce(np.unique(blocks).astype(np.int64)))

    def by_pages(self, amount: FloatArray) -> FloatArray:
        pages = (self.table / self.block_tokens).astype(np.int64)
        present = self.present(amount)
        by_page = sum_by(pages[:, : present.shape[1]].ravel(), present.ravel())
        return by_page[: int(self.largest.max() / self.block_tokens) + 1]  # beyond, nobody is there

    def survival(self, share: FloatArray) -> FloatArray:
        present = self.present(share)
        return np.asarray((present * self.table[:, : present.shape[1]]).sum(axis=0))

    def present(self, amount: FloatArray) -> FloatArray:
        """`amount` of each row that is still there at each stage, by kind; shape (n_kinds, most stages)."""
        shape = len(self.table), int(self.stages.max())
        leaving = sum_by(self.kind * shape[1] + self.stages - 1, amount, shape[0] * shape[1]).reshape(shape)
        return np.asarray(np.cumsum(leaving[:, ::-1], axis=1)[:, ::-1])


StageWeights = Weights | TabledWeights


def _rounded_up(tokens: FloatArray, block_tokens: float | FloatArray) -> FloatArray:
    return np.asarray(np.ceil(tokens / block_tokens) * block_tokens)
