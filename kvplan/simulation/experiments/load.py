"""Loads: how requests arrive, drawn from the profile by a seed, or recorded."""

import math
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from kvplan.analysis.cached_equilibrium import users_of
from kvplan.analysis.equilibrium import saturation
from kvplan.errors import UsageError
from kvplan.model import FloatArray, ServingModel
from kvplan.options import Arrivals
from kvplan.simulation.requests import (
    Requests,
    burst,
    closed,
    end_to_end,
    interleaved,
    lengths,
    poisson,
    prompt_lengths,
    renewal,
    requests_of,
    saturated,
    stretch,
    thinned,
    with_drafts,
)
from kvplan.simulation.sessions import (
    Burst,
    heads,
    merged,
    population,
    stream_of_sessions,
    with_reuse,
    with_shared_prompts,
)

MAX_REQUESTS = 10**8
DEFAULT_REQUESTS = 10_000
DEFAULT_CV = 3.0
DEFAULT_CLIENTS = 128
_MORE = 2  # times the requests of users that are expected until a horizon
DEFAULT_BURST = (1.5, 0.5, 60.0, 60.0)  # keeps the mean rate


_ALWAYS_THERE = (Arrivals.SATURATED, Arrivals.INTERLEAVED, Arrivals.CLOSED)  # whatever the rates


class Load(NamedTuple):
    """Requests that arrive, and their times."""

    kind: Arrivals | None = None  # as the model says
    requests: int | None = DEFAULT_REQUESTS  # None: as many as come before the horizon; of a trace all
    horizon_s: float | None = None  # where the clock stops
    cv: float = DEFAULT_CV  # of gamma gaps
    concurrency: int = DEFAULT_CLIENTS  # of a closed loop
    burst: tuple[float, float, float, float] = DEFAULT_BURST  # factors while on and off, seconds of each
    trace: Requests | None = None  # recorded requests instead of all that
    share: float = 1.0  # of the trace, at random
    stretch: float = 1.0  # gaps of the trace over those recorded
    burst_sessions: Burst | None = None  # beside those of the profile
    at_start: bool = False  # work with a deadline is there then, as much as would come at its rate
    users: int = 0  # of a closed population, where nobody else asks

    def on(self, model: ServingModel) -> "Load":
        """Fill in the arrivals of the model where none are given."""
        if self.kind is not None or self.trace is not None:
            return self
        arrivals = model.arrivals
        if arrivals.trace is not None:
            rate = model.total_rate_rps / arrivals.share
            whole, longer = requests_of(arrivals.trace, rate), stretch(arrivals.trace, rate)
            return self._replace(trace=whole, share=arrivals.share, stretch=longer)
        if arrivals.is_poisson:
            alone = all(c.sessions is not None and c.sessions.users for c in model.classes)
            return self._replace(kind=Arrivals.POISSON, users=users_of(model) if alone else 0)
        return self._replace(kind=Arrivals.GAMMA, cv=arrivals.cv)

    @property
    def follows_rates(self) -> bool:
        """Tell whether the rates of the model say when requests arrive."""
        return self.trace is None and self.kind not in _ALWAYS_THERE

    @property
    def name(self) -> str:
        """Kind of arrivals, in a word."""
        if self.trace is not None:
            return "trace"
        return "users" if self.users else (self.kind or Arrivals.POISSON).value

    @property
    def is_saturated(self) -> bool:
        """Tell whether all requests are there at the beginning."""
        return self.trace is None and self.kind in (Arrivals.SATURATED, Arrivals.INTERLEAVED)

    def is_drawn(self, model: ServingModel) -> bool:
        """Tell whether seeds differ: not if recorded or interleaved, nor if all are alike and there."""
        if model.drafts is not None:
            return True
        if self.trace is not None:
            return self.share < 1
        drawn = self.kind is not Arrivals.INTERLEAVED
        return drawn and (self.follows_rates or model.mix.share.size > 1)


def generate(model: ServingModel, load: Load, seed: int) -> Requests:
    """Draw the requests of one seed; the same for every policy."""
    load = load.on(model)
    requests = _requests(model, load, seed)
    if model.drafts is None:
        return requests
    return with_drafts(requests, model.drafts, np.random.default_rng([seed, 1]))


def _requests(model: ServingModel, load: Load, seed: int) -> Requests:
    if load.trace is not None:
        if load.share == 1:
            return load.trace
        return thinned(load.trace, load.share, np.random.default_rng(seed))
    requests = _generated(model, load, np.random.default_rng(seed))
    cut = load.horizon_s is not None and requests.arrival_s.size != load.requests
    return replace(requests, more_later=cut and load.follows_rates)


def _generated(model: ServingModel, load: Load, rng: np.random.Generator) -> Requests:
    expected = _expected(model, load)
    if expected > MAX_REQUESTS:
        raise UsageError(f"some {expected:.3g} requests until the horizon; {MAX_REQUESTS:,} is the most")
    if load.kind in _ALWAYS_THERE:
        size = load.requests
        return _always_there(
            model, load, math.ceil(expected) + load.concurrency + 1000 if size is None else size, rng
        )
    at_rates = np.flatnonzero([c.sessions is None for c in model.classes])
    in_turns = np.flatnonzero([c.sessions is not None for c in model.classes])
    if not in_turns.size:
        return _of_classes(model, load, rng)
    if not at_rates.size:
        return _of_sessions(model, load, math.ceil(expected), rng)
    apart, turns = (
        replace(model, classes=tuple(model.classes[i] for i in mine)) for mine in (at_rates, in_turns)
    )
    alone = rest = None
    if load.requests is not None:
        alone = round(load.requests * apart.total_rate_rps / model.total_rate_rps)
        if load.at_start:
            alone = round(float(_by_class(model, load)[at_rates].sum()))
        rest = load.requests - alone
    parts = (
        (at_rates, _of_classes(apart, load._replace(requests=alone), rng)),
        (in_turns, _of_sessions(turns, load._replace(requests=rest), math.ceil(expected), rng)),
    )
    return merged([replace(part, class_index=mine[part.class_index]) for mine, part in parts])


def _always_there(model: ServingModel, load: Load, size: int, rng: np.random.Generator) -> Requests:
    """Draw strangers, even if the model's requests have prefixes in common."""
    match load.kind:
        case Arrivals.INTERLEAVED:
            return interleaved(model, requests=size)
        case Arrivals.CLOSED:
            return closed(model, rng, clients=load.concurrency, requests=size)
        case _:
            return saturated(model, rng, requests=size)


def _of_classes(model: ServingModel, load: Load, rng: np.random.Generator) -> Requests:
    """Draw open arrivals, with shared and repeated prompts."""
    asks = any(c.reuse is not None for c in model.classes)
    size, horizon = load.requests, load.horizon_s
    if load.at_start and any(c.deadline_s is not None and c.reuse is not None for c in model.classes):
        raise UsageError(
            "a backlog with reuse is simulated with --arrivals poisson alone, which sends it evenly"
        )
    first = heads(model) if asks else model
    drawn = _behind_backlogs(first, load, rng) if load.at_start else _open(first, load, rng)
    if asks:
        return with_reuse(drawn, model, rng, requests=size, horizon_s=horizon)
    if any(c.shared for c in model.classes):
        return with_shared_prompts(drawn, [c.shared for c in model.classes], rng)
    return drawn


def _behind_backlogs(model: ServingModel, load: Load, rng: np.random.Generator) -> Requests:
    """Draw open arrivals, and beside them what is there at the start of a run: its work with a deadline."""
    waits = np.array([c.deadline_s is not None for c in model.classes])
    counts = np.where(waits, np.rint(_by_class(model, load)), 0).astype(np.int64)
    kind = rng.permutation(np.repeat(np.arange(waits.size), counts))
    decode = lengths(model, kind, rng)
    there = Requests(np.zeros(kind.size), prompt_lengths(model, kind, rng, decode), decode, kind)
    if waits.all():
        return there
    others = tuple(c for c in model.classes if c.deadline_s is None)
    left = None if load.requests is None else max(load.requests - kind.size, 0)
    rest = _open(replace(model, classes=others), load._replace(requests=left), rng)
    rest = replace(rest, class_index=np.flatnonzero(~waits)[rest.class_index])
    return Requests(*end_to_end([there, rest]))


def _by_class(model: ServingModel, load: Load) -> FloatArray:
    """Expect so many of each class until a run ends; of work with a deadline there is no more than comes until then."""
    rate, due_s = np.array([(c.rate_rps, c.deadline_s or math.inf) for c in model.classes]).T
    end_s = math.inf if load.horizon_s is None else load.horizon_s
    if load.requests is not None:
        ends_s = [0.0, *np.unique(due_s[due_s < math.inf])]
        ends_s.append(ends_s[-1] + load.requests / max(rate[due_s == math.inf].sum(), 1e-9))
        come = [rate @ np.minimum(due_s, until_s) for until_s in ends_s]
        end_s = min(end_s, float(np.interp(load.requests, come, ends_s)))
    return np.asarray(rate * np.minimum(due_s, end_s))


def _open(model: ServingModel, load: Load, rng: np.random.Generator) -> Requests:
    size, horizon = load.requests, load.horizon_s
    match load.kind:
        case Arrivals.GAMMA:
            return renewal(model, rng, cv=load.cv, requests=size, horizon_s=horizon)
        case Arrivals.BURST:
            high, low, on_s, off_s = load.burst
            return burst(
                model, rng, high=high, low=low, on_s=on_s, off_s=off_s, requests=size, horizon_s=horizon
            )
        case _:
            return poisson(model, rng, requests=size, horizon_s=horizon)


def _of_sessions(model: ServingModel, load: Load, expected: int, rng: np.random.Generator) -> Requests:
    """Draw the turns of sessions, which come at random, or are those of users."""
    kinds = [c.sessions for c in model.classes if c.sessions is not None]
    places = [
        [i for i, kind in enumerate(kinds) if (kind.users is None) is at_random]
        for at_random in (True, False)
    ]
    parts = []
    for at_random, mine in zip((True, False), places, strict=True):
        if not mine:
            continue
        own = [kinds[i] for i in mine]
        share = sum(model.classes[i].rate_rps for i in mine) / model.total_rate_rps
        size = None if load.requests is None else max(1, round(load.requests * share))
        if at_random:
            rates = [model.classes[i].rate_rps / kinds[i].turns.mean for i in mine]
            drawn = stream_of_sessions(
                own, rates, rng, requests=size, horizon_s=load.horizon_s, burst=load.burst_sessions
            )
        else:
            users = [kind.users or 0 for kind in own]
            longest = max(kind.turns.longest for kind in own)
            enough = _MORE * expected + longest * sum(users)  # beyond the horizon
            drawn = population(own, rng, users=users, requests=enough if size is None else size)
        parts.append(replace(drawn, class_index=np.array(mine)[drawn.class_index]))
    return parts[0] if len(parts) == 1 else merged(parts)


def _expected(model: ServingModel, load: Load) -> float:
    """Estimate the number of requests; of those that are always there, more than can be served."""
    if load.requests is not None or load.horizon_s is None:
        return float(load.requests or 0)
    if load.kind in _ALWAYS_THERE:
        replicas = 1 if model.fleet is None else model.fleet.size
        return 3 * replicas * saturation(model).throughput_rps * load.horizon_s
    high, low, on_s, off_s = load.burst
    factor = (high * on_s + low * off_s) / (on_s + off_s) if load.kind is Arrivals.BURST else 1.0
    seconds = load.horizon_s
    if model.schedule is not None:  # at the rates as they stand
        seconds = float(model.schedule.course([c.rate_rps for c in model.classes]).integral(seconds))
    return factor * model.total_rate_rps * seconds
