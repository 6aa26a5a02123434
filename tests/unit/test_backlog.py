"""Saturated runs from given states, against a slow simulator that goes on from the same state."""

from dataclasses import replace
from fractions import Fraction
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import slow_simulator
from hypothesis import given
from hypothesis import strategies as st
from strategies import mix_model
from tiers import examples

from kvplan.model import FloatArray, Plan, Prefill, ServingModel, Timing
from kvplan.model.parallelism import Parallelism
from kvplan.simulation.backlog import Backlog, Mark, _in_progress, blocks_needed, joined
from kvplan.simulation.engine import ROWS
from kvplan.simulation.experiments.runner import Job
from kvplan.simulation.policies.protocol import Scenario, Settings
from kvplan.simulation.requests import Requests, chosen, saturated
from kvplan.simulation.state import Fixed, Group, Place, Request
from kvplan.study.recovery import recovery

SEED = [7]
LAW = Timing(0.5, 2e-3, 3e-3, 4e-3, 5e-2, 2e-2, knee_tokens=20.0, experts=0.2, chosen=0.1)


def waiting(model: ServingModel, count: int) -> Requests:
    """Those who wait in a backlog with this seed: the same, however many."""
    rng = np.random.default_rng([*SEED, 0])
    return chosen(saturated(model, rng, requests=1 << 12), np.arange(count))


class Slow:
    """A backlog request by request, which begins with some that run already."""

    def __init__(self, policy: str, model: ServingModel, residents: Requests, ages: Any, number: int) -> None:
        everybody = joined([residents, waiting(model, number)])
        kind = slow_simulator.POLICIES[policy]
        self.run = kind(everybody, model.timing, model.replica, {"watermark": 0.0, "admission": 0.0})
        self.model, self.engine = model, policy == "vllm"
        self.run.queue, self.run.to_come = list(self.run.all), []
        for request, age in zip(self.run.all, ages, strict=False):
            self.run.queue.remove(request)
            self.run.resident.append(request)
            if self.engine:
                request.generated, request.computed = age, request.input_tokens + age - 1
                request.blocks = -(-request.computed // model.replica.block_tokens)
            else:
                request.stage = age

    def served(self) -> tuple[float, float, float]:
        """Blocks of every stage that is not lost, those stages, and the prompts of all who ever began."""
        footprint = stages = prompts = 0.0
        for request in self.run.all:
            first = max(request.input_tokens, 1) if self.engine else request.first_weight
            passed = request.generated if self.engine else request.stage
            if request.finish_s is not None:
                passed = request.decode_tokens if self.engine else request.stages
            footprint += sum(-(-(first + k) // self.model.replica.block_tokens) for k in range(passed))
            stages += passed
            if request in self.run.resident or request.finish_s is not None or request.evictions:
                prompts += request.input_tokens
        return footprint, stages, prompts

    def on(self, iterations: int) -> dict[str, float]:
        """What is done in so many iterations: seconds, and the amounts that iterations are made of."""
        run, law = self.run, self.model.timing
        total = dict.fromkeys(("busy_s", "context", "prefill", "sequences", "completed", "evicted"), 0.0)
        for _ in range(iterations):
            batch = run.form(drain=False)
            work = run.execute(batch)
            beyond = max(0.0, work.prefill_tokens + work.sequences - law.knee_tokens)
            total["busy_s"] += (
                law.d0 + law.d1 * work.kv_tokens + law.d2 * work.prefill_tokens + law.d3 * work.sequences
            )
            total["busy_s"] += law.d4 * work.sequences**0.5 + law.d5 * beyond
            asleep = (1 - law.chosen) ** (work.prefill_tokens + work.sequences)
            total["busy_s"] += law.experts * (1 - asleep)
            total["context"] += work.kv_tokens
            total["prefill"] += work.prefill_tokens
            total["sequences"] += work.sequences
            for request in work.leaving:
                request.finish_s = 0.0
                run.resident.remove(request)
            total["completed"] += len(work.leaving)
        total["evicted"] = sum(request.evictions for request in run.all)
        return total


def state(model: ServingModel, policy: str, seed: int) -> tuple[Requests, Any]:
    """Requests at random ages, as many as fit; oldest first."""
    rng = np.random.default_rng(seed)
    some = saturated(model, rng, requests=40)
    stages = some.decode_tokens + (model.replica.prefill is Prefill.INLINE)
    lives = np.flatnonzero(stages > 1)
    some, stages = chosen(some, lives), stages[lives]
    ages = rng.integers(1, stages)
    held = np.cumsum(blocks_needed(model, some, ages, engine=policy == "vllm"))
    room = model.replica.memory_tokens // model.replica.block_tokens - 1
    fit = int(np.searchsorted(held, room, side="right"))
    order = np.argsort(-ages[:fit], kind="stable")
    return chosen(some, order), ages[order]


CASES = st.tuples(
    st.sampled_from(["disaggregated", "inline", "fused", "vllm"]),
    st.sampled_from([1, 3, 4]),
    st.integers(60, 300),
    st.integers(0, 1000),
)


@given(CASES, st.sampled_from([((2, 3, 1.0),), ((5, (4, 9), 1.0), (0, 7, 2.0)), ((8, (1, 12, 30), 1.0),)]))
@examples(25)
def test_a_backlog_goes_on_from_a_state_as_a_slow_simulator_does(
    case: tuple[str, int, int, int], rows: tuple[Any, ...]
) -> None:
    kind, block, memory, seed = case
    policy, prefill = ("vllm", "fused") if kind == "vllm" else ("greedy", kind)
    model = mix_model(*rows, memory=memory, block_tokens=block, prefill=prefill, timing=LAW)
    residents, ages = state(model, policy, seed)
    given = {"prefix_caching": (0.0,)} if policy == "vllm" else {}
    run = Backlog(model, Plan(), Settings(policy, given), SEED, residents, ages)
    slow = Slow(policy, model, residents, ages.tolist(), 2000)
    found, known = run.on(40), slow.on(40)
    assert run.never_ran_dry
    assert (found.iterations, found.completed, found.evicted) == (40, known["completed"], known["evicted"])
    for name in ("context", "prefill", "sequences", "busy_s"):
        assert getattr(found, name) == pytest.approx(known[name], rel=1e-12), name
    assert (found.footprint, found.tokens, found.prompt_tokens) == slow.served()


def test_residents_that_are_evicted_at_once_are_not_taken_for_done() -> None:
    """As many as fit, all of one age, do not fit in the first iteration."""
    model = mix_model((100, (20, 40), 1.0), memory=4000, prefill="fused")
    some = chosen(saturated(model, np.random.default_rng(1), requests=38), np.arange(38))
    ages = np.full(38, 6)  # 105 tokens each are 3,990 of 3,999, and one more is too much
    run = Backlog(model, Plan(), Settings("vllm", {"prefix_caching": (0.0,)}), SEED, some, ages)
    slow = Slow("vllm", model, some, ages.tolist(), 2000)
    for iterations in (1, 400):
        found, known = run.on(iterations), slow.on(iterations)
        assert found.evicted == known["evicted"] > 0
        assert (found.footprint, found.tokens, found.prompt_tokens) == slow.served()


def test_what_is_served_by_hand() -> None:
    """Input 7, decode 2: holds 8 and 9 tokens of 9, one at a time; two iterations of a second each.

    A footprint of 17 token-iterations, two tokens, a prompt of 7; the half that is under way after 3 iterations too.
    """
    model = mix_model((7, 2, 0.1), memory=9)
    run = Backlog(model, Plan(), Settings("greedy", {}), SEED)
    assert run.means() == pytest.approx((17.0, 2.0, 7.0))
    assert run.on(2)[:4] == (17.0, 2.0, 7.0, 2.0)
    assert run.on(1)[:4] == (17.0 + 8, 3.0, 14.0, 3.0)
    assert run.on(9)[:4] == (6 * 17.0, 12.0, 42.0, 12.0)


def test_a_long_run_forgets_who_is_done() -> None:
    """The same by hand, of 100,000 requests one after the other: those that there are rows for, and as many behind."""
    run = Backlog(mix_model((7, 2, 0.1), memory=9), Plan(), Settings("greedy", {}), SEED)
    assert run.on(200_000)[:4] == (1_700_000.0, 200_000.0, 700_000.0, 200_000.0)
    assert run._run.pool.requests.arrival_s.size <= 8 * ROWS


def test_what_is_lost_is_not_served() -> None:
    """Input 2, decode 3 in 12 tokens (theory: greedy serves .8 of M/12 at its worst): by fractions, in blocks of one.

    Served are completions alone, whatever was computed again: rate times footprint, over a whole number of cycles.
    """
    model = mix_model((2, 3, 1.0), memory=12)
    run = Backlog(model, Plan(), Settings("greedy", {}), SEED)
    before, after = run.on(3000), run.on(30_000)
    per_iteration = Fraction(after.completed - before.completed, 30_000)
    footprint = (after.footprint - before.footprint) / 30_000
    assert footprint == pytest.approx(float(per_iteration) * 12, rel=1e-3)
    assert after.evicted > before.evicted


def rows_of(run: Backlog, parts: int, iterations: int) -> FloatArray:
    marks = [run.mark(), *(run.on(iterations) for _ in range(parts))]
    return np.diff(np.array(marks, dtype=np.float64), axis=0)


def test_time_under_another_law_is_that_of_a_run_under_it() -> None:
    """A saturated replica does the same whatever its iterations take; only the knee is part of the sums."""
    model = mix_model((5, (4, 9), 1.0), (3, 7, 2.0), memory=300, prefill="fused", timing=LAW)
    other = Timing(0.01, 5e-4, 0.0, 1e-3, 7e-3, 9e-3, knee_tokens=20.0, experts=0.01, chosen=0.1)
    settings = Settings("greedy", {})
    run, known = (Backlog(replace(model, timing=law), Plan(), settings, SEED) for law in (LAW, other))
    found = run.seconds(rows_of(run, 5, 300), other)
    sums = rows_of(known, 5, 300)
    assert found == pytest.approx(sums[:, Mark._fields.index("busy_s")], rel=1e-12)


def test_ranks_serve_as_often_what_an_engine_does_and_less_where_they_wait_for_the_busiest() -> None:
    """A constant time knows no busiest rank; where prompts take it, the most of four is well above their mean."""
    one = mix_model(
        (90, (5, 30, 60), 1.0), (20, (40,), 1.0), memory=1500, prefill="fused", timing=Timing(1.0)
    )
    four = replace(one, replica=replace(one.replica, memory_tokens=6000, parallelism=Parallelism(data=4)))
    settings = Settings("vllm", {"prefix_caching": (0.0,)})
    alone, ranks = (recovery(model, settings) for model in (one, four))
    assert alone.reason is None
    assert ranks.served_rps == pytest.approx(4 * alone.served_rps, rel=0.01)
    law = Timing(0.2, d2=0.01)  # of a rank
    waits = replace(four, timing=law.of_ranks(4))
    busy, waiting = (recovery(model, settings).served_rps for model in (replace(one, timing=law), waits))
    many = saturated(waits, np.random.default_rng(1), requests=6000)
    whole = Job(settings, Scenario(waits, Plan(), many, ("a", "b"))).run()
    assert waiting == pytest.approx(6000 / whole.end_s, rel=0.03)
    assert waiting < 0.8 * 4 * busy


def test_residents_are_dealt_to_ranks() -> None:
    model = mix_model((100, (20, 40), 1.0), memory=4000, prefill="fused")
    ranks = replace(model, replica=replace(model.replica, parallelism=Parallelism(data=3)))
    some = chosen(saturated(model, np.random.default_rng(1), requests=26), np.arange(26))
    ages = np.arange(1, 27)[::-1] % 19 + 1
    first = Backlog(ranks, Plan(), Settings("vllm", {"prefix_caching": (0.0,)}), SEED, some, ages).on(1)
    # all fit: each emits a token more, and an iteration reads as much as thrice the rank with most
    held = 100 + ages
    assert first.context >= 3 * max(held[rank::3].sum() for rank in range(3))
    assert first.sequences >= 26
    assert first.tokens == ages.sum() + first.sequences


def test_of_several_queues_whoever_has_begun_is_in_progress() -> None:
    """Two priorities and one group: who waits in the second, preempted, and who stands by have emitted tokens."""
    at = np.zeros((6, Request.WIDTH), dtype=np.int64)
    at[:, Request.PLACE] = [
        0,
        1,
        1,
        2,
        3,
        Place.OUTSIDE,
    ]  # two queues, the group, those who stand by behind it
    at[:, Request.STAGE] = [0, 4, 0, 0, 6, 0]
    fixed = np.zeros(Fixed.WIDTH, dtype=np.int64)
    fixed[Fixed.QUEUES] = 2
    group = np.zeros((1, Group.WIDTH), dtype=np.int64)
    group[0, Group.TICK] = 9  # began at 0: its tenth token
    row, emitted = _in_progress((SimpleNamespace(request=at, fixed=fixed, group=group),))  # type: ignore[arg-type]
    assert (row.tolist(), emitted.tolist()) == ([1, 3, 4], [4, 10, 6])
