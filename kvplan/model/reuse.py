"""What requests share, and what of a request is asked for again: what a prefix cache lives on (theory §8).

A cache keeps full pages. A request leaves L = b·⌊(s + d - 1)/b⌋ tokens in it, since the last token that it emits is
never computed; a look-up finds b·⌊(s - 1)/b⌋ tokens at most, since one token is always computed.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from kvplan.model.arrays import FloatArray
from kvplan.model.gaps import Gap
from kvplan.model.serving import ServingModel


@dataclass(frozen=True, slots=True)
class SharedPrompt:
    """Leading tokens that a share `weight` of a class's requests have in common."""

    tokens: int
    weight: float = 1.0


@dataclass(frozen=True, slots=True)
class Reuse:
    """What later requests of a class ask for again of what a request leaves in the cache.

    Attributes
    ----------
    tokens
        Leading tokens that are asked for: a count if whole, else a share of what is left in full pages.
    share
        Probability that a later request asks.
    gap
        How long after the request completed, or after it arrived.
    from_arrival
        Think times run from a completion: whoever answers waits for it. Gaps between arrivals do not wait.
    """

    tokens: int | float
    share: float
    gap: Gap
    from_arrival: bool = False


@dataclass(frozen=True, slots=True)
class Caching:
    """What the requests of one class share and reuse."""

    shared: tuple[SharedPrompt, ...] = ()
    reuse: Reuse | None = None


@dataclass(frozen=True, slots=True)
class PromptKind:
    """Prompts of one kind: their share of a stream's requests, their tokens, and how many are asked for again."""

    share: float
    tokens: float
    asked_for: float


@dataclass(frozen=True, slots=True)
class Stream:
    """Requests of one kind: what one costs, leaves in the cache and asks for, in means over its requests.

    Means and sums of squares are exact for pages of `block_tokens`. Everything is in tokens but for rates and `stages`.

    Attributes
    ----------
    rate_rps
        Requests/s.
    stages
        Iterations n that a request stays.
    read, held, held_squares
        Sums over its stages: context read, memory held in whole pages, and its square.
    prompt, prompt_squares
        E[s] and E[s²].
    prefill
        Prompt tokens computed without a cache: E[s], or 0 where prompts arrive ready-made.
    computed
        All tokens computed without a cache.
    decode
        Tokens emitted.
    left, left_squares
        L and L², what a request leaves beyond the prompt it shares.
    reused, reused_squares
        What of it is asked for again: E[L·1{asked for}], q = reused/left, and E[L²·1{asked for}].
    gap
        Until it is asked for; None where nothing is.
    from_arrival
        Whether the gap runs from the arrival rather than from the completion.
    shared
        Prompts in common, in whole pages.
    prompts
        Kinds of prompts, of which an iteration computes whole ones.
    """

    rate_rps: float
    stages: float
    read: float
    held: float
    held_squares: float
    prompt: float
    prompt_squares: float
    prefill: float
    computed: float
    decode: float
    left: float
    left_squares: float
    reused: float = 0.0
    reused_squares: float = 0.0
    gap: Gap | None = None
    from_arrival: bool = False
    shared: tuple[SharedPrompt, ...] = ()
    prompts: tuple[PromptKind, ...] = ()


def shared_pages(
    shared: Sequence[SharedPrompt], shortest: int, block_tokens: int
) -> tuple[SharedPrompt, ...]:
    """Shared prompts in the whole pages that a look-up finds, `shortest` the tokens of the shortest prompt."""
    found = _full_pages(shortest - 1, block_tokens)
    pages = (SharedPrompt(min(_full_pages(p.tokens, block_tokens), found), p.weight) for p in shared)
    return tuple(p for p in pages if p.tokens)


def class_streams(model: ServingModel, caching: Sequence[Caching]) -> tuple[Stream, ...]:
    """A stream for each class of a model, `caching` by class.

    Examples
    --------
    >>> from kvplan.model import Replica, RequestClass, Timing
    >>> from kvplan.model.gaps import Exponential
    >>> model = ServingModel((RequestClass("a", 100, (30,), (1.0,), 2.0),), Timing(0.01), Replica(10_000, 16))
    >>> (one,) = class_streams(model, [Caching((SharedPrompt(40),), Reuse(0.8, 0.5, Exponential(10.0)))])
    >>> one.shared[0].tokens, one.left, one.reused  # 128 tokens in full pages, of which the first 96 are asked for
    (32, 96.0, 32.0)
    """
    return tuple(_class_stream(model, c, own) for c, own in enumerate(caching))


def _class_stream(model: ServingModel, index: int, caching: Caching) -> Stream:
    mix, b, reuse = model.mix, model.replica.block_tokens, caching.reuse
    rows = mix.class_index == index
    rate = mix.rate_rps[rows]

    def mean(amounts: FloatArray) -> float:
        return float(rate @ amounts) / float(rate.sum())

    prompt = model.classes[index].input_tokens
    shared = shared_pages(caching.shared, prompt, b)
    left = (prompt + mix.decode_tokens[rows] - 1) // b * b
    asked, again = 0.0, np.zeros(left.size)
    if reuse is not None:
        wanted = left * reuse.tokens if isinstance(reuse.tokens, float) else np.minimum(left, reuse.tokens)
        asked, again = reuse.share, np.minimum(wanted, prompt - 1) // b * b
    alone = 1 - sum(p.weight for p in shared)
    parts = [(alone, 0), *((p.weight, p.tokens) for p in shared)]

    def private(tokens: FloatArray, power: int) -> float:
        return sum(w * mean(np.maximum(tokens - c, 0.0) ** power) for w, c in parts)

    common = sum(w * c for w, c in parts)
    return Stream(
        rate_rps=float(rate.sum()),
        stages=mean(mix.stages[rows]),
        read=mean(mix.read.footprint[rows]),
        held=mean(mix.held.footprint[rows]),
        held_squares=mean(mix.held.squares[rows]),
        prompt=float(prompt),
        prompt_squares=float(prompt) ** 2,
        prefill=mean(mix.prefill_tokens[rows]),
        computed=mean(mix.computed_tokens[rows]),
        decode=mean(mix.decode_tokens[rows]),
        left=private(left, 1),
        left_squares=private(left, 2),
        reused=asked * private(again, 1),
        reused_squares=asked * private(again, 2),
        gap=reuse.gap if reuse else None,
        from_arrival=reuse is not None and reuse.from_arrival,
        shared=shared,
        prompts=(
            PromptKind(1 - asked, prompt, common),
            PromptKind(asked, prompt, common + private(again, 1)),
        ),
    )


def _full_pages(tokens: int, block_tokens: int) -> int:
    """Tokens of the full pages in so many tokens."""
    return tokens - tokens % block_tokens
