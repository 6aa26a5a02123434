"""What programs pass to the functions of kvplan, checked and written as options are."""

from collections.abc import Callable, Iterable, Mapping
from enum import StrEnum
from io import BytesIO
from itertools import islice
from numbers import Real
from operator import index
from os import PathLike, fspath
from pathlib import Path
from types import NoneType
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

from kvplan.axes import MAX_POINTS
from kvplan.errors import UsageError, shown
from kvplan.ingest.trace.replay import with_trace
from kvplan.model.slo import parse_slo
from kvplan.profile.reading import Profile, load_profile
from kvplan.sweeps.vary import MAX_LISTED

_Options = TypeVar("_Options")
_TIMES = ("think", "load_time", "interval", "horizon")  # options whose numbers are seconds


def profile(value: object) -> Profile:
    """Return a profile, which is loaded where its path or name is given."""
    if isinstance(value, Profile):
        return value
    if isinstance(inside := getattr(value, "profile", None), Profile):  # of a plan, or of files
        return inside
    if value is not None and not isinstance(value, str | PathLike):
        raise UsageError(f"a profile is wanted, or its path or name, not {_seen(value)}")
    return with_trace(load_profile(None if value is None else fspath(value), stdin=BytesIO()))


def with_slos(loaded: Profile, slo: Any) -> Profile:
    """Return a profile with further objectives, which take the place of its own on the same figure."""
    return loaded.with_slos(map(parse_slo, texts(slo, "slo")))


def services(value: Any) -> list[str | Profile]:
    """Return models or profiles: one, or several in a list."""
    some = (
        [value]
        if isinstance(value, str | PathLike | Profile) or not isinstance(value, Iterable)
        else list(value)
    )
    for service in some:
        if not isinstance(service, str | PathLike | Profile):
            raise UsageError(f"a model is wanted, or profiles, not {_seen(service)}")
    if not some:
        raise UsageError("a model is wanted, or profiles, not an empty list")
    return [service if isinstance(service, Profile) else fspath(service) for service in some]


def text(value: Any, name: str) -> str:
    """Return a value as an option has it: several with commas, values by name as ``NAME=VALUE``.

    >>> text([1, 2], "tp"), text({"H100": 3, "H200": 3.8}, "gpu_hour"), text(0.2, "headroom")
    ('1,2', 'H100=3,H200=3.8', '0.2')
    """
    if isinstance(value, str):
        return value
    if isinstance(value, Mapping):
        return ",".join(f"{key}={each}" for key, each in value.items())
    if isinstance(value, PathLike):
        return str(fspath(value))
    if isinstance(value, Real) and not isinstance(value, bool):
        return str(value)
    if isinstance(value, Iterable):
        return ",".join(map(str, value))
    raise UsageError(f"{name}: a number or a text is wanted, not {_seen(value)}")


def time(value: Any, name: str) -> str:
    """Return a time as an option has it; a number is one of seconds.

    >>> time(30, "think"), time("2 min", "think")
    ('30 s', '2 min')
    """
    return value if isinstance(value, str) else f"{text(value, name)} s"


def number(value: Any, name: str) -> float:
    """Return a number."""
    if isinstance(value, Real) and not isinstance(value, bool):
        return float(value)
    raise UsageError(f"{name}: a number is wanted, not {_seen(value)}")


def texts(value: Any, name: str) -> list[str]:
    """Return texts in a list, or a single one."""
    return [value] if isinstance(value, str) else names(value, name)


def whole(value: Any, name: str) -> int:
    """Return a whole number, one of NumPy as well.

    >>> whole(5, "requests")
    5
    """
    try:
        return index(value)
    except TypeError:
        raise UsageError(f"{name}: a whole number is wanted, not {_seen(value)}") from None


def choice(value: object, name: str, known: Iterable[str]) -> str:
    """Return one of the words that are known."""
    words = [*map(str, known)]
    if not isinstance(value, str) or value not in words:
        raise UsageError(f"{name} {_seen(value)} does not exist; there are {', '.join(words)}")
    return str(value)


def check_positive(value: Any, name: str) -> None:
    """Refuse what is no whole number from 1 on, where anything is given."""
    if value is not None and whole(value, name) < 1:
        raise UsageError(f"{name} {_seen(value)}: 1 or more")


def record(kind: Callable[..., _Options], given: Mapping[str, Any]) -> _Options:
    """Fill a record of options with arguments of the same names, each read by the type of its field."""
    types = get_type_hints(kind)
    return kind(**{name: _read(given[name], name, type_) for name, type_ in types.items()})


def _read(value: Any, name: str, kind: Any) -> Any:
    if NoneType in get_args(kind):
        if value is None:
            return None
        kind = get_args(kind)[0]
    elif value is None:
        raise UsageError(f"{name}: a value is wanted, not {_seen(value)}")
    if kind is str:
        return (time if name in _TIMES else text)(value, name)
    if kind is float:
        return number(value, name)
    if kind is int:
        return whole(value, name)
    if kind is Path:
        return path(value, name)
    if get_origin(kind) is tuple:
        return tuple(pairs(value, name))
    return kind(choice(value, name, kind)) if issubclass(kind, StrEnum) else value


def path(value: object, name: str) -> Path:
    """Return a path."""
    if isinstance(value, str | PathLike):
        return Path(value)
    raise UsageError(f"{name}: a path is wanted, not {_seen(value)}")


def paths(value: Any, name: str) -> list[str]:
    """Return paths in a list, or a single one."""
    some = [value] if isinstance(value, str | PathLike) or not isinstance(value, Iterable) else value
    return [str(path(each, name)) for each in some]


def names(value: Any, name: str) -> list[str]:
    """Return names in a list, or in one text with commas as options have them.

    >>> names("greedy, vllm", "policies"), names(("vllm",), "policies")
    (['greedy', 'vllm'], ['vllm'])
    """
    if isinstance(value, str):
        return [part.strip() for part in value.split(",") if part.strip()]
    listed: list[Any] = list(value) if isinstance(value, Iterable) else [None]
    if not all(isinstance(each, str) for each in listed):
        raise UsageError(f"{name}: a list of names is wanted, not {_seen(value)}")
    return listed


def pairs(value: Any, name: str) -> list[str]:
    """Return ``KEY=VALUE`` of a mapping, or as written in a list."""
    return assignments(value, name) if isinstance(value, Mapping) else texts(value, name)


def assignments(values: Any, name: str) -> list[str]:
    """Return ``KEY=VALUES`` of a mapping, at most `MAX_LISTED` of each key.

    >>> assignments({"gpu.memory_tokens": range(1000, 3001, 1000), "timing.d0": "1 ms,2 ms"}, "vary")
    ['gpu.memory_tokens=1000,2000,3000', 'timing.d0=1 ms,2 ms']
    """
    if not isinstance(values, Mapping):
        raise UsageError(f"{name}: values by key are wanted, such as a dict, not {_seen(values)}")
    return [f"{key}={_written(value, f'{name} {_seen(key)}')}" for key, value in values.items()]


def _seen(value: object) -> str:
    """Show a value on one line, which tables and arrays are not by themselves."""
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
