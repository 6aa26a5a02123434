"""The replica when its prefix cache is as empty as it can be: a model that analyses without a cache understand.

What is in use all the time is always found: a prompt that enough requests share. It takes memory once, and no request
holds or computes it. Nothing else is sure to be found once requests in flight fill memory (theory §8).
"""

import math
from collections.abc import Iterator
from dataclasses import replace

from kvplan.analysis.cache_states import cached_replica, hit_ratio
from kvplan.analysis.prefix_cache import full_memory
from kvplan.model import Prompt, RequestClass, ServingModel
from kvplan.model.streams import Stream

_SURE = 1e-3  # probability that nobody uses it, below which a prompt counts as always in use


def with_cold_cache(model: ServingModel) -> ServingModel:
    """The model with what a full replica is sure to find as a part of its prompts; itself without a prefix cache.

    References
    ----------
    New, theory §8: M - c, A - λcn, Λ - d2λc for a prompt that all share.

    Examples
    --------
    >>> from kvplan.model import Replica, Timing
    >>> from kvplan.model.reuse import SharedPrompt
    >>> one = RequestClass("a", 1000, (200,), (1.0,), 8.0, shared=(SharedPrompt(800),))
    >>> cold = with_cold_cache(ServingModel((one,), Timing(0.012, 1e-7, 60e-6), Replica(100_000)))
    >>> cold.replica.memory_tokens, float(cold.mix.prefill_tokens[0]), float(cold.mix.held.first[0])
    (99200, 200.0, 201.0)
    """
    if not model.finds_prefixes:
        return model
    if model.hit_curve:
        ratio = hit_ratio(model.hit_curve, model.replica.capacity_tokens)
        kinds = [[p._replace(found=ratio * p.tokens) for p in c.kinds] for c in model.classes]
        return _with(model, kinds, 0)
    cached = cached_replica(model)
    x = float(full_memory(cached).admissions[0])
    pages, kinds = 0, []
    for c, stream, share in zip(model.classes, cached.streams, cached.shares, strict=True):
        found = list(_kinds(c, stream, x * share))
        pages += sum(tokens for _, tokens in found)
        kinds.append([prompt for prompt, _ in found])
    cold = _with(model, kinds, pages)
    longest = max(
        float(cold.mix.held.at_end.max()), *(c.max_tokens - c.kinds[0].elsewhere for c in cold.classes), 0.0
    )
    return (
        cold if longest <= cold.replica.capacity_tokens else _with(model, [c.kinds for c in model.classes], 0)
    )


def _kinds(c: RequestClass, stream: Stream, admissions: float) -> Iterator[tuple[Prompt, int]]:
    """Prompts of a class at so many admissions an iteration, and the tokens that each kind has in memory."""
    alone = 1.0
    for prompt in stream.shared:
        if math.exp(-admissions * prompt.weight * stream.stages) < _SURE:
            alone -= prompt.weight
            for place, kind in enumerate(c.kinds):
                share = kind.share * prompt.weight
                yield kind._replace(share=share, elsewhere=prompt.tokens), prompt.tokens if place == 0 else 0
    if alone > 1e-12:
        for kind in c.kinds:
            yield kind._replace(share=kind.share * alone), 0


def _with(
    model: ServingModel, kinds: list[list[Prompt]] | list[tuple[Prompt, ...]], pages: int
) -> ServingModel:
    classes = tuple(
        replace(c, prompts=tuple(own), shared=(), reuse=None, sessions=None)
        for c, own in zip(model.classes, kinds, strict=True)
    )
    replica = replace(model.replica, memory_tokens=model.replica.memory_tokens - pages)
    return replace(model, classes=classes, replica=replica, hit_curve=())
