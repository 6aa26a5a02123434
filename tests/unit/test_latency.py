"""Latencies by the closed form: reference figures, exact small cases, simulations, and where there is none."""

import math
from dataclasses import replace

import numpy as np
import pytest
import scipy.stats
from at_once import Served, serve
from hypothesis import assume, given
from hypothesis import strategies as st
from strategies import one_class
from tiers import at_night

from kvplan.analysis.kv_tail import CumulantTable
from kvplan.analysis.latency import Distribution, latency
from kvplan.analysis.latency.conditions import budget_binds
from kvplan.analysis.latency.distribution import NONE
from kvplan.analysis.latency.feedback import feedback
from kvplan.analysis.latency.gamma import gamma_above, gamma_laws
from kvplan.analysis.latency.idle import empty_probability, idle_probability
from kvplan.analysis.latency.law import Law, certain, mixture
from kvplan.analysis.latency.means import means
from kvplan.analysis.latency.slow_part import slow_part
from kvplan.analysis.latency.traffic import Traffic, traffic_of
from kvplan.model import (
    FloatArray,
    Plan,
    Prefill,
    Prompt,
    Replica,
    RequestClass,
    ServingModel,
    Timing,
)
from kvplan.model.drafts import Drafts
from kvplan.model.kv_layout import Attention, KvLayout, Layers
from kvplan.model.reuse import SharedPrompt
from kvplan.model.schedule import Steps
from kvplan.simulation.experiments.load import Load
from kvplan.simulation.experiments.runner import Job, scenarios
from kvplan.simulation.policies.protocol import Settings

FAST, SLOW = Timing(8e-3, 5e-8, 25e-6, 20e-6), Timing(14.5e-3, 0.25e-6, 85e-6)
AMPLE = Replica(10**8, block_tokens=16)


def served(*classes: RequestClass, timing: Timing = FAST, replica: Replica = AMPLE) -> ServingModel:
    return ServingModel(classes, timing, replica)


CHAT = one_class(200, 400, 20.0)


# -- what is known --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("model", "ttft_ms", "itl_ms", "e2e_ms"),
    [
        (
            served(CHAT),
            (26.06, 25.63, 35.71, 41.13),
            (13.87, 12.69, 18.36, 23.00),
            (5561, 5552, 6000, 6201),
        ),
        (
            served(one_class(1155, 211, 2.0), timing=SLOW),
            (145.2, 127.1, 233.6, 326),
            (22.46, 17.91, 21.97, 117.7),
            (4862, 4789, 5961, 6581),
        ),
    ],
)
def test_figures_that_were_held_to_long_simulations(
    model: ServingModel,
    ttft_ms: tuple[float, ...],
    itl_ms: tuple[float, ...],
    e2e_ms: tuple[float, ...],
) -> None:
    """Mean, p50, p95 and p99 of another implementation; one of them, 17.91, of 1.5 million simulated requests."""
    found = latency(model)
    for figures, expected, error in zip(
        found[:3], (ttft_ms, itl_ms, e2e_ms), (3e-3, 3e-3, 1e-2), strict=True
    ):
        assert isinstance(figures, Distribution)
        assert 1e3 * figures.mean == pytest.approx(expected[0], rel=3e-3)
        assert [1e3 * x for x in (figures.p50, figures.p95, figures.p99)] == pytest.approx(
            expected[1:], rel=error
        )


# -- the linear process, by sums over iterations one after the other -------------------------------------------


MIXED = (
    one_class(300, (1, 4, 12), 25.0, name="mixed"),
    one_class(900, 7, 4.0, name="long"),
)


def slow_process(traffic: Traffic, horizon: int) -> tuple[FloatArray, FloatArray, float]:
    """C(j) of each lag, u(m) of each row, and r: responses to one request, iteration by iteration."""
    k = np.arange(horizon)
    work = np.where(k == 0, traffic.prompt_s[:, None], traffic.stage_s[:, None] + traffic.token_s * k)
    present = k < traffic.stages[:, None]
    rate = traffic.rate_rps
    begets = rate @ (work * present)  # of a second, so many seconds k + 1 iterations later
    past_prefill = rate @ (work * present * (k > 0))

    def response(own: FloatArray, kernel: FloatArray, of: FloatArray | None = None) -> FloatArray:
        out = own.copy()
        for m in range(1, horizon):
            source = out if of is None else of
            out[:, m] += source[:, :m] @ kernel[:m][::-1]
        return out

    tau = traffic.iteration_s
    alone = response(work * present, begets)
    covariance = np.array(
        [tau * rate @ (alone[:, : horizon - j] * alone[:, j:]).sum(axis=1) for j in range(20)]
    )
    decoding = response(work * present * (k > 0), past_prefill, of=alone)
    without = float(rate @ ((work * present * (k > 0)) ** 2).sum(axis=1))
    return covariance, response(work, begets), float(rate @ (decoding**2).sum(axis=1)) / without


def test_the_process_of_iteration_times_is_that_of_its_recursion() -> None:
    traffic = traffic_of(served(*MIXED))
    assert traffic is not None
    found = feedback(traffic)
    covariance, response, ratio = slow_process(traffic, 900)
    assert found.covariance[:13] == pytest.approx(covariance[:13], rel=1e-6)
    assert found.variance_ratio == pytest.approx(ratio, rel=1e-6)
    tau = traffic.iteration_s
    later = [
        sum(tau + covariance[m + 1] / tau + response[i, m] for m in range(1, d))
        for i, d in enumerate(traffic.stages.tolist())
    ]
    mean = means(traffic, found)
    assert mean.later_s == pytest.approx(later, rel=1e-6)
    first = (tau + covariance[0] / tau) / 2 + tau + covariance[1] / tau + traffic.prompt_s
    assert mean.ttft_s == pytest.approx(first, rel=1e-6)


def test_cells_of_many_iterations_are_as_good_as_single_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    traffic = traffic_of(served(one_class(500, (300, 1500, 3000), 2.5)))
    assert traffic is not None
    exact = means(traffic, feedback(traffic))
    monkeypatch.setattr("kvplan.analysis.latency.feedback._POINTS", 1 << 12)
    coarse = means(traffic, feedback(traffic))
    assert coarse.later_s == pytest.approx(exact.later_s, rel=2e-3)
    assert coarse.ttft_s == pytest.approx(exact.ttft_s, rel=2e-3)


def test_the_slow_part_has_the_moments_of_its_requests() -> None:
    traffic = traffic_of(served(*MIXED))
    assert traffic is not None
    law = slow_part(traffic, 1.7)
    d, tau = traffic.stages, traffic.iteration_s
    stages = [traffic.stage_s[i] + traffic.token_s * np.arange(1, n) for i, n in enumerate(d.tolist())]
    rate = tau * traffic.rate_rps
    mean = traffic.fixed_s + sum(r * v.sum() for r, v in zip(rate, stages, strict=True))
    variance = 1.7 * sum(r * (v**2).sum() for r, v in zip(rate, stages, strict=True))
    value, weight = law.nodes
    assert law.empty == pytest.approx(math.exp(-(rate @ (d - 1)) / 1.7))
    assert weight.sum() == pytest.approx(1)
    assert law.mean == pytest.approx(mean)
    assert weight @ (value - mean) ** 2 == pytest.approx(variance, rel=0.02)


# -- simulations -----------------------------------------------------------------------------------------------


def traffic_arrives(model: ServingModel, requests: int, seed: int, budget: int = 10**12) -> Served:
    random = np.random.default_rng(seed)
    arrival = np.cumsum(random.exponential(1 / model.total_rate_rps, requests))
    mix = model.mix
    row = random.choice(mix.share.size, requests, p=mix.share)
    return serve(
        arrival, mix.input_tokens[row], mix.decode_tokens[row], mix.class_index[row], model.timing, budget
    )


@pytest.mark.parametrize("budget", [10**12, 700])
def test_the_engine_serves_at_once_as_the_slow_simulator_does(budget: int) -> None:
    replica = replace(AMPLE, prefix_caching=False, max_num_batched_tokens=budget)
    model = served(*MIXED, replica=replica)
    (scenario,) = scenarios(model, Plan(), Load(requests=400), [1])
    engine = Job(Settings("vllm", {"prefix_caching": (0.0,)}), scenario).run(
        lambda done: True, None, compile=False
    )
    given = scenario.requests
    slow = serve(
        given.arrival_s, given.input_tokens, given.decode_tokens, given.class_index, model.timing, budget
    )
    assert engine.ttft_s == pytest.approx(slow.ttft_s)
    assert engine.e2e_s == pytest.approx(slow.e2e_s)


@pytest.mark.parametrize("load", [0.3, *at_night(0.05, 0.55)])
@pytest.mark.parametrize(
    "classes",
    [
        (one_class(80, 40, 3.0, name="chat"), one_class(1500, 20, 1.0, name="rag")),
        *at_night((one_class(400, (5, 20, 60), 1.0),)),
    ],
)
def test_simulated_latencies(classes: tuple[RequestClass, ...], load: float) -> None:
    model = served(*classes)
    traffic = traffic_of(at_work(model, load))
    assert traffic is not None
    found = latency(model := at_work(model, load))
    assert found.reason is None
    requests = 10_000 if load < 0.1 else 80_000
    run = traffic_arrives(model, requests, seed=3)
    kinds: list[int | None] = [None] if len(classes) == 1 else [None, 0]
    for kind in kinds:
        at = found if kind is None else found.classes[kind]
        random = np.random.default_rng(3)
        random.exponential(1.0, requests)
        row = random.choice(model.mix.share.size, requests, p=model.mix.share)
        mine = slice(None) if kind is None else model.mix.class_index[row] == kind
        for figures, times in ((at.ttft_s, run.ttft_s[mine]), (at.e2e_s, run.e2e_s[mine])):
            assert figures != NONE
            assert figures.mean == pytest.approx(times.mean(), rel=0.03)
            holds(figures, [float(np.quantile(times, q)) for q in (0.5, 0.95, 0.99)])
        assert at.itl_s != NONE
        assert at.itl_s.mean == pytest.approx(run.mean_gap(kind), rel=0.03)
        holds(at.itl_s, [run.gap(q, kind) for q in (0.5, 0.95, 0.99)])


def at_work(model: ServingModel, load: float) -> ServingModel:
    """The same traffic at a rate that takes this share of all time."""
    traffic = traffic_of(times(model, 1e-3))
    assert traffic is not None
    return times(model, 1e-3 * load / traffic.work)


def times(model: ServingModel, factor: float) -> ServingModel:
    return replace(model, classes=tuple(replace(c, rate_rps=c.rate_rps * factor) for c in model.classes))


def holds(figures: Distribution, measured: list[float]) -> None:
    """Within 8 %, or in the range that is given."""
    ranges = (figures.p50_range, figures.p95_range, figures.p99_range)
    for value, span, seen in zip((figures.p50, figures.p95, figures.p99), ranges, measured, strict=True):
        low, high = span or (value, value)
        assert 0.92 * low <= seen <= 1.08 * high


@pytest.mark.parametrize("rate", [2.0, *at_night(0.2)])
def test_requests_that_find_nobody(rate: float) -> None:
    model = served(one_class(400, (5, 20), rate))
    traffic = traffic_of(model)
    assert traffic is not None
    run = traffic_arrives(model, 20_000, seed=5)
    alone = model.timing(400.0, 400.0, 1.0)
    idle = idle_probability(traffic, empty_probability(model, traffic))
    assert idle == pytest.approx(np.mean(run.ttft_s < alone + 1e-9), abs=0.01)


# -- laws that hold whatever the traffic ----------------------------------------------------------------------


@st.composite
def loads(draw: st.DrawFn) -> ServingModel:
    classes = tuple(
        replace(
            one_class(
                draw(st.integers(1, 3000)),
                draw(st.lists(st.integers(1, 300), min_size=1, max_size=3, unique=True).map(sorted)),
                draw(st.floats(0.1, 5.0)),
                name=f"class {i}",
            ),
            prompts=draw(st.sampled_from([(), (Prompt(50, 0.7), Prompt(1000, 0.3))])),
        )
        for i in range(draw(st.integers(1, 3)))
    )
    timing = draw(st.sampled_from([FAST, SLOW, Timing(0.01, d2=1e-5), replace(FAST, d4=5e-4)]))
    return at_work(served(*classes, timing=timing), draw(st.floats(0.01, 0.9)))


@given(loads())
def test_percentiles_are_in_order_and_above_what_a_request_takes_alone(model: ServingModel) -> None:
    found = latency(model)
    traffic = traffic_of(model)
    assert traffic is not None
    assume(found.reason is None)
    for index, at in enumerate(found.classes):
        mine = traffic.class_index == index
        least = traffic.fixed_s + traffic.prompt_s[mine].min()
        for figures, low in ((at.ttft_s, least), (at.itl_s, traffic.fixed_s), (at.e2e_s, least)):
            if figures == NONE:
                assert figures is at.itl_s
                assert (traffic.stages[mine] == 1).all()
                continue
            assert low * 0.98 <= figures.p50 <= figures.p90 <= figures.p95 <= figures.p99
            assert figures.mean >= low
            for value, span in zip(figures[1:5], figures[5:], strict=True):
                assert span is None or span[0] <= value <= span[1]


@given(loads())
def test_a_class_in_two_halves_has_the_same_latencies(model: ServingModel) -> None:
    halves = tuple(
        replace(c, name=f"{c.name}.{part}", rate_rps=c.rate_rps / 2) for c in model.classes for part in "ab"
    )
    whole, split = latency(model), latency(replace(model, classes=halves))
    assert (whole.reason is None) == (split.reason is None)
    for one, other in zip(whole[:3], split[:3], strict=True):
        assert isinstance(one, Distribution)
        assert isinstance(other, Distribution)
        if one != NONE:
            assert other[:5] == pytest.approx(one[:5], rel=2e-3)


def test_what_a_request_takes_outside_the_engine_is_no_time_between_tokens() -> None:
    plain, slow = latency(served(CHAT)), latency(replace(served(CHAT), request_overhead_s=1.0))
    assert plain.ttft_s != NONE
    assert slow.ttft_s[:5] == pytest.approx([1 + x for x in plain.ttft_s[:5]])
    assert slow.e2e_s[:5] == pytest.approx([1 + x for x in plain.e2e_s[:5]])
    assert slow.itl_s == plain.itl_s


def test_requests_of_one_token_end_with_the_first() -> None:
    found = latency(served(one_class(500, 1, 5.0, name="score"), CHAT))
    score, chat = found.classes
    assert score.itl_s == NONE
    assert score.e2e_s == score.ttft_s
    assert found.itl_s is not None
    assert chat.itl_s == pytest.approx(found.itl_s)
    assert latency(served(one_class(500, 1, 5.0))).itl_s == NONE


@pytest.mark.parametrize("rate", [0.5, 20.0])
def test_drafts_that_are_always_accepted_halve_the_iterations(rate: float) -> None:
    """Of 401 tokens the first comes with the prompt, the others two by two: as 201 tokens of slower iterations."""
    drafts, law = Drafts(1, (1.0,), draft_s=1e-3, overhead_s=5e-4), replace(FAST, d1=0.0)
    drafted = replace(served(one_class(200, 401, rate), timing=drafts.slowed(law)), drafts=drafts)
    plain = served(one_class(200, 201, rate), timing=replace(law, d0=law.d0 + 1.5e-3))
    for found, same in zip(latency(drafted)[:3], latency(plain)[:3], strict=True):
        assert [x for x in found if x is not None] == pytest.approx([x for x in same if x is not None])


def test_drafts_of_a_request_that_is_alone() -> None:
    """Tokens 1, 3 and 5 in three iterations; the first verifies nothing, the others read 101 and 103 tokens."""
    drafts = Drafts(1, (1.0,), draft_s=1e-3, verify_s=7e-4)
    found = latency(
        replace(
            served(one_class(100, 5, 1e-6), timing=drafts.slowed(Timing(8e-3, d1=1e-5, d2=2e-5, d3=3e-5))),
            drafts=drafts,
        )
    )
    prompt = 9e-3 + 100 * 3e-5 + 3e-5
    later = [9e-3 + 1e-5 * context + 3e-5 + 7e-4 for context in (101, 103)]
    assert found.ttft_s.mean == pytest.approx(prompt)
    assert found.itl_s.mean == pytest.approx(sum(later) / 2)
    assert found.e2e_s.mean == pytest.approx(prompt + sum(later))


def test_a_percentile_in_a_gap_has_a_range() -> None:
    """One iteration in twenty with a prompt of four times its length: p95 is either."""
    model = served(one_class(1280, 100, 1.0), timing=Timing(0.01, d2=2.5e-5))
    at_p95 = next(
        found.itl_s
        for rate in np.linspace(3.0, 6.0, 60).tolist()
        if (found := latency(times(model, rate))).itl_s is not None and found.itl_s.p95_range is not None
    )
    assert at_p95.p95_range is not None
    assert at_p95.p95_range[0] == pytest.approx(0.01, rel=0.02)
    assert at_p95.p95_range[1] > 0.02


# -- where there is none ---------------------------------------------------------------------------------------


SMALL = Replica(20_000, block_tokens=16)


@pytest.mark.parametrize(
    ("model", "reason"),
    [
        (served(CHAT, replica=replace(AMPLE, prefill=Prefill.INLINE)), "prefill inline is not covered"),
        (
            served(CHAT, replica=replace(AMPLE, prefill=Prefill.DISAGGREGATED)),
            "prefill disaggregated is not covered",
        ),
        (
            served(replace(CHAT, shared=(SharedPrompt(64),))),
            "traffic that finds something in the prefix cache is not covered",
        ),
        (
            replace(
                served(CHAT, replica=replace(AMPLE, max_num_batched_tokens=1000)),
                drafts=Drafts(3, (0.5,) * 3),
            ),
            "a max_num_batched_tokens that binds is not covered beside drafts",
        ),
        (served(replace(CHAT, rate_rps=200.0)), "more work comes in than can be done"),
        (served(replace(CHAT, rate_rps=47.0)), "requests take 98.7 % of all time, above 98 %"),
        (served(one_class(4000, 2, 8.0)), "prompts take 80.2 % of all time, above 78 %"),
        (served(one_class(4000, 1, 9.0)), "prompts take 90.2 % of all time, above 90 %"),
    ],
)
def test_a_sentence_says_why_there_is_none(model: ServingModel, reason: str) -> None:
    found = latency(model)
    assert found.reason == reason
    assert found.method is None
    assert found[:3] == (NONE, NONE, NONE)
    assert [c.name for c in found.classes] == [c.name for c in model.classes]
    assert all(c[1:] == (NONE, NONE, NONE) for c in found.classes)


@pytest.mark.parametrize(("prompt", "covered"), [(131_072 - 399, True), (131_072 - 398, False)])
def test_prompts_in_very_many_parts_are_not_covered_beside_layers(prompt: int, covered: bool) -> None:
    """400 iterations of the answer, the first of which computes the last token of the prompt."""
    layers = (Layers(Attention.FULL, 10, 8192), Layers(Attention.WINDOW, 50, 8192, window=1024))
    replica = Replica(10**9, 16, max_num_batched_tokens=1, layout=KvLayout(layers, 16))
    model = served(one_class(prompt, 400, 1e-9), replica=replica)
    said = "requests of more than 131,072 iterations, prompts in parts by max_num_batched_tokens, are not covered"
    assert (latency(model).reason or "").startswith(said) is not covered


def test_rates_that_vary_are_not_covered() -> None:
    schedule = Steps(120.0, (0.0, 60.0), ((1.0,), (2.0,)))
    assert (
        latency(replace(served(CHAT), schedule=schedule)).reason
        == "rates that vary over time are not covered"
    )


def test_a_full_memory_is_said() -> None:
    """At M - s the normal tail of the memory in use is at .002 some 2.9 deviations above its mean."""
    enough = latency(served(CHAT, replica=replace(SMALL, memory_tokens=75_000)))
    short = latency(served(CHAT, replica=replace(SMALL, memory_tokens=55_000)))
    assert enough.reason is None
    assert short.reason is not None
    assert short.reason.endswith("of requests have to wait for memory, above 0.2 %")


@pytest.mark.parametrize("beyond", [1.05, 1.3, 2.0, 5.0, 50.0])
def test_nothing_is_computed_beyond_what_memory_serves(beyond: float) -> None:
    """In a law without d1 iterations stay short however many are in flight, so that nothing else is exceeded."""
    one = RequestClass("a", 100, (200,), (1.0,), 1.0)
    model = served(one, timing=Timing(0.01, d2=1e-6), replica=SMALL)
    footprint = 16 * sum(math.ceil((100 + k) / 16) for k in range(200))
    found = latency(
        served(replace(one, rate_rps=beyond * 20_000 / footprint / 0.01), timing=model.timing, replica=SMALL)
    )
    assert found.reason is not None
    assert "memory" in found.reason
    assert found[:3] == (NONE, NONE, NONE)


def test_layers_whose_context_would_be_less_than_nothing_are_not_covered() -> None:
    """A state reads no context, and 22 tokens of d1 would be longer than d0."""
    layout = KvLayout((Layers(Attention.STATE, 5, 530),), 16)
    states = Replica(10**6, block_tokens=16, layout=layout)
    one = one_class(3888, 23, 0.1)
    assert latency(served(one, timing=Timing(50.0, d1=1e-3), replica=states)).reason is None
    found = latency(served(one, timing=Timing(50.0, d1=8.0), replica=states))
    assert found.reason is not None
    assert found.reason.startswith("layers that read less context than there is are not covered")


def test_as_many_sequences_as_allowed_are_said() -> None:
    traffic = traffic_of(served(CHAT))
    assert traffic is not None
    running = 20 * 400 * traffic.iteration_s
    deviation = math.sqrt(running * feedback(traffic).variance_ratio)
    for limit, is_known in ((round(running + 4 * deviation), True), (round(running + 2 * deviation), False)):
        found = latency(served(CHAT, replica=replace(AMPLE, max_num_seqs=limit)))
        assert (found.reason is None) == is_known
        assert is_known or found.reason.startswith("max_num_seqs is reached")  # type: ignore[union-attr]


def test_a_token_budget_binds_where_prompts_do_not_fit() -> None:
    def binds(input_tokens: int, budget: int, rate: float = 1.0) -> bool:
        model = served(one_class(input_tokens, 50, rate))
        traffic = traffic_of(model)
        assert traffic is not None
        return budget_binds(replace(model, replica=replace(AMPLE, max_num_batched_tokens=budget)), traffic)

    assert binds(1000, 900)
    assert binds(1000, 1000)  # beside the tokens of those who decode
    assert not binds(1000, 8192)
    assert binds(1000, 2048, rate=20.0)  # several at a time


# -- laws ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [0.03, 0.3, 1.0, 7.5, 200.0, 1e5])
def test_gamma_laws_are_those_of_scipy(shape: float) -> None:
    exact = scipy.stats.gamma(shape, scale=1 / shape)
    (value,), (below,) = gamma_laws(np.array([shape]))
    for q in (0.05, 0.5, 0.95, 0.99) if shape > 0.1 else (0.95, 0.99):
        assert np.interp(exact.ppf(q), value, below) == pytest.approx(q, abs=2e-4)
        assert gamma_above(shape, exact.ppf(q)) == pytest.approx(1 - q, rel=2e-3)
    assert gamma_above(shape, exact.isf(1e-4)) == pytest.approx(1e-4, rel=1e-2)


def test_a_mixture_weighs_its_parts() -> None:
    even = Law(np.array([0.0, 6.0]), np.array([0.0, 0.4]))  # a part of a law
    both = mixture([even, certain(9.0)], [1.0, 3.0])
    assert both.at(0.125) == pytest.approx(3.0)
    assert both.at(0.9) == pytest.approx(9.0)


# -- far out ---------------------------------------------------------------------------------------------------


EXTREMES = {
    "hardly anybody": served(one_class(1000, 100, 1e-9)),
    "nobody": served(one_class(1000, 100, 1e-300)),
    "one token": served(one_class(1, 1, 1.0)),
    "a long answer": served(one_class(1000, 100_000, 0.0005), replica=Replica(10**9)),
    "a long prompt": served(one_class(1_000_000, 100, 0.01), replica=Replica(10**9)),
    "long and short": served(one_class(1_000_000, 100, 0.01), one_class(10, 10, 40.0, name="b")),
    "many lengths": served(one_class(500, range(10, 3010, 10), 0.5)),
    "many classes": served(*(one_class(50 * i, 20 * i, 0.1, name=str(i)) for i in range(1, 21))),
    "next to saturation": at_work(served(CHAT), 0.9799),
    "at saturation": at_work(served(CHAT), 1 - 1e-12),
    "tiny memory": served(one_class(16, 16, 0.01), replica=Replica(64, block_tokens=16)),
    "no work": served(one_class(100, 100, 1e6), timing=Timing(0.01)),
    "no time": served(one_class(100, 100, 1.0), timing=Timing(1e-12)),
    "one long in a million": served(
        RequestClass("a", 500, (1, 2, 10_000), (1e6, 1.0, 1.0), 1.0), timing=Timing(0.01, 1e-6)
    ),
    "convex": served(one_class(1000, 50, 3.0), timing=replace(FAST, d5=1e-3, knee_tokens=2000.0)),
}


def test_a_prompt_of_millions_all_but_never_gives_a_reason() -> None:
    """The recursion for memory, which says how often nobody is there, is not a number for both."""
    timing = Timing(0.00132516, d2=2.66742e-06, d3=1.0669e-06)
    rare = one_class(9_832_641, 2, 1.1641751e-29, name="b")
    model = served(one_class(69, 55, 67.24), rare, timing=timing, replica=Replica(9_856_631, block_tokens=64))
    assert latency(model).reason == "floats do not hold what its numbers add up to"


def test_next_to_saturation_iterations_of_hours_give_a_reason() -> None:
    """The recursion for memory is a number far from the mean and none at it."""
    timing = Timing(
        0.05292694782061963, d1=96.88298125243271, d3=16.423543983410966, d4=8.970671950830163e-07
    )
    model = served(
        one_class(3, 1, 0.002475493359434954), timing=timing, replica=Replica(201, block_tokens=16)
    )
    assert latency(model).reason == "memory is full"


@pytest.mark.parametrize("budget", [None, 2048, 17])
@pytest.mark.parametrize("name", EXTREMES)
def test_far_out_there_are_figures_or_a_reason(name: str, budget: int | None) -> None:
    model = EXTREMES[name]
    found = latency(replace(model, replica=replace(model.replica, max_num_batched_tokens=budget)))
    if found.reason is not None:
        assert found.ttft_s == NONE
        return
    for figures in (found.ttft_s, found.itl_s, found.e2e_s):
        if figures != NONE:
            assert all(math.isfinite(x) and x > 0 for x in figures[:5])
            assert list(figures[1:5]) == sorted(figures[1:5])


def test_one_table_of_usage_serves_prompts_of_every_length(monkeypatch: pytest.MonkeyPatch) -> None:
    """Adding points to the table is what takes the time: eight levels near its end add them once, not once each."""
    tables = 0
    extended = CumulantTable.extended

    def counted(self: CumulantTable, points: FloatArray) -> CumulantTable:
        nonlocal tables
        tables += 1
        return extended(self, points)

    monkeypatch.setattr(CumulantTable, "extended", counted)
    classes = tuple(RequestClass(str(i), 20 * i, (30, 200), (1.0, 1.0), 1 / 8) for i in range(1, 9))
    latency(ServingModel(classes, Timing(0.01, 1e-6, 1e-3), Replica(2296)))
    assert 1 < tables <= 3
