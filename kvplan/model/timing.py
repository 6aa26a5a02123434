"""How long an iteration takes: the one place that knows (theory §1).

    τ(K, P, B) = d0 + d1·K + d2·P + d3·B + d4·√B + d5·max(0, P + B - knee)

K are the KV tokens read, P the prefill tokens computed, recomputation included, and B the sequences in the batch.
The first two terms are the papers'; the others are new: d2 for prompts, d3 for what each sequence costs, d4 for the
experts that more sequences wake (concave), d5 for compute that binds beyond `knee_tokens` (convex).

Whatever depends on the time of an iteration asks `Timing`. Some of it needs the law in two parts: what requests add in
proportion, and so can be added up over them, and the rest, which is d0 where the law is linear::

    τ(K, P, B) = fixed(P, B) + linear(K, P, B)
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, TypeVar

import numpy as np

from kvplan.model.arrays import FloatArray
from kvplan.model.prompts import Prompts

Amount = TypeVar("Amount", float, FloatArray)


class Tangent(NamedTuple):
    """The linear law that touches an iteration-time law at a state; all in seconds."""

    fixed_s: float
    per_kv_token_s: float
    per_prefill_token_s: float
    per_sequence_s: float


def iteration_time(c: Any, kv_tokens: Any, prefill_tokens: Any, sequences: Any) -> Any:
    """Seconds of an iteration, in the form that compiled loops call: `c` as `Timing.constants` has it."""
    linear = c[0] + c[1] * kv_tokens + c[2] * prefill_tokens + c[3] * sequences
    return linear + c[4] * np.sqrt(sequences) + c[5] * np.maximum(prefill_tokens + sequences - c[6], 0.0)


@dataclass(frozen=True, slots=True)
class Timing:
    """The constants of the law, seconds; `knee_tokens` in tokens.

    For many laws at once each constant can be a column, of shape (n_models, 1); what is linear then works as it is.

    Examples
    --------
    >>> timing = Timing(0.01, d1=1e-6, d4=0.001, d5=1e-5, knee_tokens=200)
    >>> round(timing(5_000, 300, 100), 9)  # 10 ms + 1 µs·5,000 + 1 ms·√100 + 10 µs·(300 + 100 - 200)
    0.027
    """

    d0: float
    d1: float = 0.0
    d2: float = 0.0
    d3: float = 0.0
    d4: float = 0.0
    d5: float = 0.0
    knee_tokens: float = 0.0
    # part of d2 and of d3 that each token of all data-parallel ranks takes; the rest is for those of the busiest
    all_ranks: float = 0.0

    def __call__(self, kv_tokens: Amount, prefill_tokens: Amount, sequences: Amount) -> Amount:
        """Seconds of an iteration, for numbers or arrays."""
        time: Amount = iteration_time(self.constants, kv_tokens, prefill_tokens, sequences)
        return time if isinstance(time, np.ndarray) else float(time)

    @property
    def constants(self) -> tuple[float, ...]:
        """All of them in order, as `iteration_time` takes them."""
        return self.d0, self.d1, self.d2, self.d3, self.d4, self.d5, self.knee_tokens

    def of_ranks(self, ranks: int) -> "Timing":
        """Turn the law of one of several ranks that step together into that of what all of them do, shared evenly.

        `all_ranks` comes on top of the rank's own d2 and d3; d4 and the sequences under its root are of all ranks.

        >>> Timing(0.01, d1=8e-6, d2=4e-6, all_ranks=1e-6).of_ranks(4)(1000, 400, 0)
        0.0128
        """
        d2, d3 = (each / ranks + self.all_ranks for each in (self.d2, self.d3))
        beyond = {"d5": self.d5 / ranks, "knee_tokens": self.knee_tokens * ranks}
        return replace(self, d1=self.d1 / ranks, d2=d2, d3=d3, **beyond)

    @property
    def is_linear(self) -> bool:
        """Tell whether an iteration takes a fixed time and the sum of what its requests add."""
        return not (_is_set(self.d4) or _is_set(self.d5))

    @property
    def goes_beyond_papers(self) -> bool:
        """Tell whether it has more terms than d0 and d1."""
        return not self.is_linear or bool(self.linear(0.0, 1.0, 1.0) > 0)

    @property
    def is_constant(self) -> bool:
        return self.is_linear and self.linear(1.0, 1.0, 1.0) == 0

    @property
    def is_convex(self) -> bool:
        """Tell whether iterations can grow faster than what they do, so that fewer requests at a time can be faster."""
        return _is_set(self.d5)

    def linear(self, kv_tokens: Amount, prefill_tokens: Amount, sequences: Amount) -> Amount:
        """Seconds that these amounts add in proportion: the part of the law that adds up over requests."""
        return self.d1 * kv_tokens + self.d2 * prefill_tokens + self.d3 * sequences

    def fixed(self, prefill: Any, sequences: Any) -> Any:
        """Seconds of the rest of the law, d0 included; it never falls as either grows.

        For numbers or arrays; the mean, where `prefill` is the law of the prefill tokens (`Prompts`).
        """
        if self.is_linear:
            return self.d0
        level = self.knee_tokens - sequences
        above = prefill.excess(level) if isinstance(prefill, Prompts) else np.maximum(prefill - level, 0.0)
        time = self.d0 + self.d4 * np.sqrt(sequences) + self.d5 * above
        return time if isinstance(time, np.ndarray) else float(time)

    def mean(self, kv_tokens: float, prompts: Prompts, sequences: float) -> float:
        """Mean seconds of iterations whose prefill tokens vary."""
        if self.is_linear:
            return self(kv_tokens, float(prompts.mean), sequences)
        return float(self.fixed(prompts, sequences)) + self.linear(kv_tokens, float(prompts.mean), sequences)

    def work(self, kv_tokens: Amount, prefill_tokens: Amount, sequences: Amount) -> Amount:
        """Seconds that these amounts add in an iteration so large that every other term is as steep as it gets."""
        beyond_knee = self.d5 * (prefill_tokens + sequences)
        return self.linear(kv_tokens, prefill_tokens, sequences) + beyond_knee

    def tangent(self, kv_tokens: float, prompts: Prompts, sequences: float) -> Tangent:
        """Linear law that touches the mean law at a state: equal there, and so are its slopes."""
        if self.is_linear:
            return Tangent(self.d0, self.d1, self.d2, self.d3)
        level = self.knee_tokens - sequences
        per_prefill_token = self.d2 + self.d5 * prompts.excess_per_token(level)
        per_sequence = self.d3 + self.d5 * prompts.exceeds(level)
        if sequences > 0:
            per_sequence += self.d4 / (2 * float(np.sqrt(sequences)))
        through = self.d1 * kv_tokens + per_prefill_token * prompts.mean + per_sequence * sequences
        fixed = self.mean(kv_tokens, prompts, sequences) - through
        return Tangent(fixed, self.d1, per_prefill_token, per_sequence)

    @classmethod
    def side_by_side(cls, laws: Sequence["Timing"]) -> "Timing":
        """Join several laws, a column of shape (n_laws, 1) for each constant."""
        return cls(*np.array([law.constants for law in laws]).T[:, :, None])


def _is_set(constant: Any) -> bool:
    """Tell whether a constant, or any of a column, is not zero; asked so often that numpy is too slow for a number."""
    return bool(constant.any() if isinstance(constant, np.ndarray) else constant)
