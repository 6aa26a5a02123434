"""A JSON object read key by key, each with its type and range; what does not fit is named with its key."""

import json
import reprlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kvplan.errors import ProfileError, UsageError
from kvplan.ingest.text_file import lines_of

LARGEST = 10**9  # of a size in a model's configuration; larger ones are mistakes
_LARGEST_FILE = 16 * 2**20  # characters


@dataclass(frozen=True, slots=True)
class Keys:
    """A JSON object and the file it came from.

    Methods take several names where writers disagree; the first one that is there and not null counts.

    Examples
    --------
    >>> keys = Keys("config.json", {"num_hidden_layers": 32, "num_key_value_heads": None})
    >>> keys.size("num_hidden_layers"), keys.size("num_key_value_heads", default=8)
    (32, 8)
    """

    source: str
    values: Mapping[str, Any]

    def require(self, *names: str) -> None:
        """Refuse an object without these keys.

        Raises
        ------
        UsageError
            With every key that is missing, not the first alone.
        """
        missing = [name for name in names if self.values.get(name) is None]
        if missing:
            raise UsageError(
                f"{self.source}: misses {', '.join(missing)}; the config.json of a language model has "
                f"{', '.join(names)}"
            )

    def size(self, *names: str, default: int | None = None, least: int = 1, most: int = LARGEST) -> int:
        """A whole number from `least` to `most`.

        Raises
        ------
        ProfileError
            It is something else, or missing where there is no default.
        """
        name, value = self._first(names)
        if value is None and default is not None:
            return default
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
            raise self.error(name, f"{shown(value)}; must be a whole number from {least} to {most:,}")
        return value

    def optional_size(self, *names: str) -> int | None:
        """A whole number of at least 1; None where it is missing, null or 0, which switch a feature off."""
        name, value = self._first(names)
        return None if value is None else self.size(name, least=0) or None

    def flag(self, name: str, *, default: bool) -> bool:
        """True or false."""
        value = self.values.get(name)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise self.error(name, f"{shown(value)}; must be true or false")
        return value

    def text(self, *names: str) -> str:
        """A string, lower case; empty where it is missing."""
        name, value = self._first(names)
        if value is None:
            return ""
        if not isinstance(value, str):
            raise self.error(name, f"{shown(value)}; must be a string")
        return value.lower()

    def words(self, *names: str) -> list[str] | None:
        """A list of strings."""
        return self._list(names, str, "strings")

    def numbers(self, *names: str) -> list[int] | None:
        """A list of whole numbers."""
        return self._list(names, int, "whole numbers")

    def table(self, *names: str) -> "Keys | None":
        """An object within the object."""
        name, value = self._first(names)
        if value is None:
            return None
        if not isinstance(value, dict):
            raise self.error(name, f"{shown(value)}; must be an object")
        return Keys(self.source, value)

    def error(self, key: str, message: str) -> ProfileError:
        """An error at a key."""
        return ProfileError(self.source, message, key=key)

    def _first(self, names: Sequence[str]) -> tuple[str, Any]:
        name = next((name for name in names if self.values.get(name) is not None), names[0])
        return name, self.values.get(name)

    def _list(self, names: Sequence[str], kind: type, what: str) -> list[Any] | None:
        name, value = self._first(names)
        if value is None:
            return None
        if not isinstance(value, list) or not all(isinstance(v, kind) for v in value):
            raise self.error(name, f"{shown(value)}; must be a list of {what}")
        return value


def shown(value: object) -> str:
    """A value as messages quote it: short, on one line, whatever it is."""
    if value is None:
        return "missing"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, dict | list):
        return "an object" if isinstance(value, dict) else "a list"
    try:
        return reprlib.repr(value)
    except ValueError:  # an integer beyond what Python converts to decimals
        return "a whole number with too many digits"


def read_object(path: Path) -> Keys:
    """The JSON object in a file.

    Raises
    ------
    UsageError
        The file cannot be read, is not text in UTF-8, or holds something else.
    """
    with lines_of(path) as lines:
        text = lines.rest(_LARGEST_FILE + 1)
        if len(text) > _LARGEST_FILE:
            raise UsageError(f"{path}: larger than 16 MiB; is this a config.json?")
    return parse_object(text, str(path))


def parse_object(text: str, source: str) -> Keys:
    """The JSON object that a text is; see `read_object`.

    Examples
    --------
    >>> parse_object('{"hidden_size": 4096}', "config.json").size("hidden_size")
    4096
    """
    try:
        value = json.loads(text)
    except json.JSONDecodeError as error:
        raise ProfileError(
            source, f"not JSON: {error.msg}; is the file cut off?", line=error.lineno
        ) from None
    except (ValueError, RecursionError):  # a number with thousands of digits; brackets nested that deep
        raise UsageError(
            f"{source}: not JSON that can be read: too many digits or too deeply nested"
        ) from None
    if not isinstance(value, dict):
        raise UsageError(f"{source}: {shown(value)}; must be a JSON object, as in {{…}}")
    return Keys(source, value)
