"""Random sessions of turns, each behind one of the branches of a tree, small enough for slow simulators."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from hypothesis import strategies as st
from small_runs import GAPS, Case

from kvplan.simulation.outcome import Ending, Outcome
from kvplan.simulation.requests import Prefixes, Requests, Turns

TURN = st.tuples(
    st.integers(0, 9), st.integers(1, 9), st.sampled_from([0.0, 0.5, 3.0, 11.0])
)  # new, decode, think
SESSION = st.tuples(st.integers(0, 9), st.lists(TURN, min_size=1, max_size=4), GAPS)  # branch, turns, gap
SESSIONS = st.lists(SESSION, min_size=1, max_size=6) | st.lists(SESSION, min_size=4, max_size=8)
BRANCHES = st.lists(st.tuples(st.integers(-1, 9), st.integers(0, 9)), min_size=1, max_size=4)  # from, tokens


@dataclass(frozen=True)
class Shape:
    """Sessions of turns, each behind one of the branches of a tree; those of a user follow each other."""

    branches: list[tuple[int, int]]
    sessions: list[tuple[int, list[tuple[int, int, float]], float]]
    users: int | None

    def requests(self) -> Requests:
        end: list[int] = []
        parent: list[int] = []
        for at, (before, tokens) in enumerate(self.branches):
            parent.append(before % (at + 1) - 1 if before >= 0 else -1)
            end.append(tokens + (end[parent[-1]] if parent[-1] >= 0 else 0))
        count = len(self.sessions) if self.users is None else min(self.users, len(self.sessions))
        rows: list[tuple[float, int, int, int, float]] = []  # arrival, input, decode, stream, think
        following: dict[tuple[int, int], tuple[int, int]] = {}
        clock, places, late = 0.0, {}, []
        for s, (branch, turns, gap) in enumerate(self.sessions):
            before = branch % (len(self.branches) + 1) - 1
            parent.append(before)
            end.append(0)
            clock += gap
            context = max(end[before], 1) if before >= 0 else 1  # a prompt has a token at least
            for t, (new, decode, think) in enumerate(turns):
                row = (clock if t == 0 and s < count else np.nan, context + new, decode, len(end) - 1, think)
                context += new + decode
                if t == 0 and s < count:
                    places[s, t] = len(rows)
                    rows.append(row)
                else:
                    late.append(((s, t), row))
                if t + 1 < len(turns):
                    following[s, t] = (s, t + 1)
                elif s + count < len(self.sessions) and self.users is not None:
                    following[s, t] = (s + count, 0)
        for key, row in late:
            places[key] = len(rows)
            rows.append(row)
        nexts, instead = np.full(len(rows), -1), np.full(len(rows), -1)
        for key, then in following.items():
            nexts[places[key]] = places[then]
        for s, t in places:
            if self.users is not None and s + count < len(self.sessions):
                instead[places[s, t]] = places[s + count, 0]
        arrival, inputs, decode_, stream, thinks = (np.array(column) for column in zip(*rows, strict=True))
        return Requests(
            arrival,
            inputs,
            decode_,
            np.zeros(len(rows), dtype=np.int64),
            prefixes=Prefixes(stream, np.array(parent), np.array(end)),
            turns=Turns(nexts, thinks, instead),
        )


SHAPES = st.builds(Shape, BRANCHES, SESSIONS, st.none() | st.integers(1, 4))


def settings_of(case: Case) -> dict[str, Any]:
    """Parameters as slow simulators take them: a number each, but for what classes have of their own."""
    return {key: values if key == "max_new" else values[0] for key, values in case.parameters.items()}


def same(fast: Outcome, kind: Any, case: Case) -> Any:
    """A run does what a slow one of a kind does, request by request, and finds what its cache finds."""
    cache = kind(case.requests, case.timing, case.replica, settings_of(case))
    slow = cache.run(case.horizon_s)
    assert (fast.ending is Ending.LIVELOCK) == slow.livelock
    assert fast.iterations == slow.iterations
    assert fast.series.kv_tokens.tolist() == slow.kv_per_iteration
    assert fast.series.waiting.tolist() == slow.waiting_per_iteration
    assert fast.evictions.tolist() == slow.evictions
    assert fast.recomputed_tokens == slow.recomputed_tokens
    for name in ("arrival_s", "first_token_s", "finish_s"):
        expected = np.array(getattr(slow, name), dtype=np.float64)
        np.testing.assert_allclose(getattr(fast, name), expected, rtol=1e-9)
    assert fast.found.hit_tokens.tolist() == cache.hits
    assert fast.found.recovered_tokens.tolist() == cache.recovered
    assert fast.found.cached_tokens.tolist() == cache.cached_per_iteration[: fast.iterations]
    return cache
