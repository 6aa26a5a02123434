"""Plots: what is in them against independent computations, and the drawings' manners."""

import math
import re
import xml.etree.ElementTree as ET
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from every import check_every, every
from shipped import LOOKED_AT as SHIPPED
from shipped import profile, report
from strategies import mix_model
from tiers import at_night, is_night

from kvplan.analysis.cache_states import cached_replica
from kvplan.analysis.equilibrium import equilibrium
from kvplan.analysis.kv_density import saddlepoint_density
from kvplan.analysis.overflow import usage_pmf_of
from kvplan.analysis.prefix_cache import prefix_cache
from kvplan.analysis.roots import largest_root, leading_roots
from kvplan.model import Plan, RequestClass, ServingModel, Timing
from kvplan.plots import catalogue, data, drawing
from kvplan.plots.fleet import FleetRates
from kvplan.plots.palette import LIGHT
from kvplan.plots.prefix_cache import CacheBranches, cache_branches, cache_hits
from kvplan.report.assembly import analyze
from kvplan.report.prefix_cache import cache_block
from kvplan.report.words import Status

TIMING = Timing(0.01, 1e-7, 1e-5, 1e-5)
DRAWN_ON_A_COMMIT = (
    *("agents-collapse", "shared-prompt", "tool-calls-h100", "llama-3.1-8b-rtx4090"),
    *("paper-wait-nested", "paper-fc-budgets", "eagle-3-h100"),
)
SOME = [*DRAWN_ON_A_COMMIT, *at_night(*(name for name in SHIPPED if name not in DRAWN_ON_A_COMMIT))]
EXTREMES = {
    "one token to decode": mix_model((5, 1, 1.0), memory=100),
    "a token of memory in all": mix_model((0, 1, 1.0), memory=1),
    "memory for one request exactly": mix_model((50, 50, 1.0), memory=100),
    "pages as large as memory": mix_model((10, 20, 1.0), (7, 5, 1.0), memory=10**6, block_tokens=10**6),
    "a thousand lengths": mix_model((10, tuple(range(1, 1001)), 1.0), timing=TIMING),
    "work rate just below one": mix_model((0, 1, 1.0), timing=Timing(1.0, 1 - 1e-15)),
    "work rate one": mix_model((10, 20, 1.0), timing=Timing(1.0, 1 / 410)),
    "a root on the circle": mix_model((0, 2, 2.0), (0, 3, 1.0)),
}


@cache
def plots(name: str) -> dict[str, catalogue.Plot]:
    given = profile(name)
    return {plot.key: plot for plot in catalogue.build(report(name), given.model, given.plan)}


def inline_svg(plot: catalogue.Plot) -> str:
    assert plot.data is not None
    return drawing.inline_svg(plot.key, plot.data)


@cache
def svgs(name: str) -> dict[str, str]:
    return {key: inline_svg(plot) for key, plot in plots(name).items() if plot.data is not None}


# --------------------------------------------------------------------------------------------------- data


@pytest.mark.parametrize("name", SHIPPED)
def test_throughput_is_the_rate_up_to_its_limit(name: str) -> None:
    found, known = data.rate_throughput(report(name)), report(name)
    at = np.linspace(0, found.rate_rps[-1], 50)
    for line, limit in (
        (found.capped_rps, known.load.sustainable_rps),
        (found.recovered_rps, known.verdict.recovers_up_to_rps),
    ):
        drawn = np.interp(at, found.rate_rps, line)
        assert drawn == pytest.approx([min(rate, limit) for rate in at])
    assert found.danger_zone_rps == known.worst_cycle.danger_zone_rps


STRANGERS = [name for name in SHIPPED if not profile(name).model.finds_prefixes]


@every("name", STRANGERS)
def test_the_equilibrium_curve_is_the_equilibrium_at_other_rates(name: str) -> None:
    model = profile(name).model
    found = data.equilibrium_curve(model, report(name))
    for rate, kv in list(zip(found.rate_rps, found.kv_tokens, strict=True))[1::40]:
        factor = rate / model.total_rate_rps
        classes = tuple(
            RequestClass(c.name, c.input_tokens, c.decode_tokens, c.decode_weights, c.rate_rps * factor)
            for c in model.classes
        )
        scaled = equilibrium(replace(model, classes=classes))
        assert scaled.kv_tokens == pytest.approx(kv, rel=1e-6)
    full = np.interp(found.full_rps, found.rate_rps, found.kv_tokens)
    assert full == pytest.approx(model.replica.memory_tokens, rel=1e-2)


def test_the_density_is_one_in_all_and_has_the_moments_of_the_law() -> None:
    for name in ("tool-calls-h100", "paper-wait-nested", "paper-fc-budgets"):
        model, known = profile(name).model, report(name)
        mean, std = known.equilibrium.kv_tokens, known.safety_buffer.kv_std_tokens
        assert mean is not None
        assert std is not None
        f = saddlepoint_density(model, max(0.0, mean - 6 * std), mean + 8 * std)
        mass = np.trapezoid(f.density, f.tokens)
        first = np.trapezoid(f.density * f.tokens, f.tokens) / mass
        second = np.trapezoid(f.density * (f.tokens - first) ** 2, f.tokens) / mass
        assert mass == pytest.approx(1, abs=0.01)
        assert first == pytest.approx(mean, rel=1e-3)
        assert math.sqrt(second) == pytest.approx(std, rel=0.02)


def test_without_feedback_density_and_steps_agree() -> None:
    """At a constant iteration time both are the compound Poisson law."""
    model = mix_model((10, 20, 50.0), (30, 5, 80.0), memory=60_000, timing=Timing(1.0))
    found = data.usage_density(model, analyze(model, name="n", sha256=""))
    assert found is not None
    steps = found.without_feedback
    assert steps is not None
    middle = (steps.edge_tokens[1:] + steps.edge_tokens[:-1]) / 2
    smooth = np.interp(middle, found.with_feedback.tokens, found.with_feedback.density)
    assert steps.density == pytest.approx(smooth, abs=0.02 * smooth.max())


def test_the_steps_are_the_exact_distribution() -> None:
    model = mix_model((2, 3, 1.0), memory=200, timing=Timing(1.0))  # holds 3, 4, 5 tokens
    found = data.usage_density(model, analyze(model, name="n", sha256=""))
    pmf = usage_pmf_of(model)
    assert found is not None
    assert pmf is not None
    steps = found.without_feedback
    assert steps is not None
    assert pmf.step == 1
    assert pmf.probability[0] == pytest.approx(math.exp(-3))
    assert steps.density[0] * np.diff(steps.edge_tokens)[0] == pytest.approx(math.exp(-3) / 2, rel=1.01)
    assert float(steps.density @ np.diff(steps.edge_tokens)) == pytest.approx(1, abs=0.05)


def short(model: ServingModel) -> bool:
    """Whether the roots are few, and told apart: where drafts let lengths fade out, rounding moves the innermost."""
    return model.drafts is None and 1 < model.mix.stages.max() < 500


@every("name", [n for n in SHIPPED if short(profile(n).model)])
def test_leading_roots_are_those_of_the_companion_matrix(name: str) -> None:
    model = profile(name).model
    weights = model.mix.held.survival(model.mix.share)
    found = leading_roots(weights, largest_root(weights).modulus, 300)
    known = np.roots(weights)
    assert found.size == min(300, known.size) or found.size == 299  # conjugates stay together
    leading = known[np.argsort(-np.abs(known))][: found.size]
    assert np.sort(np.abs(found)) == pytest.approx(np.sort(np.abs(leading)), abs=1e-10)
    distance = np.abs(found[:, None] - known[None, :]).min(axis=1)
    assert distance.max() < 1e-9
    assert (np.diff(np.abs(found)) <= 1e-12).all()


def test_leading_roots_of_a_line_and_of_nothing() -> None:
    assert leading_roots(np.array([1.0]), 0.0, 9).size == 0
    assert leading_roots(np.array([2.0, 1.0]), 0.5, 9) == pytest.approx([-0.5])


@pytest.mark.parametrize("name", SOME)
def test_the_report_has_the_cheapest_number_of_segments(name: str) -> None:
    found, known = plots(name)["nested-segments"].data, report(name).nested_wait
    if found is None:
        assert len(known.segments) < 2
        return
    assert isinstance(found, data.SegmentMemory)
    at = found.count.tolist().index(len(known.segments))
    assert found.required_tokens[at] == pytest.approx(known.required_kv_tokens)
    if profile(name).plan.segments is None:
        assert found.required_tokens.min() == pytest.approx(known.required_kv_tokens)
    assert (np.diff(found.count) > 0).all()


AGENTS = profile("agents-collapse").model


def with_rate(model: ServingModel, factor: float) -> ServingModel:
    return replace(model, classes=tuple(replace(c, rate_rps=factor * c.rate_rps) for c in model.classes))


def branches_of(model: ServingModel) -> CacheBranches:
    cache = cache_block(model)
    assert cache is not None
    return cache_branches(model, cache)


@every("rate_rps", [9.0, 12.5, 14.0, 16.5])
def test_the_branches_are_the_states_at_other_rates(rate_rps: float) -> None:
    curve = branches_of(AGENTS)
    fold = int(curve.load.argmax())
    assert curve.stable[:fold].all()
    assert not curve.stable[fold:].any()
    there = prefix_cache(cached_replica(with_rate(AGENTS, rate_rps / AGENTS.total_rate_rps)))
    assert there.warm is not None
    good = np.interp(rate_rps, curve.load[:fold], curve.in_flight[:fold])
    assert good == pytest.approx(there.warm.requests_in_flight, rel=0.01)
    if rate_rps > there.sustainable_rps.guaranteed:
        lost = np.interp(rate_rps, curve.load[:fold:-1], curve.in_flight[:fold:-1])
        assert lost == pytest.approx(there.separatrix_in_flight, rel=0.01)


def test_the_branches_end_where_memory_is_full() -> None:
    """K = M: as many mean footprints as memory holds, nothing found, at the guaranteed rate of theory §8."""
    curve, (stream,) = branches_of(AGENTS), cached_replica(AGENTS).streams
    assert curve.full_in_flight == pytest.approx(4_000_000 / (stream.held / stream.stages))
    assert curve.load[-1] == pytest.approx(12.03, abs=0.01)
    assert curve.load.max() == curve.good == pytest.approx(16.68, abs=0.02)
    assert curve.shows_offered
    far = branches_of(with_rate(AGENTS, 100.0))
    assert not far.shows_offered
    assert far.warm_in_flight is far.separatrix_in_flight is None


def test_users_are_a_load_of_their_own() -> None:
    """In each state they run, or think: n·x + λ·(mean think) of them, e^(1/2) times the median of 10 s."""
    (agent,) = AGENTS.classes
    assert agent.sessions is not None
    users = replace(AGENTS, classes=(replace(agent, sessions=replace(agent.sessions, users=240)),))
    found, rates = branches_of(users), branches_of(AGENTS)
    assert found.unit == "users"
    assert found.offered == 240
    thinking = np.interp(found.in_flight, rates.in_flight, rates.load) * 10 * math.exp(0.5)
    assert found.load == pytest.approx(found.in_flight + thinking, rel=2e-3)


def test_more_memory_finds_more_up_to_what_an_infinite_cache_finds() -> None:
    cache = report("agents-collapse").prefix_cache
    assert cache is not None
    found = cache_hits(AGENTS, cache)
    assert found is not None
    known = ~np.isnan(found.hit_ratio)
    assert (np.diff(found.hit_ratio[known]) > -1e-12).all()
    assert found.hit_ratio[-1] == pytest.approx(found.reusable_ratio, rel=1e-3)
    assert found.own_ratio == pytest.approx(np.interp(4e6, found.memory_tokens, found.hit_ratio))
    assert found.collapse[known].all()  # private reuse alone never makes 13.3 requests/s safe
    first = float(found.memory_tokens[known][0])
    for memory, enough in ((first, True), (first / 2 ** (1 / 8), False)):
        smaller = replace(AGENTS, replica=replace(AGENTS.replica, memory_tokens=round(memory)))
        good = prefix_cache(cached_replica(smaller)).sustainable_rps.good
        assert (good >= AGENTS.total_rate_rps) is enough


# ---------------------------------------------------------------------------------------------- catalogue


def test_only_requests_with_something_in_common_have_plots_of_it() -> None:
    for name in ("agents-collapse", "shared-prompt"):
        assert {"cache-branches", "cache-hits"} < plots(name).keys()
        assert "equilibrium-kv" not in plots(name)  # KV usage does not tell
    assert not {"cache-branches", "cache-hits"} & plots("tool-calls-h100").keys()


def test_only_fleets_have_a_plot_of_split_and_together() -> None:
    """Lines by hand: 3 decode replicas at 1 - d0/ITL, no more than 5 of prefill; eight together; even at 49.4 ms."""
    assert "fleet-rates" not in plots("tool-calls-h100")
    plot = plots("prefill-decode")["fleet-rates"]
    assert plot.numbers.startswith(
        "Even at 49.4 ms; objective: 20 ms; a full prefill iteration takes 213 ms."
    )
    found = plot.data
    assert isinstance(found, FleetRates)
    assert (found.split, found.together) == ("5 + 3 apart", "8 together")
    short = found.itl_s < 0.02
    work = 0.04e-6 * sum(range(2002, 2201)) + 15e-6 * 199
    gain = 1 - 8e-3 / found.itl_s
    assert found.split_rps[short] == pytest.approx((3 * gain / work)[short], rel=1e-6)
    work += 0.04e-6 * 2001 + 15e-6 + 25e-6 * 2000
    assert found.together_rps[short] == pytest.approx((8 * gain / work)[short], rel=1e-6)
    ahead = found.split_rps > found.together_rps
    assert (ahead == (found.itl_s < found.crossing_itl_s)).all()
    assert (found.parts_rps >= found.split_rps * (1 - 1e-9)).all()
    svg = svgs("prefill-decode")["fleet-rates"]
    assert all(f">{label}<" in svg for label in ("5 + 3 apart", "8 together", "even", "objective"))


def test_the_branches_are_told_in_words() -> None:
    agents, shared = (plots(name)["cache-branches"] for name in ("agents-collapse", "shared-prompt"))
    assert agents.numbers.startswith(
        "Offered 13.34 requests/s, guaranteed 12.03 requests/s, with a warm cache 16.67 requests/s."
    )
    assert agents.numbers.endswith("Lost beyond 195, full at 243.")
    assert "over the unstable branch" in agents.caption
    assert "no burst can empty it for good" in shared.caption
    assert ">unstable<" in svgs("agents-collapse")["cache-branches"]
    assert ">unstable<" not in svgs("shared-prompt")["cache-branches"]
    assert ">a burst can end it<" not in svgs("shared-prompt")["cache-hits"]


@pytest.mark.parametrize("name", SOME)
def test_every_plot_says_its_basis_and_its_numbers(name: str) -> None:
    for plot in plots(name).values():
        assert plot.basis
        assert plot.caption.endswith(".")
        assert (plot.numbers == "") == (plot.data is None)


def test_what_does_not_exist_is_a_sentence() -> None:
    overworked = mix_model((100, 20, 50.0), (100, 40, 50.0), memory=400_000, timing=Timing(0.01, d1=1e-5))
    one_stage = mix_model((9, 1, 1.0), memory=60)
    for model, absent in (
        (overworked, {"kv-density": "No equilibrium", "nested-segments": "No thresholds"}),
        (one_stage, {"roots": "single iteration", "nested-segments": "one decode length"}),
    ):
        found = catalogue.build(analyze(model, name="n", sha256=""), model, Plan())
        assert {plot.key for plot in found if plot.data is None} == set(absent)
        assert all(absent[plot.key] in plot.caption for plot in found if plot.data is None)


def test_an_offered_rate_far_beyond_is_said_and_leaves_the_plot_readable() -> None:
    model = mix_model((10, 20, 1000.0), memory=410, timing=Timing(1.0))
    known = analyze(model, name="n", sha256="")
    assert known.verdict.status is Status.OVERLOADED
    rate, curve, *_ = catalogue.build(known, model, Plan())
    assert isinstance(rate.data, data.RateThroughput)
    assert isinstance(curve.data, data.EquilibriumCurve)
    assert rate.data.rate_rps[-1] < 3 * known.load.sustainable_rps
    assert "1,000 requests/s, is far beyond the right edge" in rate.caption
    assert "far above the plot" in curve.caption
    assert not rate.data.shows_offered
    assert not curve.data.shows_offered


def test_a_capacity_beyond_the_plot_is_told_with_its_distance() -> None:
    plot = plots("tool-calls-h100")["kv-density"]
    assert isinstance(plot.data, data.UsageDensity)
    assert not plot.data.shows_capacity
    ratio = profile("tool-calls-h100").model.replica.memory_tokens / plot.data.high_tokens
    assert f"beyond the right edge: {ratio:.1f} times as much." in plot.caption
    assert ">to the capacity<" in inline_svg(plot)
    near = plots("llama-3.1-8b-rtx4090")["kv-density"]
    assert isinstance(near.data, data.UsageDensity)
    assert near.data.shows_capacity
    assert ">to the capacity<" not in inline_svg(near)


@pytest.mark.parametrize("name", SOME)
def test_the_axis_of_the_density_needs_no_power_of_ten(name: str) -> None:
    from matplotlib.figure import Figure

    content = plots(name)["kv-density"].data
    if content is None:
        assert report(name).safety_buffer.kv_std_tokens is None
        return
    assert isinstance(content, data.UsageDensity)
    axes = Figure().add_subplot()
    drawing._density(axes, content)
    axes.figure.canvas.draw()
    assert axes.yaxis.get_offset_text().get_text() == ""
    unit = axes.get_ylabel().removeprefix("probability per ").split()[0]
    per = {"token": 1, "10": 10, "100": 100, "1k": 1e3, "10k": 1e4, "100k": 1e5, "1M": 1e6}[unit]
    curve = axes.lines[0].get_ydata()
    assert np.asarray(curve) == pytest.approx(per * content.with_feedback.density)
    assert 0.05 < axes.get_ylim()[1] <= 1.1


# ------------------------------------------------------------------------------------------------ drawing


@pytest.mark.parametrize(
    "name", ["tool-calls-h100", "agents-collapse", *at_night("paper-wait-nested", "azure-conv-overloaded")]
)
def test_drawings_are_self_contained(name: str) -> None:
    texts = list(svgs(name).values())
    page = "\n".join(texts)
    assert len(page) < 250_000
    assert not re.search(r"https?:|<image|<script|@import|url\((?!#)", page)
    assert not re.search("#[0-9a-f]{6}", page)  # all colours are the page's
    assert set(re.findall(r"var\(--([a-z]+)\)", page)) <= set(LIGHT)
    names = re.findall(r'\bid="([^"]*)"', page)
    assert len(names) == len(set(names))
    assert set(re.findall(r'(?:url\(#|href="#)([^)"]+)', page)) == set(names)
    for text in texts:
        assert ET.fromstring(text).get("viewBox")


def test_drawings_are_the_same_each_time() -> None:
    known = plots("paper-wait-nested")
    assert svgs("paper-wait-nested") == {key: inline_svg(p) for key, p in known.items() if p.data}
    plot = plots("tool-calls-h100")["roots"]
    assert plot.data is not None
    for suffix, start in ((".svg", b"<?xml"), (".png", b"\x89PNG")):
        first, second = (drawing.file_of(plot.key, plot.data, suffix) for _ in range(2))
        assert first == second
        assert first.startswith(start)
        assert suffix == ".png" or b"date" not in first.lower()


def test_axes_have_names_and_units() -> None:
    for name in ("tool-calls-h100", "paper-wait-nested"):
        for key, text in svgs(name).items():
            if key != "roots":
                assert re.search(">(offered rate, requests/s|KV, tokens|segments|time, s)<", text), key
                assert re.search(
                    ">(throughput, requests/s|KV, tokens|probability per (?:token|10+k? tokens)|required KV, tokens)<",
                    text,
                ), key


def test_extremes_are_drawn_all_the_same() -> None:
    def check(name: str) -> None:
        model = EXTREMES[name]
        for plot in catalogue.build(analyze(model, name=name, sha256=""), model, Plan()):
            if plot.data is not None:
                assert len(inline_svg(plot)) < 150_000

    check_every(list(EXTREMES) if is_night() else ["one token to decode", "a root on the circle"], check)


def test_the_settings_of_the_user_change_nothing() -> None:
    import matplotlib

    plot = plots("tool-calls-h100")["rate-throughput"]
    before = inline_svg(plot)
    with matplotlib.rc_context({"lines.linewidth": 9, "font.size": 30, "axes.grid": False}):
        assert inline_svg(plot) == before
        assert matplotlib.rcParams["font.size"] == 30
