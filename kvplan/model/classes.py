"""Classes of requests, and the traffic that they make up."""

from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from kvplan.model.arrays import FloatArray, IntArray, sum_by
from kvplan.model.lengths import Lengths
from kvplan.model.partial import PartialPrompts
from kvplan.model.sessions import Reuse, Sessions, SharedPrompt
from kvplan.model.weights import StageWeights


class Prompt(NamedTuple):
    """Prompts of one length, or of about one, which a share of the requests of a class have."""

    tokens: int
    share: float
    variance: float = 0.0  # of the lengths that this one stands for
    decode: Lengths | None = None  # of these prompts, where it depends on them


@dataclass(frozen=True, slots=True)
class RequestClass:
    """One class of requests."""

    name: str
    input_tokens: int  # prompt length s; where prompts differ the mean, to a whole token
    decode_tokens: tuple[int, ...]  # distinct decode lengths d, ascending
    decode_weights: tuple[float, ...]  # of each, in the proportion written in the profile; not normalised
    rate_rps: float  # λ
    shared: tuple[SharedPrompt, ...] = ()  # leading tokens in common, of each of which a share of them
    reuse: Reuse | None = None  # what later requests ask for again
    sessions: Sessions | None = None  # the requests are the turns of these; None: they are strangers
    prompts: tuple[Prompt, ...] = ()  # that differ, in place of `input_tokens` alone
    longest: int = 0  # KV tokens of the longest just before it completes, where prompts are means of several
    most: int | None = None  # tokens of the longest that the engine takes, where more are asked for
    rejected: float = 0.0  # requests that it does not take for each that it does; not in the rate
    accuracy: float | None = (
        None  # share of the requests whose length a predictor has right; None: there is none
    )
    taken_for: tuple[tuple[str, float], ...] = ()  # by class, those that it has wrong; (): by the traffic
    # that runs draw from, where `prompts` are fewer lengths to count with ...
    input_law: Lengths | None = None
    decode_law: Lengths | None = None  # ... and where `decode_tokens` are
    priority: int = 0  # where the engine schedules by it: lower goes first
    # when what comes until then has to be done; runs may begin with all of it
    deadline_s: float | None = None

    @property
    def kinds(self) -> tuple[Prompt, ...]:
        return self.prompts or (Prompt(self.input_tokens, 1.0),)

    @property
    def inputs(self) -> Lengths:
        """Law that runs draw prompts from, those that leave room for the answer."""
        if self.input_law is not None:
            return self.input_law
        tokens, shares = np.array(sorted((p.tokens, p.share) for p in self.kinds)).T
        return Lengths(tokens.astype(np.int64), shares)

    def outputs_of(self, prompt: Prompt) -> Lengths:
        """Decode lengths that formulas count beside a prompt."""
        own = np.array(self.decode_tokens, dtype=np.int64), np.array(self.decode_weights)
        return prompt.decode or Lengths(*own)

    @property
    def outputs(self) -> Lengths:
        """Law that runs draw decode lengths from."""
        return self.decode_law or self.outputs_of(Prompt(0, 1.0))

    @property
    def laws(self) -> list[tuple[float, Lengths, Lengths]]:
        """Shares of the class, and laws of prompts and answers in them that do not depend on each other."""
        of_kinds = [
            (p.share, Lengths.of({p.tokens: 1.0}), p.decode) for p in self.kinds if p.decode is not None
        ]
        return of_kinds or [(1.0, self.inputs, self.outputs)]

    @property
    def max_tokens(self) -> int:
        """KV tokens of the longest request just before it completes, s + d."""
        if self.sessions is not None:
            return self.sessions.longest
        longest = max(self.longest, max(p.tokens for p in self.kinds) + self.decode_tokens[-1])
        return longest if self.most is None else min(longest, self.most)

    @property
    def has_prompt(self) -> bool:
        """Tell whether there is a prompt that is not empty: of an empty one nothing is looked for in a cache."""
        return any(p.tokens for p in self.kinds)

    @property
    def hits(self) -> bool:
        """Tell whether requests have tokens in common with others."""
        reuse = self.reuse is not None and self.has_prompt
        return bool(self.shared) or reuse or self.sessions is not None


@dataclass(frozen=True)
class Mix:
    """Every (class, prompt, decode length) of the traffic, one row each.

    Arrays have shape (n_rows,), or (n_models, n_rows) for many models side by side, but for `class_index`.
    """

    class_index: IntArray  # (n_rows,), position of the row's class in the profile
    input_tokens: IntArray
    decode_tokens: IntArray | FloatArray  # with drafts the mean of those who stay so long
    stages: IntArray  # iterations n that a request of the row stays, from the one that ends its prompt
    prefill_tokens: FloatArray  # prefill work of a fresh request: s, or 0 where prompts arrive ready-made
    prefill_pairs: FloatArray  # of its tokens with their context, as attention computes them
    computed_tokens: IntArray  # all that the engine computes for a fresh request
    # iterations as time counts them: all that it stays, but for what drafts cost, which is not in the first
    sequences: FloatArray
    read: StageWeights  # context at each stage, which costs time
    held: StageWeights  # memory at each stage
    partial: PartialPrompts  # before `stages`, where prompts are longer than the token budget of an iteration
    rate_rps: FloatArray
    share: FloatArray  # rate over the total rate; sums to 1

    @property
    def iterations(self) -> IntArray:
        """Iterations that a request of each row has a seat: its stages, and those with parts of its prompt."""
        return self.stages + self.partial.iterations

    @property
    def footprint(self) -> FloatArray:
        """Memory that it holds in all of them, KV token-iterations: S in theory §2, in whole pages."""
        return self.held.footprint + self.partial.held

    @property
    def lattice_tokens(self) -> float:
        """Largest number of tokens that memory held is a multiple of, of every row in every iteration."""
        page = float(self.held.block_tokens)
        pages = np.append(self.partial.held_by_part, self.held.lattice_tokens) / page
        return float(np.gcd.reduce(pages.astype(np.int64))) * page

    def by_pages(self, amount: FloatArray) -> FloatArray:
        """`amount` of each row times its iterations with p pages, summed over rows; shape (most pages + 1,)."""
        whole = self.held.by_pages(amount)
        pages = (self.partial.held_by_part / self.held.block_tokens).astype(np.int64)
        return whole + np.bincount(pages, self.partial.present(amount), whole.size)

    @property
    def context(self) -> FloatArray:
        """Context that it reads in all of them, KV token-iterations."""
        return self.read.footprint + self.partial.read

    @cached_property
    def prompt_law(self) -> tuple[FloatArray, FloatArray]:
        """Shares of the requests, and the prefill tokens of each length; of one model."""
        tokens, length = np.unique(self.prefill_tokens, return_inverse=True)
        return sum_by(length, self.share), tokens

    def mean(self, amounts: FloatArray | IntArray) -> Any:
        """Mean over the requests: a number, or a column of shape (n_models, 1) for models side by side."""
        if self.share.ndim == 1:
            return float(self.share @ amounts)
        # row by row, so that every model's mean is rounded as if it were alone
        return np.array([[p @ x] for p, x in zip(in_rows(self.share), in_rows(amounts), strict=True)])

    def of_classes(self, amounts: FloatArray) -> FloatArray:
        """Sums over the rows of each class: shape (n_classes,) or (n_models, n_classes)."""
        if amounts.ndim == 1:
            return sum_by(self.class_index, amounts)
        sums = np.zeros((len(amounts), int(self.class_index[-1]) + 1))
        for row, c in enumerate(self.class_index):
            sums[:, c] += amounts[:, row]
        return sums


def in_rows(amounts: FloatArray | IntArray) -> FloatArray:
    """Put each row in one piece, as arrays of one model are: the order in which sums are rounded depends on it."""
    return np.ascontiguousarray(amounts, dtype=np.float64)
