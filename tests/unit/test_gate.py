"""Requirements: what is read, what is refused, and how reports are judged; expected values by hand."""

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
import tomli
from every import every
from lxml import etree
from shipped import profile
from strategies import mix_model

from kvplan.errors import ExitCode, UsageError
from kvplan.gate import check as checking
from kvplan.gate import diff
from kvplan.gate.check import Baseline, Outcome, read_report, read_tolerance
from kvplan.gate.judgement import Subject, judge, telling_digits
from kvplan.gate.requirement import parse, parse_key
from kvplan.model import Plan
from kvplan.profile.reading import parse_profile
from kvplan.report.assembly import Analyses, ProfileIdentity
from kvplan.report.ledger import Named, named
from kvplan.show import check as tables
from kvplan.show import ci, page, terminal
from kvplan.show import diff as diff_tables

REQUIREMENTS = tomli.loads(Path(__file__).with_name("requirements.toml").read_text("utf-8"))
# One class, input 1, decode 2, disaggregated: a request holds 2 + 3 = 5 token-iterations. Memory 60 and iterations of
# 1 s then sustain 60/5 = 12 requests/s; 8 are offered, so there is a headroom of 12/8 - 1 = 0.5 and 8 x 5 = 40 tokens.
SMALL = """schema = 1
name = "small"
gpu = {{ memory_tokens = 60, prefill = "disaggregated" }}
timing = {{ d0 = "1 s" }}
[[classes]]
name = "{name}"
input = 1
decode = 2
rate = 8.0
[gate]
require = [
    {require}
]
"""


def small(*require: str, name: str = "a") -> Any:
    written = ",\n    ".join(json.dumps(text, ensure_ascii=False) for text in require)
    text = SMALL.format(require=written, name=name)
    return parse_profile(text.encode(), "small.toml")


def subject(**classes: int) -> Subject:
    model = mix_model((1, 2, 8.0), memory=60)
    return Subject(Analyses(model, Plan(), {"profile": ProfileIdentity("small", "5e6f")}))


@every(("text", "path", "symbol", "wanted"), REQUIREMENTS["read"])
def test_a_requirement_is_read(text: str, path: tuple[object, ...], symbol: str, wanted: object) -> None:
    found = parse(text)
    path = tuple(Named(step["name"]) if isinstance(step, dict) else step for step in path)
    assert (found.key.path, found.symbol, found.wanted) == (path, symbol, wanted)
    assert type(found.wanted) is type(wanted)


@every(("text", "says"), REQUIREMENTS["refused"])
def test_what_is_no_requirement_is_refused(text: str, says: str) -> None:
    with pytest.raises(UsageError) as refusal:
        parse(text)
    assert says in str(refusal.value)
    assert str(refusal.value).isprintable()


@every("name", ["chat", "tool call", "0", "a]b", 'say "x"', "back\\slash", " edge ", "größer", "[", "x."])
def test_any_name_can_be_written_and_read(name: str) -> None:
    assert parse_key(f"rate_cap.classes{named(name)}.per_iteration").path[2] == Named(name) or name.isdigit()


@every(("text", "got", "margin", "passed"), REQUIREMENTS["judged"])
def test_a_report_is_judged(text: str, got: object, margin: float | str, passed: bool) -> None:
    found = judge(parse(text), subject())
    assert found.got == pytest.approx(got) if isinstance(got, float) else found.got == got
    assert (found.margin, found.passed) == (
        None if margin == "none" else pytest.approx(margin, abs=1e-12),
        passed,
    )


def test_a_wait_that_is_not_known_is_refused() -> None:
    """Turns of sessions follow answers: a bound for Poisson arrivals would say nothing about them."""
    given = profile("agents-collapse")
    found = Subject(Analyses(given.model, given.plan))
    for field in ("mean_wait_bound_s", "latency_s"):
        with pytest.raises(UsageError, match=r"null in this report.*sessions"):
            judge(parse(f"wait.classes[0].{field} < 10 h"), found)


@every(
    ("text", "says"),
    [
        ("stability.recovery_iterations < 9", "null"),
        ("rate_cap.classes[1].per_iteration > 0", "1 entries"),
        ("rate_cap.classes[chat].per_iteration > 0", "there are 'class 0'"),
        ("nested_wait.segments[chat].threshold > 0", "entries without names"),
    ],
)
def test_what_has_no_value_is_refused(text: str, says: str) -> None:
    with pytest.raises(UsageError, match=says.replace("[", r"\[")):
        judge(parse(text), subject())


@every(
    "text",
    [
        "stability.stable == false",
        "stability.stable == true",
        "stability.spectral_radius <= 2",
        "stability.unstable_modes >= 0",
        "stability.unstable_modes <= 9",
    ],
)
def test_doubt_never_passes(text: str) -> None:
    about = subject()
    doubtful = about.analyses.stability._replace(certified=False, stable=False, unstable_modes=None)
    about = Subject(Analyses(about.analyses.model, Plan(), {"stability": doubtful}))
    found = judge(parse(text), about)
    assert not found.passed
    assert "too close to call" in found.doubt


def test_a_radius_without_certificate_proves_nothing_though_stability_is_proved() -> None:
    about = subject()
    known = about.analyses.stability._replace(certified=True, radius_certified=False, stable=True)
    about = Subject(Analyses(about.analyses.model, Plan(), {"stability": known}))
    assert not judge(parse("stability.spectral_radius < 2"), about).passed
    assert judge(parse("stability.stable == true"), about).passed


def test_only_the_blocks_that_are_asked_for_are_computed() -> None:
    about = subject()
    judge(parse("load.headroom >= 0"), about)
    assert {
        "stability",
        "worst_cycle",
        "nested_wait",
        "safety_buffer",
    } & about.analyses.__dict__.keys() == set()


def test_a_figure_is_shown_on_the_side_of_the_bound_where_it_is() -> None:
    requirement = parse("load.headroom >= 0.2")
    assert telling_digits(requirement, 0.19999) == 5
    assert telling_digits(requirement, 0.2) == 4
    assert telling_digits(parse("wait.kv_tokens > 12346.2"), 12346.4) == 6


def test_what_cannot_be_judged_names_file_line_and_requirement() -> None:
    found = checking.check(small("load.headroom >= 0.2", "load.headrom >= 0.2"), "small.toml", [])
    assert found.outcome is Outcome.UNUSABLE
    assert found.results == ()  # nothing is called passed
    (problem,) = found.problems
    assert problem.message.startswith("small.toml:13: gate.require[1]: unknown key 'load.headrom'")
    assert problem.line == 13


@every(
    ("text", "says"),
    [
        (
            "worst_cycle.loss <= 30",
            "at most 1 in every report, so that <= 30 can never fail; did you mean 30%?",
        ),
        ("worst_cycle.loss < 1.5", "< 1.5 can never fail; did you mean 1.5%?"),
        ("worst_cycle.classes[0].loss >= 30", ">= 30 can never hold; did you mean 30%?"),
        ("worst_cycle.loss <= 100", "<= 100 can never fail; did you mean 100%?"),
        ("prefix_cache.hit_ratio == 50", "== 50 can never hold; did you mean 50%?"),
        ("safety_buffer.overflow_probability_horizon != 2", "!= 2 can never fail; did you mean 2%?"),
        ("worst_cycle.loss <= 300%", "<= 300% can never fail"),
        ("worst_cycle.loss <= 3000", "<= 3000 can never fail"),
        ("load.headroom >= -20", "at least -1 in every report, so that >= -20 can never fail"),
        ("load.headroom < -101%", "can never hold"),
        (
            "load.sustainable_rps > -1 requests/s",
            "at least 0 in every report, so that > -1 requests/s can never fail",
        ),
    ],
)
def test_a_bound_that_no_report_comes_near_is_refused(text: str, says: str) -> None:
    with pytest.raises(UsageError) as refusal:
        parse(text)
    assert str(refusal.value).endswith(says)


def test_all_that_cannot_be_judged_is_told_at_once() -> None:
    found = checking.check(small("a", "b"), "small.toml", [parse("stability.recovery_iterations > 1")])
    assert [p.line for p in found.problems] == [12, 13, None]


def test_without_a_requirement_nothing_passes() -> None:
    assert checking.check(small(), None, []).outcome is Outcome.UNUSABLE
    assert checking.exit_code([]) is ExitCode.USAGE


def test_the_worst_outcome_is_the_exit_code() -> None:
    good, bad, broken = (
        checking.check(small(text), None, []) for text in ("load.headroom > 0", "load.headroom > 9", "load")
    )
    assert checking.exit_code([good]) is ExitCode.DONE
    assert checking.exit_code([good, bad]) is ExitCode.GATE_FAILED
    assert checking.exit_code([good, bad, broken]) is ExitCode.USAGE


def test_the_remedies_of_a_small_profile_are_those_of_the_formulas() -> None:
    """Headroom 12/rate - 1 >= 1 needs a rate of 6, or 5·8·2 = 80 tokens, or two replicas of 4 requests/s each."""
    (result,) = checking.check(small("load.headroom >= 1"), None, []).results
    found = {remedy.lever.value: (remedy.amount, remedy.relative) for remedy in result.remedies}
    assert found == {"rate": (6.0, 0.25), "memory": (80, pytest.approx(1 / 3)), "replicas": (2, 1.0)}
    assert [remedy.lever.value for remedy in result.remedies] == ["rate", "memory", "replicas"]


def test_a_remedy_breaks_no_requirement_that_was_met() -> None:
    """6 requests/s would do for the headroom, and 40 tokens in use would then be 30."""
    results = checking.check(small("load.headroom >= 1", "equilibrium.kv_tokens >= 35"), None, []).results
    assert [remedy.lever.value for remedy in results[0].remedies] == ["memory"]


def test_where_there_is_no_remedy_that_is_said() -> None:
    found = checking.check(small("load.work_rate > 1"), None, [])
    assert found.results[0].remedies == ()
    assert "no change was found that makes it pass" in terminal.render(page.document(tables.build([found])))


def baseline(*tolerances: str, **load: object) -> Baseline:
    document = {
        "schema_version": 2,
        "profile": {"name": "small"},
        "load": {"headroom": 0.5, **load},
        "stability": {"certified": True, "spectral_radius": 1.0},
    }
    return Baseline("old.json", document, tuple(map(read_tolerance, tolerances)))


@every(
    ("then", "share", "passed"),
    [
        (0.5, "0%", True),
        (0.51, "2%", True),
        (0.49, "2%", False),
        (0.49, "0.03", True),
        (0.6, "2%", False),
        (0.0, "5%", False),
    ],
)
def test_drift_in_either_direction_beyond_the_tolerance_fails(then: float, share: str, passed: bool) -> None:
    found = checking.check(small(), None, [], baseline(f"load.headroom={share}", headroom=then))
    assert found.results[0].judgement.passed is passed


@every(
    ("tolerance", "load", "says"),
    [
        ("load.work_rate=1%", {}, "not in this report"),
        ("wait.kv_tokens=1%", {}, "not in this report"),
        ("load.headroom=1%", {"headroom": None}, "null"),
        ("load.headroom=1%", {"headroom": "0.5"}, "is not a number"),
        ("load.headroom=1%", {"headroom": True}, "is not a number"),
        ("load.headroom=1%", {"headroom": 10**400}, "is not a number"),
        ("load.headroom=1%", {"headroom": float("inf")}, "is not a number"),
    ],
)
def test_a_baseline_without_the_number_is_refused(tolerance: str, load: dict[str, object], says: str) -> None:
    found = checking.check(small(), None, [], baseline(tolerance, **load))
    assert found.outcome is Outcome.UNUSABLE
    assert "old.json" in found.problems[0].message
    assert says in found.problems[0].message


def test_an_uncertified_baseline_is_no_yardstick() -> None:
    old = baseline("stability.spectral_radius=50%")
    old.document["stability"]["certified"] = False
    assert checking.check(small(), None, [], old).outcome is Outcome.FAILED


@every(
    "text",
    [
        "load.headroom",
        "load.headroom=",
        "load.headroom=x",
        "load.headroom=-1%",
        "load.headroom=150%",
        "verdict.status=1%",
        "a=1%",
        "=1%",
    ],
)
def test_what_is_no_tolerance_is_refused(text: str) -> None:
    with pytest.raises(UsageError):
        read_tolerance(text)


@every(
    "data",
    [
        b"",
        b"schema = 1",
        b"[]",
        b"{}",
        b'{"schema_version": 1}',
        b'{"schema_version": true}',
        b'{"schema_version": "2"}',
        b'{"schema_version": 2, "load": NaN}',
        b"\xff\xfe\xff",
        b"[" * 100_000,
        b'{"schema_version": ' + b"1" * 5000 + b"}",
    ],
)
def test_what_is_no_report_is_refused(data: bytes) -> None:
    with pytest.raises(UsageError, match=r"^old\.json: "):
        read_report(data, "old.json")


NASTY = "::error::x %0A `a` | <script>alert(1)</script> ##[error]y *b* [c](d) & \u2028"[:-2] + "a]b"


def nasty() -> checking.Checked:
    key = f"rate_cap.classes{named(NASTY)}.per_iteration"
    profile = replace(small(f"{key} >= 1000", name=NASTY), name=NASTY, source=NASTY)
    return checking.check(profile, NASTY, [])


@every("width", range(40, 101, 10))
def test_the_result_stands_beside_the_key_and_no_word_is_cut(width: int) -> None:
    texts = ("load.headroom >= 0", "safety_buffer.overflow_probability_per_iteration >= 1")
    text = terminal.render(
        page.document(tables.build([checking.check(small(*texts), None, [])])), width=width
    )
    table = text.partition("\n\n  -")[0].splitlines()[1:]
    rows = [line.split() for line in table if line.strip()]
    assert max(map(len, text.splitlines())) <= width
    results = [(row[0], re.split("[._]", row[1])[0]) for row in rows if row[0] in ("PASS", "FAIL")]
    assert results[:2] == [("FAIL", "safety"), ("PASS", "load")]
    assert len(results) % 2 == 0
    words = {"safety", "buffer", "overflow", "probability", "per", "iteration", "load", "headroom"}
    parts = {part for row in rows for cell in row for part in re.split(r"[._]", cell) if part.isalpha()}
    assert parts <= words | {"Result", "Key", "Wanted", "Got", "Margin", "PASS", "FAIL"}


JUNIT = etree.XMLSchema(file=Path(__file__).parents[1] / "junit.xsd")


def is_junit(text: str) -> bool:
    return bool(JUNIT.validate(etree.fromstring(text.encode())))


# What Surefire's own schema demands of a suite, a case and its outcome; it knows no `testsuites` around them.
_SUREFIRE = {
    "testsuite": {"name", "tests", "errors", "skipped", "failures"},
    "testcase": {"name", "time"},
    "failure": {"type"},
    "error": {"type"},
}


def test_junit_is_valid_and_counts_right() -> None:
    broken = checking.check(replace(small("load"), source="a\x00b\x1b[31m\ud800"), None, [])
    good = checking.check(small("load.headroom > 0", "load.headroom > 9"), None, [])
    text = ci.junit([nasty(), broken, good])
    assert is_junit(text)
    root = ElementTree.fromstring(text.encode())
    for element in root.iter():
        assert _SUREFIRE.get(element.tag, set()) <= set(element.keys())
    assert [(s.attrib["tests"], s.attrib["failures"], s.attrib["errors"]) for s in root] == [
        ("1", "1", "0"),
        ("1", "0", "1"),
        ("2", "1", "0"),
    ]
    assert root.attrib == {"name": "kvplan check", "tests": "4", "failures": "2", "errors": "1"}
    assert root[0].attrib["name"] == f"{NASTY} ({NASTY})"


def side(**blocks: object) -> diff.Side:
    return diff.Side("a.json", {"schema_version": 2, "profile": {"name": "a", "sha256": ""}, **blocks})


def test_a_difference_is_found_and_ordered_by_its_effect() -> None:
    a = side(
        verdict={"status": "stable", "summary": "It fits."},
        headroom={"ratio": 0.5},
        load={"work_rate": 0.2, "load_factor_max": 1.5},
        wait={"thresholds": [3]},
        notes=["one"],
    )
    b = side(
        verdict={"status": "needs_cap", "summary": "It fits, but."},
        headroom={"ratio": 0.4},
        load={"work_rate": 0.5, "load_factor_max": 1.5},
        wait={"thresholds": [3, 4]},
        notes=["one", "two"],
    )
    found = diff.compare(a, b).changes
    assert [c.key for c in found] == [
        "verdict.status",
        "headroom.ratio",
        "load.work_rate",
        "verdict.summary",
        "notes",
        "wait.thresholds[1]",
    ]
    assert [c.relative for c in found] == [None, pytest.approx(-0.2), pytest.approx(1.5), None, None, None]


def test_the_last_digit_of_a_float_is_no_difference() -> None:
    a, b = side(load={"headroom": 0.1 + 0.2}), side(load={"headroom": 0.3})
    found = diff.compare(a, b)
    assert found.changes == ()
    assert "Nothing differs." in terminal.render(page.document([diff_tables.build(found)]))


def test_classes_are_compared_by_their_names() -> None:
    a = side(rate_cap={"classes": [{"name": "x", "integer_budget": 1}, {"name": "y", "integer_budget": 2}]})
    b = side(rate_cap={"classes": [{"name": "y", "integer_budget": 3}, {"name": "x", "integer_budget": 1}]})
    assert [(c.key, c.relative) for c in diff.compare(a, b).changes] == [
        ("rate_cap.classes[y].integer_budget", 0.5)
    ]


def test_what_was_changed_in_a_profile_is_told_before_what_comes_of_it() -> None:
    before = small("load.headroom > 0").text
    after = before.replace("memory_tokens = 60", "memory_tokens = 90").replace("rate = 8.0", "rate = 8")
    after = after.replace('d0 = "1 s"', 'd0 = "1000 ms", d1 = "1 us"')
    found = diff.compare(*(diff.read_side(text.encode(), "a.toml") for text in (before, after)))
    assert [(c.key, c.before, c.after) for c in found.inputs] == [
        ("gpu.memory_tokens", 60, 90),
        ("timing.d1", None, "1 us"),
    ]
    assert found.inputs[0].relative == 0.5
    assert found.changes[0].key == "headroom.ratio"
    text = terminal.render(page.document([diff_tables.build(found, full=True)]))
    assert text.index("gpu.memory_tokens") < text.index("headroom.ratio") < text.index("saturation.")
    assert diff_tables.document(found)["inputs"][0]["relative_change"] == 0.5


def test_classes_that_move_alike_are_one_row_and_others_are_not() -> None:
    def classes(*rates: float) -> diff.Side:
        names = "ab]cd"[:3]
        return side(
            rate_cap={"classes": [{"name": n, "per_second": r} for n, r in zip(names, rates, strict=True)]}
        )

    a = classes(1.0, 2.0, 4.0)
    alike, apart = diff.compare(a, classes(1.5, 3.0, 6.0)), diff.compare(a, classes(1.5, 3.0, 4.0))
    assert [(r.change.key, r.entries, r.change.relative) for r in diff.folded(alike.changes, a.document)] == [
        ("rate_cap.classes[all 3].per_second", 3, 0.5)
    ]
    assert [r.entries for r in diff.folded(apart.changes, a.document)] == [1, 1]
    assert len(alike.changes) == 3  # for programs each stays
