"""Lengths of requests: ranges that stand for many, and lengths with weights out of a histogram.

Of a bucket only the count is known, of all of them together the mean. Within a bucket (lo, hi] lengths are put at
lo + (hi - lo)·u^γ for evenly spaced u in (0, 1): uniform for γ = 1, towards the lower end for γ > 1. One γ for all
buckets, found by bisection, gives the known mean. Lengths are spread within buckets because a few fixed ones can make
stable traffic look unstable.
"""

import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from kvplan.model import FloatArray, IntArray, RequestClass
from kvplan.solve import boundary
from kvplan.units import format_number, format_percent, format_tokens

BINS = 8  # classes made of ranges of the input length, at most
POINTS = 50  # decode lengths of a class, at most
_MAX_LOG_EXPONENT = 12.0  # e^12: all lengths at the lower end
_OPEN_TIMES = 2.0  # the open bucket ends at so many times the last edge, unless the mean says otherwise
_EXACT_BELOW = 200  # tokens; from there on rounding a length changes it by at most 0.25 %
_SPREAD = 16  # lengths that stand for a mean
_WHOLE = 1e-6  # tokens; nearer to a whole number a length is one
_KEPT = 0.005  # relative error of a mean that is not worth a word


def cut(values: IntArray, count: FloatArray, limit: int) -> IntArray:
    """Group values by size into at most `limit` ranges: the group of each, from 0 up.

    Means lose the least squared error where the density of ranges follows the cube root of the density of values
    (Panter and Dite 1951): more ranges than equally frequent ones where values are few and far between. No more than
    `limit` distinct values are left alone.

    `count` is how often each came; all of shape (n,).

    Examples
    --------
    >>> cut(np.array([7, 1, 2, 100]), np.ones(4), 2).tolist()
    [0, 0, 0, 1]
    """
    distinct, group = np.unique(values, return_inverse=True)
    if distinct.size > limit:
        gap = np.diff(distinct, prepend=2 * distinct[0] - distinct[1]).astype(np.float64)
        share = np.cbrt(np.bincount(group, count) * gap**2)
        for _ in range(limit):  # what alone would take several ranges can only fill one
            share = np.minimum(share, share.sum() / limit)
        place = np.floor((np.cumsum(share) - share / 2) / share.sum() * limit)
        group = np.unique(np.minimum(place, limit - 1), return_inverse=True)[1][group]
    return group.astype(np.int64)


def span(values: IntArray) -> str:
    """Name a range of lengths, as names of classes say it."""
    low, high = int(values.min()), int(values.max())
    return f"{low}" if low == high else f"{low}-{high}"


@dataclass(frozen=True, slots=True)
class LengthHistogram:
    """How many lengths fell between which edges."""

    edges: FloatArray  # upper ones, ascending, shape (n,), tokens; the last bucket is open
    counts: FloatArray  # in each bucket, a length on an edge below it; shape (n + 1,)
    total: float  # tokens
    count: float

    @property
    def mean(self) -> float:
        """Tokens."""
        return self.total / self.count


class Lengths(NamedTuple):
    """Distinct lengths, ascending, with weights; `notes` are what had to be assumed, or does not fit."""

    tokens: IntArray  # at least 1, shape (n_lengths,)
    weight: FloatArray  # requests of each length
    empty: float  # requests of no length at all, which are left out
    notes: tuple[str, ...]

    @property
    def mean(self) -> float:
        """Tokens."""
        return float(self.weight @ self.tokens / self.weight.sum())


def lengths(histogram: LengthHistogram, what: str, limit: int = POINTS) -> Lengths:
    """Choose at most `limit` lengths with the histogram's mean, and in every bucket its count; notes call them `what`.

    Where so many buckets are filled that there are not enough lengths for all, the least that matter are merged.

    References
    ----------
    New, theory §3 ("Traces") for why lengths must not be few.

    Examples
    --------
    >>> halves = LengthHistogram(np.array([2.0, 10.0]), np.array([1.0, 3.0, 0.0]), 20.0, 4.0)
    >>> some = lengths(halves, "prompts", limit=8)
    >>> round(some.mean, 9), float(some.weight[some.tokens <= 2].sum())
    (5.0, 1.0)
    """
    notes: list[str] = []
    buckets, empty = _filled(histogram)
    weight = buckets.weight.sum()
    if not weight:
        return Lengths(np.empty(0, np.int64), np.empty(0), empty, ())
    mean = histogram.total / weight
    if buckets.open:
        buckets = _closed(buckets, mean)
        notes.append(
            f"{format_percent(buckets.weight[-1] / weight, 2)} of the {what} are longer than the last edge, "
            f"{format_tokens(buckets.low[-1] - 1)} tokens; they are taken to end at {format_tokens(buckets.high[-1])}"
        )
    buckets = _merged(buckets, limit)
    number = _shared_out(buckets, limit)
    tokens, weights = _whole(_placed(buckets, number, mean))
    chosen = Lengths(tokens, weights, empty, ())
    if abs(chosen.mean - mean) > _KEPT * mean:
        notes.append(
            f"the mean length of the {what}, {format_number(mean)} tokens by sum and count, does not fit the buckets; "
            f"{format_number(chosen.mean)} is the nearest"
        )
    return chosen._replace(notes=tuple(notes))


def spread_around(mean: float, most: int) -> Lengths:
    """Take lengths of which only the mean is known for exponential ones, cv 1, at most so many tokens.

    >>> some = spread_around(280.0, 900)
    >>> round(some.mean), int(some.tokens[0]), int(some.tokens[-1])
    (280, 9, 900)
    """
    quantiles = -np.log1p(-(np.arange(_SPREAD) + 0.5) / _SPREAD)
    points = np.clip(quantiles * (mean / quantiles.mean()), 1.0, most)
    for _ in range(_SPREAD):  # what was cut off goes to the others
        points = np.clip(points * (mean / points.mean()), 1.0, most)
    tokens, weight = _whole((points, np.ones(_SPREAD)))
    return Lengths(tokens, weight / weight.sum(), 0.0, ())


def independent_classes(
    inputs: Lengths, decode: Lengths, rate_rps: float, bins: int = BINS
) -> tuple[RequestClass, ...]:
    """Make classes of ranges of the input length, each with all decode lengths: how the two go together is not known.

    At most `bins` classes; `rate_rps` is that of all together.

    Examples
    --------
    >>> inputs = Lengths(np.array([10, 300]), np.array([3.0, 1.0]), 0.0, ())
    >>> decode = Lengths(np.array([20, 40]), np.array([1.0, 1.0]), 0.0, ())
    >>> [(c.name, c.input_tokens, c.decode_tokens, c.rate_rps) for c in independent_classes(inputs, decode, 2.0)]
    [('input 10', 10, (20, 40), 1.5), ('input 300', 300, (20, 40), 0.5)]
    """
    group = cut(inputs.tokens, inputs.weight, bins)
    weight = np.bincount(group, inputs.weight).astype(np.float64, copy=False)
    means = np.bincount(group, inputs.weight * inputs.tokens) / weight
    tokens = np.rint(means).astype(np.int64)
    share = _rebalanced(tokens, weight, float(weight @ means)) / weight.sum()
    return tuple(
        RequestClass(
            name=f"input {span(inputs.tokens[group == g])}",
            input_tokens=int(tokens[g]),
            decode_tokens=tuple(decode.tokens.tolist()),
            decode_weights=tuple(decode.weight.tolist()),
            rate_rps=rate_rps * float(share[g]),
        )
        for g in range(weight.size)
    )


class _Buckets(NamedTuple):
    """Filled buckets: shortest and longest whole length in each, and how many; `open`: the last has no end yet."""

    low: FloatArray
    high: FloatArray
    weight: FloatArray
    open: bool


def _filled(histogram: LengthHistogram) -> tuple[_Buckets, float]:
    """Choose the buckets with anything in them, and count the lengths that are zero for certain."""
    below = np.floor(np.concatenate([[0.0], histogram.edges]))
    high = np.append(np.floor(histogram.edges), np.inf)
    low = np.maximum(below, 0) + 1
    zero = np.append(histogram.edges < 1, False)
    filled = (histogram.counts > 0) & ~zero
    high = np.maximum(high, low)  # no whole number between two edges
    buckets = _Buckets(low[filled], high[filled], histogram.counts[filled], bool(histogram.counts[-1] > 0))
    return buckets, float(histogram.counts[zero].sum())


def _closed(buckets: _Buckets, mean: float) -> _Buckets:
    """End the open bucket at twice its beginning, or further if the mean cannot be reached otherwise."""
    low, high, weight, _ = buckets
    high = high.copy()
    high[-1] = _OPEN_TIMES * max(low[-1] - 1, 1)
    needed = (mean * weight.sum() - weight[:-1] @ high[:-1]) / weight[-1]
    if needed > high[-1]:
        middle = (mean * weight.sum() - weight[:-1] @ (low[:-1] + high[:-1]) / 2) / weight[-1]
        high[-1] = math.ceil(2 * middle - low[-1])
    return _Buckets(low, np.maximum(high, low), weight, False)


def _cost(buckets: _Buckets, number: IntArray) -> IntArray:
    """Count the whole lengths that so many points become at most: a short one is shared between two neighbours."""
    width = buckets.high - buckets.low + 1
    doubled = np.where(buckets.low < _EXACT_BELOW, 2 * number, number)
    return np.minimum(doubled, np.minimum(width, 1e9)).astype(np.int64)


def _merged(buckets: _Buckets, limit: int) -> _Buckets:
    """Merge neighbours where that widens the least, until one point in each is not too many."""
    low, high, weight, _ = buckets
    while _cost(_Buckets(low, high, weight, False), np.ones(low.size, np.int64)).sum() > limit:
        at = int(((weight[:-1] + weight[1:]) * (high[1:] - low[:-1]) ** 2).argmin())
        weight = np.concatenate([weight[:at], [weight[at] + weight[at + 1]], weight[at + 2 :]])
        low, high = np.delete(low, at + 1), np.delete(high, at)
    return _Buckets(low, high, weight, False)


def _shared_out(buckets: _Buckets, limit: int) -> IntArray:
    """Count the points that each bucket gets: the next one always where it lowers the squared error the most."""
    number = np.ones(buckets.low.size, np.int64)
    width = buckets.high - buckets.low
    growing = number <= width
    while growing.any():
        error = np.where(growing, buckets.weight * (width / number) ** 2, -1.0)
        at = int(error.argmax())
        number[at] += 1
        if _cost(buckets, number).sum() > limit:
            number[at] -= 1
            growing[at] = False
        else:
            growing[at] = number[at] <= width[at]
    return number


def _placed(buckets: _Buckets, number: IntArray, mean: float) -> tuple[FloatArray, FloatArray]:
    """Place points in the buckets that have this mean, or come nearest to it; with their weights."""
    bucket = np.repeat(np.arange(number.size), number)
    first = np.cumsum(number) - number
    even = (np.arange(bucket.size) - first[bucket] + 0.5) / number[bucket]
    low, width = buckets.low[bucket], (buckets.high - buckets.low)[bucket]
    weight = (buckets.weight / number)[bucket]

    def points(log_exponent: float) -> FloatArray:
        return low + width * even ** math.exp(log_exponent)

    wanted = mean * weight.sum()
    # the mean falls as the exponent grows
    _, exponent = boundary(lambda log: weight @ points(log) <= wanted, -_MAX_LOG_EXPONENT, _MAX_LOG_EXPONENT)
    return points(exponent), weight


def _whole(placed: tuple[FloatArray, FloatArray]) -> tuple[IntArray, FloatArray]:
    """Round a long one, and share a short one between its neighbours, which keeps the mean."""
    points, weight = placed
    points = np.where(points < _EXACT_BELOW, points, np.rint(points))
    down = np.floor(points + _WHOLE)
    part = points - down
    part = np.where(part < _WHOLE, 0.0, part)
    tokens, place = np.unique(np.concatenate([down, down + 1]).astype(np.int64), return_inverse=True)
    weights = np.bincount(place, np.concatenate([weight * (1 - part), weight * part]), tokens.size)
    kept = weights > 0
    return tokens[kept], weights[kept].astype(np.float64)


def _rebalanced(tokens: IntArray, weight: FloatArray, total: float) -> FloatArray:
    """Move weights between two neighbours so that rounded lengths have the sum they had before."""
    missing = total - float(weight @ tokens)
    if tokens.size < 2:
        return weight
    gap = np.diff(tokens).astype(np.float64)
    most = (weight[:-1] if missing > 0 else weight[1:]) / 2
    enough = most * gap >= abs(missing)
    # the least moved
    at = int(np.where(enough, gap, 0.0).argmax() if enough.any() else (most * gap).argmax())
    moved = math.copysign(min(abs(missing) / gap[at], most[at]), missing)
    weight = weight.copy()
    weight[at] -= moved
    weight[at + 1] += moved
    return weight
