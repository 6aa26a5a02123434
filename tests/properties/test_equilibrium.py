"""Laws of the load, the equilibrium and saturation, on random models (theory §1, §2)."""

from dataclasses import replace
from fractions import Fraction
from itertools import groupby

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from scipy.optimize import linprog
from strategies import mix_model, models, request_rows

from kvplan.analysis.equilibrium import (
    backlog_growth,
    equilibrium,
    load,
    most_admissions,
    saturation,
    sustainable_rate,
    time_alone,
)
from kvplan.model import Prefill, RequestClass, ServingModel, Timing


def scaled(model: ServingModel, factor: float) -> ServingModel:
    """The same traffic, `factor` times as fast."""
    return replace(model, classes=tuple(replace(c, rate_rps=c.rate_rps * factor) for c in model.classes))


def with_parts(model: ServingModel, c: RequestClass, weights: list[int]) -> list[int]:
    """Tokens in every iteration: full budgets of a long prompt one by one, then the papers' weights."""
    budget = model.replica.max_num_batched_tokens
    if budget is None or model.replica.prefill is not Prefill.FUSED:
        return weights
    return [*range(budget, c.input_tokens, budget), *weights]


def demand(model: ServingModel) -> dict[str, Fraction]:
    """What a second of traffic costs, request by request, in exact fractions."""
    d1, d2, d3 = (Fraction(x) for x in (model.timing.d1, model.timing.d2, model.timing.d3))
    total = {"held": Fraction(0), "work": Fraction(0), "iterations": Fraction(0), "computed": Fraction(0)}
    rate = sum(Fraction(c.rate_rps) for c in model.classes)
    for c, d, weights, share in request_rows(model):
        # the prompt is computed once, unless it arrives ready-made; `fused` emits its first token on the way, though
        # an empty prompt takes a token all the same
        prompt = {"disaggregated": 0, "inline": c.input_tokens, "fused": c.input_tokens}[
            model.replica.prefill
        ]
        decoded = {"disaggregated": d, "inline": d, "fused": max(d - 1, d - c.input_tokens)}[
            model.replica.prefill
        ]
        page, weights = model.replica.block_tokens, with_parts(model, c, weights)
        each = {
            "held": sum(-(-w // page) * page for w in weights),
            "work": d1 * sum(weights) + d2 * prompt + d3 * len(weights),
            "iterations": Fraction(len(weights)),
            "computed": Fraction(prompt + decoded),
        }
        for key, amount in each.items():
            total[key] += rate * share * amount
    return total


@given(models())
def test_memory_is_exactly_full_at_the_largest_load_factor(model: ServingModel) -> None:
    """M* at α times the offered rates equals M to 1e-9, and the iteration time there is τ(M)."""
    factor = load(model).load_factor_max
    work_rate = factor * float(demand(model)["work"])
    assume(work_rate < 1 - 1e-4)  # 1 - Λ loses digits beyond
    full = equilibrium(scaled(model, factor))
    assert full.kv_tokens == pytest.approx(model.replica.memory_tokens, rel=1e-9)
    assert full.kv_utilization == pytest.approx(1, rel=1e-9)
    assert full.iteration_time_s == pytest.approx(saturation(model).iteration_time_s, rel=1e-9)


@given(models(limits=True))
def test_demand_adds_up_request_by_request(model: ServingModel) -> None:
    """Λ, n*, α and every limit's rate from exact sums over stages."""
    cost, rate = demand(model), sum(Fraction(c.rate_rps) for c in model.classes)
    d0, memory, replica = Fraction(model.timing.d0), model.replica.memory_tokens, model.replica
    alphas = {"memory": memory / (cost["held"] * d0 + memory * cost["work"])}
    for name, limit, need in (
        ("max_num_seqs", replica.max_num_seqs, cost["iterations"]),
        ("max_num_batched_tokens", replica.max_num_batched_tokens, cost["computed"]),
    ):
        if limit is not None and need > 0:
            alphas[name] = limit / (need * d0 + limit * cost["work"])
    smallest = min(alphas.values())
    found = load(model)
    assert found.work_rate == pytest.approx(float(cost["work"]), rel=1e-12)
    assert found.load_factor_max == pytest.approx(float(smallest), rel=1e-12)
    assert saturation(model).admissions_per_iteration == pytest.approx(
        float(memory * rate / cost["held"]), rel=1e-12
    )
    binding, _ = sustainable_rate(model)
    near = {name for name, alpha in alphas.items() if alpha <= smallest * (1 + Fraction(1, 10**9))}
    assume(abs(memory * cost["work"] / (cost["held"] * d0) - 1) > 1e-9)
    memory_name = "compute" if memory * cost["work"] > cost["held"] * d0 else "kv_memory"
    assert binding in {memory_name if name == "memory" else name for name in near}


@given(models(limits=True))
def test_the_binding_limit_is_met_exactly_and_no_other_is_passed(model: ServingModel) -> None:
    """At α: memory full, or sequences in flight = max_num_seqs, or tokens computed = max_num_batched_tokens."""
    binding, rate = sustainable_rate(model)
    at_limit = scaled(model, rate / model.total_rate_rps)
    cost = demand(at_limit)
    if cost["work"] > 1 - 1e-4:  # 1 - Λ has lost digits
        return
    found, replica = equilibrium(at_limit), model.replica
    used = {
        "max_num_seqs": (found.requests_in_flight, replica.max_num_seqs),
        "max_num_batched_tokens": (
            float(cost["computed"]) * found.iteration_time_s,
            replica.max_num_batched_tokens,
        ),
        "kv_memory": (found.kv_tokens, replica.memory_tokens),
    }
    used["compute"] = used["kv_memory"]
    amount, limit = used[binding]
    assert amount == pytest.approx(limit, rel=1e-9)
    assert all(amount <= limit * (1 + 1e-9) for amount, limit in used.values() if limit is not None)


@given(models(limits=True))
def test_the_equilibrium_reproduces_itself(model: ServingModel) -> None:
    """An iteration over what is in flight takes τ*, and τ* of arrivals per stage is what is in flight."""
    cost = demand(model)
    target = 0.7 / float(cost["work"]) if cost["work"] > 0.7 else 1.0
    model = scaled(model, target)
    found, cost = equilibrium(model), demand(model)
    tau = found.iteration_time_s
    kv = prefill = sequences = 0.0
    for c, _, weights, share in request_rows(model):
        per_stage, weights = model.total_rate_rps * float(share) * tau, with_parts(model, c, weights)
        kv += per_stage * sum(weights)
        sequences += per_stage * len(weights)
        prefill += 0 if model.replica.prefill is Prefill.DISAGGREGATED else per_stage * c.input_tokens
    timing = model.timing
    again = timing.d0 + timing.d1 * kv + timing.d2 * prefill + timing.d3 * sequences
    assert tau == pytest.approx(again, rel=1e-9)
    assert found.requests_in_flight == pytest.approx(sequences, rel=1e-9)
    assert found.kv_tokens == pytest.approx(float(cost["held"]) * tau, rel=1e-9)
    assert found.prompt_iterations_per_s == pytest.approx(float(cost["iterations"]), rel=1e-9)
    by_class = {
        c.name: sum(
            model.total_rate_rps * float(p) * tau * len(with_parts(model, c, w)) for _, _, w, p in rows
        )
        for c, rows in groupby(request_rows(model), key=lambda row: row[0])
    }
    assert [o.name for o in found.classes] == [c.name for c in model.classes]
    for occupancy, c in zip(found.classes, model.classes, strict=True):
        assert occupancy.per_stage == pytest.approx(c.rate_rps * tau, rel=1e-9)
        assert occupancy.in_flight == pytest.approx(by_class[c.name], rel=1e-9)
    decode = sum(model.total_rate_rps * float(p) * d for _, d, _, p in request_rows(model))
    assert found.decode_tokens_per_s == pytest.approx(decode, rel=1e-9)


TIMES = ("d0", "d1", "d2", "d3")
LIMITS = ("memory_tokens", "max_num_seqs", "max_num_batched_tokens")


def changed_rate(model: ServingModel, name: str, factor: Fraction) -> Fraction:
    """The sustainable rate with a time or a limit multiplied, every limit evaluated again in exact arithmetic."""
    if name in TIMES:
        longer = {name: Fraction(getattr(model.timing, name)) * factor}
        model = replace(model, timing=replace(model.timing, **longer))
    cost, replica, d0 = demand(model), model.replica, Fraction(model.timing.d0)
    limits = (
        (replica.memory_tokens, cost["held"]),
        (replica.max_num_seqs, cost["iterations"]),
        (replica.max_num_batched_tokens, cost["computed"]),
    )
    return min(
        limit * more / (need * d0 + limit * more * cost["work"])
        for (limit, need), of in zip(limits, LIMITS, strict=True)
        if limit is not None and need > 0
        for more in [factor if name == of else 1]
    ) * sum(Fraction(c.rate_rps) for c in model.classes)


@given(models(limits=True))
def test_sensitivities_are_what_ten_percent_more_does(model: ServingModel) -> None:
    base = changed_rate(model, "", Fraction(1))
    for name, value in load(model).sensitivity._asdict().items():
        if name in LIMITS and getattr(model.replica, name) is None:
            assert value is None
        elif name in (*TIMES, *LIMITS):
            assert value == pytest.approx(
                float(changed_rate(model, name, Fraction(11, 10)) / base - 1), abs=1e-12
            )
            assert 0 <= value <= 0.1 + 1e-12 if name in LIMITS else -1 / 11 - 1e-12 <= value <= 0
        else:  # of terms that the law does not have
            assert value == 0


@given(models(limits=True), st.floats(1e-5, 1e-2), st.floats(1e-7, 1e-5), st.integers(1, 500))
def test_sensitivities_to_the_bends_of_a_law_are_those_of_the_bent_model(
    model: ServingModel, d4: float, d5: float, knee: int
) -> None:
    bend = {"d4": d4, "d5": d5, "knee_tokens": float(knee), "experts": 100 * d5, "chosen": 0.03}
    bent = replace(model, timing=replace(model.timing, **bend))
    found, (_, base) = load(bent).sensitivity, sustainable_rate(bent)
    for name in ("d4", "d5", "knee_tokens", "experts"):
        more = replace(bent, timing=replace(bent.timing, **{name: 1.1 * getattr(bent.timing, name)}))
        change = getattr(found, name)
        assert change == pytest.approx(sustainable_rate(more)[1] / base - 1, abs=1e-12)
        assert change >= -1e-12 if name == "knee_tokens" else -1 / 11 - 1e-12 <= change <= 1e-12


@pytest.mark.parametrize(
    ("prefill", "stages", "footprint", "prompt"),
    [("disaggregated", 3, 10 * 3 + 6, 0), ("inline", 4, 4 * 10 + 6, 10), ("fused", 3, 10 * 3 + 6, 10)],
)
def test_each_prefill_convention_has_its_own_stages(
    prefill: str, stages: int, footprint: int, prompt: int
) -> None:
    """Input 10, decode 3, counted by hand: 11+12+13, or 10+11+12+13 with a prefill of its own."""
    model = mix_model((10, 3, 1.0), prefill=prefill)
    assert model.mix.stages.tolist() == [stages]
    assert model.mix.read.footprint.tolist() == [footprint]
    assert model.mix.prefill_tokens.tolist() == [prompt]


def test_the_first_limit_that_is_met_bounds_admissions() -> None:
    """Of 24 tokens a request holds 3 + 4 + 5 over three iterations: two an iteration; three in flight are one."""
    found = [most_admissions(mix_model((2, 3, 1.0), memory=24, max_num_seqs=seats)) for seats in (None, 3)]
    assert found == [2, 1]


def test_a_request_alone_takes_the_time_of_its_iterations_and_of_its_work() -> None:
    """Three iterations of 1.5 s, 10 tokens of prefill with 1 + … + 10 of context, and 11 + 12 + 13 that are read."""
    law = Timing(1.0, d1=0.01, d2=0.1, d3=0.5, d6=0.001)
    alone = time_alone(mix_model((10, 3, 1.0), memory=100, prefill="fused", timing=law))
    assert alone == pytest.approx(3 * 1.5 + 10 * 0.1 + 36 * 0.01 + 55 * 0.001)


@given(models(limits=True), st.floats(1.05, 20.0))
def test_the_backlog_grows_by_what_the_best_choice_of_requests_leaves_over(
    model: ServingModel, factor: float
) -> None:
    """Of a linear programme: the most requests of any lengths whose occupancy no limit is exceeded by."""
    model = scaled(model, factor * load(model).load_factor_max)
    mix, timing, replica = model.mix, model.timing, model.replica
    work = timing.linear(mix.context, mix.prefill_tokens, mix.sequences, mix.prefill_pairs)
    taken = [timing.d0 * mix.footprint / replica.capacity_tokens + work]
    if replica.max_num_seqs is not None:
        taken.append(timing.d0 * mix.iterations / replica.max_num_seqs + work)
    if replica.max_num_batched_tokens is not None:
        taken.append(timing.d0 * mix.computed_tokens / replica.max_num_batched_tokens + work)
    bounds = [(0.0, rate) for rate in mix.rate_rps.tolist()]
    each = [linprog(-np.ones(work.size), A_ub=[v], b_ub=[1.0], bounds=bounds) for v in taken]
    left_over = max(model.total_rate_rps + found.fun for found in each)
    growth = backlog_growth(model)
    assert 0 < growth <= left_over * (1 + 1e-6)
    if len(bounds) == 1:
        assert growth == pytest.approx(left_over, rel=1e-6)


def test_the_backlog_of_flow_controls_example_grows_by_its_bound() -> None:
    """λ = 5 a class and slot: δ = 5·(410 + 1,220 + 2,430) - 16,492 tokens, w_max = 2,430."""
    rows = [(10, d, 5.0) for d in (20, 40, 60)]
    assert backlog_growth(mix_model(*rows, memory=16_492)) == pytest.approx((20_300 - 16_492) / 2_430)
    assert backlog_growth(mix_model(*rows, memory=20_301)) is None
