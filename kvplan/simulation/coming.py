"""Requests that others bring: turns of a session, which come some time after the one before."""

from kvplan.simulation.kernels import kernel
from kvplan.simulation.state import ARRIVAL, COMING, FOLLOWING, INSTEAD, NOBODY, NOW, THINK, TO_COME, State


@kernel
def comes_before(s: State, one: int, other: int) -> bool:
    """Which of two arrives first; of those who come at once, the one of lower number."""
    a, b = s.time[one, ARRIVAL], s.time[other, ARRIVAL]
    return bool(a < b or (a == b and one < other))


@kernel
def bring(s: State, request: int, time_s: float) -> None:
    """Fix when a request arrives, if it is somebody."""
    if request == NOBODY:
        return
    s.time[request, ARRIVAL] = time_s
    place = s.counter[TO_COME]
    s.counter[TO_COME] += 1
    while place > 0 and comes_before(s, request, s.request[(place - 1) // 2, COMING]):
        s.request[place, COMING] = s.request[(place - 1) // 2, COMING]
        place = (place - 1) // 2
    s.request[place, COMING] = request


@kernel
def take_first(s: State) -> None:
    """The first of those to come has come."""
    s.counter[TO_COME] -= 1
    size = s.counter[TO_COME]
    last, place = s.request[size, COMING], 0
    while 2 * place + 1 < size:
        below = 2 * place + 1
        if below + 1 < size and comes_before(s, s.request[below + 1, COMING], s.request[below, COMING]):
            below += 1
        if comes_before(s, last, s.request[below, COMING]):
            break
        s.request[place, COMING] = s.request[below, COMING]
        place = below
    s.request[place, COMING] = last


@kernel
def skip(s: State, request: int) -> int:
    """What would have followed a request never comes, but something else may; returns how many never do."""
    instead, never = s.request[request, INSTEAD], 0
    following = s.request[request, FOLLOWING]
    while following != NOBODY and following != instead:
        never += 1
        following = s.request[following, FOLLOWING]
    bring(s, instead, s.clock[NOW] + s.time[request, THINK])
    return never
