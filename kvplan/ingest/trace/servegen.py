"""ServeGen client files: not requests, but the rates and length distributions of one client over time.

``NAME-trace.csv`` has a row for each window of time, without header: start (s), rate (requests/s), coefficient of
variation of the gaps, its law, and the parameters of that. ``NAME-dataset.json`` has distributions of input and
output lengths from some start times on, independent of each other. Either of the two names the client.
"""

import ast
import csv
import json
import math
import re
from pathlib import Path
from typing import NamedTuple

import numpy as np

from kvplan.errors import ProfileError, UsageError, shown
from kvplan.ingest.reader import Beginning, FileKind, Reader
from kvplan.ingest.text_file import lines_of
from kvplan.model import FloatArray, IntArray
from kvplan.ranges import LATEST_S, MAX_DECODE_TOKENS, MAX_TOKENS, MOST_RATE

_TRACE = re.compile(r"\ufeff?\s*[\d.]+,[\d.eE+-]+,[\d.eE+-]*,(Gamma|Weibull|Poisson)?,[^,]*,[^,]*\r?\n")
_DATASET = re.compile(r'\ufeff?\s*\{\s*"\d+"\s*:\s*\{\s*"(input|output)_tokens"')
_NOT_A_DATASET = (
    *(ValueError, KeyError, TypeError, AttributeError, OverflowError),
    *(SyntaxError, MemoryError, RecursionError),
)
_SUFFIXES = ("-trace.csv", "-dataset.json")
_MOST_PAIRS = 1 << 24  # of an input and an output length, at a time


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
    assumed: bool = False  # the spread of lengths

    @property
    def windows(self) -> int:
        """How many, all as long."""
        return self.rates_rps.size


def _sensible(value: float) -> bool:
    return 0 <= value <= MOST_RATE


def _recognises(start: Beginning) -> bool:
    return bool(_TRACE.match(start.text) or _DATASET.match(start.text))


def _read(path: Path, start: str) -> Description:
    """Read a client, one of whose two files is named and begins so.

    Raises
    ------
    UsageError
        It cannot be used, or the other file is missing.
    """
    own, its = _SUFFIXES if _TRACE.match(start) else reversed(_SUFFIXES)
    stem = path.name.removesuffix(own)
    if stem == path.name:
        raise UsageError(f"{path}: a ServeGen client must be called NAME{own}, to find its other file")
    other = path.with_name(stem + its)
    if not other.is_file():
        raise UsageError(f"{path}: one half of a ServeGen client; the other, {other.name}, is not beside it")
    rates, lengths = (path.with_name(stem + suffix) for suffix in _SUFFIXES)
    starts, rate, cv, rates_digest = _windows(rates)
    distributions, lengths_digest = _distributions(lengths)
    width = float(np.median(np.diff(starts))) if starts.size > 1 else 0.0
    if not width > 0:
        raise UsageError(f"{rates}: needs two windows at least, to tell how long they are")
    expected = rate * width
    begins = np.array([begin for begin, _, _ in distributions])
    part_of = np.maximum(np.searchsorted(begins, starts, side="right") - 1, 0)
    amounts = np.bincount(part_of, expected, len(distributions))
    parts = [
        Part(float(amount), *inputs, *outputs)
        for amount, (_, inputs, outputs) in zip(amounts, distributions, strict=True)
        if amount > 0
    ]
    if not parts:
        raise UsageError(f"{rates}: no requests; every rate is 0")
    known = ~np.isnan(cv) & (expected > 0)
    notes = [
        f"a description of {starts.size:,} windows of {width:g} s, not a list of requests; the rate is their mean, "
        f"the highest is {rate.max() / rate.mean():.3g} times that"
    ]
    if unmeasured := int(np.isnan(cv).sum()):
        notes.append(f"{unmeasured:,} windows have no coefficient of variation")
    digest, other_digest = rates_digest, lengths_digest
    if path == lengths:
        digest, other_digest = other_digest, digest
    notes.append(f"the other half of the client is {other.name}, sha256 {other_digest}")
    return Description(
        parts=parts,
        rates_rps=rate,
        span_s=starts.size * width,
        gap_cv=float(expected[known] @ cv[known] / expected[known].sum()) if known.any() else None,
        sha256=digest,
        notes=tuple(notes),
    )


def _windows(path: Path) -> tuple[FloatArray, FloatArray, FloatArray, str]:
    """Start, rate and coefficient of variation of each window, NaN where there is none; and the digest of the file."""
    rows = []
    with lines_of(path) as lines:
        for row in csv.reader(lines):
            if not row:
                continue
            try:
                start, rate, cv = float(row[0]), float(row[1]), float(row[2] or math.nan)
                if not (abs(start) <= LATEST_S and _sensible(rate) and (math.isnan(cv) or _sensible(cv))):
                    raise ValueError
            except (IndexError, ValueError):
                seen = repr(",".join(row)[:60])
                message = (
                    f"{seen}; must be a start, a rate and a coefficient of variation, up to {MOST_RATE:g}"
                )
                raise ProfileError(str(path), message, line=lines.number) from None
            rows.append((start, rate, cv))
    starts, rates, cvs = np.array(sorted(rows)).reshape(-1, 3).T
    return starts, rates, cvs, lines.sha256


_LengthShares = tuple[IntArray, FloatArray]


def _distributions(path: Path) -> tuple[list[tuple[float, _LengthShares, _LengthShares]], str]:
    """Read the start of each pair of distributions, the pair itself, and the digest of the file."""
    with lines_of(path) as lines:
        text = lines.rest()
    try:
        distributions = [
            (
                float(begin),
                _distribution(tables["input_tokens"], MAX_TOKENS),
                _distribution(tables["output_tokens"], MAX_DECODE_TOKENS),
            )
            for begin, tables in json.loads(text).items()
            # a part in which nothing was seen has empty tables
            if tables["input_tokens"].strip() != "{}" and tables["output_tokens"].strip() != "{}"
        ]
    except _NOT_A_DATASET as error:
        raise UsageError(f"{path}: not a ServeGen dataset: {error}") from None
    if not distributions:
        raise UsageError(f"{path}: no length distributions")
    if max(inputs[0].size * outputs[0].size for _, inputs, outputs in distributions) > _MOST_PAIRS:
        raise UsageError(f"{path}: more than {_MOST_PAIRS:,} pairs of an input and an output length")
    return sorted(distributions, key=lambda part: part[0]), lines.sha256


def _distribution(text: str, most: int) -> _LengthShares:
    """Lengths and shares of a dict written in Python; ``{18: 0.25, 19: 0.75}``."""
    try:
        table = ast.literal_eval(text)
    except _NOT_A_DATASET:
        raise ValueError(f"{shown(text)}; must be lengths and shares, as {{18: 0.25, 19: 0.75}}") from None
    usable = table and all(0 <= int(length) <= most for length in table)
    shares = np.array([float(share) for share in table.values()])
    if not usable or not (all(map(_sensible, shares.tolist())) and shares.any()):
        raise ValueError(f"lengths must be from 0 to {most:,}, shares from 0 to {MOST_RATE:g}")
    seen = shares > 0
    return np.array([int(length) for length in table], dtype=np.int64)[seen], shares[seen] / shares.sum()


DESCRIPTIONS = (Reader("ServeGen client", FileKind.REQUESTS, _recognises, _read),)
