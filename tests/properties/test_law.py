"""One iteration-time law: its forms agree, and whoever depends on the time of an iteration asks it."""

import math
from dataclasses import fields, replace
from functools import cache
from typing import Any

import numpy as np
import pytest
from every import check_every, every
from hypothesis import given
from hypothesis import strategies as st
from tiers import at_night, is_night

from kvplan import simulate
from kvplan.analysis import equilibrium
from kvplan.model import (
    ArrivalProcess,
    Engine,
    EngineName,
    Knowledge,
    MeasuredRange,
    Origin,
    Plan,
    Prefill,
    Prompt,
    Prompts,
    Provenance,
    Replica,
    RequestClass,
    ServingModel,
    Timing,
    iteration_time,
)
from kvplan.model.drafts import Drafts
from kvplan.model.fleet import Fleet
from kvplan.model.gaps import Exponential
from kvplan.model.kv_layout import Attention, KvLayout, Layers
from kvplan.model.lengths import Lengths
from kvplan.model.parallelism import Parallelism
from kvplan.model.replica import Offload
from kvplan.model.sessions import Reuse, Sessions, SharedPrompt
from kvplan.model.slo import parse_slo
from kvplan.profile.reading import Profile, parse_profile
from kvplan.report.assembly import Analyses, Report, to_document
from kvplan.report.assembly import analyze as report_of
from kvplan.report.explain import QUANTITIES, ground, values_of
from kvplan.report.keys import CONTRACT
from kvplan.report.ledger import plain
from kvplan.simulation.experiments import options, study
from kvplan.simulation.experiments.load import Load

timings = st.builds(
    Timing,
    d0=st.floats(1e-4, 1.0),
    d1=st.sampled_from([0.0, 1e-8, 1e-6]),
    d2=st.sampled_from([0.0, 1e-5, 1e-3]),
    d3=st.sampled_from([0.0, 1e-5, 1e-3]),
    d4=st.sampled_from([0.0, 1e-4, 1e-2]),
    d5=st.sampled_from([0.0, 1e-6, 1e-4]),
    knee_tokens=st.sampled_from([0, 256, 4096]),
    d6=st.sampled_from([0.0, 1e-10, 1e-8]),
    experts=st.sampled_from([0.0, 1e-3, 1e-2]),
    chosen=st.sampled_from([1e-3, 8 / 256, 0.5]),
)
states = st.tuples(
    st.integers(0, 10**6), st.integers(0, 20_000), st.integers(1, 2_000), st.integers(0, 10**9)
)
prompts = st.lists(st.tuples(st.floats(1e-3, 20.0), st.integers(1, 4_000)), max_size=4).map(
    lambda rows: Prompts(np.array([c for c, _ in rows]), np.array([float(t) for _, t in rows]))
)


def slowly(t: Timing, kv: int, prefill: int, sequences: int, pairs: int) -> float:
    """The law as theory §1 prints it."""
    above = max(0, prefill + sequences - t.knee_tokens)
    linear = t.d0 + t.d1 * kv + t.d2 * prefill + t.d3 * sequences + t.d6 * pairs
    woken = 1 - math.prod([1 - t.chosen] * (prefill + sequences))
    return linear + t.d4 * math.sqrt(sequences) + t.d5 * above + t.experts * woken


@given(timings, states)
def test_every_form_of_the_law_is_the_law(timing: Timing, state: tuple[int, int, int, int]) -> None:
    kv, prefill, sequences, pairs = state
    expected = slowly(timing, *state)
    assert timing(*state) == pytest.approx(expected, rel=1e-12)
    assert iteration_time(np.array(timing.constants), *state) == pytest.approx(expected, rel=1e-12)
    arrays = [np.array([float(x), 0.0]) for x in state]
    assert timing(*arrays).tolist() == [timing(*state), timing(0, 0, 0, 0)]
    split = timing.fixed(prefill, sequences) + timing.linear(kv, prefill, sequences, pairs)
    assert split == pytest.approx(expected, rel=1e-12)


@given(timings, states, prompts)
def test_the_tangent_touches_the_mean_law_from_there_on(
    timing: Timing, state: tuple[int, int, int, int], law: Prompts
) -> None:
    """Equal at the state, and so are its slopes, by differences of the law."""
    kv, _, sequences, pairs = state
    touching = timing.tangent(law, sequences)
    at = touching.fixed_s + touching.per_kv_token_s * kv + touching.per_prefill_token_s * law.mean
    at += touching.per_sequence_s * sequences + touching.per_pair_s * pairs
    mean = timing.mean(kv, law, sequences, pairs)
    assert at == pytest.approx(mean, rel=1e-9)
    if timing.d4 == 0 and law.mean > 0:
        more = Prompts(law.count * 1.001, law.tokens)
        slope = (timing.mean(kv, more, sequences, pairs) - mean) / (more.mean - law.mean)
        close = 1e-3 * timing.d5 + 1e-7 * timing.experts + 1e-12
        assert slope == pytest.approx(touching.per_prefill_token_s, rel=5e-3, abs=close)
    if timing.d5 == 0:
        slope = (timing.mean(kv, law, sequences * 1.001, pairs) - mean) / (sequences * 0.001)
        assert slope == pytest.approx(touching.per_sequence_s, rel=1e-2, abs=1e-9)


def test_powers_of_prefill_tokens_are_those_of_drawn_ones() -> None:
    """E[z^P]; with a budget prompts come in parts, here of 500 tokens at most."""
    rng, base = np.random.default_rng(1), 0.999
    count, tokens = np.array([0.7, 0.2, 3.0]), np.array([500.0, 2000.0, 37.0])
    for most, drawn in (
        (math.inf, [rng.poisson(c, 400_000) * t for c, t in zip(count, tokens, strict=True)]),
        (500.0, [rng.poisson(c, 400_000) * t for c, t in zip([1.5, 3.0], [500.0, 37.0], strict=True)]),
    ):
        law, sampled = Prompts(count, tokens, most), base ** sum(drawn)
        assert law.power(base) == pytest.approx(sampled.mean(), abs=5 * sampled.std() / 632)
    states = Prompts(np.array([count, 2 * count]), tokens, np.array([500.0, 2000.0]))
    assert states.power(base)[0] == Prompts(count, tokens, 500.0).power(base)


@every("level", [0.5, 40.0, 256.0, 900.0, 4000.0])
def test_prompts_exceed_a_level_as_often_as_drawn_ones(level: float) -> None:
    law = Prompts(np.array([0.7, 0.2, 3.0]), np.array([500.0, 2000.0, 37.0]))
    rng = np.random.default_rng(int(level))
    drawn = sum(rng.poisson(c, 400_000) * t for c, t in zip(law.count, law.tokens, strict=True))
    above = np.maximum(drawn - level, 0)
    assert law.excess(level) == pytest.approx(above.mean(), abs=5 * above.std() / 632)
    if level != 0.5:  # between two lattice points the step itself is smeared
        assert law.exceeds(level) == pytest.approx((drawn > level).mean(), abs=0.02)


BENT = """
schema = 1
name = "every term of the law"
[gpu]
memory_tokens = 500_000
block_tokens = 16
max_num_batched_tokens = 8192
[timing]
d0 = "9 ms"
d1 = "0.04 us"
d2 = "30 us"
d3 = "20 us"
d4 = "0.5 ms"
d5 = "15 us"
knee_tokens = 256
d6 = "0.5 ns"
experts = "4 ms"
chosen = 0.03125
[[classes]]
name = "chat"
input = 500
decode = { 50 = 0.2, 200 = 0.5, 400 = 0.3 }
rate = 8
[[classes]]
name = "documents"
input = 2000
decode = 100
rate = 2
"""


def profile(text: str = BENT) -> Profile:
    return parse_profile(text.encode(), "bent.toml")


def at_rate(model: ServingModel, rate: float) -> ServingModel:
    factor = rate / model.total_rate_rps
    return replace(model, classes=tuple(replace(c, rate_rps=c.rate_rps * factor) for c in model.classes))


@given(timings, st.floats(0.05, 0.95), st.integers(5_000, 500_000))
def test_the_equilibrium_is_where_the_law_meets_the_arrivals(
    timing: Timing, share: float, memory: int
) -> None:
    """τ = mean law at (Aτ, P, λnτ), counted apart; and the least such τ: below it the law is above the diagonal."""
    classes = (RequestClass("a", 300, (40,), (1.0,), 2.0), RequestClass("b", 1500, (90,), (1.0,), 1.0))
    model = ServingModel(classes, timing, Replica(memory))
    _, sustainable = equilibrium.sustainable_rate(model)
    offered = at_rate(model, share * sustainable)

    def law(tau: float) -> float:
        rates = np.array([c.rate_rps for c in offered.classes])
        read = sum(
            r * tau * sum(c.input_tokens + k + 1 for k in range(c.decode_tokens[0]))
            for r, c in zip(rates, offered.classes, strict=True)
        )
        sequences = float(rates @ [40, 90]) * tau
        arrivals = Prompts(rates * tau, np.array([300.0, 1500.0]))
        level = timing.knee_tokens - sequences
        linear = timing.d0 + timing.d1 * read + timing.d2 * arrivals.mean + timing.d3 * sequences
        linear += timing.d6 * tau * float(rates @ [sum(range(301)), sum(range(1501))])
        asleep = math.exp(-tau * float(rates @ (1 - (1 - timing.chosen) ** np.array([300.0, 1500.0]))))
        woken = timing.experts * (1 - asleep * (1 - timing.chosen) ** sequences)
        return linear + timing.d4 * math.sqrt(sequences) + timing.d5 * arrivals.excess(level) + woken

    tau = equilibrium.iteration_time(offered)
    assert law(tau) == pytest.approx(tau, rel=1e-6)
    for below in np.linspace(timing.d0, tau * (1 - 1e-6), 20).tolist():
        assert law(below) >= below * (1 - 1e-9)


@pytest.mark.parametrize("share", [0.3, 0.6, *at_night(0.9)])
def test_simulated_iterations_last_as_long_as_the_equilibrium_says(share: float) -> None:
    """With every term of the law set, within 3 % and the interval of the simulation."""
    bent = profile()
    offered = at_rate(bent.model, share * equilibrium.sustainable_rate(bent.model)[1])
    found = equilibrium.equilibrium(offered)
    assert found.iteration_time_s is not None
    assert found.requests_in_flight > 5
    requests = {0.3: 8_000, 0.6: 40_000, 0.9: 600_000}[share]  # swings are longer near the limit
    run = simulate(replace(bent, known=offered), "vllm", horizon=requests / offered.total_rate_rps).results[0]
    interval = run.ci95["iteration_time_s"]
    assert run.figures["evictions"] == 0
    width = interval[1] - interval[0]
    assert width < 0.06 * found.iteration_time_s  # else this could not fail
    assert run.figures["iteration_time_s"] == pytest.approx(
        found.iteration_time_s, abs=0.03 * found.iteration_time_s + width / 2
    )


LIMITS = Replica(60_000, 16, max_num_seqs=90, max_num_batched_tokens=700)
SHORT = ((20, 60, 120), (30,))  # decode lengths: short ones are analysed soon
FULL = replace(
    profile().model,
    replica=LIMITS,
    classes=tuple(replace(c, decode_tokens=d) for c, d in zip(profile().model.classes, SHORT, strict=True)),
)
OTHER: dict[str, dict[str, Any]] = {
    "timing": {f.name: getattr(FULL.timing, f.name) * 1.2 for f in fields(Timing)},
    "replica": {
        "memory_tokens": 48_000,
        "block_tokens": 64,
        "prefill": Prefill.INLINE,
        "max_num_seqs": 4,
        "max_num_batched_tokens": 400,
        "gpus": 2,
        "prefix_caching": False,
        "layout": KvLayout((Layers(Attention.WINDOW, 3, 8, 64), Layers(Attention.FULL, 3, 8)), 16),
        "parallelism": Parallelism(data=2),
        "turns_stay": True,
    },
    "cached replica": {"offload": Offload(100_000, 1e-6)},
    "class": {
        "name": "other",
        "input_tokens": 650,
        "decode_tokens": (10, 60, 120),
        "decode_weights": (1.0, 1.0, 1.0),
        "rate_rps": 9.0,
        "shared": (SharedPrompt(200),),
        "reuse": Reuse(0.8, 0.9, Exponential(2.0)),
        "sessions": Sessions(*[Lengths.uniform(20, 60)] * 3, Lengths.uniform(1, 3), Exponential(2.0)),
        "prompts": (Prompt(300, 0.5), Prompt(900, 0.5)),
        "longest": 9_000,
        "most": 500,
        "rejected": 0.2,
        "accuracy": 0.5,
        "taken_for": (("b", 0.5),),
        "input_law": Lengths.uniform(300, 900),
        "decode_law": Lengths.uniform(10, 120),
        "priority": 1,
        "deadline_s": 60.0,
    },
    "plan": {
        "delta": 0.2,
        "horizon_s": 60.0,
        "segments": 3,
        "slos": (parse_slo("e2e_s.p95 <= 1 h"), parse_slo("tpot_s.p99 <= 1 h")),
        "gpu_hour": 2.5,
        "watts": 700.0,
        "idle_watts": 90.0,
        "slower": 0.2,
        "headroom": 0.5,
        "spare": 1,
        "recover_s": 60.0,
    },
    "model": {
        "request_overhead_s": 0.5,
        "measured": MeasuredRange((0, 10), (0, 10), (0, 10), (0.5, 2.0)),
        "provenance": Provenance(*[Origin(Knowledge.ASSUMED, "another model's")] * 3),
        "hit_curve": ((1000.0, 0.1), (100_000.0, 0.5)),
        "arrivals": ArrivalProcess(cv=3.0),
        "drafts": Drafts(2, (0.7, 0.4), 1e-3, 1e-5),
        "fleet": Fleet(1, 2),
        "engine": Engine(EngineName.SGLANG),
    },
}
# The schedule in test_schedule.py; what is left out are names.
TAKEN_APART = {"classes", "timing", "replica", "schedule", "left_out"}
EVERYWHERE = ("analyze", "side by side", "sweep", "simulate", "explain")
# What a field does not change, and why.
UNMOVED = {
    ("class", "name", "simulate"): "a name",
    **{("class", "priority", what): "first come first served, unless told otherwise" for what in EVERYWHERE},
    **{
        ("class", "deadline_s", what): "its client sends it evenly, unless told otherwise"
        for what in EVERYWHERE
    },
    ("class", "name", "explain"): "names are taken from the report",
    ("class", "longest", "simulate"): "requests are as long as their prompts say",
    **{
        ("class", "most", what): "prompts of one length are what they are, and another class has longer ones"
        for what in ("analyze", "side by side", "sweep", "simulate")
    },
    **{
        ("class", "rejected", what): "in no rate, and no part in the blocks that are compared"
        for what in ("side by side", "sweep", "simulate", "explain")
    },
    **{
        ("class", key, what): "of policies that go by a predicted length"
        for key in ("accuracy", "taken_for")
        for what in EVERYWHERE
    },
    **{
        ("class", "longest", what): "no part in the blocks that are compared"
        for what in ("side by side", "sweep")
    },
    **{
        ("class", law, what): "formulas count the prompts and decode lengths given for it, but in stability"
        for law in ("input_law", "decode_law")
        for what in ("side by side", "sweep")
    },
    ("plan", "segments", "explain"): "which segments come of it is in the report",
    ("replica", "prefill", "simulate"): "vllm counts as engines do, whatever the convention",
    **{("replica", "turns_stay", what): "of ranks with conversations alone" for what in EVERYWHERE},
    **{("replica", "gpus", what): "`plan` counts and prices them" for what in EVERYWHERE},
    **{
        ("timing", name, what): "a part of the others, for ranks that differ"
        for name in ("all_ranks", "d5_all_ranks")
        for what in EVERYWHERE
    },
    **{
        ("replica", "prefix_caching", what): "strangers find nothing but what a preempted request left"
        for what in ("side by side", "sweep", "explain")
    },
    ("replica", "prefix_caching", "simulate"): "nobody is preempted in this run",
    ("model", "hit_curve", "simulate"): "requests themselves say what they have in common",
    **{("plan", name, "simulate"): "vllm follows no plan" for name in OTHER["plan"] if name != "slos"},
    **{
        ("plan", name, what): "goodput and cost alone, which are not compared"
        for name in ("slos", "gpu_hour")
        for what in ("sweep", "explain")
    },
    **{("plan", "watts", what): "cost alone, which is not compared" for what in ("sweep", "explain")},
    **{("plan", "idle_watts", what): "plan asks alone" for what in ("analyze", "sweep", "explain")},
    ("model", "arrivals", "side by side"): "no part in load, equilibrium and saturation",
    (
        "model",
        "arrivals",
        "explain",
    ): "a dispersion is in the report's figures, which are explained all the same",
    **{
        ("plan", name, what): "headroom and bursts alone, which are not compared"
        for name in ("slower", "headroom", "spare", "recover_s")
        for what in ("analyze", "sweep", "explain")
    },
    ("plan", "slos", "simulate"): "it counts who was served well, and serves nobody otherwise",
    **{
        ("plan", name, "side by side"): "no part in load, equilibrium and saturation"
        for name in OTHER["plan"]
    },
    ("model", "request_overhead_s", "side by side"): "no part in load, equilibrium and saturation",
    ("model", "measured", "explain"): "a range that the report does not have is not explained",
    ("model", "measured", "simulate"): "how sure the timing is, moves no request",
    **{
        ("model", "provenance", what): "where figures come from, moves none"
        for what in ("side by side", "sweep", "simulate")
    },
    ("cached replica", "offload", "explain"): "what it finds is in the report's figures, which are explained",
    **{
        ("model", "engine", what): "formulas alone, in which it has no part"
        for what in ("side by side", "sweep")
    },
    ("model", "fleet", "side by side"): "given one replica, whose share of the requests is taken before",
    **{
        ("timing", name, "side by side"): "linear laws only"
        for name in ("d4", "d5", "knee_tokens", "experts", "chosen")
    },
    **{
        ("timing", "all_ranks", what): "a part of d2 and d3; the rest is of the busiest of several ranks"
        for what in ("analyze", "side by side", "sweep", "simulate", "explain")
    },
}


def changed(base: ServingModel, group: str, name: str) -> tuple[ServingModel, Plan]:
    value, plan = OTHER[group][name], Plan()
    if group == "plan":
        return base, replace(plan, **{name: value})
    if group == "model":
        return replace(base, **{name: value}), plan
    if group == "class":
        first = replace(base.classes[0], **{name: value})
        return replace(base, classes=(first, *base.classes[1:])), plan
    group = group.split()[-1]
    return replace(base, **{group: replace(getattr(base, group), **{name: value})}), plan


# the last are compared only where no formula tells
BY_RUNS = (
    "worst_cycle",
    "latency",
    "fleet",
    "load",
    "headroom",
    "verdict",
    "goodput",
    "advice",
    "notes",
    "actions",
)
COMPARED = sorted(
    {*Report._fields} - {"schema_version", "kvplan_version", "profile", "sources"},
    key=lambda name: (BY_RUNS.index(name) if name in BY_RUNS else -1, name),
)


class Analysed:
    """A report but for its sources, of which no more blocks are computed than it takes to tell it from another."""

    def __init__(self, model: ServingModel, plan: Plan) -> None:
        self._analyses = Analyses(model, plan)

    def block(self, name: str) -> object:
        return plain(getattr(self._analyses, name), name)

    def __eq__(self, other: object) -> bool:
        assert isinstance(other, Analysed)
        return all(self.block(name) == other.block(name) for name in COMPARED)

    __hash__ = None  # type: ignore[assignment]


def side_by_side(model: ServingModel, plan: Plan) -> object:
    """As a sweep computes models that are alike; those with linear laws, of which there are many at once."""
    linear = replace(model, timing=replace(model.timing, d4=0.0, d5=0.0, experts=0.0))
    return equilibrium.blocks([linear, linear])[1]


def one_by_one(model: ServingModel, plan: Plan) -> object:
    """As a sweep computes the others, and the blocks that it takes from a report."""
    known = equilibrium.blocks([model])[0]._asdict()
    found = Analyses(model, plan, known)
    return found.load, found.equilibrium, found.saturation, found.wait, found.nested_wait, found.safety_buffer


def simulated(model: ServingModel, plan: Plan) -> object:
    found = study.study(model, plan, Load(requests=150), options.chosen(["vllm"], []), [0])
    return found.results[0].figures


@cache
def reported() -> Report:
    return report_of(FULL, name="", sha256="")


def explained(model: ServingModel, plan: Plan) -> object:
    """The inputs beside the report, which stays: what `explain` itself asks of a model and a plan."""
    document = to_document(reported())
    rests = [ground(record, document, model, plan) for record in CONTRACT.values() if record.inputs]
    return [values_of(name, one) for one in rests for name in one.inputs if name in QUANTITIES]


SEEN_BY = {
    "analyze": Analysed,
    "side by side": side_by_side,
    "sweep": one_by_one,
    "simulate": simulated,
    "explain": explained,
}


# analysed in less time: without what only other fields need
PLAIN = replace(FULL, timing=replace(FULL.timing, d4=0.0, d5=0.0, experts=0.0))
ROOMY = replace(LIMITS, max_num_batched_tokens=None)


@cache
def before(group: str, seen_by: str) -> object:
    return SEEN_BY[seen_by](base(group), Plan())


def base(group: str) -> ServingModel:
    if group == "replica":
        return PLAIN
    if group == "cached replica":
        again = Reuse(0.9, 0.9, Exponential(3.0))
        return replace(
            PLAIN,
            replica=replace(ROOMY, memory_tokens=8_000),
            classes=tuple(replace(c, reuse=again) for c in PLAIN.classes),
        )
    return replace(FULL if group == "timing" else PLAIN, replica=ROOMY)


@pytest.mark.parametrize("seen_by", SEEN_BY)
def test_every_field_counts_or_is_declared_not_to(seen_by: str) -> None:
    def check(field: tuple[str, str]) -> None:
        group, name = field
        if seen_by == "analyze" and (group, name, seen_by) in UNMOVED and not is_night():
            return  # it takes all blocks of two reports to see that none differs
        moved = SEEN_BY[seen_by](*changed(base(group), group, name)) != before(group, seen_by)
        assert moved == ((group, name, seen_by) not in UNMOVED)

    check_every([(group, name) for group, names in OTHER.items() for name in names], check)


def test_the_walk_leaves_no_field_out() -> None:
    assert {*OTHER["replica"], *OTHER["cached replica"]} == {f.name for f in fields(Replica)}
    for group, kind in (("timing", Timing), ("class", RequestClass), ("plan", Plan)):
        assert set(OTHER[group]) == {f.name for f in fields(kind)}
    assert {*OTHER["model"], *TAKEN_APART} == {f.name for f in fields(ServingModel)}
