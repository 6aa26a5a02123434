"""Arrivals with gamma gaps: their index of dispersion over a stretch of time, and waits of batches (theory §5, §9)."""

import math

import numpy as np

from kvplan.model import ServingModel
from kvplan.solve import boundary

_DEVIATIONS = 12  # of a number of arrivals, beyond which nothing is added
_LONG = 40  # cv² or 1/cv² arrivals, after which what the first one did is forgotten to the last digit
_SUMMED = 64  # steps of the random walk that are added one by one; later ones are integrated
_POINTS = 2001
_EXPONENT = 45.0  # of what is left out
_NEAR_FULL = 1e-4  # from a full queue, nearer than which the bound is as good
LEAST_CV, MOST_CV = 0.01, 100.0  # of gaps, that anybody means


def index_of_dispersion(rate_rps: float, cv: float, window_s: float) -> float:
    """Variance over mean of the arrivals in a window, gaps being gamma of coefficient of variation `cv`.

    1 for Poisson arrivals; of others cv² in long windows, nearer to 1 in short ones.

    References
    ----------
    Theory §9 step 7: I(x) - 1 = (2/x)·∫₀ˣ(H(t) - λt)dt, H the renewal function, a sum of gamma laws here. In long
    windows cv² + (1 - cv⁴)/6x: Cox, "Renewal Theory", 1962, §4.5.
    """
    if cv == 1:
        return 1.0
    from scipy.special import gammainc  # type: ignore[import-untyped]

    variance, scaled = cv**2, rate_rps * window_s
    if scaled > _LONG * max(variance, 1 / variance):
        return variance + (1 - variance**2) / (6 * scaled)
    most = scaled + _DEVIATIONS * (cv * math.sqrt(scaled) + variance) + 2
    # P(sum of n gaps <= x) is gammainc(n/cv², λx/cv²); its integral over x follows by parts
    shape, end = np.arange(1, math.ceil(most) + 1) / variance, scaled / variance
    integral = scaled * gammainc(shape, end) - shape * variance * gammainc(shape + 1, end)
    return float(1 + 2 / scaled * (integral.sum() - scaled**2 / 2))


def cv_of_dispersion(rate_rps: float, index: float, window_s: float) -> float:
    """Return the coefficient of variation that gives arrivals in a window this index of dispersion; at most 100."""

    def enough(log_cv: float) -> bool:
        return index_of_dispersion(rate_rps, math.exp(log_cv), window_s) >= index

    return math.exp(boundary(enough, math.log(LEAST_CV), math.log(MOST_CV))[1])


def stay_s(model: ServingModel) -> float:
    """Mean time that requests are in the engine, seconds; alone there where it is overloaded."""
    from kvplan.analysis.equilibrium import iteration_time, time_alone

    tau = iteration_time(model)
    return time_alone(model) if tau is None else tau * float(model.mix.share @ model.mix.iterations)


def excess_dispersion(model: ServingModel) -> float:
    """Return the index of dispersion over a stay less 1; 0 for arrivals that do not cluster.

    Those that are more regular than Poisson arrivals are taken for these, which is on the safe side.
    """
    if model.arrivals.cv <= 1:
        return 0.0
    return index_of_dispersion(model.total_rate_rps, model.arrivals.cv, stay_s(model)) - 1


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
    """
    from scipy.special import gammainc, gammaln

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
