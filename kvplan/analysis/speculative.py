"""Gains from drafts: rate, time between tokens, up to which batch it pays, the best number of drafts (theory §11)."""

import math
from dataclasses import replace
from enum import StrEnum
from typing import NamedTuple

from kvplan.analysis.equilibrium import iteration_time, per_request, sustainable_rate
from kvplan.model import ServingModel
from kvplan.model.drafts import Drafts

_MOST_WORK = 2e7  # numbers of drafts, each of which takes time as the longest output to the power of 1.5


class Pays(StrEnum):
    """Batches at which an iteration with drafts emits more tokens in its time."""

    BELOW = "below"
    ABOVE = "above"
    ALWAYS = "always"
    NEVER = "never"


class Speculative(NamedTuple):
    """The report's `speculative` block."""

    tokens_per_iteration: float
    iterations_mean: float
    speed_up: float  # of the sustainable rate
    itl_speed_up: float | None  # of the time between two tokens at the offered rate
    break_even_sequences: float | None
    pays: Pays  # on which side of that drafting does
    best_tokens: int | None


def speculative(model: ServingModel) -> Speculative | None:
    """Compute what drafts gain a model; None where it has none.

    The best number of drafts has the least time between two tokens at the offered rate; where that is more than any
    number can serve, the largest sustainable rate; None where outputs are too long to try all numbers.
    """
    drafts = model.drafts
    if drafts is None:
        return None
    plain = with_drafts(model, 0)
    between, before = _between_tokens(model), _between_tokens(plain)
    sequences, pays = break_even(drafts, plain)
    longest = max(c.decode_tokens[-1] for c in model.classes)
    numbers = range(len(drafts.accepted) + 1) if len(drafts.accepted) * longest**1.5 <= _MOST_WORK else ()
    return Speculative(
        tokens_per_iteration=drafts.mean,
        iterations_mean=float(model.mix.mean(model.mix.stages)),
        speed_up=sustainable_rate(model)[1] / sustainable_rate(plain)[1],
        itl_speed_up=None if between is None or before is None else before / between,
        break_even_sequences=sequences,
        pays=pays,
        best_tokens=max(numbers, key=lambda tokens: _worth(with_drafts(model, tokens)), default=None),
    )


def with_drafts(model: ServingModel, tokens: int) -> ServingModel:
    """Return the model with another number of drafts, up to as many as have a known acceptance."""
    assert model.drafts is not None
    timing, drafts = model.drafts.unslowed(model.timing), replace(model.drafts, tokens=tokens)
    replica = model.replica.with_states(tokens - model.drafts.tokens)
    return replace(model, timing=drafts.slowed(timing), replica=replica, drafts=drafts if tokens else None)


def break_even(drafts: Drafts, plain: ServingModel) -> tuple[float | None, Pays]:
    """Count the sequences in a batch at which drafting stops, or begins, to pay; None where it always or never does.

    B* = ((Ḡ - 1)·d0 - e_c - k·e0)/(v·k - (Ḡ - 1)(d1·t + d3)), t the mean context of a request that runs (theory §11).
    """
    timing, cost = plain.timing, per_request(plain)
    more = drafts.mean - 1
    gained = more * timing.d0 - drafts.fixed_s
    context = cost.read / cost.iterations
    lost = drafts.tokens * drafts.verify_s - more * (timing.d1 * context + timing.d3)
    if gained <= 0 < lost:
        return None, Pays.NEVER
    if lost <= 0 < gained:
        return None, Pays.ALWAYS
    if lost == 0:
        return None, Pays.NEVER
    return gained / lost, Pays.BELOW if lost > 0 else Pays.ABOVE


def _between_tokens(model: ServingModel) -> float | None:
    """Mean seconds between two tokens of a request at the offered rate; None without an equilibrium."""
    tau, cost = iteration_time(model), per_request(model)
    if tau is None or model.total_rate_rps > sustainable_rate(model)[1] or cost.decode_tokens <= 1:
        return None
    return tau * float(model.mix.mean(model.mix.stages) - 1) / (cost.decode_tokens - 1)


def _worth(model: ServingModel) -> tuple[float, float]:
    between = _between_tokens(model)
    return -math.inf if between is None else -between, sustainable_rate(model)[1]
