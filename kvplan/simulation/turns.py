"""What requests hold where layers keep KV of several kinds, looked up when it changes.

What a member of the one group holds, and by how much the context that it reads grows, changes in few ticks, which its
tokens tell. Those are its turns: it is noted at the next one, so that a tick costs what changes in it.
"""

from kvplan.simulation.grouped_cache import ask_in_groups
from kvplan.simulation.state import (
    AHEAD,
    NOBODY,
    Ahead,
    Blocks,
    Counter,
    Group,
    Request,
    State,
    grouped,
    kernel,
    pooled,
    takes_turns,
)


@kernel
def compute(s: State, request: int, begin: int, end: int) -> None:
    """Hold, of layers of several kinds, what a step takes that has computed `begin` tokens and has slots for `end`."""
    if grouped(s):
        ask_in_groups(s, request, begin, end)
        return
    blocks = s.blocks[end, Blocks.FILLED] - s.blocks[begin, Blocks.PASSED]
    if pooled(s):
        s.counter[Counter.WINDOWED] += blocks - s.request[request, Request.HOLDS_WINDOWS]
        s.request[request, Request.HOLDS_WINDOWS] = blocks
        blocks = s.blocks[end, Blocks.FILLED]
    s.counter[Counter.HELD] += blocks - s.request[request, Request.HOLDS]
    s.request[request, Request.HOLDS] = blocks


@kernel
def step_of_context(s: State, tokens: int) -> float:
    """Return how much more a request of so many tokens reads than one of a token less."""
    return float(s.context[tokens] - s.context[max(tokens - 1, 0)])


@kernel
def note_turn(s: State, request: int, tick: int) -> None:
    """Note that a member is looked up at a tick, less than `AHEAD` from now."""
    place = tick & (AHEAD - 1)
    first = s.turn[place]
    s.request[request, Request.TURN] = tick
    s.request[request, Request.TURN_BEFORE], s.request[request, Request.TURN_AFTER] = NOBODY, first
    if first != NOBODY:
        s.request[first, Request.TURN_BEFORE] = request
    s.turn[place] = request


@kernel
def drop_turn(s: State, request: int) -> None:
    """Take that note back."""
    left, right = s.request[request, Request.TURN_BEFORE], s.request[request, Request.TURN_AFTER]
    if left == NOBODY:
        s.turn[s.request[request, Request.TURN] & (AHEAD - 1)] = right
    else:
        s.request[left, Request.TURN_AFTER] = right
    if right != NOBODY:
        s.request[right, Request.TURN_BEFORE] = left


@kernel
def look_ahead(s: State, tick: int) -> None:
    """Look up what the members of the one group hold, and add to the context, in the next tick."""
    note_next_turns(s, tick - 1)
    step, holds, takes = s.ahead[Ahead.STEP], 0, 0
    request = s.turn[tick & (AHEAD - 1)]
    while request != NOBODY:
        tokens = s.request[request, Request.FIRST_WEIGHT] + tick - s.request[request, Request.START]
        more = s.blocks[tokens, Blocks.FILLED] - s.blocks[tokens - 1, Blocks.PASSED]
        more -= s.request[request, Request.HOLDS]
        holds, takes = holds + more, takes + max(more, 0)
        step = step + step_of_context(s, tokens) - step_of_context(s, tokens - 1)
        request = s.request[request, Request.TURN_AFTER]
    s.ahead[Ahead.NEXT_STEP], s.ahead[Ahead.MORE], s.ahead[Ahead.TAKES] = step, holds, takes


@kernel
def turn(s: State, tick: int, suffice: bool) -> None:
    """Let a tick that was looked at come; where blocks suffice, whose turn it is takes some, or frees them."""
    request = s.turn[tick & (AHEAD - 1)]
    while request != NOBODY and suffice:
        tokens = s.request[request, Request.FIRST_WEIGHT] + tick - s.request[request, Request.START]
        compute(s, request, tokens - 1, tokens)
        request = s.request[request, Request.TURN_AFTER]
    s.ahead[Ahead.STEP] = s.ahead[Ahead.NEXT_STEP]
    s.ahead[Ahead.READS] += s.ahead[Ahead.STEP]


@kernel
def note_next_turns(s: State, tick: int) -> None:
    """Note the next turns of those whose turn it was at a tick."""
    place = tick & (AHEAD - 1)
    request = s.turn[place]
    s.turn[place] = NOBODY
    while request != NOBODY:
        following = s.request[request, Request.TURN_AFTER]
        tokens = s.request[request, Request.FIRST_WEIGHT] + tick - s.request[request, Request.START]
        note_turn(s, request, tick + min(s.blocks[tokens, Blocks.TURNS] - tokens, AHEAD - 1))
        request = following


@kernel
def is_turn(s: State, request: int) -> bool:
    """Tell whether what a member of the one group holds changes in this tick."""
    changes = s.request[request, Request.TURN] == s.group[0, Group.TICK]
    return bool(changes or not (takes_turns(s) or grouped(s)))
