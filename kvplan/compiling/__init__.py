"""Compiled functions, and the folder in which they are kept between processes.

A file that is damaged, or cannot be written, costs a compilation and a line on standard error; never a result.
"""

import hashlib
import inspect
import os
import stat
import sys
import tempfile
from collections.abc import Callable, Iterable
from functools import cache
from types import ModuleType
from typing import Any

from kvplan.version import __version__

_DIGEST = hashlib.sha256


@cache
def folder() -> str | None:
    """Return where compiled code is kept: of one user, version and Python; None, and a note, where there is no place.

    In `$KVPLAN_CACHE_DIR`, else in `$XDG_CACHE_HOME/kvplan`, if that is an absolute path, else in `~/.cache/kvplan`.
    """
    caches = os.environ.get("XDG_CACHE_HOME", "")
    if not os.path.isabs(caches):
        caches = os.path.join("~", ".cache")
    base = os.environ.get("KVPLAN_CACHE_DIR") or os.path.join(caches, "kvplan")
    whose = f"{__version__}-{sys.implementation.cache_tag}-{os.getuid()}"
    path = os.path.abspath(os.path.join(os.path.expanduser(base), whose))
    try:
        os.makedirs(path, mode=0o700, exist_ok=True)
        open_to = _open_to_others(os.path.realpath(path))
    except OSError as error:
        _say_not_kept(path, error.strerror)
        return None
    # What is read there is run: it has to be ours, and nobody else's to write.
    if not open_to:
        return path
    _say_not_kept(
        path, f"others could write to {'it' if open_to == os.path.realpath(path) else repr(open_to)}"
    )
    return None


def _open_to_others(path: str) -> str:
    """Return the first of a folder and those around it that others could change, as ssh checks them; empty where none.

    A folder in which all may write, but nobody moves what is another's (``/tmp``), may be around it.
    """
    place = path
    while True:
        status = os.stat(place)
        sticky = place != path and status.st_mode & stat.S_ISVTX
        if not _is_ours(status, root=place != path) and not (sticky and status.st_uid in (0, os.getuid())):
            return place
        if (place := os.path.dirname(place)) == os.path.dirname(place):
            return ""


def _is_ours(status: os.stat_result, *, root: bool = False) -> bool:
    """Tell whether only we can write there, or also `root`."""
    return status.st_uid in (os.getuid(), *([0] if root else [])) and not status.st_mode & 0o022


def lasts() -> bool:
    """Return whether what is compiled now is kept."""
    path = folder()
    return path is not None and os.access(path, os.W_OK)


def file(name: str, modules: Iterable[ModuleType], which: str = "") -> str | None:
    """Return where code made of these modules is kept; None where none is kept."""
    from kvplan.compiling import native, translate

    path = folder()
    if path is None:
        return None
    texts = sorted(inspect.getsource(module) for module in {*modules, native, translate})
    digest = _DIGEST("\0".join((which, native.machine(), *texts)).encode()).hexdigest()
    return os.path.join(path, f"{name}-{digest[:32]}")


def compiled(
    loop: Callable[..., int],
    state: type[tuple[Any, ...]],
    kept: str | None,
    constants: dict[Callable[..., Any], bool],
    goes_on: Callable[[], bool] = lambda: True,
) -> Callable[..., int] | None:
    """Compile a loop on a state to machine code, or read it from a file; None if `goes_on` says no.

    See `kvplan.compiling.translate` for what a loop, a state and `constants` are.
    """
    from kvplan.compiling import native

    code = load(kept)
    if code is not None and not native.is_object(code):
        _say_damaged(str(kept))
        code = None
    if code is None:
        from kvplan.compiling.translate import translated

        code = native.object_code(translated(loop, state, constants), goes_on)
        if code is None:
            return None
        save(kept, code)
    return native.Loop(code, len(inspect.signature(loop).parameters) - 1)


def load(file: str | None) -> bytes | None:
    """Return kept code, if it is whole."""
    if file is None or not os.path.isfile(file):
        return None
    try:
        with open(file, "rb") as stream:
            if not _is_ours(os.fstat(stream.fileno())):
                _say_not_kept(os.path.dirname(file), f"others could write to {os.path.basename(file)!r}")
                return None
            content = stream.read()
    except FileNotFoundError:
        return None
    except OSError as error:
        _say(f"compiled code in {os.path.dirname(file)!r} cannot be read, compiling again: {error.strerror}")
        return None
    size = _DIGEST().digest_size
    if _DIGEST(content[size:]).digest() == content[:size]:
        return content[size:]
    _say_damaged(file)
    return None


def save(file: str | None, content: bytes) -> None:
    """Keep it, if that is possible."""
    if file is None:
        return
    path, temporary = os.path.dirname(file), None
    try:
        with tempfile.NamedTemporaryFile(dir=path, prefix=".", delete=False) as stream:
            temporary = stream.name
            stream.write(_DIGEST(content).digest() + content)
        os.replace(temporary, file)
    except OSError as error:
        _say_not_kept(path, error.strerror)
    finally:
        if temporary is not None and os.path.exists(temporary):
            os.unlink(temporary)


def _say_not_kept(folder: str, why: str | None) -> None:
    _say(f"compiled code cannot be kept in {folder!r}, later runs compile again: {why}")


def _say_damaged(file: str) -> None:
    _say(f"compiled code in {os.path.dirname(file)!r} was damaged, compiling again")


@cache
def _say(message: str) -> None:
    import logging

    logging.getLogger("kvplan").warning("note: %s", message)  # on standard error, unless a program listens
