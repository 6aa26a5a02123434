"""The judge of greedy admission against a plain one, against kvplan's simulator, and against closed forms."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from saturated_greedy import EMPTY, Residents, Server, drain, draw, judge, measure, run, starts
from strategies import mix_model
from tiers import examples

from kvplan.model import Plan, Prefill, Replica, RequestClass, ServingModel, Timing
from kvplan.simulation import engine
from kvplan.simulation.policies import POLICIES
from kvplan.simulation.policies.protocol import Scenario, Settings
from kvplan.simulation.requests import Requests


@st.composite
def servers(draw: st.DrawFn) -> ServingModel:
    """A few requests at a time, of lengths that fill pages in every way."""
    convention = draw(st.sampled_from(Prefill))
    inputs = st.integers(int(convention is Prefill.INLINE), 12)
    lengths = st.lists(st.integers(1, 12), min_size=1, max_size=3, unique=True).map(
        lambda d: tuple(sorted(d))
    )
    classes = tuple(
        RequestClass(f"class {i}", s, d, (1.0,) * len(d), rate)
        for i, (s, d, rate) in enumerate(
            draw(st.lists(st.tuples(inputs, lengths, st.sampled_from([1.0, 3.0])), min_size=1, max_size=3))
        )
    )
    block = draw(st.sampled_from([1, 1, 3, 4]))
    longest = max(c.max_tokens for c in classes) + block
    timing = draw(st.sampled_from([Timing(1.0), Timing(0.5, d1=0.25, d2=0.125, d3=0.0625)]))
    most = draw(st.none() | st.integers(1, 9))
    replica = Replica(
        longest + draw(st.integers(0, 200)), block_tokens=block, prefill=convention, max_num_seqs=most
    )
    return ServingModel(classes, timing, replica)


def plainly(
    server: Server, start: Residents, fresh: list[int], iterations: int, cap: float | None
) -> list[tuple]:
    """Clock, completed and evicted at the beginning of each iteration, by moving every request."""

    def pages(row: int, stage: int) -> int:
        return math.ceil((int(server.first[row]) + stage) / server.block_tokens)

    running = [[int(row), int(age)] for row, age in zip(start.row, start.age, strict=True)]
    queue = [(row, False) for row in fresh]
    clock, completed, evicted, history = 0.0, 0, 0, []
    for t in range(iterations):
        running = [[row, stage + 1] for row, stage in running]
        completed += sum(stage == server.stages[row] for row, stage in running)
        running = [[row, stage] for row, stage in running if stage < server.stages[row]]
        history.append((clock, completed, evicted))
        while sum(pages(*request) for request in running) > server.pages:
            least = min(stage for _, stage in running)
            last = max(i for i, (_, stage) in enumerate(running) if stage == least)
            queue.insert(0, (running.pop(last)[0], True))
            evicted += 1
        allowed = len(queue) if cap is None else math.floor((t + 1) * cap) - math.floor(t * cap)
        prompts = 0
        while allowed > 0 and len(running) < server.max_num_seqs:
            row, again = queue[0]
            if sum(pages(*request) for request in running) + pages(row, 0) > server.pages:
                break
            queue.pop(0)
            running.append([row, 0])
            allowed -= 1
            if again or not server.ready_made:
                prompts += int(server.input_tokens[row])
        read = sum(int(server.first[row]) + stage for row, stage in running)
        d0, d1, d2, d3 = server.timing
        clock += d0 + d1 * read + d2 * prompts + d3 * len(running)
    return history


@examples(40)
@given(servers(), st.integers(0, 7), st.integers(0, 10**6), st.none() | st.sampled_from([0.3, 1.0, 1.7]))
def test_plain_loop_agrees_to_the_unit(model: ServingModel, which: int, seed: int, cap: float | None) -> None:
    server = Server.of(model)
    choices = [start for _, start in starts(server, np.random.default_rng(seed))]
    start = choices[which % len(choices)]
    marks = np.arange(1, 60)
    fresh = draw(server, 60, seed)
    table = run(server, start, fresh, marks, cap=cap)
    history = plainly(server, start, fresh.tolist(), int(table["iterations"][-1]) + 1, cap)
    for row in table:
        clock, completed, evicted = history[int(row["iterations"])]
        assert (row["completed"], row["evicted"]) == (completed, evicted)
        assert row["clock_s"] == pytest.approx(clock, rel=1e-12, abs=1e-12)


@examples(40)
@given(servers(), st.integers(0, 10**6))
def test_simulator_of_kvplan_agrees_to_the_unit(model: ServingModel, seed: int) -> None:
    server = Server.of(model)
    fresh = draw(server, 100, seed)
    table = run(server, EMPTY, fresh, np.arange(1, 100))
    mix = model.mix
    requests = Requests(
        np.zeros(fresh.size), mix.input_tokens[fresh], mix.decode_tokens[fresh], mix.class_index[fresh]
    )
    policy = POLICIES["greedy"]
    setup, _ = policy.prepare(
        Scenario(model, Plan(), requests, tuple(c.name for c in model.classes)), Settings("greedy", {})
    )
    outcome = engine.run(
        policy.form_batch,
        requests,
        model.timing,
        model.replica,
        setup,
        compile=False,
        horizon_s=float(table["clock_s"][-1]) + 1e-6,
    )
    finish = np.sort(outcome.finish_s[~np.isnan(outcome.finish_s)])
    upto = np.searchsorted(finish, table["clock_s"] + 1e-9, side="right")
    assert upto.tolist() == table["completed"].astype(int).tolist()
    at_end = outcome.series.time_s.searchsorted(float(table["clock_s"][-1]) - 1e-9)
    assert outcome.series.evictions[at_end] == table["evicted"][-1]


def test_one_fixed_length_reaches_its_worst_cycle() -> None:
    """SIC: x_w = M/(d(s + d)), here 100 of 10 stages for 100 tokens: 10 an iteration, n* = 1000·100/(90·10 + 55)."""
    server = Server.of(mix_model((90, 10, 1.0), memory=100_000))
    found = judge(server, 1, completions=20_000)["pulses of 10"]
    assert found.rate_rps == pytest.approx(100.0, rel=0.01)
    assert found.evictions_per_iteration > 0


def test_cap_keeps_memory_from_overflowing() -> None:
    """At n* an iteration of one length, all ages are equally many, whatever the state before."""
    server = Server.of(mix_model((91, 16, 1.0), memory=160_000))
    cap = server.pages / server.mean_footprint
    capped = measure(server, EMPTY, 1, completions=20_000, cap=0.999 * cap)
    assert capped.rate_rps == pytest.approx(0.999 * cap, rel=0.005)
    assert capped.evictions_per_iteration < 0.001 * cap


def test_backlog_drains_where_there_is_room_alone() -> None:
    """Weights that hardly grow recover from any burst; below the offered rate nothing drains."""
    server = Server.of(mix_model((1000, 10, 1.0), memory=1_000_000))
    fast = drain(server, EMPTY, 1, rate_rps=0.7 * server.sustainable_rps, burst_s=100.0, limit=100_000)
    assert fast.backlog > 1000
    assert fast.left == 0
    slow = drain(server, EMPTY, 1, rate_rps=1.1 * server.sustainable_rps, burst_s=100.0, limit=100_000)
    assert slow.left > slow.backlog / 2
