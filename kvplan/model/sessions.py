"""Shared prompts, prefixes asked for again, and conversations, whose turns carry all before them (theory §8)."""

from dataclasses import dataclass

import numpy as np

from kvplan.model.gaps import Gap
from kvplan.model.lengths import Lengths

_GROUPS = 16  # of turns, whose prompts are told apart where each request counts by itself


@dataclass(frozen=True, slots=True)
class SharedPrompt:
    """Leading tokens that a share `weight` of a class's requests have in common."""

    tokens: int
    weight: float = 1.0


@dataclass(frozen=True, slots=True)
class Reuse:
    """Part of what a request leaves in the cache that later requests of its class ask for again."""

    tokens: int | float  # leading ones: a count if whole, else a share of what is left in full pages
    share: float  # probability that a later request asks
    gap: Gap  # after the request completed, or after it arrived
    from_arrival: bool = False  # think times run from a completion; gaps between arrivals do not wait for it


@dataclass(frozen=True, slots=True)
class Limit:
    """Most tokens of a turn, prompt and answer together, and what becomes of a session that would pass it."""

    most: int
    context: (
        float | str
    )  # "end": it ends; "slide": its oldest turns go; a share: so much of its history is left
    turns: Lengths  # that it would have without


@dataclass(frozen=True, slots=True)
class Sent:
    """Subagents: sessions of the kind `name`, so many of which each answer but the last sends out at once.

    The next turn comes think time after the last of them is done, and has the last answer of each.
    """

    name: str
    count: int
    decode: Lengths  # of each of their answers


@dataclass(frozen=True)
class Sessions:
    """Sessions of turns. Turn j has a prompt of all that came before, and what is new."""

    first: Lengths  # tokens of the first prompt beyond `shared` ...
    user: Lengths  # ... that every further turn adds ...
    decode: Lengths  # ... and of each answer
    turns: Lengths  # independent of the lengths, which are independent of each other
    think: Gap  # from an answer to the next turn
    shared: int = 0  # leading tokens common to all sessions
    # a closed population: each begins a session think time after the one before; None: sessions come at random
    users: int | None = None
    limit: Limit | None = None  # where it binds; `turns` are those that there are in spite of it
    sends: tuple[Sent, ...] = ()
    name: str = (
        ""  # by which others send them out, and with whose `shared` they begin; "": they come by themselves
    )

    @property
    def grows(self) -> tuple[Lengths, ...]:
        """Independent laws that add up to what a turn has beyond the prompt before it."""
        return (self.user, self.decode, *(sent.decode for sent in self.sends for _ in range(sent.count)))

    @property
    def asked(self) -> Lengths:
        """Turns that there would be without a limit."""
        return self.turns if self.limit is None else self.limit.turns

    @property
    def longest(self) -> int:
        """KV tokens that no request has more of just before it completes."""
        if self.limit is not None:
            return self.limit.most
        further = self.turns.longest - 1
        added = sum(law.longest for law in self.grows) * further
        return self.shared + self.first.longest + added + self.decode.longest

    @property
    def prompts(self) -> tuple[tuple[float, float, float], ...]:
        """Share of the turns, and mean and variance of the prompt tokens, of turns in a row in groups of about a size.

        Examples
        --------
        >>> from kvplan.model.gaps import Exponential
        >>> few, many = Lengths.of({10: 1.0}), Lengths.of({20: 1.0, 40: 1.0})
        >>> Sessions(many, few, few, Lengths.of({2: 1.0}), Exponential(1.0)).prompts
        ((0.5, 30.0, 100.0), (0.5, 50.0, 100.0))
        """
        share = self.turns.at_least()
        share, before = share / share.sum(), np.arange(share.size)
        tokens = self.shared + self.first.mean + before * sum(law.mean for law in self.grows)
        squares = tokens**2 + self.first.variance + before * sum(law.variance for law in self.grows)
        group = np.minimum((np.cumsum(share) - share / 2) * _GROUPS, _GROUPS - 1).astype(np.int64)
        weight = np.bincount(group, share)
        mean, square = (
            np.bincount(group, share * each) / np.where(weight > 0, weight, 1.0) for each in (tokens, squares)
        )
        groups = zip(weight.tolist(), mean.tolist(), (square - mean**2).tolist(), strict=True)
        return tuple((w, t, v) for w, t, v in groups if w > 0)
