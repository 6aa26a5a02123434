"""Iterations of at most so many tokens: prompts are computed in parts, and wait for one another (theory §9).

Given c, the slow part, the decodes leave room for T' prompt tokens, and the prompt tokens W that wait at the start of
an iteration are a Markov chain: W' = (W - T')⁺ + what arrives meanwhile. Its laws are on a lattice of tokens; a time is
the chain's iterations, one after the other.
"""

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from kvplan.analysis.latency.conditions import MOST_OF_PROMPTS_ALONE
from kvplan.analysis.latency.fast_part import Prompts
from kvplan.analysis.latency.feedback import Feedback
from kvplan.analysis.latency.law import Law, certain
from kvplan.analysis.latency.slow_part import SlowPart
from kvplan.analysis.latency.traffic import Traffic
from kvplan.model import FloatArray, IntArray, sum_by, survival

ComplexArray = NDArray[np.complex128]

_TOGETHER = 3  # nodes of the slow part that are one here
_CELLS = 128  # of waiting prompt tokens
_ROOM_CELLS = 32  # of them at most for the budget
_TAIL = 4.6  # half of -ln of the part of the law that the lattice leaves out
_FEWEST_TICKS, _MOST_TICKS = 32, 128  # of a full iteration
_TICKS_OF_FIXED = 6  # of d0
_POINTS = 1 << 11  # of a law
_FINER = 8  # cells of prompts between two tokens
_LENGTHS = 16  # of iterations that are not full
_SETTLED = 1e-3
_SHORT = 64  # tokens
_MOST_STEPS = 256
_PARTS = 6  # of a node, where it is spread
_LEAST_FACTOR, _MOST_FACTOR = 0.5, 2.0
_EVEN_TIMES = 256  # of what a request has waited; beyond, each by so much longer than the one before
_LONGER = 1.02
_SELDOM = 1e-6
_NOISE = 1e-9
_MOST_USE = 0.85
_MOST_USE_BY_LONG = 0.65  # where a prompt takes more than an iteration's room, weighed by tokens


class Queue(NamedTuple):
    """The chain of waiting prompt tokens, for each node of the slow part.

    Attributes
    ----------
    weight, slow_s, room : ndarray, shape (n_nodes,)
        Probability of a node, its c, and T', the prompt tokens that an iteration has room for. The first is the empty.
    step : tokens of a cell
    ticks : so many of a full iteration are told apart
    token_s : seconds of an iteration that a prompt token takes
    full_s : ndarray, shape (n_nodes,)
        Of an iteration that leaves some over.
    tokens : ndarray, shape (n_cells,)
    seconds : ndarray, shape (n_nodes, n_cells)
        Of an iteration with so many waiting at its start.
    arrivals : ndarray of complex, shape (n_frequencies,)
        Log-transform of the tokens that arrive in a second.
    moves : ndarray, shape (n_nodes, n_cells, n_cells)
        Transition probabilities.
    stationary : ndarray, shape (n_nodes, n_cells)
    """

    weight: FloatArray
    slow_s: FloatArray
    room: FloatArray
    step: float
    ticks: int
    token_s: float
    full_s: FloatArray
    tokens: FloatArray
    seconds: FloatArray
    arrivals: ComplexArray
    moves: FloatArray
    stationary: FloatArray

    @property
    def width(self) -> int:
        """Cells that an iteration has room for, and one more."""
        return math.ceil(float(self.room.max()) / self.step) + 1


def _nodes(slow: SlowPart) -> tuple[FloatArray, FloatArray]:
    """Fewer nodes, the empty one first."""
    group = np.arange(slow.weight.size) // _TOGETHER
    weight = sum_by(group, slow.weight) if group.size else np.empty(0)
    seconds = sum_by(group, slow.weight * slow.seconds) / weight if group.size else np.empty(0)
    return np.append(slow.fixed_s, seconds), np.append(slow.empty, weight)


def too_full(traffic: Traffic, budget: int) -> str | None:
    """Why prompts wait too long for a budget to be told; None where they do not.

    Examples
    --------
    >>> traffic = Traffic(1.0, 0.01, 2.0, *np.array([[0], [1]]), *np.array([[9.0], [1.0], [0.05], [0.0]]))
    >>> too_full(traffic, 100), too_full(traffic, 15)
    (None, 'prompts take 122 % of max_num_batched_tokens, above 90 %')
    """
    rate, tokens = traffic.rate_rps, traffic.prompt_tokens
    tokens_rps, square = float(rate @ tokens), float(rate @ tokens**2)
    decoding = traffic.iteration_s * float(rate @ (traffic.stages - 1))
    room = budget - decoding
    if room <= 0:
        return f"decodes take {100 * decoding / budget:.0f} % of max_num_batched_tokens"
    slow_s = traffic.iteration_s * (1 - traffic.prompt_work)
    full_s = slow_s + traffic.prompt_work * room / tokens_rps + traffic.token_s * square / (2 * tokens_rps)
    most = _MOST_USE if square <= room * tokens_rps else _MOST_USE_BY_LONG
    if traffic.longest == 1:
        most = MOST_OF_PROMPTS_ALONE
    if (use := tokens_rps * full_s / room) > most:
        return f"prompts take {100 * use:.0f} % of max_num_batched_tokens, above {100 * most:.0f} %"
    return None


def room_of(traffic: Traffic, budget: float, slow_s: FloatArray, mean_s: float) -> FloatArray:
    """T', what the decodes leave where the slow part is `slow_s`."""
    decoding = traffic.iteration_s * float(traffic.rate_rps @ (traffic.stages - 1))
    usual = mean_s - traffic.fixed_s
    return budget - (decoding * (slow_s - traffic.fixed_s) / usual if usual > 0 else 0.0 * slow_s)


def queue_of(
    traffic: Traffic, prompts: Prompts, prompt_tokens: FloatArray, slow: SlowPart, budget: int
) -> Queue:
    """The chain of each node, and its stationary law."""
    slow_s, weight = _nodes(slow)
    room = np.maximum(room_of(traffic, budget, slow_s, slow.mean), budget / 16)
    rate = prompts.rate_rps
    tokens_rps, square = float(rate @ prompt_tokens), float(rate @ prompt_tokens**2)
    token_s = prompts.work / tokens_rps
    full_s = slow_s + token_s * room + traffic.token_s * square / (2 * tokens_rps)
    use = min(float(weight @ (tokens_rps * full_s / room)), 0.9)
    span = budget + prompt_tokens.max() + _TAIL * use / (1 - use) * square / tokens_rps
    step = max(budget / _ROOM_CELLS, span / _CELLS)
    usual = float(prompt_tokens[np.argmax(rate * prompt_tokens)])
    if usual > step:  # on a point of the lattice
        step = usual / math.ceil(usual / step)
    cells = math.ceil(span / step) + 1
    points = 1 << math.ceil(math.log2(3 * cells))

    arrivals = _arrivals(rate, prompt_tokens / step, points)
    tokens = step * np.arange(cells)
    left = np.maximum(tokens - room[:, None], 0.0)
    full = left > 0
    computed = np.minimum(tokens, room[:, None])
    prompt_s = token_s * computed
    shift = np.fft.rfft(_placed(left[..., None] / step, np.ones((*left.shape, 1)), points))
    seconds = np.where(full, full_s[:, None], slow_s[:, None] + prompt_s)
    moves, stationary = _chain(seconds, arrivals, shift)
    more = _decodes_behind(traffic, tokens_rps, weight, slow_s, computed, moves, stationary)
    here = (weight[:, None] * stationary) * full
    if here.any():
        shorter = full_s + float((here * more).sum() / here.sum())
        full_s = np.maximum(shorter, slow.fixed_s + token_s * room)
    seconds = np.where(full, full_s[:, None], np.maximum(slow_s[:, None] + more, slow.fixed_s) + prompt_s)
    moves, stationary = _chain(seconds, arrivals, shift)
    ticks = math.ceil(_TICKS_OF_FIXED * float(weight @ full_s) / slow.fixed_s)
    ticks = min(max(ticks, _FEWEST_TICKS), _MOST_TICKS)
    return Queue(
        weight, slow_s, room, step, ticks, token_s, full_s, tokens, seconds, arrivals, moves, stationary
    )


def _arrivals(rate: FloatArray, cells: FloatArray, points: int) -> ComplexArray:
    """Log-transform of what arrives in a second, prompts on the cells on both sides of them."""
    return np.asarray(np.fft.rfft(_placed(cells, rate, points)) - rate.sum())


def _chain(seconds: FloatArray, arrivals: ComplexArray, shift: ComplexArray) -> tuple[FloatArray, FloatArray]:
    """Transition probabilities and the stationary law of each node: what is left over, and who comes meanwhile."""
    cells, points = seconds.shape[1], 2 * (arrivals.size - 1)
    moves = _clamped(np.fft.irfft(np.exp(seconds[..., None] * arrivals) * shift, points), cells)
    system = np.eye(cells) - np.swapaxes(moves, 1, 2)
    system[:, -1] = 1.0
    right = np.zeros((*seconds.shape, 1))
    right[:, -1] = 1.0
    stationary = np.maximum(np.linalg.solve(system, right)[..., 0], 0.0)
    return moves, stationary / stationary.sum(axis=1, keepdims=True)


def _decodes_behind(
    traffic: Traffic,
    tokens_rps: float,
    weight: FloatArray,
    slow_s: FloatArray,
    computed: FloatArray,
    moves: FloatArray,
    stationary: FloatArray,
) -> FloatArray:
    """How much longer the slow part is, by what waits, than a node says: prompts computed lately are decoding now.

    What waits now tells what has been computed k iterations ago, and so who is at stage k now.

    Returns
    -------
    ndarray, shape (n_cells,)
        Seconds.
    """
    stages, rate = traffic.stages, traffic.rate_rps
    present, level = survival(stages, rate)[1:], survival(stages, rate * traffic.stage_s)[1:]
    per_token = (level + traffic.token_s * np.arange(1, present.size + 1) * present) / tokens_rps
    joint = weight[:, None] * stationary
    law = joint.sum(axis=0)
    at = joint / np.where(law > 0, law, np.inf)
    together = np.einsum("nw,nwv->wv", at, moves)
    recent = (joint * computed).sum(axis=0)
    recent -= law * recent.sum()
    more = np.zeros(law.size)
    for x in per_token[:_MOST_STEPS].tolist():
        recent = recent @ together
        more += x * recent
        if np.abs(recent).sum() < _SETTLED * tokens_rps * traffic.iteration_s:
            break
    more = np.where(law > _SELDOM, more / np.where(law > 0, law, np.inf), np.nan)
    known = ~np.isnan(more)
    more = np.interp(np.arange(law.size), np.flatnonzero(known), more[known])
    told = slow_s @ at
    return np.asarray(more - (told - float(law @ told)))


def _placed(cells: FloatArray, mass: FloatArray, points: int) -> FloatArray:
    """Masses along the last axis put on a lattice of so many points, each on the two cells that it lies between."""
    out = np.zeros((*cells.shape[:-1], points))
    below = cells.astype(np.int64)
    part = cells - below
    row = np.indices(cells.shape, sparse=True)[:-1]
    np.add.at(out, (*row, below), mass * (1 - part))
    np.add.at(out, (*row, below + 1), mass * part)
    return out


def _added(shape: tuple[int, ...], place: tuple[IntArray, ...], mass: FloatArray) -> FloatArray:
    """Masses added up at their places; all are broadcast together."""
    *index, amounts = np.broadcast_arrays(*place, mass)
    flat = np.ravel_multi_index(tuple(index), shape).ravel()
    return sum_by(flat, amounts.ravel(), math.prod(shape)).reshape(shape)


def _cut(law: FloatArray, cells: int) -> FloatArray:
    """The last axis cut to so many cells, the last of which takes what lies beyond."""
    out = np.maximum(law[..., :cells], 0.0)
    out[..., -1] += np.maximum(law[..., cells:].sum(axis=-1), 0.0)
    return out


def _clamped(law: FloatArray, cells: int) -> FloatArray:
    """The same of laws, which sum to 1."""
    out = _cut(law, cells)
    return np.asarray(out / out.sum(axis=-1, keepdims=True))


class Met(NamedTuple):
    """What a request meets that comes in an iteration under way, and what comes behind it.

    Attributes
    ----------
    tick_s : ndarray, shape (n_nodes,)
        Seconds of a tick, of which a full iteration has `ticks`.
    edges : ndarray, shape (n_times + 1,)
        Cells of what requests have waited, ticks.
    mass : ndarray, shape (n_nodes, ticks + 1, n_cells)
        Of the time that is left of the iteration and the tokens ahead; it sums to the mean iteration.
    behind : ndarray, shape (n_nodes, n_times, n_cells)
        Law of the tokens that have come behind it, by what it has waited.
    near : ndarray of complex, shape (n_nodes, n_times, n_frequencies)
        Transform of that law as far as they share its last iteration.
    """

    tick_s: FloatArray
    edges: IntArray
    mass: FloatArray
    behind: FloatArray
    near: ComplexArray


class Served(NamedTuple):
    """What happens to prompts of one length.

    Attributes
    ----------
    law : Law
        Of the time to the first token ...
    mean_s : float
        ... and its mean.
    queue : ndarray, shape (4, n_nodes, n_cells)
        Law of the node and of what waits at the start of the iteration of the first token, and how long it took until
        then: its first three moments, times the law. Where nobody is there, shape (4, n_cells).
    """

    law: Law
    mean_s: float
    queue: FloatArray


def meet(queue: Queue, largest: float) -> Met:
    """What requests meet whose prompts have no more than `largest` tokens."""
    nodes, cells = queue.seconds.shape
    points = 2 * (queue.arrivals.size - 1)
    n = queue.ticks
    tick = queue.full_s / n
    mass = queue.stationary.copy()
    mass[0, 0] = 0.0  # iterations with nobody are not run
    over = queue.tokens > queue.room[:, None]
    length = queue.seconds / tick[:, None]
    times = np.arange(n)
    overlap = np.clip(length[..., None] - times, 0.0, 1.0)  # of each cell of time left
    elapsed = np.clip(length[..., None] - times - overlap / 2, 0.0, n)
    below = np.minimum(elapsed.astype(np.int64), n - 1)
    joint = np.zeros((nodes, n + 1, n + 1))  # time left and elapsed
    node = np.arange(nodes)[:, None, None]
    likely = np.where(over, 0.0, mass)[..., None] * overlap
    early = (elapsed - below) * likely
    for later, share in ((0, 1 - overlap / 2), (1, overlap / 2)):
        joint += _added(joint.shape, (node, times + later, below), share * (likely - early))
        joint += _added(joint.shape, (node, times + later, below + 1), share * early)
    after = np.exp(np.arange(n + 1)[:, None] * tick[:, None, None] * queue.arrivals)
    left = np.maximum(queue.tokens - queue.room[:, None], 0.0) / queue.step
    left_over = np.fft.rfft(_placed(left, np.where(over, mass, 0.0), points))
    uniform = np.full(n + 1, 1.0)
    uniform[[0, -1]] = 0.5
    meets = joint @ after + left_over[:, None] * uniform[:, None] * after[:, ::-1]
    ahead = _cut(np.fft.irfft(meets, points), cells) * (queue.weight * tick)[:, None, None]

    seldom = _SELDOM * ahead.sum()
    most = [
        math.ceil((queue.tokens[there].max() + largest) / room) if there.any() else 1
        for room, there in zip(queue.room, ahead.sum(axis=1) > seldom, strict=True)
    ]
    edges = _edges(max(most) * n + 1)
    waited = tick[:, None] * (edges[:-1] + edges[1:] - 1) / 2
    behind = _clamped(np.fft.irfft(np.exp(waited[..., None] * queue.arrivals), points), cells)
    size = 1 << math.ceil(math.log2(2 * queue.width + 1))
    return Met(tick, edges, ahead, behind, np.fft.rfft(_clamped(behind, queue.width + 1), size))


def _edges(ticks: int) -> IntArray:
    """Edges of cells of times: single ticks, then ever more of them."""
    beyond = math.ceil(math.log(max(ticks / _EVEN_TIMES, 1.0)) / math.log(_LONGER)) + 1
    later = np.ceil(_EVEN_TIMES * _LONGER ** np.arange(beyond)).astype(np.int64)
    edges = np.concatenate([np.arange(_EVEN_TIMES), later])
    return edges[: np.searchsorted(edges, ticks) + 1]


def serve(queue: Queue, prompt_tokens: float, met: Met) -> Served:
    """A prompt of this length behind what it meets: so many full iterations, and one that computes its rest."""
    nodes, cells = queue.seconds.shape
    total = float(met.mass.sum())
    room, step = queue.room[:, None], queue.step
    work = queue.tokens + prompt_tokens
    number = np.maximum(np.ceil(work / room - 1e-9), 1.0)  # of its iterations
    rest = work - (number - 1) * room
    first = int(number[:, 0].min())
    likely = met.mass.sum(axis=1) > _SELDOM * total
    last = max(int(number[likely].max()), first) if likely.any() else first
    past = np.minimum(number, last).astype(np.int64) - 1
    width = queue.width
    value = np.minimum(step * np.arange(width), room)  # tokens
    place = np.minimum((rest / step).astype(np.int64), width - 2)
    low, high = np.take_along_axis(value, place, 1), np.take_along_axis(value, place + 1, 1)
    part = np.clip((rest - low) / np.where(high > low, high - low, np.inf), 0.0, 1.0)

    ticks = past[:, None] * queue.ticks + np.arange(queue.ticks + 1)[:, None]
    when = np.searchsorted(met.edges, ticks, side="right") - 1
    start, end = int(when.min()), int(when.max()) + 1
    when -= start
    shape, node = (nodes, end - start, width), np.arange(nodes)[:, None, None]
    joint = _added(
        shape, (node, when, place[:, None]), met.mass * (1 - part)[:, None]
    )  # time waited and rest
    joint += _added(shape, (node, when, place[:, None] + 1), met.mass * part[:, None])
    behind = met.behind[:, start:end]
    waited = met.tick_s[:, None] * (met.edges[start:end] + met.edges[start + 1 : end + 1] - 1) / 2

    # the last iteration begins with the rest and who came behind
    waits = np.zeros((4, nodes, cells))
    for power, law in enumerate(waits):
        pairs = np.swapaxes(joint * (waited**power)[..., None], 1, 2) @ behind
        for k in range(width):
            law[:, k:] += pairs[:, k, : cells - k]
            law[:, -1] += pairs[:, k, cells - k :].sum(axis=1)
    size = 2 * (met.near.shape[-1] - 1)
    together = np.fft.irfft(np.fft.rfft(joint, size) * met.near[:, start:end], size)
    ends = step * np.arange(size)
    length = np.where(ends > room, queue.full_s[:, None], queue.slow_s[:, None] + queue.token_s * ends)
    seconds = waited[..., None] + length[:, None]
    there = together > _NOISE * total
    seconds, mass = seconds[there], together[there]
    tick = float(queue.weight @ met.tick_s)
    return Served(law_of(seconds, mass, tick), float(seconds @ mass / mass.sum()), waits / total)


def serve_alone(queue: Queue, prompt_tokens: float, least_s: float) -> Served:
    """A prompt that finds nobody, and takes so long if nobody comes behind it."""
    cells, room = queue.tokens.size, float(queue.room[0])
    before = max(math.ceil(prompt_tokens / room - 1e-9), 1) - 1
    rest = prompt_tokens - before * room
    points = 2 * (queue.arrivals.size - 1)
    behind = _clamped(np.fft.irfft(np.exp(before * queue.full_s[0] * queue.arrivals), points), cells)
    own, part = divmod(rest / queue.step, 1.0)
    place = np.minimum(np.arange(cells) + int(own), cells - 2)
    waits = np.zeros(cells)
    np.add.at(waits, place, behind * (1 - part))
    np.add.at(waits, place + 1, behind * part)
    moments = waits * (before * queue.full_s[0]) ** np.arange(4.0)[:, None]
    if before == 0:
        return Served(certain(least_s), least_s, moments)
    seconds = least_s + queue.token_s * (np.minimum(rest + queue.tokens, room) - rest)
    return Served(law_of(seconds, behind), float(seconds @ behind), moments)


def law_of(seconds: FloatArray, mass: FloatArray, width: float = 0.0) -> Law:
    """Many weighed times as a law, each spread over `width`."""
    low, high = float(seconds.min()) - width / 2, float(seconds.max()) + width / 2
    step = max((high - low) / _POINTS, 1e-9 * high)
    place = (seconds - low) / step
    below = place.astype(np.int64)
    part = place - below
    total = np.bincount(below, mass * (1 - part), _POINTS + 2) + np.bincount(
        below + 1, mass * part, _POINTS + 2
    )
    edges = low + step * np.arange(-0.5, _POINTS + 2)
    below_edges = np.append(0.0, np.cumsum(total))
    if width > step:
        area = np.append(0.0, np.cumsum((below_edges[1:] + below_edges[:-1]) * step / 2))
        ends = (np.interp(edges + side * width / 2, edges, area) for side in (-1, 1))
        left, right = ends
        right = right + np.maximum(edges + width / 2 - edges[-1], 0.0) * below_edges[-1]
        below_edges = (right - left) / width
    return Law(edges, below_edges).reduced()


class After(NamedTuple):
    """What an iteration computes of prompts, by its length and what was left over before it.

    On a lattice finer than the queue's, where prompts that are far below the budget still differ.

    Attributes
    ----------
    prompt_s : ndarray, shape (n_nodes, n_fine_cells)
        Seconds of so many prompt tokens.
    longer : ndarray, shape (n_nodes, n_cells)
        Place of an iteration among lengths of those that are not full.
    left : ndarray, shape (n_nodes, n_cells)
        Fine cells left over.
    meanwhile : ndarray of complex, shape (n_nodes, n_lengths, n_frequencies)
        Transform of what arrives in an iteration of each length.
    """

    prompt_s: FloatArray
    longer: FloatArray
    left: FloatArray
    meanwhile: ComplexArray

    @classmethod
    def of(cls, queue: Queue, rate: FloatArray, prompt_tokens: FloatArray) -> "After":
        """Computed once, for all classes."""
        step, points = queue.step / _FINER, 2 * (queue.arrivals.size - 1) * _FINER
        least = queue.seconds.min(axis=1, keepdims=True)
        longer = (queue.full_s[:, None] - least) / _LENGTHS
        times = least + longer * np.arange(_LENGTHS + 1)
        tokens = step * np.arange(math.ceil(queue.room.max() / step) + 1)
        return cls(
            queue.token_s * np.minimum(tokens, queue.room[:, None]),
            np.clip((queue.seconds - least) / np.where(longer > 0, longer, np.inf), 0.0, _LENGTHS),
            np.maximum(queue.tokens - queue.room[:, None], 0.0) / step,
            np.exp(times[..., None] * _arrivals(rate, prompt_tokens / step, points)),
        )

    def waits(self, law: FloatArray) -> FloatArray:
        """Law of the prompt tokens of the iteration after one at whose start so much waits; as `prompt_s`."""
        nodes, points = law.shape[0], 2 * (self.meanwhile.shape[-1] - 1)
        over, node = self.left > 0, np.arange(nodes)[:, None]
        below = np.minimum(self.longer.astype(np.int64), _LENGTHS - 1)
        within, part = np.where(over, 0.0, law), self.longer - below
        shape = (nodes, _LENGTHS + 1)
        lengths = _added(shape, (node, below), within * (1 - part))
        lengths += _added(shape, (node, below + 1), within * part)
        beyond, place, part = np.where(over, law, 0.0), self.left.astype(np.int64), self.left % 1.0
        rest = _added((nodes, points), (node, place), beyond * (1 - part))
        rest += _added((nodes, points), (node, place + 1), beyond * part)
        later = np.matmul(lengths[:, None].astype(np.complex128), self.meanwhile)[:, 0]
        later += np.fft.rfft(rest) * self.meanwhile[:, -1]
        return _cut(np.fft.irfft(later, points), self.prompt_s.shape[1])


def gaps_law(
    traffic: Traffic,
    prompts: Prompts,
    slow: SlowPart,
    found: "Budgeted",
    idle: float,
    mine: NDArray[np.bool_],
    mean: float,
) -> tuple[Law, float]:
    """Between two tokens of a request of the rows `mine`, whose mean slow part is known; and its mean."""
    queue, served, alone = found.queue, found.served, found.alone
    stages, rate, group = traffic.stages[mine], traffic.rate_rps[mine], prompts.group[mine]
    number = float(rate @ (stages - 1))
    stationary = queue.stationary
    before = np.zeros_like(stationary)
    settled = 0.0
    for g in np.unique(group).tolist():
        present = survival(stages[group == g], rate[group == g])[1:] / number
        at = served[g].queue[0] / np.maximum(served[g].queue[0].sum(axis=1, keepdims=True), 1e-300)
        at = np.where(at.sum(axis=1, keepdims=True) > 0.5, at, stationary)
        at = (1 - idle) * at + idle * alone[g].queue[0]
        for m in range(min(present.size, _MOST_STEPS)):
            before += present[m] * at
            at = np.matmul(at[:, None], queue.moves)[:, 0]
            if (queue.weight * np.abs(at - stationary).sum(axis=1)).sum() < _SETTLED:
                break
        settled += float(present[m + 1 :].sum())
    prompt_s, law = found.after.prompt_s, found.after.waits(before + settled * stationary)
    own = float(rate @ ((stages - 1) * (traffic.stage_s[mine] + traffic.token_s * stages / 2))) / number
    usual = float(queue.weight @ (queue.slow_s - slow.fixed_s))
    factor = (mean - slow.fixed_s - own) / usual if usual > 0 else 1.0
    factor = min(max(factor, _LEAST_FACTOR), _MOST_FACTOR)
    c = slow.fixed_s + own + factor * (queue.slow_s - slow.fixed_s)
    # prompts as they come in iterations of that slow part: of the nodes on both sides
    near = np.array([np.interp(c, queue.slow_s, unit) for unit in np.eye(c.size)]).T  # of node n, at m
    joint = queue.weight[:, None, None] * near[..., None] * law
    spread, share = _spread(c)
    seconds = spread[:, None, None, :] + prompt_s[..., None]
    mass = joint[..., None] * share[:, None, None, :]
    there = np.broadcast_to(joint[..., None] > 1e-9, mass.shape)
    return law_of(seconds[there], mass[there]), mean + float((joint * prompt_s).sum())


def short_stays(
    traffic: Traffic, prompts: Prompts, found: "Budgeted", idle: float
) -> tuple[FloatArray, FloatArray]:
    """Variance, s², and skewness of the time of each row until its last token, were the slow part never to change.

    Infinite where there are so many tokens that it does.
    """
    queue = found.queue
    at = [(1 - idle) * x.queue for x in found.served]
    for mixed, alone in zip(at, found.alone, strict=True):
        mixed[:, 0] += idle * alone.queue
    x = queue.seconds
    sums = np.zeros((*x.shape, 3))
    variance = np.full(traffic.stages.shape, np.inf)
    skewness = np.zeros(variance.shape)
    short = traffic.stages <= _SHORT
    for d in range(1, int(traffic.stages[short].max(initial=0)) + 1):
        one, two, three = np.moveaxis(queue.moves @ sums, -1, 0)
        sums = np.stack([x + one, x**2 + 2 * x * one + two, x**3 + 3 * x * (x * one + two) + three], axis=-1)
        y1, y2, y3 = np.moveaxis(sums, -1, 0)
        for row in np.flatnonzero(traffic.stages == d).tolist():
            law, w1, w2, w3 = at[prompts.group[row]]
            first = float((w1 + law * y1).sum())
            second = float((w2 + 2 * w1 * y1 + law * y2).sum())
            third = float((w3 + 3 * (w2 * y1 + w1 * y2) + law * y3).sum())
            variance[row] = max(second - first**2, 0.0)
            spread = math.sqrt(variance[row])
            skewness[row] = (third - 3 * first * second + 2 * first**3) / spread**3 if spread > 0 else 0.0
    return variance, skewness


def slow_mean(traffic: Traffic, feedback: Feedback, later_s: FloatArray) -> FloatArray:
    """Seconds of the slow part in the iterations of each row past its prompt, summed.

    An iteration without a budget computes the prompts that came in the one before: its slow part is what is left.
    """
    tau, d = traffic.iteration_s, traffic.stages
    like = feedback.covariance / tau
    first = tau + like[1] + traffic.prompt_s
    last = (
        tau
        + like[d]
        + traffic.prompt_s * feedback.response[d - 1]
        + traffic.stage_s
        + traffic.token_s * (d - 1)
    )
    return later_s - np.where(d > 1, traffic.prompt_work * (first + later_s - last), 0.0)


def _spread(nodes: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Values that stand for each node but the first: evenly on both sides, half way to its neighbours."""
    values = np.repeat(nodes[:, None], _PARTS, axis=1)
    if nodes.size > 2:
        inner = nodes[1:]
        between = (inner[1:] + inner[:-1]) / 2
        edges = np.concatenate([[2 * inner[0] - between[0]], between, [2 * inner[-1] - between[-1]]])
        values[1:] = edges[:-1, None] + np.diff(edges)[:, None] * (np.arange(_PARTS) + 0.5) / _PARTS
    return values, np.full_like(values, 1 / _PARTS)


class Budgeted(NamedTuple):
    """First tokens, and the chain behind them.

    Attributes
    ----------
    prompt_tokens : ndarray, shape (n_groups,)
        Means of groups of prompts.
    served
        Of each, where somebody is there.
    alone
        Where nobody is.
    after
        The iterations behind.
    """

    prompt_tokens: FloatArray
    queue: Queue
    served: list[Served]
    alone: list[Served]
    after: After


def budgeted(traffic: Traffic, prompts: Prompts, slow: SlowPart, budget: int, empty: float) -> Budgeted:
    """First tokens of each group of prompts in iterations of at most `budget` tokens.

    Parameters
    ----------
    empty
        Probability that nobody is there in an iteration, if iterations went on all the same; 0 where not known.

    Examples
    --------
    Nobody else ever: a prompt of two and a half budgets takes three iterations of a second, and a hundredth a token.

    >>> from kvplan.analysis.latency.fast_part import prompts_of
    >>> lone = Traffic(1.0, 0.0, 1.0, *np.array([[0], [1]]), *np.array([[250.0], [1e-9], [2.5], [0.0]]))
    >>> found = budgeted(lone, prompts_of(lone), SlowPart(1.0, 1.0, np.empty(0), np.empty(0)), 100, 1.0)
    >>> round(found.alone[0].mean_s, 6)
    5.5
    """
    rate = prompts.rate_rps
    tokens = sum_by(prompts.group, traffic.rate_rps * traffic.prompt_tokens) / rate
    queue = queue_of(traffic, prompts, tokens, slow, budget)
    if empty > 0:  # prompts that wait and requests past prefill are seldom missing at the same time
        nobody = min(1.0, empty / float(queue.stationary[0, 0]))
        others = queue.weight[1:].sum()
        weight = queue.weight * ((1 - nobody) / others if others > 0 else 1.0)
        weight[0] = nobody if others > 0 else 1.0
        queue = queue._replace(weight=weight)
    met = meet(queue, float(tokens.max()))
    parts = np.ceil(tokens / budget)
    sequence_s = max(float(traffic.stage_s[0] - traffic.token_s * traffic.prompt_tokens[0]), 0.0)
    again = (parts - 1) * (sequence_s + traffic.token_s * budget * parts / 2)
    least = parts * traffic.fixed_s + prompts.seconds + again
    alone = [
        serve_alone(queue, s, seconds) for s, seconds in zip(tokens.tolist(), least.tolist(), strict=True)
    ]
    if met.mass.any():
        served = [serve(queue, s, met) for s in tokens.tolist()]
    else:  # so seldom that floats do not hold how often
        served = [one._replace(queue=np.zeros((4, *queue.seconds.shape))) for one in alone]
    return Budgeted(tokens, queue, served, alone, After.of(queue, rate, tokens))
