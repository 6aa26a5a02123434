"""The one reader of files from outside, whatever it reads them for.

It unpacks and decodes them, takes lines out of what a collector of logs wrapped them in, strips colours, counts lines,
takes a digest, and words every failure alike.
"""

import csv
import gzip
import io
import os
import re
import sys
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from functools import partial
from hashlib import sha256
from itertools import chain
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any, BinaryIO

import zstandard

from kvplan.errors import UsageError
from kvplan.ingest.wrapping import unwrapped
from kvplan.units import format_bytes

STANDARD_INPUT = Path("<stdin>")  # this very object; a file may have that name
_HELD: dict[int, BinaryIO] = {}  # of paths, by what they are and not by their names
_LONGEST_LINE = 64_000_000  # characters; the results of a benchmark are one line
_LINE_ENDS = {"\n", "\r", "\r\n"}
_BLANK_LINES = 1_000_000  # one after the other
_UNPACKED = 1 << 23  # bytes that nobody minds
_PACKED_TO = 200  # beyond, text of use packs to more than such a part of it
_HEAD = 1 << 16  # bytes that tell the encoding, and what lines are wrapped in
_READ = 1 << 18  # bytes at once
# colours, titles of windows
_ESCAPE = re.compile(r"\x1b(?:\[[0-9;?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\))")
_NOT_READ = {  # by where a mark stands and what it is: what a file is, and what makes text of it
    (0, b"BZh"): ("packed by bzip2", "bunzip2"),
    (0, b"\xfd7zXZ\0"): ("packed by xz", "unxz"),
    (0, b"\x04\x22\x4d\x18"): ("packed by lz4", "unlz4"),
    (0, b"PK\x03\x04"): ("a zip archive", "unzip"),
    (0, b"7z\xbc\xaf\x27\x1c"): ("a 7z archive", "7z x"),
    (0, b"PAR1"): ("a Parquet table", "DuckDB's COPY, as CSV,"),
    (257, b"ustar"): ("a tar archive", "tar -xf"),
}
_PIECE = 256  # bytes of zstd unpacked at once: a block of four can stand for 128 KiB


class Lines:
    """The lines of a text, taken one after the other; several loops over them share where they are.

    `number` is that of the line taken `last`, counted from 1. `sha256`, of the bytes as stored, is empty until the
    file was read to its end. `wrapping` says what the lines were taken out of; it is empty where they stood alone.
    """

    def __init__(
        self, source: str, text: io.TextIOBase, longest: int = _LONGEST_LINE, wrapping: str = ""
    ) -> None:
        self.source = source
        self.wrapping = wrapping
        self._longest = longest
        self.number = 0
        self.last = ""
        self.sha256 = ""
        self._text = text

    def __iter__(self) -> Iterator[str]:
        blank = 0
        while line := self._text.readline(self._longest):
            self.number += 1
            blank = blank + 1 if line in _LINE_ENDS else 0
            if blank > _BLANK_LINES:
                raise UsageError(f"{self.source}:{self.number}: more than {_BLANK_LINES:,} blank lines")
            if len(line) == self._longest:
                raise UsageError(
                    f"{self.source}:{self.number}: a line of more than {self._longest:,} characters"
                )
            if "\x1b" in line:
                line = _ESCAPE.sub("", line)
            self.last = line
            yield line

    def rest(self, most: int = 8 * _LONGEST_LINE) -> str:
        """Read what follows the lines taken, up to so many characters."""
        text = self._text.read(most)
        if len(text) == 8 * _LONGEST_LINE:
            raise UsageError(f"{self.source}: more than {8 * _LONGEST_LINE:,} characters, and not by lines")
        return text

    @property
    def notes(self) -> tuple[str, ...]:
        """Notes on how the file was read."""
        return (f"lines are taken out of {self.wrapping}",) if self.wrapping else ()

    @property
    def cut_off(self) -> bool:
        """Whether the line taken last has no end, and nothing follows it."""
        return not self.last.endswith(("\n", "\r")) and not self.rest(1)


@contextmanager
def lines_of(path: Path, *, errors: str = "strict", longest: int = _LONGEST_LINE) -> Iterator[Lines]:
    """Yield the lines of a file that may be compressed, or of `STANDARD_INPUT`, which can be read once.

    With "replace", bytes that are not UTF-8 do not refuse it. `longest` is how many characters a line may have.
    """
    with _refusals(path), _opened(path) as file:
        stored = _Stored(file)
        with _unpacked(stored, errors) as (text, wrapping):
            lines = Lines(str(path), text, longest, wrapping)
            yield lines
            while not wrapping and text.read(1 << 20):  # what was left unread must be text all the same
                pass
        while stored.read(1 << 20):  # the digest is of all, also of what follows the end of compressed data
            pass
        lines.sha256 = stored.digest.hexdigest()


@contextmanager
def held(paths: Iterable[Path], most: int) -> Iterator[None]:
    """Keep what standard input and pipes among these paths give, so that each can be read several times.

    Neither these nor files may have more than `most` bytes.
    """
    with ExitStack() as stack:
        for path in paths:
            if path.is_file() and path.stat().st_size > most:
                raise _too_large(path, most)
            if path is STANDARD_INPUT or (path.exists() and not path.is_file() and not path.is_dir()):
                with _refusals(path), _opened(path) as pipe:
                    kept: Any = stack.enter_context(TemporaryFile())
                    while piece := pipe.read(_READ):
                        kept.write(piece)
                        if not piece.strip(b"\0"):
                            raise UsageError(f"{path}: nothing but zero bytes, which are no text")
                        if kept.tell() > most:
                            raise _too_large(path, most)
                _HELD[id(path)] = kept
                stack.callback(_HELD.pop, id(path))
        yield


def _too_large(path: Path, most: int) -> UsageError:
    return UsageError(f"{path}: more than {format_bytes(most)}; --max-size allows more")


def reference_to(path: Path, folder: Path) -> str | None:
    """Return how a profile in a folder refers to a file; None where that is standard input or a pipe."""
    if path is STANDARD_INPUT or not path.is_file():
        return None
    return Path(os.path.relpath(path, folder)).as_posix()


def beginning(path: Path, characters: int, errors: str = "strict") -> str:
    """Read the first characters of a file that may be compressed; the rest is not read."""
    with _refusals(path), _opened(path) as file, _unpacked(_Stored(file), errors) as (text, _):
        return text.read(characters)


@contextmanager
def stored(path: Path) -> Iterator[BinaryIO]:
    """Yield a file that is no text, as it is stored."""
    with _refusals(path), _opened(path) as file:
        yield file


def _opened(path: Path) -> AbstractContextManager[BinaryIO]:
    if (kept := _HELD.get(id(path))) is not None:
        kept.seek(0)
        return nullcontext(kept)
    if path is STANDARD_INPUT:
        return nullcontext(sys.stdin.buffer if sys.stdin else io.BytesIO())
    return path.open("rb")


@contextmanager
def _refusals(path: Path) -> Iterator[None]:
    """Say in one line what goes wrong in reading a file."""
    try:
        yield
    except UnicodeDecodeError:
        raise UsageError(f"{path}: must be text in UTF-8 or UTF-16") from None
    except EOFError:
        raise UsageError(f"{path}: the compressed data are cut off") from None
    except _NotTextError as error:
        raise UsageError(f"{path}: {error}") from None
    except OverflowError as error:
        raise UsageError(f"{path}: the compressed data {error}") from None
    except (zlib.error, zstandard.ZstdError):
        raise UsageError(f"{path}: the compressed data are damaged") from None
    except csv.Error as error:
        raise UsageError(f"{path}: not CSV: {error}; is a quote open?") from None
    except OSError as error:
        raise UsageError(f"{path}: cannot be read: {error.strerror or error}") from None


class _NotTextError(Exception):
    """A file is of a kind that others unpack."""


class _Raw(io.RawIOBase):
    """A binary file out of a function that gives at most so many bytes, none at the end."""

    def __init__(self, read: Callable[[int], bytes]) -> None:
        self._read = read

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        data = self._read(len(buffer))
        buffer[: len(data)] = data
        return len(data)


class _Stored:
    """A file as stored, with the digest and the number of the bytes that were read from it so far."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self.digest = sha256()
        self.bytes = 0

    def read(self, most: int) -> bytes:
        data = self._file.read(most)
        self.digest.update(data)
        self.bytes += len(data)
        return data


def _bounded(read: Callable[[int], bytes], stored: _Stored) -> Callable[[int], bytes]:
    """Refuse compressed data that unpack to far more than any text would."""
    unpacked = 0

    def bounded(most: int) -> bytes:
        nonlocal unpacked
        data = read(most)
        unpacked += len(data)
        if unpacked > max(_UNPACKED, _PACKED_TO * stored.bytes):
            raise OverflowError(f"unpack to more than {_PACKED_TO} times their size: no text of use does")
        return data

    return bounded


def _zstd(packed: BinaryIO) -> Iterator[bytes]:
    rest = b""
    while piece := rest or packed.read(_PIECE):
        frame = zstandard.ZstdDecompressor().decompressobj()
        yield frame.decompress(piece)
        while not frame.eof:
            if not (piece := packed.read(_PIECE)):
                raise EOFError
            yield frame.decompress(piece)
        rest = frame.unused_data


def _of_pieces(pieces: Iterator[bytes]) -> Callable[[int], bytes]:
    left = b""

    def read(most: int) -> bytes:
        nonlocal left
        left = left or next(filter(None, pieces), b"")
        data, left = left[:most], left[most:]
        return data

    return read


@contextmanager
def _unpacked(stored: _Stored, errors: str) -> Iterator[tuple[io.TextIOBase, str]]:
    """Read the text of a file that may be compressed, and say what its lines were wrapped in."""
    with io.BufferedReader(_Raw(stored.read), _READ) as data:
        start = data.peek(4)[:4]
        binary: Any = data
        if start.startswith(b"\x1f\x8b"):
            binary = _buffered(_bounded(gzip.GzipFile(fileobj=data).read1, stored))
        elif start == b"\x28\xb5\x2f\xfd":
            binary = _buffered(_bounded(_of_pieces(_zstd(data)), stored))
        head = _head(binary)
        text = io.TextIOWrapper(
            _buffered(_of_pieces(chain([head], iter(partial(binary.read1, _READ), b"")))),
            encoding=_encoding(head),
            errors=errors,
            newline="",
        )
        with text:
            yield _taken_out(text, head.decode(text.encoding, "replace"))


def _buffered(read: Callable[[int], bytes]) -> io.BufferedReader:
    return io.BufferedReader(_Raw(read), _READ)


def _head(binary: Any) -> bytes:
    head = b""
    while len(head) < _HEAD and (piece := binary.read1(_HEAD)):
        head += piece
    for (place, mark), (what, how) in _NOT_READ.items():
        if head.startswith(mark, place):
            raise _NotTextError(f"{what}, which is not read; {how} makes text of it")
    return head


def _encoding(head: bytes) -> str:
    """Tell UTF-16 and UTF-32 by their marks, or by the zeros in every second byte; all else is UTF-8."""
    if b"\0" in head:
        if head.startswith((b"\xff\xfe\0\0", b"\0\0\xfe\xff")):
            return "utf-32"
        if head.startswith((b"\xff\xfe", b"\xfe\xff")):
            return "utf-16"
        for encoding, zeros, others in (
            ("utf-16-le", head[1::2], head[::2]),
            ("utf-16-be", head[::2], head[1::2]),
        ):
            if 2 * zeros.count(0) > len(zeros) and 0 not in others:
                return encoding
    return "utf-8-sig"


def _taken_out(text: io.TextIOWrapper, head: str) -> tuple[io.TextIOBase, str]:
    """Take the lines of a text that begins with `head` out of what wraps them, and say what that is."""
    taken = unwrapped(head, iter(partial(text.readline, _LONGEST_LINE), ""))
    if taken is None:
        return text, ""
    lines, wrapping = taken
    pieces = chain(lines, iter(partial(text.read, _READ), ""))
    stored = _buffered(_of_pieces(piece.encode("utf-8", "replace") for piece in pieces))
    return io.TextIOWrapper(stored, encoding="utf-8", newline=""), wrapping
