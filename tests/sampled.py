"""Reads what was measured, whatever replica it is of, from one file or from lines."""

from collections.abc import Iterable
from itertools import chain
from pathlib import Path

from kvplan.ingest.timing.reading import measured_of, parsed, read_groups
from kvplan.ingest.timing.samples import Measured


def read_samples(path: Path, *, capacity_tokens: int | None = None) -> tuple[Measured, ...]:
    return tuple(chain(*read_groups([path], capacity_tokens=capacity_tokens)))


def parse_samples(
    lines: Iterable[str],
    source: str,
    *,
    capacity_tokens: int | None = None,
    assumed_tokens: int | None = None,
) -> tuple[Measured, ...]:
    return measured_of(parsed(lines, source, capacity_tokens, assumed_tokens))
