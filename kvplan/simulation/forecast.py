"""Expected memory of residents at later ticks: the future-memory check of policies that plan ahead (FC 4.1.1).

For policies with one group. A resident grows by a token each tick and leaves at the end of the stages expected of it,
so `State.future` has the blocks of each later tick; those held now are counted, not expected. An admission costs a
step for each stage expected of the request, whoever else is resident. Where memory would have lacked for the request
that is next in line, it mostly lacks in the next iteration too: that tick is looked at first.
"""

from kvplan.simulation.actions import blocks_of, due_slot, evict, fits
from kvplan.simulation.state import NOBODY, Counter, Fixed, Group, Request, State, kernel


@kernel
def begin_tick(s: State) -> None:
    """Expect nothing of this tick any more, after `advance`."""
    s.future[s.group[0, Group.TICK] % s.future.shape[0]] = 0


@kernel
def fits_to_the_end(s: State, request: int) -> bool:
    """Tell whether a queued request fits now, and beside the expected residents until its own expected end."""
    if not fits(s, s.request[request, Request.FIRST_WEIGHT]):
        return False
    future, block = s.future, s.fixed[Fixed.BLOCK]
    size, tick, weight = future.shape[0], s.group[0, Group.TICK], s.request[request, Request.FIRST_WEIGHT]
    later = s.counter[Counter.LACKING] - tick
    stays = 0 < later < s.request[request, Request.EXPECTED]
    if stays and future[(tick + later) % size] + blocks_of(s, weight + later) > s.fixed[Fixed.CAPACITY]:
        return False
    taken = blocks_of(s, weight)
    spare, free = taken * block - weight, s.fixed[Fixed.CAPACITY] - taken
    slot = tick % size
    for stage in range(1, s.request[request, Request.EXPECTED]):
        slot += 1
        if slot == size:
            slot = 0
        if spare == 0:
            free -= 1
            spare = block
        spare -= 1
        if future[slot] > free:
            s.counter[Counter.LACKING] = tick + stage
            return False
    return True


@kernel
def expect(s: State, request: int, sign: int) -> None:
    """Add the expected blocks of a resident at later ticks, or with -1 subtract them."""
    future, block = s.future, s.fixed[Fixed.BLOCK]
    size = future.shape[0]
    stage = s.group[0, Group.TICK] - s.request[request, Request.START]
    weight = s.request[request, Request.FIRST_WEIGHT] + stage
    taken = blocks_of(s, weight)
    spare = taken * block - weight
    slot = s.group[0, Group.TICK] % size
    for _ in range(s.request[request, Request.EXPECTED] - 1 - stage):
        slot += 1
        if slot == size:
            slot = 0
        if spare == 0:
            taken += 1
            spare = block
        spare -= 1
        future[slot] += sign * taken


@kernel
def give_up(s: State, request: int) -> None:
    """Evict a request; from now on it is expected to be at least as long as it was."""
    expect(s, request, -1)
    stages = s.group[0, Group.TICK] - s.request[request, Request.START]
    if stages > s.request[request, Request.EXPECTED]:
        s.request[request, Request.EXPECTED] = stages
    evict(s, request)


@kernel
def end_tick(s: State) -> None:
    """Expect nothing more of those who will be done after the batch that is formed."""
    request = s.ring[due_slot(s, 0, s.group[0, Group.TICK])]
    while request != NOBODY:
        expect(s, request, -1)
        request = s.request[request, Request.DUE_AFTER]
