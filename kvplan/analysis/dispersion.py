"""How unevenly arrivals come: the index of dispersion of gamma renewal arrivals over a stretch of time (theory §9)."""

import math

import numpy as np

from kvplan.model import ServingModel
from kvplan.solve import boundary

_DEVIATIONS = 12  # of a number of arrivals, beyond which nothing is added
_LONG = 40  # cv² or 1/cv² arrivals, after which what the first one did is forgotten to the last digit
LEAST_CV, MOST_CV = 0.01, 100.0  # of gaps, that anybody means


def index_of_dispersion(rate_rps: float, cv: float, window_s: float) -> float:
    """Variance over mean of the arrivals in a window, gaps being gamma of coefficient of variation `cv`.

    1 for Poisson arrivals; of others cv² in long windows, nearer to 1 in short ones.

    References
    ----------
    Theory §9 step 7: I(x) - 1 = (2/x)·∫₀ˣ(H(t) - λt)dt, H the renewal function, a sum of gamma laws here. In long
    windows cv² + (1 - cv⁴)/6x: Cox, "Renewal Theory", 1962, §4.5.

    Examples
    --------
    >>> index_of_dispersion(2.0, 1.0, 5.0)
    1.0
    >>> [round(index_of_dispersion(2.0, 3.0, window), 2) for window in (0.01, 1.0, 100.0, 10_000.0)]
    [2.82, 6.11, 8.93, 9.0]
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
