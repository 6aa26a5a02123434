"""Traffic within a limit on the tokens of a request: single requests exactly, sessions by a sample."""

from dataclasses import replace
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

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
    """Return the requests of at most so many tokens, prompt and answer together; None where these are all."""
    if most is None or inputs.longest + decode.longest <= most:
        return None
    kept = _kept(inputs, decode, most)
    longest = kept.values + decode.values[np.searchsorted(decode.values, most - kept.values, "right") - 1]
    share = float(inputs.probabilities @ _upto(decode, most - inputs.values)) / float(decode.weights.sum())
    return Fitting(share, kept, _kept(decode, inputs, most), int(longest.max()))


def _kept(law: Lengths, other: Lengths, most: int) -> Lengths:
    """Limit a length to the room that another leaves; weights stay whole."""
    weights = law.weights * _upto(other, most - law.values)
    return Lengths(law.values[weights > 0], weights[weights > 0])


def _upto(law: Lengths, most: IntArray) -> FloatArray:
    """Weight of all lengths up to the most."""
    sums: FloatArray = np.append(0.0, np.cumsum(law.weights))
    return sums[np.searchsorted(law.values, most, "right")]


def carried(
    limit: Limit, shared: int, first: IntArray, new: IntArray, decode: IntArray
) -> tuple[Any, Any, Any]:
    """Return the prompts of turns that add so much, session after session, `first` the places of their first turns.

    Also, whether a prompt finds only what all share, and whether a turn comes at all: one that does not fit in spite
    of the rule ends its session.
    """
    size = new + decode
    place, before, turns = np.arange(size.size), np.cumsum(size) - size, np.diff(first, append=size.size)
    begin = np.repeat(first, turns)
    fresh, history = place == begin, before - before[begin]
    if limit.context == "slide":
        oldest = np.searchsorted(before, before + size + shared - limit.most).clip(begin, place)
        fresh, history = np.diff(oldest, prepend=-1) > 0, before - before[oldest]
    elif limit.context != "end":
        have, going = np.zeros_like(first), np.arange(first.size)
        for turn in range(turns.max(initial=0)):
            going = going[turns[going] > turn]
            at = first[going] + turn
            cut = shared + have[going] + size[at] > limit.most
            fresh[at] |= cut
            history[at] = np.where(cut, np.rint(limit.context * have[going]), have[going])
            have[going] = history[at] + size[at]
    inputs = shared + history + new
    too_long = np.cumsum(inputs + decode > limit.most)
    return inputs, fresh, too_long == np.repeat(too_long[first], turns)


def first_turns(
    sessions: Sessions, limit: Limit, count: int, rng: np.random.Generator
) -> tuple[IntArray, IntArray]:
    """Draw what first prompts have beyond what all share, and their answers, of sessions whose first request fits."""
    most, law = limit.most - sessions.shared, sessions.first
    fits = fitting(law, sessions.decode, most)
    answers = sessions.decode if fits is None else fits.decode
    decode = rng.choice(answers.values, count, p=answers.probabilities)
    weight = rng.random(count) * _upto(law, most - decode)
    return law.values[np.searchsorted(np.cumsum(law.weights), weight, "right")], decode


class Sample(NamedTuple):
    """Turns of sessions under their limit, one session after the other: arrays of shape (n_turns,)."""

    session: IntArray
    input_tokens: IntArray
    decode_tokens: IntArray
    fresh: Any  # whether nothing is found of the prompt but what all share


def sample(sessions: Sessions) -> Sample:
    """Draw 20,000 sessions, the same each time; fewer of more than a hundred turns."""
    return _sample(replace(sessions, turns=sessions.asked, users=None))


@lru_cache(maxsize=32)
def _sample(sessions: Sessions) -> Sample:
    limit, rng = sessions.limit, np.random.default_rng(0)
    assert limit is not None
    count = max(1, min(_SAMPLE, round(_MOST_TURNS / limit.turns.mean)))
    turns = rng.choice(limit.turns.values, count, p=limit.turns.probabilities)
    first, laws = np.cumsum(turns) - turns, (sessions.user, sessions.decode)
    new, decode = (rng.choice(law.values, turns.sum(), p=law.probabilities) for law in laws)
    new[first], decode[first] = first_turns(sessions, limit, count, rng)
    inputs, fresh, kept = carried(limit, sessions.shared, first, new, decode)
    return Sample(np.repeat(np.arange(count), turns)[kept], inputs[kept], decode[kept], fresh[kept])


def limited(sessions: Sessions, most: int | None, context: float | str) -> Sessions:
    """Return sessions under a limit, where it binds."""
    if most is None or sessions.longest <= most:
        return sessions
    held = replace(sessions, limit=Limit(most, context, sessions.turns))
    return replace(held, turns=_law_of(np.bincount(sample(held).session)))


def of_sample(sessions: Sessions, prompts: int, outputs: int) -> tuple[Lengths, tuple[Prompt, ...]]:
    """Return the law of answers, and so many prompts with the answers beside each, that stand for sampled turns."""
    _, inputs, decode, _ = sample(sessions)
    kinds = []
    for turns in filter(np.size, np.array_split(np.argsort(inputs, kind="stable"), prompts)):
        tokens = round(float(inputs[turns].mean()))
        law = _law_of(np.minimum(decode[turns], sessions.longest - tokens)).at_most(outputs)
        kinds.append(Prompt(tokens, turns.size / inputs.size, float(inputs[turns].var()), law))
    return _law_of(np.minimum(decode, sessions.longest - kinds[0].tokens)), tuple(kinds)


def _law_of(lengths: IntArray) -> Lengths:
    values, count = np.unique(lengths, return_counts=True)
    return Lengths(values, count.astype(np.float64))
