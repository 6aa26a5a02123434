"""What readers of traces yield: requests that a file lists, or a description of them by rates and lengths.

`read(first, lines, extras)` of a reader among `READERS` of `kvplan.ingest.trace.formats` yields requests; a
`BadRowError` is of the line taken last. `read(path, start)` of one among `DESCRIPTIONS` returns a `Description`.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from kvplan.ingest.reader import Beginning, FileKind, Reader
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


Lists = Callable[[Beginning, Lines, Extras], Iterator[Request]]
Describes = Callable[[Path, str], Description]


def request_list(name: str, recognises: Callable[[Beginning], bool], read: Lists) -> Reader[Lists]:
    """Make the reader of a list of requests; no two may recognise the same beginning."""
    return Reader(name, FileKind.REQUESTS, recognises, read)
