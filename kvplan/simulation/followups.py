"""Arrivals: requests that come by themselves, and those that others bring, some time after they are answered.

An engine looks for requests and begins its next iteration before anybody has read the last one's tokens. So a request
that an answer brings at once comes while that iteration runs, and is not in it; where nothing runs, it begins at once.

Requests brought wait in a heap whose places are the rows of `Time.COMING` and `Request.COMING`.
"""

import math

from kvplan.simulation.queues import append, count
from kvplan.simulation.state import (
    NOBODY,
    Clock,
    Counter,
    Fixed,
    List,
    Request,
    Router,
    State,
    Time,
    extended,
    hosted,
    in_fleet,
    kernel,
    parked_list,
)


@kernel
def release(s: State) -> None:
    """Let all who have arrived by now join a queue."""
    c = s.counter
    while c[Counter.JOINED] < c[Counter.RELEASED]:
        arrival_s = s.time[c[Counter.JOINED], Time.ARRIVAL]
        if arrival_s > s.clock[Clock.NOW] or (s.fixed[Fixed.LAGS] and arrival_s == s.clock[Clock.ENDED]):
            break
        if c[Counter.WAITING] >= s.fixed[Fixed.MOST_WAITING]:
            break
        if extended(s):
            release_brought(s, c[Counter.JOINED])
        join(s, c[Counter.JOINED])
        c[Counter.JOINED] += 1
    if extended(s) and not in_fleet(s):
        release_brought(s, NOBODY)
    if c[Counter.WAITING] > c[Counter.QUEUE_PEAK]:
        c[Counter.QUEUE_PEAK] = c[Counter.WAITING]


@kernel
def release_brought(s: State, before: int) -> None:
    """Let requests that others have brought join, if they come by now, and before another one."""
    while s.fleet[0, Router.TO_COME] > 0:
        if s.time[0, Time.COMING] > s.clock[Clock.NOW] or s.time[0, Time.COMING] == s.clock[Clock.ENDED]:
            return
        request = s.request[0, Request.COMING]
        if before != NOBODY and comes_before(
            s.time[before, Time.ARRIVAL], before, s.time[0, Time.COMING], request
        ):
            return
        join(s, request)
        take_first(s)


@kernel
def join(s: State, request: int) -> None:
    """Put a request that has arrived into its queue."""
    append(s, s.request[request, Request.QUEUE], request)
    s.counter[Counter.WAITING] += 1
    if s.fixed[Fixed.COUNTS_QUEUES]:
        count(s, s.request[request, Request.QUEUE], 1)


@kernel
def next_arrival(s: State) -> int:
    """Return the next request to come of those whose arrival is known; NOBODY: there is none."""
    c, unasked = s.counter, NOBODY
    if c[Counter.JOINED] < c[Counter.RELEASED] and c[Counter.WAITING] < s.fixed[Fixed.MOST_WAITING]:
        unasked = int(c[Counter.JOINED])
    if not extended(s) or in_fleet(s):
        return unasked
    return earlier(s, unasked)


@kernel
def earlier(s: State, unasked: int) -> int:
    """Return the earlier of this request and the first one brought; either may be NOBODY."""
    if s.fleet[0, Router.TO_COME] == 0:
        return unasked
    brought, brought_s = s.request[0, Request.COMING], s.time[0, Time.COMING]
    if unasked == NOBODY or comes_before(brought_s, brought, s.time[unasked, Time.ARRIVAL], unasked):
        return int(brought)
    return unasked


@kernel
def next_event_s(s: State) -> float:
    """Return the time of the next request, or end of load; infinite where neither is known."""
    coming, event_s = next_arrival(s), math.inf
    if coming != NOBODY:
        event_s = s.time[coming, Time.ARRIVAL]
    if hosted(s) and s.list[parked_list(s, 0), List.HEAD] != NOBODY:
        event_s = min(event_s, s.time[s.list[parked_list(s, 0), List.HEAD], Time.READY])
    return event_s


@kernel
def more_to_come(s: State) -> bool:
    """Tell whether an arrival is still ahead whose time is known, or beyond the horizon."""
    if in_fleet(s) and (
        s.fleet[0, Router.UNASKED] < s.fleet[0, Router.UNASKED_END] or s.fleet[0, Router.TO_COME] > 0
    ):
        return True
    return bool(next_arrival(s) != NOBODY or s.fixed[Fixed.MORE_LATER])


# ------------------------------------------------------------------------------------- requests that others bring


@kernel
def comes_before(time_s: float, request: int, other_s: float, other: int) -> bool:
    """Tell whether the first of two arrives first; at the same time, the one of lower number does."""
    return bool(time_s < other_s or (time_s == other_s and request < other))


@kernel
def bring(s: State, request: int, time_s: float) -> None:
    """Fix the arrival of a request, if it is one."""
    if request == NOBODY:
        return
    s.time[request, Time.ARRIVAL] = time_s
    place = s.fleet[0, Router.TO_COME]
    s.fleet[0, Router.TO_COME] += 1
    if in_fleet(s):  # it may be another replica's before this one has done more
        s.clock[Clock.PAUSE] = min(s.clock[Clock.PAUSE], time_s)
    while place > 0:
        above = (place - 1) // 2
        if not comes_before(time_s, request, s.time[above, Time.COMING], s.request[above, Request.COMING]):
            break
        put(s, place, s.time[above, Time.COMING], s.request[above, Request.COMING])
        place = above
    put(s, place, time_s, request)


@kernel
def goes_on(s: State, request: int) -> int:
    """Return the next turn of a request's session; NOBODY after the last, of one that was sent out too."""
    following = s.request[request, Request.FOLLOWING]
    if s.fixed[Fixed.TURNS] > 1 and following == s.request[request, Request.INSTEAD]:
        return NOBODY
    return int(following)


@kernel
def follow(s: State, request: int, following: int, now: float) -> None:
    """Bring what follows a request think time after, and at once those it sends out; it waits for these, too.

    Meanwhile its FINISH is minus the time at which it comes if it waits for no other.
    """
    due_s = now + s.time[request, Time.THINK]
    if s.fixed[Fixed.TURNS] == 1 or following == NOBODY:
        bring(s, following, due_s)
        return
    if goes_on(s, request) == following:
        sent = s.request[request, Request.BESIDE]
        while sent != NOBODY and s.request[following, Request.AWAITED] > 1:
            bring(s, sent, now)
            sent = s.request[sent, Request.BESIDE]
    s.request[following, Request.AWAITED] -= 1
    if not -s.time[following, Time.FINISH] >= due_s:  # NaN before the first
        s.time[following, Time.FINISH] = -due_s
    if s.request[following, Request.AWAITED] == 0:
        bring(s, following, -s.time[following, Time.FINISH])
        s.time[following, Time.FINISH] = math.nan


@kernel
def take_first(s: State) -> None:
    """Remove the first of those to come."""
    s.fleet[0, Router.TO_COME] -= 1
    size = s.fleet[0, Router.TO_COME]
    last_s, last, place = s.time[size, Time.COMING], s.request[size, Request.COMING], 0
    while 2 * place + 1 < size:
        below = 2 * place + 1
        child_s, child = s.time[below, Time.COMING], s.request[below, Request.COMING]
        if below + 1 < size and comes_before(
            s.time[below + 1, Time.COMING], s.request[below + 1, Request.COMING], child_s, child
        ):
            below += 1
            child_s, child = s.time[below, Time.COMING], s.request[below, Request.COMING]
        if comes_before(last_s, last, child_s, child):
            break
        put(s, place, child_s, child)
        place = below
    put(s, place, last_s, last)


@kernel
def put(s: State, place: int, time_s: float, request: int) -> None:
    """Have a request stand at a place of the heap."""
    s.time[place, Time.COMING] = time_s
    s.request[place, Request.COMING] = request


@kernel
def skip(s: State, request: int) -> int:
    """Skip what would have followed a request, and bring what comes instead; return how many never come."""
    instead, never = s.request[request, Request.INSTEAD], 0
    following = s.request[request, Request.FOLLOWING]
    last = request
    while following != NOBODY and following != instead:
        never += 1 + turns_sent(s, last, following)
        last, following = following, s.request[following, Request.FOLLOWING]
    follow(s, request, instead, s.clock[Clock.NOW])
    return never


@kernel
def turns_sent(s: State, request: int, following: int) -> int:
    """Count the turns of all whom a request would send out before what follows it."""
    if s.fixed[Fixed.TURNS] == 1 or s.request[following, Request.AWAITED] == 1:
        return 0
    turns, sent = 0, s.request[request, Request.BESIDE]
    while sent != NOBODY:
        turn = sent
        while turn != NOBODY:
            turns += 1
            turn = goes_on(s, turn)
        sent = s.request[sent, Request.BESIDE]
    return turns
