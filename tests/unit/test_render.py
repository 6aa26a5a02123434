import json
import math
from collections.abc import Callable, Iterator
from functools import cache, partial
from itertools import pairwise, takewhile
from typing import Any

import pytest
from contract import BLOCKS, KEYS, keys_of
from every import every
from hypothesis import given
from hypothesis import strategies as st
from markdown_it import MarkdownIt
from measured import brief_report
from rich.cells import cell_len
from shipped import LOOKED_AT as SHIPPED
from shipped import report as shipped

from kvplan.model import Prefill, Replica, RequestClass, ServingModel, Timing
from kvplan.report.assembly import Report, to_document
from kvplan.report.keys import SCREENS, near_one
from kvplan.report.ledger import Ledger
from kvplan.report.wording import sentence
from kvplan.show import markdown, page, terminal
from kvplan.show.page import Table
from kvplan.show.report import build
from kvplan.show.view import json_text
from kvplan.units import format_number

PULSE = ServingModel(  # SIC's decode lengths 2 and 4: fits, but a collapse stays
    (RequestClass("short", 4, (2,), (1.0,), 520.0), RequestClass("long", 4, (4,), (1.0,), 520.0)),
    Timing(1.0),
    Replica(20_000, prefill=Prefill.DISAGGREGATED),
)
TOO_MUCH_WORK = ServingModel(
    (RequestClass("chat", 100, (20,), (1.0,), 50.0), RequestClass("batch", 100, (40,), (1.0,), 50.0)),
    Timing(0.01, d1=1e-5),
    Replica(400_000),
)
NEARLY_CRITICAL = ServingModel(  # theory §3: spectral radius 0.999963
    (RequestClass("a", 1848, (20,), (1.0,), 1.0), RequestClass("b", 1848, (21,), (1.0,), 1.0)),
    Timing(1.0),
    Replica(10**6),
)
ONE_STAGE = ServingModel((RequestClass("score", 9, (1,), (1.0,), 1.0),), Timing(1.0), Replica(60))
HOSTILE = (
    "[bold red]x[/] [link=https://example.org]y[/link]",
    "a|b`c`d\\|e\\",
    "<script>alert(1)</script> &amp; <!-- -->",
    "**x** _y_ ~~z~~ ![i](j) $k$",
    "@team #12 :tada: https://example.org",
    "1. one",
    "# two #",
    "日本語の名前",
    "x" * 200,
)


def _named(*names: str, title: str = "many") -> Report:
    classes = tuple(RequestClass(n, 30 + i, (2, 4), (1.0, 1.0), 1.0) for i, n in enumerate(names))
    return brief_report(ServingModel(classes, Timing(0.01), Replica(40_000)), name=title)


_report = cache(brief_report)


@cache
def _hostile() -> Report:
    return _named(*HOSTILE, title=HOSTILE[0])


REPORTS = {  # made only where a test asks for one
    **{name: partial(shipped, name) for name in SHIPPED},
    "pulse": partial(_report, PULSE),
    "too much work": partial(_report, TOO_MUCH_WORK),
    "hostile": _hostile,
}


def _numbers(value: Any) -> Iterator[float]:
    if isinstance(value, dict | list):
        for item in value.values() if isinstance(value, dict) else value:
            yield from _numbers(item)
    elif isinstance(value, int | float):
        yield value


def _rows(screen: list[str]) -> list[list[str]]:
    """The cells of the first table, each on as many lines as it takes."""
    start, header = next((i, line) for i, line in enumerate(screen) if line.split()[:1] == ["Figure"])
    edges = [header.index(word) for word in header.split()]
    rows: list[list[str]] = []
    for line in takewhile(str.strip, screen[start + 1 :]):
        cells = [line[a:b] for a, b in pairwise([*edges, None])]
        if cells[0].strip():
            rows.append(cells)
        else:
            rows[-1] = [f"{above} {cell}" for above, cell in zip(rows[-1], cells, strict=True)]
    return [list(map(_text, row)) for row in rows]


def _text(text: str) -> str:
    """Words with single blanks: what a reader sees whatever the line breaks."""
    return " ".join(text.split())


# ---------------------------------------------------------------------------------------------------- JSON


ODD = (PULSE, TOO_MUCH_WORK, NEARLY_CRITICAL, ONE_STAGE)


@every("report", [*(partial(shipped, name) for name in SHIPPED), *(partial(_report, odd) for odd in ODD)])
def test_json_has_the_keys_of_the_contract_and_no_others(report: Callable[[], Report]) -> None:
    parsed = json.loads(json_text(to_document(report())))
    assert keys_of(parsed) == set(KEYS)
    assert list(parsed) == BLOCKS
    assert all(math.isfinite(number) for number in _numbers(parsed))


def test_what_does_not_exist_is_null_in_json() -> None:
    overworked, pulse, one_stage = (to_document(_report(m)) for m in (TOO_MUCH_WORK, PULSE, ONE_STAGE))
    state = overworked["equilibrium"]
    assert [c["name"] for c in state.pop("classes")] == ["chat", "batch"]
    assert set(state.values()) == {None}
    assert {c["integer_budget"] for c in overworked["rate_cap"]["classes"]} == {None}
    assert pulse["stability"]["recovery_iterations"] is None
    assert pulse["stability"]["min_stable_input_tokens"] == {"exact": None, "asymptotic": None}
    assert one_stage["worst_cycle"]["kind"] == "none"
    assert one_stage["worst_cycle"]["period"] is None
    # six of ten tokens fill memory; of what is seen to be served half a per cent is left out
    assert one_stage["worst_cycle"]["danger_zone_rps"] == pytest.approx([0.995 * 6, 6])
    assert (one_stage["worst_cycle"]["loss"], one_stage["worst_cycle"]["evictions_per_iteration"]) == (0, 0)
    assert one_stage["stability"]["spectral_radius"] == 0


# ----------------------------------------------------------------------------------------------- terminal


@every("name", SHIPPED)
def test_the_first_screen_says_what_matters(name: str) -> None:
    report = shipped(name)
    screen = terminal.render(build(report), width=80).splitlines()[:40]
    assert max(map(cell_len, screen)) <= 80
    text = _text("\n".join(screen))
    word = {"stable": "STABLE", "needs_cap": "NEEDS CAP", "overloaded": "OVERLOADED"}[report.verdict.status]
    assert f"{word} {report.verdict.summary}" in text
    assert "What to do" in text
    for number, action in enumerate(report.actions, 1):
        assert f"{number} {action}" in text
    rows = _rows(screen)
    for row in build(report).summary.rows:
        assert list(row) in rows
    assert {"Headroom", "Recovers up to", "Rate cap", "WAIT", "Strongest lever"} <= {
        row[0] for row in build(report).summary.rows
    }


BEATS = "beats Nested WAIT"
FITS, SMALL = (
    {"fits": True, "thresholds": [6, 2], "kv_tokens": 900.0},
    "start 6, 2 of a class at a time: 900 tokens",
)


@pytest.mark.parametrize(("fleet", "whose"), [(None, ""), ({"replicas": 2}, " a replica")])
def test_cost_says_of_what_and_energy_its_unit(fleet: dict[str, int] | None, whose: str) -> None:
    now = {"per_million_output_tokens": 2.5, "joules_per_output_token": 1.25}
    cost = {"per_hour": 6.0, "offered": now, "sustainable": {"per_million_output_tokens": 2.0}}
    assert sentence(SCREENS["rows"]["Cost"], Ledger({"cost": cost, "fleet": fleet})) == (
        f"6/h{whose}, 2.5/M output tokens now, 2/M output tokens at capacity, at most 1.25 J an output token now"
    )


@pytest.mark.parametrize(
    ("row", "figures", "says"),
    [
        (
            "Rate cap",
            {"rate_cap": {"per_iteration": 0.25, "per_second": 2.5}},
            "admit at most 1 in 4 iterations, 2.5 requests/s",
        ),
        (
            "Rate cap",
            {"rate_cap": {"per_iteration": 25.0, "per_second": 5.0}},
            "admit at most 25 an iteration, 5 requests/s",
        ),
        (
            "WAIT",
            {"wait": {**FITS, "classes": [{"latency_s": 1.5}, {"latency_s": 3.0}]}},
            f"{SMALL}, mean latency at most 3 s",
        ),
        ("WAIT", {"wait": {**FITS, "classes": [{"latency_s": None}] * 2}}, SMALL),
        (
            "Predictions",
            {"wait": {"beats_nested": {"at_best": True, "from_accuracy": 0.0}}},
            f"WAIT by any predictions, all wrong or not, {BEATS}",
        ),
        (
            "Predictions",
            {"wait": {"beats_nested": {"at_best": True, "from_accuracy": 0.85}}},
            f"85% right, or more: WAIT by predicted length {BEATS}",
        ),
        (
            "Predictions",
            {"wait": {"beats_nested": {"at_best": False, "from_accuracy": None}}},
            f"WAIT by right predictions {BEATS}: no",
        ),
    ],
)
def test_what_the_papers_compute_says_what_to_do(row: str, figures: dict[str, Any], says: str) -> None:
    assert sentence(SCREENS["rows"][row], Ledger({"prefix_cache": None, **figures})) == says


def test_the_first_screen_names_what_to_change() -> None:
    """Ten requests an iteration fill memory: 10/(1 + 10·0.4) a second, 10/4.6 with d2 = 0.36."""
    model = ServingModel((RequestClass("a", 1, (1,), (1.0,), 1.0),), Timing(1.0, d2=0.4), Replica(20))
    rows = [row for row in build(_report(model)).summary.rows if row[0].endswith("lever")]
    assert rows == [("Strongest lever", "10% shorter d2 (prefill) serves +8.7%", "computed")]


@pytest.mark.parametrize("width", [40, 60, 80, 100])
@pytest.mark.parametrize("name", REPORTS)
def test_no_line_is_wider_than_the_terminal(name: str, width: int) -> None:
    lines = terminal.render(build(REPORTS[name]()), width=width).splitlines()
    assert max(map(cell_len, lines)) <= width
    assert not any(line.endswith(" ") for line in lines)


def test_a_long_word_of_a_command_is_never_cut() -> None:
    long = f"--config '{'x' * 120}'"
    found = page.document([page.Section("start", "Start", (page.shell("serve MODEL", ["--port 1", long]),))])
    assert terminal.render(found, width=40).splitlines()[1:3] == ["  serve MODEL --port 1 \\", f"    {long}"]


def test_names_are_shown_as_they_are_on_a_terminal() -> None:
    text = terminal.render(build(_hostile()), width=100)
    assert text.splitlines()[0] == HOSTILE[0]
    joined = "".join(text.split())
    for name in HOSTILE[:-1]:  # the last fills more than a line of its column
        assert "".join(name.split()) in joined


@pytest.mark.parametrize(
    ("model", "colour"), [(ONE_STAGE, 32), (PULSE, 33), (TOO_MUCH_WORK, 31)], ids=["green", "yellow", "red"]
)
def test_the_verdict_has_the_colour_of_a_traffic_light(model: ServingModel, colour: int) -> None:
    assert f"\x1b[1;{colour}m" in terminal.render(build(_report(model)), colour=True)


# ----------------------------------------------------------------------------------------------- document


def _figure(report: Report, section: str, figure: str) -> tuple[str, ...]:
    (found,) = (s for s in build(report).sections if s.key == section)
    tables = [block for block in found.blocks if isinstance(block, Table)]
    (row,) = (row for table in tables for row in table.rows if row[0] == figure)
    return (*row[1:], found.basis) if found.basis else row[1:]


def test_a_spectral_radius_near_one_is_not_rounded_to_one() -> None:
    assert _figure(_report(NEARLY_CRITICAL), "stability", "Spectral radius") == ("0.999963", "computed")


@every("exponent", range(1, 11))
@every("sign", [1, -1])
def test_every_spectral_radius_keeps_its_side_of_one(sign: int, exponent: int) -> None:
    radius = 1 + sign * 3.7 * 10.0**-exponent
    shown = float(near_one(radius))
    assert abs(shown - radius) < 0.06 * abs(radius - 1)


@every("name", SHIPPED)
def test_a_status_that_is_not_what_the_spectrum_says_is_reconciled(name: str) -> None:
    report = shipped(name)
    verdict = report.verdict
    differs = verdict.status != "overloaded" and (verdict.status == "stable") != report.stability.stable
    text = _text(terminal.render(build(report, ["stability"])))
    sentence = f"The status is {verdict.status} all the same"
    assert (sentence in text) == differs
    if differs:
        assert f"up to {format_number(verdict.recovers_up_to_rps)} requests/s." in text


@every(
    ("status", "recovers_up_to_rps", "said"),
    [
        ("needs_cap", 2.5, "offered rate, which is sure to drain only up to 2.5 requests/s."),
        ("needs_cap", None, "offered rate, which is not known to drain."),
        ("stable", 2.5, None),
        ("overloaded", 2.5, None),
    ],
)
def test_a_stable_spectrum_does_not_make_a_replica_recover(
    status: str, recovers_up_to_rps: float | None, said: str | None
) -> None:
    verdict = {"status": status, "recovers_up_to_rps": recovers_up_to_rps}
    answer = {"verdict": verdict, "stability": _report(NEARLY_CRITICAL).stability}
    found = sentence(SCREENS["sections"]["stability"]["blocks"][-1], Ledger(answer))
    assert found is None if said is None else found is not None and found.endswith(said)


def test_many_classes_are_cut_to_twenty() -> None:
    report = _named(*(f"class {i}" for i in range(30)))
    for text in (terminal.render(build(report)), markdown.render(build(report))):
        assert "… 10 more; see --format json" in text
        assert "class 19 " in text
        assert "class 20 " not in text
    assert len(to_document(report)["equilibrium"]["classes"]) == 30


# ----------------------------------------------------------------------------------------------- Markdown

_READER = MarkdownIt("commonmark").enable(["table", "strikethrough"])
_HARMLESS_HTML = {"<!-- -->", "<span>", "</span>"}


def _shown(inline: Any) -> str:
    """Text of an inline token; fails if anything but text is in it."""
    parts = []
    for child in inline.children:
        assert child.type in {"text", "text_special", "html_inline"}, child
        if child.type == "html_inline":
            assert child.content in _HARMLESS_HTML
        else:
            parts.append(child.content)
    return "".join(parts)


@given(
    st.text(
        st.characters(codec="utf-8", exclude_categories=("C", "Z"), include_characters=" "), min_size=1
    ).map(_text)
)
def test_quoted_text_reads_back_as_it_was(text: str) -> None:
    tokens = _READER.parse(f"## {markdown.quote(text)}")
    assert "".join(_shown(token) for token in tokens if token.type == "inline") == text


def test_names_survive_tables_of_markdown() -> None:
    tokens = _READER.parse(markdown.render(build(_hostile())))
    cells = [
        _shown(after)
        for before, after in pairwise(tokens)
        if before.type == "td_open" and after.type == "inline"
    ]
    assert set(HOSTILE) <= set(cells)


@every("name", [*SHIPPED, "hostile"])
def test_markdown_folds_the_sections_and_nothing_else(name: str) -> None:
    built = build(REPORTS[name]())
    tokens = _READER.parse(markdown.render(built))
    html = [token.content.strip() for token in tokens if token.type == "html_block"]
    titles = [f"{s.title} ({s.basis})" if s.basis else s.title for s in built.sections]
    opened = [f"<details><summary>{title}</summary>" for title in titles]
    assert html == [line for line in opened for line in (line, "</details>")]
    tables = [
        number
        for number, token in enumerate(tokens)
        if token.type == "table_open" or token.content.startswith("<details>")
    ]
    assert tokens[tables[0]].type == "table_open"  # the summary, before anything folded
    blocks = [block for section in built.sections for block in section.blocks]
    assert sum(t.type == "table_open" for t in tokens) == 1 + sum(isinstance(b, Table) for b in blocks)
