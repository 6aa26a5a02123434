"""What GitHub's runner reads out of a log: annotations."""

from collections.abc import Iterator, Sequence

from kvplan.gate.check import Checked
from kvplan.show.check import advice_text, got_text, title, wanted_text
from kvplan.show.commands import printable


def annotations(checked: Sequence[Checked]) -> Iterator[str]:
    r"""A line for each requirement that fails and for whatever cannot be judged.

    Examples
    --------
    >>> from kvplan.gate.check import Problem
    >>> list(annotations([Checked("a,b.toml", "a,b.toml", None, None, (), (Problem("100%\nbad", 3),))]))
    ['::error file=a%2Cb.toml,line=3,title=kvplan%3A a%2Cb.toml::100%25%0Abad']
    """
    for one in checked:
        for problem in one.problems:
            yield _annotation(one, problem.line, problem.message)
        for result in one.results:
            if not result.judgement.passed:
                said = f"{result.key.text}: wanted {wanted_text(result)}, got {got_text(result)}"
                yield _annotation(one, result.line, f"{said}; {advice_text(result)}")


def refusal(message: str) -> str:
    r"""A line for what refuses the call as a whole.

    >>> refusal("--require: 100%\nbad")
    '::error title=kvplan::--require: 100%25%0Abad'
    """
    return f"::error title=kvplan::{_data(message)}"


def _annotation(checked: Checked, line: int | None, message: str) -> str:
    place = [] if checked.file is None else [("file", checked.file), ("line", str(line or 1))]
    properties = ",".join(
        f"{key}={_property(value)}" for key, value in [*place, ("title", f"kvplan: {title(checked)}")]
    )
    return f"::error {properties}::{_data(message)}"


def _data(text: str) -> str:
    return printable(text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A"))


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")
