"""The prefix cache of `vllm` against a pool of numbered blocks, and what holds whatever arrives."""

from dataclasses import dataclass, replace

import numpy as np
import slow_prefix_cache
from hypothesis import given
from hypothesis import strategies as st
from slow_simulator import SlowResult
from small_runs import GAPS, TIMINGS, Case, run
from tiers import examples

from kvplan.model import Replica, Timing
from kvplan.simulation.outcome import Ending, Outcome
from kvplan.simulation.prefixes import Prefixes, Turns
from kvplan.simulation.requests import Requests

TURN = st.tuples(
    st.integers(0, 9), st.integers(1, 9), st.sampled_from([0.0, 0.5, 3.0, 11.0])
)  # new, decode, think
SESSION = st.tuples(st.integers(0, 9), st.lists(TURN, min_size=1, max_size=4), GAPS)  # branch, turns, gap
SESSIONS = st.lists(SESSION, min_size=1, max_size=6) | st.lists(SESSION, min_size=4, max_size=8)
BRANCHES = st.lists(st.tuples(st.integers(-1, 9), st.integers(0, 9)), min_size=1, max_size=4)  # from, tokens
REPLICAS = st.builds(
    Replica,
    memory_tokens=st.integers(1, 8) | st.integers(1, 60),  # beside the longest request
    block_tokens=st.integers(1, 5),
    max_num_seqs=st.none() | st.integers(1, 6),
    max_num_batched_tokens=st.none() | st.integers(6, 30),
)


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


def case_of(
    shape: Shape,
    timing: Timing,
    replica: Replica,
    watermark: float,
    shed_after: float | None,
    horizon_s: float | None,
) -> Case:
    requests = shape.requests()
    longest = int((requests.input_tokens + requests.decode_tokens - 1).max())
    block = replica.block_tokens
    memory = (-(-longest // block) + 1) * block + replica.memory_tokens
    parameters = {"prefix_caching": (1.0,), "watermark": (watermark,)}
    if shed_after is not None:
        parameters["shed_after"] = (shed_after,)
    return Case(requests, timing, replace(replica, memory_tokens=memory), parameters, horizon_s)


CASES = st.builds(
    case_of,
    st.builds(Shape, BRANCHES, SESSIONS, st.none() | st.integers(1, 4)),
    TIMINGS,
    REPLICAS,
    st.sampled_from([0.0, 0.05, 0.3]),
    st.none() | st.sampled_from([0.0, 1.0, 5.0, 20.0]),
    st.none() | st.floats(0.0, 60.0),
)


def slow(case: Case) -> tuple[SlowResult, slow_prefix_cache.Cached]:
    given = {key: values[0] for key, values in case.parameters.items()}
    return slow_prefix_cache.simulate(
        case.requests, case.timing, case.replica, given, horizon_s=case.horizon_s
    )


def agree(case: Case, fast: Outcome) -> None:
    expected, pool = slow(case)
    assert (fast.ending is Ending.LIVELOCK) == expected.livelock
    assert fast.iterations == expected.iterations
    assert fast.series.kv_tokens.tolist() == expected.kv_per_iteration
    assert fast.series.waiting.tolist() == expected.waiting_per_iteration
    assert fast.evictions.tolist() == expected.evictions
    assert fast.recomputed_tokens == expected.recomputed_tokens
    for times, wanted in (
        (fast.arrival_s, expected.arrival_s),
        (fast.first_token_s, expected.first_token_s),
        (fast.finish_s, expected.finish_s),
    ):
        np.testing.assert_allclose(times, np.array(wanted, dtype=np.float64), rtol=1e-9)
    assert fast.found is not None
    assert fast.found.hit_tokens.tolist() == pool.hits
    assert fast.found.recovered_tokens.tolist() == pool.recovered
    assert fast.found.cached_tokens.tolist() == pool.cached_per_iteration[: fast.iterations]


@examples(400)
@given(case=CASES)
def test_every_request_finds_what_a_pool_of_numbered_blocks_has_for_it(case: Case) -> None:
    agree(case, run("vllm", case))
