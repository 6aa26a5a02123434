"""Mean latencies, exact below saturation (theory §9)."""

from typing import NamedTuple

import numpy as np

from kvplan.analysis.latency.feedback import Feedback
from kvplan.analysis.latency.traffic import Traffic
from kvplan.model import FloatArray


class Means(NamedTuple):
    """Mean latencies of each row of a traffic, seconds; shape (n_rows,).

    Attributes
    ----------
    ttft_s
    later_s
        From the first token to the last: the d - 1 iterations after the one of the prompt.
    """

    ttft_s: FloatArray
    later_s: FloatArray


def means(traffic: Traffic, feedback: Feedback) -> Means:
    """The m-th iteration after that of a request's prompt takes e(m) = τ* + C(m + 1)/τ* + u(m) on average.

    A request is more likely to arrive in a long iteration, and those after it are like it; u is what the request
    itself does to them, whom it lets in included. It waits for half of the iteration that it arrives in.

    Examples
    --------
    Without feedback, seldom anybody else: half an iteration, the prompt's, and two more with 0.1 + k·0.01 s.

    >>> from kvplan.analysis.latency.feedback import feedback
    >>> lone = Traffic(1.0, 0.01, 1.0, *np.array([[0], [3]]), *np.array([[9.0], [1e-9], [0.5], [0.1]]))
    >>> [m.round(6).tolist() for m in means(lone, feedback(lone))]
    [[2.0], [2.23]]
    """
    tau = traffic.iteration_s
    like = feedback.covariance / tau
    ttft = (tau + like[0]) / 2 + tau + like[1] + traffic.prompt_s
    # Σ_k v(k) g(m - k), v linear in k from 1 on: running sums of g, over m from 1 to d - 1
    one = feedback.response[:-1]
    past = np.concatenate([[0.0], np.cumsum(one[:-1])])
    ages = np.cumsum(past)
    sums = [np.concatenate([[0.0, 0.0], np.cumsum(x[1:])]) for x in (like[1:], one, past, ages)]
    alike, prompt, level, slope = (x[traffic.stages] for x in sums)
    later = (traffic.stages - 1) * tau + alike
    later += traffic.prompt_s * prompt + traffic.stage_s * level + traffic.token_s * slope
    return Means(ttft, later)
