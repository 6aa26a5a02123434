"""Split or together: the search finds what is best among all ways, and says so."""

import math
from dataclasses import replace
from unittest.mock import ANY

import numpy as np
import pytest
from every import every
from tiers import at_night

from kvplan.analysis.split import served, sides, split_rps
from kvplan.decide.fixed_runs import Estimate, Measured, simulated
from kvplan.decide.splitting import (
    Candidate,
    Splitting,
    fewest_gpus,
    largest_rate,
    long_enough,
    split_candidates,
    split_or_together,
    together_candidate,
)
from kvplan.errors import UsageError
from kvplan.model import Plan, Replica, RequestClass, ServingModel, Timing
from kvplan.model.fleet import Fleet, Hardware, Routing
from kvplan.model.slo import Slo, parse_slo
from kvplan.study.replicas import scaled

CHAT = RequestClass("chat", 2000, (200,), (1.0,), 60.0)
LAW, REPLICA = Timing(8e-3, 0.04e-6, 25e-6, 15e-6), Replica(450_000, 16, max_num_batched_tokens=8192)
MODEL = ServingModel((CHAT,), LAW, REPLICA)
TTFT = parse_slo("ttft_s.p95 <= 2 s")


def analytic(model: ServingModel, prefill_rps: float, decode_rps: float, both_rps: float) -> Measured:
    """A fleet whose limits are known, and which answers at once below them."""
    fleet, rate = model.fleet, model.total_rate_rps
    most = (
        min(fleet.prefill * prefill_rps, fleet.decode * decode_rps)
        if fleet.is_split
        else fleet.replicas * both_rps
    )
    return Measured(rate <= most, {"ttft_s.p95": Estimate(1.0, 1.0, 1.0)})


@pytest.mark.parametrize(
    ("prefill", "decode", "both"), [(20, 31, 11), (9, 100, 11), (100, 9, 7), (15, 15, 9)]
)
def test_the_best_of_all_ways_is_found(prefill: float, decode: float, both: float) -> None:
    """Wherever the formulas would begin: what is measured decides."""
    found = split_or_together(MODEL, 24, [TTFT], lambda model: analytic(model, prefill, decode, both))
    best = max(min(x * prefill, (24 - x) * decode) for x in range(1, 24))
    assert found.split.goodput_rps == pytest.approx(best, rel=0.021)
    assert found.together.goodput_rps == pytest.approx(24 * both, rel=0.021)
    expected = found.split if best > 24 * both else found.together
    assert found.best is expected
    assert len(found.tried) < 24, "neighbours, not all"


@pytest.mark.parametrize(("needed", "prefill", "decode", "both"), [(50, 20, 31, 11), (50, 9, 10, 14)])
def test_the_fewest_gpus_for_a_demand(needed: float, prefill: float, decode: float, both: float) -> None:
    """By counting up, wherever the formulas would begin."""

    def most(gpus: int) -> float:
        return max(gpus * both, *(min(x * prefill, (gpus - x) * decode) for x in range(gpus)))

    expected = next(gpus for gpus in range(1, 99) if most(gpus) >= 1.02 * needed)
    found = fewest_gpus(MODEL, needed, [TTFT], lambda model: analytic(model, prefill, decode, both))
    assert found.gpus == expected
    assert found.found.best.goodput_rps >= needed
    assert found.fewer == (expected - 1, pytest.approx(most(expected - 1), rel=0.021))


def test_no_number_of_gpus_helps_where_nothing_is_served() -> None:
    slow = Measured(True, {"ttft_s.p95": Estimate(9.0, 9.0, 9.0), "itl_s.p99": Estimate(9.0, 9.0, 9.0)})
    with pytest.raises(UsageError, match="serve nothing"):
        fewest_gpus(MODEL, 50, [TTFT], lambda model: slow)
    with pytest.raises(UsageError, match="by formula"):
        fewest_gpus(MODEL, 50, [parse_slo("itl_s.p99 <= 7 ms")], lambda model: slow)


@every("kinds", [(1, 1), (2, 1), (1, 4), (2, 4), (3, 2)])
def test_splits_of_replicas_of_several_gpus_are_those_that_leave_no_room(kinds: tuple[int, int]) -> None:
    """Of all pairs that fit, those to neither side of which a replica can be added, prefill ascending."""
    one, other = (Hardware(LAW, replace(REPLICA, gpus=gpus)) for gpus in kinds)
    given = Fleet(replicas=1, prefill_on=one, decode_on=other)
    for gpus in (2, 7, 12, 17):
        fits = [(p, d) for p in range(1, 18) for d in range(1, 18) if p * kinds[0] + d * kinds[1] <= gpus]
        full = [(p, d) for p, d in fits if {(p + 1, d), (p, d + 1)}.isdisjoint(fits)]
        found = list(split_candidates(given, sides(MODEL, given), gpus, 0.03))
        assert [(one.fleet.prefill, one.fleet.decode) for one in found] == full
        assert [one.gpus for one in found] == [p * kinds[0] + d * kinds[1] for p, d in full]


def test_with_a_limit_that_does_not_bind_smaller_budgets_are_tried_all_the_same() -> None:
    """Means are far below it, but an iteration with a full budget of prompts takes longer: its percentile misses."""

    def measure(model: ServingModel) -> Measured:
        one = analytic(model, 5, 5, 11)
        budget = 0 if model.fleet.is_split else model.replica.max_num_batched_tokens
        return one._replace(figures={**one.figures, "itl_s.p99": Estimate(*[8e-3 + 25e-6 * budget] * 3)})

    small = replace(MODEL, replica=replace(REPLICA, max_num_seqs=16))
    found = split_or_together(small, 8, [TTFT, parse_slo("itl_s.p99 <= 80 ms")], measure)
    assert found.best is found.together
    assert found.together.budget_tokens < 2880


def test_rates_that_are_alike_leave_replicas_together() -> None:
    alike = [Candidate(Fleet(3, 5), 8, 90.0, 100.5), Candidate(Fleet(replicas=8), 8, 90.0, 100.0)]
    assert Splitting(8, tuple(alike), *alike).best is alike[1]


def test_nothing_is_served_within_what_nobody_keeps() -> None:
    found = split_or_together(
        MODEL, 4, [TTFT], lambda model: Measured(False, {"ttft_s.p95": Estimate(9.0, 9.0, 9.0)})
    )
    assert {one.goodput_rps for one in found.tried} == {0.0}


def test_without_objectives_there_is_nothing_to_compare() -> None:
    with pytest.raises(UsageError, match="no objectives"):
        split_or_together(MODEL, 8, [], lambda model: Measured(True, {}))


def test_runs_that_are_too_short_to_tell_end_the_search() -> None:
    fine = Measured(True, {"ttft_s.p95": Estimate(1.0, 1.0, 1.0)})
    assert split_or_together(MODEL, 4, [TTFT], lambda model: fine).together.goodput_rps > 0


@pytest.mark.parametrize("gpus", [0, 4097])
def test_gpus_out_of_reach_are_refused(gpus: int) -> None:
    with pytest.raises(UsageError, match="--split"):
        split_or_together(MODEL, gpus, [TTFT], lambda model: Measured(True, {}))


# ------------------------------------------------------------------------------------------------- a campaign


def drawn(seed: int) -> tuple[ServingModel, int, list[Slo]]:
    """A fleet of 8 to 64 GPUs, one of three kinds of traffic, limits between tokens and on the first."""
    rng = np.random.default_rng(seed)
    kind = ((2000, 200), (500, 600), (6000, 80))[seed % 3]
    lengths = tuple(int(kind[1] * part) for part in (0.5, 1.0, 1.5))
    chat = RequestClass("a", kind[0], lengths, (1.0, 1.0, 1.0), 10.0)
    law = Timing(*(base * math.exp(rng.uniform(-0.5, 0.5)) for base in (8e-3, 4e-8, 25e-6, 15e-6)))
    replica = Replica(int(rng.uniform(2e5, 8e5)), 16, max_num_batched_tokens=8192, prefix_caching=False)
    fleet = Fleet(replicas=1, transfer_bytes_per_s=50e9, bytes_per_token=131_072.0)
    gpus = int(rng.choice([8, 16, 32, 64]))
    itl_s = law.d0 * math.exp(rng.uniform(0.7, 3.5))
    slos = [parse_slo(f"itl_s.p99 <= {itl_s:.6f} s"), parse_slo("ttft_s.p95 <= 2 s")]
    return ServingModel((chat,), law, replica, fleet=fleet), gpus, slos


@pytest.mark.parametrize("seed", at_night(*range(60)))
def test_what_is_recommended_is_within_three_percent_of_the_best_of_all(seed: int) -> None:
    model, gpus, slos = drawn(seed)
    measure = simulated(Plan(slos=tuple(slos)), "vllm", requests=max(6000, 300 * gpus), seeds=[0])
    found = split_or_together(model, gpus, slos, measure)
    known = {(one.fleet, one.budget_tokens) for one in found.tried}
    formulas, best = sides(model, model.fleet), found.best.goodput_rps
    both = together_candidate(model.fleet, formulas, gpus, math.inf)
    budgets = [both._replace(budget_tokens=budget) for budget in (128, 256, 512, 1024, 2048, 4096)]
    every = [*split_candidates(model.fleet, formulas, gpus, math.inf), both, *budgets]
    others = [
        largest_rate(model, one, slos, measure).goodput_rps
        for one in every
        if (one.fleet, one.budget_tokens) not in known
    ]
    assert best >= 0.97 * max([best, *(one.goodput_rps for one in found.tried), *others])


def test_links_limit_what_a_split_serves_and_the_simulation_agrees() -> None:
    """A prompt of 262 MB takes 0.26 s of a link of 1 GB/s: three links of the decode side carry 11.4 a second."""
    fleet = Fleet(5, 3, routing=Routing.ROUND_ROBIN, transfer_bytes_per_s=1e9, bytes_per_token=131_072)
    found = sides(MODEL, fleet)
    link_s = 2000 * 131_072e-9
    assert served(found.decode) == (pytest.approx(1 / link_s), ANY, "transfer")
    assert split_rps(found, 5, 3) == pytest.approx(3 / link_s)
    measure = simulated(Plan(), "vllm", requests=600, seeds=[0, 1])
    at = [replace(scaled(MODEL, share * 3 / link_s), fleet=fleet) for share in (0.5, 1.5)]
    waits = [measure(model).figures["ttft_s.mean"].mean for model in at]
    assert waits[0] < 2 < waits[1]


def test_a_split_that_cannot_be_simulated_is_refused_before_anything_is() -> None:
    seen = []

    def measure(model: ServingModel) -> Measured:
        seen.append(model.fleet)
        raise UsageError("not apart")

    with pytest.raises(UsageError, match="not apart"):
        split_or_together(MODEL, 8, [TTFT], measure)
    assert [fleet.is_split for fleet in seen] == [True]


def test_runs_that_are_over_before_a_request_is_tell_nothing() -> None:
    """3,000 requests/s that take 4 s each: 6,000 of them are all there before one is done."""
    figures = {"ttft_s.p95": Estimate(1.0, 1.0, 1.0), "e2e_s.mean": Estimate(4.0, 4.0, 4.0)}
    model = scaled(MODEL, 3000.0)
    fine, slow = Measured(True, figures), Measured(False, figures)
    with pytest.raises(UsageError, match="96,000 or more"):
        long_enough(lambda _: fine, 6000, [TTFT])(model)
    assert long_enough(lambda _: fine, 12_000, [TTFT])(model) is fine
    assert long_enough(lambda _: slow, 6000, [TTFT])(model) is slow, "too much, whatever the run"


def test_where_neither_way_serves_anything_neither_wins() -> None:
    nothing = Candidate(Fleet(3, 5), 8, 90.0), Candidate(Fleet(replicas=8), 8, 90.0)
    assert Splitting(8, nothing, *nothing).winner is None


def test_decode_replicas_have_nothing_to_do_where_a_request_is_one_token() -> None:
    model = ServingModel((replace(CHAT, decode_tokens=(1,)),), LAW, REPLICA)
    reason = split_or_together(model, 8, [TTFT], lambda model: analytic(model, 9, 100, 11)).reason
    assert "replica has nothing to do;" in reason
    assert "inf" not in reason
