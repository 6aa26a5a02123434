"""Laws of the load, the equilibrium and saturation, on random models (theory §1, §2)."""

from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from itertools import groupby

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from strategies import mix_model, models, request_rows

from kvplan.analysis.admission import rate_cap
from kvplan.analysis.equilibrium import (
    equilibrium,
    load,
    most_admissions,
    saturation,
    strongest_levers,
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
    assert factor is not None
    work_rate = factor * float(demand(model)["work"])
    assume(work_rate < 1 - 1e-4)  # 1 - Λ loses digits beyond
    full = equilibrium(scaled(model, factor))
    assert full.kv_tokens == pytest.approx(model.replica.memory_tokens, rel=1e-9)
    assert full.kv_utilization == pytest.approx(1, rel=1e-9)
    assert full.iteration_time_s == pytest.approx(saturation(model).iteration_time_s, rel=1e-9)


@given(models())
def test_the_sustainable_rate_is_what_a_full_memory_admits_per_second(model: ServingModel) -> None:
    full, offered = saturation(model), load(model)
    assert full.throughput_rps == full.admissions_per_iteration / full.iteration_time_s
    assert offered.sustainable_rps == pytest.approx(full.throughput_rps, rel=1e-12)
    assert offered.offered_rps * offered.load_factor_max == pytest.approx(full.throughput_rps, rel=1e-12)
    assert offered.headroom == pytest.approx(offered.load_factor_max - 1, abs=1e-12)


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


@given(models(limits=True))
def test_the_levers_gain_most_of_all_times_shortened_and_limits_raised(model: ServingModel) -> None:
    base = changed_rate(model, "", Fraction(1))
    gains = {name: float(changed_rate(model, name, Fraction(9, 10)) / base - 1) for name in TIMES}
    limits = [name for name in LIMITS if getattr(model.replica, name) is not None]
    more = {name: float(changed_rate(model, name, Fraction(11, 10)) / base - 1) for name in limits}
    first, second = strongest_levers(model)
    assert (first.name in TIMES, second.name in LIMITS) == (True, True)  # less d0 beats more of any limit
    assert first.gain == pytest.approx(max(gains.values()), abs=1e-12)
    assert second.gain == pytest.approx(max(more.values()), abs=1e-12)
    assert first.gain == pytest.approx(gains[first.name], abs=1e-12)
    assert second.gain == pytest.approx(more[second.name], abs=1e-12)


def test_a_limit_can_be_the_strongest_lever_of_a_law_with_a_root() -> None:
    """One token each, memory for 100: τ = 10 + √100 = 20. Memory for 110 gains more than either time cut to 19 s."""
    one = mix_model((0, 1, 1.0), memory=100, prefill="fused", timing=Timing(10.0, d4=1.0))
    first, second = strongest_levers(one)
    assert (first.name, first.gain) == ("memory_tokens", pytest.approx(1.1 * 20 / (10 + 110**0.5) - 1))
    assert (second.name, second.gain) == ("d0", pytest.approx(20 / 19 - 1))


@given(models(limits=True), st.floats(1e-5, 1e-2), st.floats(1e-7, 1e-5), st.integers(1, 500))
def test_sensitivities_to_the_bends_of_a_law_are_those_of_the_bent_model(
    model: ServingModel, d4: float, d5: float, knee: int
) -> None:
    bent = replace(model, timing=replace(model.timing, d4=d4, d5=d5, knee_tokens=float(knee)))
    found, (_, base) = load(bent).sensitivity, sustainable_rate(bent)
    for name in ("d4", "d5", "knee_tokens"):
        more = replace(bent, timing=replace(bent.timing, **{name: 1.1 * getattr(bent.timing, name)}))
        change = getattr(found, name)
        assert change == pytest.approx(sustainable_rate(more)[1] / base - 1, abs=1e-12)
        assert change >= -1e-12 if name == "knee_tokens" else -1 / 11 - 1e-12 <= change <= 1e-12


@given(models(limits=True))
def test_a_cap_that_excludes_evictions_leaves_what_so_many_at_once_serve(model: ServingModel) -> None:
    """At most ⌊pages/pages of the longest⌋ requests, and often far fewer than fill memory."""
    cap = rate_cap(model)
    most = min(cap.engine_max_num_seqs, model.replica.max_num_seqs or cap.engine_max_num_seqs)
    capped = replace(model, replica=replace(model.replica, max_num_seqs=most))
    assert cap.engine_sustainable_rps == pytest.approx(float(changed_rate(capped, "", Fraction(1))), rel=1e-9)
    assert cap.engine_sustainable_rps <= load(model).sustainable_rps


@given(models(), st.floats(1.0, 1e6))
def test_beyond_full_work_rate_no_equilibrium_is_claimed(model: ServingModel, excess: float) -> None:
    """Λ > 1: every number of the equilibrium is null, whatever the memory (WAIT Prop. 1)."""
    work = float(demand(model)["work"])
    assume(work > 0)
    found = equilibrium(scaled(model, 1.0001 * excess / work))
    assert (found.kv_tokens, found.kv_utilization, found.iteration_time_s) == (None, None, None)
    assert (found.requests_in_flight, found.decode_tokens_per_s, found.prompt_iterations_per_s) == (None,) * 3
    assert all((c.per_stage, c.in_flight) == (None, None) for c in found.classes)
    assert load(scaled(model, 1.0001 * excess / work)).load_factor_max < 1


@pytest.mark.parametrize(("below_one", "tau"), [(2**-10, 2**10), (2**-30, 2**30), (2**-52, 2**52)])
def test_the_iteration_time_diverges_as_the_work_rate_reaches_one(below_one: float, tau: float) -> None:
    """τ* = d0/(1 - Λ), exactly, down to the last float below one; at one there is none."""
    model = mix_model((0, 1, 1.0), memory=100)

    def at(work: float) -> ServingModel:
        return replace(model, timing=replace(model.timing, d1=work))

    assert equilibrium(at(1 - below_one)).iteration_time_s == tau
    assert equilibrium(at(1.0)).iteration_time_s is None


@given(models())
def test_more_memory_never_hurts_and_the_gain_ends_at_the_compute_limit(model: ServingModel) -> None:
    """α grows with M towards 1/Λ."""
    alphas = [
        load(
            replace(model, replica=replace(model.replica, memory_tokens=model.replica.memory_tokens * k))
        ).load_factor_max
        for k in (1, 2, 10, 10**9)
    ]
    assert alphas == sorted(alphas)
    work = float(demand(model)["work"])
    if work > 1e-3:
        assert alphas[-1] <= 1 / work * (1 + 1e-12)
        limit = 10**9 * model.replica.memory_tokens
        assert alphas[-1] == pytest.approx(
            1 / (float(demand(model)["held"]) * model.timing.d0 / limit + work), rel=1e-9
        )


@pytest.mark.parametrize(
    ("prefill", "stages", "footprint", "prompt"),
    [
        ("disaggregated", 3, 10 * 3 + 6, 0),
        ("inline", 4, 4 * 10 + 6, 10),
        ("fused", 3, 10 * 3 + 6, 10),
    ],
)
def test_each_prefill_convention_has_its_own_stages(
    prefill: str, stages: int, footprint: int, prompt: int
) -> None:
    """Input 10, decode 3, counted by hand: 11+12+13, or 10+11+12+13 with a prefill of its own."""
    model = mix_model((10, 3, 1.0), prefill=prefill)
    assert model.mix.stages.tolist() == [stages]
    assert model.mix.read.footprint.tolist() == [footprint]
    assert model.mix.prefill_tokens.tolist() == [prompt]


def _held(change: Callable[[ServingModel], ServingModel]) -> float:
    return saturation(change(mix_model((10, 3, 1.0), memory=727))).admissions_per_iteration


def test_requests_hold_whole_pages_and_these_take_no_time() -> None:
    """11, 12 and 13 tokens take a page of 16 each, of which memory has 45; Λ is unchanged."""
    assert _held(lambda m: m) == pytest.approx(727 / 36)
    assert _held(lambda m: replace(m, replica=replace(m.replica, block_tokens=16))) == 45 / 3
    timed = mix_model((10, 3, 1.0))
    timed = replace(timed, timing=replace(timed.timing, d1=1e-6))
    paged = replace(timed, replica=replace(timed.replica, block_tokens=16))
    assert load(timed).work_rate == load(paged).work_rate == pytest.approx(36e-6)


def test_the_first_limit_that_is_met_bounds_admissions() -> None:
    """Of 24 tokens a request holds 3 + 4 + 5 over three iterations: two an iteration; three in flight are one."""
    found = [most_admissions(mix_model((2, 3, 1.0), memory=24, max_num_seqs=seats)) for seats in (None, 3)]
    assert found == [2, 1]


def test_a_request_alone_takes_the_time_of_its_iterations_and_of_its_work() -> None:
    """Three iterations of 1.5 s, 10 tokens of prefill, and 11 + 12 + 13 tokens that are read."""
    law = Timing(1.0, d1=0.01, d2=0.1, d3=0.5)
    alone = time_alone(mix_model((10, 3, 1.0), memory=100, prefill="fused", timing=law))
    assert alone == pytest.approx(3 * 1.5 + 10 * 0.1 + 36 * 0.01)
