"""Iterations in which nothing happens are run in a stretch: as one by one to the last bit, sums but for rounding."""

from dataclasses import fields, is_dataclass
from functools import partial
from unittest import mock

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvplan.model import Engine, Plan, Replica, RequestClass, Scheduling, ServingModel, Timing
from kvplan.model.fleet import Fleet, Routing
from kvplan.model.gaps import Exponential, Lognormal
from kvplan.model.kv_layout import Attention, KvLayout, Layers
from kvplan.model.lengths import Lengths
from kvplan.model.sessions import Reuse, Sessions
from kvplan.simulation import engine, fast_forward
from kvplan.simulation.experiments.load import Arrivals, Load, generate
from kvplan.simulation.fleet import run as fleet_run
from kvplan.simulation.fleet.run import groups
from kvplan.simulation.outcome import Ending
from kvplan.simulation.policies import POLICIES
from kvplan.simulation.policies.protocol import Scenario, Settings
from kvplan.simulation.requests import Requests, closed, poisson
from kvplan.simulation.sessions import stream_of_sessions

COASTING = ("greedy", "vllm", "vllm-v0", "trtllm-max-utilization", "trtllm-no-evict", "sarathi")
CHAT = Sessions(
    first=Lengths.uniform(50, 400),
    user=Lengths.uniform(5, 60),
    decode=Lengths.uniform(2, 90),
    turns=Lengths.uniform(2, 6),
    think=Lognormal(2.0, 1.0),
)


SUMS = {"busy_s", "kv_s", "running_s", "waiting_s", "cached_s", "gap_sum_s", "sums", "totals"}


def same(one: object, other: object, name: str = "") -> bool:
    """Bit by bit, but for sums of floats."""
    if is_dataclass(one):
        return all(same(getattr(one, f.name), getattr(other, f.name), f.name) for f in fields(one))
    if name in SUMS:
        return bool(np.allclose(one, other, rtol=1e-11, atol=1e-11, equal_nan=True))
    if isinstance(one, np.ndarray):
        return one.tobytes() == np.asarray(other).tobytes()
    return one == other


@given(
    policy=st.sampled_from(COASTING),
    kind=st.sampled_from(["open", "closed", "sessions"]),
    seed=st.integers(0, 1000),
    memory=st.integers(500, 6000),
    block=st.sampled_from([1, 16]),
    seats=st.sampled_from([None, 4]),
    budget=st.sampled_from([None, 64, 7, 1]),
    rate=st.floats(0.1, 5.0),
    horizon_s=st.sampled_from([None, 20.0]),
    patience_s=st.sampled_from([None, 1.0]),
    caching=st.booleans(),
    admission=st.sampled_from([0.0, 1.0]),
)
def test_a_stretch_is_what_its_iterations_are_one_by_one(
    policy: str,
    kind: str,
    seed: int,
    memory: int,
    block: int,
    seats: int | None,
    budget: int | None,
    rate: float,
    horizon_s: float | None,
    patience_s: float | None,
    caching: bool,
    admission: float,
) -> None:
    replica = Replica(memory, block_tokens=block, max_num_seqs=seats, max_num_batched_tokens=budget)
    timing = Timing(
        0.01, d1=1e-6, d2=8e-5, d4=1e-3, d5=1e-5, knee_tokens=20, d6=1e-7, experts=2e-3, chosen=0.06
    )
    model = ServingModel((RequestClass("a", 100, (2, 150), (1.0, 1.0), rate),), timing, replica)
    rng = np.random.default_rng(seed)
    requests: Requests
    if kind == "sessions":
        requests = stream_of_sessions([CHAT], [rate / 5], rng, requests=40, horizon_s=None)
    elif kind == "closed":
        requests = closed(model, rng, clients=5, requests=40)
    else:
        requests = poisson(model, rng, requests=40, horizon_s=None)
    given: dict[str, tuple[float, ...]] = {}
    if patience_s is not None and policy != "greedy":
        given["shed_after"] = (patience_s,)
    if policy == "vllm":
        given |= {"prefix_caching": (float(caching),), "admission": (admission,)}
    setup, _ = POLICIES[policy].prepare(Scenario(model, Plan(), requests, ("a",)), Settings(policy, given))
    assert setup.coasts
    stretches, iterations = (
        engine.run(
            POLICIES[policy].form_batch,
            requests,
            timing,
            replica,
            setup._replace(coasts=coasts),
            request_overhead_s=0.01,
            horizon_s=horizon_s,
            compile=False,
        )
        for coasts in (True, False)
    )
    assert same(stretches, iterations)


@given(
    policy=st.sampled_from(["vllm", "greedy"]),
    windows=st.sampled_from([Layers(Attention.WINDOW, 3, 16, 60), Layers(Attention.CHUNK, 2, 16, 40)]),
    block=st.sampled_from([1, 2, 16]),
    seed=st.integers(0, 1000),
    memory=st.integers(1500, 8000),
    budget=st.sampled_from([None, 64]),
    rate=st.floats(0.1, 20.0),
    by_priority=st.booleans(),
)
def test_members_that_are_looked_up_at_their_turns_alone_hold_and_read_what_all_do(
    policy: str,
    windows: Layers,
    block: int,
    seed: int,
    memory: int,
    budget: int | None,
    rate: float,
    by_priority: bool,
) -> None:
    layout = KvLayout((windows, Layers(Attention.FULL, 1, 16)), block)
    replica = Replica(memory, block, max_num_batched_tokens=budget, layout=layout)
    classes = [RequestClass(name, 100, (2, 150), (1.0, 1.0), rate, priority=i) for i, name in enumerate("ab")]
    engine_of = Engine(scheduling=Scheduling.PRIORITY) if by_priority and policy == "vllm" else None
    model = ServingModel(tuple(classes), Timing(0.01, d1=1e-6, d2=8e-5), replica, engine=engine_of)
    requests = poisson(model, np.random.default_rng(seed), requests=40, horizon_s=None)
    scenario = Scenario(model, Plan(), requests, ("a", "b"))
    setup, _ = POLICIES[policy].prepare(scenario, Settings(policy, {}))
    form_batch, timing = POLICIES[policy].form_batch, model.timing
    at_turns, one_by_one = (
        engine.run(form_batch, requests, timing, replica, setup._replace(coasts=coasts), compile=False)
        for coasts in (True, False)
    )
    assert setup.coasts
    assert same(at_turns, one_by_one)


@given(
    policy=st.sampled_from(COASTING),
    kind=st.sampled_from(list(Arrivals)),
    routing=st.sampled_from(list(Routing)),
    seed=st.integers(0, 1000),
    memory=st.integers(320, 6000),
    longest=st.sampled_from([60, 600]),
    budget=st.sampled_from([None, 64, 7, 1]),
    again=st.sampled_from([None, Reuse(0.9, 0.8, Exponential(3.0))]),
    patience_s=st.sampled_from([None, 1.0]),
    split=st.booleans(),
    horizon_s=st.sampled_from([None, 5.0]),
    steps=st.sampled_from([1, 7, 1000]),
    look_ahead=st.sampled_from([3, 1000]),
)
def test_so_it_is_where_others_act_meanwhile(
    policy: str,
    kind: Arrivals,
    routing: Routing,
    seed: int,
    memory: int,
    longest: int,
    budget: int | None,
    again: Reuse | None,
    patience_s: float | None,
    split: bool,
    horizon_s: float | None,
    steps: int,
    look_ahead: int,
) -> None:
    """However often the caller looks up, however far replicas look ahead, and where an answer never fits."""
    fleet = Fleet(2, 2, routing=routing) if split and policy == "vllm" else Fleet(replicas=4, routing=routing)
    replica = Replica(memory, block_tokens=16, max_num_batched_tokens=budget)
    chat = RequestClass("chat", 300, (2, longest), (0.5, 0.5), 8.0, reuse=again)
    model = ServingModel((chat,), Timing(0.01, 1e-6, 1e-4, 1e-5), replica, fleet=fleet)
    closed = kind is Arrivals.CLOSED
    requests = generate(model, Load(kind=kind, requests=40, concurrency=9 if closed else None), seed)
    given = {"shed_after": (patience_s,)} if patience_s is not None and policy != "greedy" else {}
    scenario = Scenario(model, Plan(), requests, ("chat",), seed)
    found, _ = groups(POLICIES[policy], scenario, Settings(policy, given))
    single = [group._replace(setup=group.setup._replace(coasts=False)) for group in found]
    serve = partial(
        fleet_run.run, POLICIES[policy].form_batch, requests, seed=seed, horizon_s=horizon_s, compile=False
    )
    with (
        mock.patch.object(fleet_run, "_PLAIN_STEPS", steps),
        mock.patch.object(fast_forward, "_LOOK_AHEAD", look_ahead),
    ):
        stretches = serve(found, routing)
    iterations = serve(single, routing)
    if Ending.LIVELOCK in (
        stretches.ending,
        iterations.ending,
    ):  # how far the other replicas are then is chance
        assert stretches.ending is iterations.ending
    else:
        assert same(stretches, iterations)


@pytest.mark.parametrize(("compile", "steps"), [(False, 1000), (True, 500_000)])
def test_a_fleet_looks_up_between_so_many_iterations(compile: bool, steps: int) -> None:
    """Two replicas, an answer each, long enough for four looks: not only when somebody comes."""
    length = 2 * steps
    requests = Requests(np.zeros(2), np.full(2, 10), np.full(2, length), np.zeros(2, dtype=np.int64))
    model = ServingModel((RequestClass("a", 10, (length,), (1.0,), 1.0),), Timing(1.0), Replica(10**8))
    policy, looks = POLICIES["greedy"], []
    setup, _ = policy.prepare(Scenario(model, Plan(), requests, ("a",)), Settings("greedy", {}))
    pair = [fleet_run.ReplicaGroup(2, model.timing, model.replica, setup)]

    def look(completed: int) -> bool:
        looks.append(completed)
        return True

    outcome = fleet_run.run(
        policy.form_batch, requests, pair, Routing.ROUND_ROBIN, compile=compile, watch=look
    )
    assert outcome.iterations == 2 * length
    assert len(looks) >= 4
    watched = iter([True, False])
    cut = fleet_run.run(
        policy.form_batch, requests, pair, Routing.ROUND_ROBIN, compile=compile, watch=lambda _: next(watched)
    )
    assert cut.ending is Ending.INTERRUPTED
    assert cut.iterations <= 2 * (steps + 1)
