"""Notes of a run while it goes on: memory held, times between tokens, sums over spans of time, a thinned record."""

import math

from kvplan.simulation.state import (
    CHOSEN,
    GAPS,
    GAPS_IN_E,
    KNEE,
    SHORTEST_GAP_S,
    Clock,
    Counter,
    Fixed,
    Record,
    Span,
    State,
    kernel,
)


@kernel
def note(s: State, tau: float, held: int, cached: int) -> None:
    """Note the tokens held while the batch runs, and cached ones that nobody holds."""
    c = s.counter
    s.histogram[held // s.fixed[Fixed.BIN]] += nanoseconds(tau)
    s.clock[Clock.CACHED_S] += tau * cached
    if held > c[Counter.PEAK]:
        c[Counter.PEAK] = held
    record(s, held, cached)


@kernel
def nanoseconds(tau: float) -> int:
    """Round a time of an iteration, to be counted in a histogram."""
    return int(tau * 1e9 + 0.5)


@kernel
def record(s: State, held: int, cached: int) -> None:
    """Add a row to the record, in every so manieth iteration; where it is full, every second row goes."""
    c = s.counter
    if c[Counter.ITERATIONS] % c[Counter.STRIDE]:
        return
    if c[Counter.RECORDED] == s.record.shape[0]:
        half = s.record.shape[0] // 2
        for i in range(half):
            for column in range(s.record.shape[1]):
                s.record[i, column] = s.record[2 * i + 1, column]
        c[Counter.RECORDED] = half
        c[Counter.STRIDE] *= 2
        if c[Counter.ITERATIONS] % c[Counter.STRIDE]:
            return
    table, at = s.record, c[Counter.RECORDED]
    table[at, Record.NOW] = s.clock[Clock.NOW]
    table[at, Record.BUSY] = s.clock[Clock.BUSY]
    table[at, Record.HELD] = held
    table[at, Record.WAITING] = c[Counter.WAITING]
    table[at, Record.RESIDENT] = c[Counter.RESIDENT]
    table[at, Record.EVICTED] = c[Counter.EVICTED]
    table[at, Record.COMPLETED] = c[Counter.COMPLETED]
    for i in range(3):
        table[at, Record.KV_S + i] = s.span[c[Counter.SPAN], Span.KV_S + i]
    table[at, Record.CACHED] = cached
    c[Counter.RECORDED] += 1


@kernel
def end_span(s: State) -> None:
    """Count in the next span from now on; after the last there is one without an end."""
    s.counter[Counter.SPAN] += 1
    s.clock[Clock.SPAN_END] += s.clock[Clock.SPAN_WIDTH]
    if s.counter[Counter.SPAN] == s.span.shape[0] - 1:
        s.clock[Clock.SPAN_END] = math.inf


@kernel
def add_to_span(s: State, tau: float, held: int, context: float, requests: int) -> None:
    """Add an iteration to the sums of its span."""
    c, span, row = s.counter, s.span, s.counter[Counter.SPAN]
    span[row, Span.KV_S] += tau * held
    span[row, Span.RUNNING_S] += tau * c[Counter.RESIDENT]
    span[row, Span.WAITING_S] += tau * c[Counter.WAITING]
    span[row, Span.BUSY_S] += tau
    span[row, Span.STEPS] += 1.0
    span[row, Span.CONTEXT] += context
    span[row, Span.PREFILLED] += c[Counter.PROMPTS]
    span[row, Span.PAIRS] += c[Counter.PAIRS]
    span[row, Span.SEQUENCES] += requests
    span[row, Span.ROOTS] += math.sqrt(requests)
    tokens = c[Counter.PROMPTS] + requests
    span[row, Span.BEYOND_KNEE] += max(tokens - s.timing[KNEE], 0.0)
    span[row, Span.WOKEN] += 1.0 - (1.0 - s.timing[CHOSEN]) ** tokens
    see_waiting(s)


@kernel
def see_waiting(s: State) -> None:
    """Note how many wait, if the fewest of this span."""
    row = s.counter[Counter.SPAN]
    s.span[row, Span.LEAST_WAITING] = min(s.span[row, Span.LEAST_WAITING], s.counter[Counter.WAITING])


@kernel
def note_gaps(s: State, gap_s: float, count: int) -> None:
    """Count times between two tokens."""
    if count > 0:
        s.clock[Clock.GAP_SUM] += gap_s * count
        s.histogram[gaps_of_span(s) + min(int(gap_position(gap_s)), GAPS - 1)] += count


@kernel
def gaps_of_span(s: State) -> int:
    """Return the place in `State.histogram` where this span's token gaps begin."""
    return int(s.fixed[Fixed.KV_BINS] + s.counter[Counter.SPAN] * GAPS)


@kernel
def gap_position(gap_s: float) -> float:
    """Return the bin of a time between two tokens, and as a fraction the place in it."""
    return math.log(max(gap_s, SHORTEST_GAP_S) / SHORTEST_GAP_S) * GAPS_IN_E
