"""Streams of requests: their cost, and what they leave in a prefix cache, with exact moments (theory §8).

A prompt longer than the token budget has its parts as if nothing of it were found, so that rates are rather too low
where much is; of turns of sessions, of which most is found, none are counted.

Of data-parallel ranks, each with a cache of its own, a turn finds what the last one before it left that came to the
same rank, by chance: it is later by as many gaps (new; that of all turns is taken for their mean). What is asked for
again beside sessions is found by the same chance at once, or never, which is too low.

A cache keeps full pages. A request leaves L = b·⌊(s + d - 1)/b⌋ tokens in it, since the last token that it emits is
never computed; a look-up finds b·⌊(s - 1)/b⌋ tokens at most, since one token is always computed.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, reduce
from operator import add
from typing import Any

import numpy as np

from kvplan.errors import UsageError
from kvplan.model.arrays import FloatArray, IntArray
from kvplan.model.classes import Mix, Prompt
from kvplan.model.context import sample
from kvplan.model.gaps import Gap, longer
from kvplan.model.kv_layout import KvLayout
from kvplan.model.lengths import Paged
from kvplan.model.partial import no_partial_prompts
from kvplan.model.replica import Replica
from kvplan.model.serving import ServingModel, mix_of
from kvplan.model.sessions import Sessions, SharedPrompt
from kvplan.model.timing import attention_pairs
from kvplan.model.weights import Prefill, first_tokens


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
    """

    rate_rps: float
    stages: float  # iterations n that a request stays
    read: float  # sums over its stages: context, ...
    held: float  # ... memory in whole pages, ...
    held_squares: float  # ... and its square
    prompt: float  # E[s]
    prompt_squares: float
    prefill: float  # prompt tokens computed without a cache: E[s], or 0 where prompts arrive ready-made
    prefill_pairs: float  # of these with their context
    computed: float  # all tokens computed without a cache
    decode: float  # tokens emitted
    left: float  # L, that a request leaves beyond the prompt it shares
    left_squares: float
    reused: float = 0.0  # of it asked for again: E[L·1{asked for}], q = reused/left
    reused_squares: float = 0.0
    reused_pairs: float = 0.0  # of it with all before it
    gap: Gap | None = None  # until it is asked for; None where nothing is
    from_arrival: bool = False  # the gap runs from the arrival rather than from the completion
    shared: tuple[SharedPrompt, ...] = ()  # in whole pages
    # of each, beside layers of several kinds: memory that it takes once, and for how many stages a request has as much
    in_common: tuple[tuple[float, float], ...] = ()
    prompts: tuple[PromptKind, ...] = ()  # of which an iteration computes whole ones


def shared_pages(
    shared: Sequence[SharedPrompt], shortest: int, block_tokens: int
) -> tuple[SharedPrompt, ...]:
    """Shared prompts in the whole pages that a look-up finds, `shortest` the tokens of the shortest prompt."""
    most = (shortest - 1) // block_tokens
    pages = (SharedPrompt(min(p.tokens // block_tokens, most) * block_tokens, p.weight) for p in shared)
    return tuple(p for p in pages if p.tokens)


def class_streams(model: ServingModel) -> tuple[Stream, ...]:
    """Return a stream for each class of a model."""
    replica = model.replica
    talks = [c.name for c in model.classes if c.sessions is not None]
    if talks and replica.layout is not None and replica.prefix_caching:
        raise UsageError(
            f"{talks[0]}: sessions that find a prefix beside layers of several kinds are run, and no formula has them: "
            "simulate --policy vllm, or [gpu] prefix_caching = false (plan --settings prefix_caching=false)"
        )
    return tuple(
        _class_stream(model, index)
        if c.sessions is None
        else replace(
            _of_sessions(
                replace(c.sessions, users=None), replica.prefill, replica.block_tokens, replica.meets_itself
            ),
            rate_rps=c.rate_rps,
        )
        for index, c in enumerate(model.classes)
    )


def _class_stream(model: ServingModel, index: int) -> Stream:
    c = model.classes[index]
    mix, b, reuse = model.mix, model.replica.block_tokens, c.reuse
    rows = np.flatnonzero(mix.class_index == index)
    prompts = mix.input_tokens[rows]
    shared = shared_pages(c.shared, int(prompts.min()), b)
    asked, again = 0.0, np.zeros(rows.size)
    if reuse is not None:
        left = _left(mix, rows, b)
        wanted = left * reuse.tokens if isinstance(reuse.tokens, float) else np.minimum(left, reuse.tokens)
        asked = reuse.share * model.replica.meets_itself
        again = np.minimum(wanted, prompts - 1) // b * b
    stream = _stream(mix, rows, b, shared, asked, again, c.kinds)
    if model.replica.layout is not None:
        first = first_tokens(model.replica.prefill, prompts)
        stream = _in_groups(stream, model.replica.layout, first, mix.stages[rows], mix.rate_rps[rows])
    return stream if reuse is None else replace(stream, gap=reuse.gap, from_arrival=reuse.from_arrival)


def _in_groups(
    stream: Stream, layout: KvLayout, first: IntArray, stages: IntArray, rate_rps: FloatArray
) -> Stream:
    """Count what is left in pool tokens: every group of layers leaves its blocks, those that windows pass too.

    What is shared is in use as long as requests that have it are there: of a window it is passed soon, and asked for
    again before its room is needed, which runs confirm where many share it.
    """
    copies = sum(group.copies for group in layout.groups)
    known = []
    for prompt in stream.shared:
        once, each = layout.in_common(prompt.tokens, first, stages)
        once = max(once, 1)  # nothing is, where chunks alone end with it
        known.append((float(once), float(rate_rps @ each) / float(rate_rps.sum()) / once))
    return replace(
        stream,
        left=copies * stream.left,
        left_squares=copies**2 * stream.left_squares,
        in_common=tuple(known),
    )


def _left(mix: Mix, rows: IntArray, block_tokens: int) -> Any:
    """Tokens that requests of these rows leave in full pages."""
    return (mix.input_tokens[rows] + mix.decode_tokens[rows] - 1) // block_tokens * block_tokens


def _stream(
    mix: Mix,
    rows: IntArray,
    block_tokens: int,
    shared: tuple[SharedPrompt, ...],
    asked: float,
    again: FloatArray,
    kinds: Sequence[Prompt] = (),
) -> Stream:
    """Means over rows of a mix, whose requests begin with what is shared, and a share of them is asked for `again`."""
    rate = mix.rate_rps[rows]

    def mean(amounts: FloatArray | IntArray) -> float:
        return float(rate @ amounts) / float(rate.sum())

    prompts = mix.input_tokens[rows]
    prompt = mean(prompts)
    left = _left(mix, rows, block_tokens)
    alone = 1 - sum(p.weight for p in shared)
    parts = [(alone, 0), *((p.weight, p.tokens) for p in shared)]

    def private(tokens: FloatArray, power: int) -> float:
        return sum(w * mean(np.maximum(tokens - own, 0.0) ** power) for w, own in parts)

    again_pairs = sum(w * mean(attention_pairs(np.maximum(again, own), own)) for w, own in parts)
    common = sum(w * own for w, own in parts)
    return Stream(
        rate_rps=float(rate.sum()),
        stages=mean(mix.iterations[rows]),
        read=mean(mix.context[rows]),
        held=mean(mix.footprint[rows]),
        held_squares=mean((mix.held.squares + mix.partial.held_squares)[rows]),
        prompt=prompt,
        prompt_squares=mean(prompts.astype(np.float64) ** 2),
        prefill=mean(mix.prefill_tokens[rows]),
        prefill_pairs=mean(mix.prefill_pairs[rows]),
        computed=mean(mix.computed_tokens[rows]),
        decode=mean(mix.decode_tokens[rows]),
        left=private(left, 1),
        left_squares=private(left, 2),
        reused=asked * private(again, 1),
        reused_squares=asked * private(again, 2),
        reused_pairs=asked * again_pairs,
        shared=shared,
        prompts=(
            *(PromptKind((1 - asked) * kind.share, kind.tokens, common) for kind in kinds),
            PromptKind(asked, prompt, common + private(again, 1)),
        ),
    )


@lru_cache(maxsize=64)
def _of_sessions(sessions: Sessions, prefill: Prefill, block_tokens: int, meets: float) -> Stream:
    """Stream at one turn a second: rates are varied often, and moments take long for large pages."""
    return session_stream(sessions, 1.0, prefill, block_tokens, meets)


def session_stream(
    sessions: Sessions, rate_rps: float, prefill: Prefill, block_tokens: int, meets: float = 1.0
) -> Stream:
    """Return the stream that the turns of sessions make up, so many turns/s, with exact moments (new, theory §8).

    `meets` is the chance that a turn comes to the rank of the one before it. Where a limit binds they are those of a
    sample.
    """
    if sessions.limit is not None:
        return replace(_of_sample(sessions, prefill, block_tokens, meets), rate_rps=rate_rps)
    b = block_tokens
    going = sessions.turns.at_least()  # P(a session has a turn j), j = 1, 2, …
    mean_turns = float(going.sum())
    first = Paged.of(sessions.first.values + sessions.shared, sessions.first.probabilities, b)
    computed = Paged.of(
        sessions.decode.values - 1, sessions.decode.probabilities, b
    )  # the last token never is
    grown = reduce(add, (Paged.of(law.values, law.probabilities, b) for law in sessions.grows))
    prompt = first + grown.total(going / mean_turns)
    met, turns_apart = _met_again(going, meets)
    continued = first + grown.total(met / mean_turns)
    tokens = prompt.plain()

    inline = prefill is Prefill.INLINE
    present = sessions.decode.at_least()  # P(an answer has a token k + 1), k = 0, 1, …
    present = np.concatenate([[1.0], present]) if inline else present
    stage = np.arange(present.size) + (0 if inline else 1)
    weights = prompt + Paged.of(stage, present, b)
    read, held = weights.plain(), weights.up()

    common = shared_pages([SharedPrompt(sessions.shared)], sessions.shared + int(sessions.first.values[0]), b)
    kept = common[0].tokens if common else 0
    left, reused = (part.down() for part in (prompt + computed, continued + computed))
    further, asked = 1 - 1 / mean_turns, float(met.sum()) / mean_turns
    start = sessions.shared + sessions.first.mean
    later = (tokens.sum - start / mean_turns) / further if further else 0.0
    ready_made = prefill is Prefill.DISAGGREGATED
    again = reused.sum - kept * asked
    return Stream(
        rate_rps=rate_rps,
        stages=read.mass,
        read=read.sum,
        held=held.sum,
        held_squares=held.squares,
        prompt=tokens.sum,
        prompt_squares=tokens.squares,
        prefill=0.0 if ready_made else tokens.sum,
        prefill_pairs=0.0 if ready_made else (tokens.squares + tokens.sum) / 2,
        computed=read.mass + (0.0 if ready_made else tokens.sum - 1),
        decode=sessions.decode.mean,
        left=left.sum - kept,
        left_squares=left.squares - 2 * kept * left.sum + kept**2,
        reused=again,
        reused_squares=reused.squares - 2 * kept * reused.sum + kept**2 * asked,
        reused_pairs=(reused.squares + reused.sum) / 2 - asked * attention_pairs(kept),
        gap=longer(sessions.think, turns_apart),
        shared=common,
        prompts=(
            PromptKind(1 - further, start, kept),
            PromptKind(max(further - asked, 0.0), later, kept),
            PromptKind(asked, later, kept + again / asked if asked else 0.0),
        ),
    )


def _met_again(going: FloatArray, meets: float) -> tuple[FloatArray, float]:
    """Return P(the next turn at the rank of a turn exists), shape (n_turns,), and the turns that it comes later."""
    met, apart = np.zeros((2, going.size + 1))
    for turn in reversed(range(going.size - 1)):
        met[turn] = meets * going[turn + 1] + (1 - meets) * met[turn + 1]
        apart[turn] = met[turn] + (1 - meets) * apart[turn + 1]
    return met[:-1], float(apart.sum() / met.sum()) if met.any() else 1.0


def _of_sample(sessions: Sessions, prefill: Prefill, block_tokens: int, meets: float) -> Stream:
    """At one turn a second, by the turns of a sample; each finds what it shares, or what the one before has left.

    That, by chance, where that one was at the same rank, and else nothing, which is too low.
    """
    session, inputs, decode, fresh = sample(sessions)
    rows, share, alike = (
        np.arange(session.size),
        np.full(session.size, 1 / session.size),
        np.zeros(session.size),
    )
    whole, replica = no_partial_prompts(inputs), Replica(sessions.longest, block_tokens, prefill=prefill)
    mix = mix_of(replica, np.zeros_like(rows), inputs, alike, decode, share, share, whole)
    common = shared_pages([SharedPrompt(sessions.shared)], int(inputs.min()), block_tokens)
    again = np.where(np.append(fresh[1:], True), 0.0, _left(mix, rows, block_tokens))
    stream = _stream(mix, rows, block_tokens, common, meets, again)
    part, kept = 1 - float(fresh.mean()), sum(prompt.tokens for prompt in common)
    first, later = (float(inputs[of].mean()) if of.any() else 0.0 for of in (fresh, ~fresh))
    more = PromptKind(part * meets, later, kept + stream.reused / (part * meets) if part else 0.0)
    none = (PromptKind(1 - part, first, kept), PromptKind(part * (1 - meets), later, kept))
    return replace(stream, gap=sessions.think, prompts=(*none, more))
