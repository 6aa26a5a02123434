"""The replica when its prefix cache is as empty as it can be: a model that analyses without a cache understand.

What is in use all the time is always found: a prompt that enough requests share. It takes memory once, and no request
holds or computes it, though all read it. Nothing else is sure to be found once requests in flight fill memory (theory
§8).
"""

import math
from collections.abc import Iterator
from dataclasses import replace

from kvplan.analysis.cache_states import cached_replica, hit_ratio
from kvplan.analysis.prefix_cache import full_memory
from kvplan.model import Prompt, RequestClass, ServingModel
from kvplan.model.streams import Stream

_SURE = 1e-3  # probability that nobody uses it, below which a prompt counts as always in use
_NOBODY = 1e-12  # share of a class


def with_cold_cache(model: ServingModel) -> ServingModel:
    """Return the model of requests with nothing in common that costs what a full replica costs; itself if it is one.

    What is always found is taken off the prompts and off memory. That it is read stands in the time per sequence, which
    is exact in the mean. Hits that a measured curve promises make prefill shorter (new, theory §8: M - c, A - λcn, Λ -
    d2λc for a prompt that all share).
    """
    if not model.finds_prefixes:
        return model
    if model.hit_curve:
        missed = 1 - hit_ratio(model.hit_curve, model.replica.capacity_tokens)
        alone = _strangers(model, [[(1.0, 0)] for _ in model.classes])
        return replace(alone, timing=replace(model.timing, d2=model.timing.d2 * missed), hit_curve=())
    cached = cached_replica(model)
    x = float(full_memory(cached).admissions[0])
    parts = [
        list(_parts(c, stream, x * share))
        for c, stream, share in zip(model.classes, cached.streams, cached.shares, strict=True)
    ]
    cold = _strangers(model, parts)
    if max(c.max_tokens for c in cold.classes) + cold.replica.block_tokens > cold.replica.capacity_tokens:
        return _strangers(model, [[(1.0, 0)] for _ in parts])
    read = sum(
        rate * stream.stages * share * found
        for rate, stream, own in zip(cached.shares, cached.streams, parts, strict=True)
        for share, found in own
    )
    timing = cold.timing
    return replace(cold, timing=replace(timing, d3=timing.d3 + timing.d1 * read / cached.stages))


def _parts(c: RequestClass, stream: Stream, admissions: float) -> Iterator[tuple[float, int]]:
    """Shares of a class, at so many admissions an iteration, and the tokens that each always finds."""
    alone = 1.0
    for prompt in stream.shared:
        if math.exp(-admissions * prompt.weight * stream.stages) < _SURE:
            alone -= prompt.weight
            yield prompt.weight, prompt.tokens
    if alone > _NOBODY:
        yield alone, 0


def _strangers(model: ServingModel, parts: list[list[tuple[float, int]]]) -> ServingModel:
    classes = tuple(_stranger(c, own) for c, own in zip(model.classes, parts, strict=True))
    pages = sum(found for own in parts for _, found in own)
    replica = replace(model.replica, memory_tokens=model.replica.memory_tokens - pages)
    return replace(model, classes=classes, replica=replica)


def _stranger(c: RequestClass, parts: list[tuple[float, int]]) -> RequestClass:
    prompts = tuple(
        Prompt(kind.tokens - found, kind.share * share) for share, found in parts for kind in c.kinds
    )
    mean = round(sum(p.share * p.tokens for p in prompts))
    own = prompts if len(prompts) > 1 else ()
    longest = c.max_tokens - min(found for _, found in parts)
    strange = replace(c, shared=(), reuse=None, sessions=None, input_law=None)
    return replace(strange, input_tokens=mean, prompts=own, longest=longest)
