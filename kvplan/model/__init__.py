"""The serving model: request classes, one replica, its iteration time, and the stage weights they imply.

A request of a class with input length s and decode length d holds ``a + k`` KV tokens at its stage k,
for the n stages k = 0 .. n-1 that it stays. The prefill convention fixes a and n:

=================  =====  =====  ===============================================
convention         a      n      prefill
=================  =====  =====  ===============================================
``disaggregated``  s + 1  d      arrives ready-made
``inline``         s      d + 1  an iteration of its own, which emits nothing
``fused``          s + 1  d      in the iteration that emits the first token
=================  =====  =====  ===============================================

Everything downstream uses only (a, n, rate), so `inline` (s, d) and `disaggregated` (s-1, d+1) are one system.
"""

import math
from dataclasses import dataclass
from enum import StrEnum
from fractions import Fraction
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from kvplan.model.schedule import Schedule

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]


class Prefill(StrEnum):
    """Where a prompt's KV comes from (theory §1)."""

    FUSED = "fused"
    INLINE = "inline"
    DISAGGREGATED = "disaggregated"


@dataclass(frozen=True, slots=True)
class RequestClass:
    """One class of requests.

    Attributes
    ----------
    name : str
    input_tokens : int
        Prompt length s, tokens.
    decode_tokens : tuple of int
        Distinct decode lengths d, tokens, ascending.
    decode_weights : tuple of float
        Weight of each length as written in the profile; not normalised.
    rate_rps : float
        Arrival rate λ, requests per second.
    """

    name: str
    input_tokens: int
    decode_tokens: tuple[int, ...]
    decode_weights: tuple[float, ...]
    rate_rps: float

    @property
    def max_tokens(self) -> int:
        """KV tokens of the longest request just before it completes, s + d."""
        return self.input_tokens + self.decode_tokens[-1]


@dataclass(frozen=True, slots=True)
class Timing:
    """Iteration time τ = d0 + d1·K + d2·P + d3·B, seconds (theory §1; d2 and d3 are new)."""

    d0: float
    d1: float = 0.0
    d2: float = 0.0
    d3: float = 0.0


@dataclass(frozen=True, slots=True)
class Replica:
    """One serving replica: KV capacity in tokens, page size and engine limits."""

    memory_tokens: int
    block_tokens: int = 1
    prefill: Prefill = Prefill.FUSED
    max_num_seqs: int | None = None
    max_num_batched_tokens: int | None = None


@dataclass(frozen=True, slots=True)
class Plan:
    """What the plan should guarantee.

    Attributes
    ----------
    delta : float
        Accepted probability of one overflow within the horizon.
    horizon_s : float
        Seconds.
    segments : int or None
        Nested WAIT segments; None lets the planner choose.
    """

    delta: float = 0.01
    horizon_s: float = 3600.0
    segments: int | None = None


@dataclass(frozen=True)
class Mix:
    """Every (class, decode length) pair of the traffic, one row each.

    All arrays have shape (n_rows,).

    Attributes
    ----------
    class_index : ndarray of int64
        Position of the row's class in the profile.
    input_tokens, decode_tokens : ndarray of int64, tokens
    stages : ndarray of int64
        Iterations n that a request of the row stays.
    first_weight : ndarray of float64, KV tokens
        KV held at stage 0 (a in the module docstring); later stages add one token each.
    rate_rps : ndarray of float64, requests/s
    share : ndarray of float64
        Rate over the total rate; sums to 1.
    """

    class_index: IntArray
    input_tokens: IntArray
    decode_tokens: IntArray
    stages: IntArray
    first_weight: FloatArray
    rate_rps: FloatArray
    share: FloatArray

    @cached_property
    def footprint(self) -> FloatArray:
        """Token-iterations S = Σ_k (a + k) of one request of each row (theory §1)."""
        n = self.stages.astype(np.float64)
        return n * self.first_weight + n * (n - 1) / 2


@dataclass(frozen=True)
class ServingModel:
    """Traffic on one replica: what every formula and the simulator start from.

    Rates of classes are what `schedule` multiplies where they vary over time; None: they do not.

    Examples
    --------
    >>> model = ServingModel(
    ...     classes=(RequestClass("a", 10, (10,), (1.0,), 1000.0), RequestClass("b", 10, (20,), (1.0,), 1000.0)),
    ...     timing=Timing(d0=0.01, d1=1e-6),
    ...     replica=Replica(memory_tokens=20_000, prefill=Prefill.INLINE),
    ... )
    >>> model.mix.footprint.tolist()
    [165.0, 420.0]
    """

    classes: tuple[RequestClass, ...]
    timing: Timing
    replica: Replica
    schedule: "Schedule | None" = None

    @cached_property
    def mix(self) -> Mix:
        """The traffic as arrays, one row per class and decode length."""
        lengths = [len(c.decode_tokens) for c in self.classes]
        index = np.repeat(np.arange(len(self.classes)), lengths)
        inputs = np.array([c.input_tokens for c in self.classes], dtype=np.int64)[index]
        decode = np.concatenate([np.array(c.decode_tokens, dtype=np.int64) for c in self.classes])
        rate = np.concatenate(
            [c.rate_rps * (w := np.array(c.decode_weights)) / w.sum() for c in self.classes]
        )
        inline = self.replica.prefill is Prefill.INLINE
        return Mix(
            class_index=index,
            input_tokens=inputs,
            decode_tokens=decode,
            stages=decode + 1 if inline else decode,
            first_weight=(inputs if inline else inputs + 1).astype(np.float64),
            rate_rps=rate,
            share=rate / rate.sum(),
        )

    @cached_property
    def prefill_tokens(self) -> FloatArray:
        """Prefill work of a fresh request, tokens, per row of `mix`: s, or 0 when `disaggregated`."""
        if self.replica.prefill is Prefill.DISAGGREGATED:
            return np.zeros(self.mix.input_tokens.size)
        return self.mix.input_tokens.astype(np.float64)

    @cached_property
    def held_first_weight(self) -> FloatArray:
        """Memory held at stage 0, tokens, per row of `mix`: half-filled blocks included.

        Pages of b tokens hold (b - 1)/2 tokens more than they use, on average over a request's stages
        (theory §2), which shifts every stage weight alike.
        """
        return self.mix.first_weight + (self.replica.block_tokens - 1) / 2

    @property
    def total_rate_rps(self) -> float:
        """Σλ, requests per second."""
        return math.fsum(c.rate_rps for c in self.classes)

    def exact_shares(self) -> list[Fraction]:
        """Shares of the rows of `mix` as exact fractions of the decimals written in the profile.

        Binary floats cannot hold 1/5; whether a root of the survival polynomial lies *on* the unit circle can
        hang on that digit.
        """
        rates: list[Fraction] = []
        for c in self.classes:
            weights = [as_written(w) for w in c.decode_weights]
            total = sum(weights)
            rates.extend(as_written(c.rate_rps) * w / total for w in weights)
        total_rate = sum(rates)
        return [r / total_rate for r in rates]


def as_written(value: float) -> Fraction:
    """The shortest decimal that reads back as `value`, exactly: 0.8 becomes 4/5.

    >>> as_written(0.8)
    Fraction(4, 5)
    """
    return Fraction(repr(float(value)))


def sum_by(group: IntArray, amounts: FloatArray) -> FloatArray:
    """Sum of `amounts` in each group, numbered from 0; both of shape (n_rows,)."""
    return np.bincount(group, weights=amounts).astype(np.float64, copy=False)


def survival(stages: IntArray, amounts: FloatArray) -> FloatArray:
    """Sum of `amounts` over the rows still present at each stage: out[k] = Σ_{n_i > k} amount_i.

    Parameters
    ----------
    stages : ndarray, shape (n_rows,)
        Iterations n_i >= 1.
    amounts : ndarray, shape (n_rows,)

    Returns
    -------
    ndarray, shape (max(stages),)

    Examples
    --------
    >>> survival(np.array([2, 3]), np.array([0.25, 0.75])).tolist()
    [1.0, 1.0, 0.75]
    """
    leaving = sum_by(stages - 1, amounts)
    return np.cumsum(leaving[::-1])[::-1]


def survival_weights(stages: IntArray, first_weight: FloatArray, share: FloatArray) -> FloatArray:
    """KV tokens that one unit of aggregate admissions holds at each stage, W_k = Σ_{n_i > k} p_i (a_i + k).

    Parameters
    ----------
    stages, first_weight, share : ndarray, shape (n_rows,)
        Iterations n_i, KV tokens a_i at stage 0, and share p_i of each row.

    Returns
    -------
    ndarray, shape (max(stages),), tokens

    References
    ----------
    SIC eq. 9; for empirical length distributions new, theory §3 ("Traces").

    Examples
    --------
    >>> survival_weights(np.array([2, 3]), np.array([2.0, 2.0]), np.array([0.5, 0.5])).tolist()
    [2.0, 3.0, 2.0]
    """
    present = survival(stages, share)
    return survival(stages, share * first_weight) + present * np.arange(present.size)
