"""The prefix cache of `vllm` beside windows and chunks, against tables of numbered blocks."""

from dataclasses import replace

import numpy as np
import pytest
import slow_grouped_cache
from cached_cases import case_of
from hypothesis import given
from hypothesis import strategies as st
from session_shapes import SHAPES, Shape, same
from small_runs import TIMINGS, Case, bytes_of, run
from tiers import examples, is_night

from kvplan.analysis.cache_states import cached_replica
from kvplan.analysis.prefix_cache import prefix_cache
from kvplan.model import Plan, Replica, RequestClass, ServingModel, Timing, kv_layout
from kvplan.model.kv_layout import Attention, KvLayout, Layers
from kvplan.model.sessions import SharedPrompt
from kvplan.simulation.experiments import options, study
from kvplan.simulation.experiments.load import Load
from kvplan.simulation.requests import Prefixes, Requests
from kvplan.simulation.state import Span

FULL, WINDOW, CHUNK, STATE = Attention
KIND = st.tuples(st.sampled_from([FULL, WINDOW, STATE, CHUNK]), st.integers(1, 3), st.integers(1, 14))
KINDS = st.lists(KIND, min_size=1, max_size=3)


@st.composite
def cases(draw: st.DrawFn, *, talking: bool = False) -> Case:
    """Requests with beginnings in common, and of users, always if `talking`; in memory that is short or not."""
    layers = tuple(
        Layers(kind, count, 16, window if kind in (WINDOW, CHUNK) else None, checkpoints=kind is STATE)
        for kind, count, window in draw(KINDS)
    )
    block = draw(st.integers(1, 5))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kv_layout, "LEAST_BLOCK", 1)  # else a block with a state is longer than these prompts
        layout = KvLayout(layers, block)
    replica = Replica(
        draw(st.integers(0, 12) | st.integers(0, 80)) * block,
        block,
        max_num_seqs=draw(st.none() | st.integers(1, 6)),
        max_num_batched_tokens=draw(st.none() | st.integers(6, 30)),
    )
    shape, talks = draw(SHAPES), talking or draw(st.booleans())
    shape = shape if talks else replace(shape, users=None)
    watermark, admission = draw(st.sampled_from([0.0, 0.05, 0.3])), draw(st.sampled_from([0.0, 1.0]))
    case = case_of(
        shape, draw(TIMINGS), replica, watermark, admission, None, draw(st.none() | st.floats(0, 60))
    )
    requests = case.requests
    if not talks:
        arrival = np.cumsum(draw(st.lists(st.sampled_from([0.0, 0.0, 0.5, 3.0]), min_size=40, max_size=40)))
        requests = replace(requests, arrival_s=arrival[: requests.arrival_s.size], turns=None)
    blocks = case.replica.memory_tokens // block * sum(group.copies for group in layout.groups)
    memory = int(blocks * draw(st.sampled_from([0.5, 0.75, 1.0]))) * block
    return replace(
        case, requests=requests, replica=replace(case.replica, memory_tokens=memory, layout=layout)
    )


@examples(200)
@given(case=cases())
def test_every_request_finds_what_tables_of_numbered_blocks_have_for_it(case: Case) -> None:
    same(run("vllm", case), slow_grouped_cache.Grouped, case)


@examples(60)
@given(case=cases(talking=True))
def test_windows_that_hold_every_token_are_found_as_full_attention_is(case: Case) -> None:
    """Of four layers three have a window that no request passes: a token is read four times, and held once."""
    plain = replace(case.replica, layout=None)
    layers = Layers(WINDOW, 3, 16, 10**6), Layers(FULL, 1, 16)
    windows = replace(plain, layout=KvLayout(layers, plain.block_tokens, hybrid=False))
    timing = Timing(1.0, d1=2**-9, d2=2**-6)  # sums without rounding
    outcome = run("vllm", replace(case, replica=windows, timing=timing))
    expected = run("vllm", replace(case, replica=plain, timing=replace(timing, d1=2**-7)))
    expected.totals[Span.CONTEXT] *= 4
    assert outcome.totals == pytest.approx(expected.totals)  # roots are summed in another order
    found = replace(outcome, totals=expected.totals)
    assert bytes_of(found) == bytes_of(expected)


def test_compiled_runs_leave_the_same_bytes_and_of_a_prompt_all_share_the_first_alone_is_computed() -> None:
    """A window of 6 in blocks of 2 needs the last three blocks of 20 tokens, which stay where memory does."""
    size, rng = 30, np.random.default_rng(1)
    prefixes = Prefixes(
        1 + np.arange(size),
        np.concatenate([[-1], np.zeros(size, dtype=np.int64)]),
        np.concatenate([[20], np.zeros(size, dtype=np.int64)]),
    )
    arrival, kind = np.cumsum(rng.exponential(2.0, size)), np.zeros(size, dtype=np.int64)
    requests = Requests(
        arrival, 20 + rng.integers(1, 9, size), rng.integers(1, 9, size), kind, prefixes=prefixes
    )
    layout = KvLayout((Layers(WINDOW, 3, 16, 6), Layers(FULL, 1, 16)), 2)
    ample = Replica(4000, 2, max_num_batched_tokens=16, layout=layout)
    short = replace(ample, memory_tokens=240)
    for replica in (ample, short):
        case = Case(requests, Timing(1.0, d1=0.01, d2=0.02), replica, {"prefix_caching": (1.0,)})
        outcome = run("vllm", case)
        assert bytes_of(run("vllm", case, compile=True)) == bytes_of(outcome)
        assert outcome.found is not None
        if replica is ample:
            assert outcome.found.hit_tokens.tolist() == [0] + [20] * (size - 1)
        else:
            assert outcome.evictions.any()
            assert outcome.found.hit_tokens[1:].min() == 0


def test_turns_find_what_those_before_them_left_in_every_group() -> None:
    """Alone, of 20 + 8 tokens of which all but the last are computed, 26 are in whole blocks of 2; of the next 46."""
    talks = Shape([(-1, 20)], [(1, [(0, 8, 1.0), (6, 12, 1.0), (4, 5, 1.0)], 500.0)] * 3, None)
    layout = KvLayout((Layers(WINDOW, 3, 16, 6), Layers(FULL, 1, 16)), 2)
    replica = Replica(4000, 2, max_num_batched_tokens=16, layout=layout)
    case = Case(talks.requests(), Timing(1.0, d1=0.01, d2=0.02), replica, {"prefix_caching": (1.0,)})
    outcome = run("vllm", case)
    if is_night():
        assert bytes_of(run("vllm", case, compile=True)) == bytes_of(outcome)
    assert outcome.found is not None
    assert sorted(outcome.found.hit_tokens.tolist()) == [0, 18, 18, 26, 26, 26, 44, 44, 44]


def test_a_warm_cache_of_gpt_oss_finds_a_prompt_all_share_and_holds_it_once() -> None:
    """3,000 tokens in blocks of 16 of 18 full layers and 18 of a window of 128, beside 500 of one's own."""
    layout = KvLayout((Layers(FULL, 18, 2048), Layers(WINDOW, 18, 2048, 128)), 16)
    replica = Replica(191_136, 16, max_num_seqs=256, max_num_batched_tokens=8192, layout=layout)
    chat = RequestClass("chat", 3500, (300,), (1.0,), 8.0, shared=(SharedPrompt(3000),))
    model = ServingModel((chat,), Timing(0.02, d2=2e-5, d3=5e-5), replica)
    state = prefix_cache(cached_replica(model)).warm
    runs = study.study(model, Plan(), Load(requests=8000), options.chosen(["vllm"], []), [0])
    figures = runs.results[0].figures
    assert state is not None
    assert state.hit_ratio == pytest.approx(2992 / 3500, rel=1e-6)  # whole blocks
    assert figures["prefix_cache.hit_rate"] == pytest.approx(2992 / 3500, rel=1e-3)
    assert figures["iteration_time_s"] == pytest.approx(state.iteration_time_s, rel=0.01)
    assert figures["kv_tokens.mean"] == pytest.approx(state.kv_unique_tokens, rel=0.02)
