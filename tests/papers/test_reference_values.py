"""Published and reference numbers, to the digits printed; each table names its source and prefill convention."""

import math
import tomllib
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from every import every
from oracle.system import System
from oracles import stationary_mean_queue
from strategies import mix_model

from kvplan.analysis.admission import integer_budgets, mean_queue, rate_cap
from kvplan.analysis.equilibrium import equilibrium, load, per_request, saturation
from kvplan.analysis.fluid_map import collapsed_starts, fluid_map, run
from kvplan.analysis.stability import Stability, min_stable_input, stability
from kvplan.analysis.worst_cycle import gap_cycle_throughput, worst_cycle
from kvplan.model import Replica, RequestClass, ServingModel, Timing


def table(name: str) -> dict[str, Any]:
    return tomllib.loads((Path(__file__).parent / f"{name}.toml").read_text())


LOAD, CYCLES, STABILITY, BUDGETS = (table(name) for name in ("load", "cycles", "stability", "budgets"))


@pytest.mark.parametrize("row", LOAD["equilibrium"], ids=lambda row: row["source"])
def test_equilibria(row: dict[str, Any]) -> None:
    model = mix_model(*row["classes"], prefill=row["prefill"], timing=Timing(row["d0"], row["d1"]))
    found = equilibrium(model)
    assert model.total_rate_rps * per_request(model).held == pytest.approx(row["demand"], rel=1e-12)
    assert found.kv_tokens == pytest.approx(row["kv_tokens"], rel=row["rel"])
    assert found.iteration_time_s == pytest.approx(row["iteration_time_s"], rel=row["rel"])
    # M* is full at a load factor of one: a whole token below it is less, a whole token above it more
    less, more = (
        load(replace(model, replica=replace(model.replica, memory_tokens=tokens))).load_factor_max
        for tokens in (math.floor(row["kv_tokens"]), math.ceil(row["kv_tokens"]))
    )
    assert less - 1e-12 <= 1 <= more + 1e-12
    assert more - less <= 1 / row["kv_tokens"]


@pytest.mark.parametrize("row", CYCLES["gaps"], ids=lambda row: row["source"])
def test_gap_cycles(row: dict[str, Any]) -> None:
    for gaps, denominator in row["denominators"]:
        x = gap_cycle_throughput(row["decode"], row["input"] + 1.0, 1.0, gaps)
        assert x == pytest.approx(1 / denominator, rel=1e-14)


@pytest.mark.parametrize("row", CYCLES["share_of_n_star"], ids=lambda row: row["source"])
def test_shares_of_the_eviction_free_throughput(row: dict[str, Any]) -> None:
    best = gap_cycle_throughput(row["decode"], row["input"] + 1.0, 1.0, [1] * row["decode"])
    for gaps, percent in row["percent"]:
        x = gap_cycle_throughput(row["decode"], row["input"] + 1.0, 1.0, gaps)
        assert round(100 * x / best) == percent


@pytest.mark.parametrize("row", CYCLES["loss"], ids=lambda row: row["source"])
def test_fluid_losses(row: dict[str, Any]) -> None:
    model = mix_model((row["input"], row["decode"], 1.0), memory=row["memory"], prefill=row["prefill"])
    assert round(100 * worst_cycle(model, stability(model), None).loss, row["digits"]) == row["percent"]


def greedy(model: ServingModel) -> System:
    """The oracle's view of a model under greedy admission, which restarts what it evicts and reserves no block."""
    blocks = model.replica.memory_tokens // model.replica.block_tokens
    return System.of(model).with_rules(restart=1, blocks=blocks)


@every(("short", "long", "least"), STABILITY["min_stable_input"]["lengths"])
def test_smallest_stable_inputs(short: int, long: int, least: int) -> None:
    """Found from any input the profile happens to have; `inline` needs a token more for a stage less."""
    for own_input in (0, 1, 500):
        model = mix_model((own_input, short, 1.0), (own_input, long, 1.0))
        assert min_stable_input(model).exact == least
    assert min_stable_input(mix_model((7, short, 1.0), (7, long, 1.0), prefill="fused")).exact == least
    inline = mix_model((7, short - 1, 1.0), (7, long - 1, 1.0), prefill="inline")
    assert min_stable_input(inline).exact == least + 1
    assert stability(mix_model((least, short, 1.0), (least, long, 1.0))).stable
    assert not stability(mix_model((least - 1, short, 1.0), (least - 1, long, 1.0))).stable


def spectrum_of(row: dict[str, Any]) -> Stability:
    if "uniform" in row:
        low, high = row["uniform"]
        return stability(mix_model((row["input"], tuple(range(low, high + 1)), 1.0)))
    return stability(mix_model(*((row["input"], d, 1.0) for d in row["lengths"])))


@pytest.mark.parametrize("row", STABILITY["spectral_radius"], ids=lambda row: row["source"])
def test_spectral_radii(row: dict[str, Any]) -> None:
    found = spectrum_of(row)
    assert round(found.spectral_radius, row["digits"]) == row["radius"]
    assert found.radius_certified
    assert (found.stable, found.certified) == (row["radius"] < 1, True)
    if "recovery_iterations" in row:
        assert found.recovery_iterations == pytest.approx(row["recovery_iterations"], rel=row["recovery_rel"])
        assert found.unstable_modes == row["unstable_modes"]


@pytest.mark.parametrize(("input_tokens", "evicts"), [(10, True), (100, False)])
def test_uniform_lengths_evict_or_recover_as_their_spectrum_says(input_tokens: int, evicts: bool) -> None:
    """d ~ U[20, 40]: from a slightly disturbed equilibrium the map ends in evictions at s = 10, clean at s = 100."""
    model = mix_model((input_tokens, tuple(range(20, 41)), 1.0))
    mix = model.mix
    system = fluid_map(mix.held, mix.share, mix.input_tokens.astype(float), 1e6)
    history = run(system, next(collapsed_starts(system)), 4000)
    late = history.evicted[-500:].sum() / system.eviction_free_throughput
    assert (late > 1) == evicts
    assert evicts or late < 1e-9


@pytest.mark.parametrize("row", STABILITY["modes"], ids=lambda row: row["source"])
def test_unstable_modes(row: dict[str, Any]) -> None:
    found = spectrum_of(row)
    assert (found.unstable_modes, found.stable, found.certified) == (row["unstable_modes"], False, True)
    assert found.unstable_modes > found.gcd - 1


@pytest.mark.parametrize("row", STABILITY["geometric"], ids=lambda row: row["source"])
def test_geometric_lengths_are_stable_at_every_input(row: dict[str, Any]) -> None:
    lengths = tuple(range(1, row["longest"] + 1))
    weights = tuple((1 - row["continue"]) * row["continue"] ** (d - 1) for d in lengths)
    for input_tokens in row["inputs"]:
        one = RequestClass("geometric", input_tokens, lengths, weights, 1.0)
        found = stability(ServingModel((one,), Timing(1.0), Replica(10**6)))
        assert (found.stable, found.certified, found.unstable_modes) == (True, True, 0)


def test_flow_control_budgets() -> None:
    """(4, 4, 4) uses 16240 of 16492 and is the best of 150 feasible budgets at 5/3 a class; at 5 there are none."""
    footprint = np.array([s * d + d * (d + 1) / 2 for s, d in BUDGETS["classes"]])
    memory, budgets = float(BUDGETS["memory"]), tuple(BUDGETS["budgets"])
    assert float(np.array(budgets) @ footprint) == BUDGETS["uses"]
    printed = np.full(3, BUDGETS["rates_as_printed"])
    assert float(printed @ footprint) == BUDGETS["load_as_printed"]
    assert integer_budgets(printed, footprint, memory) is None
    meant = np.full(3, BUDGETS["rates_meant"])
    found = integer_budgets(meant, footprint, memory)
    assert (found.admissions, found.optimal) == (budgets, True)
    feasible = [b for b in product(range(2, 80), repeat=3) if float(np.array(b) @ footprint) < memory]
    assert len(feasible) == BUDGETS["feasible"]
    queue = {b: stationary_mean_queue(BUDGETS["rates_meant"], b, 80) for b in range(2, 12)}
    best = min(feasible, key=lambda b: sum(queue.get(n, 0.0) for n in b))
    assert best == budgets
    assert found.mean_queue == pytest.approx([queue[4]] * 3, rel=1e-6)
    assert mean_queue(BUDGETS["rates_meant"], 4) == pytest.approx(queue[4], rel=1e-6)
    model = mix_model(
        *((s, d, BUDGETS["rates_meant"]) for s, d in BUDGETS["classes"]), memory=BUDGETS["memory"]
    )
    cap = rate_cap(model)
    assert tuple(c.integer_budget for c in cap.classes) == budgets
    # half a second an iteration, twice the arrivals a second: the same budgets, and waits in seconds (Little's law)
    rates = [(s, d, 2 * BUDGETS["rates_meant"]) for s, d in BUDGETS["classes"]]
    halved = rate_cap(mix_model(*rates, memory=BUDGETS["memory"], timing=Timing(0.5)))
    assert tuple(c.integer_budget for c in halved.classes) == budgets
    for c in halved.classes:
        assert c.mean_wait_s == pytest.approx(queue[4] / (2 * BUDGETS["rates_meant"]), rel=1e-6)
    assert cap.engine_max_num_seqs == BUDGETS["memory"] // 70


def test_a_small_clean_start_and_a_collapsed_one_of_theory_3() -> None:
    """Input 2, decode 3: from empty the fluid map collapses to M/15; n* is M/12 and the danger zone lies between."""
    model = mix_model((2, 3, 0.9), memory=12)
    system = fluid_map(model.mix.held, model.mix.share, np.array([2.0]), 12.0)
    history = run(system, np.zeros(3), 300)
    assert history.completed[-30:].mean() == pytest.approx(12 / 15, rel=1e-12)
    assert saturation(model).admissions_per_iteration == pytest.approx(12 / 12, rel=1e-12)
    found = worst_cycle(model, stability(model), 0.8)
    assert found.throughput_rps == pytest.approx(0.8, rel=1e-12)
    assert found.danger_zone_rps == pytest.approx((0.8, 1.0), rel=1e-12)


def test_the_cap_of_memory_that_the_equilibrium_fills_is_what_is_offered() -> None:
    """WAIT 6.2: M* = 38,811.8 of 1,000 requests/s, of which an iteration reads all, so that d1 counts."""
    rows = ((10, 20, 400.0), (10, 40, 300.0), (10, 80, 200.0), (10, 160, 100.0))
    model = mix_model(*rows, memory=38_812, prefill="inline", timing=Timing(0.01, 1e-7))
    assert rate_cap(model).per_second == pytest.approx(1_000, rel=1e-4)
