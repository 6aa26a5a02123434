"""Requests that are under way, or come next, as rows of a state; those that are done make room for others."""

import math

import numpy as np

from kvplan.model import Replica
from kvplan.simulation.requests import Requests
from kvplan.simulation.state import (
    BEFORE,
    BEHIND,
    BLOCKS,
    CACHED,
    COPIED,
    COPY,
    DUE_AFTER,
    EVICTIONS,
    FINISH,
    FIRST,
    FIRST_TOKEN,
    GIVEN_UP,
    HEAD,
    HIT,
    IN_FRONT,
    JOINED,
    LEAF,
    NEWEST,
    NO_CACHE,
    NOBODY,
    OLDEST,
    ORIGINAL,
    PARTLY,
    PLACE,
    RECOVERED,
    RELEASED,
    ROWLESS,
    TAIL,
    Setup,
    State,
    block_streams,
    new_rows,
)

_LINKS = slice(BEFORE, DUE_AFTER + 1)  # columns that name a row


class Rows:
    """Which request stands in each row, and what has become of those that stood in one.

    Where requests follow each other, have prompts in common or are ranked, all have a row from the beginning to the
    end. Of strangers that a cache keeps, each has a stream of its own, in the same row.
    """

    def __init__(self, requests: Requests, setup: Setup, replica: Replica, at_once: int) -> None:
        size = requests.arrival_s.size
        apart = setup.prefix_cache == NO_CACHE or (setup.prefix_cache == BLOCKS and requests.prefixes is None)
        all_the_time = not requests.is_open or not apart or setup.ranks > 0
        self.number = np.arange(size if all_the_time else min(size, at_once))
        self.requests, self._setup, self._replica, self._at_once = requests, setup, replica, at_once
        self.first_token_s, self.finish_s = np.full(size, math.nan), np.full(size, math.nan)
        self.evictions, self.hit_tokens, self.recovered_tokens = np.zeros((3, size), dtype=np.int64)
        self.shed = np.zeros(size, dtype=np.bool_)

    def keep(self, s: State) -> None:
        """Note what has become of the requests that stand in a row."""
        finish_s = s.time[:, FINISH]
        self.first_token_s[self.number] = s.time[:, FIRST_TOKEN]
        self.finish_s[self.number] = np.where(finish_s < 0, math.nan, finish_s)
        self._note(self.evictions, s.request[:, EVICTIONS])
        self._note(self.shed, s.request[:, PLACE] == GIVEN_UP)
        if self._setup.prefix_cache != NO_CACHE:
            self._note(self.hit_tokens, s.request[:, HIT])
            self._note(self.recovered_tokens, s.request[:, RECOVERED])

    def _note(self, kept: np.ndarray, found: np.ndarray) -> None:
        """Keep what is not 0: memory that nobody writes to is none."""
        at = np.flatnonzero(found)
        kept[self.number[at]] = found[at]

    def refilled(self, s: State) -> State:
        """The same state, with rows of the next requests behind those that it still needs."""
        self.keep(s)
        caches = self._setup.prefix_cache == BLOCKS
        needed = ~(s.time[:, FINISH] >= 0) & (s.request[:, PLACE] != GIVEN_UP)
        if caches:
            needed |= s.stream[:, CACHED] > 0
        c, left = s.counter, np.flatnonzero(needed)
        start = self.requests.arrival_s.size - int(c[ROWLESS])
        more = min(
            max(self._at_once, left.size), int(c[ROWLESS])
        )  # as many again, for what moving these costs
        row = np.full(self.number.size + 1, NOBODY)
        row[left] = np.arange(left.size)
        moved = s.request[left]
        moved[:, _LINKS] = row[moved[:, _LINKS]]
        s.list[:, HEAD], s.list[:, TAIL] = row[s.list[:, HEAD]], row[s.list[:, TAIL]]
        s.ring[:], c[PARTLY] = row[s.ring], row[c[PARTLY]]
        c[JOINED], c[RELEASED] = left.size, left.size + more
        c[ROWLESS] -= more
        self.number = np.concatenate((self.number[left], np.arange(start, start + more)))
        time, request = new_rows(self.requests, self._setup, self._replica, start, start + more)
        further = s._replace(
            time=np.concatenate((s.time[left], time)), request=np.concatenate((moved, request))
        )
        if not caches:
            return further
        c[OLDEST], c[NEWEST] = row[c[OLDEST]], row[c[NEWEST]]
        streams = s.stream[left]
        streams[:, IN_FRONT], streams[:, BEHIND] = row[streams[:, IN_FRONT]], row[streams[:, BEHIND]]
        _, _, others = block_streams(self.requests.part(start, start + more), self._replica.block_tokens)
        further = further._replace(stream=np.concatenate((streams, others)))
        each = np.arange(left.size + more)
        further.request[:, LEAF] = further.stream[:, FIRST] = further.stream[:, ORIGINAL] = each
        further.request[:, COPY] = further.request[:, COPIED] = NOBODY
        return further
