"""A text file read once from begin to end: unpacked, its digest taken, and what goes wrong said in one way."""

import io
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from kvplan.errors import UsageError
from kvplan.ingest.rows import Hashing, opened


class Digest:
    """The sha256 of a file's bytes as they are stored; empty until the file was read to its end."""

    hex = ""


@contextmanager
def text_of(path: Path, *, errors: str = "strict") -> Iterator[tuple[io.TextIOBase, Digest]]:
    """Lines of a file that may be compressed; a file that cannot be read is a `UsageError`.

    Parameters
    ----------
    path : Path
    errors : str
        What becomes of bytes that are not UTF-8: "strict" refuses the file, "replace" reads on.

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
    ...     with text_of(path) as (text, digest):
    ...         list(text)
    ['abc']
    >>> digest.hex[:8]
    'ba7816bf'
    """
    digest = Digest()
    try:
        with path.open("rb") as file:
            hashing = Hashing(file)
            with opened(hashing, str(path)) as text:
                if isinstance(text, io.TextIOWrapper):
                    text.reconfigure(errors=errors)
                yield text, digest
                while text.read(1 << 20):  # what was left unread belongs to the digest all the same
                    pass
            while hashing.read(1 << 20):  # and so does what follows the end of compressed data
                pass
            digest.hex = hashing.digest.hexdigest()
    except UnicodeDecodeError:
        raise UsageError(f"{path}: must be text in UTF-8") from None
    except EOFError:
        raise UsageError(f"{path}: the compressed data are cut off") from None
    except zlib.error:
        raise UsageError(f"{path}: the compressed data are damaged") from None
    except OSError as error:
        raise UsageError(f"{path}: cannot be read: {error.strerror or error}") from None
