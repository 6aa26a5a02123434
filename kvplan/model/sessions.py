"""Conversations: each turn carries all that came before, and follows the answer after a think time (theory §8)."""

from dataclasses import dataclass

import numpy as np

from kvplan.model.gaps import Gap
from kvplan.model.lengths import Lengths, Paged
from kvplan.model.reuse import PromptKind, SharedPrompt, Stream, shared_pages
from kvplan.model.weights import Prefill


@dataclass(frozen=True)
class Sessions:
    """Sessions of turns. Turn j has a prompt of all that came before, and what is new.

    Attributes
    ----------
    rate_rps
        Sessions/s.
    first, user, decode
        Tokens of the first prompt beyond `shared`, what every further turn adds, and of each answer.
    turns
        How many; independent of the lengths, which are independent of each other.
    think
        From an answer to the next turn.
    shared
        Leading tokens common to all sessions.
    """

    rate_rps: float
    first: Lengths
    user: Lengths
    decode: Lengths
    turns: Lengths
    think: Gap
    shared: int = 0

    @property
    def longest(self) -> float:
        """KV tokens of the longest request just before it completes; infinite where a law has no end."""
        further = self.turns.longest - 1
        added = (self.user.longest + self.decode.longest) * further if further else 0.0
        return self.shared + self.first.longest + added + self.decode.longest


def session_stream(sessions: Sessions, prefill: Prefill, block_tokens: int) -> Stream:
    """The class that the turns of sessions make up, with exact moments in whole pages.

    References
    ----------
    New, theory §8.

    Examples
    --------
    >>> from kvplan.model.gaps import Exponential
    >>> one = Lengths.of({10: 1.0})
    >>> turns = session_stream(Sessions(0.5, one, one, one, Lengths.of({3: 1.0}), Exponential(5.0)), Prefill.FUSED, 1)
    >>> turns.rate_rps, round(turns.prompt, 9), round(turns.left, 9), round(turns.reused, 9)  # s = 10, 30, 50
    (1.5, 30.0, 39.0, 19.333333333)
    """
    b = block_tokens
    going = sessions.turns.at_least()  # P(a session has a turn j), j = 1, 2, …
    mean_turns = float(going.sum())
    first = Paged.of(sessions.first.values + sessions.shared, sessions.first.weights, b)
    decode = Paged.of(sessions.decode.values, sessions.decode.weights, b)
    computed = Paged.of(sessions.decode.values - 1, sessions.decode.weights, b)  # the last token never is
    grown = decode + Paged.of(sessions.user.values, sessions.user.weights, b)
    prompt = first + grown.total(going / mean_turns)
    continued = first + grown.total(np.append(going[1:], 0.0) / mean_turns)
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
    asked = 1 - 1 / mean_turns
    start = sessions.shared + sessions.first.mean
    later = (tokens.sum - start / mean_turns) / asked if asked else 0.0
    ready_made = prefill is Prefill.DISAGGREGATED
    again = reused.sum - kept * asked
    return Stream(
        rate_rps=sessions.rate_rps * mean_turns,
        stages=read.mass,
        read=read.sum,
        held=held.sum,
        held_squares=held.squares,
        prompt=tokens.sum,
        prompt_squares=tokens.squares,
        prefill=0.0 if ready_made else tokens.sum,
        computed=read.mass + (0.0 if ready_made else tokens.sum - 1),
        decode=sessions.decode.mean,
        left=left.sum - kept,
        left_squares=left.squares - 2 * kept * left.sum + kept**2,
        reused=again,
        reused_squares=reused.squares - 2 * kept * reused.sum + kept**2 * asked,
        gap=sessions.think,
        shared=common,
        prompts=(
            PromptKind(1 - asked, start, kept),
            PromptKind(asked, later, kept + again / asked if asked else 0.0),
        ),
    )
