"""GGUF: the sizes of a model in the header of its file, under names of its own, and how many bytes its weights take.

The header has the metadata, key by key with types, and the shapes of the tensors; the weights follow. What is not
under a name of `[gguf]` in keys.toml is judged as a key of a config.json is.
"""

import math
import struct
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

from kvplan.errors import UsageError, shown
from kvplan.ingest.model.hardware import tables
from kvplan.ingest.model.json_keys import Keys
from kvplan.ingest.model.weights import Storage
from kvplan.ingest.text_file import stored

MAGIC = b"GGUF"
_VERSIONS = (2, 3)
_TEXT, _LIST = 8, 9
_FORMATS = dict(enumerate(("<B", "<b", "<H", "<h", "<I", "<i", "<f", "<?", "", "", "<Q", "<q", "<d")))
_BITS = 1, 33  # of a weight, with scales
_MOST = 1 << 27  # bytes of a header; those of vocabularies are some 10 MB
_ITEMS = 2_000_000  # of a list, more than any vocabulary has
_NAMES = tables("keys.toml")["gguf"]


class _Header:
    """Reads a header from its beginning; what is cut off, or larger than any, is refused."""

    def __init__(self, file: BinaryIO, source: str) -> None:
        self._file, self._source = file, source

    def take(self, size: int) -> bytes:
        if self._file.tell() + size > _MOST:
            raise UsageError(
                f"{self._source}: a GGUF header of more than {_MOST >> 20} MiB; is the file damaged?"
            )
        data = self._file.read(size)
        if len(data) < size:
            raise UsageError(f"{self._source}: GGUF, cut off within its header")
        return data

    def number(self, kind: str = "<Q") -> Any:
        return struct.unpack(kind, self.take(struct.calcsize(kind)))[0]

    def text(self) -> str:
        return self.take(self.number()).decode(errors="replace")

    def value(self, kind: int) -> Any:
        """Read a value of a type."""
        if kind == _TEXT:
            return self.text()
        if kind != _LIST:
            return self.number(self._format(kind))
        inner, count = self.number("<I"), self.number()
        item = self.text if inner == _TEXT else partial(self.number, self._format(inner))
        return [item() for _ in range(min(count, _ITEMS))]

    def tensor(self) -> tuple[str, int]:
        """Read the name of a tensor, and how many elements it has; its type and place are passed over."""
        name, count = self.text(), self.number("<I")
        elements = math.prod(self.number() for _ in range(min(count, 8)))
        self.take(12)
        return name, elements

    def _format(self, kind: int) -> str:
        if not (known := _FORMATS.get(kind)):
            raise UsageError(f"{self._source}: GGUF with a value of type {kind}, which is not known")
        return known


def is_gguf(path: Path) -> bool:
    """Tell whether a file begins as GGUF does."""
    if not path.is_file():
        return False
    with stored(path) as file:
        return file.read(len(MAGIC)) == MAGIC


def read_gguf(path: Path) -> tuple[Keys, Storage]:
    """Read the sizes of a model as a config.json has them, and how its weights are kept; refuse what is not known."""
    with stored(path) as file:
        header = _Header(file, str(path))
        header.take(len(MAGIC))
        if (version := header.number("<I")) not in _VERSIONS:
            raise UsageError(f"{path}: GGUF of version {version}; known are 2 and 3")
        tensors, count = header.number(), header.number()
        values = {header.text(): header.value(header.number("<I")) for _ in range(count)}
        sizes = dict(header.tensor() for _ in range(tensors))
        weights = path.stat().st_size - file.tell()
    kind = str(values.get("general.architecture"))
    if kind not in _NAMES["types"]:
        raise UsageError(
            f"{path}: GGUF of the architecture {shown(kind)}; known are {', '.join(_NAMES['types'])}: "
            "give --model with its name, or the config.json of the model it was made of"
        )
    config: dict[str, Any] = {"model_type": _NAMES["types"][kind]}
    for key, value in values.items():
        if key.startswith(f"{kind}."):
            own = key.removeprefix(f"{kind}.")
            config[_NAMES["keys"].get(own, own.replace(".", "_"))] = value
    words = values.get("tokenizer.ggml.tokens")
    config.setdefault("vocab_size", len(words) if isinstance(words, list) else None)
    config["tie_word_embeddings"] = bool(sizes) and "output.weight" not in sizes
    bits = 8 * weights / max(1, sum(sizes.values()))
    whole = values.get("split.count", 1) == 1 and _BITS[0] <= bits <= _BITS[1]
    problem = "" if whole else f"{path}: a part of a model in GGUF; give --weights"
    return Keys(str(path), config), Storage("GGUF", bits, problem=problem, embeddings=True)
