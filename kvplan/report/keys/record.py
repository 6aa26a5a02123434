"""The record of a key of the report: all that anybody asks about it."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

from kvplan.report.keys.evidence import ByLaw, Evidence


class Kind(StrEnum):
    """What a key holds."""

    NUMBER = "a number"
    TEXT = "text"
    TRUTH = "true or false"
    PAIR = "two numbers"
    TABLE = "a table"  # with keys of its own that have no records


class Warm(NamedTuple):
    """What a record says in place of its own where a prefix cache finds what requests have in common."""

    formula: str | ByLaw
    here: Callable[[Evidence], str] | None = None
    absent: str = ""


@dataclass(frozen=True, slots=True)
class Record:
    """A key of the report.

    Attributes
    ----------
    key
        As the contract writes it; entries of lists as ``[]``.
    meaning
        One sentence.
    formula
        With the symbols of the papers; empty where there is nothing to compute. Two where it is of the iteration time.
    here
        The right-hand side of the formula with a profile's numbers; "" where it has none in this case. None where no
        formula leads to the value.
    source
        Paper key and equation, or ``new``.
    symbol
        By which other formulas call the number.
    unit
        Of a number; empty for a ratio and for a count of nothing in particular.
    absent
        Why the value can be null; empty where it never is.
    kind, allowed
        What it holds; and all words that a text can be, where that is not anything.
    whole
        The number is whole.
    least, most
        Between which a number lies in every report.
    basis
        How it is known, where that is not what the report says of its block.
    by_class
        A list with an entry for each class, in the order of the profile; so is every list called ``classes``.
    of_worst_window
        Where rates vary over time, it is about the worst window.
    in_contract
        Other programs see it; otherwise it stands beside the contract, for text and Markdown only.
    warm
        Formula, numbers and absence with a prefix cache that finds something; None: the same.
    """

    key: str
    meaning: str
    formula: str | ByLaw = ""
    here: Callable[[Evidence], str] | None = None
    source: str = ""
    symbol: str = ""
    unit: str = ""
    absent: str = ""
    kind: Kind = Kind.NUMBER
    allowed: tuple[str, ...] = ()
    whole: bool = False
    least: float = 0.0
    most: float = math.inf
    basis: str = ""
    by_class: bool = False
    of_worst_window: bool = False
    in_contract: bool = True
    warm: Warm | None = None

    @property
    def block(self) -> str:
        """The block of the report that it belongs to."""
        return self.key.partition(".")[0].removesuffix("[]")

    @property
    def list_key(self) -> str:
        """The list that it is, or is in the entries of; empty outside of any."""
        head, bracket, _ = self.key.partition("[]")
        return head if bracket else ""

    @property
    def is_by_class(self) -> bool:
        """Whether its list has an entry for each class."""
        return self.by_class or self.list_key.endswith(".classes")


@dataclass(frozen=True, slots=True)
class Block:
    """A block of the report with the records of its keys, in the order of the contract.

    `absent` says why the block as a whole can be null, `nullable` that it can in this version; `has_source`, that
    `sources` says how its numbers are known.
    """

    name: str
    meaning: str
    records: tuple[Record, ...]
    absent: str = "This version of kvplan does not compute the block."
    has_source: bool = True
    nullable: bool = False


def class_name(block: str) -> Record:
    """The record of the names in a list of classes."""
    return Record(
        f"{block}.classes[].name", "Name of the class, in the order of the profile.", kind=Kind.TEXT
    )
