"""Compiled functions, and the folder in which they are kept between processes.

A file that is damaged, or cannot be written, costs a compilation and a line on standard error; never a result.
"""

import hashlib
import os
import pickle
import sys
import tempfile
from collections.abc import Callable
from functools import cache
from typing import Any

from kvplan.version import __version__

_DIGEST = hashlib.sha256


@cache
def folder() -> str | None:
    """Where compiled code is kept: of one user, version and Python; None where there is no place.

    In `$KVPLAN_CACHE_DIR`, else in `$XDG_CACHE_HOME/kvplan`, else in `~/.cache/kvplan`.
    """
    base = os.environ.get("KVPLAN_CACHE_DIR") or os.path.join(
        os.environ.get("XDG_CACHE_HOME") or os.path.join("~", ".cache"), "kvplan"
    )
    user = os.getuid() if hasattr(os, "getuid") else None
    whose = f"{__version__}-{sys.implementation.cache_tag}-{user or 0}"
    path = os.path.abspath(os.path.join(os.path.expanduser(base), whose))
    try:
        os.makedirs(path, mode=0o700, exist_ok=True)
        found = os.stat(path)
    except OSError:
        return None
    # What is read there is run: it has to be ours, and nobody else's to write.
    return path if user is None or (found.st_uid == user and not found.st_mode & 0o022) else None


def lasts() -> bool:
    """Whether what is compiled now is kept."""
    path = folder()
    return path is not None and os.access(path, os.W_OK)


def file(name: str, *made_of: str) -> str | None:
    """Where code is kept that is made of these texts; None where nothing is."""
    path, texts = folder(), "\0".join(made_of)
    return path and os.path.join(path, f"{name}-{_DIGEST(texts.encode()).hexdigest()[:32]}")


def compiled(function: Callable[..., Any], made_of: str) -> Any:
    """A function compiled by numba, or loaded: compiled anew once the text `made_of` is another one."""
    import numba

    dispatcher: Any = numba.njit(nogil=True)(function)
    if hasattr(dispatcher, "_cache"):  # it has none where numba is told to compile nothing
        dispatcher._cache = _Cache(function.__name__, numba.__version__, made_of)
    return dispatcher


class _Cache:
    """What numba asks of a cache: a file for each signature, which begins with the digest of the rest."""

    def __init__(self, name: str, *made_of: str) -> None:
        self._name, self._made_of, self.cache_path = name, made_of, folder()

    def _file(self, signature: Any, codegen: Any) -> str | None:
        return file(self._name, *self._made_of, repr((signature, codegen.magic_tuple())))

    def load_overload(self, signature: Any, target: Any) -> Any:
        """The compiled function; None if it has to be compiled."""
        from numba.core.compiler import CompileResult

        rebuild: Any = CompileResult._rebuild
        target.refresh()
        content = load(self._file(signature, target.codegen()))
        return None if content is None else rebuild(target, *pickle.loads(content))

    def save_overload(self, signature: Any, result: Any) -> None:
        """Keep it, if that is possible."""
        from numba.core import serialize

        dumps: Any = serialize.dumps
        save(self._file(signature, result.codegen), dumps(result._reduce()))


def load(file: str | None) -> bytes | None:
    """What was kept, if it is whole."""
    if file is None:
        return None
    try:
        with open(file, "rb") as stream:
            found = stream.read()
    except FileNotFoundError:
        return None
    except OSError as error:
        _say(f"compiled code in {os.path.dirname(file)!r} cannot be read, compiling again: {error.strerror}")
        return None
    size = _DIGEST().digest_size
    if _DIGEST(found[size:]).digest() == found[:size]:
        return found[size:]
    _say(f"compiled code in {os.path.dirname(file)!r} was damaged, compiling again")
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
        if temporary is not None and os.path.exists(temporary):
            os.unlink(temporary)
        _say(f"compiled code cannot be kept in {path!r}, later runs compile again: {error.strerror}")


@cache
def _say(message: str) -> None:
    import logging

    logging.getLogger("kvplan").warning("note: %s", message)  # on standard error, unless a program listens
