"""What a limit on the tokens of a request leaves of traffic: of single requests exactly, of sessions by a sample."""

from dataclasses import replace
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from kvplan.model.arrays import FloatArray, IntArray
from kvplan.model.classes import Prompt
from kvplan.model.lengths import Lengths
from kvplan.model.sessions import Limit, Sessions

_SAMPLE, _MOST_TURNS = 20_000, 2 * 10**6  # sessions, and at most about so many turns of them


class Fitting(NamedTuple):
    """The requests that an engine takes of those asked for: their share, laws of each length alone, and the longest."""

    share: float
    inputs: Lengths
    decode: Lengths
    longest: int


def fitting(inputs: Lengths, decode: Lengths, most: int | None) -> Fitting | None:
    """Return the requests of at most so many tokens, prompt and answer together; None where these are all.

    Examples
    --------
    >>> few = Lengths.of({1: 1.0, 3: 1.0})
    >>> share, inputs, decode, longest = fitting(few, few, 4)
    >>> share, inputs.probabilities.round(3).tolist(), longest
    (0.75, [0.667, 0.333], 4)
    """
    if most is None or inputs.longest + decode.longest <= most:
        return None
    kept = _kept(inputs, decode, most)
    longest = kept.values + decode.values[np.searchsorted(decode.values, most - kept.values, "right") - 1]
    share = float(inputs.probabilities @ reached(decode, most - inputs.values))
    return Fitting(share, kept, _kept(decode, inputs, most), int(longest.max()))


def _kept(law: Lengths, other: Lengths, most: int) -> Lengths:
    """The law of a length where another leaves room for it; weights stay whole."""
    weights = law.weights * _weight(other, most - law.values)
    return Lengths(law.values[weights > 0], weights[weights > 0])


def reached(law: Lengths, most: IntArray) -> FloatArray:
    """P(length ≤ most)."""
    return np.asarray(_weight(law, most) / law.weights.sum())


def _weight(law: Lengths, most: IntArray) -> FloatArray:
    """Sum of the weights of lengths up to the most."""
    sums: FloatArray = np.append(0.0, np.cumsum(law.weights))
    return sums[np.searchsorted(law.values, most, "right")]


class Carried(NamedTuple):
    """Turns of sessions under their limit, one session after the other: arrays of shape (n_turns,)."""

    input_tokens: IntArray
    fresh: NDArray[
        np.bool_
    ]  # nothing but what all share is found of the prompt: the first, or one that was cut
    kept: NDArray[np.bool_]  # not beyond the end of its session


def carried(limit: Limit, shared: int, first: IntArray, new: IntArray, decode: IntArray) -> Carried:
    """Make prompts of what turns add, `first` being the place of the first of each session, whose request fits.

    A turn that does not fit even so ends its session.
    """
    size = new + decode
    place, before = np.arange(size.size), np.cumsum(size) - size
    turns = np.diff(first, append=size.size)
    begin = np.repeat(first, turns)
    fresh = place == begin
    if limit.context == "slide":
        oldest = np.searchsorted(before, before + size + shared - limit.most)
        oldest = np.clip(oldest, begin, place)
        fresh |= np.diff(oldest, prepend=-1) > 0
        history = before - before[oldest]
    elif limit.context == "end":
        history = before - before[begin]
    else:
        history, have, going = np.zeros_like(size), np.zeros_like(first), np.arange(first.size)
        for turn in range(turns.max(initial=0)):
            going = going[turns[going] > turn]
            at = first[going] + turn
            cut = shared + have[going] + size[at] > limit.most
            fresh[at] |= cut
            history[at] = np.where(cut, np.rint(limit.context * have[going]), have[going])
            have[going] = history[at] + size[at]
    inputs = shared + history + new
    too_long = np.cumsum(inputs + decode > limit.most)
    return Carried(inputs, fresh, too_long == np.repeat(too_long[first], turns))


def first_turns(sessions: Sessions, count: int, rng: np.random.Generator) -> tuple[IntArray, IntArray]:
    """Draw what first prompts have beyond what all share, and their answers, of sessions whose first request fits."""
    assert sessions.limit is not None
    most = sessions.limit.most - sessions.shared
    fits = fitting(sessions.first, sessions.decode, most)
    law = sessions.decode if fits is None else fits.decode
    decode = rng.choice(law.values, count, p=law.probabilities)
    chance = rng.random(count) * reached(sessions.first, most - decode)
    ends = np.cumsum(sessions.first.probabilities)
    row = np.searchsorted(ends, chance, side="right").clip(max=ends.size - 1)
    return sessions.first.values[row], decode


class Sample(NamedTuple):
    """Turns of sessions drawn under their limit, one session after the other: arrays of shape (n_turns,)."""

    session: IntArray
    input_tokens: IntArray
    decode_tokens: IntArray
    fresh: NDArray[np.bool_]
    asked_for: NDArray[np.bool_]  # what a request leaves, by the next turn
    complete: bool  # no session was ended by the limit


def sample(sessions: Sessions) -> Sample:
    """Draw 20,000 sessions, the same each time; of very long ones fewer."""
    assert sessions.limit is not None
    return _sample(replace(sessions, turns=sessions.limit.turns, users=None))


@lru_cache(maxsize=32)
def _sample(sessions: Sessions) -> Sample:
    limit, rng = sessions.limit, np.random.default_rng(0)
    assert limit is not None
    count = max(1, min(_SAMPLE, round(_MOST_TURNS / limit.turns.mean)))
    turns = rng.choice(limit.turns.values, count, p=limit.turns.probabilities)
    first = np.cumsum(turns) - turns
    new, decode = (
        rng.choice(law.values, turns.sum(), p=law.probabilities) for law in (sessions.user, sessions.decode)
    )
    new[first], decode[first] = first_turns(sessions, count, rng)
    inputs, fresh, kept = carried(limit, sessions.shared, first, new, decode)
    session = np.repeat(np.arange(count), turns)[kept]
    fresh = fresh[kept]
    return Sample(session, inputs[kept], decode[kept], fresh, ~np.append(fresh[1:], True), bool(kept.all()))


def limited(sessions: Sessions, most: int | None, context: float | str) -> Sessions:
    """Return sessions under a limit, where it binds."""
    if most is None or sessions.longest <= most:
        return sessions
    held = replace(sessions, limit=Limit(most, context, sessions.turns))
    drawn = sample(held)
    if drawn.complete:
        return held
    return replace(held, turns=_law_of(np.bincount(drawn.session)))


def of_sample(sessions: Sessions, prompts: int, outputs: int) -> tuple[Lengths, tuple[Prompt, ...]]:
    """Return the law of answers, and so many prompts, each with the answers beside it, that stand for sampled turns."""
    drawn = sample(sessions)
    assert sessions.limit is not None
    kinds = []
    for turns in np.array_split(np.argsort(drawn.input_tokens, kind="stable"), prompts):
        if turns.size:
            tokens, beside = drawn.input_tokens[turns], drawn.decode_tokens[turns]
            mean = round(float(tokens.mean()))
            law = _law_of(np.minimum(beside, sessions.limit.most - mean)).at_most(outputs)
            kinds.append(Prompt(mean, turns.size / drawn.session.size, float(tokens.var()), law))
    return _law_of(np.minimum(drawn.decode_tokens, sessions.limit.most - kinds[0].tokens)), tuple(kinds)


def _law_of(lengths: IntArray) -> Lengths:
    values, count = np.unique(lengths, return_counts=True)
    return Lengths(values, count.astype(np.float64))
