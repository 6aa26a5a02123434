"""What a replica costs, how long its requests are, and what they hold where layers keep KV of several kinds."""

from typing import NamedTuple

from kvplan.analysis.records import Load
from kvplan.model import ServingModel
from kvplan.model.kv_layout import Attention, KvLayout
from kvplan.model.streams import class_streams

_MILLION = 1e6
_HOUR_S = 3600.0


class PerTokens(NamedTuple):
    """Cost of a million output tokens, and of a million tokens in and out; None where the rate is not served.

    Beside it the most energy of an output token, where the power of a GPU is known: it draws that all the time.
    """

    per_million_output_tokens: float | None = None
    per_million_tokens: float | None = None
    joules_per_output_token: float | None = None


class Cost(NamedTuple):
    """Cost of one replica, in the currency of the price of a GPU; the keys of the report's `cost` block."""

    gpus_per_replica: int
    per_hour: float
    offered: PerTokens
    sustainable: PerTokens


def cost(
    model: ServingModel, gpu_hour: float, offered: Load, *, overloaded: bool, watts: float | None = None
) -> Cost:
    """Compute the cost of a replica, paid whether it is busy or not.

    Examples
    --------
    An hour of a request a second, each of 300 tokens of which 100 are generated, is 360,000 output tokens:

    >>> from kvplan.analysis.equilibrium import load
    >>> from kvplan.model import Replica, RequestClass, Timing
    >>> one = RequestClass("a", 200, (100,), (1.0,), 1.0)
    >>> model = ServingModel((one,), Timing(0.01), Replica(30_000, gpus=2))
    >>> found = cost(model, 1.80, load(model), overloaded=False, watts=350)
    >>> found.per_hour, round(found.offered.per_million_output_tokens, 9), round(found.offered.per_million_tokens, 9)
    (3.6, 10.0, 3.333333333)
    >>> found.offered.joules_per_output_token
    7.0
    """
    mix, replica = model.mix, model.replica
    per_hour = replica.gpus * gpu_hour
    output = mix.mean(mix.decode_tokens)
    both = output + mix.mean(mix.input_tokens)

    def at(rate_rps: float) -> PerTokens:
        per_request = per_hour / _HOUR_S / rate_rps * _MILLION
        joules = None if watts is None else replica.gpus * watts / (rate_rps * output)
        return PerTokens(per_request / output, per_request / both, joules)

    now = PerTokens() if overloaded else at(offered.offered_rps)
    return Cost(replica.gpus, per_hour, now, at(offered.sustainable_rps))


class Context(NamedTuple):
    """How many tokens requests have, prompt and answer together; the keys of the report's `context` block."""

    limit: int | None
    mean: float
    largest: int
    turns: float | None
    rejected_share: float


def context(model: ServingModel) -> Context:
    """Build the block; `rejected_share` is of the requests asked for, of conversations of those that begin one."""
    tokens = sum(one.rate_rps * (one.prompt + one.decode) for one in class_streams(model))
    of_turns = [(c.rate_rps, c.sessions.turns.mean) for c in model.classes if c.sessions is not None]
    begun = sum(rate / mean for rate, mean in of_turns)
    rejected = sum(c.rate_rps * c.rejected for c in model.classes)
    return Context(
        limit=model.max_model_len,
        mean=tokens / model.total_rate_rps,
        largest=max(c.max_tokens for c in model.classes),
        turns=sum(rate for rate, _ in of_turns) / begun if begun else None,
        rejected_share=rejected / (rejected + model.total_rate_rps),
    )


class GroupOfLayers(NamedTuple):
    """Layers of one kind, in so many groups."""

    kind: Attention
    layers: int
    groups: int
    block_tokens: int
    window_tokens: int | None


class LayoutBlock(NamedTuple):
    """The keys of the report's `kv_layout` block."""

    groups: tuple[GroupOfLayers, ...]
    block_tokens: int
    block_bytes: int
    bytes_per_token: int
    fixed_tokens_per_request: int


def layout_block(layout: KvLayout | None) -> LayoutBlock | None:
    """Build the block; None where one kind of attention says all.

    Examples
    --------
    >>> from kvplan.model.kv_layout import Layers
    >>> states, full = Layers(Attention.STATE, 48, 3_207_168), Layers(Attention.FULL, 16, 4096)
    >>> found = layout_block(KvLayout((states, full), 784))
    >>> found.block_bytes, found.bytes_per_token, found.fixed_tokens_per_request
    (51380224, 65536, 2352)
    """
    if layout is None:
        return None
    groups = tuple(
        GroupOfLayers(one.kind, one.count, group.copies, group.block_tokens, one.window)
        for one, group in zip(layout.layers, layout.groups, strict=True)
    )
    return LayoutBlock(
        groups, layout.block_tokens, layout.block_bytes, layout.bytes_per_token, layout.fixed_tokens
    )
