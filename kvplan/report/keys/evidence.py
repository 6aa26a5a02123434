"""The numbers that the formula of a key is filled with, and which of them it has named."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from kvplan.units import format_number

DIGITS = 6  # enough to follow a calculation
_MAX_TERMS = 8  # of a sum that is written out

Value = float | int | bool | str | None


class Figure(NamedTuple):
    """A number that formulas name and the report does not hold; `symbol` may be empty."""

    symbol: str
    meaning: str
    value: Value


class Symbol(NamedTuple):
    """A symbol of the formula; `value` is empty where it differs from row to row, `meaning` for keys of the report."""

    symbol: str
    value: str
    meaning: str


class ByLaw(NamedTuple):
    """A formula for a linear iteration-time law, and for any other."""

    linear: str
    other: str


class NoNumberError(Exception):
    """A number that the formula needs is null."""


@dataclass(frozen=True)
class Evidence:
    """What the numbers of a formula are taken from: the report, figures of the model, and perhaps one entry of a list.

    Called with a name, it gives the number as text and notes that the formula names it. An entry's own figures go
    before those of the model.

    Attributes
    ----------
    document
        The report, as `kvplan.report.assembly.to_document` returns it.
    figures
        Of the model, by name.
    entries
        For lists of the report, by their key, the figures of each entry.
    symbols
        By which formulas call each key of the report; empty where they have none for it.
    is_linear
        Whether the iteration-time law is.
    head, k
        The list and which of its entries this is; an empty string outside of any.
    named
        What was asked for so far, in that order.

    Examples
    --------
    >>> evidence = Evidence({"load": {"work_rate": 0.25}}, {"d0": Figure("d0", "s", 3.0)}, {}, {"load.work_rate": "Λ"})
    >>> f"{evidence('d0')} / (1 − {evidence('load.work_rate')})"
    '3 / (1 − 0.25)'
    >>> list(evidence.named.values())
    [Symbol(symbol='d0', value='3', meaning='s'), Symbol(symbol='Λ', value='0.25', meaning='load.work_rate')]
    """

    document: Mapping[str, Any]
    figures: Mapping[str, Figure]
    entries: Mapping[str, Sequence[Mapping[str, Figure]]]
    symbols: Mapping[str, str]
    is_linear: bool = True
    head: str = ""
    k: int = 0
    named: dict[str, Symbol] = field(default_factory=dict)

    def __call__(self, name: str, digits: int = DIGITS) -> str:
        """A figure, or a key of the report by its full name.

        Raises
        ------
        NoNumberError
            It is null.
        """
        if "." in name:
            symbol, text = self.symbols[name], _known(at(self.document, name), digits)
            self.named[name] = Symbol(symbol, text, name) if symbol else Symbol(name, text, "")
            return text
        own = self.entries[self.head][self.k] if self.head in self.entries else {}
        figure = own[name] if name in own else self.figures[name]
        text = _known(figure.value, digits)
        place = f"{self.head}[].{name}" if name in own else name
        self.named[place] = Symbol(figure.symbol, "" if name in own else text, figure.meaning)
        return text

    @property
    def entry(self) -> Any:
        """What the report has at this entry of the list."""
        return at(self.document, self.head)[self.k]

    def here(self, name: str, digits: int = DIGITS) -> str:
        """A field of this entry."""
        return _known(self.entry[name], digits)

    def before(self, name: str) -> str:
        """A field of the entry before."""
        return _known(at(self.document, self.head)[self.k - 1][name] if self.k else None)

    def each(self, head: str) -> "list[Evidence]":
        """The same at every entry of a list of the report."""
        return [replace(self, head=head, k=k) for k in range(len(at(self.document, head) or ()))]

    def total(self, head: str, term: "Callable[[Evidence], str]") -> str:
        """A sum over a list of the report, written out."""
        terms = [term(entry) for entry in self.each(head)]
        if not terms:
            raise NoNumberError
        return listed(terms, " + ")


def at(value: Any, path: str) -> Any:
    """What stands at a dotted path; None below None, and for keys that are not there."""
    for key in path.split("."):
        value = value.get(key) if isinstance(value, dict) else None
    return value


def written(value: Value, digits: int = DIGITS) -> str:
    """A value as explanations show it."""
    if isinstance(value, bool):
        return str(value).lower()
    return value if isinstance(value, str) else format_number(value, digits)


def listed(words: Sequence[str], between: str = ", ") -> str:
    """At most eight words, with an ellipsis for the rest."""
    return between.join([*words[:_MAX_TERMS], "…"] if len(words) > _MAX_TERMS else words)


def _known(value: Value, digits: int = DIGITS) -> str:
    if value is None:
        raise NoNumberError
    return written(value, digits)
