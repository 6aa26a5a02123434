"""`kvplan size`: agrees with brute force, says why nothing is enough, and sizes every hour of a schedule."""

import json
import math
import random
from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import command
import numpy as np
import pytest
from command import Run, document
from every import every
from hypothesis import given
from hypothesis import strategies as st
from kept import kept
from tiers import at_night

import kvplan
from kvplan.analysis.equilibrium import sustainable_rate
from kvplan.cli.searching import once as said_once
from kvplan.cli.size import Router
from kvplan.decide.fleet import fleet, parts
from kvplan.decide.sizing import (
    HYSTERESIS,
    MAX_REPLICAS,
    QUEUE,
    idle_rate,
    missed,
    search,
    simulated,
    size,
)
from kvplan.errors import UsageError
from kvplan.model import Plan, Replica, RequestClass, ServingModel, Timing
from kvplan.model.fleet import Routing
from kvplan.model.schedule import Sinusoid, Steps
from kvplan.model.slo import Slo, parse_slo
from kvplan.report.assembly import Analyses
from kvplan.study.replicas import Kept, scaled

COMMAND = ["size"]
SMALL = ["--requests", "150", "--seeds", "2"]
PROFILE = """\
schema = 1
name = "a shop"
gpu = { memory_tokens = 1_500 }
timing = { d0 = "10 ms", d2 = "20 us" }
[[classes]]
name = "chat"
input = 200
decode = { 4 = 1, 8 = 1 }
rate = 6
"""


@pytest.fixture
def shop(tmp_path: Path) -> str:
    path = tmp_path / "shop.toml"
    path.write_text(PROFILE)
    return str(path)


# ------------------------------------------------------------------------------------------------ brute force


def random_case(number: int) -> tuple[ServingModel, float, list[str]]:
    """A small replica, a demand for some of them, and sometimes objectives about as tight as can be met."""
    draw = random.Random(number)
    classes = tuple(
        RequestClass(name, draw.randint(20, 400), (draw.randint(2, 12),), (1.0,), draw.uniform(0.2, 1))
        for name in ("a", "b")[: draw.randint(1, 2)]
    )
    timing = Timing(0.01, draw.choice([0.0, 1e-6]), draw.choice([0.0, 2e-5]))
    model = ServingModel(classes, timing, Replica(draw.randint(1000, 3000)))
    demand = sustainable_rate(model)[1] * draw.uniform(0.3, 2.6)
    alone = scaled(model, idle_rate(model))
    first = timing.d0 + timing.d2 * float(alone.mix.share @ alone.mix.input_tokens)
    slos = [
        f"ttft_s.p95 <= {first * draw.uniform(2.5, 8)}",
        f"tpot_s.mean <= {timing.d0 * draw.uniform(1.05, 2)}",
    ]
    return model, demand, slos[: number % 3]


@pytest.mark.parametrize("number", [*range(12), *at_night(*range(12, 20))])
def test_as_many_as_trying_one_two_three_finds(number: int) -> None:
    """Every size from 1 on is judged here; only runs that `size` made are not made again."""
    model, demand, texts = random_case(number)
    slos, most = [parse_slo(text) for text in texts], 60
    runs = simulated(Plan(), "vllm", slos, requests=200, runs=2)
    known: dict[float, Kept] = {}

    def measure(one: ServingModel) -> Kept:
        rate = float(f"{one.total_rate_rps:.9g}")
        if rate not in known:
            known[rate] = runs(one)
        return known[rate]

    found = size(model, demand_rps=demand, headroom=0.1, slos=slos, measure=measure)
    sustainable = sustainable_rate(model)[1]

    def holds(rate: float) -> bool:
        return rate <= sustainable and not missed(measure(scaled(model, rate)), slos)

    if found.replicas is None:
        assert not holds(idle_rate(model))
    else:
        assert found.replicas == next(n for n in range(1, most) if holds(demand * 1.1 / n))


# ------------------------------------------------------------------------------------------------ the search alone


def server(
    limit: float = 10.0, floor: float = 0.01, slos: Sequence[Slo] = ()
) -> Callable[[ServingModel], Kept]:
    """One whose delay is floor + 1/(limit - rate), known for sure."""

    def measure(model: ServingModel) -> Kept:
        rate = model.total_rate_rps
        delay = floor + 1 / (limit - rate) if rate < limit else 1e9
        return kept(rate < limit, {"ttft_s.mean": delay}, slos)

    return measure


MODEL = ServingModel((RequestClass("a", 5, (1,), (1.0,), 1.0),), Timing(1.0), Replica(60))  # sustains 10/s


@every("demand", [0.1, 10.0, 10.1, 95.0, 1234.5])
@every("bound", [0.112, 0.121, 0.15, 0.3, 5.0])
def test_the_search_finds_the_fewest(demand: float, bound: float) -> None:
    """Delay 0.01 + 1/(10 - r) <= bound is r <= 10 - 1/(bound - 0.01); more than 9.9 is never asked for then."""
    rate = 10 - 1 / (bound - 0.01)
    slos = [parse_slo(f"ttft_s.mean <= {bound}")]
    found = size(MODEL, demand_rps=demand, headroom=0.0, slos=slos, measure=server(slos=slos))
    fewest = next(n for n in range(1, 10**6) if demand / n <= rate)
    assert found.replicas == fewest
    assert found.probe(fewest + 1) is not None
    if fewest > 1:
        below = found.probe(fewest - 1)
        assert below is not None
        assert not below.enough
    assert len(found.probes) < 40


@given(st.integers(1, 10**5), st.integers(1, 10**5), st.integers(0, 2 * MAX_REPLICAS))
def test_any_guess_leads_to_the_fewest(low: int, more: int, guess: int) -> None:
    tried = []

    def enough(replicas: int) -> bool:
        tried.append(replicas)
        return replicas >= low + more

    assert search(low, enough, guess) == low + more
    assert len(tried) == len(set(tried)) < 60
    assert low < min(tried)
    assert max(tried) <= max(MAX_REPLICAS, low + 1)


def test_a_good_guess_saves_steps() -> None:
    tried = []

    def enough(replicas: int) -> bool:
        tried.append(replicas)
        return replicas >= 13_295

    assert search(10_000, enough, 13_296) == 13_295
    assert tried == [13_296, 13_295, 13_293, 13_294]
    assert search(MAX_REPLICAS - 1, lambda _: False) is None


def test_a_queue_that_grows_where_the_formulas_see_room_is_what_binds() -> None:
    found = size(MODEL, demand_rps=35.0, headroom=0.0, slos=[], measure=server(limit=6.0))
    assert (found.closed_form, found.replicas, found.binding) == (4, 6, QUEUE)


def test_an_objective_that_only_the_idle_replica_misses_has_no_size() -> None:
    slos = [parse_slo("ttft_s.mean <= 0.1")]
    found = size(MODEL, demand_rps=35.0, headroom=0.0, slos=slos, measure=server(slos=slos))
    assert found.replicas is None
    assert found.thresholds is None
    assert "all but idle has 110 ms, for the iteration of a prompt takes 1 s" in found.reason


def test_headroom_is_demand_that_must_be_met() -> None:
    found = size(MODEL, demand_rps=20.0, headroom=0.0, slos=[], measure=server(limit=10.5))
    more = size(MODEL, demand_rps=20.0, headroom=0.2, slos=[], measure=server(limit=10.5))
    assert (found.replicas, more.replicas) == (2, 3)
    assert found.thresholds is not None
    assert found.thresholds.rate_rps == pytest.approx(10)
    assert more.thresholds is not None
    assert more.thresholds.rate_rps == pytest.approx(10 / 1.2)
    # 6 tokens held for one iteration of 1 s, 60 in all; two of three replicas then carry 10/1.2 each
    assert more.thresholds.kv_utilization == pytest.approx(10 / 1.2 * 6 / 60)
    assert more.thresholds.down_kv_utilization == pytest.approx(0.8 * 10 / 1.2 * 6 / 60 * 2 / 3)
    assert more.thresholds.waiting == pytest.approx(10 / 1.2 * (0.01 + 1 / (10.5 - 10 / 1.2)))


# ------------------------------------------------------------------------------------------------ over time


@every("night", [0.01, 1e-9, 0.4])
@every("slo", [[], ["ttft_s.mean <= 0.5"]])
def test_a_night_changes_nothing_in_the_day_and_saves_steps(night: float, slo: list[str]) -> None:
    """Nine of ten requests/s that the formulas see: nights of a replica or two say less about that than the day."""
    schedule = Steps(10.0, (0.0, 2.0, 5.0, 7.0), ((night,), (1.0,), (0.9,), (1.1,)))
    model = ServingModel(MODEL.classes, MODEL.timing, MODEL.replica, schedule)
    tried: list[float] = []
    slos = [parse_slo(text) for text in slo]
    measure = server(limit=9.0, slos=slos)

    def counted(one: ServingModel) -> Kept:
        tried.append(one.total_rate_rps)
        return measure(one)

    run = partial(fleet, headroom=0.0, slos=slos, measure=counted)
    together = [hour.replicas for hour in run(model, rate_rps=5000.0).hours]
    runs, factors = len(tried), (night, 1.0, 0.9, 1.1)
    assert together == [run(MODEL, rate_rps=5000.0 * factor).heaviest.replicas for factor in factors]
    assert runs < 0.75 * (len(tried) - runs)


def test_every_step_has_a_size_of_its_own() -> None:
    schedule = Steps(10.0, (0.0, 2.0, 5.0), ((1.0,), (0.0,), (3.0,)))
    model = ServingModel(MODEL.classes, MODEL.timing, MODEL.replica, schedule)
    found = fleet(model, rate_rps=8.0, headroom=0.0, slos=[], measure=server(limit=10.5))
    assert [(hour.start_s, hour.end_s, hour.replicas) for hour in found.hours] == [
        (0.0, 2.0, 1),
        (2.0, 5.0, 0),
        (5.0, 10.0, 3),
    ]
    assert found.mean_replicas == pytest.approx((2 * 1 + 5 * 3) / 10)
    assert found.heaviest.demand_rps == pytest.approx(24)


def test_a_wave_is_cut_into_hours_with_the_most_of_each() -> None:
    model = ServingModel(MODEL.classes, MODEL.timing, MODEL.replica, Sinusoid(86_400.0, 0.5, 54_000.0))
    found = parts(model)
    assert len(found) == 24
    course = model.schedule.course([1.0])  # type: ignore[union-attr]
    for part in found:
        assert part.model is not None
        mean = float(course.integral(part.end_s) - course.integral(part.start_s)) / 3600
        assert mean < part.model.total_rate_rps < mean + 0.1


def test_what_parts_of_a_period_share_is_simulated_once() -> None:
    """The wave has 12 different hours of 24; each needs the idle replica, and that is one and the same."""
    model = ServingModel(MODEL.classes, MODEL.timing, MODEL.replica, Sinusoid(86_400.0, 0.5, 54_000.0))
    rates: list[float] = []
    slos = [parse_slo("ttft_s.mean <= 0.15")]
    alone = server(slos=slos)

    def measure(one: ServingModel) -> Kept:
        rates.append(one.total_rate_rps)
        return alone(one)

    found = fleet(model, rate_rps=299.0, headroom=0.2, slos=slos, measure=measure)
    assert len({hour.size.demand_rps for hour in found.hours if hour.size}) == 12
    assert len(rates) == len({f"{rate:.9g}" for rate in rates})
    assert sum(rate == pytest.approx(idle_rate(MODEL), rel=1e-6) for rate in rates) == 1
    # delay 0.01 + 1/(10 - r) <= 0.15 is r <= 10 - 1/0.14
    for hour in found.hours:
        assert hour.size is not None
        assert hour.replicas == math.ceil(hour.size.demand_rps * 1.2 / (10 - 1 / 0.14))


# ------------------------------------------------------------------------------------------------ the command


def test_the_command_says_what_binds_what_it_costs_and_what_one_more_buys(run: Run, shop: str) -> None:
    found = document(run, shop, "--rate", "150", "--price", "gpu=2.5", *SMALL)
    (one,) = found["profiles"]
    assert one["label"] == found["best"] == "shop"
    assert one["cost_per_hour"] == 2.5 * one["replicas"]
    assert [p["replicas"] for p in one["probes"]][-2:] == [one["replicas"], one["replicas"] + 1]
    code, text, _ = run(shop, "--rate", "150", "--price", "shop=2.5", *SMALL)
    assert code == 0
    words = " ".join(text.split())
    assert (
        f"{one['replicas']} replicas for 150 requests/s with 20% headroom; what binds: {one['binding']}"
        in words
    )
    assert "One more GPU buys headroom from" in words
    assert "Little's law" in words


def test_runs_that_begin_short_get_long_enough_to_refute(run: Run, shop: str) -> None:
    """Memory for 1,500 tokens holds five to ten of the requests of 200 and more; three never wait for long."""
    (one,) = document(run, shop, "--rate", "300", "--requests", "3", "--seeds", "2")["profiles"]
    below = next(p for p in one["probes"] if p["replicas"] == one["replicas"] - 1)
    assert below["load"] > 1
    assert below["missed"] == ["queue"]
    assert below["figures"] == {}


def test_what_every_run_would_say_is_said_once() -> None:
    said: list[tuple[str, bool]] = []
    announce = said_once(lambda policy, kept: said.append((policy, kept)))
    for _ in range(3):
        announce("vllm", True)
    assert said == [("vllm", True)]


def test_profiles_are_compared_by_cost(run: Run, shop: str, tmp_path: Path) -> None:
    large = tmp_path / "large.toml"
    large.write_text(PROFILE.replace("1_500", "15_000"))
    found = document(
        run, shop, str(large), "--rate", "150", "--price", "shop=1", "--price", "large=50", *SMALL
    )
    small, big = found["profiles"]
    assert big["replicas"] < small["replicas"]
    assert found["best"] == "shop"
    found = document(run, shop, str(large), "--rate", "150", *SMALL)
    assert found["best"] == "large"


def test_a_replica_of_four_gpus_is_counted_and_priced_as_four(run: Run, shop: str, tmp_path: Path) -> None:
    """Ten times the memory on four GPUs: fewer replicas, more GPUs, so that one GPU each is better."""
    four = tmp_path / "four.toml"
    four.write_text(PROFILE.replace("1_500", "15_000, gpus = 4"))
    demand = ["--rate", "150", *SMALL]
    found = document(run, shop, str(four), *demand, "--price", "gpu=2.5")
    one, other = found["profiles"]
    assert (one["gpus_per_replica"], other["gpus_per_replica"]) == (1, 4)
    assert other["replicas"] < one["replicas"] < 4 * other["replicas"] == other["gpus"] == other["mean_gpus"]
    assert (one["cost_per_hour"], other["cost_per_hour"]) == (2.5 * one["gpus"], 2.5 * other["gpus"])
    assert other["price_per_replica_hour"] == 10
    assert document(run, shop, str(four), *demand)["best"] == found["best"] == "shop"
    _, text, _ = run(shop, str(four), *demand)
    words = " ".join(text.split())
    assert f"shop: {one['replicas']} replicas, the fewest GPUs." in words
    assert f"({other['gpus']} GPUs) for 150 requests/s" in words
    assert "One more replica (4 GPUs) buys" in words
    (alone,) = document(run, str(four), *demand, "--price", "four=3")["profiles"]
    assert alone["cost_per_hour"] == 3 * alone["replicas"]


def test_an_objective_that_nothing_meets_is_said_to_be_so(run: Run, shop: str) -> None:
    code, text, _ = run(shop, "--rate", "60", "--slo", "tpot_s.mean <= 9 ms", *SMALL)
    words = " ".join(text.split())
    assert code == 0
    assert (
        "No number of replicas meets it: tpot_s.mean <= 9 ms: a replica that is all but idle has 10" in words
    )
    assert "an iteration takes at least d0 = 10 ms" in words
    (one,) = document(run, shop, "--slo", "tpot_s.mean <= 9 ms", *SMALL)["profiles"]
    assert one["replicas"] is None
    assert one["reason"].startswith("tpot_s.mean <= 9 ms")


def test_a_day_has_replicas_for_each_step(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "day.toml"
    steps = '[workload]\nperiod = "24 h"\nschedule = [{ at = "8 h", factor = 25 }, { at = "20 h", factor = 0.5 }]\n'
    path.write_text(PROFILE.replace("[[classes]]", steps + "[[classes]]"))
    (one,) = document(run, str(path), "--price", "gpu=2", *SMALL)["profiles"]
    hours = one["hours"]
    assert [hour["demand_rps"] for hour in hours] == [3, 150, 3]
    assert hours[0]["replicas"] == 1 < hours[1]["replicas"] == one["replicas"]
    assert one["cost_per_hour"] == pytest.approx(2 * (12 * 1 + 12 * one["replicas"]) / 24)
    code, text, _ = run(str(path), *SMALL)
    assert code == 0
    assert "Over the period" in text


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--rate", "0"], "--rate 0: requests/s, from 1e-09 to 1e+09"),
        (["--rate", "1e-10"], "--rate 1e-10: requests/s, from 1e-09"),
        (["--rate", "nan"], "--rate nan"),
        (["--rate", "-5"], "--rate -5"),
        (["--rate", "1e9"], "replicas would be needed; 1,000,000 is the most"),
        (["--headroom", "-0.1"], "--headroom -0.1: a share from 0"),
        (["--headroom", "inf"], "--headroom inf"),
        (["--slo", "ttft_s.p9 <= 2"], "did you mean ttft_s.p9"),
        (["--slo", "ttft_s.p95 >= 2"], "KEY <= VALUE is wanted"),
        (["--slo", "ttft_s.p95"], "KEY <= VALUE is wanted"),
        (["--slo", "ttft_s.p95 <= 2 parsecs"], "is not a time"),
        (["--slo", "ttft_s.p95 <= 0"], "must be from 1e-09 s"),
        (["--slo", "ttft_s.p95 <= -1"], "must be above 0"),
        (["--slo", "ttft_s.p95 < -1 ms"], "must be above 0"),
        (["--slo", "ttft_s.p95 <= nan"], "must be above 0"),
        (["--slo", "ttft_s.p95 <= 1e12"], "must be from 1e-09 s to 3.2e+08 s"),
        (["--slo", "recomputed_share <= 120%"], "a share from 0 to 1"),
        (["--slo", "recomputed_share <= 2 s"], "a share such as"),
        (["--price", "gpu=-1"], "a number from 0"),
        (["--price", "gpu"], "NAME=PRICE is wanted"),
        (["--price", "shopp=1"], "no profile has that name; did you mean shop"),
        (["--price", "gpu=1", "--price", "gpu=2"], "has a price already"),
        (["--policy", "vlm"], "--policy 'vlm' does not exist"),
        (["--policy", "wait"], "wait for others"),
        (["--seeds", "1"], "at least 2"),
        (["--requests", "0"], "--requests 0"),
    ],
)
def test_rubbish_is_refused_in_one_line(run: Run, shop: str, arguments: list[str], said: str) -> None:
    code, text, message = run(shop, *arguments)
    assert (code, text) == (2, "")
    assert message.startswith("error: ")
    assert message.count("\n") == 1
    assert said in message


def changes_of_a_day(add_above_rps: float, hysteresis: float) -> list[int]:
    """How many replicas are added or taken away, one after the other, on a day of Poisson arrivals around a sinusoid.

    An autoscaler looks at the mean of every minute.
    """
    random = np.random.default_rng(5)
    hours = np.arange(0, 24, 1 / 60)
    rates = 50 * (1.2 - np.cos(2 * np.pi * hours / 24))
    seen = random.poisson(rates * 60) / 60
    count, changes = math.ceil(seen[0] / add_above_rps), []
    for rate in seen:
        if rate / count > add_above_rps:
            changes.append(math.ceil(rate / add_above_rps) - count)
        elif count > 1 and rate / (count - 1) < hysteresis * add_above_rps:
            changes.append(-1)
        else:
            continue
        count += changes[-1]
    return changes


def test_an_autoscaler_goes_up_and_down_once_a_day() -> None:
    """Noise moves nothing back and forth, as it does where one threshold serves for both ways."""
    changes = changes_of_a_day(13.0, HYSTERESIS)
    first_down = next(i for i, change in enumerate(changes) if change < 0)
    turns = sum(one * other < 0 for one, other in pairwise(changes))
    assert first_down >= 5
    assert turns == 1
    one_threshold = changes_of_a_day(13.0, 1.0)
    assert sum(one * other < 0 for one, other in pairwise(one_threshold)) > 20


def test_a_price_for_one_of_two_is_refused(run: Run, shop: str) -> None:
    code, _, message = run(shop, "tool-calls-h100", "--rate", "60", "--price", "shop=1")
    assert code == 2
    assert "none for tool-calls-h100" in message
    code, _, message = run(shop, shop)
    assert code == 2
    assert "two profiles are called 'shop'" in message


def test_a_figure_that_no_request_has_cannot_be_an_objective() -> None:
    """Requests of a single token have no time between tokens."""
    slos = [parse_slo("tpot_s.mean <= 1")]
    measure = simulated(Plan(), "vllm", slos, runs=2)
    with pytest.raises(UsageError, match="no simulated request has that figure"):
        size(MODEL, demand_rps=2.0, headroom=0.0, slos=slos, measure=measure)


# ---------------------------------------------------------------------------------------- routers and host tiers

FLEET = "\n[fleet]\nreplicas = 9\nrouting = '{}'\n"
EVENLY = ["--headroom", "0", "--requests", "20", "--seeds", "2", "--slo", "ttft_s.p95 <= 25 ms"]


@pytest.mark.parametrize("router", ["least-requests", *at_night("round-robin", "least-kv", "session")])
def test_every_size_is_as_fast_as_the_fleet_that_simulate_runs(run: Run, tmp_path: Path, router: str) -> None:
    """And the fewest that hold: one less was tried, or is overloaded."""
    path, of_all = tmp_path / "shop.toml", tmp_path / "all.toml"
    path.write_text(PROFILE.replace("rate = 6", "rate = 30") + FLEET.format(router))
    (one,) = document(run, str(path), *EVENLY)["profiles"]
    assert one["router"] == router
    assert len(one["probes"]) > 2
    for probe in one["probes"]:
        count = probe["replicas"]
        of_all.write_text(path.read_text().replace("replicas = 9", f"replicas = {count}"))
        options = ["--policy", "vllm", "--requests", str(4000 * count), "--seeds", "2", "--format", "json"]
        found = json.loads(command.run("simulate", of_all, *options).stdout)["policies"][0]
        if probe["figures"]:
            assert probe["figures"]["ttft_s.p95"]["mean"] == pytest.approx(found["ttft_s"]["p95"], rel=0.15)
        else:
            assert found["status"] == "growing"
    assert one["replicas"] == min(probe["replicas"] for probe in one["probes"] if probe["enough"])


def test_a_router_that_looks_needs_fewer(run: Run, shop: str) -> None:
    demand = ["--rate", "60", *EVENLY]
    found = {name: document(run, shop, *demand, "--routing", name) for name in ("random", "least-requests")}
    counts = {name: one["profiles"][0]["replicas"] for name, one in found.items()}
    assert counts["least-requests"] < counts["random"]
    assert found["random"] == document(run, shop, *demand)  # the same law
    assert found["random"]["profiles"][0]["router"] is None
    assert (
        found["random"]["profiles"][0]["closed_form"] == found["least-requests"]["profiles"][0]["closed_form"]
    )
    _, text, _ = run(shop, *demand, "--routing", "least-requests")
    words = " ".join(text.split())
    assert f"{counts['least-requests']} replicas for 60 requests/s by least-requests" in words
    assert "Requests are routed by least-requests: simulated are all replicas" in words
    assert "What a router does from moment to moment is not modelled" not in words


TALKS = """\
schema = 1
name = "talks"
timing = { d0 = "15 ms", d1 = "0.005 us", d2 = "4 us", d3 = "1 us" }

[gpu]
gpus = 2
memory_tokens = 4_000_000
kv_bytes_per_token = 32_768
block_tokens = 16
offload = { memory_tokens = 12_000_000, bandwidth = "50 GB/s" }

[[sessions]]
name = "talk"
rate = 1
first = { uniform = [4000, 12000] }
user = { uniform = [300, 1500] }
decode = { uniform = [40, 200] }
turns = { uniform = [8, 24] }
think = { law = "lognormal", median = "10 s", sigma = 1.0 }
"""


@pytest.fixture
def talks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """With a host tier, by the formulas alone: all that is simulated is fine."""
    monkeypatch.setattr("kvplan.decide.sizing.simulated", lambda *_, **__: lambda model: kept(True))
    path = tmp_path / "talks.toml"
    path.write_text(TALKS)
    return str(path)


def test_what_is_asked_for_again_anywhere_is_not_found(run: Run, tmp_path: Path) -> None:
    """Here random routing is not that of one replica, where all that it is asked for again comes back."""
    path = tmp_path / "again.toml"
    again = 'rate = 6\nreuse = { tokens = 1.0, share = 0.9, gap = { law = "exponential", mean = "2 s" } }'
    path.write_text(PROFILE.replace("1_500", "20_000").replace("rate = 6", again).replace("20 us", "100 us"))
    ttft = {}
    for name in ("random", "session"):
        demand = ["--rate", "120", "--requests", "60", "--seeds", "2", "--headroom", "0"]
        (one,) = document(run, str(path), *demand, "--routing", name)["profiles"]
        assert one["router"] == name
        ttft[name] = one["probes"][-1]["figures"]["ttft_s.mean"]["mean"]
    assert ttft["random"] > 1.3 * ttft["session"]


def cache_of(path: str | Path) -> Any:
    """What `analyze` says of the prefix cache of a profile."""
    return Analyses(kvplan.load(path).model, Plan()).prefix_cache


def test_a_host_tier_is_weighed_against_gpus(run: Run, talks: str) -> None:
    """The rates are those that `analyze` says of the tier: whatever waits, and where waits are bounded."""
    cache = cache_of(talks)
    rates = [cache.sustainable_rps.guaranteed] * 2 + [cache.host.recovers_up_to_rps]
    demand = 3.5 * rates[0]  # two with it, for 2.7 times as much
    counts = [math.ceil(demand / rate) for rate in rates]
    assert counts[0] > counts[2]
    prices = ["--price", "gpu=2", "--price", "talks=5"]
    (one,) = document(run, talks, "--rate", str(demand), "--headroom", "0", *prices)["profiles"]
    alone, whatever, bounded = one["host_tier"]
    ways = (alone, whatever, bounded)
    assert [way["replicas"] for way in ways] == counts
    assert [way["mean_gpus"] for way in ways] == [2 * count for count in counts]
    assert [way["cost_per_hour"] for way in ways] == [
        4 * counts[0],
        one["cost_per_hour"],
        5 * counts[2],
    ]
    assert one["cost_per_hour"] == 5 * counts[1]
    more = bounded["worth_per_replica_hour"]
    assert counts[2] * (4 + more) == pytest.approx(counts[0] * 4)  # costs the same either way
    assert (whatever["worth"], alone["longest_wait_s"], whatever["longest_wait_s"]) == (0, None, None)

    of_one = Path(talks).with_name("one.toml")
    of_one.write_text(TALKS.replace("rate = 1\n", f"rate = {demand / counts[2] / 16}\n"))
    assert bounded["longest_wait_s"] == pytest.approx(cache_of(of_one).host.longest_wait_s)

    _, text, _ = run(talks, "--rate", str(demand), "--headroom", "0", *prices, "--compare")
    words = " ".join(text.split())
    assert f"with it. A replica and hour may then cost {more:.2f} more for it before more GPUs are" in words


def test_a_host_tier_that_saves_no_gpu_is_worth_nothing(run: Run, talks: str) -> None:
    _, text, _ = run(talks, "--rate", "0.5")
    words = " ".join(text.split())
    assert "Whatever waits: 1 replica (2 GPUs) with the host tier, 1 replica (2 GPUs) without it" in words
    assert "It saves no GPU." in words


# --------------------------------------------------------------------------------------------------- Ctrl-C


def test_whoever_interrupts_hears_what_is_known(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Input 1, decode 2, disaggregated: 12 requests/s by the formulas, so 36 with headroom ask for 3; simulated below 5
    each. After 3 come 4, 6 and 10, which is enough, and 8, where the interrupt comes."""
    path = tmp_path / "ok.toml"
    path.write_text(
        """\
schema = 1
name = "small"
gpu = { memory_tokens = 60, prefill = "disaggregated" }
timing = { d0 = 1 }
classes = [{ name = "a", input = 1, decode = 2, rate = 8 }]
"""
    )

    def measure(model: ServingModel) -> Kept:
        if model.total_rate_rps == 4.5:
            raise KeyboardInterrupt
        return kept(model.total_rate_rps < 5)

    monkeypatch.setattr("kvplan.decide.sizing.simulated", lambda *_, **__: measure)
    code, text, messages = run(str(path), "--rate", "30")
    assert (code, text) == (130, "")
    assert messages == (
        "note: interrupted; ok: 30 requests/s: at least 3 replicas by the formulas; "
        "simulated: not enough 6 (the queue grows), enough 10\n"
    )


def test_an_interrupt_before_the_first_run_ends_leaves_the_formulas(
    run: Run, shop: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def measure(model: ServingModel) -> Kept:
        raise KeyboardInterrupt

    monkeypatch.setattr("kvplan.decide.sizing.simulated", lambda *_, **__: measure)
    least = math.ceil(6_000 * 1.2 / sustainable_rate(kvplan.load(shop).model)[1])
    code, _, messages = run(shop, "--rate", "6000")
    assert code == 130
    assert f"at least {least} replicas by the formulas; none simulated to its end" in messages


def test_the_command_knows_every_router() -> None:
    assert [one.value for one in Router] == [one.value for one in Routing]
