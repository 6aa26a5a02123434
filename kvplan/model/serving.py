"""The serving model: classes of requests on one replica, and many such models side by side."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np

from kvplan.engine import Engine, Scheduling
from kvplan.model.arrays import FloatArray, IntArray, as_written
from kvplan.model.arrivals import ArrivalProcess
from kvplan.model.classes import Mix, RequestClass, in_rows
from kvplan.model.drafts import Drafts, Stays, stays
from kvplan.model.fleet import Fleet, Hardware
from kvplan.model.kv_layout import KvLayout
from kvplan.model.partial import PartialPrompts, no_partial_prompts, partial_prompts
from kvplan.model.provenance import MeasuredRange, Provenance
from kvplan.model.replica import Replica, held_by_stage
from kvplan.model.timing import Timing
from kvplan.model.weights import (
    StageWeights,
    TabledWeights,
    Weights,
    computed_tokens,
    first_tokens,
    prefill_pairs,
    prefill_work,
    stage_count,
)

if TYPE_CHECKING:
    from kvplan.model.schedule import Schedule


@dataclass(frozen=True)
class ServingModel:
    """Traffic on one replica: what every formula and the simulator start from.

    Examples
    --------
    >>> from kvplan.model import Prefill
    >>> classes = tuple(RequestClass(name, 10, (d,), (1.0,), 1000.0) for name, d in (("a", 10), ("b", 20)))
    >>> model = ServingModel(classes, Timing(d0=0.01, d1=1e-6), Replica(20_000, prefill=Prefill.INLINE))
    >>> model.mix.read.footprint.tolist()
    [165.0, 420.0]
    """

    classes: tuple[RequestClass, ...]
    timing: Timing
    replica: Replica
    schedule: "Schedule | None" = None  # multiplies the rates of classes where they vary over time
    # outside the engine (tokeniser, HTTP): of TTFT and E2E, and of no iteration
    request_overhead_s: float = 0.0
    measured: MeasuredRange = field(default_factory=MeasuredRange)  # of the timing
    provenance: Provenance = field(default_factory=Provenance)
    # points (cache tokens, hit ratio) of a trace, ascending, in place of all that classes share and reuse
    hit_curve: tuple[tuple[float, float], ...] = ()
    arrivals: ArrivalProcess = field(default_factory=ArrivalProcess)
    drafts: Drafts | None = None  # of speculative decoding, whose costs `timing` has in it
    fleet: Fleet | None = None  # that the rates are of, each replica like `replica`; None: a single one
    engine: Engine | None = None  # as the profile names it
    left_out: tuple[str, ...] = ()  # names of classes that nobody asks for: their rate is 0

    @property
    def is_plain(self) -> bool:
        """Tell whether requests grow by a token in each iteration: layers are of one kind, and nothing is drafted."""
        return self.replica.layout is None and self.drafts is None

    @property
    def max_model_len(self) -> int | None:
        """Most tokens of a request that the engine takes."""
        return None if self.engine is None else self.engine.max_model_len

    @property
    def has_common_prefixes(self) -> bool:
        """Tell whether requests have tokens in common that a prefix cache could find."""
        measured = bool(self.hit_curve) and any(c.has_prompt for c in self.classes)
        return measured or any(c.hits for c in self.classes)

    @property
    def finds_prefixes(self) -> bool:
        """Tell whether there is a prefix cache, and traffic that finds something of others in it."""
        return self.replica.prefix_caching and self.has_common_prefixes

    @property
    def by_priority(self) -> bool:
        """Tell whether the engine takes requests in the order of the priorities of their classes."""
        return self.engine is not None and self.engine.scheduling is Scheduling.PRIORITY

    @property
    def formulas_bound(self) -> bool:
        """Tell whether formulas only bound what is served: ranks wait for the busiest, or prompts for decodes."""
        return self.replica.ranks > 1 or (self.engine is not None and self.engine.holds_prompts_back)

    def on(self, hardware: Hardware | None) -> "ServingModel":
        """Put the traffic on other replicas; None: on its own."""
        if hardware is None:
            return self
        return replace(self, timing=hardware.timing, replica=hardware.replica)

    @cached_property
    def mix(self) -> Mix:
        """The traffic as arrays, one row per class, prompt and decode length; what a prefix cache finds not counted.

        With drafts a row per class, prompt and number of iterations.
        """
        if self.drafts is not None:
            return _drafting(self, self.drafts)
        kinds = [(i, c, prompt) for i, c in enumerate(self.classes) for prompt in c.kinds]
        laws = [c.outputs_of(prompt) for _, c, prompt in kinds]
        lengths = [law.values.size for law in laws]
        decode = np.concatenate([law.values for law in laws])
        rates = zip(kinds, (law.weights for law in laws), strict=True)
        rate = np.concatenate([c.rate_rps * p.share * w / w.sum() for (_, c, p), w in rates])
        index = np.repeat([i for i, _, _ in kinds], lengths)
        inputs = np.repeat([p.tokens for *_, p in kinds], lengths)
        variance = np.repeat([p.variance for *_, p in kinds], lengths)
        partial = partial_prompts(self.replica, inputs)
        return mix_of(self.replica, index, inputs, variance, decode, rate, rate / rate.sum(), partial)

    @cached_property
    def total_rate_rps(self) -> float:
        """Σλ, requests/s."""
        return math.fsum(c.rate_rps for c in self.classes)

    @property
    def class_rates_rps(self) -> FloatArray:
        """λ_i, requests/s, shape (n_classes,)."""
        return np.array([c.rate_rps for c in self.classes])

    def exact_shares(self) -> list[Fraction]:
        """Shares of the rows of `mix` as exact fractions of the decimals written in the profile.

        Binary floats cannot hold 1/5; whether a root of the survival polynomial lies *on* the circle can hang on it.
        """
        rates: list[Fraction] = []
        for c in self.classes:
            all_prompts = sum(as_written(p.share) for p in c.kinds)
            for p in c.kinds:
                weights = [as_written(w) for w in c.outputs_of(p).weights.tolist()]
                each = as_written(c.rate_rps) * as_written(p.share) / (all_prompts * sum(weights))
                rates.extend(each * w for w in weights)
        total_rate = sum(rates)
        return [r / total_rate for r in rates]


@dataclass(frozen=True)
class SideBySide:
    """Many models of one shape: the same attributes, with a row for each model and a column for each number.

    Formulas of one model spend their time on a few dozen array operations, not on the arithmetic of so few numbers.
    Here each operation is one for all models, and rounds as it does for one.
    """

    mix: Mix
    timing: Timing
    replica: Replica
    total_rate_rps: FloatArray
    class_rates_rps: FloatArray


def side_by_side(models: Sequence[ServingModel]) -> SideBySide:
    """Join models with as many decode lengths in each class, one convention, and no prompt above a token budget."""
    replicas = [model.replica for model in models]
    columns: dict[str, Any] = {
        name: np.array([getattr(r, name) or math.nan for r in replicas], dtype=np.float64)[:, None]
        for name in ("memory_tokens", "block_tokens", "max_num_seqs", "max_num_batched_tokens")
    }  # NaN where there is no limit
    replica = Replica(**columns, prefill=replicas[0].prefill)
    lengths = [len(c.decode_tokens) for c in models[0].classes]
    index = np.repeat(np.arange(len(lengths)), lengths)
    class_rate = np.array([[c.rate_rps for c in m.classes] for m in models])
    decode: list[IntArray] = []
    rate: list[FloatArray] = []
    for i in range(len(lengths)):
        mine = [m.classes[i] for m in models]
        lengths_of = _rows([c.decode_tokens for c in mine]).astype(np.int64)
        decode.append(np.broadcast_to(lengths_of, (len(models), lengths_of.shape[1])))
        weights = _rows([c.decode_weights for c in mine])
        total = np.array([row.sum() for row in weights])[:, None]
        rate.append(class_rate[:, i : i + 1] * weights / total)
    rates = in_rows(np.concatenate(rate, axis=1))
    shares = rates / np.array([row.sum() for row in rates])[:, None]
    inputs = np.array([[c.input_tokens for c in m.classes] for m in models], dtype=np.int64)[:, index]
    whole, alike = no_partial_prompts(inputs), np.zeros(inputs.shape)
    return SideBySide(
        mix=mix_of(replica, index, inputs, alike, np.concatenate(decode, axis=1), rates, shares, whole),
        timing=Timing.side_by_side([model.timing for model in models]),
        replica=replica,
        total_rate_rps=np.array([[model.total_rate_rps] for model in models]),
        class_rates_rps=class_rate,
    )


def _rows(values: Sequence[tuple[float, ...]]) -> FloatArray:
    """One row for each model, or a single one where they are all the same."""
    same = all(value == values[0] for value in values)
    return np.array(values[:1] if same else values, dtype=np.float64)


def mix_of(
    replica: Replica,
    index: IntArray,
    inputs: IntArray,
    input_variance: FloatArray,
    decode: IntArray,
    rate: FloatArray,
    share: FloatArray,
    partial: PartialPrompts,
) -> Mix:
    prefill = replica.prefill
    stages = stage_count(prefill, decode)
    read, held = _weights(replica, first_tokens(prefill, inputs), stages)
    return Mix(
        class_index=index,
        input_tokens=inputs,
        decode_tokens=decode,
        stages=stages,
        prefill_tokens=prefill_work(prefill, inputs),
        prefill_pairs=prefill_pairs(prefill, inputs, input_variance),
        computed_tokens=computed_tokens(prefill, inputs, stages),
        sequences=(stages + partial.iterations).astype(np.float64),
        read=read,
        held=held,
        partial=partial,
        rate_rps=rate,
        share=share,
    )


def _weights(replica: Replica, first: IntArray, stages: IntArray) -> tuple[StageWeights, StageWeights]:
    """Context read and memory held at each stage."""
    layout = replica.layout
    if layout is None:
        tokens = first.astype(np.float64)
        return Weights(tokens, stages), Weights(tokens, stages, replica.block_tokens)
    distinct, kind = np.unique(first, return_inverse=True)
    longest = int(stages.max())
    held = np.array([held_by_stage(layout, int(a), longest) for a in distinct], dtype=np.float64)
    read = layout.read_tokens(distinct[:, None] + np.arange(longest, dtype=np.float64))
    return TabledWeights(read, kind, stages), TabledWeights(held, kind, stages, layout.block_tokens)


def _drafting(model: ServingModel, drafts: Drafts) -> Mix:
    """Make a row for each number of iterations to stay; weights are means over requests still there."""
    replica, prefill = model.replica, model.replica.prefill
    kinds = [(i, c, prompt) for i, c in enumerate(model.classes) for prompt in c.kinds]
    outputs = ((c.outputs_of(p).values.tolist(), c.outputs_of(p).weights.tolist()) for _, c, p in kinds)
    laws = [
        _stays(replica.layout, replica.block_tokens, p.tokens, drafts, tuple(lengths), tuple(weights))
        for (_, _, p), (lengths, weights) in zip(kinds, outputs, strict=True)
    ]
    kind = np.repeat(np.arange(len(kinds)), [law.stages.size for law in laws])
    index, inputs = (np.array(v)[kind] for v in ([i for i, *_ in kinds], [p.tokens for *_, p in kinds]))
    stages = np.concatenate([law.stages for law in laws])
    rates = zip(kinds, laws, strict=True)
    rate = np.concatenate([c.rate_rps * p.share * law.share for (_, c, p), law in rates])
    read, held = np.zeros((2, len(kinds), int(stages.max())))
    for row, law in enumerate(laws):
        n = law.means.shape[1]
        read[row, :n], held[row, :n] = law.means
        read[row, n:], held[row, n:] = law.means[:, -1:]
    partial = partial_prompts(replica, inputs)
    return Mix(
        class_index=index,
        input_tokens=inputs,
        decode_tokens=np.concatenate([law.decode_tokens for law in laws]),
        stages=stages,
        prefill_tokens=prefill_work(prefill, inputs),
        prefill_pairs=prefill_pairs(prefill, inputs, np.array([p.variance for *_, p in kinds])[kind]),
        computed_tokens=computed_tokens(prefill, inputs, stages, drafts.tokens),
        sequences=drafts.verified(stages.astype(np.float64), model.timing) + partial.iterations,
        read=TabledWeights(read, kind, stages),
        held=TabledWeights(held, kind, stages, replica.block_tokens),
        partial=partial,
        rate_rps=rate,
        share=rate / rate.sum(),
    )


@lru_cache(maxsize=256)
def _stays(
    layout: KvLayout | None,
    block: int,
    input_tokens: int,
    drafts: Drafts,
    lengths: tuple[int, ...],
    weights: tuple[float, ...],
) -> Stays:
    """Context that requests read, and memory that they hold, by stage: with slots but in that of the prompt."""
    first = input_tokens + 1  # prompts are `fused`
    tokens = first + np.arange(max(lengths))
    if layout is None:
        context, memory = tokens.astype(np.float64), -(-(tokens + drafts.slots) // block) * block
        memory[0] = -(-first // block) * block
    else:
        context = layout.read_tokens(tokens.astype(np.float64))
        memory = held_by_stage(layout, first, tokens.size, drafts.slots)
    return stays(drafts, lengths, weights, np.stack([context, memory.astype(np.float64)]))
