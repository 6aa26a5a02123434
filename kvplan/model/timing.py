"""How long an iteration takes: the one place that knows (theory §1).

    τ(K, P, B, Q) = d0 + d1·K + d2·P + d3·B + d4·√B + d5·max(0, P + B - knee) + d6·Q
                    + experts·(1 - (1 - chosen)^(P + B))

K are the KV tokens read, P the prefill tokens computed, recomputation included, B the sequences in the batch, and Q the
pairs of a prefill token and a token of its context, itself included, in the attention of prompts. The first two terms
are the papers'; the others are new: d2 for prompts, d3 for what each sequence costs, d4 for what grows ever more slowly
with them (concave), d5 for arithmetic that takes longer than reading the weights beyond `knee_tokens` (convex), d6 for
attention of prompts, whose kernels overlap with no weights, and `experts` for those that tokens wake, each of which
chooses its share at random (concave).

Whatever depends on the time of an iteration asks `Timing`. Some of it needs the law in two parts: what requests add in
proportion, and so can be added up over them, and the rest, which is d0 where the law is linear::

    τ(K, P, B, Q) = fixed(P, B) + linear(K, P, B, Q)
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
    per_pair_s: float

    def prefill_s(self, tokens: Amount, prefill_pairs: Amount) -> Amount:
        """Seconds that so many prefill tokens add, and their pairs."""
        return self.per_prefill_token_s * tokens + self.per_pair_s * prefill_pairs


def attention_pairs(tokens: Amount, found: Amount | float = 0.0) -> Amount:
    """Pairs of a prompt's tokens, but for those found in a cache, with their context; however it is cut into parts.

    >>> attention_pairs(3.0), attention_pairs(3.0, found=2.0)  # 1 + 2 + 3, and 3
    (6.0, 3.0)
    """
    return (tokens * (tokens + 1) - found * (found + 1)) / 2


def iteration_time(c: Any, kv_tokens: Any, prefill_tokens: Any, sequences: Any, prefill_pairs: Any) -> Any:
    """Seconds of an iteration, in the form that compiled loops call: `c` as `Timing.constants` has it."""
    linear = linear_time(c, kv_tokens, prefill_tokens, sequences, prefill_pairs)
    return linear + bent_time(c, prefill_tokens, sequences) + experts_time(c, prefill_tokens + sequences)


def linear_time(c: Any, kv_tokens: Any, prefill_tokens: Any, sequences: Any, prefill_pairs: Any) -> Any:
    """Seconds that grow in proportion, and d0."""
    return c[0] + c[1] * kv_tokens + c[2] * prefill_tokens + c[3] * sequences + c[9] * prefill_pairs


def bent_time(c: Any, prefill_tokens: Any, sequences: Any) -> Any:
    """Seconds of a root and a knee."""
    return c[4] * np.sqrt(sequences) + c[5] * np.maximum(prefill_tokens + sequences - c[6], 0.0)


def experts_time(c: Any, tokens: Any) -> Any:
    """Seconds to read the experts that so many tokens wake."""
    return c[7] * (1.0 - (1.0 - c[8]) ** tokens)


@dataclass(frozen=True, slots=True)
class Timing:
    """The constants of the law, seconds; `knee_tokens` in tokens, `chosen` a share of the experts.

    Of several data-parallel ranks it is the law of one, whose K, P, B and Q are those of the busiest; but tokens of all
    ranks take `all_ranks` each, and so much of d5 each as `d5_all_ranks`; the knee is of a rank where all have as many.

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
    experts: float = 0.0  # to read all of them
    chosen: float = 0.0  # by a token: what a router chooses of them
    d6: float = 0.0
    all_ranks: float = 0.0
    d5_all_ranks: float = 0.0

    def __call__(
        self,
        kv_tokens: Amount,
        prefill_tokens: Amount,
        sequences: Amount,
        prefill_pairs: Amount | float = 0.0,
    ) -> Amount:
        """Seconds of an iteration, for numbers or arrays."""
        time: Amount = iteration_time(self.constants, kv_tokens, prefill_tokens, sequences, prefill_pairs)
        return time if isinstance(time, np.ndarray) else float(time)

    @property
    def constants(self) -> tuple[float, ...]:
        """All of them in order, as `iteration_time` takes them."""
        bent = self.d4, self.d5, self.knee_tokens, self.experts, self.chosen
        return self.d0, self.d1, self.d2, self.d3, *bent, self.d6

    def of_ranks(self, ranks: int) -> "Timing":
        """Turn the law of one of several ranks that step together into that of what all of them do, shared evenly.

        `all_ranks` comes on top of the rank's own d2 and d3, `d5_all_ranks` on top of its d5; d4, the sequences under
        its root, and experts are of all ranks.

        >>> Timing(0.01, d1=8e-6, d2=4e-6, all_ranks=1e-6).of_ranks(4)(1000, 400, 0)
        0.0128
        """
        d2, d3 = (each / ranks + self.all_ranks for each in (self.d2, self.d3))
        beyond = {"d5": self.d5 / ranks + self.d5_all_ranks, "knee_tokens": self.knee_tokens * ranks}
        return replace(self, d1=self.d1 / ranks, d2=d2, d3=d3, d6=self.d6 / ranks, **beyond)

    @property
    def is_linear(self) -> bool:
        """Tell whether an iteration takes a fixed time and the sum of what its requests add."""
        return not (_is_set(self.d4) or self.feels_lumps)

    @property
    def goes_beyond_papers(self) -> bool:
        """Tell whether it has more terms than d0 and d1."""
        return not self.is_linear or bool(self.linear(0.0, 1.0, 1.0, 1.0) > 0)

    @property
    def is_constant(self) -> bool:
        return self.is_linear and self.linear(1.0, 1.0, 1.0, 1.0) == 0

    @property
    def is_convex(self) -> bool:
        """Tell whether iterations can grow faster than what they do, so that fewer requests at a time can be faster."""
        return _is_set(self.d5)

    @property
    def minds_prompts(self) -> bool:
        """Tell whether an iteration takes longer, the more of a prompt it computes."""
        return bool(self.work(0.0, 1.0, 0.0, 1.0) > 0)

    @property
    def feels_lumps(self) -> bool:
        """Tell whether it matters that prefill tokens come prompt by prompt, and not their mean alone."""
        return _is_set(self.d5) or _is_set(self.experts)

    def linear(
        self, kv_tokens: Amount, prefill_tokens: Amount, sequences: Amount, prefill_pairs: Amount | float
    ) -> Amount:
        """Seconds that these amounts add in proportion: the part of the law that adds up over requests."""
        tokens = self.d1 * kv_tokens + self.d2 * prefill_tokens + self.d3 * sequences
        return tokens + self.d6 * prefill_pairs

    def fixed(self, prefill: Any, sequences: Any) -> Any:
        """Seconds of the rest of the law, d0 included; it never falls as either grows.

        For numbers or arrays; the mean, where `prefill` is the law of the prefill tokens (`Prompts`).
        """
        if self.is_linear:
            return self.d0
        time = self.d0 + self.d4 * np.sqrt(sequences)
        if _is_set(self.d5):
            level = self.knee_tokens - sequences
            above = (
                prefill.excess(level) if isinstance(prefill, Prompts) else np.maximum(prefill - level, 0.0)
            )
            time = time + self.d5 * above
        if _is_set(self.experts):
            asleep = 1.0 - self.chosen
            share = prefill.power(asleep) if isinstance(prefill, Prompts) else asleep**prefill
            time = time + self.experts * (1.0 - share * asleep**sequences)
        return time if isinstance(time, np.ndarray) else float(time)

    def mean(self, kv_tokens: float, prompts: Prompts, sequences: float, prefill_pairs: float) -> float:
        """Mean seconds of iterations whose prefill tokens vary."""
        mean = float(prompts.mean)
        if self.is_linear:
            return self(kv_tokens, mean, sequences, prefill_pairs)
        fixed = float(self.fixed(prompts, sequences))
        return fixed + self.linear(kv_tokens, mean, sequences, prefill_pairs)

    def work(
        self, kv_tokens: Amount, prefill_tokens: Amount, sequences: Amount, prefill_pairs: Amount
    ) -> Amount:
        """Seconds that these amounts add in an iteration so large that every other term is as steep as it gets."""
        beyond_knee = self.d5 * (prefill_tokens + sequences)
        return self.linear(kv_tokens, prefill_tokens, sequences, prefill_pairs) + beyond_knee

    def tangent(self, prompts: Prompts, sequences: float) -> Tangent:
        """Linear law that touches the mean law at a state: equal there, and so are its slopes."""
        if self.is_linear:
            return Tangent(self.d0, self.d1, self.d2, self.d3, self.d6)
        per_prefill_token, per_sequence = self.d2, self.d3
        if _is_set(self.d5):
            level = self.knee_tokens - sequences
            per_prefill_token += self.d5 * prompts.excess_per_token(level)
            per_sequence += self.d5 * prompts.exceeds(level)
        if _is_set(self.experts):
            asleep = 1.0 - self.chosen
            still = self.experts * asleep**sequences
            per_prefill_token -= still * prompts.power_per_token(asleep)
            per_sequence -= still * prompts.power(asleep) * float(np.log(asleep))
        if sequences > 0:
            per_sequence += self.d4 / (2 * float(np.sqrt(sequences)))
        through = (per_prefill_token - self.d2) * prompts.mean + (per_sequence - self.d3) * sequences
        fixed = float(self.fixed(prompts, sequences)) - through
        return Tangent(fixed, self.d1, per_prefill_token, per_sequence, self.d6)

    @classmethod
    def side_by_side(cls, laws: Sequence["Timing"]) -> "Timing":
        """Join several laws, a column of shape (n_laws, 1) for each constant."""
        return cls(*np.array([law.constants for law in laws]).T[:, :, None])


def _is_set(constant: Any) -> bool:
    """Tell whether a constant, or any of a column, is not zero; asked so often that numpy is too slow for a number."""
    return bool(constant.any() if isinstance(constant, np.ndarray) else constant)
