"""How often a request finds nobody there, and is served at once (theory §9)."""

import math
from dataclasses import replace

import numpy as np

from kvplan.analysis.equilibrium import iteration_time
from kvplan.analysis.kv_cumulants import cluster_grid, cumulants
from kvplan.analysis.latency.traffic import Traffic
from kvplan.model import ServingModel

_MOST_IN_FLIGHT = 10.0


def empty_probability(model: ServingModel, traffic: Traffic) -> float:
    """P₀, that nobody is there in an iteration, if iterations went on while nobody is; 0 with ten in flight.

    Raises
    ------
    FloatingPointError
        Requests are so much larger than others that floats do not hold it.

    References
    ----------
    New, theory §9: the cumulant function of memory (`kvplan.analysis.kv_cumulants`) at minus infinity.

    Examples
    --------
    One stage each, of no time: the arrivals of an iteration are Poisson.

    >>> from kvplan.analysis.latency.traffic import traffic_of
    >>> from kvplan.model import Replica, RequestClass, Timing
    >>> model = ServingModel((RequestClass("a", 9, (1,), (1.0,), 2.0),), Timing(0.5), Replica(99))
    >>> round(empty_probability(model, traffic_of(model)), 6)
    0.367879
    """
    if traffic.in_flight > _MOST_IN_FLIGHT:
        return 0.0
    model = _in_parts(model)
    if iteration_time(model) is None:  # the further iterations alone leave no time
        return 0.0
    nothing = -1000.0 / float(model.mix.held.at_start.min())
    log_probability = float(cumulants(cluster_grid(model), np.array([nothing]))[0, 0])
    if math.isnan(log_probability):
        raise FloatingPointError("the recursion for memory leaves floats")
    return math.exp(log_probability)


def _in_parts(model: ServingModel) -> ServingModel:
    """Requests whose prompts take more than one iteration stay for so many more."""
    budget = model.replica.max_num_batched_tokens
    if budget is None or all(prompt.tokens <= budget for c in model.classes for prompt in c.kinds):
        return model
    classes = (
        replace(
            c,
            input_tokens=prompt.tokens,
            prompts=(),
            input_law=None,
            decode_law=None,
            rate_rps=c.rate_rps * prompt.share,
            decode_tokens=tuple(d + (prompt.tokens - 1) // budget for d in c.decode_tokens),
        )
        for c in model.classes
        for prompt in c.kinds
    )
    return replace(model, classes=tuple(classes))


def idle_probability(traffic: Traffic, empty: float) -> float:
    """That a request finds the replica idle: iterations stop where nobody is there, and the next arrival starts one.

    Examples
    --------
    Single stages of no time, one iteration's worth of arrivals a busy iteration: all that come within one wait.

    >>> traffic = Traffic(1.0, 0.0, 1.0, *np.array([[0], [1]]), *np.array([[9.0], [1.0], [0.0], [0.0]]))
    >>> round(idle_probability(traffic, math.exp(-1)), 6) == round(1 / (1 + math.e), 6)
    True
    """
    if empty == 0:
        return 0.0
    again = 1 / -math.expm1(-traffic.total_rps * traffic.fixed_s)
    running = max(traffic.iteration_s / empty - traffic.fixed_s, 0.0)
    return 1 / (1 + traffic.total_rps * again * running)


def saved_by_idling(traffic: Traffic, wait_s: float, empty: float, idle: float) -> float:
    """By how much the mean time to the first token changes since iterations stop where nobody is there, seconds.

    If they went on, requests would arrive in empty ones too, wait for half of d0 and share the next iteration. The
    others wait as long either way; only, there are more of them.

    Parameters
    ----------
    wait_s
        The mean time to the first token but for the prompt itself, if iterations went on.

    References
    ----------
    New.

    Examples
    --------
    Where there is never anybody else, half an iteration:

    >>> lone = Traffic(1.0, 0.0, 1.0, *np.array([[0], [1]]), *np.array([[9.0], [1e-9], [0.0], [0.0]]))
    >>> round(saved_by_idling(lone, 1.5, math.exp(-1e-9), 1.0), 6)
    -0.5
    """
    in_empty = empty * traffic.fixed_s / traffic.iteration_s
    if in_empty >= 1 or idle == 1:
        return traffic.fixed_s - wait_s
    wait_in_empty = traffic.fixed_s * (1.5 + traffic.prompt_work)
    busy = (wait_s - in_empty * wait_in_empty) / (1 - in_empty)
    return idle * traffic.fixed_s + (1 - idle) * busy - wait_s
