"""States of a replica whose prefix cache and iteration time depend on each other (theory §8, in a new form).

At x admissions an iteration everything else follows. Let T be the time after which what nobody references or asks for
is gone (Che's approximation for least recently used), τ the iteration time, λ = x/τ the rate and R = nτ a stay. Then

    memory   x·S + Σ_private λ[(L - Lq)·T + Lq·∫₀ᵀ P(gap > g) dg] + Σ_shared c[1 - e^{-λ_g(R + T)} - λ_g·R]  =  M
    time     τ = law(x·S, x·(s - h), x·n, x·(pairs of s - of h)),     h = Lq·F(T) + Σ_shared p·c(1 - e^{-λ_g(R + T)})

have exactly one solution: a longer τ means a lower rate, hence a longer T, hence more hits and a *shorter* iteration.
So the states of a replica lie on one curve λ(x), x from 0 to where requests in flight fill memory (T = 0). What theory
§8 calls fixed points at a load λ are where the curve passes λ, stable where it rises; the good rate is its peak.

A tier of host memory keeps what the GPU has thrown away until a second time T2 is over, from the same equation with the
memory that GPU and host reach together (theory §13). What it finds beyond the GPU is loaded, which can take time.
"""

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from kvplan.model import FloatArray, Prompts, Replica, ServingModel, Timing
from kvplan.model.gaps import Gap
from kvplan.model.streams import Stream, class_streams
from kvplan.model.timing import attention_pairs
from kvplan.model.weights import Prefill
from kvplan.solve import falling_root

__all__ = ["FOREVER_S", "CachedReplica", "States", "cached_replica", "hit_ratio"]

FOREVER_S = 1e12  # nothing is ever thrown away
_NEAR = 1e-8  # a step of Newton's so small that the next is within rounding
_STEPS = 100


@dataclass(frozen=True, slots=True)
class _Private:
    """Tokens left for one's own reuse, per request of the whole traffic; all with one law of gaps."""

    gap: Gap
    stages: float  # of a stay before the gap begins, where it runs from the arrival
    reused: float
    reused_squares: float


class States(NamedTuple):
    """States at given admissions an iteration; all of shape (n_states,)."""

    admissions: FloatArray  # x, requests an iteration
    iteration_time_s: FloatArray  # τ
    keeps_s: FloatArray  # T
    hits: FloatArray  # prompt tokens of a request that are found, on average
    reaches_s: FloatArray  # T2, after which the host tier has nothing left either; T where there is none
    loads: FloatArray  # of the tokens found, those that the host tier loads

    @property
    def rate_rps(self) -> FloatArray:
        """λ = x/τ, requests/s."""
        return self.admissions / self.iteration_time_s

    def at(self, index: Any) -> "States":
        """Some of them."""
        return States(*(values[index] for values in self))


class _Mean(cached_property[float]):
    """A mean of an attribute of the streams over all requests."""

    def __init__(self, name: str) -> None:
        super().__init__(lambda replica: replica.mean(name))


@dataclass(frozen=True)
class CachedReplica:
    """Streams of requests on a replica with a prefix cache; attributes are means over all requests, at any rate."""

    streams: tuple[Stream, ...]
    timing: Timing
    replica: Replica
    # points (cache tokens, hit ratio) of a trace, ascending, in place of all that streams reuse and share: arrivals
    # that do not wait for answers hit by memory alone, whatever iterations take
    hit_curve: tuple[tuple[float, float], ...] = ()
    # a closed population, whose rate follows from how long they wait; None: requests come at their rate
    users: int | None = None
    think_s: float = 0.0  # of each user on average, after every answer
    # in the queue: part of a gap that begins with an answer, since nothing is looked up before
    wait_s: float = 0.0

    stages = _Mean("stages")  # iterations a request
    held = _Mean("held")  # memory, KV token-iterations a request
    read = _Mean("read")  # context, KV token-iterations a request
    prefill = _Mean("prefill")  # prompt tokens computed for a request without a cache ...
    prefill_pairs = _Mean("prefill_pairs")  # ... of these with their context ...
    computed = _Mean("computed")  # ... and all tokens
    left = _Mean("left")  # private tokens that a request leaves

    def mean(self, name: str) -> float:
        """Mean of an attribute of the streams over all requests."""
        return float(sum(p * getattr(s, name) for p, s in zip(self.shares, self.streams, strict=True)))

    @cached_property
    def on_gpu_alone(self) -> "CachedReplica":
        """Replica with the hits that its GPU always has.

        Beside windows there are none: their blocks of a shared prompt are passed soon, and then as free as those of
        any request that has left, so that a full replica may have lost them.
        """
        if self.replica.layout is not None:
            return replace(self, streams=tuple(replace(s, shared=()) for s in self.streams))
        if self.replica.offload is None:
            return self
        return replace(self, replica=replace(self.replica, offload=None))

    @property
    def uncached(self) -> "CachedReplica":
        """Replica on which nothing is found."""
        nothing: dict[str, Any] = {"shared": (), "in_common": (), "reused": 0.0, "reused_squares": 0.0}
        return replace(self, hit_curve=(), streams=tuple(replace(s, **nothing) for s in self.streams))

    @cached_property
    def rate_rps(self) -> float:
        """Offered rate, requests/s."""
        return float(sum(s.rate_rps for s in self.streams))

    @cached_property
    def shares(self) -> tuple[float, ...]:
        """Share of each stream in the requests."""
        return tuple(s.rate_rps / self.rate_rps for s in self.streams)

    @cached_property
    def work_s(self) -> float:
        """Seconds that a request adds to iterations in proportion, without a cache."""
        return float(self.timing.linear(self.read, self.prefill, self.stages, self.prefill_pairs))

    @cached_property
    def saves(self) -> float:
        """Prefill tokens that a hit saves: none where prompts arrive ready-made."""
        return 0.0 if self.replica.prefill is Prefill.DISAGGREGATED else 1.0

    @cached_property
    def private(self) -> tuple[_Private, ...]:
        """Reused parts, put together by laws of gaps."""
        if self.hit_curve:
            return ()
        by_gap: dict[tuple[Gap, float], _Private] = {}
        for p, s in zip(self.shares, self.streams, strict=True):
            if s.gap is None or not s.reused:
                continue
            key = s.gap, s.stages if s.from_arrival else 0.0
            old = by_gap.get(key, _Private(*key, 0.0, 0.0))
            by_gap[key] = _Private(*key, old.reused + p * s.reused, old.reused_squares + p * s.reused_squares)
        return tuple(by_gap.values())

    @cached_property
    def shared(self) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Of each shared prompt: its share p of all requests, its tokens c, and the stages n of those that have it.

        Each data-parallel rank has one of its own.
        """
        ranks = self.replica.ranks
        rows = [
            (share * p.weight / ranks, float(p.tokens), s.stages)
            for share, s in zip(self.shares, self.streams, strict=True)
            for p in s.shared
            for _ in range(ranks)
            if not self.hit_curve
        ]
        share, tokens, stages = np.array(rows).reshape(-1, 3).T
        return share, tokens, stages

    @cached_property
    def in_common(self) -> tuple[FloatArray, FloatArray]:
        """Of each shared prompt: memory that it takes once, and for how many stages a request has as much of it."""
        if self.replica.layout is None:
            return self.shared[1:]
        once, stages = np.array([of for s in self.streams for of in s.in_common]).reshape(-1, 2).T
        return once.repeat(self.replica.ranks), stages.repeat(self.replica.ranks)

    @cached_property
    def reusable(self) -> float:
        """Prompt tokens of a request that can be found at most."""
        if self.hit_curve:
            return self.hit_curve[-1][1] * self.mean("prompt")
        share, tokens, _ = self.shared
        return sum(part.reused for part in self.private) + float(share @ tokens)

    @cached_property
    def _pairs_of_hits(self) -> tuple[list[float], list[float]]:
        """Tokens found of a request, and their pairs with all before them: shared prompts first, all in the end.

        Between them it is a line, exact where what is shared is always found, or nothing is.
        """
        if self.hit_curve:
            alike = self.hit_curve[-1][1]
            pairs = (alike**2 * self.mean("prompt_squares") + self.reusable) / 2
            return [0.0, self.reusable], [0.0, pairs]
        share, tokens, _ = self.shared
        common, pairs = float(share @ tokens), float(share @ attention_pairs(tokens))
        return [0.0, common, self.reusable], [0.0, pairs, pairs + self.mean("reused_pairs")]

    @cached_property
    def reach_tokens(self) -> int:
        """Tokens that GPU and host together keep; all there is without a host tier."""
        capacity, tier = self.replica.capacity_tokens, self.replica.offload
        return capacity if tier is None else tier.reach_tokens(capacity)

    @property
    def load_s(self) -> float:
        """Seconds that a token loaded from the host adds to an iteration."""
        tier = self.replica.offload
        return 0.0 if tier is None or tier.overlap else tier.load_s

    def hits(self, x: Any, tau: Any, age: Any) -> Any:
        """Tokens of a request that are found where what nobody asks for is kept for `age` seconds."""
        hits = np.zeros(np.shape(age))
        for part in self.private:
            hits += part.reused * self._until(part, tau, age)[0]
        share, tokens, _ = self.shared
        if share.size:
            hits -= np.expm1(-self._uses(x, tau, age)) @ (share * tokens)
        return hits

    def memory(self, x: Any, tau: Any, age: Any) -> tuple[Any, Any]:
        """KV tokens in flight and left in the last `age` seconds and not asked for since; and its slope Φ in `age`."""
        rate = x / tau
        flow = self.left
        stock = (self.left - sum(part.reused for part in self.private)) * age
        for part in self.private:
            reached, passed = self._until(part, tau, age)
            flow = flow - part.reused * reached
            stock = stock + part.reused * passed
        flow, total = rate * flow, x * self.held + rate * stock
        share, (tokens, stages) = self.shared[0], self.in_common
        if share.size:
            gone = np.exp(-self._uses(x, tau, age))
            flow = flow + rate * (gone @ (share * tokens))
            total = total - ((x[..., None] * share * stages - 1 + gone) @ tokens)
        return total, flow

    def _until(self, part: _Private, tau: Any, age: Any) -> tuple[Any, Any]:
        """P(it is asked for within `age` of being left), and how much of that time passes before, on average."""
        if part.stages or not self.wait_s:  # between arrivals, both wait as long
            stay = part.stages * tau
            reached, passed = part.gap.until(age + stay)
            return reached, passed - stay
        reached, passed = part.gap.until(np.maximum(age - self.wait_s, 0.0))
        return reached, np.minimum(age, self.wait_s) + passed

    def stock_variance(self, x: Any, tau: Any, age: Any) -> Any:
        """Variance of what was left in the last `age` seconds and not asked for since; pieces come independently."""
        squares = self.mean("left_squares") - sum(part.reused_squares for part in self.private)
        total = squares * age
        for part in self.private:
            stay = part.stages * tau
            total = total + part.reused_squares * (part.gap.until(age + stay)[1] - part.gap.until(stay)[1])
        return x / tau * total

    def _uses(self, x: Any, tau: Any, age: Any) -> Any:
        """λ_g(R + T): how often a shared prompt is asked for in a stay and `age` seconds after it."""
        share, _, stages = self.shared
        return x[..., None] * share * (stages + (age / tau)[..., None])

    def keeps(
        self, x: FloatArray, tau: FloatArray, start: FloatArray, capacity: int | None = None
    ) -> FloatArray:
        """T: for how long memory, the GPU's or so many tokens, keeps what nobody asks for, s; 0 where none is left.

        The stock is concave in T, so that Newton's method comes to it from below, from wherever it starts.
        """
        capacity, age = self.replica.capacity_tokens if capacity is None else capacity, start
        for _ in range(_STEPS):
            before = age
            total, flow = self.memory(x, tau, age)
            age = np.clip(age + (capacity - total) / np.maximum(flow, 1e-200), 0.0, FOREVER_S)
            if (np.abs(age - before) <= _NEAR * age).all():
                break
        return age

    def found(
        self, x: FloatArray, tau: FloatArray, kept: FloatArray, reach: FloatArray, *, warm: bool = True
    ) -> States:
        """States if iterations took τ, from guesses of T and T2; not `warm`: the GPU keeps only what is referenced."""
        kept = self.keeps(x, tau, kept) if warm else np.zeros(x.shape)
        if self.hit_curve:
            sizes = self.replica.capacity_tokens, self.reach_tokens
            here, all_told = (hit_ratio(self.hit_curve, size) * self.mean("prompt") for size in sizes)
            return States(x, tau, kept, np.full(x.shape, all_told), kept, np.full(x.shape, all_told - here))
        hits = self.hits(x, tau, kept)
        if self.replica.offload is None:
            return States(x, tau, kept, hits, kept, np.zeros(x.shape))
        reach = np.maximum(self.keeps(x, tau, reach, self.reach_tokens), kept)
        all_hits = self.hits(x, tau, reach)
        return States(x, tau, kept, all_hits, reach, np.maximum(all_hits - hits, 0.0))

    def next_seconds(self, states: States) -> FloatArray:
        """Time of iterations that find so much: theory's map τ → T → hits → τ'."""
        x = states.admissions
        return np.asarray(self.seconds(x, states.hits) + x * states.loads * self.load_s)

    def seconds(self, x: FloatArray, hits: FloatArray) -> FloatArray:
        """τ of iterations that admit x requests of which so many tokens each are found, and none of them loaded."""
        saved, saved_pairs = self.saves * hits, self.saves * np.interp(hits, *self._pairs_of_hits)
        linear = x * (self.work_s - self.timing.d2 * saved - self.timing.d6 * saved_pairs)
        prefill = self.prompts(x, saved) if self.timing.feels_lumps else x * (self.prefill - saved)
        return np.asarray(linear + self.timing.fixed(prefill, x * self.stages))

    def prompts(self, x: float | FloatArray, saved: float | FloatArray) -> Prompts:
        """Return prefill tokens of an iteration: each prompt's own, less what is found of it."""
        # alike for all that can be found, and by rounding a little more than all
        part = np.minimum(np.asarray(saved) / self.reusable, 1.0)[..., None] if self.reusable else 0.0
        share, tokens, hits = self._prompt_kinds
        most = self.replica.max_num_batched_tokens
        room = np.inf if most is None else np.maximum(most - x * self.stages, 0.0)
        each = np.asarray(x)[..., None] * share
        return Prompts(
            np.concatenate([each * (1 - part), each * part], axis=-1),
            np.concatenate([tokens, tokens - hits]),
            room,
        )

    @cached_property
    def _prompt_kinds(self) -> FloatArray:
        """Of each length of prompts: its share, its prefill tokens, and how many of them can be found."""
        alike = self.reusable / self.mean("prompt") if self.hit_curve else None
        kinds = [
            (
                p * kind.share,
                s.prefill and kind.tokens,
                self.saves * (kind.asked_for if alike is None else alike * kind.tokens),
            )
            for p, s in zip(self.shares, self.streams, strict=True)
            for kind in s.prompts
            if kind.share
        ]
        return np.array(kinds, dtype=np.float64).T

    def states(self, x: FloatArray, *, warm: bool = True) -> States:
        """Find the states at x admissions an iteration; not `warm`: where the GPU keeps only what is referenced."""
        nothing = np.zeros(x.shape)
        states = States(*[nothing] * 6)

        def longer(tau: FloatArray) -> FloatArray:
            nonlocal states
            states = self.found(x, tau, states.keeps_s, states.reaches_s, warm=warm)
            return self.next_seconds(states) - tau

        depends_on_tau = warm or self.private or self.replica.offload is not None
        if not self.reusable or self.hit_curve or not depends_on_tau:
            tau = self.next_seconds(self.found(x, np.ones(x.shape), nothing, nothing, warm=False))
            return self.found(x, tau, nothing, nothing, warm=warm)
        slow = self.seconds(x, nothing) + x * self.reusable * self.load_s
        longer(tau := falling_root(longer, self.seconds(x, np.full(x.shape, self.reusable)), slow))
        return states._replace(iteration_time_s=tau)


def hit_ratio(curve: tuple[tuple[float, float], ...], tokens: float) -> float:
    """Hit ratio of a cache of so many tokens, from points of its curve; as much as its last point beyond.

    >>> round(hit_ratio(((1e6, 0.05), (3e6, 0.15)), 2e6), 9)
    0.1
    """
    sizes, ratios = zip((0.0, 0.0), *curve, strict=True)
    return float(np.interp(tokens, sizes, ratios))


def cached_replica(model: ServingModel) -> CachedReplica:
    """Return the replica of a model with its streams; users beside requests that come at a rate are taken for such."""
    cached = CachedReplica(class_streams(model), model.timing, model.replica, model.hit_curve)
    users = [c.sessions.users if c.sessions is not None else None for c in model.classes]
    if None in users:
        return cached
    thinks = [c.sessions.think.mean_s for c in model.classes if c.sessions is not None]
    mean = sum(share * think for share, think in zip(cached.shares, thinks, strict=True))
    return replace(cached, users=sum(n for n in users if n is not None), think_s=mean)
