"""Every key of the report is explained, and the arithmetic that is printed gives the number that is printed."""

import math
import re
from collections.abc import Iterator
from dataclasses import fields, replace
from datetime import date
from functools import cache
from typing import Any

import pytest
from every import check_every, every
from kvplan.report.figures import Inputs, gather
from kvplan.report.keys.evidence import Figure
from measured import brief_report
from rich.cells import cell_len
from shipped import LOOKED_AT, NAMES, profile, report
from tiers import is_night

from kvplan.analysis.population import with_rates_of_users
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
from kvplan.model.offload import Offload
from kvplan.model.reuse import Reuse, SharedPrompt
from kvplan.model.sessions import Sessions
from kvplan.report import explain as explaining
from kvplan.report.assembly import to_document
from kvplan.report.explain import Explained, Found, Summary, explain, find, summarise
from kvplan.report.keys import BLOCKS, CONTRACT, Kind, Record, law_text
from kvplan.show import explanation, markdown, terminal

Case = tuple[dict[str, Any], Inputs]


def case(model: ServingModel, plan: Plan) -> Case:
    report = brief_report(model, plan)
    return to_document(report), gather(model, plan, report)


@cache
def shipped(name: str) -> Case:
    given, known = profile(name), report(name)
    return to_document(known), gather(given.model, given.plan, known)


def one(name: str, s: int, decode: dict[int, float], rate: float) -> RequestClass:
    return RequestClass(name, s, tuple(decode), tuple(decode.values()), rate)


SLOTS = Timing(1.0, 1e-4, 1e-4, 1e-3)
BENT = Timing(1.0, 1e-4, 1e-4, 1e-3, d4=0.02, d5=1e-3, knee_tokens=30)
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


EVERY = [*((shipped, name) for name in NAMES), *((made, name) for name in MODELS)]
ON_A_SCREEN = ("agents-collapse", "gemma-3-27b-h100", "inputs told", "prefill-decode")
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
        document, _ = case
        nulls = {key.removesuffix("[]") for key in CONTRACT} | {k for k in BLOCKS if document[k] is None}
        nulls |= {"latency.worst_part", "goodput.cliff"}  # of rates that do not vary, and where there is none
        assert set(paths(document)) - {*CONTRACT, *nulls} == set()

    check_every(cases(), check)


def test_every_explanation_is_complete() -> None:
    def check(about: Record) -> None:
        assert about.meaning.endswith(".")
        assert "  " not in about.meaning
        computed = about.block not in ("schema_version", "kvplan_version", "profile", "sources")
        if computed and about.formula:
            assert re.search(r"SIC|WAIT|FC|new|the profile", about.source)
        assert not about.here or about.formula

    check_every(CONTRACT, check)


def test_every_figure_is_named_by_a_formula() -> None:
    """In one of the cases at least; what none names is not gathered."""
    named, known = set(), set()
    for make, name in EVERY:
        document, inputs = make(name)
        for about in CONTRACT.values():
            for place in explaining.places_of(about, document, inputs):
                named |= {symbol.rpartition("[].")[2] for symbol in place.symbols}
        known |= {
            *inputs.model,
            *(inputs.warm or ()),
            *(figure for entries in inputs.entries.values() for e in entries for figure in e),
        }
    assert known - named == set()


def test_the_law_is_written_with_all_its_constants() -> None:
    written = " ".join([*law_text.CONSTANTS, law_text.REST])
    assert {field.name for field in fields(Timing)} <= set(re.findall(r"\w+", written))


# -------------------------------------------------------------------------------------------- arithmetic


def evaluated(text: str) -> float | None:
    """The number that a printed calculation gives; None where it is no calculation."""
    text = re.sub(r"(?<=\d),(?=\d{3})", "", text)
    for sign, code in {
        "·": "*",
        "−": "-",
        "²": "**2",
        "³": "**3",
        "⌊": "floor(",
        "⌋": ")",
        "π": "pi",
    }.items():
        text = text.replace(sign, code)
    words = set(re.findall(r"[^\W\d]\w*", re.sub(r"\d[\d.]*e[+-]?\d+", "", text)))
    if not words <= {"floor", "pi", "ln", "exp", "gcd", "min", "max"} or re.search("[…≤<>;=]", text):
        return None
    names = {
        "floor": math.floor,
        "pi": math.pi,
        "ln": math.log,
        "exp": math.exp,
        "gcd": math.gcd,
        "min": min,
        "max": max,
    }
    result = eval(text, {"__builtins__": {}}, names)
    return result if isinstance(result, float | int) else None


def calculations(document: dict[str, Any], inputs: Inputs) -> Iterator[tuple[str, float, float]]:
    """Key, number and what the calculation beside it gives, wherever there is one."""
    for about in CONTRACT.values():
        for place in explaining.places_of(about, document, inputs):
            result = evaluated(place.here) if place.here else None
            if result is not None:
                yield about.key, float(place.value), result


def test_what_is_substituted_gives_the_value() -> None:
    def check(case: Case) -> None:
        calculated = list(calculations(*case))
        assert len({key for key, _, _ in calculated}) >= 15
        for key, value, result in calculated:
            assert result == pytest.approx(value, rel=3e-5, abs=1e-7), key

    check_every(cases(), check)


def test_nearly_every_number_has_a_calculation_somewhere() -> None:
    calculated = {key for make, name in EVERY for key, _, _ in calculations(*make(name))}
    numbers = {
        key
        for key in CONTRACT
        if key.startswith(
            ("load.", "equilibrium.", "saturation.", "worst_cycle.", "rate_cap.", "wait.", "nested")
        )
    }
    without = {
        *(key for key in CONTRACT if key.endswith((".name", ".kind", ".feasible", ".fits"))),
        "load.sustainable_rps_range",  # two numbers; below
        "worst_cycle.danger_zone_rps",
        "worst_cycle.settled",
        "worst_cycle.classes[].period",
        "rate_cap.classes[].integer_budget",
        "wait.max_thresholds[]",
        "nested_wait.segments[].upto_decode",
        "nested_wait.segments[].rate_rps",
        "nested_wait.segments[].threshold",
    }
    assert numbers - without - calculated == set()
    assert {"stability.gcd", "stability.recovery_iterations"} <= calculated
    assert "stability.min_stable_input_tokens.asymptotic" in calculated


def test_every_number_of_a_prefix_cache_has_a_calculation_somewhere() -> None:
    calculated = {key for name in CACHING for key, _, _ in calculations(*made(name))}
    numbers = {
        key for key in CONTRACT if key.startswith("prefix_cache.") and CONTRACT[key].kind is Kind.NUMBER
    }
    assert numbers - calculated == {
        "prefix_cache.sustainable_rps.good",  # the largest of many
        "prefix_cache.sustainable_rps_without_host.good",
        "prefix_cache.host.recovers_up_to_rps",  # by search
        "prefix_cache.host.longest_wait_s",
    }


def test_what_is_calculated_with_a_prefix_cache_are_the_moments_of_the_model() -> None:
    """By hand: 900 and 400 tokens at first, 3 or 6 turns, 80/3 + 60 + 35 tokens more each."""
    document, inputs = made("agents")
    turns = {j: 1.0 if j <= 3 else 0.5 for j in range(1, 7)}
    grown = (60 + 2 * 100) / 3 + 35
    prompt = sum(p * (650 + (j - 1) * grown) for j, p in turns.items()) / sum(turns.values())
    assert inputs.warm is not None
    assert inputs.warm["s_exact"].value == pytest.approx(prompt)
    assert document["prefix_cache"]["hit_ratio"] * prompt == pytest.approx(inputs.warm["saved"].value)
    # beyond full pages, a turn leaves its prompt and its answer but for one token
    assert inputs.warm["left"].value == pytest.approx(prompt + 34, abs=16)


def test_blocks_about_a_cold_cache_say_so() -> None:
    page = explain(find("rate_cap.per_iteration"), *made("shared prompts"))
    assert "finds what is always in use and nothing else" in page.meaning
    for name, key in (("shared prompts", "load.headroom"), ("no cache", "rate_cap.per_iteration")):
        assert "always in use" not in explain(find(key), *made(name)).meaning


def test_the_range_of_the_sustainable_rate_is_the_rate_over_the_ends_of_the_band() -> None:
    document, inputs = made("inputs told")
    (place,) = explaining.places_of(CONTRACT["load.sustainable_rps_range"], document, inputs)
    rate = document["load"]["sustainable_rps"]
    assert place.value == [rate / 1.25, rate / 0.5]
    assert re.fullmatch(r"(\S+)/1.25 to \1/0.5", place.here)


def test_an_input_is_explained_with_its_source() -> None:
    document, inputs = made("inputs told")
    for name in ("gpu", "timing", "workload"):
        (place,) = explaining.places_of(CONTRACT[f"inputs.{name}"], document, inputs)
        assert (place.value, place.here) == ("estimated", "a data sheet, 2026-11-22")
    document, inputs = made("inline")
    (place,) = explaining.places_of(CONTRACT["inputs.gpu"], document, inputs)
    assert (place.value, place.here) == ("stated", "")


@pytest.mark.parametrize(("chance", "rate"), [(1e-9, 2e-10), (0.02, 1e-4)])
def test_the_safety_buffer_is_calculated_from_its_fields(chance: float, rate: float) -> None:
    document, inputs = made("pulse")
    figures = {**inputs.model, "passage_rate": Figure("rate", "", rate)}
    tau, held = document["equilibrium"]["iteration_time_s"], document["equilibrium"]["kv_tokens"]
    block = {
        "kv_std_tokens": 500.0,
        "overflow_probability_per_iteration": chance,
        "overflow_probability_horizon": 1 - (1 - chance) * math.exp(-(1000.0 / tau - 1) * rate),
        "overflow_probability_horizon_bound": min(1.0, chance * 1000.0 / tau),
        "required_kv_tokens": held + 3000,
        "watermark_fraction": 3000 / 40_000,
        "theorem_bound": None,
    }
    inputs = replace(inputs, model=figures)
    found = {key: pair for key, *pair in calculations({**document, "safety_buffer": block}, inputs)}
    for key in ("overflow_probability_horizon", "overflow_probability_horizon_bound", "watermark_fraction"):
        value, result = found[f"safety_buffer.{key}"]
        assert result == pytest.approx(value, rel=1e-4), key


def test_conditions_show_both_sides() -> None:
    document, inputs = shipped("paper-fc-budgets")
    (row, *_) = explain(find("rate_cap.classes[].integer_budget"), document, inputs).rows
    assert re.fullmatch(r"λ_i·τ\* = 1\.66667 < 4", row.here)


# ------------------------------------------------------------------------------------------------- pages


def test_every_page_is_readable() -> None:
    wide = cases() if is_night() else ON_A_SCREEN
    check_every({name: (case, name in wide) for name, case in cases().items()}, _check_pages)


def _text(page: Explained | Summary) -> str:
    return terminal.render_sections([explanation.build(page)], "")


def _check_pages(given: tuple[Case, bool]) -> None:
    """In Markdown, and on a screen where that is asked for, which takes ten times as long."""
    case, is_shown = given
    for about in CONTRACT.values():
        page = explain(find(about.key), *case)
        marked = markdown.render_sections([explanation.build(page)], "")
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


@every("block", ["wait", "nested_wait", "safety_buffer", "goodput"])
def test_a_block_that_is_null_says_why(block: str) -> None:
    document, inputs = made("pulse")
    without = {**document, block: None}
    for about in CONTRACT.values():
        if re.match(rf"{block}\b", about.key):
            page = explain(find(about.key), without, inputs)
            assert page.absent == BLOCKS[block].absent
            assert all(row.here == "" for row in page.rows)


def test_an_overloaded_profile_says_why_there_is_no_equilibrium() -> None:
    page = explain(find("equilibrium.kv_tokens"), *made("overloaded"))
    assert page.rows[0].value == "null"
    assert page.absent.startswith("Λ >= 1")


def test_many_classes_are_cut() -> None:
    classes = tuple(one(f"c{i}", 10, {20: 1.0}, 0.01) for i in range(30))
    document, inputs = case(ServingModel(classes, SLOTS, Replica(20_000)), Plan())
    page = explain(find("equilibrium.classes[].in_flight"), document, inputs)
    assert (len(page.rows), page.cut.split()[1]) == (20, "10")
    assert explain(find("wait.kv_tokens"), document, inputs).rows[0].here.endswith(" + …")
    assert explain(find("equilibrium.classes[29].in_flight"), document, inputs).rows[0].name == "c29"


def test_a_name_is_text_in_markdown() -> None:
    named = one("**<b>**", 10, {20: 1.0}, 0.01)
    document, inputs = case(ServingModel((named,), SLOTS, Replica(20_000)), Plan())
    page = explain(find("equilibrium.classes[].in_flight"), document, inputs)
    text = markdown.render_sections([explanation.build(page)], "")
    assert "<b>" not in text
    assert "&lt;b&gt;" in text


def test_a_block_lists_its_keys_with_values() -> None:
    document, _ = made("pulse")
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


@pytest.mark.parametrize(
    ("word", "count"),
    [("load.sensitivity", 10), ("wait.classes[]", 4), ("stability.min_stable_input_tokens", 2)],
)
def test_parts_of_blocks_are_found(word: str, count: int) -> None:
    found = find(word)
    assert (found.is_block, len(found.records)) == (True, count)


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
    assert len(message) < 400


def test_an_entry_that_is_not_there_is_refused() -> None:
    with pytest.raises(UsageError, match=r"equilibrium.classes\[\].name has 2 entries here, .* not 2"):
        explain(find("equilibrium.classes[2].name"), *made("pulse"))


def test_pages_are_of_the_kind_that_was_asked_for() -> None:
    model = MODELS["pulse"]
    report = brief_report(model)

    def page(found: Found) -> Explained | Summary:
        return explaining.page(found, report, model, Plan())

    assert isinstance(page(find("load")), Summary)
    assert isinstance(page(find("load.headroom")), Explained)


def test_settings_of_advice_are_listed_with_their_values() -> None:
    document, inputs = made("pulse")
    settings = [{"name": "max_num_seqs", "value": 146}, {"name": "shed_after", "value": 4.5}]
    known = {**document, "advice": [{"settings": settings}]}
    for key, value in (("name", "[max_num_seqs, shed_after]"), ("value", "[146, 4.5]")):
        page = explain(find(f"advice[].settings[].{key}"), known, inputs)
        assert [(row.name, row.value) for row in page.rows] == [("advice 1", value)]


def test_intervals_are_explained_figure_by_figure() -> None:
    document, inputs = made("pulse")
    intervals = {"ttft_s": {"mean": [0.5, None]}, "waiting": [0, 1]}
    known = {**document, "latency": {**document["latency"], "ci95": intervals}}
    page = explain(find("latency.ci95"), known, inputs)
    assert [(row.name, row.value) for row in page.rows] == [
        ("ttft_s.mean", "[0.5, null]"),
        ("waiting", "[0, 1]"),
    ]
