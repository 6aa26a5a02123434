"""Requests under way, or next to come, as rows of a state; those that are done make room for others."""

import math
from collections.abc import Sequence
from functools import cached_property
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from kvplan.model import FloatArray, IntArray, Replica
from kvplan.simulation.initial_state import Setup, begin_rows, block_streams
from kvplan.simulation.requests import Requests, chosen
from kvplan.simulation.state import NOBODY, Cache, Counter, Fixed, List, Place, Request, State, Stream, Time

_LINKS = slice(Request.BEFORE, Request.DUE_AFTER + 1)  # columns that name a row
_TURNS = slice(Request.TURN_BEFORE, Request.TURN_AFTER + 1)  # where layers keep KV of several kinds, too
_QUEUED = slice(Stream.IN_FRONT, Stream.BEHIND + 1)  # of a stream
_Array = TypeVar("_Array", FloatArray, IntArray)


class RowPool:
    """Requests in the rows of a state, and results of those that stood in one.

    Where requests follow each other, have prompts in common, are ranked or leave something on the host, all have a row
    from the beginning to the end. Of strangers that a cache keeps, each has a stream of its own, in the same row.
    """

    def __init__(self, requests: Requests, setup: Setup, replica: Replica, at_once: int) -> None:
        size = requests.arrival_s.size
        apart = setup.prefix_cache == Cache.NONE or (
            setup.prefix_cache == Cache.BLOCKS and requests.prefixes is None
        )
        all_the_time = not requests.is_open or not apart or setup.ranks > 0 or setup.host is not None
        self.number = np.arange(size if all_the_time else min(size, at_once))
        self.requests, self._setup, self._replica, self._at_once = requests, setup, replica, at_once
        self.first_token_s, self._finish_s = np.full(size, math.nan), np.full(size, math.nan)
        self.evictions, self.hit_tokens, self.recovered_tokens = np.zeros((3, size), dtype=np.int64)
        self.loaded_tokens = np.zeros(size if setup.host is not None else 0, dtype=np.int64)
        self.shed = np.zeros(size, dtype=np.bool_)

    @cached_property
    def _stream(self) -> IntArray:
        """Stream of a stranger, the same for all but for their places."""
        *_, stream = block_streams(self.requests.part(0, 1), self._replica.block_tokens)
        return stream

    def extend(self, requests: Requests, setup: Setup) -> None:
        """Replace the requests by these, which begin with them."""
        more = requests.arrival_s.size - self.requests.arrival_s.size
        self.requests, self._setup = requests, setup
        self.first_token_s, self._finish_s = (
            np.append(times, np.full(more, math.nan)) for times in (self.first_token_s, self._finish_s)
        )
        self.evictions, self.hit_tokens, self.recovered_tokens = (
            np.append(counts, np.zeros(more, np.int64))
            for counts in (self.evictions, self.hit_tokens, self.recovered_tokens)
        )
        self.shed = np.append(self.shed, np.zeros(more, np.bool_))

    def keep_only(self, kept: IntArray) -> None:
        """Keep only these requests, ascending, among them all that have a row or come next."""
        self.requests = chosen(self.requests, kept)
        self.number = np.searchsorted(kept, self.number)
        self.first_token_s, self._finish_s = self.first_token_s[kept], self._finish_s[kept]
        self.evictions, self.hit_tokens = self.evictions[kept], self.hit_tokens[kept]
        self.recovered_tokens, self.shed = self.recovered_tokens[kept], self.shed[kept]

    def keep(self, states: Sequence[State]) -> None:
        """Note the results of requests that stand in a row, which replicas share."""
        s, size = states[0], self.number.size
        self.first_token_s[self.number] = by_request(s, Time.FIRST_TOKEN)
        self._finish_s[self.number] = by_request(s, Time.FINISH)
        counter = s.counter if len(states) == 1 else np.sum([one.counter for one in states], axis=0)
        if counter[Counter.EVICTED]:
            self._note(self.evictions, s.request[:, Request.EVICTIONS].reshape(-1, size).sum(axis=0))
        if counter[Counter.SHED]:
            self._note(self.shed, s.request[:size, Request.PLACE] == Place.GIVEN_UP)
        if counter[Counter.LOOKED_UP] and self.requests.prefixes is not None:
            # strangers find nothing of others
            self._note(self.hit_tokens, s.request[:size, Request.HIT])
            if self._setup.host is not None:
                self._note(self.loaded_tokens, s.request[:size, Request.LOADED])
        if counter[Counter.LOOKED_UP_AGAIN]:
            self._note(self.recovered_tokens, s.request[:size, Request.RECOVERED])

    @property
    def finish_s(self) -> FloatArray:
        """Completion of each request, seconds; NaN where it is not done."""
        self._finish_s[self._finish_s < 0] = math.nan  # of those under way, which wait outside groups
        return self._finish_s

    def _note(self, kept: NDArray[Any], values: NDArray[Any]) -> None:
        """Keep values that are not 0: memory never written to takes none."""
        at = np.flatnonzero(values)
        kept[self.number[at]] = values[at]

    def refilled(self, states: Sequence[State], further: int) -> tuple[tuple[State, ...], int, int]:
        """Replace rows that nobody needs by rows of the next requests, of whom `further` have none yet.

        Returns the states, how many rows are needed, and how many there are.
        """
        self.keep(states)
        s, caches = states[0], self._setup.prefix_cache == Cache.BLOCKS
        needed = ~(s.time[:, Time.FINISH] >= 0) & (s.request[:, Request.PLACE] != Place.GIVEN_UP)
        if caches:
            needed |= s.stream[:, Stream.CACHED] > 0
        left = np.flatnonzero(needed)
        count, begin = left.size, self.requests.arrival_s.size - further
        # at least as many again, for what moving these costs
        more = min(max(s.time.shape[0], 2 * count) - count, further)
        row = np.full(self.number.size + 1, NOBODY)
        row[left] = np.arange(count)
        _rename([one.ring for one in states], slice(None), row)
        _rename([one.turn for one in states], slice(None), row)
        _rename([one.list for one in states], (slice(None), [List.HEAD, List.TAIL]), row)
        _rename([one.counter for one in states], [Counter.PARTLY, Counter.OLDEST, Counter.NEWEST], row)
        self.number = np.concatenate((self.number[left], np.arange(begin, begin + more)))
        time, request = _moved(s.time, left, more), _moved(s.request, left, more)
        request[:count, _LINKS] = row[request[:count, _LINKS]]
        if s.turn.size:
            request[:count, _TURNS] = row[request[:count, _TURNS]]
        begin_rows(time[count:], request[count:], self.requests, self._setup, self._replica.prefill, begin)
        stream = s.stream
        if caches:
            stream = _moved(s.stream, left, more)
            stream[:count, _QUEUED] = row[stream[:count, _QUEUED]]
            stream[count:] = self._stream
            request[:, Request.LEAF] = stream[:, Stream.FIRST] = stream[:, Stream.ORIGINAL] = np.arange(
                count + more
            )
            request[count:, Request.COPY] = request[count:, Request.COPIED] = NOBODY
        tables = tuple(one._replace(time=time, request=request, stream=stream) for one in states)
        return tables, count, count + more


def by_request(s: State, column: int) -> FloatArray:
    """Return a column of `State.time`, of requests that go on at a decode replica as noted there."""
    size = int(s.fixed[Fixed.HANDED_OVER])
    values: FloatArray = s.time[:, column]
    if size == 0:
        return values
    return np.where(s.request[size:, Request.STAGES] > 1, values[size:], values[:size])


def _rename(arrays: Sequence[IntArray], which: Any, row: IntArray) -> None:
    """Renumber rows in arrays of one shape, all in one go."""
    if len(arrays) == 1:
        arrays[0][which] = row[arrays[0][which]]
        return
    every = np.stack(arrays)
    which = which if isinstance(which, tuple) else (which,)
    every[(slice(None), *which)] = row[every[(slice(None), *which)]]
    for array, renamed in zip(arrays, every, strict=True):
        array[:] = renamed


def _moved(rows: _Array, left: IntArray, more: int) -> _Array:
    """Move those that are left, with room for more behind them; in the same memory, if it is large enough."""
    size = left.size + more
    result = rows[:size] if size <= rows.shape[0] else np.empty((size, rows.shape[1]), rows.dtype)
    result[: left.size] = rows[left]
    return result
