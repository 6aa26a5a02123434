"""Judged profiles for CI: JUnit XML, and the annotations that GitHub's runner reads out of a log.

Every suite has what the schemas of Jenkins (junit-10) and Surefire both know and demand. The `testsuites` around them
is Jenkins'; Surefire writes one suite a file.
"""

import re
from collections.abc import Iterator, Sequence
from xml.etree import ElementTree

from kvplan.gate.check import Checked
from kvplan.show.check import advice_text, failure_text, title
from kvplan.show.page import printable

# What XML 1.0 cannot hold in any spelling.
_FORBIDDEN = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def junit(checked: Sequence[Checked]) -> str:
    """Write JUnit XML: a suite for each profile, a case for each requirement.

    >>> from kvplan.gate.check import Problem
    >>> print(junit([Checked("a.toml", "a.toml", None, None, (), (Problem("a.toml: empty", 1),))]), end="")
    <?xml version="1.0" encoding="UTF-8"?>
    <testsuites name="kvplan check" tests="1" failures="0" errors="1">
      <testsuite name="a.toml" tests="1" failures="0" errors="1" skipped="0" time="0">
        <testcase name="profile" classname="a.toml" time="0">
          <error type="unusable" message="a.toml: empty">a.toml: empty</error>
        </testcase>
      </testsuite>
    </testsuites>
    """
    suites = [_suite(profile) for profile in checked]
    totals = {
        key: str(sum(int(suite.attrib[key]) for suite in suites)) for key in ("tests", "failures", "errors")
    }
    root = ElementTree.Element("testsuites", {"name": "kvplan check", **totals})
    root.extend(suites)
    ElementTree.indent(root)
    return f'<?xml version="1.0" encoding="UTF-8"?>\n{ElementTree.tostring(root, encoding="unicode")}\n'


def _suite(checked: Checked) -> ElementTree.Element:
    suite = ElementTree.Element("testsuite", {"name": _clean(title(checked))})
    failures = 0
    for result in checked.results:
        case = _case(suite, checked, result.text)
        if not result.judgement.passed:
            failures += 1
            _add(case, "failure", "requirement", failure_text(result), f"\n{advice_text(result)}")
    for problem in checked.problems:
        _add(_case(suite, checked, "profile"), "error", "unusable", problem.message)
    suite.attrib |= {
        "tests": str(len(suite)),
        "failures": str(failures),
        "errors": str(len(checked.problems)),
        "skipped": "0",
        "time": "0",
    }
    return suite


def _case(suite: ElementTree.Element, checked: Checked, name: str) -> ElementTree.Element:
    names = {"name": _clean(name), "classname": _clean(checked.source)}
    return ElementTree.SubElement(suite, "testcase", {**names, "time": "0"})


def _add(case: ElementTree.Element, tag: str, kind: str, message: str, more: str = "") -> None:
    element = ElementTree.SubElement(case, tag, {"type": kind, "message": _clean(message)})
    element.text = _clean(message + more)


def _clean(text: str) -> str:
    return _FORBIDDEN.sub("\ufffd", text)


def annotations(checked: Sequence[Checked]) -> Iterator[str]:
    r"""Yield a line for each requirement that fails and for whatever cannot be judged.

    >>> from kvplan.gate.check import Problem
    >>> list(annotations([Checked("a,b.toml", "a,b.toml", None, None, (), (Problem("100%\nbad", 3),))]))
    ['::error file=a%2Cb.toml,line=3,title=kvplan%3A a%2Cb.toml::100%25%0Abad']
    """
    for profile in checked:
        for problem in profile.problems:
            yield _annotation(profile, problem.line, problem.message)
        for result in profile.results:
            if not result.judgement.passed:
                yield _annotation(profile, result.line, f"{failure_text(result)}; {advice_text(result)}")


def refusal(message: str) -> str:
    r"""Write the line for what refuses the call as a whole.

    >>> refusal("--require: 100%\nbad")
    '::error title=kvplan::--require: 100%25%0Abad'
    """
    return f"::error title=kvplan::{_data(message)}"


def _annotation(checked: Checked, line: int | None, message: str) -> str:
    place = {} if checked.file is None else {"file": checked.file, "line": str(line or 1)}
    properties = place | {"title": f"kvplan: {title(checked)}"}
    written = ",".join(f"{key}={_property(value)}" for key, value in properties.items())
    return f"::error {written}::{_data(message)}"


def _data(text: str) -> str:
    return printable(text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A"))


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")
