"""The error tree and the exit codes.

::

    exit 0    done
    exit 1    a gate failed
    exit 2    UsageError            bad usage, profile or file
                ├── ProfileError    the profile: file, line, key path
                └── OutputError     a result that could not be written
    exit 3    EngineError           what kvplan was told to run on has failed
              anything else         kvplan itself failed
    exit 130  interrupted
"""

import reprlib
from collections.abc import Iterable, Sequence
from enum import IntEnum


class ExitCode(IntEnum):
    """Exit codes of the process; other programs branch on these."""

    DONE = 0
    GATE_FAILED = 1
    USAGE = 2
    INTERNAL = 3
    INTERRUPTED = 130


class UsageError(Exception):
    """Something the user gave is not usable; the message says what and what is allowed.

    `others` are further errors of the same file, in its order.
    """

    others: "tuple[UsageError, ...]" = ()


class EngineError(Exception):
    """An executor has failed: its scheduler is gone, or workers die again and again."""


class OutputError(UsageError):
    """A result could not be written where it was asked for."""


class ProfileError(UsageError):
    """A profile that cannot be used; the message says what was seen and what is allowed.

    `source` is a file name, ``<stdin>``, or the name of a shipped profile; `key` a path such as ``classes[0].decode``,
    and `line` where it stands, counted from 1.
    """

    def __init__(self, source: str, message: str, *, key: str | None = None, line: int | None = None) -> None:
        self.source = source
        self.key = key
        self.line = line
        self.message = message
        place = source if line is None else f"{source}:{line}"
        super().__init__(f"{place}: {key}: {message}" if key else f"{place}: {message}")

    def with_others(self, others: "Sequence[ProfileError]") -> "ProfileError":
        """The same, and what else is wrong with the profile; Python's traceback shows all."""
        self.others = tuple(others)
        for one in others:
            self.add_note(str(one))
        return self


def shown(value: object) -> str:
    """A value as a message quotes it: short, on one line, whatever it is."""
    if isinstance(value, dict | list):
        return "a table" if isinstance(value, dict) else "a list"
    if isinstance(value, bool):
        return str(value).lower()
    if hasattr(value, "isoformat"):  # a date or a time of TOML
        return str(value.isoformat())
    try:
        return reprlib.repr(value)
    except ValueError:  # an integer beyond what Python converts to decimals
        return "a whole number with too many digits"


def did_you_mean(word: str, known: Iterable[str], what: str) -> str:
    """The end of a message about an unknown word: the nearest known one, or all there are."""
    from difflib import get_close_matches

    known = list(known)
    nearest = get_close_matches(word[:60], known, n=1)
    return f"did you mean {nearest[0]}?" if nearest else f"{what}: {', '.join(known)}"
