"""Loop over arrivals, batch, time, completions; compiled by LLVM for long runs, plain Python for short ones.

A compiled loop is kept on disk between processes, see `kvplan.compiling`. It is one function for each policy and
combination of features, made from the same code, so policies cost each other nothing.
"""

import math
import os
import sys
import types
from collections import defaultdict
from collections.abc import Callable
from functools import cache
from threading import Event, Lock
from time import perf_counter
from typing import Any, NamedTuple

from kvplan import compiling
from kvplan.model import Replica, Timing, iteration_time
from kvplan.simulation.actions import (
    clear_batch,
    context_in_batch,
    finish_iteration,
    give_up_after,
    held_tokens,
    not_drafting,
    outstanding,
    requests_in_batch,
)
from kvplan.simulation.data_parallel import (
    cached_together,
    context_together,
    finish_together,
    form_together,
    seconds_together,
)
from kvplan.simulation.fast_forward import admits_nobody, coast
from kvplan.simulation.followups import next_event_s, release
from kvplan.simulation.initial_state import Setup, Spans, most_stages, new_state, with_ranks
from kvplan.simulation.outcome import Ending, Outcome, outcome
from kvplan.simulation.prefix_cache import cached_tokens
from kvplan.simulation.requests import Requests
from kvplan.simulation.row_pool import RowPool
from kvplan.simulation.state import (
    KERNELS,
    KNOWN_WHEN_COMPILED,
    NOBODY,
    Clock,
    Counter,
    Features,
    Fixed,
    State,
    extended,
    features,
    hosted,
    in_fleet,
    kernel,
    layered,
    parallel,
)
from kvplan.simulation.statistics import add_to_span, end_span, note, see_waiting

FormBatch = Callable[[State], None]
Loop = Callable[..., int]  # of a state, or of several, and of whole numbers

GOES_ON, FINISHED, OUT_OF_TIME, LIVELOCK, LACKS_ROWS, IDLE = range(6)
ENDINGS = {FINISHED: Ending.FINISHED, OUT_OF_TIME: Ending.HORIZON, LIVELOCK: Ending.LIVELOCK}
# Of plain Python: what has not ended by then goes on compiled, if the loop is on disk, and if it is not.
_PLAIN_SECONDS, _PLAIN_SECONDS_BEFORE_COMPILING = 0.1, 0.5
_SLICE, _PLAIN_SLICE = 200_000, 1_000  # iterations between two looks at what the caller wants
interrupted = Event()  # by Ctrl-C, while runs are made in threads: who waits for them is told alone
ROWS = 1 << 12  # requests that have a row at first, and more when they run out
PATIENCE = 20  # longest stays without a completion; then nothing will ever complete


def form_batch(s: State) -> None:
    """Stand for the policy's: see `bound`."""
    raise NotImplementedError


def loop(states: tuple[State, ...], replica: int, limit: int, patience: int) -> int:
    """Run a replica until all is done, the clock is out, nothing moves any more, or `limit` iterations have run in all.

    One of a fleet also up to its PAUSE, or until it has nothing to do.
    """
    s = states[replica]
    c, clock = s.counter, s.clock
    while c[Counter.ITERATIONS] < limit and clock[Clock.NOW] < clock[Clock.PAUSE]:
        while clock[Clock.NOW] >= clock[Clock.SPAN_END]:
            end_span(s)
        release(s)
        if c[Counter.JOINED] == c[Counter.RELEASED] and c[Counter.ROWLESS] > 0:
            return LACKS_ROWS
        if all_are_done(s):
            if not s.fixed[Fixed.MORE_LATER]:
                return FINISHED
            clock[Clock.NOW] = clock[Clock.HORIZON]
        if clock[Clock.NOW] >= clock[Clock.HORIZON]:
            return OUT_OF_TIME
        evictions, admissions, partly = c[Counter.EVICTED], c[Counter.SEQUENCE], c[Counter.PARTLY]
        form(states, replica)
        if c[Counter.STUCK] or c[Counter.ITERATIONS] - c[Counter.LAST_COMPLETION] > patience:
            return LIVELOCK
        requests = requests_in_batch(s)
        if requests == 0:
            if all_are_done(s):
                continue
            see_waiting(s)
            code = IDLE if in_fleet(s) else wait(s)
            if code != GOES_ON:
                return code
            continue
        context = context_together(states, replica) if parallel(s) else context_in_batch(s)
        tau = seconds_together(states, replica, context) if parallel(s) else seconds(s, context, requests)
        if clock[Clock.NOW] + tau > clock[Clock.HORIZON]:
            clock[Clock.NOW] = clock[Clock.HORIZON]
            return OUT_OF_TIME
        clock[Clock.NOW] += tau
        clock[Clock.ENDED] = clock[Clock.NOW]
        clock[Clock.BUSY] += tau
        c[Counter.COMPUTED] += c[Counter.PROMPTS] + requests
        c[Counter.ITERATIONS] += 1
        c[Counter.OVERFLOWS] += c[Counter.EVICTED] > evictions
        c[Counter.PROMPTS_PEAK] = max(c[Counter.PROMPTS_PEAK], c[Counter.PROMPTS])
        c[Counter.BATCH_PEAK] = max(c[Counter.BATCH_PEAK], requests)
        held = held_tokens(s)
        add_to_span(s, tau, held, context, requests)
        note(s, tau, held, cached_together(states, replica) if parallel(s) else cached_tokens(s))
        c[Counter.OUTSTANDING], c[Counter.HELD_BEFORE] = outstanding(s), c[Counter.HELD]
        if parallel(s):
            finish_together(states, replica)
        else:
            finish_iteration(s)
        if s.fixed[Fixed.COASTS]:
            same = partly == NOBODY and c[Counter.SEQUENCE] == admissions and c[Counter.EVICTED] == evictions
            same = same and c[Counter.LAST_COMPLETION] < c[Counter.ITERATIONS]
            if (same and clock[Clock.SHED_AFTER] == math.inf) or admits_nobody(s):
                coast(s, limit, patience)
    return GOES_ON


def form(states: tuple[State, ...], replica: int) -> None:
    """Form the next batch."""
    s = states[replica]
    if parallel(s):
        form_together(states, replica)
        return
    clear_batch(s)
    if extended(s):
        give_up_after(s, 0, s.clock[Clock.SHED_AFTER])
    form_batch(s)


@kernel
def all_are_done(s: State) -> bool:
    """Tell whether all requests are done, or never come."""
    return bool(s.counter[Counter.COMPLETED] + s.counter[Counter.GONE] == s.fixed[Fixed.ALL])


@kernel
def seconds(s: State, context: float, requests: int) -> float:
    """Return the time that the batch takes, which reads so much context; tokens of drafts are counted."""
    c = s.counter
    tau = iteration_time(s.timing, context, c[Counter.PROMPTS], requests, c[Counter.PAIRS])
    if layered(s) and s.fixed[Fixed.DRAFTS] > 0:
        prompts = not_drafting(s)
        tau -= s.clock[Clock.VERIFY] * prompts
        s.counter[Counter.COMPUTED] += s.fixed[Fixed.DRAFTS] * (requests - prompts)
    if hosted(s):
        tau += s.clock[Clock.LOADING]
    return float(tau)


@kernel
def wait(s: State) -> int:
    """Let the clock go to the next event, if there is one before the horizon."""
    clock, wake_s = s.clock, next_event_s(s)
    if wake_s == math.inf and not s.fixed[Fixed.MORE_LATER]:
        return LIVELOCK
    if wake_s > clock[Clock.HORIZON]:
        clock[Clock.NOW] = clock[Clock.HORIZON]
        return OUT_OF_TIME
    clock[Clock.NOW], clock[Clock.ENDED] = max(clock[Clock.NOW], wake_s), -1.0
    return GOES_ON


@cache
def bound(policy: FormBatch) -> Loop:
    """Return the loop with a policy in it, as plain Python."""
    together = with_names(form_together, form_batch=policy)
    return with_names(loop, form=with_names(form, form_batch=policy, form_together=together))


def with_names(function: Callable[..., Any], **names: Callable[..., Any]) -> Callable[..., Any]:
    """Return the same function, in which some global names stand for something else."""
    made = types.FunctionType(function.__code__, {**function.__globals__, **names}, function.__name__)
    made.__annotations__ = function.__annotations__
    return made


# --------------------------------------------------------------------------------------- plain and compiled loops


class Program(NamedTuple):
    """A loop into which a policy can be put."""

    name: str  # of its files
    bound: Callable[[FormBatch], Loop]  # it with a policy in it, as plain Python
    parts: tuple[Callable[..., Any], ...]  # functions that it is made of beside kernels

    def file(self, policy: FormBatch, features: Features) -> str | None:
        """Return where it is kept compiled: by the texts of all modules that can go into it."""
        key = (self.name, policy, features)
        if key not in _files:
            used: list[Any] = [f for f in KERNELS if _is_of_one_replica(f.__module__)]
            modules = {sys.modules[f.__module__] for f in (*used, *self.parts, policy, State, iteration_time)}
            kind = "".join(f"-{name}" for name, given in features._asdict().items() if given)
            which = f"{policy.__module__}.{policy.__qualname__} {kind}"
            _files[key] = compiling.file(self.name + kind, modules, which)
        return _files[key]

    def compiled(
        self, policy: FormBatch, features: Features, goes_on: Callable[[], bool] = lambda: True
    ) -> Loop | None:
        """Put a policy in, compiled by this process, or by an earlier one; None if it is not to go on."""
        key = (self.name, policy, features)
        with _locks[key]:
            if key not in _loops:
                file = self.file(policy, features)
                known = dict(zip(KNOWN_WHEN_COMPILED, features, strict=True))
                made = compiling.compiled(self.bound(policy), State, file, known, goes_on)
                if made is None:
                    return None
                _loops[key] = made
            return _loops[key]

    def at_hand(self, policy: FormBatch, features: Features) -> bool:
        """Tell whether it is there compiled: in this process, or left on disk by an earlier one."""
        if (self.name, policy, features) in _loops:
            return True
        file = self.file(policy, features)
        return file is not None and os.path.isfile(file)

    def is_worth_it(self, policy: FormBatch, features: Features, seconds: float) -> bool:
        """Tell whether to go on compiled after so many seconds of plain Python; at once where a run has loaded it."""
        if (self.name, policy, features) in _loops:
            return True
        if seconds <= _PLAIN_SECONDS:
            return False
        return seconds > _PLAIN_SECONDS_BEFORE_COMPILING or self.at_hand(policy, features)


def _is_of_one_replica(module: str) -> bool:
    """Tell whether a module of kernels is for every loop: fleets, once loaded, must not change others' files."""
    return module.startswith(__package__) and not module.startswith(f"{__package__}.fleet")


_Key = tuple[str, FormBatch, Features]
_files: dict[_Key, str | None] = {}
_loops: dict[_Key, Loop] = {}  # of this process
_locks: defaultdict[_Key, Lock] = defaultdict(Lock)


def until_it_ends(
    program: Program,
    policy: FormBatch,
    features: Features,
    step: Callable[[Loop, bool], Ending | None],
    goes_on: Callable[[], bool],
    compile: bool | None,
    announce: Callable[[bool], None] | None,
) -> Ending:
    """Make steps with a loop, compiled or not, until one returns the ending of the run.

    `compile` and `announce` are as for `run`.
    """
    started = perf_counter()
    while True:
        spent_s = perf_counter() - started
        fast = compile or (compile is None and program.is_worth_it(policy, features, spent_s))
        if fast and announce is not None and not program.at_hand(policy, features):
            announce(compiling.lasts())
            announce = None
        loop = program.compiled(policy, features, goes_on) if fast else program.bound(policy)
        if loop is None:
            return Ending.INTERRUPTED
        look_up()
        ending = step(loop, bool(fast))
        if ending is not None:
            return ending
        if not goes_on():
            return Ending.INTERRUPTED


def look_up() -> None:
    """End a run whose caller was interrupted."""
    if interrupted.is_set():
        raise KeyboardInterrupt


PROGRAM = Program("loop", bound, (loop, form_together))


class Run:
    """A run at one replica, from the state before anything has arrived, in as many steps as are wanted.

    `at_once` requests have a row at first; other arguments are as for `run`, or as for `new_state`.
    """

    def __init__(
        self,
        requests: Requests,
        timing: Timing,
        replica: Replica,
        setup: Setup,
        horizon_s: float | None,
        request_overhead_s: float = 0.0,
        watch: Callable[[int], bool] | None = None,
        spans: Spans | None = None,
        at_once: int | None = None,
        unseen: tuple[int, int] = (0, 0),
    ) -> None:
        self.pool = RowPool(requests, setup, replica, ROWS if at_once is None else at_once)
        rows = self.pool.number.size
        state = new_state(
            requests, timing, replica, setup, horizon_s, request_overhead_s, rows, watch, spans, unseen
        )
        self.states = with_ranks((state,), requests, setup)
        longest = most_stages(requests, setup, replica.prefill)
        self.patience = PATIENCE * (longest + int(requests.input_tokens.max(initial=1))) + 1000

    @property
    def state(self) -> State:
        """State of the replica."""
        return self.states[0]

    def step(self, loop: Loop, iterations: int) -> int:
        """Go on for so many iterations at most; requests that lack rows have them afterwards."""
        code = loop(self.states, 0, int(self.state.counter[Counter.ITERATIONS]) + iterations, self.patience)
        if code == LACKS_ROWS:
            self.refill()
        return code

    def refill(self) -> None:
        """Give rows to the requests that come next."""
        c = self.state.counter
        self.states, c[Counter.JOINED], c[Counter.RELEASED] = self.pool.refilled(
            self.states, int(c[Counter.ROWLESS])
        )
        c[Counter.ROWLESS] -= c[Counter.RELEASED] - c[Counter.JOINED]

    def loop(self, policy: FormBatch) -> Loop:
        """Return the compiled loop with a policy in it."""
        made = PROGRAM.compiled(policy, features(self.state))
        assert made is not None
        return made


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
        Time of a request outside the engine, seconds: part of its latencies, and of the time until its session
        goes on. Clients of a closed loop send the next while the first one's answer is on its way.
    horizon_s
        End of the clock, seconds; batches that would end later are not run. Needed where more requests come
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
    whole = Run(requests, timing, replica, setup, horizon_s, request_overhead_s, watch, spans)

    def goes_on() -> bool:
        return watch is None or watch(int(whole.state.counter[Counter.COMPLETED]))

    def step(loop: Loop, fast: bool) -> Ending | None:
        return ENDINGS.get(whole.step(loop, _SLICE if fast else _PLAIN_SLICE))

    ending = until_it_ends(PROGRAM, policy, features(whole.state), step, goes_on, compile, announce)
    return outcome((whole.state,), whole.pool, ending)
