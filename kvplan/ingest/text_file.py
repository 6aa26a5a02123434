"""The one reader of files from outside: unpacked, lines counted, digest taken, what goes wrong said in one way."""

import gzip
import io
import os
import sys
import zlib
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from hashlib import sha256
from pathlib import Path
from shutil import copyfileobj
from tempfile import TemporaryFile
from typing import Any, BinaryIO

import zstandard

from kvplan.errors import UsageError

STANDARD_INPUT = Path("<stdin>")  # this very object; a file may have that name
_HELD: dict[int, BinaryIO] = {}  # of paths, by what they are and not by their names
_LONGEST_LINE = 64_000_000  # characters; the results of a benchmark are one line
_LINE_ENDS = {"\n", "\r", "\r\n"}
_BLANK_LINES = 1_000_000  # one after the other
_UNPACKED = 1 << 23  # bytes that nobody minds
_PACKED_TO = 200  # beyond, text of use packs to more than such a part of it
_PIECE = 256  # bytes of zstd unpacked at once: a block of four can stand for 128 KiB


class Lines:
    """The lines of a text, taken one after the other; several loops over them share where they are.

    `number` is that of the line taken `last`, counted from 1. `sha256`, of the bytes as stored, is empty until the
    file was read to its end.

    Raises
    ------
    UsageError
        A line, what is left, or a stretch of blank lines is longer than any that means something.
    """

    def __init__(self, source: str, text: io.TextIOBase, longest: int = _LONGEST_LINE) -> None:
        self.source = source
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
            self.last = line
            yield line

    def rest(self, most: int = 8 * _LONGEST_LINE) -> str:
        """What follows the lines taken, up to so many characters."""
        found = self._text.read(most)
        if len(found) == 8 * _LONGEST_LINE:
            raise UsageError(f"{self.source}: more than {8 * _LONGEST_LINE:,} characters, and not by lines")
        return found

    @property
    def cut_off(self) -> bool:
        """Whether the line taken last has no end, and nothing follows it."""
        return not self.last.endswith(("\n", "\r")) and not self.rest(1)


@contextmanager
def lines_of(path: Path, *, errors: str = "strict", longest: int = _LONGEST_LINE) -> Iterator[Lines]:
    """Lines of a file that may be compressed, or of `STANDARD_INPUT`, which can be read once.

    With "replace", bytes that are not UTF-8 do not refuse it. `longest` is how many characters a line may have.

    Raises
    ------
    UsageError
        The file cannot be opened, unpacked or read as text.

    Examples
    --------
    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder:
    ...     path = Path(folder, "log")
    ...     _ = path.write_bytes(b"abc")
    ...     with lines_of(path) as lines:
    ...         list(lines)
    ['abc']
    >>> lines.sha256[:8]
    'ba7816bf'
    """
    with _refusals(path), _opened(path) as file:
        hashing = _Hashing(file)
        with _unpacked(hashing, errors) as text:
            lines = Lines(str(path), text, longest)
            yield lines
            while text.read(1 << 20):  # what was left unread belongs to the digest all the same
                pass
        while hashing.read(1 << 20):  # and so does what follows the end of compressed data
            pass
        lines.sha256 = hashing.digest.hexdigest()


@contextmanager
def held(paths: Iterable[Path]) -> Iterator[None]:
    """Keep what standard input and pipes among these paths give, so that each can be read several times."""
    with ExitStack() as stack:
        for path in paths:
            if path is STANDARD_INPUT or (path.exists() and not path.is_file() and not path.is_dir()):
                with _refusals(path), _opened(path) as pipe:
                    kept: Any = stack.enter_context(TemporaryFile())
                    copyfileobj(pipe, kept)
                _HELD[id(path)] = kept
                stack.callback(_HELD.pop, id(path))
        yield


def reference_to(path: Path, folder: Path) -> str | None:
    """Return how a profile in a folder refers to a file; None where that is standard input or a pipe."""
    if path is STANDARD_INPUT or not path.is_file():
        return None
    return Path(os.path.relpath(path, folder)).as_posix()


def beginning(path: Path, characters: int, errors: str = "strict") -> str:
    """The first characters of a file that may be compressed; the rest is not read.

    Raises
    ------
    UsageError
        As `lines_of`.
    """
    with _refusals(path), _opened(path) as file, _unpacked(_Hashing(file), errors) as text:
        return text.read(characters)


def _opened(path: Path) -> AbstractContextManager[BinaryIO]:
    if (kept := _HELD.get(id(path))) is not None:
        kept.seek(0)
        return nullcontext(kept)
    if path is STANDARD_INPUT:
        return nullcontext(sys.stdin.buffer if sys.stdin else io.BytesIO())
    return path.open("rb")


@contextmanager
def _refusals(path: Path) -> Iterator[None]:
    """What goes wrong in reading a file, in one line."""
    try:
        yield
    except UnicodeDecodeError:
        raise UsageError(f"{path}: must be text in UTF-8") from None
    except EOFError:
        raise UsageError(f"{path}: the compressed data are cut off") from None
    except OverflowError as error:
        raise UsageError(f"{path}: the compressed data {error}") from None
    except (zlib.error, zstandard.ZstdError):
        raise UsageError(f"{path}: the compressed data are damaged") from None
    except OSError as error:
        raise UsageError(f"{path}: cannot be read: {error.strerror or error}") from None


class _Hashing(io.RawIOBase):
    """A binary file, with the digest and the number of the bytes that were read from it so far."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self.digest = sha256()
        self.bytes = 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        data = self._file.read(len(buffer))
        self.digest.update(data)
        self.bytes += len(data)
        buffer[: len(data)] = data
        return len(data)


class _Bounded(io.RawIOBase):
    """Compressed data that do not unpack to far more than any text would."""

    def __init__(self, unpacking: Any, packed: _Hashing) -> None:
        self._unpacking, self._packed, self._bytes = unpacking, packed, 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        found: int = self._unpacking.readinto(buffer)
        self._bytes += found
        if self._bytes > max(_UNPACKED, _PACKED_TO * self._packed.bytes):
            raise OverflowError(f"unpack to more than {_PACKED_TO} times their size: no text of use does")
        return found


class _Zstd(io.RawIOBase):
    """What zstd frames, one after the other, unpack to."""

    def __init__(self, packed: BinaryIO) -> None:
        self._packed, self._rest, self._ready = packed, b"", b""
        self._frame: zstandard.ZstdDecompressionObj | None = None

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while not self._ready:
            piece = self._rest or self._packed.read(_PIECE)
            if not piece and self._frame is None:
                return 0
            if not piece:
                raise EOFError
            frame = self._frame or zstandard.ZstdDecompressor().decompressobj()
            self._ready = frame.decompress(piece)
            self._frame, self._rest = (None, frame.unused_data) if frame.eof else (frame, b"")
        found, self._ready = self._ready[: len(buffer)], self._ready[len(buffer) :]
        buffer[: len(found)] = found
        return len(found)


@contextmanager
def _unpacked(raw: _Hashing, errors: str) -> Iterator[io.TextIOBase]:
    """The text of a file that may be compressed."""
    with io.BufferedReader(raw, 1 << 18) as data:
        start = data.peek(4)[:4]
        binary: Any = data
        if start.startswith(b"\x1f\x8b"):
            binary = io.BufferedReader(_Bounded(gzip.GzipFile(fileobj=data), raw), 1 << 18)
        elif start == b"\x28\xb5\x2f\xfd":
            binary = io.BufferedReader(_Bounded(_Zstd(data), raw), 1 << 18)
        with io.TextIOWrapper(binary, encoding="utf-8-sig", errors=errors, newline="") as text:
            yield text
