"""The loop of a fleet: it sends each arrival to a replica, and lets the replicas run their own loops up to the next.

No replica runs past an arrival that it does not know of: only up to the next one that is known, and, where completions
bring others, up to when some other replica could be done with somebody. The router looks at what there is while an
iteration runs, before its end.
"""

import math

from kvplan.simulation.actions import append, join, next_event_s, outstanding
from kvplan.simulation.coasting import admits_nobody, calm_until_s, coast
from kvplan.simulation.coming import comes_before, take_first
from kvplan.simulation.engine import FINISHED, GOES_ON, IDLE, LACKS_ROWS, LIVELOCK, OUT_OF_TIME, loop
from kvplan.simulation.fleet.transfer import (
    WAITS_FOR_ROOM,
    fetch,
    let_sent_go,
    next_transfer_s,
    receive,
)
from kvplan.simulation.fleet.trees import least_of, least_of_others, tell, told
from kvplan.simulation.kernels import kernel
from kvplan.simulation.state import (
    ACTS,
    ARRIVAL,
    ASKED,
    BLIND,
    BRINGS,
    BY_KV,
    CALM,
    CLOSED,
    COASTS,
    COMING,
    COMING_S,
    DECODE,
    ENDS,
    FIRST_TOKEN,
    FURTHER,
    HANDED_OVER,
    HELD,
    HELD_BEFORE,
    HORIZON,
    IDLES,
    ITERATIONS,
    NOBODY,
    NOW,
    OUTSTANDING,
    PAUSE,
    PREFILL,
    ROLE,
    RULE,
    SEEN,
    SEEN_DECODING,
    SITE,
    THINK,
    TO_COME,
    UNASKED,
    UNASKED_END,
    WAITING,
    WHOLE,
    State,
)

CHANGES = 6  # beside the codes of `kvplan.simulation.engine`: other replicas take requests from now on
_MANY = 1 << 30  # requests


def serve(states: tuple[State, ...], steps: int, patience: int) -> int:
    """Serve until nobody comes any more and nobody is left, nothing moves, or so many steps are made.

    A step is an iteration of a replica, or what the router does between two of them.
    """
    s = states[0]
    while steps > 0:
        runs, until_s, done = NOBODY, math.inf, 1
        if s.fleet[0, UNASKED] == s.fleet[0, UNASKED_END] and s.fleet[0, FURTHER] > 0:
            return LACKS_ROWS
        coming, coming_s = next_request(s), math.inf
        if coming != NOBODY:
            coming_s = s.time[coming, ARRIVAL]
            if coming_s > s.clock[HORIZON]:
                coming, coming_s = NOBODY, math.inf
        first, first_s = NOBODY, math.inf
        if coming == NOBODY or s.fleet[0, RULE] != BLIND or s.fleet[0, BRINGS]:
            first = least_of(s, ACTS)
            first_s = told(s, ACTS, first)
        if first_s < coming_s:
            if s.fleet[1 + first, ENDS]:
                settle(states[first], first)
            else:
                runs = first
                until_s = min(coming_s, least_of_others(s, ACTS, first)) if s.fleet[0, BRINGS] else coming_s
        elif coming == NOBODY:
            runs = held_back(states)
            if runs == NOBODY:
                return FINISHED
        elif coming_s >= s.link[0, SEEN]:
            return CHANGES
        else:
            replica = chosen(s, coming)
            behind = states[replica].clock[NOW] < coming_s
            if told(s, ACTS, replica) < coming_s or (behind and not s.fleet[1 + replica, IDLES]):
                runs, until_s = replica, coming_s
            else:
                send(states[replica], replica, coming, coming_s)
        if runs != NOBODY:
            before = states[runs].counter[ITERATIONS]
            if run_replica(states, runs, steps, until_s, coming_s, patience) == LIVELOCK:
                return LIVELOCK
            done = max(states[runs].counter[ITERATIONS] - before, done)
        steps -= done
    return GOES_ON


@kernel
def held_back(states: tuple[State, ...]) -> int:
    """A replica whose policy may have waited for more to come, and has not been asked since; NOBODY: there is none."""
    for replica in range(states[0].fleet.shape[0] - 1):
        s = states[replica]
        if s.counter[WAITING] > 0 and not s.fleet[1 + replica, ASKED] and s.clock[NOW] < s.clock[HORIZON]:
            s.fleet[1 + replica, ASKED] = 1
            tell(s, ACTS, replica, s.clock[NOW])
            return replica
    return NOBODY


@kernel
def next_request(s: State) -> int:
    """Who comes next, of those who come unasked and those whom others have brought; NOBODY: there is none known."""
    unasked = s.fleet[0, UNASKED] if s.fleet[0, UNASKED] < s.fleet[0, UNASKED_END] else NOBODY
    if s.fleet[0, TO_COME] == 0:
        return int(unasked)
    brought = s.request[0, COMING]
    if unasked == NOBODY or comes_before(s.time[0, COMING_S], brought, s.time[unasked, ARRIVAL], unasked):
        return int(brought)
    return int(unasked)


@kernel
def chosen(s: State, request: int) -> int:
    """The replica that a request goes to: the one it is meant for, or, of those for it, that with least; the first."""
    if s.fleet[0, RULE] == BLIND:
        return int(s.request[request, SITE])
    goes_on = s.fixed[HANDED_OVER] > 0 and request >= s.fixed[HANDED_OVER]
    return least_of(s, SEEN_DECODING if goes_on else SEEN)


@kernel
def send(s: State, replica: int, request: int, now: float) -> None:
    """A request comes to a replica."""
    if request < s.fleet[0, UNASKED_END]:
        s.fleet[0, UNASKED] += 1
    else:
        take_first(s)
    s.request[request, SITE] = replica
    if s.fleet[1 + replica, ROLE] == DECODE:
        append(s, s.list.shape[0] + WAITS_FOR_ROOM, request)
        s.counter[WAITING] += 1
    else:
        join(s, request)
    s.counter[OUTSTANDING] += 1
    s.clock[CALM] = 0.0
    show(s, replica, s.counter[OUTSTANDING], s.counter[HELD_BEFORE])
    tell(s, ACTS, replica, min(told(s, ACTS, replica), max(s.clock[NOW], now)))


@kernel
def show(s: State, replica: int, requests: int, blocks: int) -> None:
    """Let the router see what is at a replica; it looks when somebody comes there or is done."""
    load = float(requests)
    if s.fleet[0, RULE] == BY_KV:
        load = blocks + requests / _MANY  # of equal memory, the fewest requests
    if s.fleet[1 + replica, CLOSED]:
        load = math.inf
    tell(s, SEEN_DECODING if s.fleet[1 + replica, ROLE] == DECODE else SEEN, replica, load)


@kernel
def settle(s: State, replica: int) -> None:
    """The last iteration has ended: let the router see who is done."""
    c, role = s.counter, s.fleet[1 + replica, ROLE]
    s.fleet[1 + replica, ENDS] = 0
    c[OUTSTANDING], c[HELD_BEFORE] = outstanding(s), c[HELD]
    show(s, replica, c[OUTSTANDING], c[HELD])
    acts_s = max(s.clock[NOW], s.clock[CALM])
    if role != WHOLE:
        acts_s = min(acts_s, max(s.clock[NOW], next_transfer_s(s, FIRST_TOKEN if role == DECODE else THINK)))
    tell(s, ACTS, replica, acts_s)


@kernel
def run_replica(
    states: tuple[State, ...], replica: int, most: int, until_s: float, coming_s: float, patience: int
) -> int:
    """Let one replica run until then, at most so many iterations, or, where others act at the same time, one."""
    s = states[replica]
    c, clock, row = s.counter, s.clock, 1 + replica
    if s.fleet[row, IDLES]:
        clock[NOW] = max(clock[NOW], told(s, ACTS, replica))
    transfer = THINK
    if s.fleet[row, ROLE] == PREFILL:
        let_sent_go(s)
    elif s.fleet[row, ROLE] == DECODE:
        receive(s)
        fetch(states, replica)
        transfer = FIRST_TOKEN
    alone = until_s > clock[NOW]
    limit = c[ITERATIONS] + (most if alone else 1)
    until_s = until_s if alone else coming_s
    if s.fleet[row, ROLE] != WHOLE:
        until_s = min(until_s, next_transfer_s(s, transfer))
    seen, calm = c[OUTSTANDING], clock[CALM] > clock[NOW]
    clock[PAUSE] = until_s
    if s.fixed[COASTS] and (calm or admits_nobody(s)):
        coast(s, limit, patience)
    code = loop(s, limit, patience)
    s.fleet[row, IDLES], s.fleet[row, ENDS] = code == IDLE, 0
    here, acts_s = outstanding(s), math.inf
    if code == GOES_ON and alone and c[ITERATIONS] == limit and clock[NOW] < clock[PAUSE]:
        if c[OUTSTANDING] != seen:
            show(s, replica, c[OUTSTANDING], c[HELD_BEFORE])
        return code  # cut short, it goes on before anybody else does
    if code == GOES_ON:
        if s.fixed[COASTS] and admits_nobody(s) and clock[CALM] <= clock[NOW]:
            clock[CALM] = calm_until_s(s)
        acts_s = max(clock[NOW], clock[CALM])
        if c[OUTSTANDING] != here:  # which the router sees when the iteration ends
            acts_s, s.fleet[row, ENDS] = clock[NOW], 1
        if c[OUTSTANDING] != seen:
            show(s, replica, c[OUTSTANDING], c[HELD_BEFORE])
    else:
        acts_s = next_event_s(s) if code == IDLE else math.inf
        c[OUTSTANDING], c[HELD_BEFORE] = here, c[HELD]
        show(s, replica, here, c[HELD])
    if code != OUT_OF_TIME and s.fleet[row, ROLE] != WHOLE:
        acts_s = min(acts_s, max(clock[NOW], next_transfer_s(s, transfer)))
    tell(s, ACTS, replica, acts_s)
    return code
