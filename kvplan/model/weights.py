"""What a request weighs: the one place that knows how many tokens it has at each of its stages (theory §1, §2).

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

from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property

import numpy as np

from kvplan.model.arrays import FloatArray, IntArray, survival


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


def computed_tokens(prefill: Prefill, input_tokens: IntArray, decode_tokens: IntArray) -> IntArray:
    """All tokens computed for a fresh request. The iteration that ends a prefill computes none beyond the prompt."""
    prompt = 0 if prefill is Prefill.DISAGGREGATED else np.maximum(input_tokens - 1, 0)
    return np.asarray(prompt + stage_count(prefill, decode_tokens))


def page_padding(block_tokens: float) -> float:
    """Tokens that pages hold beyond what a request uses, on average over its stages (theory §2).

    >>> page_padding(16)
    7.5
    """
    return (block_tokens - 1) / 2


@dataclass(frozen=True)
class Weights:
    """Tokens of a request at each of its stages, ``first + k + padding`` at stage k; one request a row.

    Arrays have shape (n_rows,), or (n_models, n_rows) for many models side by side.

    Attributes
    ----------
    first : ndarray, tokens
        At stage 0, padding left out.
    stages : ndarray of int64
    padding : float or ndarray, tokens
        Added at every stage.

    Examples
    --------
    >>> held = Weights(np.array([5.0]), np.array([3]), padding=0.5)
    >>> held.at_start.tolist(), held.footprint.tolist(), held.squares.tolist()
    ([5.5], [19.5], [128.75])
    """

    first: FloatArray
    stages: IntArray
    padding: float | FloatArray = 0.0

    @cached_property
    def at_start(self) -> FloatArray:
        """At stage 0."""
        return self.first + self.padding

    @cached_property
    def at_end(self) -> FloatArray:
        """At the last stage."""
        return self.at_start + self.stages.astype(np.float64) - 1

    @cached_property
    def footprint(self) -> FloatArray:
        """Token-iterations, the sum over all stages: S in theory §1."""
        n = self.stages.astype(np.float64)
        return n * self.first + n * (n - 1) / 2 + self.stages * self.padding

    @cached_property
    def squares(self) -> FloatArray:
        """Sum of squares over all stages."""
        n = self.stages.astype(np.float64)
        return n * (self.at_start * self.at_end + (n - 1) * (2 * n - 1) / 6)

    def survival(self, share: FloatArray) -> FloatArray:
        """Tokens that one unit of admissions holds at each stage, W_k = Σ_{n_i > k} p_i·w_i(k); shape (max(stages),).

        References
        ----------
        SIC eq. 9; for empirical length distributions new, theory §3 ("Traces").
        """
        return survival_weights(self.stages, self.at_start, share)


def survival_weights(stages: IntArray, first_weight: FloatArray, share: FloatArray) -> FloatArray:
    """The same from arrays of shape (n_rows,): stages n_i, tokens at stage 0, and shares p_i.

    Examples
    --------
    >>> survival_weights(np.array([2, 3]), np.array([2.0, 2.0]), np.array([0.5, 0.5])).tolist()
    [2.0, 3.0, 2.0]
    """
    present = survival(stages, share)
    return survival(stages, share * first_weight) + present * np.arange(present.size)
