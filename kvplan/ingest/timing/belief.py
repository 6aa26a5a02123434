"""Prior and posterior of the constants of an estimate.

ln(constant/estimate) is normal around 0, independent of the others': a covariance learnt from sweeps does not transfer
to other models. The law's misfit counts as noise: loads of one engine repeat far better than any law has them. Widths
are learnt with the estimate: [belief] in kvplan/ingest/model/roofline.toml.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from kvplan.ingest.model.roofline import learnt
from kvplan.ingest.timing.equations import Kind
from kvplan.model import FloatArray

_STEPS, _LONGEST = 30, 1.0  # of Gauss and Newton, and how far one may go
_FAR = 1.5  # standard deviations beyond which a time counts for less (Huber 1964)
_TENTH = 1.2816  # standard deviations from the mean of a normal distribution to its quantile .9
FADES = math.log(4)  # distance in ln(concurrency) over which a misfit is another's by half and more

_BELIEF = learnt("belief")
SPREAD, OVERHEAD_SPREAD, MISFIT = (float(_BELIEF[name]) for name in ("constants", "overhead", "misfit"))
NOISE = {
    kind: float(_BELIEF["ttft" if kind is Kind.TTFT else "tpot"]) for kind in Kind
}  # of ln(measured/law)


class Posterior(NamedTuple):
    """ln(constant/estimate) after what was measured: mean and covariance, shapes (n,) and (n, n)."""

    mean: FloatArray
    covariance: FloatArray

    def spread(self, parts: FloatArray) -> FloatArray:
        """Return standard deviations of the logarithms of times, of which `parts` are as `posterior` has them."""
        added = parts * np.exp(self.mean)
        shares = added / added.sum(axis=1, keepdims=True)
        return np.asarray(np.sqrt(np.einsum("ij,jk,ik->i", shares, self.covariance, shares)))


def widths(names: Sequence[str]) -> FloatArray:
    """Return how far constants may be off: standard deviations of ln(constant/estimate)."""
    return np.array([OVERHEAD_SPREAD if name == "request_overhead" else SPREAD for name in names])


def posterior(
    parts: FloatArray,
    seconds: FloatArray,
    noise: FloatArray,
    spread: FloatArray,
    offset: FloatArray | float = 0.0,
) -> Posterior:
    """Return the posterior after loads: its mode, and the curvature there.

    `parts` has shape (n_times, n): what each constant of the estimate adds to each time. Constants that add nothing
    stay as believed.

    Examples
    --------
    A load that takes half as long again, with all that is one constant: that constant is larger, by nearly as much.

    >>> belief = posterior(np.array([[1.0]]), np.array([1.5]), np.array([0.05]), np.array([0.4]))
    >>> belief.mean.round(3).tolist(), np.sqrt(belief.covariance).round(3).tolist()
    ([0.399], [[0.05]])
    """
    prior = np.diag(spread**-2.0)
    theta = np.zeros(spread.size)
    for _ in range(_STEPS):
        added = parts * np.exp(theta)
        times = offset + added.sum(axis=1)
        off = np.log(seconds / times)
        weighted = (slopes := added / times[:, None]).T / (
            noise**2 * np.maximum(np.abs(off) / (_FAR * noise), 1)
        )
        covariance = np.linalg.inv(prior + weighted @ slopes)
        step = covariance @ (weighted @ off - prior @ theta)
        theta = theta + np.clip(step, -_LONGEST, _LONGEST)
    return Posterior(theta, covariance)


def misfit(places: Sequence[float], place: float) -> float:
    """Return the error that no constants mend at ln(concurrency) `place`, given loads at `places`."""
    alike = max((math.exp(-abs(place - seen) / FADES) for seen in places), default=0.0)
    return MISFIT * math.sqrt(1 - alike**2)


def ends(spread: float) -> tuple[float, float]:
    """Return the factors that enclose four of five.

    >>> [round(end, 3) for end in ends(0.1)]
    [0.88, 1.137]
    """
    return math.exp(-_TENTH * spread), math.exp(_TENTH * spread)


def spread_of(band: tuple[float, float]) -> float:
    """Return the standard deviation of a logarithm of which four of five are within a band."""
    return math.log(band[1] / band[0]) / (2 * _TENTH)
