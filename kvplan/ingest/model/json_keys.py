"""A config.json read key by key, each with its type and range; what does not fit is named with its key."""

import json
import re
import reprlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kvplan.errors import ProfileError, UsageError
from kvplan.ingest.model.hardware import plain, tables
from kvplan.ingest.text_file import lines_of

LARGEST = 10**9  # of a size in a model's configuration; larger ones are mistakes
_LONGEST = 80  # characters of a key
_WAY_OUT = "state kv_bytes_per_token in the profile instead"
_OFF: tuple[object, ...] = (None, False, 0, "", [], {})  # values that say nothing
_LARGEST_FILE = 16 * 2**20  # characters

_TABLE = tables("keys.toml")
_ALIASES: Mapping[str, Sequence[str]] = _TABLE["also"]
_READ = {*_TABLE["read"], *_ALIASES, *(name for names in _ALIASES.values() for name in names)}
_NO_SIZE = re.compile("|".join(f"(?:{key})" for keys in _TABLE["no_size"].values() for key in keys))
_SPEAKS = re.compile(_TABLE["speaks"])
FAMILIES: Mapping[str, Sequence[str]] = _TABLE["families"]
DEFAULTS: Mapping[str, Mapping[str, Any]] = _TABLE["defaults"]
LAYERS: Mapping[str, Mapping[str, str]] = _TABLE["layers"]


@dataclass(frozen=True, slots=True)
class Keys:
    """A JSON object and the file it came from; a value of another type is refused with its key."""

    source: str
    values: Mapping[str, Any]

    def find(self, name: str) -> tuple[str, Any]:
        """Find a key by any of its names; its value is None where missing or null."""
        present = (key for key in (name, *_ALIASES.get(name, ())) if self.values.get(key) is not None)
        key = next(present, name)
        return key, self.values.get(key)

    def has(self, name: str) -> bool:
        """Tell if the key is there, and not null."""
        return self.find(name)[1] is not None

    def require(self, *names: str) -> None:
        """Refuse an object without these keys, naming all that are missing."""
        if missing := [name for name in names if not self.has(name)]:
            has = f"the config.json of a language model has {', '.join(names)}"
            raise UsageError(f"{self.source}: misses {', '.join(missing)}; {has}")

    def size(self, name: str, default: int | None = None, least: int = 1, most: int = LARGEST) -> int:
        """Read a whole number from `least` to `most`, or the same for each layer; required without a default."""
        key, value = self.find(name)
        if value is None and default is not None:
            return default
        if isinstance(value, list) and len(value) == self.values.get("num_hidden_layers"):
            value = value[0] if all(number == value[0] for number in value) else value
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
            raise self.error(key, f"{shown(value)}; must be a whole number from {least} to {most:,}")
        return value

    def optional_size(self, name: str) -> int | None:
        """Read a whole number from 1 on; None where missing, null or 0, which switch a feature off."""
        return self.size(name, default=0, least=0) or None

    def flag(self, name: str, *, default: bool) -> bool:
        """True or false."""
        return bool(self._typed(name, bool, "true or false", default))

    def text(self, name: str) -> str:
        """Read a string, lower case; empty where missing."""
        return str(self._typed(name, str, "a string", "")).lower()

    def table(self, name: str) -> "Keys | None":
        """An object within the object."""
        value = self._typed(name, dict, "an object", None)
        return None if value is None else Keys(self.source, value)

    def words(self, name: str, kind: type = str, what: str = "strings") -> list[Any] | None:
        """A list of strings."""
        value: list[Any] | None = self._typed(name, list, f"a list of {what}", None)
        if value is not None and not all(isinstance(item, kind) for item in value):
            raise self.error(self.find(name)[0], f"a list; must be a list of {what}")
        return value

    def numbers(self, name: str) -> list[int] | None:
        """A list of whole numbers."""
        return self.words(name, int, "whole numbers")

    @staticmethod
    def refuse_by_name(model: str) -> None:
        """Refuse a model that has what makes the formulas wrong, as its name says."""
        name = plain(model.rpartition("/")[2])
        for begins, key in _TABLE["refused_names"].items():
            if name.startswith(plain(begins)):
                why = _TABLE["refused"][key]
                raise UsageError(f"{model[:100]}: {why} ({key}) are not supported; {_WAY_OUT}")

    def refuse(self) -> None:
        """Refuse what makes the formulas wrong."""
        for key, why in _TABLE["refused"].items():
            if self.values.get(key) not in _OFF:
                raise self.error(key, f"{why} are not supported; {_WAY_OUT}")
        if (kind := self.text("model_type")) in _TABLE["refused_types"]:
            raise self.error(
                "model_type", f"{kind}: {_TABLE['refused_types'][kind]} are not supported; {_WAY_OUT}"
            )

    def unread(self) -> list[str]:
        """List keys that are not known, and may change no size; refuse the first that may."""
        stated = [key for key, value in self.values.items() if value not in _OFF]
        stated = [key if key.isprintable() and len(key) <= _LONGEST else shown(key) for key in stated]
        unknown = [key for key in stated if key not in _READ and not _NO_SIZE.fullmatch(key)]
        if sizes := [key for key in unknown if _SPEAKS.search(key)]:
            others = f" (so may {', '.join(sizes[1:4])})" if len(sizes) > 1 else ""
            raise self.error(sizes[0], f"not known, and may change the sizes{others}; {_WAY_OUT}")
        return unknown

    def error(self, key: str, message: str) -> ProfileError:
        """An error at a key."""
        return ProfileError(self.source, message, key=key)

    def _typed(self, name: str, kind: type, what: str, default: Any) -> Any:
        key, value = self.find(name)
        if value is None:
            return default
        if not isinstance(value, kind):
            raise self.error(key, f"{shown(value)}; must be {what}")
        return value


def shown(value: object) -> str:
    """Quote a value in a message: short, on one line, whatever it is."""
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
    """Read the JSON object in a file; refuse what is not UTF-8, or holds something else."""
    with lines_of(path) as lines:
        text = lines.rest(_LARGEST_FILE + 1)
        if len(text) > _LARGEST_FILE:
            raise UsageError(f"{path}: larger than 16 MiB; is this a config.json?")
    return parse_object(text, str(path))


def parse_object(text: str, source: str) -> Keys:
    """Read a text as a JSON object."""
    try:
        value = json.loads(text)
    except json.JSONDecodeError as error:
        message = f"not JSON: {error.msg}; is the file cut off?"
        raise ProfileError(source, message, line=error.lineno) from None
    except (ValueError, RecursionError):  # a number with thousands of digits; brackets nested that deep
        message = "not JSON that can be read: too many digits or too deeply nested"
        raise UsageError(f"{source}: {message}") from None
    if not isinstance(value, dict):
        raise UsageError(f"{source}: {shown(value)}; must be a JSON object, as in {{…}}")
    return Keys(source, value)
