"""Data-parallel ranks of a replica: engines with memory, limits and a queue of their own that all step together.

They are states that stand behind those of the replicas. The state of the replica itself has the clock, all counters,
and requests that nobody has handed out yet: each goes where the engine sends it. That is the rank with the
fewest requests, as they were before the iteration under way ends, and of equals the first; in vLLM's
`DPLBAsyncMPClient.get_core_engine_for_request` who waits counts four times, and SGLang's `DataParallelController` takes
one rank after the other. So a rank, which has a prefix cache of its own, knows what a session said before only by
chance, unless turns stay at a rank. Ranks form their batches at the same moment, and idle ones step along. The
iteration takes as long as the busiest rank needs, for what it reads and for its own part of the time per token.
"""

from kvplan.model import iteration_time
from kvplan.simulation.actions import (
    clear_batch,
    context_in_batch,
    finish_iteration,
    give_up_after,
    not_drafting,
    requests_in_batch,
    tokens_in_batch,
)
from kvplan.simulation.followups import goes_on, join
from kvplan.simulation.prefix_cache import cached_tokens
from kvplan.simulation.queues import take_out
from kvplan.simulation.state import (
    ALL_RANKS,
    D5_ALL_RANKS,
    KNEE,
    NOBODY,
    PER_PAIR,
    Clock,
    Counter,
    Fixed,
    List,
    Request,
    State,
    Time,
    Turn,
    extended,
    group_list,
    in_fleet,
    kernel,
    layered,
)


def form_batch(s: State) -> None:
    """Stand for the policy's: see `kvplan.simulation.engine.bound`."""
    raise NotImplementedError


@kernel
def first_rank(s: State, replica: int) -> int:
    """Return where the states of a replica's ranks begin."""
    return int(max(s.fleet.shape[0] - 1, 1) + replica * s.fixed[Fixed.PARALLEL])


def form_together(states: tuple[State, ...], replica: int) -> None:
    """Hand out new requests, and form the batch of every rank."""
    s, first = states[replica], first_rank(states[replica], replica)
    end = first + s.fixed[Fixed.PARALLEL]
    hand_out(states, replica)
    owe_together(states, replica)
    for rank in range(first, end):
        r = states[rank]
        keep_pace(r, s)
        clear_batch(r)
        if extended(r):
            give_up_after(r, 0, r.clock[Clock.SHED_AFTER])
        r.counter[Counter.TURN] = Turn.DECODES if s.fixed[Fixed.BALANCE] > 0 else Turn.ALL
        form_batch(r)
        r.counter[Counter.OUTSTANDING] = (
            s.fixed[Fixed.WAITING_WEIGHS] * r.counter[Counter.WAITING] + r.counter[Counter.RESIDENT]
        )
    if s.fixed[Fixed.BALANCE] > 0 and not all_wait(states, replica):
        for rank in range(first, end):
            states[rank].counter[Counter.TURN] = Turn.PROMPTS
            form_batch(states[rank])
    sum_up(states, replica)
    s.counter[Counter.MORE_REQUESTS], s.counter[Counter.MORE_TOKENS] = 0, 0
    for rank in range(first, end):
        s.counter[Counter.MORE_REQUESTS] += requests_in_batch(states[rank])
        s.counter[Counter.MORE_TOKENS] += tokens_in_batch(states[rank])


@kernel
def owe_together(states: tuple[State, ...], replica: int) -> None:
    """Have all ranks decode as long as those that computed prompts; where nobody decodes, no prompt waits."""
    first, owed, decodes = first_rank(states[replica], replica), 0, 0
    end = first + states[replica].fixed[Fixed.PARALLEL]
    for rank in range(first, end):
        owed = max(owed, states[rank].counter[Counter.OWED])
        decodes += states[rank].list[group_list(states[rank], 0), List.LENGTH]
    for rank in range(first, end):
        states[rank].counter[Counter.OWED] = owed if decodes > 0 else 0


@kernel
def hand_out(states: tuple[State, ...], replica: int) -> None:
    """Let new requests join the queues of ranks."""
    s = states[replica]
    for queue in range(s.fixed[Fixed.QUEUES]):
        request = s.list[queue, List.HEAD]
        while request != NOBODY:
            take_out(s, request)
            rank = rank_for(states, replica, request)
            join(states[rank], request)
            states[rank].counter[Counter.OUTSTANDING] += s.fixed[Fixed.WAITING_WEIGHS]
            request = s.list[queue, List.HEAD]


@kernel
def rank_for(states: tuple[State, ...], replica: int, request: int) -> int:
    """Choose the rank that a request goes to: its session's where turns stay, else as the engine does."""
    s, first = states[replica], first_rank(states[replica], replica)
    rank, stays = first, extended(s) and s.fixed[Fixed.TURNS_STAY] > 0
    if stays and s.request[request, Request.RANK] > 0:
        rank = first - 1 + s.request[request, Request.RANK]
    elif s.fixed[Fixed.WAITING_WEIGHS] == 0:
        rank = first + s.counter[Counter.TURN]  # of the replica: which comes next
        s.counter[Counter.TURN] = (s.counter[Counter.TURN] + 1) % s.fixed[Fixed.PARALLEL]
    else:
        for other in range(first + 1, first + s.fixed[Fixed.PARALLEL]):
            if states[other].counter[Counter.OUTSTANDING] < states[rank].counter[Counter.OUTSTANDING]:
                rank = other
    if stays and goes_on(s, request) != NOBODY:
        s.request[goes_on(s, request), Request.RANK] = rank - first + 1
    return int(rank)


@kernel
def keep_pace(r: State, s: State) -> None:
    """Set a rank's clock to its replica's."""
    r.clock[Clock.NOW], r.clock[Clock.PAUSE] = s.clock[Clock.NOW], s.clock[Clock.PAUSE]
    r.counter[Counter.ITERATIONS], r.counter[Counter.SPAN] = (
        s.counter[Counter.ITERATIONS],
        s.counter[Counter.SPAN],
    )


@kernel
def all_wait(states: tuple[State, ...], replica: int) -> bool:
    """Tell whether prompts wait until every rank has one: TensorRT-LLM's `_balance_adp_requests`, without more waiting.

    Where prompts are all that a rank has, they wait nowhere; a rank without requests is given one that decodes.
    """
    s, first = states[replica], first_rank(states[replica], replica)
    all_ready, all_decode, requests = True, True, 0
    for rank in range(first, first + s.fixed[Fixed.PARALLEL]):
        r = states[rank]
        decodes = r.list[group_list(r, 0), List.LENGTH]
        all_ready = all_ready and r.counter[Counter.READY] > 0 and decodes < r.fixed[Fixed.SEATS]
        all_decode = all_decode and (decodes > 0 or r.counter[Counter.OUTSTANDING] == 0)
        requests += r.counter[Counter.OUTSTANDING]
    if requests == 0:
        return False
    s.counter[Counter.READY] += 1  # of the replica: iterations since they began to wait
    if all_ready or not all_decode or s.counter[Counter.READY] >= s.fixed[Fixed.BALANCE]:
        s.counter[Counter.READY] = 0
        return False
    return True


@kernel
def sum_up(states: tuple[State, ...], replica: int) -> None:
    """Sum counters of ranks up in the replica's."""
    s, first = states[replica], first_rank(states[replica], replica)
    for column in range(Counter.RESIDENT, Counter.LOOKED_UP_AGAIN + 1):
        s.counter[column] = 0
    s.clock[Clock.GAP_SUM] = 0.0
    for rank in range(first, first + s.fixed[Fixed.PARALLEL]):
        r = states[rank]
        for column in range(Counter.RESIDENT, Counter.LOOKED_UP_AGAIN + 1):
            s.counter[column] += r.counter[column]
        s.counter[Counter.STUCK] = max(s.counter[Counter.STUCK], r.counter[Counter.STUCK])
        s.counter[Counter.LAST_COMPLETION] = max(
            s.counter[Counter.LAST_COMPLETION], r.counter[Counter.LAST_COMPLETION]
        )
        s.clock[Clock.GAP_SUM] += r.clock[Clock.GAP_SUM]
        s.clock[Clock.PAUSE] = min(s.clock[Clock.PAUSE], r.clock[Clock.PAUSE])


@kernel
def cached_together(states: tuple[State, ...], replica: int) -> int:
    """Count the tokens that ranks have cached and nobody holds there."""
    first, cached = first_rank(states[replica], replica), 0
    for rank in range(first, first + states[replica].fixed[Fixed.PARALLEL]):
        cached += cached_tokens(states[rank])
    return int(cached)


@kernel
def context_together(states: tuple[State, ...], replica: int) -> float:
    """Return the context that ranks would read in all if each read as much as the one with most."""
    first, most = first_rank(states[replica], replica), 0.0
    for rank in range(first, first + states[replica].fixed[Fixed.PARALLEL]):
        most = max(most, context_in_batch(states[rank]))
    return float(states[replica].fixed[Fixed.PARALLEL] * most)


@kernel
def seconds_together(states: tuple[State, ...], replica: int, context: float) -> float:
    """Return the time of an iteration: the law of all ranks, and the excess of the busiest over its share of it."""
    s, first = states[replica], first_rank(states[replica], replica)
    c, ranks, timing = s.counter, s.fixed[Fixed.PARALLEL], s.timing
    prompts, requests = c[Counter.PROMPTS], c[Counter.MORE_REQUESTS]
    tau = iteration_time(timing, context, prompts, requests, c[Counter.PAIRS])
    per_prefill, per_sequence = timing[2] - timing[ALL_RANKS], timing[3] - timing[ALL_RANKS]
    most, total, busiest = 0.0, 0.0, 0
    for rank in range(first, first + ranks):
        r = states[rank].counter
        sequences = requests_in_batch(states[rank])
        own = (
            per_prefill * r[Counter.PROMPTS] + per_sequence * sequences + timing[PER_PAIR] * r[Counter.PAIRS]
        )
        if layered(s) and s.fixed[Fixed.DRAFTS] > 0:
            alone = not_drafting(states[rank])
            own -= s.clock[Clock.VERIFY] * alone
            tau -= s.clock[Clock.VERIFY] * alone
            r[Counter.COMPUTED] += s.fixed[Fixed.DRAFTS] * (sequences - alone)
        most, total = max(most, own), total + own
        busiest = max(busiest, r[Counter.PROMPTS] + sequences)
    tokens, knee_s = prompts + requests, timing[5] * timing[KNEE]
    more_s = (timing[5] - timing[D5_ALL_RANKS]) * (ranks * busiest - tokens)
    beyond = max(timing[5] * tokens + more_s - knee_s, 0.0) - max(timing[5] * tokens - knee_s, 0.0)
    return float(tau + (ranks * most - total) + beyond)


@kernel
def finish_together(states: tuple[State, ...], replica: int) -> None:
    """End the iteration of every rank; in a closed loop, clients of a replica alone send their next requests."""
    s, first = states[replica], first_rank(states[replica], replica)
    done = s.counter[Counter.COMPLETED]
    for rank in range(first, first + s.fixed[Fixed.PARALLEL]):
        r = states[rank]
        keep_pace(r, s)
        r.counter[Counter.COMPUTED] += r.counter[Counter.PROMPTS] + requests_in_batch(r)
        finish_iteration(r)
    sum_up(states, replica)
    if s.fixed[Fixed.CLIENTS] and not in_fleet(s):
        last = min(s.counter[Counter.RELEASED] + s.counter[Counter.COMPLETED] - done, s.time.shape[0])
        for request in range(s.counter[Counter.RELEASED], last):
            s.time[request, Time.ARRIVAL] = s.clock[Clock.NOW]
        s.counter[Counter.RELEASED] = last
