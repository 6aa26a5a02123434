"""What a format of traces is: the record that a module of `kvplan.ingest.trace.formats` calls ``FORMAT``.

Formats are told apart by content, never by name. Most list requests: `RequestFormat`. One that only describes them, by
rates and distributions of lengths, is a `DescriptionFormat`.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from kvplan.ingest.reader import Beginning
from kvplan.ingest.text_file import Lines
from kvplan.ingest.trace.identities import Identities, Request
from kvplan.model import FloatArray, IntArray


@dataclass
class Extras:
    """What a trace says besides its requests; complete when the last one was read.

    Attributes
    ----------
    duration_s
        Of a benchmark without arrival times: seconds it took to complete all requests, whose times are then 0.
    identities
        What tells which prompts begin alike.
    """

    duration_s: float | None = None
    identities: Identities = field(default_factory=Identities)


class RequestFormat(NamedTuple):
    """A list of requests, under the name that provenance calls it by.

    No two formats may recognise the same beginning. A `BadRowError` of `requests` is of the line taken last.
    """

    name: str
    recognises: Callable[[Beginning], bool]
    requests: Callable[[Beginning, Lines, Extras], Iterator[Request]]


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


class DescriptionFormat(NamedTuple):
    """A description of requests, under the name that provenance calls it by; recognised by some thousand characters."""

    name: str
    recognises: Callable[[str], bool]
    read: Callable[[Path, str], Description]
