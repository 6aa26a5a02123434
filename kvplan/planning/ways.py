"""Ways to make a demand possible that no number of replicas meets: by runs of a request alone."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from kvplan.ingest.model.hardware import Gpu, gpus
from kvplan.options import LIMITS
from kvplan.planning.kinds import Kind, kinds
from kvplan.planning.search import Candidate

_SLACK = 1.1  # of a limit that an idle replica just meets, for others to be served beside
_HALVINGS = 6
_MOST_KINDS = 2


class Ways(NamedTuple):
    """Three ways; those not found are None or empty.

    `kind` comes nearest, `limits` are looser limits of the objectives that it misses, seconds, by key; `prompt_tokens`
    the mean of shorter prompts with which it meets them, `others` GPUs that meet them all.
    """

    kind: str = ""
    limits: tuple[tuple[str, float], ...] = ()
    prompt_tokens: float | None = None
    others: tuple[str, ...] = ()


def ways(
    refused: Sequence[Candidate],
    prompt_tokens: float | None,
    shorter: Callable[[Candidate, float], Candidate | None],
    given: Sequence[Kind],
    candidate_of: Callable[[Kind], Candidate | None],
) -> Ways:
    """Look for looser objectives, shorter prompts and other GPUs, each alone.

    `refused` are candidates that miss an objective while idle, `prompt_tokens` the mean of the demand, None where it
    cannot be changed; `shorter` makes a candidate with prompts of a share of the length, `candidate_of` that of another
    kind.
    """
    if not refused:
        return Ways(others=_others(given, candidate_of))
    nearest = min(refused, key=lambda c: c.idle_excess)
    missed = [d for d in nearest.idle_look.decided if d.share > d.allowed and d.value is not None]
    limits = tuple((d.key, _SLACK * d.value) for d in missed if d.value is not None)
    tokens = None if prompt_tokens is None else _shortened(nearest, prompt_tokens, shorter)
    return Ways(nearest.name, limits, tokens, _others(given, candidate_of))


def _shortened(
    nearest: Candidate, prompt_tokens: float, shorter: Callable[[Candidate, float], Candidate | None]
) -> float | None:
    """Find the longest prompts, to about 1 in 60, with which an idle replica meets everything."""

    def meets(share: float) -> bool:
        candidate = shorter(nearest, share)
        return candidate is not None and candidate.idle_excess <= 1

    low, high = 1 / prompt_tokens, 1.0
    if not meets(low):
        return None
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if meets(middle) else (low, middle)
    return low * prompt_tokens


def _others(given: Sequence[Kind], candidate_of: Callable[[Kind], Candidate | None]) -> tuple[str, ...]:
    """List GPUs that were not asked for, the fastest memory first, on as few of them as do."""
    if not given:
        return ()
    asked = {kind.gpu.name for kind in given}
    names: list[str] = []
    for gpu in sorted(gpus(), key=lambda gpu: gpu.bandwidth_bytes_per_s, reverse=True):
        if gpu.name not in asked and len(names) < _MOST_KINDS:
            names += _first(given[0], gpu, candidate_of)
    return tuple(names)


def _first(like: Kind, gpu: Gpu, candidate_of: Callable[[Kind], Candidate | None]) -> list[str]:
    how = {name: getattr(like, name) for name in ("kv_dtype", "engine", "version", *LIMITS[:2])}
    for kind in kinds(like.shape, [gpu], **how):
        candidate = candidate_of(kind)
        if candidate is not None and candidate.idle_excess <= 1:
            return [kind.name]
    return []
