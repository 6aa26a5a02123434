"""Batches of arrivals that are served one after the other, in a fixed time each: how long they wait on average.

A batch is there once so many requests have arrived. Where gaps between arrivals are independent, so are those between
batches: a GI/D/1 queue.
"""

import math

import numpy as np

_SUMMED = 64  # steps of the random walk that are added one by one; later ones are integrated
_POINTS = 2001
_EXPONENT = 45.0  # of what is left out
_NEAR_FULL = 1e-4  # from a full queue, nearer than which the bound is as good


def batch_wait_s(rate_rps: float, cv: float, batch: int, service_s: float) -> float:
    """Mean wait of a batch for those before it, seconds.

    Fewer requests than a `batch` arrive in `service_s`; gaps between arrivals are gamma with coefficient of variation
    `cv`.

    References
    ----------
    Spitzer's identity for the GI/D/1 queue: Σ_k E[(k·D - G_k)⁺]/k, G_k the time of k batches. Near a full queue Daley's
    bound (1977, "Inequalities for moments of tails of random variables, with a queueing application").

    Examples
    --------
    Single Poisson arrivals at half load wait for half a service time (Pollaczek and Khinchine):

    >>> round(batch_wait_s(2.0, 1.0, 1, 0.25), 9)
    0.125
    """
    from scipy.special import gammainc, gammaln  # type: ignore[import-untyped]

    shape, load = batch / cv**2, rate_rps * service_s / batch
    if 1 - load < _NEAR_FULL:
        return load * (2 - load) * cv**2 / (2 * rate_rps * max(1 - load, math.ulp(1.0)))
    steps = _EXPONENT / (shape * (load - 1 - math.log(load)))

    def term(k: np.ndarray) -> np.ndarray:
        """E[(k·D - G_k)⁺]/k over the mean time between batches."""
        a, x = k * shape, k * shape * load
        return np.asarray((load - 1) * gammainc(a, x) + np.exp(a * np.log(x) - x - gammaln(a + 1)))

    total = float(term(np.arange(1.0, min(math.ceil(steps), _SUMMED) + 1)).sum())
    if steps > _SUMMED:
        log_k = np.linspace(math.log(_SUMMED + 0.5), math.log(steps), _POINTS)
        k = np.exp(log_k)
        total += float(np.trapezoid(term(k) * k, log_k))
    return max(total, 0.0) * batch / rate_rps
