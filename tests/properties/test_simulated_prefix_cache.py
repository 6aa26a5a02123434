"""The prefix cache of `vllm` against a pool of numbered blocks, and what holds whatever arrives."""

from dataclasses import replace

import numpy as np
import pytest
import shipped
import slow_prefix_cache
import slow_simulator
from cached_cases import CASES, LIMITS_S
from hypothesis import example, given
from hypothesis import strategies as st
from session_shapes import Shape, same, settings_of
from small_runs import CLASSES, Case, bytes_of, run
from tiers import examples

from kvplan.analysis.cache_states import cached_replica
from kvplan.model import Replica, Timing
from kvplan.simulation.policies import POLICIES
from kvplan.simulation.requests import Requests, prefixes_of_hashes
from kvplan.study.warm_cache import session_cap


@examples(150)
@given(case=CASES)
def test_every_request_finds_what_a_pool_of_numbered_blocks_has_for_it(case: Case) -> None:
    same(run("vllm", case), slow_prefix_cache.Cached, case)


@examples(20)
@given(case=CASES, cap=st.integers(1, 4))
def test_no_more_conversations_than_a_cap_are_in_flight(case: Case, cap: int) -> None:
    parameters = {key: value for key, value in case.parameters.items() if key != "shed_after"}
    case = replace(case, parameters={**parameters, "cap": (float(cap),)})
    same(run("session-cap", case), slow_prefix_cache.Capped, case)


def test_of_caps_on_conversations_one_ends_a_collapse() -> None:
    """CONCUR's claim in direction: from the collapsed state more is served, the cache is warm again, nobody waits.

    A cap has room for more conversations than are in flight at the offered rate: else the burst is never over. With so
    many that less is served than at the peak, one too many makes iterations slower and brings more of them.
    """
    profile = shipped.profile("agents-collapse")
    cached, found = cached_replica(profile.model), session_cap(profile.model, profile.plan)
    assert found is not None
    assert found.gain > 0.05
    assert found.ttft_s_with < 0.1
    assert found.ttft_s_without > 60
    states = cached.states(np.linspace(0.1, 1.0, 400))
    think_s = 15 / 16 * profile.model.classes[0].sessions.think.mean_s  # none after the last of 16 turns
    in_flight = states.admissions * cached.stages + states.rate_rps * think_s
    offered, peak = in_flight[states.rate_rps >= cached.rate_rps][0], in_flight[states.rate_rps.argmax()]
    assert (offered, peak) == pytest.approx((240.5, 345), rel=0.01)
    assert 1.1 * offered < found.cap < 0.9 * peak


@pytest.mark.parametrize("turns", [True, False])
def test_compiled_runs_leave_the_same_bytes(turns: bool) -> None:
    shape = Shape(
        [(-1, 7), (1, 3)], [(s % 3, [(3, 5, 2.0), (0, 4, 0.5), (6, 7, 0.0)], 1.5) for s in range(40)], 9
    )
    requests = shape.requests()
    if not turns:
        arrival = np.arange(requests.arrival_s.size, dtype=np.float64) / 4
        requests = replace(requests, arrival_s=arrival, turns=None, prefixes=None)
    parameters = {"prefix_caching": (1.0,), "shed_after": (30.0,)}
    case = Case(requests, Timing(0.3, d1=0.01), Replica(90, block_tokens=4), parameters)
    outcome = run("vllm", case)
    assert outcome.evictions.any()
    assert bytes_of(run("vllm", case, compile=True)) == bytes_of(outcome)
    capped = replace(case, parameters={**parameters, "cap": (5.0,)})
    assert bytes_of(run("session-cap", capped, compile=True)) == bytes_of(run("session-cap", capped))


@given(
    chains=st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=5), min_size=1, max_size=8),
    rest=st.integers(0, 3),
    blocks=st.sampled_from([(4, 4), (4, 2), (4, 1)]),
)
@example(chains=[[0, 1], [0, 1]], rest=0, blocks=(4, 4))  # but for the last token, which is computed
def test_of_a_trace_with_hashes_prompts_find_what_they_begin_with(
    chains: list[list[int]], rest: int, blocks: tuple[int, int]
) -> None:
    """One after the other with memory for all: the longest beginning that any before had too, less a token."""
    of_trace, of_engine = blocks
    tokens = np.array([of_trace * len(chain) for chain in chains]) + rest
    size = len(chains)
    requests = Requests(
        100.0 * np.arange(size),
        tokens,
        np.ones(size, dtype=np.int64),
        np.zeros(size, dtype=np.int64),
        prefixes=prefixes_of_hashes(chains, tokens, of_trace),
    )
    replica = Replica(10_000, block_tokens=of_engine)
    outcome = run("vllm", Case(requests, Timing(1.0), replica, {"prefix_caching": (1.0,)}))
    expected = []
    for at, chain in enumerate(chains):
        same = 0
        for other in chains[:at]:
            pairs = zip(chain, other, strict=False)
            common = next((i for i, (a, b) in enumerate(pairs) if a != b), min(len(chain), len(other)))
            same = max(same, common)
        most = (int(tokens[at]) - 1) // of_engine * of_engine
        expected.append(min(same * of_trace, most))
    assert outcome.found.hit_tokens.tolist() == expected


ENGINES = [p.name for p in POLICIES.values() if p.engine and not p.one_engine]


@pytest.mark.parametrize("name", ENGINES)
@given(data=st.data())
def test_every_engine_gives_up_the_same_as_a_slow_one(name: str, data: st.DataObject) -> None:
    case = data.draw(CASES)
    case = replace(
        case,
        requests=replace(case.requests, prefixes=None),
        parameters={"shed_after": (data.draw(LIMITS_S),)},
    )
    if "max_new" in POLICIES[name].parameters:
        case.parameters["max_new"] = (9.0,) * CLASSES
    kind = type("Slow", (slow_prefix_cache.WithTurns, slow_simulator.POLICIES[name]), {})
    wanted = kind(case.requests, case.timing, case.replica, settings_of(case) | {"conservativeness": 1.0})
    expected, fast = wanted.run(case.horizon_s), run(name, case)
    assert fast.iterations == expected.iterations
    assert fast.series.waiting.tolist() == expected.waiting_per_iteration
    np.testing.assert_allclose(fast.finish_s, np.array(expected.finish_s, dtype=np.float64), rtol=1e-9)
