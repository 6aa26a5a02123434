"""Prefill and decode apart: the least split against trying all of them, with verdicts that are given."""

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvplan.analysis.split import served, sides
from kvplan.model import Plan, Replica, RequestClass, ServingModel, Timing
from kvplan.model.fleet import Fleet
from kvplan.planning.search import Setting
from kvplan.planning.split import apart, fewest_apart
from kvplan.profile.reading import parse_profile
from kvplan.study.objectives import State
from kvplan.study.trial import Judged, Quick, Task

MODEL = ServingModel(
    (RequestClass("a", 2000, (200,), (1.0,), 80.0),),
    Timing(8e-3, 0.04e-6, 25e-6, 15e-6),
    Replica(400_000, max_num_batched_tokens=8192),
)
TASK = Task(MODEL, Plan(), apart=Fleet(1, 1))
PROFILE = """
schema = 1
name = "a"
timing = { d0 = "8 ms", d1 = "0.04 us", d2 = "25 us" }
classes = [{ name = "a", input = 2000, decode = 200, rate = 10 }]
gpu = { memory_tokens = 400_000 }
"""


class _Judged:
    def __init__(self, state: State) -> None:
        self.state = state


def needing(prefill: int, decode: int) -> pytest.MonkeyPatch:
    """Splits are enough with so many replicas on either side."""
    patch = pytest.MonkeyPatch()

    def enough(task: Task) -> bool:
        return task.apart.prefill >= prefill and task.apart.decode >= decode

    def quick(task: Task, replicas: int, tokens: int | None) -> Quick:
        return Quick(0.5 if enough(task) else 2.0, ())

    def judge(task: Task, replicas: int, tokens: int | None) -> Judged:
        return _Judged(State.HOLDS if enough(task) else State.MISSES)  # type: ignore[return-value]

    patch.setattr(Task, "quick", quick)
    patch.setattr(Task, "judge", judge)
    return patch


@given(rate=st.floats(20, 300), more=st.floats(1.0, 1.3), most=st.integers(2, 40))
def test_the_least_split_is_the_one_that_trying_all_finds(rate: float, more: float, most: int) -> None:
    task = replace(TASK, model=replace(MODEL, classes=(replace(MODEL.classes[0], rate_rps=rate),)))
    found = sides(task.at(1, 8192, slower=True), Fleet(1, 1))
    prefill, decode = (
        math.ceil(more * rate / served(side).rate_rps) for side in (found.prefill, found.decode)
    )
    patch = needing(prefill, decode)
    try:
        fleet = fewest_apart(task, most, 8192)
    finally:
        patch.undo()
    least = min(
        (p + d for p in range(1, 41) for d in range(1, 41) if p >= prefill and d >= decode), default=0
    )
    assert (fleet.size if fleet else None) == (least if least <= most else None)


def test_where_nothing_is_enough_there_is_no_split() -> None:
    patch = needing(10**6, 1)
    try:
        assert fewest_apart(TASK, 50, 8192) is None
    finally:
        patch.undo()


def test_without_the_bytes_of_a_token_nobody_knows_what_a_transfer_takes() -> None:
    profile = parse_profile(PROFILE.encode(), "a.toml")
    task = Task(profile.model, Plan())
    found = apart(profile, task, Setting(4, None))
    assert found.fleet is None
    assert "kv_bytes_per_token" in found.why


def test_an_engine_that_does_not_fetch_is_not_asked() -> None:
    profile = parse_profile((PROFILE + 'engine = { name = "sglang" }\n').encode(), "a.toml")
    found = apart(profile, Task(profile.model, Plan()), Setting(4, None), 131_072)
    assert (found.fleet, "is not simulated for this engine" in found.why) == (None, True)
