"""Latencies of a model by the closed form (theory §9), or why there is none."""

from collections.abc import Sequence

import numpy as np

from kvplan.analysis.latency.budget import budgeted, gaps_law, short_stays, slow_mean, too_full
from kvplan.analysis.latency.conditions import budget_binds, not_covered, too_much_work, waits
from kvplan.analysis.latency.distribution import NONE, ClassLatency, Distribution, Latency
from kvplan.analysis.latency.end_to_end import end_to_end_laws
from kvplan.analysis.latency.fast_part import Gaps, prompts_of, waiting_law
from kvplan.analysis.latency.feedback import Feedback, feedback
from kvplan.analysis.latency.idle import empty_probability, idle_probability, saved_by_idling
from kvplan.analysis.latency.law import Law, certain, distribution, mixture
from kvplan.analysis.latency.means import Means, means
from kvplan.analysis.latency.slow_part import slow_part
from kvplan.analysis.latency.traffic import Traffic, traffic_of
from kvplan.model import FloatArray, ServingModel, sum_by

_ALWAYS = 1 - 1e-9  # idle as good as whenever somebody arrives


def latency(model: ServingModel) -> Latency:
    """Time to first token, between tokens and end to end of a model that serves whoever arrives at once.

    References
    ----------
    New, theory §9.

    Examples
    --------
    >>> from kvplan.model import Replica, RequestClass, Timing
    >>> chat = RequestClass("chat", 200, (400,), (1.0,), 20.0)
    >>> found = latency(ServingModel((chat,), Timing(8e-3, 5e-8, 25e-6, 20e-6), Replica(10**6)))
    >>> round(found.ttft_s.p99, 3), round(found.itl_s.p50, 4), round(found.e2e_s.mean, 2)
    (0.041, 0.0127, 5.56)
    """
    if (reason := not_covered(model)) is not None:
        return _none(model, reason)
    try:
        with np.errstate(divide="raise", over="raise", invalid="raise"):
            return _covered(model)
    except ArithmeticError:
        return _none(model, "floats do not hold what its numbers add up to")


def _covered(model: ServingModel) -> Latency:
    traffic = traffic_of(model)
    if traffic is None:
        return _none(model, "more work comes in than can be done")
    if (reason := too_much_work(traffic)) is not None:
        return _none(model, reason)
    process = feedback(traffic)
    if (reason := waits(model, traffic, process)) is not None:
        return _none(model, reason)
    if budget_binds(model, traffic):
        if model.drafts is not None:
            return _none(model, "a max_num_batched_tokens that binds is not covered beside drafts")
        return _budgeted(model, traffic, process)
    return _unbudgeted(model, traffic, process)


def _none(model: ServingModel, reason: str) -> Latency:
    classes = tuple(ClassLatency(c.name, NONE, NONE, NONE) for c in model.classes)
    return Latency(NONE, NONE, NONE, classes, None, reason)


def _unbudgeted(model: ServingModel, traffic: Traffic, process: Feedback) -> Latency:
    mean = means(traffic, process)
    slow, prompts = slow_part(traffic, process.variance_ratio), prompts_of(traffic)
    empty = empty_probability(model, traffic)
    idle = idle_probability(traffic, empty)
    waiting = certain(traffic.fixed_s)
    if idle < _ALWAYS:
        busy = waiting_law(traffic, prompts, slow, process, empty)
        waiting = mixture([waiting, busy], [idle, 1 - idle])
    wait_s = float((mean.ttft_s - traffic.prompt_s)[0])
    mean = mean._replace(ttft_s=mean.ttft_s + saved_by_idling(traffic, wait_s, empty, idle))
    rate = traffic.rate_rps
    gaps = rate * (traffic.stages - 1)
    rows = [traffic.class_index == i for i in range(len(model.classes))]

    first = [
        mixture(
            [waiting.shifted(v) for v in prompts.seconds],
            sum_by(prompts.group[mine], rate[mine], prompts.seconds.size).tolist(),
        )
        for mine in rows
    ]
    common = Gaps.of(traffic, prompts, slow, process)
    between = [
        common.law(mine, float(rate[mine] @ mean.later_s[mine] / gaps[mine].sum()))
        if gaps[mine].any()
        else None
        for mine in rows
    ]
    whole = end_to_end_laws(traffic, process, slow, mean, first)
    return _latency(model, traffic, mean, first, between, whole, "closed form")


def _latency(
    model: ServingModel,
    traffic: Traffic,
    mean: Means,
    first: list[Law],
    between: list[Law | None],
    whole: list[Law],
    method: str,
) -> Latency:
    rate = traffic.rate_rps
    gaps = rate * (traffic.stages - 1)
    added = model.request_overhead_s
    per_class = traffic.of_classes
    requests = per_class(rate)
    ttft = _all(first, per_class(rate * mean.ttft_s), requests, added)
    itl = _all(between, per_class(rate * mean.later_s), per_class(gaps), 0.0)
    e2e = _all(whole, per_class(rate * (mean.ttft_s + mean.later_s)), requests, added)
    classes = tuple(
        ClassLatency(c.name, *figures)
        for c, *figures in zip(model.classes, ttft[1:], itl[1:], e2e[1:], strict=True)
    )
    return Latency(ttft[0], itl[0], e2e[0], classes, method, None)


def _budgeted(model: ServingModel, traffic: Traffic, process: Feedback) -> Latency:
    budget = model.replica.max_num_batched_tokens
    assert budget is not None
    if (reason := too_full(traffic, budget)) is not None:
        return _none(model, reason)
    slow, prompts = slow_part(traffic, process.variance_ratio), prompts_of(traffic)
    empty = empty_probability(model, traffic)
    idle = idle_probability(traffic, empty)
    found = budgeted(traffic, prompts, slow, budget, empty)
    waiting = [
        mixture([alone.law, x.law], [idle, 1 - idle])
        for alone, x in zip(found.alone, found.served, strict=True)
    ]
    ttft = np.array(
        [
            idle * alone.mean_s + (1 - idle) * x.mean_s
            for alone, x in zip(found.alone, found.served, strict=True)
        ]
    )
    mean = means(traffic, process)
    slow_s = slow_mean(traffic, process, mean.later_s)
    later = np.zeros_like(slow_s)
    rate = traffic.rate_rps
    gaps = rate * (traffic.stages - 1)
    rows = [traffic.class_index == i for i in range(len(model.classes))]
    first = [
        mixture(waiting, sum_by(prompts.group[mine], rate[mine], prompts.seconds.size).tolist())
        for mine in rows
    ]
    between: list[Law | None] = []
    for mine in rows:
        if not gaps[mine].any():
            between.append(None)
            continue
        usual = float(rate[mine] @ slow_s[mine] / gaps[mine].sum())
        law, of_gap = gaps_law(traffic, prompts, slow, found, idle, mine, usual)
        between.append(law)
        later[mine] = slow_s[mine] + (of_gap - usual) * (traffic.stages[mine] - 1)
    mean = Means(ttft[prompts.group], later)
    short = short_stays(traffic, prompts, found, idle)
    whole = end_to_end_laws(traffic, process, slow, mean, first, short)
    return _latency(model, traffic, mean, first, between, whole, "closed form, budget")


def _all(
    laws: Sequence[Law | None], total: FloatArray, number: FloatArray, added_s: float
) -> list[Distribution]:
    """Of all requests together, and of each class, from the sums of a time and its number per second."""
    each = [
        NONE if law is None else distribution(law, t / n, added_s)
        for law, t, n in zip(laws, total.tolist(), number.tolist(), strict=True)
    ]
    known = [(law, n) for law, n in zip(laws, number.tolist(), strict=True) if law is not None]
    if len(laws) == 1 or not known:
        return [each[0], *each]
    together = mixture([law for law, _ in known], [n for _, n in known])
    return [distribution(together, float(total.sum() / number.sum()), added_s), *each]
