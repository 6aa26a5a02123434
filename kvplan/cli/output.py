"""Where a result goes: standard output, or a file that is replaced whole or not at all."""

import errno
import os
import stat
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

from kvplan.errors import OutputError

# Names of open descriptors: what they lead to may look like a file, but belongs to whoever opened it.
_DESCRIPTORS = ("/dev/std", "/dev/fd/", "/proc/")


class ClosedPipeError(Exception):
    """Whoever read the result has stopped reading; nothing to tell anybody."""


def write_result(result: str | bytes, path: Path | None = None) -> None:
    """Write a result to standard output, or to a file in its place, if `path` says where; bytes to a file alone.

    A file gets its new content in one step and keeps the old one if anything fails. Links are followed; devices and
    pipes are written straight. Everything is UTF-8, except on a terminal that uses something else.

    Raises
    ------
    OutputError
        The result cannot be written there.
    ClosedPipeError
        The reader of a pipe has gone.
    """
    with _refusals("standard output" if path is None else str(path)):
        if path is None:
            assert isinstance(result, str)
            _to_standard_output(result)
        else:
            _to_path(result.encode() if isinstance(result, str) else result, path)


@contextmanager
def _refusals(place: str) -> Iterator[None]:
    """Raise what the system says as errors of kvplan that name the place."""
    try:
        yield
    except BrokenPipeError:
        raise ClosedPipeError from None
    except OSError as error:
        shown = place if place.isprintable() else repr(place)
        raise OutputError(f"{shown}: cannot be written: {error.strerror or error}") from None


def check_writable(path: Path | None) -> None:
    """Refuse a file that could not be written, before the work whose result it is for.

    A pipe is left alone: whoever reads it would take the end of this for the end of the result.

    >>> check_writable(Path("no-such-folder", "result.txt"))
    Traceback (most recent call last):
    ...
    kvplan.errors.OutputError: no-such-folder/result.txt: cannot be written: No such file or directory
    """
    if path is None:
        return
    folder = os.path.dirname(os.path.realpath(path))
    with _refusals(str(path)):
        if path.is_file() or path.is_dir():
            with path.open("ab"):
                pass
        elif not (path.exists() or os.access(folder, os.W_OK | os.X_OK)):
            os.listdir(folder)  # says what is wrong with it, if it is not there
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))


def append_result(text: str, path: Path) -> None:
    """Write a result behind what a file has; where that fails, the file is as it was."""
    with _refusals(str(path)), path.open("ab", buffering=0) as file:
        before = os.fstat(file.fileno())
        try:
            data = text.encode()
            while data:
                data = data[file.write(data) :]
        except OSError:
            if stat.S_ISREG(before.st_mode):
                file.truncate(before.st_size)
            raise


def _to_standard_output(text: str) -> None:
    if sys.stdout is None:
        raise OSError("it is closed")
    try:
        encoding = sys.stdout.encoding if sys.stdout.isatty() else "utf-8"
        sys.stdout.buffer.write(text.encode(encoding, errors="replace"))
        sys.stdout.flush()
    except OSError:
        abandon_standard_output()
        raise


def abandon_standard_output() -> None:
    """Lead standard output nowhere, once writing to it has failed.

    What is left in its buffer would fail again when Python exits, and change the exit code.
    """
    _abandon(sys.stdout)


def tell(line: str) -> None:
    """Write a line to standard error. Where that fails there is nobody to tell, and the exit code still tells."""
    if sys.stderr is not None:
        try:
            print(f"{line}\n", end="", file=sys.stderr, flush=True)  # at once: threads tell too
        except OSError:
            _abandon(sys.stderr)


def _abandon(stream: TextIO) -> None:
    os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def _to_path(data: bytes, path: Path) -> None:
    try:
        mode = path.stat().st_mode
    except FileNotFoundError:
        _replace(data, path, None)
        return
    if str(path).startswith(_DESCRIPTORS) or not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
        with path.open("ab") as file:
            file.write(data)
        return
    with path.open("ab"):  # fails for a folder, or a file that must not be written
        pass
    _replace(data, path, stat.S_IMODE(mode))


def _replace(data: bytes, path: Path, permissions: int | None) -> None:
    target = os.path.realpath(path)
    temporary = os.path.join(os.path.dirname(target), f".kvplan-{os.urandom(8).hex()}")
    try:
        with open(temporary, "xb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        if permissions is not None:
            os.chmod(temporary, permissions)
        os.replace(temporary, target)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
