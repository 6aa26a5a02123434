"""The one loop: arrivals, batch, time, completions; compiled by LLVM for long runs, plain Python for short ones.

A compiled loop is kept on disk between processes, see `kvplan.compiling`. It is one function for
each policy, made from the same code, so policies cost each other nothing.
"""

import math
import types
from collections.abc import Callable
from functools import cache
from typing import Any

from kvplan.model import Replica, Timing, iteration_time
from kvplan.simulation.actions import (
    clear_batch,
    context_read,
    finish_iteration,
    give_up_after,
    held_tokens,
    next_event_s,
    not_drafting,
    outstanding,
    release,
)
from kvplan.simulation.coasting import admits_nobody, coast
from kvplan.simulation.initial_state import Setup, Spans, most_stages, new_state
from kvplan.simulation.outcome import Ending, Outcome
from kvplan.simulation.prefix_cache import cached_tokens
from kvplan.simulation.programs import FormBatch, Loop, Program, until_it_ends
from kvplan.simulation.recording import record
from kvplan.simulation.remains import outcome
from kvplan.simulation.requests import Requests
from kvplan.simulation.rows import Rows
from kvplan.simulation.spans import add_to_span, end_span
from kvplan.simulation.state import (
    NOBODY,
    Clock,
    Counter,
    Fixed,
    Group,
    List,
    Span,
    State,
    extended,
    features,
    hosted,
    in_fleet,
    layered,
)

GOES_ON, FINISHED, OUT_OF_TIME, LIVELOCK, LACKS_ROWS, IDLE = range(6)
ENDINGS = {FINISHED: Ending.FINISHED, OUT_OF_TIME: Ending.HORIZON, LIVELOCK: Ending.LIVELOCK}
# Of plain Python: what has not ended by then goes on compiled, if the loop is on disk, and if it is not.
_PLAIN_SECONDS, _PLAIN_SECONDS_BEFORE_COMPILING = 0.1, 0.5
_SLICE = 200_000  # iterations between two looks at what the caller wants
_PLAIN_SLICE = 1_000
ROWS = 1 << 12  # requests that have a row at first, and more when they run out
PATIENCE = 20  # longest stays without a completion; then nothing will ever complete


def form_batch(s: State) -> None:
    """Stands for the policy's: see `bound`."""
    raise NotImplementedError


def loop(s: State, limit: int, patience: int) -> int:
    """Run until all is done, the clock is out, nothing moves any more, or `limit` iterations have run in all.

    A replica of a fleet also up to its PAUSE, or until it has nothing to do.
    """
    c, clock = s.counter, s.clock
    while c[Counter.ITERATIONS] < limit and clock[Clock.NOW] < clock[Clock.PAUSE]:
        while clock[Clock.NOW] >= clock[Clock.SPAN_END]:
            end_span(s)
        release(s)
        if c[Counter.JOINED] == c[Counter.RELEASED] and c[Counter.ROWLESS] > 0:
            return LACKS_ROWS
        if c[Counter.COMPLETED] + c[Counter.GONE] == s.fixed[Fixed.ALL]:
            if not s.fixed[Fixed.MORE_LATER]:
                return FINISHED
            clock[Clock.NOW] = clock[Clock.HORIZON]
        if clock[Clock.NOW] >= clock[Clock.HORIZON]:
            return OUT_OF_TIME
        clear_batch(s)
        if extended(s):
            give_up_after(s, 0, clock[Clock.SHED_AFTER])
        if hosted(s):
            clock[Clock.LOADING] = 0.0
        evictions, admissions, partly = c[Counter.EVICTED], c[Counter.SEQUENCE], c[Counter.PARTLY]
        form_batch(s)
        if c[Counter.STUCK] or c[Counter.ITERATIONS] - c[Counter.LAST_COMPLETION] > patience:
            return LIVELOCK
        tokens, requests = c[Counter.MORE_TOKENS], c[Counter.MORE_REQUESTS]
        for group in range(s.group.shape[0]):
            if s.group[group, Group.RUNS]:
                tokens += s.group[group, Group.WEIGHT]
                requests += s.list[s.fixed[Fixed.QUEUES] + group, List.LENGTH]
        if requests == 0:
            if c[Counter.COMPLETED] + c[Counter.GONE] == s.fixed[Fixed.ALL]:
                continue
            s.span[c[Counter.SPAN], Span.LEAST_WAITING] = min(
                s.span[c[Counter.SPAN], Span.LEAST_WAITING], c[Counter.WAITING]
            )
            if in_fleet(s):
                return IDLE
            wake_s = next_event_s(s)
            if wake_s == math.inf and not s.fixed[Fixed.MORE_LATER]:
                return LIVELOCK
            if wake_s > clock[Clock.HORIZON]:
                clock[Clock.NOW] = clock[Clock.HORIZON]
                return OUT_OF_TIME
            clock[Clock.NOW] = max(clock[Clock.NOW], wake_s)
            continue
        context = context_read(s) if layered(s) else float(tokens)
        tau = iteration_time(s.timing, context, c[Counter.PROMPTS], requests)
        if layered(s) and s.fixed[Fixed.DRAFTS] > 0:
            prompts = not_drafting(s)
            tau -= clock[Clock.VERIFY] * prompts
            c[Counter.COMPUTED] += s.fixed[Fixed.DRAFTS] * (requests - prompts)
        if hosted(s):
            tau += clock[Clock.LOADING]
        now = clock[Clock.NOW] + tau
        if now > clock[Clock.HORIZON]:
            clock[Clock.NOW] = clock[Clock.HORIZON]
            return OUT_OF_TIME
        clock[Clock.NOW] = now
        clock[Clock.BUSY] += tau
        c[Counter.COMPUTED] += c[Counter.PROMPTS] + requests
        c[Counter.ITERATIONS] += 1
        c[Counter.OVERFLOWS] += c[Counter.EVICTED] > evictions
        c[Counter.PROMPTS_PEAK] = max(c[Counter.PROMPTS_PEAK], c[Counter.PROMPTS])
        c[Counter.BATCH_PEAK] = max(c[Counter.BATCH_PEAK], requests)
        note(s)
        add_to_span(s, tau, context, requests)
        c[Counter.OUTSTANDING], c[Counter.HELD_BEFORE] = outstanding(s), c[Counter.HELD]
        finish_iteration(s)
        if s.fixed[Fixed.COASTS]:
            same = partly == NOBODY and c[Counter.SEQUENCE] == admissions and c[Counter.EVICTED] == evictions
            same = (
                same
                and c[Counter.LAST_COMPLETION] < c[Counter.ITERATIONS]
                and clock[Clock.SHED_AFTER] == math.inf
            )
            if same or admits_nobody(s):
                coast(s, limit, patience)
    return GOES_ON


def note(s: State) -> None:
    """Record what is held while the batch runs."""
    c = s.counter
    held = held_tokens(s)
    s.clock[Clock.KV_SUM] += held
    s.histogram[held // s.fixed[Fixed.BIN]] += 1
    cached = cached_tokens(s)
    s.clock[Clock.CACHED_SUM] += cached
    if held > c[Counter.PEAK]:
        c[Counter.PEAK] = held
    record(s, held, cached)


@cache
def bound(policy: FormBatch) -> Loop:
    """The loop with a policy in it, as plain Python."""
    return with_names(loop, form_batch=policy)


def with_names(function: Callable[..., Any], **names: Callable[..., Any]) -> Callable[..., Any]:
    """The same function, in which some global names stand for something else."""
    made = types.FunctionType(function.__code__, {**function.__globals__, **names}, function.__name__)
    made.__annotations__ = function.__annotations__
    return made


PROGRAM = Program("loop", bound, (loop,))


def run(
    policy: FormBatch,
    requests: Requests,
    timing: Timing,
    replica: Replica,
    setup: Setup,
    *,
    request_overhead_s: float = 0.0,
    horizon_s: float | None = None,
    spans: Spans | None = None,
    compile: bool | None = None,
    watch: Callable[[int], bool] | None = None,
    announce: Callable[[bool], None] | None = None,
) -> Outcome:
    """Run a policy on a list of requests.

    Parameters
    ----------
    policy
        Forms the batch of an iteration; see `kvplan.simulation.policies`.
    setup
        From the policy's `prepare`.
    request_overhead_s
        What a request takes outside the engine, seconds: part of its latencies, and in a closed loop the next comes
        so much after a completion.
    horizon_s
        Where the clock stops, seconds; batches that would end later are not run. Needed where more requests come
        later than those given.
    spans
        Spans of time in which sums are kept apart.
    compile
        Run the compiled loop, or never. None: after half a second. The results are the same.
    watch
        Told now and then how many requests are done; the run stops where it answers False.
    announce
        Told before the loop is compiled, if no earlier run has left it on disk; and whether this one will.

    Raises
    ------
    NotBegunError
        `watch` answered False while the requests were set up.
    """
    if requests.turns is not None and requests.clients is not None:
        raise ValueError("a closed loop has no turns beside it")
    if requests.more_later and (horizon_s is None or requests.clients is not None):
        raise ValueError("only open arrivals go on beyond a horizon, and one is needed")
    rows = Rows(requests, setup, replica, ROWS)
    state = new_state(
        requests, timing, replica, setup, horizon_s, request_overhead_s, rows.number.size, watch, spans
    )
    longest = most_stages(requests, setup, replica.prefill) + int(requests.input_tokens.max(initial=1))

    def goes_on() -> bool:
        return watch is None or watch(int(state.counter[Counter.COMPLETED]))

    patience = PATIENCE * longest + 1000

    def step(loop: Loop, fast: bool) -> Ending | None:
        nonlocal state
        c = state.counter
        code = loop(state, int(c[Counter.ITERATIONS]) + (_SLICE if fast else _PLAIN_SLICE), patience)
        if code == LACKS_ROWS:
            (state,), c[Counter.JOINED], c[Counter.RELEASED] = rows.refilled(
                (state,), int(c[Counter.ROWLESS])
            )
            c[Counter.ROWLESS] -= c[Counter.RELEASED] - c[Counter.JOINED]
        return ENDINGS.get(code)

    ending = until_it_ends(PROGRAM, policy, features(state), step, goes_on, compile, announce)
    return outcome((state,), rows, ending)
