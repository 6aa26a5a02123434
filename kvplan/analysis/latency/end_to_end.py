"""Time from arrival to the last token (theory §9): for each prompt and length a shifted gamma law of three moments."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from kvplan.analysis.kv_cumulants import alike_in_one
from kvplan.analysis.latency.feedback import Feedback
from kvplan.analysis.latency.gamma import gamma_laws
from kvplan.analysis.latency.law import Law, mixture
from kvplan.analysis.latency.means import Means
from kvplan.analysis.latency.slow_part import SlowPart
from kvplan.analysis.latency.traffic import Traffic
from kvplan.model import FloatArray, sum_by

_GROUPS = 48  # of prompts and lengths of a class
_LEVELS = 1 << 10  # of a class
_SETTLED = (
    300  # iterations after which what a prompt brings on is over, at the most work of prompts that is covered
)
_LEAST_SKEWNESS, _MOST_SKEWNESS = 1e-3, 100.0


def end_to_end_laws(
    traffic: Traffic,
    feedback: Feedback,
    slow: SlowPart,
    means: Means,
    first: Sequence[Law],
    short: tuple[FloatArray, FloatArray] | None = None,
) -> list[Law]:
    """The law of each class.

    Parameters
    ----------
    first
        The law of the time to the first token of each class; there is no more where that is the only one.
    short
        Variance and skewness of each row where they are known otherwise, else infinite.
    """
    mean = means.ttft_s + means.later_s
    variance, skewness = _shape(traffic, feedback, slow, means)
    if short is not None:
        known = short[0] < np.inf
        variance = np.where(known, short[0], variance)
        skewness = np.where(known, short[1], skewness).clip(_LEAST_SKEWNESS, _MOST_SKEWNESS)
    laws = []
    for index, ttft in enumerate(first):
        of_class, single = traffic.class_index == index, traffic.stages == 1
        mine = of_class & ~single
        if not mine.any():
            laws.append(ttft)
            continue
        rate = traffic.rate_rps[mine] / traffic.rate_rps[mine].sum()
        alike = alike_in_one(mean[mine], rate, _GROUPS)
        share = sum_by(alike, rate)
        of_group = [sum_by(alike, rate * x[mine]) / share for x in (mean, variance, skewness)]
        longer = _mixed(share, *of_group)
        numbers = [float(traffic.rate_rps[x].sum()) for x in (of_class & single, mine)]
        laws.append(mixture([ttft, longer], numbers) if numbers[0] > 0 else longer)
    return laws


class _Moments(NamedTuple):
    """First three of something, or derivatives at 0."""

    first: FloatArray
    second: FloatArray
    third: FloatArray


def _shape(
    traffic: Traffic, feedback: Feedback, slow: SlowPart, means: Means
) -> tuple[FloatArray, FloatArray]:
    """Variance, s², and skewness of each row.

    They follow from the law that its time would have if the slow part did not change meanwhile. The log-transform of
    the sum of d iterations, given c, is c·Σ y_j and more, y_0 = z, y_{j+1} = z + ψ(y_j): what a second of the j-th from
    the end brings on until the end. Beside it stand the own prompt, the own stages, and the iteration of the arrival,
    time-biased, of which a uniform part is waited for. What C makes of the sum beyond that is due to the slow part.

    References
    ----------
    New. A gamma law from the least time on, as in theory §9, has too little variance where prompts take most.
    """
    d, prompt = traffic.stages, traffic.prompt_s
    brought = _brought(traffic)
    sums = _Moments(*(np.append(0.0, np.cumsum(x))[d] for x in brought))
    at_prompt = _Moments(*(x[d - 1] for x in brought))
    behind = _Moments(
        brought.first[d] - 1, brought.second[d], brought.third[d]
    )  # of a second before the prompt
    cumulant, biased = _arrived_in(traffic, slow.mean)
    spread = biased.second - biased.first**2
    # the uniform part, and what it brings on: moments of (behind + u) times the iteration
    powers = [((behind.first + 1) ** (n + 1) - behind.first ** (n + 1)) / (n + 1) for n in (1, 2, 3)]
    a1, a2, a3 = (moment * power for moment, power in zip(biased, powers, strict=True))
    c = slow.mean + _own_s(traffic) / d

    fast = c * sums.second + prompt * at_prompt.second + biased.first * behind.second + a2 - a1**2
    moment = c * sums.third + prompt * at_prompt.third + biased.first * behind.third
    moment += 3 * behind.second * powers[0] * spread + a3 - 3 * a2 * a1 + 2 * a1**3

    steady = c * sums.second + cumulant.first * behind.second + cumulant.second * behind.first**2
    in_window = sums.first + behind.first * cumulant.first / slow.mean
    per_second = sums.first + a1 / slow.mean
    bias = _time_bias(traffic, means)
    rest = bias * np.maximum(_window(traffic, feedback) - steady, 0.0) * (per_second / in_window) ** 2
    moment += (
        3 * fast / (c * per_second) * rest + _slow_moment(slow, np.sqrt(rest) / per_second) * per_second**3
    )
    variance = fast + rest
    skewness = moment / np.where(variance > 0, variance, np.inf) ** 1.5
    # no time is shorter than that of a request alone: such a gamma law has a skewness of two deviations over the rest
    least = d * slow.fixed_s + prompt + _own_s(traffic)
    rest_of_mean = np.maximum(means.ttft_s + means.later_s - least, 1e-9 * least)
    skewness = np.maximum(skewness, 2 * np.sqrt(variance) / rest_of_mean)
    return variance, np.clip(skewness, _LEAST_SKEWNESS, _MOST_SKEWNESS)


def _own_s(traffic: Traffic) -> FloatArray:
    """What a request of each row adds itself past prefill, seconds."""
    d = traffic.stages
    return (d - 1) * (traffic.stage_s + traffic.token_s * d / 2)


def _brought(traffic: Traffic) -> _Moments:
    """Derivatives of y_j at 0; of shape (L + 1,)."""
    work, square, cube = (float(traffic.rate_rps @ traffic.prompt_s**k) for k in (1, 2, 3))
    steps = min(traffic.longest, _SETTLED)
    one, two, three = np.ones(steps + 1), np.zeros(steps + 1), np.zeros(steps + 1)
    for j in range(steps):
        one[j + 1] = 1 + work * one[j]
        two[j + 1] = work * two[j] + square * one[j] ** 2
        three[j + 1] = work * three[j] + 3 * square * one[j] * two[j] + cube * one[j] ** 3
    return _Moments(*(np.pad(x, (0, traffic.longest - steps), mode="edge") for x in (one, two, three)))


def _arrived_in(traffic: Traffic, slow_s: float) -> tuple[_Moments, _Moments]:
    """Cumulants of an iteration given c, and raw moments of one that a request arrives in."""
    work, square, cube = (float(traffic.rate_rps @ traffic.prompt_s**k) for k in (1, 2, 3))
    slope = 1 / (1 - work)  # derivatives of S
    bend = square * slope / (1 - work**2)
    twist = (cube * slope + 3 * square * work * bend) / (1 - work**3)
    k1, k2, k3 = slow_s * slope, slow_s * bend, slow_s * twist
    k4 = 1.5 * k3**2 / k2 if k2 > 0 else 0.0  # as of a gamma law
    second, third = k2 + k1**2, k3 + 3 * k2 * k1 + k1**3
    fourth = k4 + 4 * k3 * k1 + 3 * k2**2 + 6 * k2 * k1**2 + k1**4
    return _Moments(*np.array([k1, k2, k3])), _Moments(*np.array([second, third, fourth]) / k1)


def _window(traffic: Traffic, feedback: Feedback) -> FloatArray:
    """Variance of the sum of d iterations, whoever is in them."""
    later = np.append(0.0, np.cumsum(feedback.covariance[1:]))
    sums = np.append(0.0, np.cumsum(feedback.covariance[0] + 2 * later[:-1]))
    return np.asarray(sums[traffic.stages])


def _time_bias(traffic: Traffic, means: Means) -> FloatArray:
    """By how much more others add to the iterations of a request than to any."""
    later, usual = traffic.stages - 1, traffic.iteration_s - traffic.fixed_s
    if usual <= 0:
        return np.ones(later.size)
    others = means.later_s - _own_s(traffic) - later * traffic.fixed_s
    return np.maximum(1.0, others / (np.maximum(later, 1) * usual))


def _slow_moment(slow: SlowPart, deviation: FloatArray) -> FloatArray:
    """Third central moment of the mean of c over a stay with this deviation: skewness falls with it."""
    value, weight = slow.nodes
    variance = float(weight @ (value - slow.mean) ** 2)
    if variance == 0:
        return np.zeros_like(deviation)
    return float(weight @ (value - slow.mean) ** 3) / variance**2 * deviation**4


def _mixed(share: FloatArray, mean: FloatArray, variance: FloatArray, skewness: FloatArray) -> Law:
    """Shifted gamma laws of these moments, mixed."""
    deviation = np.sqrt(np.maximum(variance, (1e-9 * mean) ** 2))
    value, below = gamma_laws(4 / skewness**2)
    seconds = mean[:, None] + (2 * deviation / skewness)[:, None] * (value - 1)
    if share.size == 1:
        return Law(seconds[0], below[0])
    pooled = np.sort(seconds.ravel())
    levels = pooled[np.unique(np.linspace(0, pooled.size - 1, _LEVELS).astype(np.int64))]
    mixed = np.zeros(levels.size)
    for p, t, f in zip(share, seconds, below, strict=True):
        mixed += p * np.interp(levels, t, f, left=0.0)
    return Law(levels, mixed)
