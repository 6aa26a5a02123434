"""How many requests never evict each other: counted page by page, and never refuted by a policy of the simulator."""

from dataclasses import replace

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st
from strategies import mix_model
from tiers import examples

from kvplan.analysis.concurrency import (
    all_fit,
    engine_max_num_seqs,
    engine_never_evicts,
    eviction_free_limit,
    eviction_is_impossible,
)
from kvplan.model import Plan, Prefill, Replica, RequestClass, ServingModel, Timing
from kvplan.simulation import engine
from kvplan.simulation.experiments.load import Arrivals, Load, generate
from kvplan.simulation.outcome import Outcome
from kvplan.simulation.policies import POLICIES
from kvplan.simulation.policies.protocol import Scenario, Settings

LIMITED = [p.name for p in POLICIES.values() if p.evicts and "max_num_seqs" in p.limits]


def run(model: ServingModel, name: str, *, requests: int = 60, seed: int = 0) -> Outcome:
    arriving = generate(model, Load(Arrivals.SATURATED, requests), seed)
    given = {"flow": {"budgets": (3.0,) * len(model.classes)}, "flow-unknown": {"budget": (3.0,)}}
    scenario = Scenario(model, Plan(), arriving, tuple(c.name for c in model.classes))
    setup, _ = POLICIES[name].prepare(scenario, Settings(name, given.get(name, {})))
    return engine.run(POLICIES[name].form_batch, arriving, model.timing, model.replica, setup, compile=False)


def filled(pages: int, *requests: int, page: int) -> bool:
    """Whether requests of so many tokens fit together: pages taken one by one."""
    for tokens in requests:
        while tokens > 0:
            tokens, pages = tokens - page, pages - 1
    return pages >= 0


@given(st.integers(0, 300), st.integers(1, 300), st.integers(1, 9000), st.sampled_from([1, 7, 16]))
@example(16, 16, 320, 16)  # 17 to 32 tokens: two pages all along
@example(15, 16, 320, 16)
@example(16, 17, 320, 16)
def test_limits_are_the_most_requests_that_fit_at_their_longest(
    input_tokens: int, decode: int, memory: int, block: int
) -> None:
    """A shorter class beside it changes nothing; where no request ever takes another page, no limit is needed."""
    assume(input_tokens + decode <= memory // block * block)
    model = mix_model((input_tokens, decode, 1.0), (1, 1, 1.0), memory=memory, block_tokens=block)
    longest, computed = max(input_tokens + decode, 2), max(max(input_tokens, 1) + decode - 1, 1)

    def greedy(count: int) -> bool:
        return filled(memory // block, *[longest] * count, page=block)

    def vllm(count: int) -> bool:
        return filled(memory // block - 1, *[computed] * count, page=block)

    def pages(tokens: int) -> int:
        return next(n for n in range(tokens + 1) if filled(n, tokens, page=block))

    constant = pages(input_tokens + 1) == pages(input_tokens + decode)
    found, of_engines = eviction_free_limit(model), engine_max_num_seqs(model)
    assert greedy(found)
    assert not greedy(found + 1)
    assert greedy(of_engines)
    assert vllm(of_engines) or of_engines == 0
    assert not (greedy(of_engines + 1) and vllm(of_engines + 1))
    for limit in (found, found + 1, of_engines, of_engines + 1):
        if limit > 0:
            limited = replace(model, replica=replace(model.replica, max_num_seqs=limit))
            assert all_fit(limited) is greedy(limit)
            assert eviction_is_impossible(limited) is (greedy(limit) or constant)
            assert engine_never_evicts(limited) is (greedy(limit) and vllm(limit))
    assert not all_fit(model)
    assert eviction_is_impossible(model) is constant
    assert not engine_never_evicts(model)


@st.composite
def few_running(draw: st.DrawFn) -> ServingModel:
    """Profiles with a limit at which nobody should be evicted: mostly with memory for the longest, and no more."""
    block = draw(st.sampled_from([1, 2, 4, 16]))
    classes = [
        RequestClass(f"class {i}", s, tuple(sorted(lengths)), (1.0,) * len(lengths), 1.0)
        for i, (s, lengths) in enumerate(
            draw(
                st.lists(
                    st.tuples(
                        st.integers(1, 40), st.lists(st.integers(1, 40), min_size=1, max_size=3, unique=True)
                    ),
                    min_size=1,
                    max_size=3,
                )
            )
        )
    ]
    seqs = draw(st.integers(1, 8))
    longest = max(-(-c.max_tokens // block) for c in classes)
    pages = seqs * longest + draw(st.sampled_from([0, 0, 1, 1, 2, 5]))
    replica = Replica(
        pages * block + draw(st.integers(0, block - 1)),
        block_tokens=block,
        prefill=draw(st.sampled_from(Prefill)),
        max_num_seqs=seqs,
        max_num_batched_tokens=draw(st.none() | st.integers(1, 60)),
    )
    return ServingModel(tuple(classes), Timing(1.0, d1=0.01, d2=0.02), replica)


@pytest.mark.parametrize("name", LIMITED)
@examples(20)
@given(few_running(), st.integers(0, 99))
def test_where_no_eviction_is_possible_no_policy_evicts(name: str, model: ServingModel, seed: int) -> None:
    outcome = run(model, name, seed=seed)
    if engine_never_evicts(model) if name == "vllm" else eviction_is_impossible(model):
        assert outcome.evictions.sum() == 0
        assert outcome.series.running.max(initial=0) <= (model.replica.max_num_seqs or 0)


def test_vllms_block_decides_where_the_longest_fill_memory_exactly() -> None:
    """Five requests of two blocks in ten: greedy never evicts, vLLM does, and no longer with four or eleven."""
    model = mix_model((1, 31, 1.0), memory=160, block_tokens=16, max_num_seqs=5)
    assert (eviction_free_limit(model), engine_max_num_seqs(model)) == (5, 4)
    assert eviction_is_impossible(model)
    assert not engine_never_evicts(model)
    assert run(model, "greedy").evictions.sum() == 0
    assert run(model, "vllm").evictions.sum() > 0
    for change in ({"max_num_seqs": 4}, {"memory_tokens": 176}):
        changed = replace(model, replica=replace(model.replica, **change))  # type: ignore[arg-type]
        assert engine_never_evicts(changed)
        assert run(changed, "vllm").evictions.sum() == 0
