"""Layers that keep KV of several kinds: the fluid map, its closed forms, the simulator and the verdicts."""

import math
from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import pytest
import small_runs
from hypothesis import example, given
from hypothesis import strategies as st
from oracles import SlowMap
from small_runs import Case, agree, bytes_of
from tiers import examples

from kvplan.analysis.equilibrium import equilibrium, saturation
from kvplan.analysis.fluid_map import FluidMap, collapsed_starts, fluid_map, run
from kvplan.analysis.worst_cycle import CycleKind
from kvplan.model import FloatArray, Plan, Replica, RequestClass, ServingModel, TabledWeights, Timing
from kvplan.model.kv_layout import Attention, KvLayout, Layers
from kvplan.report.assembly import Analyses
from kvplan.simulation.experiments import options, study
from kvplan.simulation.experiments.load import Load
from kvplan.simulation.requests import Requests

FULL, WINDOW, CHUNK, STATE = Attention

ONE_KIND = st.tuples(
    st.sampled_from(Attention), st.integers(1, 12), st.sampled_from([16, 32, 64]), st.integers(1, 20)
)
LAYOUTS = st.lists(ONE_KIND, min_size=1, max_size=3).flatmap(
    lambda kinds: st.integers(1, 5).map(
        lambda block: KvLayout(
            tuple(
                Layers(kind, count, size, window if kind in (WINDOW, CHUNK) else None)
                for kind, count, size, window in kinds
            ),
            16 * block if any(kind is STATE for kind, *_ in kinds) else block,
        )
    )
)
ROW = st.tuples(
    st.integers(0, 40), st.integers(1, 30), st.just(0), st.sampled_from([0.0, 0.0, 0.25, 3.0, 30.0])
)


@st.composite
def layered_cases(draw: st.DrawFn) -> Case:
    """A few requests on layers of several kinds, in memory from too small to ample."""
    inputs, decode, kinds, gaps = (
        np.array(column) for column in zip(*draw(st.lists(ROW, min_size=1, max_size=10)), strict=True)
    )
    layout = draw(LAYOUTS)
    blocks = draw(st.integers(2, 60) | st.integers(2, 400))
    replica = Replica(
        blocks * layout.block_tokens,
        layout.block_tokens,
        max_num_seqs=draw(st.none() | st.integers(1, 6)),
        max_num_batched_tokens=draw(st.none() | st.integers(8, 40)),
        layout=layout,
    )
    return Case(Requests(np.cumsum(gaps), inputs, decode, kinds), Timing(1.0, d1=0.01, d2=0.02), replica, {})


@given(layered_cases())
@examples(30)
def test_the_simulator_does_what_an_allocator_does_block_by_block(case: Case) -> None:
    """vLLM's scheduler with groups of layers: an iteration, a request and a block at a time."""
    agree("vllm", case, small_runs.run("vllm", case))


@given(layered_cases(), st.sampled_from(["vllm", "greedy", "rate-limited"]))
@examples(5)
def test_compiled_and_plain_runs_leave_the_same_bytes(case: Case, name: str) -> None:
    assert bytes_of(small_runs.run(name, case)) == bytes_of(small_runs.run(name, case, compile=True))


@st.composite
def two_pools(draw: st.DrawFn) -> Case:
    """Full attention beside windows, pages and bytes of any sizes; whose pool of windows lacks room or has plenty."""
    case = draw(layered_cases())
    size = st.sampled_from([16, 32, 64])
    layers = (
        Layers(WINDOW, draw(st.integers(1, 12)), draw(size), draw(st.integers(1, 20))),
        Layers(FULL, draw(st.integers(1, 12)), draw(size)),
    )
    layout = KvLayout(layers, draw(st.integers(1, 5)))
    replica = replace(
        case.replica,
        memory_tokens=draw(st.integers(20, 300)) * layout.block_tokens,
        block_tokens=layout.block_tokens,
        layout=layout,
    )
    parameters = {
        "swa_full_tokens_ratio": (draw(st.sampled_from([0.1, 0.4, 0.8, 1.0])),),
        "conservativeness": (draw(st.sampled_from([0.0, 0.3, 1.0])),),
        "prefill_interval": (draw(st.sampled_from([1, 1, 3])),),
        "max_new": (30.0,) * small_runs.CLASSES,
    }
    return replace(case, replica=replica, parameters=parameters)


GIVES_WAY = Case(  # a prompt that goes on waits for a page, and the only one who decodes is retracted
    Requests(np.zeros(2), np.array([0, 6]), np.array([13, 12]), np.zeros(2, dtype=np.int64)),
    Timing(1.0, d1=0.01, d2=0.02),
    Replica(
        308, 4, max_num_batched_tokens=8, layout=KvLayout((Layers(WINDOW, 1, 16, 14), Layers(FULL, 1, 16)), 4)
    ),
    {"swa_full_tokens_ratio": (0.1,), "conservativeness": (0.0,), "max_new": (30.0,) * small_runs.CLASSES},
)


@given(two_pools())
@example(GIVES_WAY)
@examples(30)
def test_windows_have_a_pool_of_their_own_in_sglang(case: Case) -> None:
    agree("sglang", case, small_runs.run("sglang", case))


class Tables(NamedTuple):
    """Rows as (stages, table, parts of the admissions), and what each table says of every stage."""

    rows: tuple[tuple[int, int, int], ...]
    held: tuple[tuple[int, ...], ...]
    read: tuple[tuple[float, ...], ...]

    @property
    def share(self) -> list[float]:
        return [parts / sum(row[2] for row in self.rows) for *_, parts in self.rows]

    def fast(self) -> FluidMap:
        stages, kind, _ = (np.array(column) for column in zip(*self.rows, strict=True))
        held, read = (TabledWeights(np.array(t, dtype=float), kind, stages) for t in (self.held, self.read))
        return fluid_map(held, np.array(self.share), np.ones(stages.size), 1000.0, read=read)

    def slow(self, masses: FloatArray) -> SlowMap:
        weights = [list(map(float, self.held[kind][:n])) for n, kind, _ in self.rows]
        return SlowMap.of_cohorts(weights, self.share, 1000.0, masses.tolist(), seats=None, nothing=1e-9)


@st.composite
def tables(draw: st.DrawFn, *, rising: bool = False) -> Tables:
    rows = draw(
        st.lists(st.tuples(st.integers(1, 10), st.integers(0, 1), st.integers(1, 9)), min_size=1, max_size=4)
    )
    longest = max(n for n, *_ in rows)
    whole = st.lists(st.integers(1, 30), min_size=longest, max_size=longest)
    held = [draw(whole) for _ in range(2)]
    if rising:
        held = [np.cumsum(h).tolist() for h in held]
    read = [draw(whole) for _ in range(2)]
    return Tables(tuple(rows), tuple(map(tuple, held)), tuple(tuple(map(float, r)) for r in read))


@given(tables(), st.booleans())
@examples(20)
def test_the_map_of_any_weights_does_what_explicit_layers_do(given: Tables, compiled: bool) -> None:
    system = given.fast()
    for masses in collapsed_starts(system):
        slow, history = given.slow(masses), run(system, masses, 40, compile_above=0 if compiled else 10**9)
        for t in range(40):
            step = slow.step()
            assert history.completed[t] == pytest.approx(sum(step.completed), abs=1e-6)
            assert history.evicted[t] == pytest.approx(sum(step.evicted), abs=1e-6)
            assert history.held_tokens[t] == pytest.approx(slow.memory(), rel=1e-9)
            read = sum(
                n * given.read[row[1]][k]
                for row, here in zip(given.rows, slow.by_stage(), strict=True)
                for k, n in enumerate(here)
            )
            assert history.read_tokens[t] == pytest.approx(read, rel=1e-6, abs=1e-6)


def model(layout: KvLayout, blocks: int, rate: float, *lengths: int) -> ServingModel:
    chat = RequestClass("chat", 300, lengths, (1.0,) * len(lengths), rate)
    timing = Timing(0.01, d1=1e-6, d2=2e-5)
    return ServingModel(
        (chat,), timing, Replica(blocks * layout.block_tokens, layout.block_tokens, layout=layout)
    )


WINDOWS = KvLayout((Layers(WINDOW, 5, 64, 100), Layers(FULL, 1, 64)), 1)


NO_SPIKE = KvLayout((Layers(WINDOW, 5, 64, 350), Layers(FULL, 1, 64)), 1)
STATES = KvLayout((Layers(STATE, 4, 640), Layers(FULL, 2, 64)), 16)
RISING = (  # a layout, and what a request of so many tokens holds
    (NO_SPIKE, lambda tokens: 5 * min(tokens, 350) + tokens),
    (STATES, lambda tokens: 16 * (2 + math.ceil(tokens / 16))),
)


@pytest.mark.parametrize(("layout", "held"), RISING)
def test_what_never_falls_has_closed_forms(layout: KvLayout, held: Callable[[int], int]) -> None:
    """One length, x_w = M/(n·w(n-1)) and e = x_w·(w(n-1)/w(0) - 1); two in pulses, M/(g·Σ_j W_(g-1+jg))."""
    memory = 40_000 * layout.block_tokens
    first, middle, last = held(301), held(340), held(380)
    one = Analyses(model(layout, 40_000, 1.0, 80), Plan())
    worst = memory / (80 * last)
    said = one.worst_cycle
    assert (said.kind, said.period, one.sources["worst_cycle"].kind) == (
        CycleKind.HOMOGENEOUS,
        80,
        "computed",
    )
    assert said.throughput_per_iteration == pytest.approx(worst, rel=1e-9)
    assert said.evictions_per_iteration == pytest.approx(worst * (last / first - 1), rel=1e-9)
    mean = sum(held(301 + k) for k in range(80)) / 80
    assert said.loss == pytest.approx(1 - mean / last, rel=1e-9)
    two = Analyses(model(layout, 40_000, 1.0, 40, 80), Plan()).worst_cycle
    assert (two.kind, two.period) == (CycleKind.PULSE, 40)
    assert two.throughput_per_iteration == pytest.approx(memory / (40 * (middle + last / 2)), rel=1e-9)


@pytest.mark.parametrize("load", [0.4, 0.75])
def test_iterations_are_those_simulated(load: float) -> None:
    """Where held and read differ: to a percent."""
    full = model(WINDOWS, 40_000, 1.0, 60, 150)
    at = replace(full, classes=(replace(full.classes[0], rate_rps=load * saturation(full).throughput_rps),))
    runs = study.study(at, Plan(), Load(requests=20_000), options.chosen(["vllm"], []), [0])
    assert runs.results[0].figures["iteration_time_s"] == pytest.approx(
        equilibrium(at).iteration_time_s, rel=0.01
    )
