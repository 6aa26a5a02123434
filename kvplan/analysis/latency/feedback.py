"""How iterations depend on one another: who runs long lets more in, and they lengthen what follows (theory §9).

Deviations of iteration times are a linear process, driven by arrivals. What it needs are its spectrum and what one
second more in an iteration does to later ones, both from one Fourier transform each. In them the prompts, which work
within a few iterations, stand in closed form; the rest is smooth, and where requests stay for many thousands of
iterations it is taken on cells of several.
"""

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from kvplan.analysis.latency.traffic import Traffic
from kvplan.model import FloatArray, survival

ComplexArray = NDArray[np.complex128]

_RELAXATIONS = 20  # length of the transforms over L/(1 - Λ)
_POINTS = 1 << 16


class Feedback(NamedTuple):
    """The linear process of iteration times.

    Attributes
    ----------
    covariance : ndarray, shape (L + 2,), s²
        C(j), of the times of iterations j apart.
    response : ndarray, shape (L + 2,)
        Seconds that a second more in an iteration adds up to j iterations later, itself included.
    variance_ratio
        r: by how much feedback raises the variance of what requests past prefill add to iterations; 1 where 0/0.
    """

    covariance: FloatArray
    response: FloatArray
    variance_ratio: float


def feedback(traffic: Traffic) -> Feedback:
    """The process of a traffic with Λ < 1.

    Examples
    --------
    Prompts alone, of half a second, twice every three seconds: a third of each iteration comes back in the next.

    >>> traffic = Traffic(1.0, 0.0, 1.5, *np.array([[0], [1]]), *np.array([[9.0], [2 / 3], [0.5], [0.0]]))
    >>> found = feedback(traffic)
    >>> found.response.round(6).tolist(), found.variance_ratio
    ([1.0, 0.333333, 0.111111], 1.0)
    >>> round(float(found.covariance[0]) * (1 - 1 / 9), 6)  # λτ*·v² without feedback
    0.25
    """
    longest, prompts = traffic.longest, traffic.prompt_work
    wanted = _RELAXATIONS * longest / (1 - traffic.work)
    cell = 2 * math.ceil((math.ceil(wanted / _POINTS) - 1) / 2) + 1  # an odd number of iterations
    size = 1 << max(4, math.ceil(math.log2(wanted / cell)))
    rate, prompt_s = traffic.rate_rps, traffic.prompt_s

    def transform(sequence: FloatArray) -> ComplexArray:
        """Of a sequence from iteration 0 on."""
        padded = np.pad(sequence, (cell // 2, -(sequence.size + cell // 2) % cell))
        return np.fft.rfft(padded.reshape(-1, cell).sum(axis=1), size)

    def per_iteration(spectrum: ComplexArray | FloatArray) -> FloatArray:
        cells = np.fft.irfft(spectrum, size) / cell
        return np.interp(np.arange(longest + 2), np.arange(size // 2) * cell, cells[: size // 2])

    def work_of_stages(amount: FloatArray) -> FloatArray:
        """Σ amount·v(k) of those past prefill, at every stage k."""
        k = np.arange(longest)
        present, level = (survival(traffic.stages, x) for x in (amount, amount * traffic.stage_s))
        work = level + traffic.token_s * k * present
        work[0] = 0.0
        return work

    square = float(rate @ prompt_s**2)
    decode = transform(work_of_stages(rate))
    with_prompt = transform(work_of_stages(rate * prompt_s))
    products = _products(traffic)
    variance = products[0]
    products[0] /= 2
    alone = 2 * transform(products).real

    back = np.exp(-2j * math.pi / (size * cell) * np.arange(size // 2 + 1))
    gain, gain_of_prompts = 1 / (1 - back * (prompts + decode)), 1 / (1 - back * prompts)
    both = alone + 2 * with_prompt.real + square
    spectrum = both * np.abs(gain) ** 2 - square * np.abs(gain_of_prompts) ** 2
    decay = prompts ** np.arange(longest + 2)
    covariance = per_iteration(spectrum) + square / (1 - prompts**2) * decay
    covariance[0] = max(covariance[0], 0.0)  # where iterations do not vary, rounding may leave less
    echo = back * decode * gain
    caused = 2 * (echo * (alone + np.conj(with_prompt))).real + np.abs(echo) ** 2 * both
    return Feedback(
        traffic.iteration_s * covariance,
        decay + per_iteration(gain - gain_of_prompts),
        1 + per_iteration(caused)[0] / variance if variance > 0 else 1.0,
    )


def _products(traffic: Traffic) -> FloatArray:
    """Σ rate·Σ_k v(k)·v(k + j) of those past prefill, for every j; shape (L,)."""
    out = np.zeros(traffic.longest)

    def sums(amount: FloatArray, times: int) -> FloatArray:
        """Σ amount times n, n(n + 1)/2 or n(n + 1)(n + 2)/6, n = d - 1 - j the stages that have one j later."""
        values = survival(traffic.stages, amount)[1:]
        for _ in range(times):
            values = np.cumsum(values[::-1])[::-1]
        return values

    rate, level, token_s = traffic.rate_rps, traffic.stage_s, traffic.token_s
    first, second, third = sums(rate * level, 1), sums(rate, 2), sums(rate, 3)
    squares = sums(rate * level**2, 1) + 2 * token_s * sums(rate * level, 2)
    squares += token_s**2 * (2 * third - second)
    out[: squares.size] = squares + token_s * np.arange(squares.size) * (first + token_s * second)
    return out
