"""Sums of a run kept apart by time: how full memory was, who ran and waited, and what iterations were made of."""

import math

from kvplan.simulation.actions import held_tokens
from kvplan.simulation.kernels import kernel
from kvplan.simulation.state import (
    BEYOND_KNEE,
    CONTEXT,
    KNEE,
    KV_S,
    LEAST_WAITING,
    PREFILLED,
    PROMPTS,
    RESIDENT,
    ROOTS,
    RUNNING_S,
    SEQUENCES,
    SPAN,
    SPAN_BUSY_S,
    SPAN_END,
    SPAN_WIDTH,
    STEPS,
    WAITING,
    WAITING_S,
    State,
)


@kernel
def end_span(s: State) -> None:
    """Count in the next span from now on; after the last there is one without an end."""
    s.counter[SPAN] += 1
    s.clock[SPAN_END] += s.clock[SPAN_WIDTH]
    if s.counter[SPAN] == s.span.shape[0] - 1:
        s.clock[SPAN_END] = math.inf


@kernel
def add_to_span(s: State, tau: float, context: float, requests: int) -> None:
    """Add an iteration to the sums of its span."""
    c, row = s.counter, s.counter[SPAN]
    s.span[row, KV_S] += tau * held_tokens(s)
    s.span[row, RUNNING_S] += tau * c[RESIDENT]
    s.span[row, WAITING_S] += tau * c[WAITING]
    s.span[row, SPAN_BUSY_S] += tau
    s.span[row, STEPS] += 1.0
    s.span[row, CONTEXT] += context
    s.span[row, PREFILLED] += c[PROMPTS]
    s.span[row, SEQUENCES] += requests
    s.span[row, ROOTS] += math.sqrt(requests)
    s.span[row, BEYOND_KNEE] += max(c[PROMPTS] + requests - s.timing[KNEE], 0.0)
    s.span[row, LEAST_WAITING] = min(s.span[row, LEAST_WAITING], c[WAITING])
