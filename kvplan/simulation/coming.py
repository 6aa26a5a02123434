"""Requests that others bring: turns of a session, which come some time after the one before."""

from kvplan.simulation.kernels import kernel
from kvplan.simulation.state import NOBODY, Clock, Router, State, Time, Turn, in_fleet


@kernel
def comes_before(time_s: float, request: int, other_s: float, other: int) -> bool:
    """Which of two arrives first; of those who come at once, the one of lower number."""
    return bool(time_s < other_s or (time_s == other_s and request < other))


@kernel
def bring(s: State, request: int, time_s: float) -> None:
    """Fix when a request arrives, if it is somebody."""
    if request == NOBODY:
        return
    s.time[request, Time.ARRIVAL] = time_s
    place = s.fleet[0, Router.TO_COME]
    s.fleet[0, Router.TO_COME] += 1
    if in_fleet(s):  # it may be another replica's before this one has done more
        s.clock[Clock.PAUSE] = min(s.clock[Clock.PAUSE], time_s)
    while place > 0:
        above = (place - 1) // 2
        if not comes_before(time_s, request, s.time[above, Time.COMING], s.request[above, Turn.COMING]):
            break
        put(s, place, s.time[above, Time.COMING], s.request[above, Turn.COMING])
        place = above
    put(s, place, time_s, request)


@kernel
def take_first(s: State) -> None:
    """The first of those to come has come."""
    s.fleet[0, Router.TO_COME] -= 1
    size = s.fleet[0, Router.TO_COME]
    last_s, last, place = s.time[size, Time.COMING], s.request[size, Turn.COMING], 0
    while 2 * place + 1 < size:
        below = 2 * place + 1
        one_s, one = s.time[below, Time.COMING], s.request[below, Turn.COMING]
        if below + 1 < size and comes_before(
            s.time[below + 1, Time.COMING], s.request[below + 1, Turn.COMING], one_s, one
        ):
            below += 1
            one_s, one = s.time[below, Time.COMING], s.request[below, Turn.COMING]
        if comes_before(last_s, last, one_s, one):
            break
        put(s, place, one_s, one)
        place = below
    put(s, place, last_s, last)


@kernel
def put(s: State, place: int, time_s: float, request: int) -> None:
    """Have a request stand at a place of the heap."""
    s.time[place, Time.COMING] = time_s
    s.request[place, Turn.COMING] = request


@kernel
def skip(s: State, request: int) -> int:
    """What would have followed a request never comes, but something else may; returns how many never do."""
    instead, never = s.request[request, Turn.INSTEAD], 0
    following = s.request[request, Turn.FOLLOWING]
    while following != NOBODY and following != instead:
        never += 1
        following = s.request[following, Turn.FOLLOWING]
    bring(s, instead, s.clock[Clock.NOW] + s.time[request, Time.THINK])
    return never
