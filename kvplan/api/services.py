"""Profiles, models and files that are given to functions, as paths, as names, or as they are."""

from collections.abc import Callable, Iterable
from functools import partial
from io import BytesIO
from os import PathLike, fspath
from pathlib import Path
from typing import Any

from kvplan.arguments import seen
from kvplan.errors import UsageError
from kvplan.ingest.trace.replay import read_trace, with_trace
from kvplan.options import SimulateOptions
from kvplan.profile.reading import Profile, load_profile
from kvplan.simulation.requests import Requests, requests_of

_LARGE, _BYTES_EACH = 2 * 10**7, 60  # requests of all runs, and what each takes


def profile(value: object) -> Profile:
    """Return a profile, which is loaded where its path or name is given."""
    if isinstance(value, Profile):
        return value
    if isinstance(inside := getattr(value, "profile", None), Profile):  # of a plan, or of files
        return inside
    if value is not None and not isinstance(value, str | PathLike):
        raise UsageError(f"a profile is wanted, or its path or name, not {seen(value)}")
    return with_trace(load_profile(None if value is None else fspath(value), stdin=BytesIO()))


def several(value: Any) -> list[str | Profile]:
    """Return models or profiles: one, or several in a list."""
    alone = isinstance(value, str | PathLike | Profile) or not isinstance(value, Iterable)
    services = [value] if alone else list(value)
    for service in services:
        if not isinstance(service, str | PathLike | Profile):
            raise UsageError(f"a model is wanted, or profiles, not {seen(service)}")
    if not services:
        raise UsageError("a model is wanted, or profiles, not an empty list")
    return [service if isinstance(service, Profile) else fspath(service) for service in services]


def paths(value: Any, name: str) -> list[str]:
    """Return paths in a list, or a single one."""
    given = [value] if isinstance(value, str | PathLike) or not isinstance(value, Iterable) else list(value)
    for path in given:
        if not isinstance(path, str | PathLike):
            raise UsageError(f"{name}: a path is wanted, not {seen(path)}")
    return [str(Path(path)) for path in given]


def recorded(asked: SimulateOptions, most: int | None) -> Callable[[], Requests] | None:
    """Return what reads the requests that are to be replayed, and tells what was left out of them."""
    return None if asked.trace is None else partial(_replayed, asked, asked.trace, most)


def _replayed(asked: SimulateOptions, trace: Path, most: int | None) -> Requests:
    replay = read_trace(trace)
    if asked.note:
        for note in replay.notes:
            asked.note(note)
    return requests_of(replay.recorded.within(most))


def warn_of_memory(asked: SimulateOptions, requests: int) -> None:
    """Tell how much memory so many requests of all runs take, where that is a lot."""
    if requests >= _LARGE and asked.note:
        asked.note(f"{requests:,} requests in all take some {requests * _BYTES_EACH / 1e9:.2g} GB of memory")
