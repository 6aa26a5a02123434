"""Sentences about an answer, from texts of `keys.toml` that name its figures.

==========================  ========================================================================================
``{load.work_rate}``        the figure as its record writes it
``{load.work_rate:short}``  in another form: one of the record's forms, or of ``FORMS`` here
``{.name}``                 the figure of the row that the text is about
``{?wait.fits}``            nothing; the text counts only where that is there, true and not 0
``{!wait.fits}``            the same where it is not
``{?a.b < c.d}``            where the figure is less than a number or another figure; likewise ``>``, and ``=`` a word
``[ of {cost.per_hour}]``   left out where a figure in the brackets is not there
==========================  ========================================================================================

A text with a figure that is not there does not count; of several the first one counts that does. The end of a line is
a blank, but for one before a bracket.
"""

import re
from collections.abc import Callable, Sequence

from kvplan.report.keys import FORMATS, RECORDS, SCREENS
from kvplan.report.ledger import Ledger, general, record_of

_PART = re.compile(r"\{([^{}]*)\}|\[((?:[^\[\]{}]|\{[^{}]*\})*)\]")
_BEFORE, _LINE_END = re.compile(r"\n *\["), re.compile(r"\n *")
_COMPARED = re.compile(r"(\S+) ([<>=]) (\S+)")
_FIGURE = re.compile(r"\{[?!]?([a-z][\w.\[\]]*)")


class _AbsentError(Exception):
    """A figure that a text names is not there."""


def sentence(texts: str | Sequence[str], ledger: Ledger, row: str = "") -> str | None:
    """Write the first of the texts that counts, about a row of a list if one is given; None where none does.

    Examples
    --------
    >>> ledger = Ledger({"saturation": {"throughput_rps": 0.5}, "cost": None})
    >>> sentence("{saturation.throughput_rps}[ for {cost.per_hour}], {saturation.throughput_rps:number}", ledger)
    '0.5 requests/s, 0.5'
    >>> sentence(["{!saturation}none", "{?saturation.throughput_rps < 1}few"], ledger)
    'few'
    """
    for text in [texts] if isinstance(texts, str) else texts:
        try:
            return _filled(_LINE_END.sub(" ", _BEFORE.sub("[", text)), ledger, row).strip()
        except _AbsentError:
            continue
    return None


def sentences(name: str, ledger: Ledger) -> list[str]:
    """Write those of the texts of a screen that count."""
    return [said for texts in SCREENS[name] if (said := sentence(texts, ledger)) is not None]


def first_key(texts: str | Sequence[str]) -> str:
    """Return the key that texts name first."""
    match = _FIGURE.search(texts if isinstance(texts, str) else "".join(texts))
    assert match is not None
    return match[1]


def interval(low: float, high: float | None, written: Callable[[float], str]) -> str:
    """Write an interval, whose upper end may not be known.

    >>> interval(1.5, 2.0, str), interval(1.5, None, str)
    ('1.5 to 2.0', '1.5 or more')
    """
    return f"{written(low)} or more" if high is None else f"{written(low)} to {written(high)}"


def _filled(text: str, ledger: Ledger, row: str) -> str:
    def put(part: re.Match[str]) -> str:
        if part[1] is not None:
            return _figure(part[1], ledger, row)
        try:
            return _filled(part[2], ledger, row)
        except _AbsentError:
            return ""

    return _PART.sub(put, text)


def _figure(name: str, ledger: Ledger, row: str) -> str:
    if name[0] in "?!":
        if _holds(name[1:], ledger, row) is (name[0] == "!"):
            raise _AbsentError
        return ""
    key, _, form = name.partition(":")
    key = f"{row}{key}" if key.startswith(".") else key
    value = ledger.value(key)
    if value is None:
        raise _AbsentError
    if form in _OF_FIGURES:
        return _OF_FIGURES[form](key, ledger)
    if form:
        return FORMATS[form](value)
    return record_of(key).written(value) if general(key) in RECORDS else f"{value}"


def _holds(condition: str, ledger: Ledger, row: str) -> bool:
    compared = _COMPARED.fullmatch(condition)
    key = compared[1] if compared else condition
    value = ledger.value(f"{row}{key}" if key.startswith(".") else key)
    if compared is None or value is None:
        return bool(value)
    if compared[2] == "=":
        return bool(value == compared[3])
    other = float(compared[3]) if compared[3][0].isdigit() else ledger.value(compared[3])
    return other is not None and bool(value < other if compared[2] == "<" else value > other)


def _with_interval(key: str, ledger: Ledger) -> str:
    figure, written = ledger[key], record_of(key).written
    between = "" if figure.low is None else f" ({interval(figure.low, figure.high, written)})"
    return f"{written(figure.value)}{between}"


def _if_unsettled(key: str, ledger: Ledger) -> str:
    block, _, rest = key.partition(".")
    if rest not in ledger.value(f"{block}.unsettled"):
        return record_of(key).written(ledger.value(key))
    return _with_interval(key, ledger).replace(")", ": not settled)")


_OF_FIGURES: dict[str, Callable[[str, Ledger], str]] = {
    "interval": _with_interval,
    "if_unsettled": _if_unsettled,
}
