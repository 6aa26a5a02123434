"""Loop of a fleet: it sends each arrival to a replica, and lets the replicas run their own loops up to the next.

No replica runs past an arrival that it does not know of: only up to the next one that is known, and, where completions
bring others, up to when some other replica could be done with somebody. The router looks at what there is while an
iteration runs, before its end.

KV goes from prefill to decode replicas over links. A decode replica keeps two further lists, behind those of its
policy: requests that wait for room, and requests whose KV is on its way. It allocates first; then the KV goes over the
links of both replicas, one transfer at a time on each, and is held on both sides until it is over. A prefill replica
keeps a list of those that are being fetched.

Each column of `State.link` is a binary tree of values of the replicas: the last half of the rows are replicas,
the children of row i are 2i and 2i + 1, the root is row 1, and each node has the lesser of its children, and, WHOSE
columns further, the replica that has it.
"""

import math

from kvplan.simulation.actions import blocks_of, free, outstanding
from kvplan.simulation.engine import FINISHED, GOES_ON, IDLE, LACKS_ROWS, LIVELOCK, OUT_OF_TIME, loop
from kvplan.simulation.fast_forward import admits_nobody, calm_until_s, coast
from kvplan.simulation.followups import earlier, goes_on, join, next_event_s, take_first
from kvplan.simulation.queues import append, put_first, take_out
from kvplan.simulation.state import (
    NOBODY,
    Clock,
    Counter,
    Fixed,
    Link,
    List,
    Request,
    Role,
    Router,
    Rule,
    Site,
    State,
    Time,
    kernel,
)

WAITS_FOR_ROOM, ON_ITS_WAY = -2, -1  # of `State.list`; of a prefill replica the last one alone


@kernel
def told(s: State, column: int, replica: int) -> float:
    """Return the value of a replica."""
    return float(s.link[s.link.shape[0] // 2 + replica, column])


@kernel
def tell(s: State, column: int, replica: int, value: float) -> None:
    """Set the value of a replica."""
    node = s.link.shape[0] // 2 + replica
    s.link[node, column] = value
    node //= 2
    while node > 0:
        # a sum, for nobody can foretell which: a branch here would mostly be a wrong guess of the processor
        lesser = 2 * node + (s.link[2 * node + 1, column] < s.link[2 * node, column])
        least, whose = s.link[lesser, column], s.link[lesser, column + Link.WHOSE]
        if s.link[node, column] == least and s.link[node, column + Link.WHOSE] == whose:
            return
        s.link[node, column], s.link[node, column + Link.WHOSE] = least, whose
        node //= 2


@kernel
def least_of(s: State, column: int) -> int:
    """Return the replica with the least; of several, the first."""
    return int(s.link[1, column + Link.WHOSE])


@kernel
def least_of_others(s: State, column: int, replica: int) -> float:
    """Return the least of all but one."""
    node, least = s.link.shape[0] // 2 + replica, math.inf
    while node > 1:
        beside = node + 1 if node % 2 == 0 else node - 1
        least = min(least, s.link[beside, column])
        node //= 2
    return least


@kernel
def fetch(states: tuple[State, ...], replica: int) -> None:
    """Let those in front take room and begin to come, as long as there is room."""
    s = states[replica]
    waiting = s.list.shape[0] + WAITS_FOR_ROOM
    request = s.list[waiting, List.HEAD]
    while request != NOBODY:
        # the next token needs room as well
        blocks = blocks_of(s, s.request[request, Request.FIRST_WEIGHT] + 1)
        if s.counter[Counter.HELD] + blocks > s.fixed[Fixed.CAPACITY]:
            return
        s.counter[Counter.HELD] += blocks
        s.clock[Clock.CALM] = 0.0
        take_out(s, request)
        prompt = request - s.fixed[Fixed.HANDED_OVER]
        sender = s.request[prompt, Request.SITE]
        begins_s = max(
            s.clock[Clock.NOW], told(s, Link.TRANSFERS_UNTIL, sender), told(s, Link.TRANSFERS_UNTIL, replica)
        )
        ends_s = begins_s + s.request[prompt, Request.PROMPT] * s.clock[Clock.SECONDS_PER_TOKEN]
        tell(s, Link.TRANSFERS_UNTIL, sender, ends_s)
        tell(s, Link.TRANSFERS_UNTIL, replica, ends_s)
        # the answer begins when the decode replica can send it
        s.time[request, Time.FIRST_TOKEN], s.time[request, Time.FINISH] = ends_s, -ends_s
        s.time[prompt, Time.THINK] = ends_s
        append(s, s.list.shape[0] + ON_ITS_WAY, request)
        at_sender(states[sender], prompt)
        request = s.list[waiting, List.HEAD]


@kernel
def at_sender(s: State, prompt: int) -> None:
    """Have the prefill replica look up when the KV of a prompt has gone."""
    append(s, s.list.shape[0] + ON_ITS_WAY, prompt)
    number = s.fixed[Fixed.SITE_NUMBER]
    tell(
        s,
        Link.ACTS,
        number,
        min(told(s, Link.ACTS, number), max(s.time[prompt, Time.THINK], s.clock[Clock.NOW])),
    )


@kernel
def let_sent_go(s: State) -> None:
    """Free KV that has gone to a decode replica by now."""
    sent = s.list.shape[0] + ON_ITS_WAY
    prompt = s.list[sent, List.HEAD]
    while prompt != NOBODY and s.time[prompt, Time.THINK] <= s.clock[Clock.NOW]:
        s.clock[Clock.CALM] = 0.0
        s.counter[Counter.ON_LINKS] -= 1
        take_out(s, prompt)
        free(s, prompt, s.request[prompt, Request.PARKED], s.request[prompt, Request.PARKED])
        prompt = s.list[sent, List.HEAD]


@kernel
def receive(s: State) -> None:
    """Let those whose KV has come by now stand first in their queue."""
    coming = s.list.shape[0] + ON_ITS_WAY
    request = s.list[coming, List.HEAD]
    while request != NOBODY and s.time[request, Time.FIRST_TOKEN] <= s.clock[Clock.NOW]:
        s.clock[Clock.CALM] = 0.0
        take_out(s, request)
        put_first(s, s.request[request, Request.QUEUE], request)
        request = s.list[coming, List.HEAD]


@kernel
def next_transfer_s(s: State, column: int) -> float:
    """Return the end of a replica's next transfer, by a column of `State.time`; infinity: there is none."""
    request = s.list[s.list.shape[0] + ON_ITS_WAY, List.HEAD]
    return math.inf if request == NOBODY else float(s.time[request, column])


CHANGES = 6  # beside the codes of `kvplan.simulation.engine`: the time at which somebody looks has come
_MANY = 1 << 30  # requests


def serve(states: tuple[State, ...], steps: int, patience: int) -> int:
    """Serve until nobody comes any more and nobody is left, nothing moves, or so many steps are made.

    A step is an iteration of a replica, or the router's work between two of them.
    """
    s = states[0]
    while steps > 0:
        runs, until_s, done = NOBODY, math.inf, 1
        if s.fleet[0, Router.UNASKED] == s.fleet[0, Router.UNASKED_END] and s.fleet[0, Router.FURTHER] > 0:
            return LACKS_ROWS
        coming, coming_s = next_request(s), math.inf
        if coming != NOBODY:
            coming_s = s.time[coming, Time.ARRIVAL]
        changes = coming != NOBODY and coming_s >= s.link[0, Link.SEEN]
        if changes:
            coming_s = s.link[0, Link.SEEN]
        first, first_s = NOBODY, math.inf
        if coming == NOBODY or changes or s.fleet[0, Router.RULE] != Rule.BLIND or s.fleet[0, Router.BRINGS]:
            first = least_of(s, Link.ACTS)
            first_s = told(s, Link.ACTS, first)
        if first_s < coming_s:
            if s.fleet[1 + first, Site.ENDS]:
                settle(states[first], first)
            else:
                runs = first
                until_s = (
                    min(coming_s, least_of_others(s, Link.ACTS, first))
                    if s.fleet[0, Router.BRINGS]
                    else coming_s
                )
        elif coming == NOBODY:
            runs = held_back(states)
            if runs == NOBODY:
                return FINISHED
        elif changes:
            return CHANGES
        else:
            replica = chosen(s, coming)
            if comes_within(states[replica], replica, coming, coming_s):
                runs, until_s, coming_s = replica, coming_s, math.inf
            elif is_behind(states[replica], replica, coming_s):
                runs, until_s = replica, coming_s
            else:
                send(states[replica], replica, coming, coming_s)
        if runs != NOBODY:
            before = states[runs].counter[Counter.ITERATIONS]
            if run_replica(states, runs, steps, until_s, coming_s, patience) == LIVELOCK:
                return LIVELOCK
            done = max(states[runs].counter[Counter.ITERATIONS] - before, done)
        steps -= done
    return GOES_ON


@kernel
def held_back(states: tuple[State, ...]) -> int:
    """Find a replica whose policy may have waited for more to come, and has not been asked since; NOBODY: none."""
    for replica in range(states[0].fleet.shape[0] - 1):
        s = states[replica]
        if (
            s.counter[Counter.WAITING] > 0
            and not s.fleet[1 + replica, Site.ASKED]
            and s.clock[Clock.NOW] < s.clock[Clock.HORIZON]
        ):
            s.fleet[1 + replica, Site.ASKED] = 1
            tell(s, Link.ACTS, replica, s.clock[Clock.NOW])
            return replica
    return NOBODY


@kernel
def next_request(s: State) -> int:
    """Return the next request by the horizon, unasked or brought by others; NOBODY: none is known."""
    coming = NOBODY
    if s.fleet[0, Router.UNASKED] < s.fleet[0, Router.UNASKED_END]:
        coming = int(s.fleet[0, Router.UNASKED])
    coming = earlier(s, coming)
    if coming != NOBODY and s.time[coming, Time.ARRIVAL] > s.clock[Clock.HORIZON]:
        return NOBODY
    return coming


@kernel
def chosen(s: State, request: int) -> int:
    """Choose the replica that a request goes to: the one it is meant for, or the first of those with least."""
    if s.fleet[0, Router.RULE] == Rule.BLIND:
        return int(s.request[request, Request.SITE])
    if s.fleet[0, Router.RULE] == Rule.BY_SESSION:
        site = s.request[request, Request.SITE]
        if site != NOBODY and not s.fleet[1 + site, Site.CLOSED]:
            return int(site)
    goes_on = s.fixed[Fixed.HANDED_OVER] > 0 and request >= s.fixed[Fixed.HANDED_OVER]
    return least_of(s, Link.SEEN_DECODING if goes_on else Link.SEEN)


@kernel
def comes_within(s: State, replica: int, request: int, time_s: float) -> bool:
    """Tell whether an answer brings a request during the iteration that begins now, the last one ended."""
    if s.fleet[1 + replica, Site.IDLES] or s.fleet[1 + replica, Site.ROLE] != Role.WHOLE:
        return False
    if request < s.fleet[0, Router.UNASKED_END] or s.clock[Clock.ENDED] != time_s:
        return False
    if s.fleet[1 + replica, Site.ENDS]:
        settle(s, replica)
    return True


@kernel
def is_behind(s: State, replica: int, time_s: float) -> bool:
    """Tell whether a replica has to run before a request comes to it."""
    behind = s.clock[Clock.NOW] < time_s and not s.fleet[1 + replica, Site.IDLES]
    return bool(behind or told(s, Link.ACTS, replica) < time_s)


@kernel
def send(s: State, replica: int, request: int, now: float) -> None:
    """Let a request come to a replica."""
    s.fleet[0, Router.SENT] += 1
    if request < s.fleet[0, Router.UNASKED_END]:
        s.fleet[0, Router.UNASKED] += 1
    else:
        take_first(s)
    s.request[request, Request.SITE] = replica
    if s.fleet[0, Router.RULE] == Rule.BY_SESSION and goes_on(s, request) != NOBODY:
        s.request[goes_on(s, request), Request.SITE] = replica
    if s.fleet[1 + replica, Site.ROLE] == Role.DECODE:
        append(s, s.list.shape[0] + WAITS_FOR_ROOM, request)
        s.counter[Counter.WAITING] += 1
    else:
        join(s, request)
    s.counter[Counter.OUTSTANDING] += 1
    s.clock[Clock.CALM] = 0.0
    show(s, replica, s.counter[Counter.OUTSTANDING], s.counter[Counter.HELD_BEFORE])
    tell(s, Link.ACTS, replica, min(told(s, Link.ACTS, replica), max(s.clock[Clock.NOW], now)))


@kernel
def show(s: State, replica: int, requests: int, blocks: int) -> None:
    """Let the router see what is at a replica; it looks when somebody comes there or is done."""
    load = float(requests)
    if s.fleet[0, Router.RULE] == Rule.BY_KV:
        load = blocks + requests / _MANY  # of equal memory, the fewest requests
    if s.fleet[1 + replica, Site.CLOSED]:
        load = math.inf
    tell(
        s, Link.SEEN_DECODING if s.fleet[1 + replica, Site.ROLE] == Role.DECODE else Link.SEEN, replica, load
    )


@kernel
def settle(s: State, replica: int) -> None:
    """End the last iteration: let the router see who is done."""
    c, role = s.counter, s.fleet[1 + replica, Site.ROLE]
    s.fleet[1 + replica, Site.ENDS] = 0
    c[Counter.OUTSTANDING], c[Counter.HELD_BEFORE] = outstanding(s), c[Counter.HELD]
    show(s, replica, c[Counter.OUTSTANDING], c[Counter.HELD])
    acts_s = max(s.clock[Clock.NOW], s.clock[Clock.CALM])
    if role != Role.WHOLE:
        acts_s = min(
            acts_s,
            max(
                s.clock[Clock.NOW],
                next_transfer_s(s, Time.FIRST_TOKEN if role == Role.DECODE else Time.THINK),
            ),
        )
    tell(s, Link.ACTS, replica, acts_s)


@kernel
def run_replica(
    states: tuple[State, ...], replica: int, most: int, until_s: float, coming_s: float, patience: int
) -> int:
    """Let one replica run until then, at most so many iterations, or, where others act at the same time, one."""
    s = states[replica]
    c, clock, row = s.counter, s.clock, 1 + replica
    if s.fleet[row, Site.IDLES]:
        clock[Clock.NOW] = max(clock[Clock.NOW], told(s, Link.ACTS, replica))
    transfer = Time.THINK
    if s.fleet[row, Site.ROLE] == Role.PREFILL:
        let_sent_go(s)
    elif s.fleet[row, Site.ROLE] == Role.DECODE:
        receive(s)
        fetch(states, replica)
        transfer = Time.FIRST_TOKEN
    alone = until_s > clock[Clock.NOW]
    limit = c[Counter.ITERATIONS] + (most if alone else 1)
    until_s = until_s if alone else coming_s
    if s.fleet[row, Site.ROLE] != Role.WHOLE:
        until_s = min(until_s, next_transfer_s(s, transfer))
    seen, calm = c[Counter.OUTSTANDING], clock[Clock.CALM] > clock[Clock.NOW]
    clock[Clock.PAUSE] = until_s
    if s.fixed[Fixed.COASTS] and (calm or admits_nobody(s)):
        coast(s, limit, patience)
    code = loop(states, replica, limit, patience)
    s.fleet[row, Site.IDLES], s.fleet[row, Site.ENDS] = code == IDLE, 0
    here, acts_s = outstanding(s), math.inf
    if code == GOES_ON and alone and c[Counter.ITERATIONS] == limit and clock[Clock.NOW] < clock[Clock.PAUSE]:
        if c[Counter.OUTSTANDING] != seen:
            show(s, replica, c[Counter.OUTSTANDING], c[Counter.HELD_BEFORE])
        return code  # cut short, it goes on before anybody else does
    if code == GOES_ON:
        if s.fixed[Fixed.COASTS] and admits_nobody(s) and clock[Clock.CALM] <= clock[Clock.NOW]:
            clock[Clock.CALM] = calm_until_s(s)
        acts_s = max(clock[Clock.NOW], clock[Clock.CALM])
        if c[Counter.OUTSTANDING] != here:  # which the router sees when the iteration ends
            acts_s, s.fleet[row, Site.ENDS] = clock[Clock.NOW], 1
        if c[Counter.OUTSTANDING] != seen:
            show(s, replica, c[Counter.OUTSTANDING], c[Counter.HELD_BEFORE])
    else:
        acts_s = next_event_s(s) if code == IDLE else math.inf
        c[Counter.OUTSTANDING], c[Counter.HELD_BEFORE] = here, c[Counter.HELD]
        show(s, replica, here, c[Counter.HELD])
    if code != OUT_OF_TIME and s.fleet[row, Site.ROLE] != Role.WHOLE:
        acts_s = min(acts_s, max(clock[Clock.NOW], next_transfer_s(s, transfer)))
    tell(s, Link.ACTS, replica, acts_s)
    return code
