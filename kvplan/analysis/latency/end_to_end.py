"""Time from arrival to the last token (theory §9): a shifted gamma law for each prompt and length."""

from collections.abc import Sequence

import numpy as np

from kvplan.analysis.kv_cumulants import alike_in_one
from kvplan.analysis.latency.feedback import Feedback
from kvplan.analysis.latency.gamma import gamma_laws
from kvplan.analysis.latency.law import Law, mixture
from kvplan.analysis.latency.means import Means
from kvplan.analysis.latency.traffic import Traffic
from kvplan.model import FloatArray, sum_by

_GROUPS = 48  # of prompts and lengths of a class
_LEVELS = 1 << 10  # of a class


def end_to_end_laws(
    traffic: Traffic,
    feedback: Feedback,
    means: Means,
    first: Sequence[Law],
    ttft_variance: float,
) -> list[Law]:
    """The law of each class.

    Parameters
    ----------
    first
        The law of the time to the first token of each class; there is no more where that is the only one.
    ttft_variance
        Of that time but for the prompt itself, s².
    """
    shift, mean, variance = _moments(traffic, feedback, means, ttft_variance)
    rest = np.maximum(mean - shift, 1e-9 * mean)
    laws = []
    for index, ttft in enumerate(first):
        of_class, single = traffic.class_index == index, traffic.decode_tokens == 1
        mine = of_class & ~single
        if not mine.any():
            laws.append(ttft)
            continue
        rate = traffic.rate_rps[mine] / traffic.rate_rps[mine].sum()
        alike = alike_in_one(mean[mine], rate, _GROUPS)
        share = sum_by(alike, rate)
        of_group = [sum_by(alike, rate * x[mine]) / share for x in (shift, rest, variance)]
        longer = _mixed(share, *of_group)
        numbers = [float(traffic.rate_rps[x].sum()) for x in (of_class & single, mine)]
        laws.append(mixture([ttft, longer], numbers) if numbers[0] > 0 else longer)
    return laws


def _moments(
    traffic: Traffic, feedback: Feedback, means: Means, ttft_variance: float
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Least time, mean and variance of the time to the last token of each row."""
    d, fixed, tau = traffic.decode_tokens, traffic.fixed_s, traffic.iteration_s
    own = (d - 1) * (traffic.stage_s + traffic.token_s * d / 2)
    waited = means.later_s - own - (d - 1) * fixed
    usual = (d - 1) * (tau - fixed)
    bias = np.maximum(1.0, np.where(usual > 0, waited / np.where(usual > 0, usual, 1.0), 1.0))
    c = feedback.covariance
    # Σ_{a,b < n} C(a - b), and Σ_{m=1}^{n} C(m + 1)/2 + C(m), for n = d - 1
    later = np.concatenate([[0.0], np.cumsum(c[1:])])
    among = np.concatenate([[0.0], np.cumsum(c[0] + 2 * later[:-1])])
    with_first = np.concatenate([[0.0], np.cumsum(c[2:] / 2 + c[1:-1])])
    variance = ttft_variance + bias * (among[d - 1] + 2 * with_first[d - 1])
    return d * fixed + traffic.prompt_s + own, means.ttft_s + means.later_s, variance


def _mixed(share: FloatArray, shift: FloatArray, mean: FloatArray, variance: FloatArray) -> Law:
    """Gamma laws of these means and variances, shifted and mixed."""
    deviation = np.sqrt(np.maximum(variance, (1e-6 * mean) ** 2))
    value, below = gamma_laws((mean / deviation) ** 2)
    seconds = shift[:, None] + mean[:, None] * value
    if share.size == 1:
        return Law(seconds[0], below[0])
    pooled = np.sort(seconds.ravel())
    levels = pooled[np.unique(np.linspace(0, pooled.size - 1, _LEVELS).astype(np.int64))]
    mixed = np.zeros(levels.size)
    for p, t, f in zip(share, seconds, below, strict=True):
        mixed += p * np.interp(levels, t, f, left=0.0)
    return Law(levels, mixed)
