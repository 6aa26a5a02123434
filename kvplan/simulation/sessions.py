"""Arrivals that know each other: sessions of turns, prompts in common, and prompts that are asked for again.

Each turn carries all that came before, and comes think time after the answer, so a run decides when.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from kvplan.errors import UsageError
from kvplan.model import FloatArray, IntArray, ServingModel
from kvplan.model.context import carried, first_turns
from kvplan.model.gaps import Exponential, Gap, Lognormal, Quantiles
from kvplan.model.lengths import Lengths
from kvplan.model.sessions import Reuse, Sessions, SharedPrompt
from kvplan.simulation.requests import (
    Prefixes,
    Requests,
    Turns,
    chosen,
    end_to_end,
    lengths,
    nothing_follows,
    prompt_lengths,
    strangers,
)

_LAST = 1 << 60  # tokens; of streams that nothing branches off from
_MOST_AWAITED = 3 * 10**6  # requests of chains that began before the run


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
    """Draw sessions of every kind, which begin at random at its rate; none begins at or after the horizon.

    `Requests.class_index` counts the kinds. So many requests are turns in all, those of the burst not counted, and the
    last session may be cut short; the burst has kinds by their share, too. `requests` or `horizon_s` is needed.
    """
    rates = np.array(rates_rps)
    turns_rps = rates * [k.turns.mean for k in kinds]
    rates[[bool(k.name) for k in kinds]] = 0.0  # others send them out
    if requests is None:
        assert horizon_s is not None
        arrival = np.sort(rng.random(rng.poisson(rates.sum() * horizon_s))) * horizon_s
    else:
        arrival = np.cumsum(rng.standard_exponential(requests)) / rates.sum()
        arrival = arrival if horizon_s is None else arrival[arrival < horizon_s]
    extra = 0 if burst is None else burst.sessions
    arrival = np.concatenate([arrival, np.full(extra, 0.0 if burst is None else burst.at_s)])
    kind = rng.choice(rates.size, arrival.size, p=rates / rates.sum())
    turns = _drawn_by_kind([k.asked for k in kinds], kind, rng)
    own = arrival.size - extra
    if requests is not None:
        unsent = requests * float(turns_rps[rates > 0].sum() / turns_rps.sum())
        turns[:own] = _cut(turns[:own], _before_limits(kinds, round(unsent)))
    there = np.flatnonzero(turns > 0)
    order = there[np.argsort(arrival[there], kind="stable")]
    nobody = np.full(order.size, -1)
    drawn = _with_turns(kinds, rng, arrival[order], kind[order], turns[order], nobody)
    return replace(drawn, more_later=horizon_s is not None and (requests is None or own < requests))


def population(
    kinds: Sequence[Sessions], rng: np.random.Generator, *, users: Sequence[int], requests: int
) -> Requests:
    """Draw the sessions of so many users of each kind, each of whom begins one think time after the one before.

    The first ones begin think time after the start; nobody comes at random.
    """
    everybody = np.repeat(np.arange(len(kinds)), users)
    kind = np.resize(everybody, requests)
    turns = _cut(_drawn_by_kind([k.asked for k in kinds], kind, rng), _before_limits(kinds, requests))
    kind, turns = kind[turns > 0], turns[turns > 0]
    first = np.sort(_gaps_by_kind([k.think for k in kinds], everybody[: kind.size], rng))
    arrival = np.concatenate([first, np.full(kind.size - first.size, math.nan)])
    then = np.arange(kind.size) + everybody.size
    return _with_turns(kinds, rng, arrival, kind, turns, np.where(then < kind.size, then, -1))


def with_shared_prompts(
    requests: Requests, shared: Sequence[Sequence[SharedPrompt]], rng: np.random.Generator
) -> Requests:
    """Give requests of classes leading tokens in common, `shared` by class; the rest share nothing."""
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


def heads(model: ServingModel) -> ServingModel:
    """Return the model of those requests alone that ask for nothing again; see `with_reuse`."""
    classes = []
    for c in model.classes:
        share = c.reuse.share if c.reuse else 0.0
        if share >= 1:
            raise UsageError(
                f"class {c.name}: reuse.share = {share:g}: below 1 in a simulation, where somebody has to be the first"
            )
        classes.append(replace(c, rate_rps=c.rate_rps * (1 - share), reuse=None))
    return replace(model, classes=tuple(classes))


def with_reuse(
    first: Requests,
    model: ServingModel,
    rng: np.random.Generator,
    *,
    requests: int | None = None,
    horizon_s: float | None = None,
) -> Requests:
    """Draw requests of which some ask again for the leading tokens that an earlier one has left, at the model's rates.

    Each is followed by another one with probability `share`, a gap later, so that they are chains of geometric length.
    The first ones of chains come as `first` has it, open arrivals of `heads(model)`, and beside them as many as are
    still to come, at the rate of the model, of chains that began before: those of a class are λ·share·E[gap], and find
    nothing. The last chain may be cut short. Nothing arrives at or after the horizon whose arrival does not depend on
    the run.
    """
    reuse = [c.reuse or Reuse(0, 0.0, Quantiles((0.0,))) for c in model.classes]
    awaited = [c.rate_rps * one.share * one.gap.mean_s for c, one in zip(model.classes, reuse, strict=True)]
    if (total := sum(awaited)) > _MOST_AWAITED:
        most = model.classes[int(np.argmax(awaited))]
        raise UsageError(
            f"rate x reuse.share x mean gap are {total:.3g} requests that will be asked for again, most of them of "
            f"class {most.name}; {_MOST_AWAITED:,} is the most in a simulation"
        )
    share = np.array([one.share for one in reuse])
    before = [_residual(one.gap, rng.poisson(still), rng) for one, still in zip(reuse, awaited, strict=True)]
    arrival = np.concatenate([first.arrival_s, *before])
    kind = np.concatenate([first.class_index, np.repeat(np.arange(len(before)), [b.size for b in before])])
    end_s = math.inf if horizon_s is None else horizon_s
    early = arrival < end_s
    if requests is not None and requests < arrival.size:  # of millions of chains few can begin
        early &= arrival <= np.partition(arrival, requests - 1)[requests - 1]
    arrival, kind = arrival[early], kind[early]
    order = np.argsort(arrival, kind="stable")
    arrival, kind = arrival[order], kind[order]
    turns = rng.geometric(1 - share[kind])
    turns = turns if requests is None else _cut(turns, requests)

    chain = np.repeat(np.arange(kind.size), turns)
    begins = np.diff(chain, prepend=-1) > 0
    of = kind[chain]
    gap = _gaps_by_kind([one.gap for one in reuse], of, rng)
    passed = np.cumsum(np.where(begins, 0.0, np.roll(gap, 1)))
    known = np.array([one.from_arrival for one in reuse])[of]
    due = arrival[chain] + passed - passed[begins][np.cumsum(begins) - 1]
    come = ~known | (due < end_s)
    chain, begins, of, gap, known, due = (each[come] for each in (chain, begins, of, gap, known, due))

    decode = lengths(model, of, rng)
    inputs = prompt_lengths(model, of, rng, decode)
    left = (inputs + decode - 1) // model.replica.block_tokens * model.replica.block_tokens
    tokens = np.array([float(one.tokens) for one in reuse])[of]
    part = np.array([isinstance(one.tokens, float) for one in reuse])[of]
    shorter = np.minimum(inputs, np.roll(inputs, -1) - 1)  # of a prompt, and of the next but its last token
    asked = np.minimum(np.where(part, left * tokens, np.minimum(left, tokens)), shorter).astype(np.int64)
    roots = with_shared_prompts(
        Requests(arrival, kind, kind, kind), [c.shared for c in model.classes], rng
    ).prefixes
    assert roots is not None
    ends = np.append(begins, True)[1:]
    none = np.full(chain.size, -1)
    return _in_order(
        Requests(
            np.where(begins | known, due, math.nan),
            inputs,
            decode,
            of,
            more_later=first.more_later,
            prefixes=_branches(roots.parent[roots.stream][chain], roots.end_tokens, asked, ends),
            turns=Turns(np.where(ends | known, -1, np.arange(chain.size) + 1), gap, none),
        )
    )


def merged(parts: Sequence[Requests]) -> Requests:
    """Merge several open arrivals, unasked ones in order of time; classes keep their numbers."""
    sizes = [part.arrival_s.size for part in parts]
    known = [part.prefixes or strangers(size) for part, size in zip(parts, sizes, strict=True)]
    turns = [part.turns or nothing_follows(size) for part, size in zip(parts, sizes, strict=True)]
    none = [np.full(size, -1) for size in sizes]
    streams = [part.parent.size for part in known]
    return _in_order(
        Requests(
            *end_to_end(parts),
            more_later=any(part.more_later for part in parts),
            prefixes=Prefixes(
                _shifted([part.stream for part in known], streams),
                _shifted([part.parent for part in known], streams),
                np.concatenate([part.end_tokens for part in known]),
            ),
            turns=Turns(
                _shifted([part.following for part in turns], sizes),
                np.concatenate([part.think_s for part in turns]),
                _shifted([part.instead for part in turns], sizes),
                _shifted(
                    [nobody if p.beside is None else p.beside for p, nobody in zip(turns, none, strict=True)],
                    sizes,
                )
                if any(part.beside is not None for part in turns)
                else None,
            ),
        )
    )


def _shifted(numbers: Sequence[IntArray], sizes: Sequence[int]) -> IntArray:
    """Renumber things of which there are so many in each part, -1 for none, by all parts."""
    start = np.cumsum([0, *sizes])
    return np.concatenate([np.where(n < 0, -1, n + at) for n, at in zip(numbers, start, strict=False)])


def _branches(root: IntArray, root_ends: IntArray, asked: IntArray, ends: NDArray[np.bool_]) -> Prefixes:
    """Return the streams of chains whose requests share `asked` leading tokens with the next, to where one `ends`.

    `root` is the stream that a chain begins with, -1: none, and that ends after `root_ends`.
    """
    streams = int(root.max(initial=-1)) + 1
    depth, above = root_ends[:streams].tolist(), [-1] * streams
    way: list[int] = []  # streams of this chain that others may still branch off from, the shortest first
    for stem, common, last in zip(root.tolist(), asked.tolist(), ends.tolist(), strict=True):
        trunk = depth[stem] if stem >= 0 else 0
        common = trunk if last else max(common, trunk)
        # a stream of which it remains to be seen what it branches off from: the request's first
        below = len(above)
        above.append(-1)
        depth.append(_LAST)
        while way and depth[way[-1]] > common:
            above[below] = way[-1]
            below = way.pop()
        if common > trunk and not (way and depth[way[-1]] == common):
            way.append(len(above))
            above.append(-1)
            depth.append(common)
        above[below] = way[-1] if way else stem
    ends_at, parent = np.array(depth, dtype=np.int64), np.array(above, dtype=np.int64)
    # what others branch off from before them, the requests' own last
    order = np.argsort(ends_at, kind="stable")
    place = np.append(np.empty(order.size, dtype=np.int64), -1)
    place[order] = np.arange(order.size)
    return Prefixes(
        stream=np.arange(order.size - root.size, order.size),
        parent=place[parent[order]],
        end_tokens=np.where(ends_at == _LAST, 0, ends_at)[order],
    )


def _residual(law: Gap, count: int, rng: np.random.Generator) -> FloatArray:
    """Draw the rest of gaps under way: of one met in proportion to its length, any part."""
    match law:
        case Exponential():
            return _gaps(law, count, rng)
        case Lognormal(median_s, sigma):
            whole = rng.lognormal(math.log(median_s) + sigma**2, sigma, count)
        case Quantiles(values_s):
            values = np.array(values_s)
            whole = rng.choice(values, count, p=values / values.sum()) if count else np.zeros(0)
    return whole * rng.random(count)


def _with_turns(
    kinds: Sequence[Sessions],
    rng: np.random.Generator,
    arrival: FloatArray,
    kind: IntArray,
    turns: IntArray,
    then: IntArray,
) -> Requests:
    """Draw sessions by kind and turns, first turns first; `arrival` NaN where another session brings the next.

    Those that begin unasked stand first, in order of time; `then` is the session that follows each, or -1.
    """
    own, sender, sent = kind.size, *_sent(kinds, rng, kind, turns)
    kind, turns = np.append(kind, sent[0]), np.append(turns, sent[1])
    arrival, then = (
        np.append(arrival, np.full(sender.size, math.nan)),
        np.append(then, np.full(sender.size, -1)),
    )
    session = np.repeat(np.arange(kind.size), turns)
    first = np.cumsum(turns) - turns  # of each session
    turn = np.arange(session.size) - first[session]
    of = kind[session]
    decode = _drawn_by_kind([k.decode for k in kinds], of, rng)
    added = _drawn_by_kind([k.user for k in kinds], of, rng)
    shared = np.array([k.shared for k in kinds])
    added[first] = shared[kind] + _drawn_by_kind([k.first for k in kinds], kind, rng)
    np.add.at(added, sender + 1, decode[(first + turns - 1)[own:]])
    total = np.cumsum(added) + np.cumsum(decode) - decode
    inputs = total - np.repeat(total[first] - added[first], turns)
    think = _gaps_by_kind([k.think for k in kinds], of, rng)
    fresh, kept = turn == 0, np.full(turn.size, True)
    for index, its in enumerate(kinds):
        if its.limit is None:
            continue
        mine, begins = np.flatnonzero(of == index), first[kind == index]
        added[begins], decode[begins] = first_turns(its, its.limit, begins.size, rng)
        begins = np.searchsorted(mine, begins)
        inputs[mine], fresh[mine], kept[mine] = carried(
            its.limit, its.shared, begins, added[mine], decode[mine]
        )
    if not kept.all():
        inputs, decode, think, of, turn = (each[kept] for each in (inputs, decode, think, of, turn))
        session, fresh, sender = session[kept], fresh[kept], (np.cumsum(kept) - 1)[sender]
        first = np.flatnonzero(turn == 0)
    end = np.append(turn[1:], 0) == 0
    following = np.where(end, np.where(then >= 0, first[then], -1)[session], np.arange(session.size) + 1)
    instead = np.where(then >= 0, first[then], -1)[session]
    beside = None
    if sender.size:
        sent_out = session >= own
        instead[sent_out] = sender[session[sent_out] - own] + 1
        last = np.flatnonzero(end & sent_out)
        following[last], think[last] = sender + 1, think[sender]
        before = np.where(np.diff(sender, prepend=-1) > 0, sender, np.roll(first[own:], 1))
        beside = np.full(session.size, -1)
        beside[before] = first[own:]
    return _in_order(
        Requests(
            np.where(turn == 0, arrival[session], math.nan),
            inputs,
            decode,
            of,
            prefixes=Prefixes(
                stream=len(kinds) + np.cumsum(fresh) - 1,
                parent=np.concatenate([np.full(len(kinds), -1), _roots(kinds)[of[fresh]]]),
                end_tokens=np.concatenate([shared, np.zeros(np.count_nonzero(fresh), dtype=np.int64)]),
            ),
            turns=Turns(following, think, instead, beside),
        )
    )


def _sent(
    kinds: Sequence[Sessions], rng: np.random.Generator, kind: IntArray, turns: IntArray
) -> tuple[IntArray, tuple[IntArray, IntArray]]:
    """Draw the sessions that turns send out: the place of the turn, in order, and of each its kind and turns."""
    session = np.repeat(np.arange(kind.size), turns)
    goes_on = np.flatnonzero(np.diff(session, append=-1) == 0)
    names, sender, of = [k.name for k in kinds], [goes_on[:0]], [goes_on[:0]]
    for index, sessions in enumerate(kinds):
        for sent in sessions.sends:
            places = np.repeat(goes_on[kind[session[goes_on]] == index], sent.count)
            sender.append(places)
            of.append(np.full(places.size, names.index(sent.name)))
    places = np.concatenate(sender)
    order = np.argsort(places, kind="stable")
    kind = np.concatenate(of)[order]
    return places[order], (kind, _drawn_by_kind([k.asked for k in kinds], kind, rng))


def _roots(kinds: Sequence[Sessions]) -> IntArray:
    """Return the kind whose shared tokens each begins with: its own, or the one that sends it out."""
    root = np.arange(len(kinds))
    for index, sessions in enumerate(kinds):
        root[[sent.name in {s.name for s in sessions.sends} for sent in kinds]] = index
    return root


def _in_order(requests: Requests) -> Requests:
    """Sort those that come unasked first, in order of arrival."""
    order = np.argsort(requests.arrival_s, kind="stable")  # NaN last
    place = np.append(np.empty(order.size, dtype=np.int64), -1)  # and of nobody
    place[order] = np.arange(order.size)
    turns = requests.turns
    if turns is not None:
        turns = Turns(
            place[turns.following[order]],
            turns.think_s[order],
            place[turns.instead[order]],
            None if turns.beside is None else place[turns.beside[order]],
        )
    return replace(chosen(requests, order), more_later=requests.more_later, turns=turns)


def _before_limits(kinds: Sequence[Sessions], requests: int) -> int:
    """Return the turns that there would be without limits, which end sessions, for so many that there are."""
    return math.ceil(requests * max(k.asked.mean / k.turns.mean for k in kinds))


def _cut(turns: IntArray, requests: int) -> IntArray:
    """Cut the turns of sessions, one after the other, to so many requests in all."""
    before = np.cumsum(turns) - turns
    cut: IntArray = np.clip(requests - before, 0, turns)
    return cut


def _drawn_by_kind(laws: Sequence[Lengths], kind: IntArray, rng: np.random.Generator) -> IntArray:
    drawn = np.empty(kind.size, dtype=np.int64)
    for index, law in enumerate(laws):
        mine = np.flatnonzero(kind == index)
        drawn[mine] = rng.choice(law.values, mine.size, p=law.probabilities)
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
