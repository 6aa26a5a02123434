"""Arrivals and lengths of requests: Poisson, renewal, burst, saturated, interleaved, closed loop.

Requests depend on the model and the generator alone, never on a policy: with one seed all policies see the same.

Where rates vary over time, arrivals are drawn at the rates of the classes as they stand and time is then changed: a
clock that runs at the factor of the schedule shows when they come. That is exact for Poisson arrivals.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np

from kvplan.errors import UsageError
from kvplan.model import FloatArray, IntArray, Recorded, ServingModel
from kvplan.model.drafts import Drafts
from kvplan.model.lengths import Lengths
from kvplan.model.schedule import Course, Steps

_APART = 1 << 40  # more tokens than any request has


@dataclass(frozen=True)
class Prefixes:
    """A tree of streams of tokens; the tokens of a request are those of a stream, and of all before it.

    A stream begins where the one that it branches off from ends. One that a request ends in has no end of its own:
    prompts and generated tokens of one request after the other go on in it, each knowing all that came before.

    Examples
    --------
    Two requests that share 30 tokens, and one that shares nothing.

    >>> some = Prefixes(stream=np.array([1, 2, 3]), parent=np.array([-1, 0, 0, -1]), end_tokens=np.array([30, 0, 0, 0]))
    >>> some.begin_tokens.tolist()
    [0, 30, 30, 0]
    """

    # shape (n_requests,): the one that each request ends in; nothing branches off from it, and no two requests
    # are in it at a time
    stream: IntArray
    # shape (n_streams,): that each stream branches off from, one that stands before it; -1: it begins at the
    # first token
    parent: IntArray
    # shape (n_streams,): tokens from the first one of all up to where others branch off; no prompt in a branch is
    # shorter
    end_tokens: IntArray

    @property
    def begin_tokens(self) -> IntArray:
        """Tokens before each stream; shape (n_streams,)."""
        begin: IntArray = np.where(self.parent < 0, 0, self.end_tokens[self.parent])
        return begin


def strangers(count: int) -> Prefixes:
    """Return the prefixes of so many requests that have nothing in common."""
    each = np.arange(count)
    return Prefixes(each, np.full(count, -1), np.zeros(count, dtype=np.int64))


@dataclass(frozen=True)
class Turns:
    """Requests that come because another one was answered, think time after its completion."""

    # shape (n_requests,): what the completion of each request brings; -1: nothing. It stands behind all that come
    # unasked.
    following: IntArray
    # shape (n_requests,): from the completion (or from giving up) of each request to the arrival that it brings,
    # seconds
    think_s: FloatArray
    # shape (n_requests,): what comes where a request is given up, one of those that would have followed in time;
    # -1: nothing
    instead: IntArray
    # shape (n_requests,): of one that sends others out, the first of them, which its completion brings at once; of
    # these the next of them; -1: nobody. Their ends are what `following` waits for too. None: nobody is sent out.
    beside: IntArray | None = None

    @cached_property
    def awaited(self) -> IntArray:
        """Completions that each request waits for."""
        return np.bincount(self.following[self.following >= 0], minlength=self.following.size)

    @property
    def goes_on(self) -> IntArray:
        """Like `following`, but of those sent out nothing comes after the last turn."""
        if self.beside is None:
            return self.following
        return np.where(self.following == self.instead, -1, self.following)


def nothing_follows(count: int) -> Turns:
    """Return the turns of so many requests that bring nobody."""
    nobody = np.full(count, -1)
    return Turns(nobody, np.zeros(count), nobody)


_MANY = 10**6  # requests, beyond which their lengths are held in half the memory
_PIECE = 1 << 18  # requests that are drawn at a time
_MOST_DRAFTED = 5 * 10**7  # output tokens
_WORTH_A_GUIDE = 100  # draws for each end of a distribution


class Drafted(NamedTuple):
    """Tokens of speculative decoding, drawn beforehand."""

    drafts: Drafts  # that it was drawn for
    emitted: IntArray  # tokens of a request before each of its iterations, one request after the other
    begin: IntArray  # shape (n_requests + 1,): where those of each request begin


@dataclass(frozen=True)
class Requests:
    """Requests in order of arrival."""

    # shape (n_requests,): seconds from the start, ascending. All 0 in a closed loop, where the run decides; NaN,
    # and behind all others, where a turn is brought by the one before.
    arrival_s: FloatArray
    input_tokens: IntArray  # of more than a million drawn requests int32, and `class_index` int16
    decode_tokens: IntArray
    # shape (n_requests,): position of the class in the profile; 0 for requests of a trace
    class_index: IntArray
    # closed loop: so many requests are there at first, and each completion brings the next. None: open.
    clients: int | None = None
    # others arrive after the last of these, beyond the horizon of the run: nobody may take the last for the last
    more_later: bool = False
    # whose tokens are the same; None: no two requests have anything in common
    prefixes: Prefixes | None = None
    turns: Turns | None = None  # what follows a completion; None: nothing does
    drafted: Drafted | None = None  # what each iteration of them emits; None: a token
    # of a backlog: each joins the queue as soon as fewer than that wait. None: at its arrival.
    most_waiting: int | None = None
    # in a closed loop: whom a completion brings is in the iteration that begins then, and waits for no other to end
    at_once: bool = False

    def iterations(self, which: slice = slice(None)) -> IntArray:
        """Count the iterations in which each request, or each of some in a row, emits tokens."""
        if self.drafted is None:
            return self.decode_tokens[which]
        begin = self.drafted.begin
        return begin[1:][which] - begin[:-1][which]

    @property
    def is_open(self) -> bool:
        """True if all come at times of their own, whatever happens to others."""
        return self.clients is None and self.turns is None

    def part(self, start: int, stop: int) -> "Requests":
        """Take consecutive requests that do not depend on others."""
        return replace(
            self,
            arrival_s=self.arrival_s[start:stop],
            input_tokens=self.input_tokens[start:stop],
            decode_tokens=self.decode_tokens[start:stop],
            class_index=self.class_index[start:stop],
        )


def with_drafts(requests: Requests, drafts: Drafts, rng: np.random.Generator) -> Requests:
    """Draw the tokens of their iterations: one with the prompt, then accepted drafts and one more."""
    if int(requests.decode_tokens.sum()) > _MOST_DRAFTED:
        raise UsageError(f"drafts of more than {_MOST_DRAFTED:,} tokens cannot be drawn; fewer requests can")
    decode, accepted = requests.decode_tokens, np.array(drafts.accepted[: drafts.tokens])
    running, emitted = np.arange(decode.size, dtype=np.int32), np.ones(decode.size, dtype=np.int32)
    steps = [(running, np.zeros(decode.size, dtype=np.int32))]
    while (running := running[emitted[running] < decode[running]]).size:
        steps.append((running, emitted[running]))
        emitted[running] += 1 + (rng.random(running.size)[:, None] < accepted).sum(axis=1, dtype=np.int32)
    count = np.zeros(decode.size + 1, dtype=np.int64)
    for running, _ in steps:
        count[running + 1] += 1
    begin = np.cumsum(count)
    before = np.empty(begin[-1], dtype=np.int64)
    for step, (running, so_far) in enumerate(steps):
        before[begin[running] + step] = so_far
    return replace(requests, drafted=Drafted(drafts, before, begin))


def poisson(
    model: ServingModel, rng: np.random.Generator, *, requests: int | None, horizon_s: float | None
) -> Requests:
    """Draw arrivals of every class at random, at its rate, until so many or the horizon, whichever is earlier."""
    rate, horizon_s = model.total_rate_rps, _unchanged(model, horizon_s)
    ticks = _ticks(rng, requests, None if horizon_s is None else rate * horizon_s)
    ticks /= rate
    return _of_any_class(model, rng, _changed(model, ticks))


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
    """Draw Poisson arrivals at `high` times the rates of the model for `on_s` and `low` times for `off_s`, in turns.

    Exact by a change of time: the rate so far, piecewise linear in time, adds up to the ticks of a clock that ticks
    at random once per unit. With a schedule `on_s` and `off_s` are by the clock of that: shorter where it is busier.
    """
    rate, period, horizon_s = model.total_rate_rps, on_s + off_s, _unchanged(model, horizon_s)
    while_on, each_period = rate * high * on_s, rate * (high * on_s + low * off_s)
    end = None
    if horizon_s is not None:
        whole, part = divmod(horizon_s, period)
        end = whole * each_period + rate * (high * min(part, on_s) + low * max(part - on_s, 0.0))
    ticks = _ticks(rng, requests, end)
    periods = np.floor(ticks / each_period)
    rest = np.clip(ticks - periods * each_period, 0.0, each_period)
    # at a rate of 0, only rounding leaves anything to divide
    on, off = (1 / (rate * factor) if factor > 0 else 0.0 for factor in (high, low))
    inside = np.where(rest < while_on, rest * on, on_s + (rest - while_on) * off)
    return _of_any_class(model, rng, _changed(model, np.maximum.accumulate(periods * period + inside)))


def renewal(
    model: ServingModel,
    rng: np.random.Generator,
    *,
    cv: float,
    requests: int | None,
    horizon_s: float | None,
) -> Requests:
    """Draw arrivals with independent gamma gaps of coefficient of variation `cv`, classes at random by share.

    1 is Poisson, more comes in clumps. The first gap has the law of what is left of one at a random time, so rates hold
    from the start on.
    """
    end = math.inf if horizon_s is None else _unchanged(model, horizon_s) or 0.0
    times = gamma_times(rng, model.total_rate_rps, cv, requests=requests, end_s=end)
    return _of_any_class(model, rng, _changed(model, times))


def saturated(model: ServingModel, rng: np.random.Generator, *, requests: int) -> Requests:
    """Draw requests that are all there at time 0, classes and decode lengths at random by share; no schedule."""
    return _of_any_class(replace(model, schedule=None), rng, np.zeros(requests))


def interleaved(model: ServingModel, *, requests: int) -> Requests:
    """Make requests that are all there at time 0, classes and decode lengths in turns by share: no chance in it.

    The first k requests are a class's share of k to within 2, whatever k; likewise the pairs of a prompt and a decode
    length that formulas count among the requests of a class.
    """
    kind = _interleaved([c.rate_rps for c in model.classes], requests)
    decode = np.empty(requests, dtype=np.int64)
    inputs = np.empty(requests, dtype=np.int64)
    for index, c in enumerate(model.classes):
        mine = np.flatnonzero(kind == index)
        laws = [c.outputs_of(prompt) for prompt in c.kinds]
        weights = [p.share * law.weights for p, law in zip(c.kinds, laws, strict=True)]
        pair = _interleaved(np.concatenate(weights).tolist(), mine.size)
        decode[mine] = np.concatenate([law.values for law in laws])[pair]
        inputs[mine] = np.repeat([p.tokens for p in c.kinds], [law.values.size for law in laws])[pair]
    return Requests(np.zeros(requests), inputs, decode, kind)


def closed(model: ServingModel, rng: np.random.Generator, *, clients: int, requests: int) -> Requests:
    """Draw requests as `saturated` does, `clients` of which are there at a time: each completion brings the next."""
    return replace(saturated(model, rng, requests=requests), clients=clients)


def lengths(model: ServingModel, class_index: IntArray, rng: np.random.Generator) -> IntArray:
    """Draw a decode length, tokens, for each request from those of its class; arrays of shape (n_requests,)."""
    return _drawn([c.outputs for c in model.classes], class_index, rng)


def prompt_lengths(
    model: ServingModel, class_index: IntArray, rng: np.random.Generator, decode: IntArray
) -> IntArray:
    """Draw the prompt length, tokens, of each request; nothing is drawn where those of a class are alike.

    With the answer, of `decode` tokens, it is no longer than the engine takes.
    """
    if not any(c.prompts for c in model.classes):
        each = np.array([c.input_tokens for c in model.classes], dtype=np.int64)
        return each.astype(_numbers(class_index.size, each))[class_index]
    most = np.array([c.most or _APART for c in model.classes])
    room = most[class_index] - decode if most.min() < _APART else None
    return _drawn([c.inputs for c in model.classes], class_index, rng, room)


def _drawn(
    laws: Sequence[Lengths], class_index: IntArray, rng: np.random.Generator, room: IntArray | None = None
) -> IntArray:
    """Draw a value for each request from the law of its class, no larger than there is room for."""
    values = np.concatenate([law.values for law in laws])
    # law by law: a class and a chance are one position on a line, class i from i to i + 1; and a value is on another
    ends = np.concatenate([i + _cumulative(law.weights) for i, law in enumerate(laws)])
    last = np.cumsum([law.values.size for law in laws]) - 1
    places = values + np.repeat(np.arange(len(laws)) * _APART, [law.values.size for law in laws])

    def drawn(mine: slice) -> IntArray:
        kind = class_index[mine]
        chance = rng.random(kind.size)
        if room is not None:
            fits = np.searchsorted(places, kind * _APART + room[mine].clip(0, _APART - 1), side="right")
            chance *= np.maximum(ends[np.maximum(fits - 1, 0)] - kind, 0.0)
        row = _after(ends, kind + chance)
        return np.asarray(values[np.minimum(row, last[kind])])

    return _in_pieces(drawn, class_index.size, _numbers(class_index.size, values))


def _after(ends: FloatArray, chance: FloatArray) -> IntArray:
    """Count the ascending ends that each chance has reached, as `numpy.searchsorted`, in a quarter of the time.

    The place of a chance among equal parts of the line bounds the ends it has reached, mostly exactly.
    """
    if chance.size < _WORTH_A_GUIDE * ends.size:
        return np.searchsorted(ends, chance, side="right")
    parts = 1 << (8 * ends.size - 1).bit_length()  # of 1: a power of two, so that nothing is rounded
    guide = np.searchsorted(ends, np.arange(math.ceil(ends[-1]) * parts + 1) / parts, side="right")
    reached: IntArray = guide[(chance * parts).astype(np.int64)]
    more = np.flatnonzero(ends[np.minimum(reached, ends.size - 1)] <= chance)
    reached[more] = np.searchsorted(ends, chance[more], side="right")
    return reached


def _in_pieces(of: Callable[[slice], IntArray], size: int, kind: type[np.signedinteger]) -> IntArray:
    """Draw for each piece of so many requests in turn: in little memory."""
    result = np.empty(size, dtype=kind)
    for start in range(0, size, _PIECE):
        mine = slice(start, start + _PIECE)
        result[mine] = of(mine)
    return result


def _numbers(size: int, values: IntArray) -> type[np.signedinteger]:
    """Choose the type that holds these for so many requests."""
    return np.int32 if size > _MANY and values.max(initial=0) < 2**30 else np.int64


def _ticks(rng: np.random.Generator, requests: int | None, end: float | None) -> FloatArray:
    """Draw ticks of a clock at random, once per unit: so many, or all before the end, whichever is earlier."""
    if requests is None:
        assert end is not None
        return np.sort(rng.random(rng.poisson(end))) * end
    ticks = rng.standard_exponential(requests)
    np.cumsum(ticks, out=ticks)
    return ticks if end is None else ticks[ticks < end]


def gamma_times(
    rng: np.random.Generator, rate: float, cv: float, *, requests: int | None, end_s: float
) -> FloatArray:
    """Draw arrivals with gamma gaps, seconds: so many, or all before the end, whichever is earlier."""
    wanted, variance = math.inf if requests is None else requests, cv**2
    # a gap that covers a random time is longer than others, in proportion to its length
    times = np.array([rng.random() * rng.gamma(1 / variance + 1) * variance / rate])
    while times.size < wanted and times[-1] < end_s:
        more = 1.1 * rate * (end_s - times[-1]) if requests is None else wanted - times.size
        gaps = rng.gamma(1 / variance, variance / rate, 16 + int(variance + more))
        times = np.append(times, times[-1] + np.cumsum(gaps))
    return times[: np.searchsorted(times, end_s)][:requests]


def _interleaved(amounts: Sequence[float], count: int) -> IntArray:
    """Choose positions in `amounts`, each in proportion to its amount among the first k of `count`, to within 2.

    The amounts are halved again and again, as evenly as they come, and of the k things that reach a fork the nearest
    whole number to a branch's share goes there. A fork is out by 1/2 at most, and passes on 2/3 at most of what it
    inherits unless a branch ends there: 1/2 (1 + 1 + 2/3 + 4/9 + …) = 2.
    """
    descending = np.argsort(-np.array(amounts), kind="stable")
    ends = np.cumsum(np.array(amounts)[descending])
    result = np.empty(count, dtype=np.int64)
    forks = [(0, ends.size, np.arange(count))]
    while forks:
        first, stop, places = forks.pop()
        if stop - first == 1 or places.size == 0:
            result[places] = descending[first]
            continue
        before = ends[first - 1] if first > 0 else 0.0
        share = (ends[first : stop - 1] - before) / (ends[stop - 1] - before)
        fork = int(np.argmin(np.abs(share - 0.5)))
        left = np.diff(np.floor(np.arange(places.size + 1) * share[fork] + 0.5)) > 0
        forks += [(first, first + fork + 1, places[left]), (first + fork + 1, stop, places[~left])]
    return result


def _clock(model: ServingModel) -> Course | None:
    """Return the factor of all classes over time; None where rates do not vary."""
    return None if model.schedule is None else model.schedule.course([c.rate_rps for c in model.classes])


def _unchanged(model: ServingModel, time_s: float | None) -> float | None:
    """Return the time on the schedule's clock then."""
    clock = _clock(model)
    return time_s if clock is None or time_s is None else float(clock.integral(time_s))


def _changed(model: ServingModel, time_s: FloatArray) -> FloatArray:
    """Return the times at which the schedule's clock shows these, ascending."""
    clock = _clock(model)
    return time_s if clock is None else np.maximum.accumulate(clock.inverse(time_s))


def _of_any_class(model: ServingModel, rng: np.random.Generator, arrival: FloatArray) -> Requests:
    """Draw a class for each request, by share at the time, and a decode length."""
    rates, schedule = np.array([c.rate_rps for c in model.classes]), model.schedule
    shares = _cumulative(rates.tolist())

    def drawn(mine: slice) -> IntArray:
        chance = rng.random(arrival[mine].size)
        if isinstance(schedule, Steps):
            return _by_share_of_step(schedule, rates, arrival[mine], chance)
        return _after(shares, chance)

    small = arrival.size > _MANY and rates.size < 2**15
    kind = _in_pieces(drawn, arrival.size, np.int16 if small else np.int64)
    decode = lengths(model, kind, rng)
    return Requests(arrival, prompt_lengths(model, kind, rng, decode), decode, kind)


def _by_share_of_step(
    schedule: Steps, rates: FloatArray, arrival: FloatArray, chance: FloatArray
) -> IntArray:
    """Choose classes by their shares in the step of each arrival."""
    factors = np.array(schedule.factors)
    busy = factors.max(axis=1) > 0  # nobody arrives in the others, but by rounding at their start
    shares = np.cumsum(np.where(busy[:, None], factors, 1.0) * rates, axis=1)
    shares /= shares[:, -1:]
    step = np.searchsorted(schedule.starts_s, arrival % schedule.period_s, side="right") - 1
    kind: IntArray = np.zeros(arrival.size, dtype=np.int64)
    for ends in shares.T[:-1]:
        kind += chance >= ends[step]
    return kind


def _cumulative(amounts: Sequence[float] | FloatArray) -> FloatArray:
    """Return running sums over the sum; the last is 1."""
    sums = np.cumsum(amounts)
    return np.asarray(sums / sums[-1])


# ------------------------------------------------------------------------------------------- recorded requests

_AS_RECORDED = 1e-3  # a rate that differs by less from that of the trace is a rounded one


def requests_of(recorded: Recorded, rate_rps: float | None = None) -> Requests:
    """Take all of a trace, as it came; or at another mean rate, with all gaps as much longer or shorter."""
    hashes, inputs = recorded.block_hashes, recorded.input_tokens
    return Requests(
        recorded.arrival_s * stretch(recorded, rate_rps),
        inputs,
        recorded.decode_tokens,
        np.zeros(inputs.size, dtype=np.int64),
        prefixes=None if hashes is None else prefixes_of_hashes(hashes, inputs, recorded.block_tokens),
    )


def stretch(recorded: Recorded, rate_rps: float | None) -> float:
    """Return the factor on recorded gaps at a rate; 1 where it is that of the trace, but for rounding."""
    own = recorded.rate_rps
    factor = 1.0 if own is None or rate_rps is None else own / rate_rps
    return 1.0 if abs(factor - 1) < _AS_RECORDED else factor


def first(requests: Requests, count: int) -> Requests:
    """Pick the first so many."""
    return chosen(requests, np.arange(min(count, requests.arrival_s.size)))


def thinned(requests: Requests, share: float, rng: np.random.Generator) -> Requests:
    """Pick the requests that a router sends to one of several replicas: each with a chance, but at least one.

    Examples
    --------
    >>> some = requests_of(Recorded(np.arange(1000.0), *np.ones((2, 1000), dtype=np.int64)))
    >>> 200 < thinned(some, 0.25, np.random.default_rng(0)).arrival_s.size < 300
    True
    """
    chance = rng.random(requests.arrival_s.size)
    kept = np.flatnonzero(chance < share)
    return chosen(requests, kept if kept.size else np.array([chance.argmin()]))


def end_to_end(parts: Sequence[Requests]) -> tuple[FloatArray, IntArray, IntArray, IntArray]:
    """Put the first four columns of requests end to end."""
    columns = ("arrival_s", "input_tokens", "decode_tokens", "class_index")
    arrival, inputs, decode, kind = (
        np.concatenate([getattr(part, name) for part in parts]) for name in columns
    )
    return arrival, inputs, decode, kind


def chosen(requests: Requests, places: IntArray) -> Requests:
    """Pick those at these places, one perhaps several times, without what follows them."""
    prefixes, drafted = requests.prefixes, requests.drafted
    if drafted is not None:
        length = (drafted.begin[1:] - drafted.begin[:-1])[places]
        begin = np.concatenate([[0], np.cumsum(length)])
        at = np.repeat(drafted.begin[places] - begin[:-1], length) + np.arange(begin[-1])
        drafted = Drafted(drafted.drafts, drafted.emitted[at], begin)
    return Requests(
        requests.arrival_s[places],
        requests.input_tokens[places],
        requests.decode_tokens[places],
        requests.class_index[places],
        prefixes=prefixes and replace(prefixes, stream=prefixes.stream[places]),
        drafted=drafted,
    )


def prefixes_of_hashes(
    hashes: Sequence[Sequence[int]], input_tokens: IntArray, block_tokens: int
) -> Prefixes:
    """Find the streams of prompts whose blocks are known by hashes; generated tokens are each request's own.

    Two prompts have a block in common where their hashes are the same up to it: a tree, in which blocks that are always
    followed by the same one are a stream. The last hash of a prompt may be of a part of a block.
    """
    step: dict[tuple[int, int], int] = {}  # from a node of the tree of blocks by a hash
    above, depth = [-1], [0]
    goes_on = [0]  # prompts that end in a node, and nodes that follow it
    ends: list[int] = []
    for chain, tokens in zip(hashes, input_tokens.tolist(), strict=True):
        node = 0
        for known_by in chain[
            : tokens // block_tokens
        ]:  # of a part of a block nobody else can have all tokens
            below = step.get((node, known_by))
            if below is None:
                below = step[node, known_by] = len(above)
                above.append(node)
                depth.append(depth[node] + 1)
                goes_on.append(0)
                goes_on[node] += 1
            node = below
        ends.append(node)
    for node in ends:
        goes_on[node] += 1
    # a stream ends where more than one thing follows; what nobody shares is the request's own
    parent: list[int] = []
    end_tokens: list[int] = []
    last = [-1] * len(above)  # stream that ends at a node, or last before it
    for node in range(1, len(above)):
        last[node] = last[above[node]]
        if goes_on[node] > 1:
            parent.append(last[node])
            end_tokens.append(depth[node] * block_tokens)
            last[node] = len(parent) - 1
    count = len(ends)
    return Prefixes(
        stream=len(parent) + np.arange(count),
        parent=np.array([*parent, *(last[node] for node in ends)], dtype=np.int64),
        end_tokens=np.array([*end_tokens, *([0] * count)], dtype=np.int64),
    )
