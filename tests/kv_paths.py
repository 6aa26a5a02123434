"""KV usage of a replica whose memory is unlimited, request by request: written apart from the formulas.

Arrivals over an iteration, Poisson or with gamma gaps, join the next one; it takes d0 + d1·K + d2·P + d3·B seconds,
K tokens read, P prompt tokens computed and B requests running. A request of `first` tokens grows by one an iteration
for `stages` iterations, and holds whole pages.
"""

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, NamedTuple

import numpy as np

from kvplan.model import FloatArray, ServingModel

_WARM_UP = 20  # stays over 1 - Λ


class Path(NamedTuple):
    """What was seen of a path.

    Attributes
    ----------
    mean, variance
        Of KV usage, tokens.
    exceeded : ndarray, shape (n_levels,)
        Share of iterations above each level.
    clumps : ndarray of int64, shape (n_levels,)
        Excursions above it that are further apart than the longest stay.
    any_in : ndarray, shape (n_levels, n_windows)
        Share of windows of so many iterations with any above it; NaN without two overflows.
    """

    mean: float
    variance: float
    exceeded: FloatArray
    clumps: Any
    any_in: FloatArray


def path(
    model: ServingModel,
    work_rate: float,
    levels: Sequence[int],
    windows: Sequence[float],
    iterations: int,
    seed: int,
) -> Path:
    """Follow a path of a model of work rate Λ, from which its warm-up follows."""
    replica, timing = model.replica, model.timing
    inline, ready = replica.prefill == "inline", replica.prefill == "disaggregated"
    rows = [
        (
            c.input_tokens + (not inline),
            d + inline,
            0 if ready else c.input_tokens,
            c.rate_rps * w / sum(c.decode_weights),
        )
        for c in model.classes
        for d, w in zip(c.decode_tokens, c.decode_weights, strict=True)
    ]
    first, stages, prompt, rate = (np.array(column) for column in zip(*rows, strict=True))
    warm_up = int(_WARM_UP * stages.max() / (1 - work_rate))
    times = np.array([timing.d0, timing.d1, timing.d2, timing.d3])
    mean, variance, exceeded, clumps, inside, span = _compiled()(
        first, stages, prompt, rate, times, replica.block_tokens, np.array(levels), np.array(windows, float),
        iterations, warm_up, seed, model.arrivals.cv,
    )  # fmt: skip
    return Path(mean, variance, exceeded, clumps, inside / np.where(span > 0, span, np.nan)[:, None])


@cache
def _compiled() -> Callable[..., Any]:
    import numba

    return numba.njit(cache=True)(_follow)  # type: ignore[no-any-return]


def _follow(
    first: Any, stages: Any, prompt: Any, rate: Any, times: Any, page: Any, levels: Any, windows: Any,
    iterations: Any, warm_up: Any, seed: Any, cv: Any,
) -> Any:  # fmt: skip
    np.random.seed(seed)
    longest = stages.max()
    begun = np.zeros(
        (len(stages), longest), np.int64
    )  # requests that began so many iterations ago, modulo their stay
    # whose next token begins a page at iterations t with t % page == j
    full_at = np.zeros(page, np.int64)
    held = read = running = 0
    elapsed, due, came, ends = times[0], 0.0, np.zeros(len(rate), np.int64), np.cumsum(rate) / rate.sum()
    total = squares = 0.0
    exceeded, clumps = np.zeros(len(levels)), np.zeros(len(levels), np.int64)
    last, span, inside = (
        np.full(len(levels), -1),
        np.zeros(len(levels)),
        np.zeros((len(levels), len(windows))),
    )
    for step in range(warm_up + iterations):
        for i in range(len(stages)):  # those who are done leave
            gone = begun[i, step % stages[i]]
            tokens = first[i] + stages[i] - 1
            held -= gone * (-(-tokens // page) * page)
            read -= gone * tokens
            running -= gone
            full_at[(step - stages[i] - first[i] + 1) % page] -= gone
        held += full_at[step % page] * page  # others grow
        read += running
        computed = 0
        if cv != 1:
            came[:] = 0
            while due < elapsed:
                came[min(np.searchsorted(ends, np.random.random()), len(rate) - 1)] += 1
                due += np.random.gamma(1 / cv**2) * cv**2 / rate.sum()
            due -= elapsed
        for i in range(len(stages)):  # new ones begin
            new = came[i] if cv != 1 else np.random.poisson(rate[i] * elapsed)
            begun[i, step % stages[i]] = new
            held += new * (-(-first[i] // page) * page)
            read += new * first[i]
            running += new
            computed += new * prompt[i]
            full_at[(step - first[i] + 1) % page] += new
        elapsed = times[0] + times[1] * read + times[2] * computed + times[3] * running
        if step < warm_up:
            continue
        total += held
        squares += float(held) * held
        for k in range(len(levels)):
            if held > levels[k]:
                exceeded[k] += 1
                if last[k] >= 0:
                    gap = step - last[k]
                    span[k] += gap
                    clumps[k] += gap > longest
                    # windows that begin after one overflow and reach the next
                    for w in range(len(windows)):
                        inside[k, w] += min(gap, windows[w])
                last[k] = step
    mean = total / iterations
    return mean, squares / iterations - mean**2, exceeded / iterations, clumps, inside, span
