"""The demand that a service has to meet, and the tables of a profile that state it."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from kvplan.errors import UsageError
from kvplan.model import Recorded
from kvplan.ranges import MAX_TOKENS
from kvplan.units import COUNT_UNITS, parse_exact

DEFAULT_CV = 0.95  # of lengths: of five public traces .15 to 1.31, mostly near 1
_THINK_S = 30.0  # between turns, where nobody says
_TURNS = re.compile(
    r"(?:([0-9]{1,9})(?:\.\.([0-9]{1,9}):uniform)?|([0-9]{1,9}(?:\.[0-9]{1,9})?):geometric)", re.ASCII
)
_MOST_TURNS, _MOST_MEAN = 1000, 100


@dataclass(frozen=True, slots=True)
class Length:
    """Tokens of prompts or answers: log-normal about a mean; all alike where cv is 0."""

    mean: float
    cv: float = DEFAULT_CV

    @property
    def law(self) -> object:
        """The value of a key in a profile."""
        if self.cv == 0:
            return round(self.mean)
        mean = round(self.mean) if self.mean == round(self.mean) else self.mean
        return {"lognormal": {"mean": mean, "cv": self.cv}}


@dataclass(frozen=True, slots=True)
class Turns:
    """Turns of a conversation: their mean, and the value of a key in a profile."""

    mean: float = 1.0
    law: object = 1


@dataclass(frozen=True, slots=True)
class Replay:
    """Requests of a trace, which are replayed: `tables` of a profile that refer to it, what it holds, its name."""

    tables: Mapping[str, Any]
    recorded: Recorded
    source: str

    users = None

    @property
    def origin(self) -> object:
        """The value of [provenance] workload."""
        return {"basis": "measured", "source": self.source}


def parse_length(text: str, option: str) -> Length:
    """Read ``3000`` or ``3000:0.8``, a mean and a coefficient of variation.

    Examples
    --------
    >>> parse_length("3000:0.8", "--in"), parse_length("400", "--out").cv
    (Length(mean=3000.0, cv=0.8), 0.95)
    """
    mean, colon, cv = text.partition(":")
    try:
        length = Length(float(parse_exact(mean, COUNT_UNITS)), float(cv) if colon else DEFAULT_CV)
    except (UsageError, ValueError):
        length = Length(0.0)
    if not (1 <= length.mean <= MAX_TOKENS and (length.cv == 0 or 1e-3 <= length.cv <= 10)):
        raise UsageError(
            f"{option} {text[:40]!r}: tokens are wanted, or tokens:cv, such as 3000, 3k or 3000:0.8 "
            f"(1 to {MAX_TOKENS:,}; cv 0, or 0.001 to 10)"
        )
    return length


def parse_turns(text: str) -> Turns:
    """Read ``20``, ``8:geometric`` or ``5..40:uniform``.

    Examples
    --------
    >>> parse_turns("20"), parse_turns("5..40:uniform")
    (Turns(mean=20.0, law=20), Turns(mean=22.5, law={'uniform': [5, 40]}))
    """
    if match := _TURNS.fullmatch(text.strip()):
        low, high = int(match[1] or 0), int(match[2] or match[1] or 0)
        if match[3] is not None and 1 <= (mean := float(match[3])) <= _MOST_MEAN:
            return Turns(mean, {"geometric": mean})
        if match[3] is None and 1 <= low <= high <= _MOST_TURNS:
            return Turns((low + high) / 2, {"uniform": [low, high]} if match[2] else low)
    law = f"a law, such as 8:geometric (mean 1 to {_MOST_MEAN}) or 5..40:uniform"
    raise UsageError(f"--turns {text[:40]!r}: 1 to {_MOST_TURNS:,}, or {law}")


@dataclass(frozen=True, slots=True)
class Demand:
    """Demand on all replicas together.

    Attributes
    ----------
    rate_rps
        Requests/s, or turns/s of conversations; None: `users` ask.
    users
        A closed population: each asks, reads the answer, thinks, and asks again.
    prompt, answer
        Lengths; of conversations what each turn adds, and its answer.
    system_prompt
        Tokens that all prompts begin with.
    turns
        Of a conversation; each carries all that came before.
    """

    prompt: Length
    answer: Length
    rate_rps: float | None = None
    users: int | None = None
    think_s: float | None = None
    system_prompt: int = 0
    turns: Turns = Turns()

    @property
    def is_conversation(self) -> bool:
        """True where requests have prefixes in common."""
        return self.turns.mean > 1 or self.system_prompt > 0 or self.users is not None

    @property
    def assumes_spread(self) -> bool:
        """True where nobody said how much lengths vary."""
        return DEFAULT_CV in (self.prompt.cv, self.answer.cv)

    @property
    def origin(self) -> object:
        """Value of [provenance] workload: what nobody said."""
        lengths = {"prompts": self.prompt, "answers": self.answer}
        of = [name for name, length in lengths.items() if length.cv == DEFAULT_CV]
        source = f"spread of {' and '.join(of)} assumed: log-normal, cv {DEFAULT_CV}"
        return {"basis": "stated", "source": source} if of else None

    def with_cv(self, cv: float) -> "Demand":
        """Return the same demand with another cv of lengths, where nobody said how much they vary."""

        def other(length: Length) -> Length:
            return Length(length.mean, cv) if length.cv == DEFAULT_CV else length

        return replace(self, prompt=other(self.prompt), answer=other(self.answer))

    def with_prompts(self, share: float) -> "Demand":
        """Return the same demand with prompts of a share of the length."""
        return replace(self, prompt=Length(max(1.0, self.prompt.mean * share), self.prompt.cv))

    @property
    def tables(self) -> dict[str, list[dict[str, Any]]]:
        """The tables of a profile that state the demand."""
        if not self.is_conversation:
            table = {"name": "requests", "input": self.prompt.law, "decode": self.answer.law}
            return {"classes": [{**table, "rate": self.rate_rps}]}
        asked = {"users": self.users} if self.rate_rps is None else {"rate": self.rate_rps / self.turns.mean}
        think = _THINK_S if self.think_s is None else self.think_s
        table = {
            "name": "conversations" if self.turns.mean > 1 else "requests",
            **asked,
            "shared": self.system_prompt,
            "first": self.prompt.law,
            "user": self.prompt.law,
            "decode": self.answer.law,
            "turns": self.turns.law,
            "think": {"law": "exponential", "mean": f"{think:g} s"},
        }
        return {"sessions": [table]}
