"""Arrivals that know each other: sessions of turns, and prompts in common.

Each turn carries all that came before, and comes think time after the answer, so a run decides when.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from kvplan.model import FloatArray, IntArray
from kvplan.model.gaps import Exponential, Gap, Lognormal, Quantiles
from kvplan.model.lengths import Lengths
from kvplan.model.reuse import SharedPrompt
from kvplan.model.sessions import Sessions
from kvplan.simulation.prefixes import Prefixes, Turns
from kvplan.simulation.requests import Requests


@dataclass(frozen=True, slots=True)
class Burst:
    """Sessions beside those of the rate, all of which begin at a time."""

    sessions: int
    at_s: float = 0.0


def stream_of_sessions(
    kinds: Sequence[Sessions],
    rates_rps: Sequence[float],
    rng: np.random.Generator,
    *,
    requests: int | None,
    horizon_s: float | None,
    burst: Burst | None = None,
) -> Requests:
    """Sessions of every kind begin at random, at its rate; none begins at or after the horizon.

    Parameters
    ----------
    kinds
        At least one; `Requests.class_index` counts them.
    rates_rps
        Of each kind, sessions/s.
    rng : numpy.random.Generator
    requests
        Turns in all, those of the burst not counted; the last session may be cut short. None: as many as there are.
    horizon_s
        Seconds. None: until there are so many requests. One of the two is needed.
    burst
        Of kinds by their share, too.

    Examples
    --------
    >>> one = Lengths.of({10: 1.0})
    >>> agent = Sessions(one, one, one, Lengths.of({2: 1.0}), Exponential(5.0))
    >>> some = stream_of_sessions([agent], [0.5], np.random.default_rng(0), requests=4, horizon_s=None)
    >>> some.input_tokens.tolist(), some.turns.following.tolist(), some.prefixes.stream.tolist()
    ([10, 10, 30, 30], [2, 3, -1, -1], [1, 2, 1, 2])
    """
    rates = np.array(rates_rps)
    if requests is None:
        assert horizon_s is not None
        arrival = np.sort(rng.random(rng.poisson(rates.sum() * horizon_s))) * horizon_s
    else:
        arrival = np.cumsum(rng.standard_exponential(requests)) / rates.sum()
        arrival = arrival if horizon_s is None else arrival[arrival < horizon_s]
    extra = 0 if burst is None else burst.sessions
    arrival = np.concatenate([arrival, np.full(extra, 0.0 if burst is None else burst.at_s)])
    kind = rng.choice(rates.size, arrival.size, p=rates / rates.sum())
    turns = _drawn_by_kind([k.turns for k in kinds], kind, rng)
    own = arrival.size - extra
    if requests is not None:
        turns[:own] = _cut(turns[:own], requests)
    there = np.flatnonzero(turns > 0)
    order = there[np.argsort(arrival[there], kind="stable")]
    nobody = np.full(order.size, -1)
    drawn = _with_turns(kinds, rng, arrival[order], kind[order], turns[order], nobody)
    return replace(drawn, more_later=horizon_s is not None and (requests is None or own < requests))


def population(
    kinds: Sequence[Sessions], rng: np.random.Generator, *, users: Sequence[int], requests: int
) -> Requests:
    """A closed population: so many users of each kind, each of whom begins a session think time after the one before.

    The first ones begin think time after the start; nobody comes at random.

    Examples
    --------
    >>> one = Lengths.of({10: 1.0})
    >>> agent = Sessions(one, one, one, Lengths.of({2: 1.0}), Exponential(5.0))
    >>> some = population([agent], np.random.default_rng(0), users=[1], requests=5)
    >>> some.turns.following.tolist(), some.turns.instead.tolist()
    ([1, 2, 3, 4, -1], [2, 2, 4, 4, -1])
    """
    everybody = np.repeat(np.arange(len(kinds)), users)
    kind = np.resize(everybody, requests)
    turns = _cut(_drawn_by_kind([k.turns for k in kinds], kind, rng), requests)
    kind, turns = kind[turns > 0], turns[turns > 0]
    first = np.sort(_gaps_by_kind([k.think for k in kinds], everybody[: kind.size], rng))
    arrival = np.concatenate([first, np.full(kind.size - first.size, math.nan)])
    then = np.arange(kind.size) + everybody.size
    return _with_turns(kinds, rng, arrival, kind, turns, np.where(then < kind.size, then, -1))


def with_shared_prompts(
    requests: Requests, shared: Sequence[Sequence[SharedPrompt]], rng: np.random.Generator
) -> Requests:
    """Requests of classes with leading tokens in common, `shared` by class; the rest share nothing.

    Examples
    --------
    >>> some = Requests(np.zeros(2), np.array([50, 60]), np.array([1, 1]), np.zeros(2, dtype=np.int64))
    >>> with_shared_prompts(some, [[SharedPrompt(40)]], np.random.default_rng(0)).prefixes.parent.tolist()
    [-1, 0, 0]
    """
    ends = [prompt.tokens for own in shared for prompt in own]
    count = requests.arrival_s.size
    parent, chance, before = np.full(count, -1), rng.random(count), 0
    for index, own in enumerate(shared):
        upto = np.cumsum([prompt.weight for prompt in own])
        mine = requests.class_index == index
        which = np.searchsorted(upto, chance[mine], side="right")
        parent[mine] = np.where(which < len(own), before + which, -1)
        before += len(own)
    prefixes = Prefixes(
        stream=len(ends) + np.arange(count),
        parent=np.concatenate([np.full(len(ends), -1), parent]),
        end_tokens=np.concatenate([np.array(ends, dtype=np.int64), np.zeros(count, dtype=np.int64)]),
    )
    return replace(requests, prefixes=prefixes)


def _with_turns(
    kinds: Sequence[Sessions],
    rng: np.random.Generator,
    arrival: FloatArray,
    kind: IntArray,
    turns: IntArray,
    then: IntArray,
) -> Requests:
    """Sessions by kind and number of turns, first turns first; `arrival` NaN where another session brings the next.

    Those that begin unasked stand first, in order of time; `then` is the session that follows each, or -1.
    """
    session = np.repeat(np.arange(kind.size), turns)
    first = np.cumsum(turns) - turns  # of each session
    turn = np.arange(session.size) - first[session]
    of = kind[session]
    decode = _drawn_by_kind([k.decode for k in kinds], of, rng)
    added = _drawn_by_kind([k.user for k in kinds], of, rng)
    shared = np.array([k.shared for k in kinds])
    added[first] = shared[kind] + _drawn_by_kind([k.first for k in kinds], kind, rng)
    total = np.cumsum(added) + np.cumsum(decode) - decode
    inputs = total - np.repeat(total[first] - added[first], turns)
    think = _gaps_by_kind([k.think for k in kinds], of, rng)
    end = turn == turns[session] - 1
    following = np.where(end, np.where(then >= 0, first[then], -1)[session], np.arange(session.size) + 1)
    instead = np.where(then >= 0, first[then], -1)[session]
    unasked = (turn == 0) & ~np.isnan(arrival)[session]
    order = np.argsort(~unasked, kind="stable")
    place = np.append(np.empty(order.size, dtype=np.int64), -1)  # and of nobody
    place[order] = np.arange(order.size)
    return Requests(
        np.where(unasked, arrival[session], math.nan)[order],
        inputs[order],
        decode[order],
        of[order],
        prefixes=Prefixes(
            stream=len(kinds) + session[order],
            parent=np.concatenate([np.full(len(kinds), -1), kind]),
            end_tokens=np.concatenate([shared, np.zeros(kind.size, dtype=np.int64)]),
        ),
        turns=Turns(place[following[order]], think[order], place[instead[order]]),
    )


def _cut(turns: IntArray, requests: int) -> IntArray:
    """The turns of sessions, one after the other, as far as there are so many requests."""
    before = np.cumsum(turns) - turns
    cut: IntArray = np.clip(requests - before, 0, turns)
    return cut


def _drawn_by_kind(laws: Sequence[Lengths], kind: IntArray, rng: np.random.Generator) -> IntArray:
    drawn = np.empty(kind.size, dtype=np.int64)
    for index, law in enumerate(laws):
        mine = np.flatnonzero(kind == index)
        drawn[mine] = rng.choice(law.values, mine.size, p=law.weights / law.weights.sum())
    return drawn


def _gaps_by_kind(laws: Sequence[Gap], kind: IntArray, rng: np.random.Generator) -> FloatArray:
    drawn = np.empty(kind.size)
    for index, law in enumerate(laws):
        mine = np.flatnonzero(kind == index)
        drawn[mine] = _gaps(law, mine.size, rng)
    return drawn


def _gaps(law: Gap, count: int, rng: np.random.Generator) -> FloatArray:
    match law:
        case Exponential(mean_s):
            return rng.exponential(mean_s, count)
        case Lognormal(median_s, sigma):
            return rng.lognormal(math.log(median_s), sigma, count)
        case Quantiles(values_s):
            return rng.choice(np.array(values_s), count)
