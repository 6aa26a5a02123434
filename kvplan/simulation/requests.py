"""Who arrives when, and how long they are: Poisson, renewal, burst, saturated, closed loop.

Requests depend on the model and the generator alone, never on a policy: with one seed all policies see the same.
"""

import math
from dataclasses import dataclass

import numpy as np

from kvplan.model import FloatArray, IntArray, ServingModel


@dataclass(frozen=True)
class Requests:
    """Requests in order of arrival.

    Attributes
    ----------
    arrival_s : ndarray, shape (n_requests,)
        Seconds from the start, ascending. All 0 in a closed loop, where the run decides.
    input_tokens, decode_tokens : ndarray of int64, shape (n_requests,), tokens
    class_index : ndarray of int64, shape (n_requests,)
        Position of the class in the profile; 0 for requests of a trace.
    clients : int or None
        Closed loop: so many requests are there at first, and each completion brings the next. None: open.
    """

    arrival_s: FloatArray
    input_tokens: IntArray
    decode_tokens: IntArray
    class_index: IntArray
    clients: int | None = None


def poisson(
    model: ServingModel, rng: np.random.Generator, *, requests: int | None, horizon_s: float | None
) -> Requests:
    """Every class arrives at random, at its rate.

    Parameters
    ----------
    model : ServingModel
    rng : numpy.random.Generator
    requests : int or None
        How many in all; None: as many as arrive before the horizon.
    horizon_s : float or None
        Seconds; at least one of the two is given, the earlier end counts.

    Examples
    --------
    >>> from kvplan.model import Replica, RequestClass, Timing
    >>> chat = RequestClass("chat", 100, (20, 40), (1.0, 1.0), 5.0)
    >>> some = poisson(
    ...     ServingModel((chat,), Timing(0.01), Replica(9000)), np.random.default_rng(1), requests=3, horizon_s=None
    ... )
    >>> some.arrival_s.size, set(some.decode_tokens.tolist()) <= {20, 40}
    (3, True)
    """
    return _of_clock(model, rng, requests, horizon_s, 1.0, 1.0, 1.0, 0.0)


def burst(
    model: ServingModel,
    rng: np.random.Generator,
    *,
    high: float,
    low: float,
    on_s: float,
    off_s: float,
    requests: int | None,
    horizon_s: float | None,
) -> Requests:
    """Poisson arrivals whose rates are `high` times those of the model for `on_s` seconds, `low` times for `off_s`.

    Exact by a change of time: arrivals come when the rate so far adds up to those of a clock that ticks at random.
    """
    return _of_clock(model, rng, requests, horizon_s, high, low, on_s, off_s)


def _of_clock(
    model: ServingModel,
    rng: np.random.Generator,
    requests: int | None,
    horizon_s: float | None,
    high: float,
    low: float,
    on_s: float,
    off_s: float,
) -> Requests:
    rate = model.total_rate_rps
    while_on, cycle = rate * high * on_s, rate * (high * on_s + low * off_s)

    def time_of(amount: FloatArray) -> FloatArray:
        cycles = np.floor(amount / cycle)
        rest = amount - cycles * cycle
        with np.errstate(divide="ignore", invalid="ignore"):
            later = on_s + (rest - while_on) / (rate * low)
            inside = np.where(rest <= while_on, rest / (rate * high), later)
        return cycles * (on_s + off_s) + inside

    if requests is None:
        assert horizon_s is not None
        cycles, rest = divmod(horizon_s, on_s + off_s)
        amount = cycles * cycle + rate * (high * min(rest, on_s) + low * max(rest - on_s, 0.0))
        amounts = np.sort(rng.random(rng.poisson(amount))) * amount
    else:
        amounts = np.cumsum(rng.standard_exponential(requests))
    arrival = time_of(amounts)
    if horizon_s is not None:
        arrival = arrival[arrival < horizon_s]
    shares = np.array([c.rate_rps for c in model.classes]) / rate
    kind = np.searchsorted(np.cumsum(shares)[:-1], rng.random(arrival.size), side="right")
    return _with_lengths(model, rng, arrival, kind)


def renewal(
    model: ServingModel,
    rng: np.random.Generator,
    *,
    cv: float,
    requests: int | None,
    horizon_s: float | None,
) -> Requests:
    """Every class with independent gamma gaps of coefficient of variation `cv`; 1 is Poisson, more comes in clumps.

    The first gap of a class has the law of what is left of one at a random time, so rates hold from the start on.
    """
    shape = 1 / cv**2
    wanted = math.inf if requests is None else float(requests)
    end = math.inf if horizon_s is None else horizon_s
    expected = min(wanted, end * model.total_rate_rps)
    parts = []
    for c in model.classes:
        share = c.rate_rps / model.total_rate_rps
        scale = 1 / (shape * c.rate_rps)
        times = np.array([rng.gamma(shape + 1) * scale * rng.random()])
        # each class on its own reaches a time before which all together are enough
        until = min(end, 2 * expected / model.total_rate_rps + 10 * (1 + cv) ** 2 / c.rate_rps)
        while times[-1] < until:
            more = int(share * expected + 10 * (1 + cv) ** 2)
            times = np.append(times, times[-1] + np.cumsum(rng.gamma(shape, scale, more)))
        parts.append(times)
    arrival = np.concatenate(parts)
    kind = np.repeat(np.arange(len(parts)), [p.size for p in parts])
    order = np.argsort(arrival, kind="stable")
    complete = min(float(p[-1]) for p in parts)  # beyond, some class has no more
    arrival, kind = arrival[order], kind[order]
    keep = int(min(wanted, int(np.searchsorted(arrival, min(end, complete), side="right"))))
    if keep < wanted and complete < end:
        rest = renewal(model, rng, cv=cv, requests=int(wanted) - keep, horizon_s=None)
        return _joined(_with_lengths(model, rng, arrival[:keep], kind[:keep]), rest, complete)
    return _with_lengths(model, rng, arrival[:keep], kind[:keep])


def _joined(first: Requests, rest: Requests, later_by: float) -> Requests:
    return Requests(
        np.concatenate([first.arrival_s, rest.arrival_s + later_by]),
        np.concatenate([first.input_tokens, rest.input_tokens]),
        np.concatenate([first.decode_tokens, rest.decode_tokens]),
        np.concatenate([first.class_index, rest.class_index]),
    )


def saturated(model: ServingModel, *, requests: int) -> Requests:
    """All there at time 0, classes and decode lengths interleaved by share: no chance in it.

    Item j of a row of share p stands at (j + 1/2)/p, so that after k requests every row has had p·k of them, to
    within one.

    Examples
    --------
    >>> from kvplan.model import Replica, RequestClass, Timing
    >>> classes = (RequestClass("a", 1, (1,), (1.0,), 2.0), RequestClass("b", 1, (1,), (1.0,), 1.0))
    >>> saturated(ServingModel(classes, Timing(1.0), Replica(9)), requests=6).class_index.tolist()
    [0, 1, 0, 0, 1, 0]
    """
    mix = model.mix
    counts = np.ceil(mix.share * requests).astype(np.int64) + 1
    row = np.repeat(np.arange(counts.size), counts)
    within = np.arange(row.size) - np.repeat(np.cumsum(counts) - counts, counts)
    order = np.argsort((within + 0.5) / mix.share[row], kind="stable")[:requests]
    row = row[order]
    return Requests(np.zeros(requests), mix.input_tokens[row], mix.decode_tokens[row], mix.class_index[row])


def closed(model: ServingModel, rng: np.random.Generator, *, clients: int, requests: int) -> Requests:
    """`clients` requests at a time: each completion brings the next, classes at random by share."""
    mix = model.mix
    row = np.searchsorted(np.cumsum(mix.share)[:-1], rng.random(requests), side="right")
    return Requests(
        np.zeros(requests), mix.input_tokens[row], mix.decode_tokens[row], mix.class_index[row], clients
    )


def _with_lengths(
    model: ServingModel, rng: np.random.Generator, arrival: FloatArray, kind: IntArray
) -> Requests:
    """Draw a decode length for each request of a class."""
    chance = rng.random(arrival.size)
    decode = np.empty(arrival.size, dtype=np.int64)
    for index, c in enumerate(model.classes):
        mine = kind == index
        shares = np.cumsum(c.decode_weights) / math.fsum(c.decode_weights)
        decode[mine] = np.array(c.decode_tokens)[np.searchsorted(shares[:-1], chance[mine], side="right")]
    inputs = np.array([c.input_tokens for c in model.classes], dtype=np.int64)
    return Requests(arrival, inputs[kind], decode, kind.astype(np.int64))
