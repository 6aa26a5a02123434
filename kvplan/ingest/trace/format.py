"""What a format of traces is: the record that a module of `kvplan.ingest.trace.formats` calls ``FORMAT``.

Formats are told apart by content, never by name. Most list requests: `RequestFormat`. One that only describes them, by
rates and distributions of lengths, is a `DescriptionFormat`.
"""

import csv
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from kvplan.errors import UsageError
from kvplan.ingest.cells import json_object
from kvplan.ingest.text_file import Lines
from kvplan.model import FloatArray, IntArray

_DELIMITERS = ",;\t"
_MAX_BLOCKS = 4_000_000  # prefix blocks remembered

Request = tuple[float, int, int]  # when it arrived, seconds; tokens in; tokens out


class BadRowError(Exception):
    """A row that cannot be read; `key` names the column."""

    def __init__(self, message: str, key: str | None = None) -> None:
        super().__init__(message)
        self.key = key


class FirstLine(NamedTuple):
    """The first line of a trace, by which its format is told: of JSON lines, or the header of a CSV with its delimiter.

    `values` is the object, where the line holds the whole of it.
    """

    text: str
    in_json: bool
    names: Sequence[str]
    values: Mapping[str, Any] | None
    delimiter: str = ""

    @classmethod
    def of(cls, lines: Lines) -> "FirstLine":
        """The first line that is not blank.

        Raises
        ------
        UsageError
            There is none.
        """
        text = next((line for line in lines if line.strip()), "")
        if not text:
            raise UsageError(f"{lines.source}: empty; a trace has a row for every request")
        if text.lstrip().startswith("{"):
            values = json_object(text)
            return cls(text, True, list(values or ()), values)
        delimiter = max(_DELIMITERS, key=text.count)
        return cls(text, False, next(csv.reader([text], delimiter=delimiter)), None, delimiter)

    def has(self, *names: str) -> bool:
        """Whether there are such keys or columns, written like this."""
        return all(name in self.names for name in names)


@dataclass
class Extras:
    """What a trace says besides its requests; complete when the last one was read.

    Attributes
    ----------
    duration_s
        Of a benchmark without arrival times: seconds it took to complete all requests, whose times are then 0.
    prompt_blocks, repeated_blocks
        Of ``hash_ids``: blocks of all prompts, and those at the beginning of a prompt that an earlier one had too.
    forgetful
        There were more distinct blocks than are remembered, so that `repeated_blocks` is a lower bound.
    """

    duration_s: float | None = None
    prompt_blocks: int = 0
    repeated_blocks: int = 0
    forgetful: bool = False
    _seen: set[Any] = field(default_factory=set)

    def remember(self, ids: Any) -> None:
        """Count the blocks of a prompt.

        Raises
        ------
        BadRowError
            They are not numbers.
        """
        if not isinstance(ids, list):
            return
        seen = self._seen
        try:
            hits = next((i for i, block in enumerate(ids) if block not in seen), len(ids))
            if len(seen) < _MAX_BLOCKS:
                seen.update(ids)
            else:
                self.forgetful = True
        except TypeError:
            raise BadRowError("must be a list of numbers", "hash_ids") from None
        self.prompt_blocks += len(ids)
        self.repeated_blocks += hits


class RequestFormat(NamedTuple):
    """A list of requests, under the name that provenance calls it by.

    No two formats may recognise the same beginning. A `BadRowError` of `requests` is of the line taken last.
    """

    name: str
    recognises: Callable[[FirstLine], bool]
    requests: Callable[[FirstLine, Lines, Extras], Iterator[Request]]


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
    windows: int
    span_s: float
    gap_cv: float | None
    sha256: str
    notes: tuple[str, ...]


class DescriptionFormat(NamedTuple):
    """A description of requests, under the name that provenance calls it by; recognised by some thousand characters."""

    name: str
    recognises: Callable[[str], bool]
    read: Callable[[Path, str], Description]
