"""Sums of a run kept apart by time: how full memory was, who ran and waited, and what iterations were made of."""

import math

from kvplan.simulation.actions import held_tokens
from kvplan.simulation.kernels import kernel
from kvplan.simulation.state import KNEE, Clock, Counter, Span, State


@kernel
def end_span(s: State) -> None:
    """Count in the next span from now on; after the last there is one without an end."""
    s.counter[Counter.SPAN] += 1
    s.clock[Clock.SPAN_END] += s.clock[Clock.SPAN_WIDTH]
    if s.counter[Counter.SPAN] == s.span.shape[0] - 1:
        s.clock[Clock.SPAN_END] = math.inf


@kernel
def add_to_span(s: State, tau: float, context: float, requests: int) -> None:
    """Add an iteration to the sums of its span."""
    c, row = s.counter, s.counter[Counter.SPAN]
    s.span[row, Span.KV_S] += tau * held_tokens(s)
    s.span[row, Span.RUNNING_S] += tau * c[Counter.RESIDENT]
    s.span[row, Span.WAITING_S] += tau * c[Counter.WAITING]
    s.span[row, Span.BUSY_S] += tau
    s.span[row, Span.STEPS] += 1.0
    s.span[row, Span.CONTEXT] += context
    s.span[row, Span.PREFILLED] += c[Counter.PROMPTS]
    s.span[row, Span.SEQUENCES] += requests
    s.span[row, Span.ROOTS] += math.sqrt(requests)
    s.span[row, Span.BEYOND_KNEE] += max(c[Counter.PROMPTS] + requests - s.timing[KNEE], 0.0)
    s.span[row, Span.LEAST_WAITING] = min(s.span[row, Span.LEAST_WAITING], c[Counter.WAITING])
