"""What is believed of an estimate: each constant is off by a factor of its own, and what loads say of these factors.

ln(constant/estimate) is normal around 0, independent of the others': a covariance learnt from sweeps does not transfer
to other models. The law's misfit counts as noise: loads of one engine repeat far better than any law has them.
"""

from typing import NamedTuple

import numpy as np

from kvplan.ingest.timing.equations import Kind
from kvplan.model import FloatArray

SPREAD, OVERHEAD_SPREAD = 0.4, 0.8  # standard deviations of ln(constant/estimate)
NOISE = {Kind.TPOT: 0.05, Kind.TTFT: 0.12, Kind.E2E: 0.05, Kind.INTERVAL: 0.05}  # of ln(measured/law)
_STEPS, _LONGEST = 8, 1.0  # of Gauss and Newton, and how far one may go


class Posterior(NamedTuple):
    """ln(constant/estimate) after what was measured: mean and covariance, shapes (n,) and (n, n)."""

    mean: FloatArray
    covariance: FloatArray


def posterior(
    parts: FloatArray,
    seconds: FloatArray,
    noise: FloatArray,
    spread: FloatArray,
    offset: FloatArray | float = 0.0,
) -> Posterior:
    """Return what is believed after loads, by the mode and the curvature there.

    `parts` has shape (n_times, n): what each constant of the estimate adds to each time. Constants that add nothing
    stay as believed.

    Examples
    --------
    A load that takes half as long again, with all that is one constant: that constant is larger, by nearly as much.

    >>> found = posterior(np.array([[1.0]]), np.array([1.5]), np.array([0.05]), np.array([0.4]))
    >>> found.mean.round(3).tolist(), np.sqrt(found.covariance).round(3).tolist()
    ([0.399], [[0.05]])
    """
    prior = np.diag(spread**-2.0)
    theta = np.zeros(spread.size)
    for _ in range(_STEPS):
        added = parts * np.exp(theta)
        times = offset + added.sum(axis=1)
        weighted = (slopes := added / times[:, None]).T / noise**2
        covariance = np.linalg.inv(prior + weighted @ slopes)
        step = covariance @ (weighted @ np.log(seconds / times) - prior @ theta)
        theta = theta + np.clip(step, -_LONGEST, _LONGEST)
    return Posterior(theta, covariance)
