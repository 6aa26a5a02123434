"""Headroom: by arithmetic where iterations take no longer under load, and as plan.holds decides elsewhere."""

from dataclasses import replace

import pytest
import shipped
from strategies import one_class

from kvplan.analysis.cache_states import cached_replica
from kvplan.analysis.cached_equilibrium import with_rates_of_users
from kvplan.analysis.prefix_cache import population_of
from kvplan.model import (
    ArrivalProcess,
    Plan,
    Prefill,
    Prompt,
    Replica,
    RequestClass,
    ServingModel,
    Timing,
)
from kvplan.model.fleet import Fleet, Routing
from kvplan.model.gaps import Exponential
from kvplan.model.lengths import Lengths
from kvplan.model.sessions import Sessions
from kvplan.model.slo import parse_slo
from kvplan.study.headroom import headroom, size_of
from kvplan.study.objectives import State
from kvplan.study.trial import Missed, stretched

SERVED_RPS = 50.0


def clockwork(load: float, plan: Plan, **more: object) -> tuple[ServingModel, Plan]:
    """One request fits at a time and takes two iterations of 10 ms; they come at all but equal gaps."""
    replica, arrivals = Replica(9, prefill=Prefill.DISAGGREGATED), ArrivalProcess(cv=0.01)
    mix = (one_class(7, 2, load * SERVED_RPS),)
    return ServingModel(mix, Timing(0.01), replica, arrivals=arrivals, **more), plan  # type: ignore[arg-type]


def of(model: ServingModel, plan: Plan) -> tuple[float, str, bool]:
    size = size_of(model, plan)
    return tuple(headroom(size, size.own))


@pytest.mark.parametrize("load", [0.8, 0.7, 1.2])
def test_without_objectives_the_queue_ends_it(load: float) -> None:
    """What is served with iterations 5 % longer, less the steps of 1 % and what runs leave open."""
    ratio, limit, at_least = of(*clockwork(load, Plan()))
    assert 1 / 1.05 / load - 1 - 0.03 < ratio <= 1 / 1.05 / load - 1
    assert (limit, at_least) == (Missed.QUEUE, False)


def test_beyond_half_as_much_more_nobody_looks() -> None:
    assert of(*clockwork(0.5, Plan())) == (0.5, "", True)


def test_a_burst_ends_it_where_it_has_to_be_over_soon() -> None:
    """A minute at four times the rate leaves a queue that is served beyond the rate: 60 (4 l - 1)/(1 - l) seconds."""
    plan = Plan(slos=(parse_slo("ttft_s.p99 <= 60 s"),), recover_s=300.0)
    model, plan = clockwork(0.6, plan)
    slow = replace(model, timing=Timing(0.1), classes=(one_class(7, 2, 0.06 * SERVED_RPS),))  # fewer steps
    ratio, limit, _ = of(slow, plan)
    loads = [0.6 * (1 + step / 100) for step in range(50)]
    largest = max(load for load in loads if load < 1 and 60 * (4 * load - 1) / (1 - load) <= 300)
    assert ratio == pytest.approx(largest / 0.6 - 1, abs=0.011)
    assert limit == Missed.RECOVERY


def test_what_a_plan_holds_with_its_headroom_is_at_least_that() -> None:
    model, plan = clockwork(0.65, Plan(headroom=0.2, slos=(parse_slo("ttft_s.p95 <= 10 s"),)))
    size = size_of(model, plan)
    assert size.own().state is State.HOLDS
    assert headroom(size, size.own).ratio >= 0.2


def test_replicas_that_get_requests_at_random_are_judged_by_one() -> None:
    alone, plan = clockwork(0.8, Plan())
    four = clockwork(3.2, plan, fleet=Fleet(replicas=4, routing=Routing.RANDOM))[0]
    assert of(four, plan)[0] == pytest.approx(of(alone, plan)[0], abs=0.011)


def test_the_figure_of_a_shipped_profile_has_the_limit_that_long_runs_name() -> None:
    profile = shipped.profile("two-tier-99-125")
    size = size_of(profile.model, profile.plan)
    spare = headroom(size, size.own)
    more = replace(size.task, headroom=spare.ratio + 0.02)
    assert more.judge(size.replicas, size.batched_tokens).state is not State.HOLDS


def test_users_are_too_many_by_their_number() -> None:
    """What 139 ask for a slower replica does not serve; of it they ask less, and it is good for 142."""
    good = population_of(cached_replica(replace(asking(90), timing=stretched(asking(90).timing, 1.05)))).good
    assert 142 < good < 143
    for users, replicas in ((139, 1), (141, 2)):
        assert size_of(asking(users), Plan()).task.bound(None) == replicas


def asking(users: int) -> ServingModel:
    law = Sessions(*[Lengths.of({20: 1.0})] * 3, Lengths.of({3: 1.0}), Exponential(0.5), users=users)
    prompts = tuple(Prompt(20 + 40 * turn, 1.0) for turn in range(3))
    turns = RequestClass("turns", 60, (20,), (1.0,), 30.0, sessions=law, prompts=prompts)
    return with_rates_of_users(ServingModel((turns,), Timing(0.01, d2=1e-4), Replica(6_000)))


def test_a_population_asks_no_more_of_a_plan_that_was_saved() -> None:
    """What 90 users of three replicas ask is judged as it was planned: from what one replica would make of them."""
    model = asking(90)
    saved = with_rates_of_users(replace(model, fleet=Fleet(replicas=3)))
    assert saved.total_rate_rps > 1.01 * model.total_rate_rps  # each has fewer users, whom it answers sooner
    assert size_of(saved, Plan()).task.rate_rps == pytest.approx(model.total_rate_rps)
