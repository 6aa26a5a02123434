"""Judged profiles as JUnit XML: a suite for each profile, a case for each requirement.

Every suite has what the schemas of Jenkins (junit-10) and Surefire both know and demand. The `testsuites` around them
is Jenkins'; Surefire writes one suite a file.
"""

import re
from collections.abc import Sequence
from xml.etree import ElementTree

from kvplan.gate.check import Checked, Result
from kvplan.show.check import advice_text, got_text, title, wanted_text

# What XML 1.0 cannot hold in any spelling.
_FORBIDDEN = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def render(checked: Sequence[Checked]) -> str:
    """The XML text.

    Examples
    --------
    >>> from kvplan.gate.check import Problem
    >>> print(render([Checked("a.toml", "a.toml", None, None, (), (Problem("a.toml: empty", 1),))]), end="")
    <?xml version="1.0" encoding="UTF-8"?>
    <testsuites name="kvplan check" tests="1" failures="0" errors="1">
      <testsuite name="a.toml" tests="1" failures="0" errors="1" skipped="0" time="0">
        <testcase name="profile" classname="a.toml" time="0">
          <error type="unusable" message="a.toml: empty">a.toml: empty</error>
        </testcase>
      </testsuite>
    </testsuites>
    """
    suites = [_suite(one) for one in checked]
    totals = {
        key: str(sum(int(suite.attrib[key]) for suite in suites)) for key in ("tests", "failures", "errors")
    }
    root = ElementTree.Element("testsuites", {"name": "kvplan check", **totals})
    root.extend(suites)
    ElementTree.indent(root)
    return f'<?xml version="1.0" encoding="UTF-8"?>\n{ElementTree.tostring(root, encoding="unicode")}\n'


def _suite(checked: Checked) -> ElementTree.Element:
    cases = [_case(checked, result) for result in checked.results]
    cases += [_broken_case(checked, problem.message) for problem in checked.problems]
    counts = {
        "tests": len(cases),
        "failures": sum(case.find("failure") is not None for case in cases),
        "errors": len(checked.problems),
        "skipped": 0,
    }
    numbers = {key: str(count) for key, count in counts.items()}
    suite = ElementTree.Element("testsuite", {"name": _clean(title(checked)), **numbers, "time": "0"})
    suite.extend(cases)
    return suite


def _case(checked: Checked, result: Result) -> ElementTree.Element:
    case = _empty_case(checked, result.text)
    if not result.judgement.passed:
        message = f"{result.key.text}: wanted {wanted_text(result)}, got {got_text(result)}"
        failure = ElementTree.SubElement(case, "failure", {"type": "requirement", "message": _clean(message)})
        failure.text = _clean(f"{message}\n{advice_text(result)}")
    return case


def _broken_case(checked: Checked, message: str) -> ElementTree.Element:
    case = _empty_case(checked, "profile")
    ElementTree.SubElement(case, "error", {"type": "unusable", "message": _clean(message)}).text = _clean(
        message
    )
    return case


def _empty_case(checked: Checked, name: str) -> ElementTree.Element:
    names = {"name": _clean(name), "classname": _clean(checked.source)}
    return ElementTree.Element("testcase", {**names, "time": "0"})


def _clean(text: str) -> str:
    return _FORBIDDEN.sub("\ufffd", text)
