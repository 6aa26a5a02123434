"""What traces have: requests that a file lists, or a description of them by rates and lengths."""

from array import array
from collections.abc import Callable, Hashable
from pathlib import Path
from typing import Any, NamedTuple

from kvplan.model import FloatArray, IntArray

Request = tuple[float, int, int]  # when it arrived, seconds; tokens in; tokens out

MOST_HASHES = 8_000_000  # remembered; below a gigabyte where they are used
_MOST_REQUESTS = 1_500_000


class BadRowError(Exception):
    """A row that cannot be read; `key` names the column."""

    def __init__(self, message: str, key: str | None = None) -> None:
        super().__init__(message)
        self.key = key


class Identities:
    """Requests with tokens and what identifies them, in the order of the file, as far as there is room.

    Of the hashes of the blocks of all prompts each request has `hash_count`; `conversation` is the number of the one
    that it is a turn of, or -1.
    """

    def __init__(self) -> None:
        self.arrival_s = array("d")
        self.input_tokens, self.output_tokens = array("q"), array("q")
        self.hashes, self.hash_count = array("q"), array("q")
        self.conversation = array("q")
        self.full = False
        self._known: dict[Hashable, int] = {}

    def add(self, request: Request, hashes: Any, conversation: Any = None, parent: Any = None) -> None:
        """Remember a request; `parent` is the conversation that this one goes on with, where turns have names."""
        if not (request[1] and request[2]):
            return
        hashes = hashes if isinstance(hashes, list) else []
        if len(self.hashes) + len(hashes) > MOST_HASHES or len(self.arrival_s) >= _MOST_REQUESTS:
            self.full = True
        if self.full:
            return
        try:
            self.hashes.extend(hashes)
        except (TypeError, OverflowError):
            raise BadRowError("must be a list of whole numbers", "hash_ids") from None
        self.hash_count.append(len(hashes))
        arrival, inputs, outputs = request
        self.arrival_s.append(arrival)
        self.input_tokens.append(inputs)
        self.output_tokens.append(outputs)
        self.conversation.append(self._number(conversation, parent))

    def _number(self, conversation: Any, parent: Any) -> int:
        if not isinstance(conversation, str | int) or conversation == "":
            return -1
        before = self._known.get(parent) if isinstance(parent, str | int) else None
        return self._known.setdefault(conversation, len(self._known) if before is None else before)


class Part(NamedTuple):
    """Requests expected while one pair of length distributions holds.

    `input_tokens` with `input_share` and `output_tokens` with `output_share` are distributions, independent.
    """

    requests: float
    input_tokens: IntArray
    input_share: FloatArray
    output_tokens: IntArray
    output_share: FloatArray


class Description(NamedTuple):
    """Requests that are described and not listed: `windows` of their rate over `span_s` seconds, and their lengths."""

    parts: list[Part]
    rates_rps: FloatArray
    span_s: float
    gap_cv: float | None
    sha256: str
    notes: tuple[str, ...]

    @property
    def windows(self) -> int:
        """How many, all as long."""
        return self.rates_rps.size


Describes = Callable[[Path, str], Description]
