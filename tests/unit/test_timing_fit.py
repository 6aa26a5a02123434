"""Laws found again from the times they make; those come from a simulator that shares no code with the fit."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from sampled import parse_samples
from slow_simulator import simulate

from kvplan.errors import UsageError
from kvplan.ingest.timing import played
from kvplan.ingest.timing.equations import Kind
from kvplan.ingest.timing.fit import TimingFit, fit_measured
from kvplan.ingest.timing.played import Law, foretold, requests_of
from kvplan.ingest.timing.robust import solve
from kvplan.ingest.timing.samples import Deployment, Point, Sweep
from kvplan.model import Plan, Prefill, Replica, RequestClass, ServingModel, Timing
from kvplan.simulation.experiments.runner import Job, run_to_the_end
from kvplan.simulation.policies.protocol import Scenario, Settings
from kvplan.simulation.requests import Prefixes

PRIOR = Timing(0.03, d1=1e-6, d2=2e-4, d3=1e-4)
LIMITS = Replica(100_000, 16, Prefill.FUSED, max_num_batched_tokens=512)
OVERHEAD_S = 0.03
SHAPES = ((120, 24), (400, 40))
LAWS = {
    "linear": Timing(0.01, d1=2e-6, d2=5e-5, d3=3e-4),
    "d4": Timing(0.004, d1=2e-7, d2=5e-5, d4=4e-3),
    "d5": Timing(0.01, d1=2e-6, d2=2e-6, d3=1e-5, d5=2e-4, knee_tokens=256),
}


def point(concurrency: int, inputs: int, outputs: int, line: int = 2) -> Point:
    return Point(line=line, inputs=(inputs, inputs), outputs=(outputs // 2, outputs), concurrency=concurrency)


def seen(one: Point, timing: Timing) -> Point:
    """The point with the times that a client would see: its own time comes on top."""
    requests = requests_of(one)
    result = simulate("vllm", requests, timing, LIMITS, {})
    first, last, arrival = (
        np.array(times, dtype=float) for times in (result.first_token_s, result.finish_s, result.arrival_s)
    )
    tpot = (last - first) / (requests.decode_tokens - 1)
    return replace(one, ttft_s=float((first - arrival).mean()) + OVERHEAD_S, tpot_s=float(tpot.mean()))


def sweep(points: Sequence[Point], timing: Timing) -> Sweep:
    measured = [seen(replace(one, line=2 + i), timing) for i, one in enumerate(points)]
    return Sweep("sweep.csv", "", Deployment(), tuple(measured))


def loads(*concurrencies: int) -> list[Point]:
    return [point(c, *shape) for shape in SHAPES for c in concurrencies]


def fitted(measured: Sweep, prior: Timing | None = PRIOR) -> TimingFit:
    return fit_measured([measured], prior, replica=LIMITS)


@pytest.fixture(scope="module", params=sorted(LAWS))
def found(request: pytest.FixtureRequest) -> tuple[str, TimingFit]:
    return request.param, fitted(sweep(loads(1, 2, 3, 5, 8, 12, 18), LAWS[request.param]))


def test_a_law_found_from_small_loads_foretells_larger_ones(found: tuple[str, TimingFit]) -> None:
    name, fit = found
    beyond = sweep([point(30, 120, 24), point(24, 250, 30)], LAWS[name])
    assert fit.request_overhead_s == pytest.approx(OVERHEAD_S, rel=0.05)
    law = fit.law._replace(request_overhead_s=0.0)
    for one, times in zip(beyond.points, foretold([beyond], law, LIMITS), strict=True):
        assert times[Kind.TPOT] == pytest.approx(one.tpot_s, rel=0.03)
        assert times[Kind.TTFT] + OVERHEAD_S == pytest.approx(one.ttft_s, rel=0.05)


def test_terms_are_added_where_loads_left_out_ask_for_them(found: tuple[str, TimingFit]) -> None:
    name, fit = found
    assert fit.terms.names[4:] == ((name,) if name != "linear" else ())


def test_what_a_load_found_in_the_cache_is_foretold_as_a_cache_would_have_it() -> None:
    """The same requests through a block-exact cache, in which all of them share their first 640 tokens."""
    law = Timing(0.01, d1=2e-6, d2=5e-5, d3=3e-4)
    one = Point(line=2, inputs=(800, 1200), outputs=(20, 60), concurrency=6, cached_tokens=640)
    (times,) = foretold([Sweep("sweep.json", "", Deployment(), (one,))], Law(law))
    bare = requests_of(replace(one, cached_tokens=0))
    size = bare.input_tokens.size
    none = np.zeros(size, dtype=np.int64)
    shared = Prefixes(1 + np.arange(size), np.array([-1, *none]), np.array([640, *none]))
    nobody = RequestClass("", 1, (1,), (1.0,), 0.0)
    model = ServingModel((nobody,), law, played.UNLIMITED)
    job = Job(
        Settings("vllm", {"prefix_caching": (1.0,)}),
        Scenario(model, Plan(), replace(bare, prefixes=shared), ("",)),
    )
    ((outcome,),) = run_to_the_end([[job]], None, None)
    tpot = (outcome.e2e_s - outcome.ttft_s) / (bare.decode_tokens - 1)
    # there the first request computes what the others find, for which all six of the first wave wait
    late = 6 * 640 * law.d2 / size
    assert times[Kind.TTFT] == pytest.approx(outcome.ttft_s.mean() - late, rel=1e-6)
    assert times[Kind.TPOT] == pytest.approx(tpot.mean(), rel=1e-6)
    (without,) = foretold([Sweep("sweep.json", "", Deployment(), (replace(one, cached_tokens=0),))], Law(law))
    assert without[Kind.TTFT] > 1.3 * times[Kind.TTFT]


def test_attention_of_prompts_keeps_its_share_of_an_estimate_that_is_twice_too_slow() -> None:
    law = Timing(0.01, d1=2e-6, d3=1e-5, d5=1e-4, knee_tokens=256, d6=2e-7)
    slow = replace(law, d0=2 * law.d0, d5=2 * law.d5, d6=2 * law.d6)
    timing = fitted(sweep(loads(1, 2, 3, 5, 8, 12, 18), law), slow).timing
    assert timing.d5 == pytest.approx(law.d5, rel=0.03)
    assert timing.d6 == pytest.approx(law.d6, rel=0.03)


def test_a_load_that_is_far_off_hardly_counts() -> None:
    measured = sweep(loads(1, 2, 4, 8, 16), LAWS["linear"])
    slow = replace(measured.points[3], tpot_s=5 * (measured.points[3].tpot_s or 0), ttft_s=20.0)
    spoilt = replace(measured, points=(*measured.points[:3], slow, *measured.points[4:]))
    good, bad = fitted(measured), fitted(spoilt)
    for name in ("d0", "d2"):
        assert getattr(bad.timing, name) == pytest.approx(getattr(good.timing, name), rel=0.1)


def test_two_points_are_enough_where_something_is_known_and_too_few_where_not() -> None:
    measured = sweep(loads(4)[:2], LAWS["linear"])
    fit = fitted(measured, LAWS["linear"])
    assert fit.held_out is None
    times = foretold([measured], fit.law._replace(request_overhead_s=0.0), LIMITS)
    assert [mine[Kind.TPOT] for mine in times] == pytest.approx([p.tpot_s for p in measured.points], rel=0.02)
    one = replace(measured, points=measured.points[:1])
    fitted(one, LAWS["linear"])
    with pytest.raises(UsageError, match=r"^sweep.csv: one load alone does not tell .*--base, or --model"):
        fitted(one, None)


def test_arrivals_at_a_rate_give_the_law_that_closed_loops_give() -> None:
    law, replica = LAWS["linear"], replace(LIMITS, max_num_batched_tokens=2048)
    rates = [
        Point(line=2 + i, inputs=(150, 250), outputs=(20, 60), rate_rps=rate)
        for i, rate in enumerate((2.0, 8.0, 14.0, 20.0))
    ]
    blank = Sweep("rates.json", "", Deployment(), tuple(rates))
    times = foretold([blank], fitted(sweep(loads(1, 4), law), law).law._replace(timing=law), replica)
    measured = tuple(
        replace(p, ttft_s=mine[Kind.TTFT], tpot_s=mine[Kind.TPOT], e2e_s=mine[Kind.E2E])
        for p, mine in zip(rates, times, strict=True)
    )
    fit = fit_measured([replace(blank, points=measured)], PRIOR, replica=replica)
    busy = Point(line=9, inputs=(150, 250), outputs=(20, 60), concurrency=60)
    asked = [Sweep("", "", Deployment(), (busy,))]
    (by_fit,), (by_law,) = (
        foretold(asked, fit.law, replica),
        foretold(asked, fit.law._replace(timing=law), replica),
    )
    assert by_fit[Kind.INTERVAL] == pytest.approx(by_law[Kind.INTERVAL], rel=0.05)


def test_a_load_that_does_not_fit_the_memory_is_refused_with_its_line() -> None:
    large = Sweep("sweep.csv", "", Deployment(), (replace(point(4, 400, 40, line=7), tpot_s=0.01),))
    with pytest.raises(UsageError, match=r"^sweep.csv:7: its requests do not fit a memory of 320 tokens"):
        fit_measured([large], PRIOR, capacity_tokens=320)


def test_a_prior_decides_what_equations_leave_open_and_nothing_else() -> None:
    """Of 2·x + y the sum is measured; the prior has them 1 : 4, and z, which is measured, much too large."""
    design = np.array([[2.0, 1.0, 0.0], [2.0, 1.0, 1.0], [2.0, 1.0, 3.0]])
    truth = np.array([1.0, 4.0, 0.5])
    got = solve(design, design @ truth, np.full(3, 1e-4), np.array([0.1, 0.4, 5.0]))
    assert (2 * got[0] + got[1], got[2]) == pytest.approx((6.0, 0.5), rel=1e-3)
    assert 3 < got[1] / got[0] < 6
    free = solve(design, design @ truth, np.full(3, 1e-4))
    assert (2 * free[0] + free[1], free[2]) == pytest.approx((6.0, 0.5), rel=1e-9)


def test_hits_do_not_bias_the_time_of_a_prefill_token() -> None:
    """A log in which a tenth to six tenths of the prompts were found says what those cost that were computed."""
    rng = np.random.default_rng(1)
    law = Timing(0.01, d1=1e-6, d2=1e-4)
    lines = ["GPU KV cache size: 100,000 tokens\n", "vLLM API server version 0.11.0\n"]
    for _ in range(200):
        kv, prefill, running = 1000 * rng.integers(1, 80), rng.uniform(0, 400), rng.integers(1, 64)
        tau, hit = law.d0 + law.d1 * kv + law.d2 * prefill, rng.choice([0.1, 0.3, 0.6])
        lines.append(
            f"Engine 000: Avg prompt throughput: {prefill / tau / (1 - hit):.1f} tokens/s, Avg generation throughput: "
            f"{running / tau:.1f} tokens/s, Running: {running} reqs, Waiting: 0 reqs, GPU KV cache usage: "
            f"{kv / 1000:.1f}%, Prefix cache hit rate: {100 * hit:.1f}%\n"
        )
    found = fit_measured(parse_samples(lines, "serve.log"), None)
    assert found.timing.d2 == pytest.approx(law.d2, rel=0.02)
    assert found.timing.d1 == pytest.approx(law.d1, rel=0.05)
    silent = [line.replace(", Prefix cache hit rate", "; nothing") for line in lines]
    blind = fit_measured(parse_samples(silent, "serve.log"), None)
    assert blind.timing.d2 < 0.8 * law.d2


def test_a_ttft_that_one_load_alone_has_is_fitted_without_it_too() -> None:
    """Each load is left out in turn, and with it all that tells what a request takes outside the engine."""
    whole = sweep(loads(1, 4, 16), LAWS["linear"])
    first, *others = whole.points
    fit = fitted(replace(whole, points=(first, *(replace(one, ttft_s=None) for one in others))))
    assert fit.timing.d0 == pytest.approx(LAWS["linear"].d0, rel=0.05)
