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
from hashlib import sha256
from pathlib import Path
from typing import NamedTuple

import numpy as np

from kvplan.errors import ProfileError, UsageError
from kvplan.ingest.text_file import beginning, text_of
from kvplan.ingest.trace.rows import MAX_INPUT_TOKENS, MAX_OUTPUT_TOKENS
from kvplan.model import FloatArray, IntArray

_TRACE = re.compile(r"\ufeff?\s*[\d.]+,[\d.eE+-]+,[\d.eE+-]*,(Gamma|Weibull|Poisson)?,[^,]*,[^,]*\r?\n")
_DATASET = re.compile(r'\ufeff?\s*\{\s*"\d+"\s*:\s*\{\s*"(input|output)_tokens"')
_SUFFIXES = ("-trace.csv", "-dataset.json")


class Part(NamedTuple):
    """Requests expected while one pair of length distributions holds.

    `input_tokens` with `input_share` and `output_tokens` with `output_share` are distributions, independent.
    """

    requests: float
    input_tokens: IntArray
    input_share: FloatArray
    output_tokens: IntArray
    output_share: FloatArray


class Client(NamedTuple):
    """One client: `windows` of its rate over `span_s` seconds, and what it sends in each part of them."""

    parts: list[Part]
    windows: int
    span_s: float
    gap_cv: float | None
    sha256: str
    notes: tuple[str, ...]


def read(path: Path) -> Client | None:
    """The client that a file is of; None if it is none of ServeGen's.

    Raises
    ------
    UsageError
        It is, but cannot be used; or the other file of the pair is missing.
    """
    kind = _kind(path)
    if kind is None:
        return None
    stem = path.name.removesuffix(_SUFFIXES[kind])
    if stem == path.name:
        raise UsageError(
            f"{path}: a ServeGen client must be called NAME{_SUFFIXES[kind]}, to find its other file"
        )
    rates, lengths = (path.with_name(stem + suffix) for suffix in _SUFFIXES)
    other = lengths if kind == 0 else rates
    if not other.is_file():
        raise UsageError(f"{path}: one half of a ServeGen client; the other, {other.name}, is not beside it")
    starts, rate, cv, unmeasured = _windows(rates)
    distributions = _distributions(lengths)
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
    if unmeasured:
        notes.append(f"{unmeasured:,} windows have no coefficient of variation")
    digest, other_digest = (sha256(file.read_bytes()).hexdigest() for file in (path, other))
    notes.append(f"the other half of the client is {other.name}, sha256 {other_digest}")
    return Client(
        parts=parts,
        windows=int(starts.size),
        span_s=starts.size * width,
        gap_cv=float(expected[known] @ cv[known] / expected[known].sum()) if known.any() else None,
        sha256=digest,
        notes=tuple(notes),
    )


def _kind(path: Path) -> int | None:
    if not path.is_file():  # a pipe can be read only once, and has no other file beside it
        return None
    try:
        start = beginning(path, 4096)
    except UsageError:
        return None  # whoever reads it next says why
    return 0 if _TRACE.match(start) else 1 if _DATASET.match(start) else None


def _windows(path: Path) -> tuple[FloatArray, FloatArray, FloatArray, int]:
    """Start, rate and coefficient of variation of each window, and how many have none of the last."""
    rows = []
    with text_of(path) as (file, _):
        reader = csv.reader(file)
        for row in reader:
            if not row:
                continue
            try:
                start, rate, cv = float(row[0]), float(row[1]), float(row[2] or math.nan)
                if not (math.isfinite(start) and 0 <= rate < math.inf):
                    raise ValueError
            except (IndexError, ValueError):
                seen = repr(",".join(row)[:60])
                message = f"{seen}; must be a start, a rate and a coefficient of variation"
                raise ProfileError(str(path), message, line=reader.line_num) from None
            rows.append((start, rate, cv))
    starts, rates, cvs = np.array(sorted(rows)).T
    return starts, rates, cvs, int(np.isnan(cvs).sum())


def _distributions(
    path: Path,
) -> list[tuple[float, tuple[IntArray, FloatArray], tuple[IntArray, FloatArray]]]:
    with text_of(path) as (file, _):
        text = file.read()
    try:
        document = json.loads(text)
        found = [
            (
                float(begin),
                _distribution(tables["input_tokens"], MAX_INPUT_TOKENS),
                _distribution(tables["output_tokens"], MAX_OUTPUT_TOKENS),
            )
            for begin, tables in document.items()
            # a part in which nothing was seen has empty tables
            if tables["input_tokens"].strip() != "{}" and tables["output_tokens"].strip() != "{}"
        ]
    except (
        ValueError,
        KeyError,
        TypeError,
        AttributeError,
        SyntaxError,
        MemoryError,
        RecursionError,
    ) as error:
        raise UsageError(f"{path}: not a ServeGen dataset: {error}") from None
    if not found:
        raise UsageError(f"{path}: no length distributions")
    return sorted(found, key=lambda part: part[0])


def _distribution(text: str, most: int) -> tuple[IntArray, FloatArray]:
    """Lengths and shares of a dict written in Python; ``{18: 0.25, 19: 0.75}``."""
    table = ast.literal_eval(text)
    lengths = np.array([int(length) for length in table], dtype=np.int64)
    shares = np.array([float(share) for share in table.values()])
    usable = lengths.size and lengths.min() >= 0 and lengths.max() <= most
    if not usable or not (np.isfinite(shares).all() and shares.min() >= 0 and shares.sum() > 0):
        raise ValueError(f"lengths must be from 0 to {most:,}, shares not negative")
    return lengths, shares / shares.sum()
