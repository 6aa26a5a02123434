"""Prefill and decode on replicas of their own, or both on each: what either serves, and when which wins (theory §12).

A replica of any kind, `Side`, does so much for a request on average. At x requests an iteration takes τ(x) and serves
x/τ(x) requests/s; its limits say how large x can be. A fleet that is split serves the lesser of its two sides.

**On equal hardware splitting never serves more unless the time between tokens has to be shorter than the iterations of
a saturated prefill replica**, which take d0 + d2·T_b under a token budget T_b. Proof, with u for one over the time of
an iteration: on every replica what its requests add per second, plus d0·u, is 1; rate·need ≤ limit·u, for memory,
sequences and tokens; and u ≥ 1/ITL, on prefill replicas too if their iterations are no longer. All of this is linear in
(rates, u): a replica that does the mean of what the replicas of a split do satisfies it with the mean of their u. A
transfer only takes memory from the split. For a law convex in what an iteration does the first condition is convex, and
"is 1" becomes "at most 1": the mean replica is faster still. For d4, which is concave, there are counterexamples.

**It does serve more, but for whole replicas, if the limit is shorter**, where the law is linear and neither memory nor
transfers nor sequences bind: a request takes (c_p + d0·s/T_b) + c_d/(1 - d0/ITL) seconds of a split, and at least
(c_p + c_d)/(1 - d0/ITL) of replicas that do both; c_p and c_d is what prompt and decoding add to iterations.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from kvplan.analysis.equilibrium import per_request, prompts_of
from kvplan.model import FloatArray, Prompts, ServingModel, Timing
from kvplan.model.fleet import Fleet
from kvplan.solve import boundary, falling_root, first_of_steps, peak

ITL, COMPUTE, LINK = "itl", "compute", "transfer"  # what can bind beside the limits of a replica
_NEAR, _FAR, _POINTS = 1e-6, 1e4, 96  # where a crossing is looked for, in shortest and longest iterations
_TIE = 1e-12  # relative, of rates neither of which wins
_ENDLESS = 1e18  # requests an iteration
_SELDOM_LOG = -60.0  # of requests an iteration, below which no law has its knee


@dataclass(frozen=True)
class Side:
    """Mean costs of a request on replicas of one kind, over all requests of the fleet, and limits of these."""

    timing: Timing
    read: float = 0.0  # KV tokens that a request adds to the iterations of such a replica ...
    prefill_tokens: float = 0.0  # ... and prompt tokens ...
    sequences: float = 0.0  # ... and sequences ...
    prefill_pairs: float = 0.0  # ... and pairs of prompt tokens with their context
    held: float = 0.0  # KV token-iterations of memory
    waiting: float = 0.0  # KV token-seconds beside its iterations, while its KV goes from side to side
    link_s: float = 0.0  # that its KV takes on the link of the replica, one transfer at a time
    computed_tokens: float = 0.0  # all that is computed for it
    memory_tokens: float = math.inf
    max_num_seqs: float = math.inf
    max_num_batched_tokens: float = math.inf
    gpus: int = 1
    # law of the prefill tokens at so many requests an iteration, for times that are not linear in them; None: the mean
    prompts: Callable[[Any], Prompts] | None = None

    @property
    def work_s(self) -> float:
        """Seconds that a request adds to iterations in proportion."""
        return self.timing.linear(self.read, self.prefill_tokens, self.sequences, self.prefill_pairs)

    def iteration_time(self, requests: Any) -> Any:
        """Seconds of an iteration at so many requests an iteration; a number or an array."""
        if self.timing.is_linear:
            return self.timing.d0 + requests * self.work_s
        mean = requests * self.prefill_tokens
        prompts = mean if self.prompts is None else self.prompts(requests)
        return self.timing.fixed(prompts, requests * self.sequences) + requests * self.work_s


class Served(NamedTuple):
    """Requests/s that a replica serves at its first limit, seconds of an iteration there, and the limit."""

    rate_rps: float
    iteration_time_s: float
    binding: str


class Sides(NamedTuple):
    """The replicas that a fleet can be made of: for prompts, for what follows them, for both."""

    prefill: Side
    decode: Side
    together: Side


class Split(NamedTuple):
    """Replicas for prompts and for decoding, and what they serve."""

    prefill: int
    decode: int
    rate_rps: float


class Crossing(NamedTuple):
    """The limit on the time between tokens at which split and together serve the same, and on which side which wins."""

    itl_s: float
    split_wins_below: bool


def prefill_side(model: ServingModel, fleet: Fleet) -> Side:
    """Describe replicas that compute prompts, with all else as in a model: its stage 0, and the transfer.

    A prompt longer than the token budget is held for as many iterations as it takes.
    """
    model = model.on(fleet.prefill_on)
    mix, budget = model.mix, model.replica.max_num_batched_tokens or math.inf
    tokens = mix.computed_tokens - mix.stages + 1
    start = mix.held.at_start
    parts = tokens * model.replica.ranks / budget
    held: FloatArray = np.maximum(start * np.maximum(1.0, parts), start + mix.partial.held)
    share, lengths = mix.prompt_law

    def prompts(requests: Any) -> Prompts:
        return Prompts(np.multiply.outer(requests, share), lengths, budget)

    return replace(
        _replica(model),
        read=mix.mean(mix.read.at_start + mix.partial.read),
        prefill_tokens=mix.mean(mix.prefill_tokens),
        sequences=mix.mean(mix.partial.iterations + 1),
        prefill_pairs=mix.mean(mix.prefill_pairs),
        held=mix.mean(held),
        waiting=_waiting(model, fleet),
        link_s=mix.mean(transfers_s(model, fleet)),
        computed_tokens=mix.mean(tokens),
        prompts=prompts,
    )


def decode_side(model: ServingModel, fleet: Fleet) -> Side:
    """Describe replicas that generate what follows the first stage, with all else as in a model."""
    model = model.on(fleet.decode_on)
    mix = model.mix
    return replace(
        _replica(model),
        read=mix.mean(mix.read.footprint - mix.read.at_start),
        sequences=mix.mean(mix.stages - 1),  # nothing, not what rounding leaves of it
        held=mix.mean(mix.held.footprint - mix.held.at_start),
        waiting=_waiting(model, fleet),
        link_s=mix.mean(transfers_s(model, fleet)),
        computed_tokens=mix.mean(mix.stages - 1),
    )


def together(model: ServingModel) -> Side:
    """Describe replicas that do both: those of the model."""
    cost = per_request(model)
    return replace(
        _replica(model),
        read=cost.read,
        prefill_tokens=cost.prefill_tokens,
        sequences=cost.iterations,
        prefill_pairs=cost.prefill_pairs,
        held=cost.held,
        computed_tokens=cost.computed_tokens,
        prompts=lambda requests: prompts_of(model.mix, model.replica, requests),
    )


def sides(model: ServingModel, fleet: Fleet) -> Sides:
    """Describe all three, on the hardware of a model where the fleet has none for a side."""
    return Sides(prefill_side(model, fleet), decode_side(model, fleet), together(model))


def not_covered(model: ServingModel) -> str | None:
    """Say why the formulas do not tell what a split fleet of such replicas serves; None where they do."""
    if model.drafts is not None:
        return "speculative decoding"
    if model.finds_prefixes:
        return "requests that find something of others in a prefix cache"
    if not model.mix.prefill_tokens.any():
        return "prompts that are all ready-made or empty"
    return None


def _replica(model: ServingModel) -> Side:
    """Return a replica of the model without work."""
    replica = model.replica
    return Side(
        model.timing,
        memory_tokens=float(replica.capacity_tokens),
        max_num_seqs=float(replica.max_num_seqs or math.inf),
        max_num_batched_tokens=float(replica.max_num_batched_tokens or math.inf),
        gpus=replica.gpus,
    )


def _waiting(model: ServingModel, fleet: Fleet) -> float:
    """KV token-seconds that a request holds on either side for its transfer."""
    return float(model.mix.mean(model.mix.held.at_start * transfers_s(model, fleet)))


def transfers_s(model: ServingModel, fleet: Fleet) -> FloatArray:
    """Seconds that the KV cache of each row's prompt takes from side to side, shape (n_rows,); 0 where it need not."""
    tokens, goes_on = model.mix.input_tokens, model.mix.stages > 1
    moved = tokens if model.replica.layout is None else model.replica.held_first(tokens)
    return np.asarray(np.where(goes_on, moved * fleet.transfer_s(1.0), 0.0))


def served(side: Side, itl_s: float = math.inf) -> Served:
    """Requests/s that a replica serves at most, its iterations being no longer than `itl_s` (new, theory §12)."""
    requests, binding = _most(side)
    if (in_time := _by_time(side, itl_s, requests)) < requests:
        requests, binding = in_time, ITL
    if requests == math.inf:
        return Served(1 / side.work_s if side.work_s > 0 else math.inf, math.inf, COMPUTE)
    time = side.iteration_time(requests)
    return Served(requests / time, time, binding)


@lru_cache(maxsize=256)
def _most(side: Side) -> tuple[float, str]:
    """Find the requests an iteration at which a replica serves most, and the limit that keeps it from more of them."""
    limits = {
        "kv_memory": _by_memory(side),
        "max_num_seqs": _over(side.max_num_seqs, side.sequences),
        "max_num_batched_tokens": _over(side.max_num_batched_tokens, side.computed_tokens),
        LINK: _by_link(side),
    }
    binding = min(limits, key=lambda name: limits[name])
    requests = limits[binding]
    if side.timing.is_convex and requests < math.inf and (best := _fastest(side, requests)) < requests:
        return best, COMPUTE
    return requests, binding


def _over(limit: float, need: float) -> float:
    return limit / need if need > 0 else math.inf


def _by_memory(side: Side) -> float:
    """x with x·S + (x/τ(x))·(held for transfers) = M: a quadratic where the law is linear."""
    memory, waiting = side.memory_tokens, side.waiting
    if memory == math.inf or not (waiting or side.held):
        return math.inf
    if not waiting:
        return memory / side.held
    if side.timing.is_linear:
        fixed, work = side.timing.d0, side.work_s
        b = side.held * fixed + waiting - memory * work
        root = math.sqrt(b * b + 4 * side.held * work * memory * fixed)
        return 2 * memory * fixed / (b + root) if b > 0 else (root - b) / (2 * side.held * work)
    return _root(lambda x: x * (side.held + waiting / side.iteration_time(x)) - memory, memory / side.held)


def _by_link(side: Side) -> float:
    """x with x/τ(x) · (time on the link) = 1."""
    if side.timing.is_linear:
        return _over(side.timing.d0, side.link_s - side.work_s)

    def excess(requests: Any) -> Any:
        return requests * side.link_s - side.iteration_time(requests)

    if side.link_s <= side.work_s:
        return math.inf
    high = first_of_steps(lambda requests: bool(excess(requests) > 0), 1.0, 2.0, _ENDLESS)
    return math.inf if high is None else _root(excess, high)


def _by_time(side: Side, itl_s: float, most: float) -> float:
    """x with τ(x) = ITL; of no interest above `most`."""
    if itl_s == math.inf or not side.sequences:
        return math.inf
    spare = itl_s - side.iteration_time(0.0)
    if spare < 0:
        return 0.0
    if side.timing.is_linear:
        return spare / side.work_s if side.work_s > 0 else math.inf

    def too_long(requests: float) -> bool:
        return float(side.iteration_time(requests)) >= itl_s

    high = first_of_steps(too_long, 1.0, 2.0, min(most, _ENDLESS))
    if high is None and too_long(most):
        high = most
    return math.inf if high is None else _root(lambda x: side.iteration_time(x) - itl_s, high)


def _root(excess: Callable[[Any], Any], high: float) -> float:
    return float(falling_root(lambda x: -excess(x), np.zeros(1), np.array([high]))[0])


def _fastest(side: Side, most: float) -> float:
    """x up to `most` with the largest rate: past the knee of a convex law fewer can be served faster."""

    def rate(log: Any) -> Any:
        return np.exp(log) / side.iteration_time(np.exp(log))

    top = math.log(most)
    best = peak(rate, min(_SELDOM_LOG, top - 1), top, close=1e-9)
    return math.exp(best) if rate(best) > most / side.iteration_time(most) else most


def split_rps(sides: Sides, prefill: int, decode: int, itl_s: float = math.inf) -> float:
    """Requests/s of so many replicas on each side, iterations that answers wait for being no longer than `itl_s`."""
    return min(prefill * served(sides.prefill).rate_rps, decode * served(sides.decode, itl_s).rate_rps)


def together_rps(sides: Sides, gpus: int, itl_s: float = math.inf) -> float:
    """Requests/s of as many replicas that do both as these GPUs make."""
    return gpus // sides.together.gpus * served(sides.together, itl_s).rate_rps


def best_split(sides: Sides, gpus: int, itl_s: float = math.inf) -> Split | None:
    """Split so many GPUs into whole replicas that serve most; None where they are too few for one of each.

    Of several that serve the same, the one with the fewest replicas for prompts.
    """
    prompts, tokens = served(sides.prefill).rate_rps, served(sides.decode, itl_s).rate_rps
    options = [
        Split(prefill, decode, min(prefill * prompts, decode * tokens))
        for prefill in range(1, gpus // sides.prefill.gpus + 1)
        if (decode := (gpus - prefill * sides.prefill.gpus) // sides.decode.gpus)
    ]
    return max(options, key=lambda option: option.rate_rps, default=None)


def crossing(sides: Sides, prefill: int, decode: int, gpus: int) -> Crossing | None:
    """Find the limit on the time between tokens at which the better of split and together changes; or None.

    Of several, as laws that are not linear or unequal hardware can have, the last.
    """
    least = min(sides.decode.timing.d0, sides.together.timing.d0)
    most = _FAR * max(least, min(served(sides.prefill).iteration_time_s, _ENDLESS))

    def winner(itl_s: float) -> int:
        split, joined = split_rps(sides, prefill, decode, itl_s), together_rps(sides, gpus, itl_s)
        return 0 if abs(split - joined) <= _TIE * max(split, joined) else 1 if split > joined else -1

    seen: tuple[float, int] | None = None
    crossed: tuple[float, float, int] | None = None
    for itl_s in (least + spare for spare in np.geomspace(_NEAR * least, most, _POINTS).tolist()):
        wins = winner(itl_s)
        if wins and seen is not None and wins != seen[1]:
            crossed = seen[0], itl_s, seen[1]
        if wins:
            seen = itl_s, wins
    if crossed is None:
        return None
    low, high, before = crossed
    _, crossed_s = boundary(lambda itl_s: winner(itl_s) != before, low, high, close=1e-9)
    return Crossing(crossed_s, before > 0)
