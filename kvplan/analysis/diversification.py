"""What a decode limit one token longer or shorter does to a placement (SIC 5.3)."""

from dataclasses import replace
from itertools import accumulate
from typing import NamedTuple

from kvplan.analysis.fluid_map import MAX_STEPS
from kvplan.analysis.placement import Placement
from kvplan.analysis.pool import Pool, pool, subset
from kvplan.model import ServingModel

_MOST_LENGTH = 5 * 10**5  # iterations of the longest request, over all that is tried: about two seconds
_DIGITS = 9  # of a loss, beyond which a difference is rounding


class Change(NamedTuple):
    """One class of a group with a decode limit one longer or shorter.

    Attributes
    ----------
    old_decode, new_decode
        Tokens.
    pool
        Of the group as it becomes.
    offered_tokens_per_s
        Decode tokens/s asked for, as they change.
    collapsed_tokens
        Decode tokens/s that the group serves in its worst cycle, relative change; None where it served nothing.
    """

    class_index: int
    group_index: int
    old_decode: int
    new_decode: int
    pool: Pool
    offered_tokens_per_s: float
    collapsed_tokens: float | None


class Diversification(NamedTuple):
    """What was tried, the most helpful first, and how many changes there was no time for."""

    changes: tuple[Change, ...]
    untried: int


def diversification(model: ServingModel, placement: Placement) -> Diversification:
    """Every change by one of one decode limit in the groups that lose something.

    Only classes of one decode length have a limit that could be moved. Rates are kept. Where outputs are so long that
    not all can be tried, those of the most requests are.

    References
    ----------
    SIC 5.3, "Engineering stability through mild diversification"; its price is new.

    Examples
    --------
    >>> from kvplan.analysis.mixing import compare
    >>> from kvplan.model import Prefill, Replica, RequestClass, Timing
    >>> two = tuple(RequestClass(str(d), 100, (d,), (1.0,), 1.0) for d in (4, 6))
    >>> model = ServingModel(two, Timing(0.01), Replica(100_000, prefill=Prefill.DISAGGREGATED))
    >>> first = diversification(model, compare(model, 1).mixed).changes[0]
    >>> (first.old_decode, first.new_decode), first.pool.stable, first.pool.loss, first.offered_tokens_per_s
    ((6, 5), True, 0.0, -1.0)
    """
    candidates = [
        (at, i, step, changed)
        for at, group in enumerate(placement.groups)
        if group.pool.loss != 0
        for i in group.classes
        for step in (-1, 1)
        if (changed := _with_limit(model, i, step)) is not None
    ]
    stages = [int(subset(model, group.classes).mix.stages.max()) for group in placement.groups]
    by_rate = sorted(range(len(candidates)), key=lambda c: -model.classes[candidates[c][1]].rate_rps)
    lengths = accumulate(stages[candidates[c][0]] for c in by_rate)
    tried = sorted(c for c, length in zip(by_rate, lengths, strict=True) if length <= _MOST_LENGTH)
    found, max_steps = [], MAX_STEPS // (2 * len(model.classes))
    for at, i, step, changed in (candidates[c] for c in tried):
        group = placement.groups[at]
        after = pool(subset(changed, group.classes), max_steps)
        served = group.pool.worst_rps * group.pool.decode_tokens
        found.append(
            Change(
                class_index=i,
                group_index=at,
                old_decode=model.classes[i].decode_tokens[0],
                new_decode=changed.classes[i].decode_tokens[0],
                pool=after,
                offered_tokens_per_s=step * model.classes[i].rate_rps,
                collapsed_tokens=after.worst_rps * after.decode_tokens / served - 1 if served else None,
            )
        )
    found.sort(key=lambda c: (round(c.pool.loss, _DIGITS), c.pool.spectral_radius))
    return Diversification(tuple(found), len(candidates) - len(tried))


def _with_limit(model: ServingModel, index: int, step: int) -> ServingModel | None:
    one = model.classes[index]
    decode = one.decode_tokens[0] + step
    if len(one.decode_tokens) > 1 or decode < 1 or one.max_tokens + step > model.replica.memory_tokens:
        return None
    limited = replace(one, decode_tokens=(decode,))
    return replace(model, classes=(*model.classes[:index], limited, *model.classes[index + 1 :]))
