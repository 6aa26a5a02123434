"""What programs pass to `kvplan.load`, `analyze`, `simulate` and `sweep`, checked and written as options are."""

from collections.abc import Iterable, Mapping
from itertools import islice
from operator import index
from os import PathLike
from pathlib import Path
from typing import Any

from kvplan.errors import UsageError, shown
from kvplan.profile.reading import Profile
from kvplan.sweeps.vary import MAX_LISTED, MAX_POINTS


def profile(value: object) -> Profile:
    """A loaded profile.

    Raises
    ------
    UsageError
        It is anything else, such as a name.
    """
    if isinstance(value, Profile):
        return value
    raise UsageError(f"a profile is wanted, as kvplan.load gives it, not {_seen(value)}")


def whole(value: Any, name: str) -> int:
    """A whole number, one of NumPy as well.

    Raises
    ------
    UsageError
        It is not.

    Examples
    --------
    >>> whole(5, "requests")
    5
    """
    try:
        return index(value)
    except TypeError:
        raise UsageError(f"{name}: a whole number is wanted, not {_seen(value)}") from None


def path(value: object, name: str) -> Path:
    """Where a file is.

    Raises
    ------
    UsageError
        It is no path.
    """
    if isinstance(value, str | PathLike):
        return Path(value)
    raise UsageError(f"{name}: a path is wanted, not {_seen(value)}")


def names(value: Any, name: str) -> list[str]:
    """Names in a list, or in one text with commas as options have them.

    Raises
    ------
    UsageError
        It is neither.

    Examples
    --------
    >>> names("greedy, vllm", "policies"), names(("vllm",), "policies")
    (['greedy', 'vllm'], ['vllm'])
    """
    if isinstance(value, str):
        return [part.strip() for part in value.split(",") if part.strip()]
    found = list(value) if isinstance(value, Iterable) else None
    if found is None or not all(isinstance(one, str) for one in found):
        raise UsageError(f"{name}: a list of names is wanted, not {_seen(value)}")
    return found


def assignments(values: Any, name: str) -> list[str]:
    """``KEY=VALUES`` of a mapping.

    Raises
    ------
    UsageError
        It is no mapping, or a key has more than `MAX_LISTED` values.

    Examples
    --------
    >>> assignments({"gpu.memory_tokens": range(1000, 3001, 1000), "timing.d0": "1 ms,2 ms"}, "vary")
    ['gpu.memory_tokens=1000,2000,3000', 'timing.d0=1 ms,2 ms']
    """
    if not isinstance(values, Mapping):
        raise UsageError(f"{name}: values by key are wanted, such as a dict, not {_seen(values)}")
    return [f"{key}={_written(value, f'{name} {_seen(key)}')}" for key, value in values.items()]


def _seen(value: object) -> str:
    """On one line, which tables and arrays are not by themselves."""
    return " ".join(shown(value).split())


def _written(value: Any, place: str) -> str:
    if isinstance(value, str) or not isinstance(value, Iterable):
        return str(value)
    try:
        count = len(value)  # type: ignore[arg-type]
    except (TypeError, OverflowError):  # a generator; or more than a length can be
        count = None
    if count is not None and count > MAX_LISTED:
        _refuse(place, f"{count:,}")
    if hasattr(value, "tolist"):
        value = value.tolist()
        if not isinstance(value, list):  # an array of no dimensions
            return str(value)
    found = list(islice(value, MAX_LISTED + 1))
    if len(found) > MAX_LISTED:
        _refuse(place, f"more than {MAX_LISTED:,}")
    return ",".join(map(str, found))


def _refuse(place: str, count: str) -> None:
    raise UsageError(
        f"{place}: {count} values; {MAX_LISTED:,} is the most in a list, and {MAX_POINTS:,} in a range "
        "'LOW:HIGH:COUNT'"
    )
