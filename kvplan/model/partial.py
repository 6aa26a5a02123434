"""Prompts longer than the token budget: what a request has a seat and memory for before its last part is computed."""

from dataclasses import dataclass

import numpy as np

from kvplan.model.arrays import FloatArray, IntArray
from kvplan.model.replica import Replica
from kvplan.model.weights import Prefill


@dataclass(frozen=True)
class PartialPrompts:
    """Iterations that compute a part of a prompt and not its end, by row; c = ⌈s/T_b⌉ - 1, T_b the token budget."""

    iterations: IntArray  # (n_rows,), c; 0 where the budget takes the prompt whole
    held_by_part: FloatArray  # (most iterations,), tokens of a request with 1, 2, … full budgets computed ...
    read_by_part: FloatArray  # ... and its context, alike for all rows

    @property
    def exist(self) -> bool:
        return bool(self.held_by_part.size)

    @property
    def held(self) -> FloatArray:
        """Memory, KV token-iterations."""
        return self.until(self.held_by_part, self.iterations)

    @property
    def held_squares(self) -> FloatArray:
        """Sum of squares of the memory held in each of them."""
        return self.until(self.held_by_part**2, self.iterations)

    @property
    def read(self) -> FloatArray:
        """Context, KV token-iterations."""
        return self.until(self.read_by_part, self.iterations)

    def present(self, amount: FloatArray) -> FloatArray:
        """`amount` of the rows that go on after each part, summed; shape (most iterations,)."""
        leaving = np.bincount(self.iterations, amount, self.held_by_part.size + 1)
        return np.asarray(np.cumsum(leaving[:0:-1])[::-1])

    @staticmethod
    def until(by_part: FloatArray, iterations: IntArray) -> FloatArray:
        """Sum over so many of the first of them."""
        return np.append(0.0, np.cumsum(by_part))[iterations]


def partial_prompts(replica: Replica, input_tokens: IntArray) -> PartialPrompts:
    """Lay out the parts of prompts of these lengths, `fused` and longer than the token budget.

    An engine computes prompts one after the other, so that at most one is in progress at a time, and those that wait
    hold nothing. On average as many requests are in progress as if all were computed side by side: each is for c
    iterations, and by Little's law only that counts.

    So many iterations are n + c, and KV token-iterations S + T_b·c(c + 1)/2, in whole pages, of n and S (new).
    """
    budget, layout = replica.of_rank().max_num_batched_tokens, replica.layout
    if budget is None or replica.prefill is not Prefill.FUSED:
        return no_partial_prompts(input_tokens)
    iterations = np.maximum(-(-input_tokens // budget) - 1, 0)
    computed = budget * np.arange(1, int(iterations.max()) + 1)
    if layout is None:
        held, read = replica.held_first(computed), computed
        return PartialPrompts(iterations, held.astype(np.float64), read.astype(np.float64))
    in_pool = layout.pool_tokens(computed - budget, computed).astype(np.float64)
    return PartialPrompts(iterations, in_pool, layout.read_tokens(computed.astype(np.float64)))


def no_partial_prompts(input_tokens: IntArray) -> PartialPrompts:
    """Lay out prompts that are all computed whole."""
    none = np.zeros(0)
    return PartialPrompts(np.zeros(input_tokens.shape, dtype=np.int64), none, none)
