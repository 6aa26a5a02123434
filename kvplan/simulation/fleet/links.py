"""KV on its way between replicas, and trees that say whose turn it is.

A decode replica keeps two further lists, behind those of its policy: requests that wait for room, and requests whose
KV is on its way. It allocates first; then the KV goes over the links of both replicas, one transfer at a time on each,
and is held on both sides until it is over. A prefill replica keeps a list of those that are being fetched.

Each column of `State.link` is a binary tree of what stands for the replicas: the last half of the rows are replicas,
the children of row i are 2i and 2i + 1, the root is row 1, and each node has the lesser of its children, and, WHOSE
columns further, the replica that has it.
"""

import math

from kvplan.simulation.actions import blocks_of, free
from kvplan.simulation.queues import append, put_first, take_out
from kvplan.simulation.state import NOBODY, Clock, Counter, Fixed, Link, List, Request, State, Time, kernel

WAITS_FOR_ROOM, ON_ITS_WAY = -2, -1  # of `State.list`; of a prefill replica the last one alone


@kernel
def told(s: State, column: int, replica: int) -> float:
    """Return what stands for a replica."""
    return float(s.link[s.link.shape[0] // 2 + replica, column])


@kernel
def tell(s: State, column: int, replica: int, value: float) -> None:
    """Put something else there."""
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
    """Free what has gone to a decode replica by now."""
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
    """Return when the next transfer of a replica ends, by a column of `State.time`; infinity: there is none."""
    request = s.list[s.list.shape[0] + ON_ITS_WAY, List.HEAD]
    return math.inf if request == NOBODY else float(s.time[request, column])
