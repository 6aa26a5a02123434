"""Every key of the report is explained, and the inputs that are named give the number by its formula."""

import math
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import fields, replace
from datetime import date
from functools import cache
from typing import Any

import pytest
from every import check_every, every
from measured import brief_report
from rich.cells import cell_len
from shipped import BRIEF, LOOKED_AT, NAMES, profile, report
from tiers import is_night

from kvplan.analysis.cached_equilibrium import with_rates_of_users
from kvplan.errors import UsageError
from kvplan.model import (
    Knowledge,
    MeasuredRange,
    Origin,
    Plan,
    Prefill,
    Provenance,
    Replica,
    RequestClass,
    ServingModel,
    Timing,
)
from kvplan.model.gaps import Exponential, Lognormal
from kvplan.model.lengths import Lengths
from kvplan.model.replica import Offload
from kvplan.model.sessions import Reuse, Sessions, SharedPrompt
from kvplan.report.assembly import Analyses, to_document
from kvplan.report.explain import (
    QUANTITIES,
    Explained,
    Given,
    Summary,
    explain,
    find,
    ground,
    page,
    summarise,
    values_of,
)
from kvplan.report.keys import BLOCKS, CONTRACT, Kind, Record
from kvplan.report.ledger import Ledger
from kvplan.show import explanation, markdown, terminal
from kvplan.show import page as pages

Case = tuple[dict[str, Any], ServingModel, Plan]


def case(model: ServingModel, plan: Plan) -> Case:
    return to_document(brief_report(model, plan)), model, plan


@cache
def shipped(name: str) -> Case:
    given = profile(name)
    return to_document(report(name)), given.model, given.plan


def one(name: str, s: int, decode: dict[int, float], rate: float) -> RequestClass:
    return RequestClass(name, s, tuple(decode), tuple(decode.values()), rate)


SLOTS = Timing(1.0, 1e-4, 1e-4, 1e-3, d6=1e-6)
BENT = Timing(1.0, 1e-4, 1e-4, 1e-3, d6=1e-6, d4=0.02, d5=1e-3, knee_tokens=30, experts=0.01, chosen=0.06)
MODELS = {
    "pulse": ServingModel(
        (one("a", 40, {20: 1.0}, 0.3), one("b", 60, {40: 1.0}, 0.2)),
        SLOTS,
        Replica(40_000, 16, Prefill.DISAGGREGATED, max_num_seqs=3000),
    ),
    "inline": ServingModel(
        (one("a", 40, {19: 1.0}, 0.5), one("b", 60, {20: 2.0, 40: 1.0}, 0.3)),
        SLOTS,
        Replica(6_000, 1, Prefill.INLINE, max_num_batched_tokens=2000),
    ),
    "few sequences": ServingModel((one("a", 40, {20: 1.0}, 0.3),), SLOTS, Replica(20_000, max_num_seqs=10)),
    "few tokens": ServingModel(
        (one("a", 40, {20: 1.0}, 0.3),), SLOTS, Replica(20_000, max_num_batched_tokens=60)
    ),
    "overloaded": ServingModel((one("a", 40, {20: 1.0}, 1000.0),), SLOTS, Replica(2_000)),
    "stable pair": ServingModel(
        (one("a", 9, {2: 1.0}, 1.0), one("b", 9, {3: 1.0}, 1.0)), SLOTS, Replica(1_000)
    ),
}

ORIGIN = Origin(Knowledge.ESTIMATED, "a data sheet", date(2026, 11, 22))
MODELS["inputs told"] = replace(
    MODELS["inline"],
    request_overhead_s=0.25,
    measured=MeasuredRange(band=(0.5, 1.25)),
    provenance=Provenance(ORIGIN, ORIGIN, ORIGIN),
)
MODELS |= {f"{name}, bent": replace(model, timing=BENT) for name, model in MODELS.items()}

AGENTS = Sessions(
    first=Lengths.of({400: 1.0, 900: 1.0}),
    user=Lengths.of({60: 1.0, 100: 2.0}),
    decode=Lengths.of({20: 1.0, 50: 1.0}),
    turns=Lengths.of({3: 1.0, 6: 1.0}),
    think=Lognormal(20.0, 1.0),
)
CHAT = replace(one("chat", 300, {40: 1.0}, 3.0), shared=(SharedPrompt(128, 0.6), SharedPrompt(64, 0.3)))
AGAIN = replace(one("again", 300, {40: 1.0}, 2.0), reuse=Reuse(0.8, 0.7, Exponential(30.0)))
ARRIVALS = replace(AGAIN, reuse=Reuse(128, 0.7, Exponential(9.0), from_arrival=True))
MILLISECONDS = Timing(0.01, 2e-8, 2e-5, 1e-5)


def agents(rate: float, kind: Sessions = AGENTS) -> RequestClass:
    return replace(one("agents", 800, {20: 1.0, 50: 1.0}, rate), sessions=kind)


def caching(*classes: RequestClass, memory: int = 400_000, **limits: Any) -> ServingModel:
    return ServingModel(classes, MILLISECONDS, Replica(memory, 16, **limits))


CACHING = {
    "shared prompts": caching(CHAT),
    "reuse": caching(AGAIN, memory=60_000),
    "reuse from arrivals": caching(ARRIVALS, CHAT),
    "agents": caching(agents(40.0)),
    "agents who can collapse": caching(agents(65.0), memory=800_000),
    "too many agents": caching(agents(300.0)),
    "few agents": caching(agents(3.0), memory=40_000),
    "agents who share": caching(agents(40.0, replace(AGENTS, shared=200)), memory=300_000),
    "agents and others": caching(agents(20.0), CHAT, AGAIN, one("batch", 900, {30: 1.0}, 0.5)),
    "agents, few sequences": caching(agents(20.0), max_num_seqs=20),
    "agents, few tokens": caching(agents(20.0), max_num_batched_tokens=600),
    "users": with_rates_of_users(caching(agents(1.0, replace(AGENTS, users=900)))),
    "a curve": replace(caching(CHAT), hit_curve=((100_000.0, 0.1), (800_000.0, 0.3))),
    "no cache": caching(agents(20.0), prefix_caching=False),
    "host tier": caching(agents(40.0), memory=800_000, offload=Offload(1_500_000, 1e-6)),
    "victims on the host": caching(
        agents(60.0), CHAT, memory=800_000, offload=Offload(300_000, 1e-6, inclusive=False, overlap=False)
    ),
    "ready-made": caching(agents(40.0), prefill=Prefill.DISAGGREGATED),
}
CACHING |= {
    f"{name}, bent": replace(CACHING[name], timing=replace(MILLISECONDS, d4=1e-4, d5=1e-6, knee_tokens=30))
    for name in ("agents", "agents and others", "a curve")
}
MODELS |= CACHING


@cache
def made(name: str) -> Case:
    return case(MODELS[name], Plan(0.05, 1000.0, None))


EVERY = [*((shipped, name) for name in (*NAMES, *BRIEF)), *((made, name) for name in MODELS)]
ON_A_SCREEN = ("agents-brief", "split-brief")
ON_A_COMMIT = (*LOOKED_AT, "inputs told", "agents and others, bent", "host tier")


def cases() -> dict[str, Case]:
    """The reports that a loop looks at, by name: a few on a commit, and at night all."""
    return {name: make(name) for make, name in EVERY if is_night() or name in ON_A_COMMIT}


def paths(value: Any, path: str = "") -> Iterator[str]:
    """Keys of a document as the contract writes them."""
    if path == "sources" or (path in CONTRACT and CONTRACT[path].kind in (Kind.PAIR, Kind.TABLE) and value):
        yield path
    elif isinstance(value, dict):
        for key, below in value.items():
            yield from paths(below, f"{path}.{key}" if path else key)
    elif isinstance(value, list):
        for below in value:
            yield from paths(below, f"{path}[]")
    else:
        yield path


# --------------------------------------------------------------------------------------------- every key


def test_every_key_of_a_report_is_explained() -> None:
    def check(case: Case) -> None:
        document = case[0]
        nulls = {key.removesuffix("[]") for key in CONTRACT} | {k for k in BLOCKS if document[k] is None}
        nulls |= {"latency.worst_part", "goodput.cliff"}  # of rates that do not vary, and where there is none
        assert set(paths(document)) - {*CONTRACT, *nulls} == set()

    check_every(cases(), check)


def test_every_record_is_complete_and_rests_on_what_exists() -> None:
    def check(about: Record) -> None:
        assert about.meaning.endswith(".")
        assert "  " not in about.meaning
        computed = about.block not in ("schema_version", "kvplan_version", "profile", "sources")
        if computed and about.formula:
            assert re.search(r"SIC|WAIT|FC|new|the profile|arithmetic", about.source)
        for name in f"{about.inputs} {about.warm.inputs if about.warm else ''}".split():
            assert name in CONTRACT or name in QUANTITIES

    check_every(CONTRACT, check)


def test_every_quantity_is_an_input_of_a_figure_and_every_constant_of_the_law_a_quantity() -> None:
    named = " ".join(f"{r.inputs} {r.warm.inputs if r.warm else ''}" for r in CONTRACT.values()).split()
    assert set(QUANTITIES) == {name for name in named if "." not in name}
    assert {field.name for field in fields(Timing)} - {"all_ranks", "d5_all_ranks"} <= set(
        QUANTITIES
    )  # parts of others


# -------------------------------------------------------------------------------------------- arithmetic

Formula = Callable[..., float]
BY_LINEAR_LAW: dict[str, Formula] = {
    "load.work_rate": lambda rate, work, *_: rate * work,
    "equilibrium.iteration_time_s": lambda fixed, rate, work: fixed / (1 - rate * work),
    "saturation.iteration_time_s": lambda fixed, admissions, work: fixed + admissions * work,
}
BY_ANY_LAW: dict[str, Formula] = {
    "load.headroom": lambda factor: factor - 1,
    "load.sustainable_rps": lambda factor, rate: factor * rate,
    "load.sustainable_decode_tokens_per_s": lambda rate, decode: rate * decode,
    "equilibrium.kv_tokens": lambda rate, footprint, tau: rate * footprint * tau,
    "equilibrium.kv_utilization": lambda tokens, memory: tokens / memory,
    "equilibrium.requests_in_flight": lambda rate, iterations, tau: rate * iterations * tau,
    "equilibrium.decode_tokens_per_s": lambda rate, decode: rate * decode,
    "equilibrium.prompt_iterations_per_s": lambda rate, iterations: rate * iterations,
    "saturation.admissions_per_iteration": lambda memory, footprint: memory / footprint,
    "saturation.throughput_rps": lambda admissions, tau: admissions / tau,
    "worst_cycle.loss": lambda cycle, full: 1 - cycle / full,
    "stability.recovery_iterations": lambda radius: 1 / (1 - radius),
    "stability.growth_iterations": lambda radius: 1 / math.log(radius),
    "wait.dial[].kv_tokens": lambda interval, rate, footprint: interval * rate * footprint,
    "wait.dial[].throughput_rps": lambda interval, rate, time: interval * rate / time,
    "rate_cap.transient_iterations": lambda longest: longest - 1,
    "rate_cap.per_iteration": lambda memory, footprint: memory / footprint,
    "rate_cap.per_second": lambda admissions, tau: admissions / tau,
    "rate_cap.engine_max_num_seqs": lambda pages, longest, computed: min(
        pages // longest, (pages - 1) // computed
    ),
    "safety_buffer.watermark_fraction": lambda required, mean, memory: (required - mean) / memory,
    "nested_wait.required_kv_tokens": lambda *parts: sum(parts),
}
OF_CLASSES: dict[str, Formula] = {
    "equilibrium.classes[].per_stage": lambda rate, tau: rate * tau,
    "equilibrium.classes[].in_flight": lambda rate, iterations, tau: rate * iterations * tau,
    "rate_cap.classes[].per_iteration": lambda share, cap: share * cap,
    "wait.thresholds[]": lambda rate, tau: math.floor(rate * tau) + 1,
    "wait.classes[].threshold": lambda rate, tau: math.floor(rate * tau) + 1,
    "worst_cycle.classes[].loss": lambda cycle, memory, footprint: 1 - cycle / (memory / footprint),
}
OF_WARM_CACHES: dict[str, Formula] = {
    "prefix_cache.cached_tokens": lambda memory, unique: memory - unique,
    "prefix_cache.streams_in_memory": lambda memory, left: memory / left,
    "prefix_cache.host.link_utilization": lambda rate, prompt, hits, load: rate * prompt * hits * load,
    "prefix_cache.preemption_recovered_share": lambda decode, prompt: (
        1 - decode / prompt * (1 - math.exp(-prompt / decode))
    ),
}


def calculated(key: str, formula: Formula, case: Case) -> Iterator[tuple[float, float]]:
    """A figure and what the formula makes of its inputs, for each of its values, where all exist."""
    document, model, plan = case
    rests = ground(CONTRACT[key], document, model, plan)
    figures = values_of(key, rests._replace(ledger=Ledger(document)))
    inputs = [values_of(name, rests) for name in rests.inputs]
    for i, figure in enumerate(figures):
        given = [values[i] if len(values) == len(figures) else values[0] for values in inputs]
        if figure is not None and None not in given:
            yield figure, formula(*given)


def agree(key: str, formula: Formula, names: Iterable[str]) -> None:
    found = [pair for name in names for pair in calculated(key, formula, made(name))]
    assert found
    for figure, result in found:
        assert result == pytest.approx(figure, rel=1e-9, abs=1e-12)


CALCULATED = [
    name
    for name in MODELS
    if is_night() or name in ("pulse", "inline", "stable pair", "inline, bent", "agents", "host tier")
]
COLD_ONLY = [name for name in CALCULATED if name not in CACHING]


def test_the_inputs_of_a_figure_give_it_by_its_formula() -> None:
    of_cold_blocks = {key: BY_ANY_LAW[key] for key in ("rate_cap.per_iteration", "rate_cap.per_second")}
    for formulas, names in (
        (BY_LINEAR_LAW, [name for name in COLD_ONLY if not name.endswith("bent")]),
        (BY_ANY_LAW, COLD_ONLY),
        # prompts beyond the token budget take several iterations, but not in cycles and prefix caches
        (OF_CLASSES, [name for name in CALCULATED if name != "agents, few tokens"]),
        (OF_WARM_CACHES, ["agents", "host tier"]),
        (of_cold_blocks, [name for name in CALCULATED if name in CACHING]),
    ):
        check_every([*formulas], lambda key, of=formulas, at=names: agree(key, of[key], at))


def test_quantities_of_a_prefix_cache_are_the_moments_of_the_model() -> None:
    """By hand: 900 and 400 tokens at first, 3 or 6 turns, 80/3 + 60 + 35 tokens more each."""
    _, model, plan = made("agents")
    turns = {j: 1.0 if j <= 3 else 0.5 for j in range(1, 7)}
    grown = (60 + 2 * 100) / 3 + 35
    prompt = sum(p * (650 + (j - 1) * grown) for j, p in turns.items()) / sum(turns.values())
    given = Given(model, plan)
    assert QUANTITIES["prompt"].value(given) == pytest.approx(prompt)
    # beyond full pages, a turn leaves its prompt and its answer but for one token
    assert QUANTITIES["left"].value(given) == pytest.approx(prompt + 34, abs=16)


def test_a_figure_of_a_warm_cache_has_a_formula_of_its_own() -> None:
    for name, says in (("agents", "D what running requests have in common"), ("inline", "M* = Σλ·S̄·τ*")):
        assert says in explain(find("equilibrium.kv_tokens"), *made(name)).formula


def inputs_of(key: str, name: str) -> dict[str, str]:
    return {given.symbol or given.meaning: given.value for given in explain(find(key), *made(name)).inputs}


def test_an_input_of_a_class_has_the_entry_that_was_asked_for_or_all() -> None:
    assert inputs_of("equilibrium.classes[].per_stage", "pulse")["λ_i"] == "0.3, 0.2"
    assert inputs_of("equilibrium.classes[1].per_stage", "pulse")["λ_i"] == "0.2"
    assert inputs_of("wait.kv_tokens", "pulse")["n_i"].endswith(" requests")


def test_inputs_that_do_not_exist_are_left_out() -> None:
    assert {"B_max", "T_b"} & set(inputs_of("load.load_factor_max", "stable pair")) == set()
    assert inputs_of("load.load_factor_max", "few sequences")["B_max"] == "10"


def test_a_law_that_is_not_linear_is_written_out() -> None:
    assert inputs_of("saturation.iteration_time_s", "pulse")["F"] == "1"
    assert inputs_of("saturation.iteration_time_s", "pulse, bent")["F"].startswith("d0 + d4·√B + d5")


def test_an_input_of_the_profile_is_explained_with_its_source() -> None:
    for name in ("gpu", "timing", "workload"):
        assert explain(find(f"inputs.{name}"), *made("inputs told")).rows[0].value == "estimated"
        assert inputs_of(f"inputs.{name}", "inputs told") == {f"source of {name}": "a data sheet, 2026-11-22"}
    assert inputs_of("inputs.gpu", "inline") == {}
    assert inputs_of("load.sustainable_rps_range", "inputs told")["band"] == "0.5 to 1.25"


# ------------------------------------------------------------------------------------------------- pages


def test_every_page_is_readable() -> None:
    """On a commit a report that is not on a screen has every third page."""
    known, shown = list(CONTRACT.values()), cases() if is_night() else ON_A_SCREEN
    given = {
        name: (case, name in shown, known if name in shown else known[i % 3 :: 3])
        for i, (name, case) in enumerate(cases().items())
    }
    check_every(given, _check_pages)


def _text(page: Explained | Summary) -> str:
    return terminal.render(pages.document([explanation.build(page)]))


def _check_pages(given: tuple[Case, bool, Sequence[Record]]) -> None:
    """In Markdown, and on a screen where that is asked for, which takes ten times as long."""
    case, is_shown, keys = given
    for about in keys:
        page = explain(find(about.key), *case)
        marked = markdown.render(pages.document([explanation.build(page)]))
        text = _text(page) if is_shown else marked
        if is_shown:
            assert text.startswith(f"{about.key}\n  ")
            assert max(map(cell_len, text.splitlines())) <= 80
        for rendered in (text, marked):
            assert not re.search(r"[{}⟨⟩]|\bNone\b(?! needed)|\bnan\b|\binf\b", rendered), rendered
        values = [row.value for row in page.rows]
        null = any(value.startswith("null") for value in values)
        assert page.absent or not null, about.key
        assert null or not values or not page.absent, about.key
        if page.absent and is_shown:
            assert page.absent in " ".join(text.split())


def test_a_block_lists_its_keys_with_values() -> None:
    document, *_ = made("pulse")
    for block in BLOCKS:
        found = find(block)
        if not found.is_block:
            continue
        page = summarise(found, document)
        of_block = (f"{block}.", f"{block}[].")
        assert [key for key, _, _ in page.keys] == [key for key in CONTRACT if key.startswith(of_block)]
        assert page.meaning == BLOCKS[block].meaning
        assert max(map(cell_len, _text(page).splitlines())) <= 80
    values = {key: value for key, value, _ in summarise(find("worst_cycle"), document).keys}
    assert values["worst_cycle.kind"] == "pulse"
    assert values["worst_cycle.classes[].name"] == "a, b"


# ------------------------------------------------------------------------------------------------ look-up


@every(
    ("word", "key", "entry"),
    [
        ("load.headroom", "load.headroom", None),
        ("wait.thresholds", "wait.thresholds[]", None),
        ("wait.thresholds[2]", "wait.thresholds[]", 2),
        ("notes", "notes[]", None),
        ("worst_cycle.danger_zone_rps[]", "worst_cycle.danger_zone_rps", None),
        ("sources.load.kind", "sources", None),
        ("advice[0].gain_backlogged", "advice[].gain_backlogged", 0),
        ("nested_wait.segments[0].theta", "nested_wait.segments[].theta", 0),
    ],
)
def test_keys_are_found_in_every_spelling(word: str, key: str, entry: int | None) -> None:
    found = find(word)
    assert ([e.key for e in found.records], found.entry, found.is_block) == ([key], entry, False)


@every(
    ("word", "says"),
    [
        ("theta", "did you mean nested_wait.segments[].theta?"),
        ("load.headrom", "did you mean load.headroom"),
        ("stabilty", "did you mean stability or"),
        ("", "its blocks are: schema_version"),
        ("§$%&", "its blocks are: schema_version"),
        ("\x1b[31m" * 1000, "its blocks are"),
    ],
)
def test_an_unknown_key_is_refused_with_the_nearest(word: str, says: str) -> None:
    with pytest.raises(UsageError) as refusal:
        find(word)
    message = str(refusal.value)
    assert says in message
    assert message.isprintable()
    assert len(message) < 450


def test_a_page_computes_what_it_names_and_runs_nothing_else() -> None:
    given = profile("agents-collapse")
    figures = Analyses(given.model, given.plan)
    assert page(find("load.work_rate"), figures, given.model, given.plan) == page(
        find("load.work_rate"), *shipped("agents-collapse")
    )
    assert {"load"} <= vars(figures).keys()
    assert vars(figures).keys().isdisjoint({"operating_point", "headroom", "goodput", "advice", "drain"})
