"""A prefix cache beside windows and chunks, as vLLM's: groups of layers with tables of blocks, on one pool.

It mirrors `BlockPool` of `vllm/v1/core/block_pool.py`, `HybridKVCacheCoordinator.find_longest_cache_hit` of
`kv_cache_coordinator.py` and `remove_skipped_blocks` of the managers in `single_type_kv_cache_manager.py`, vLLM 0.19.

A prompt is found as far as all groups have it: full attention needs every block, a window those of the tokens before
the next one that it reaches (fewer at the beginning), a chunk those since it began. What a request has passed is free
at once, and stays known until its room is needed; so is what it leaves in the end, the last block first. A state with
checkpoints (`MambaManager` with `--mamba-cache-mode all`) is needed at the last token found alone, so as a window of 2;
one that an iteration makes known is not found in it, and whoever would find it waits for the next. A block is
known by its group, its place and the stream that it ends in, which says all that is before it; of equal ones that
registered first is found. Each block that others may look for is followed on its own, as those of a window are not a
beginning, and has a row of `State.pool`; one behind all rows is the end and the beginning of the queue of free blocks.

What comes behind all that a request shares is in no other sequence. While it runs nobody looks for these blocks, so
those that it holds are only counted; once it is done nobody ever does, and each row in the queue has the number of such
blocks ahead of it. Where it is preempted they get rows, for it looks for them itself, as for what it has passed.
"""

from kvplan.simulation.prefix_cache import count_hits
from kvplan.simulation.state import (
    ANEW,
    NOBODY,
    UNLISTED,
    Block,
    Blocks,
    Counter,
    Fixed,
    Kept,
    Request,
    State,
    Stream,
    kernel,
    sequence,
)

# ---------------------------------------------------------------------------------------- the queue and what is known


@kernel
def take(s: State, blocks: int) -> None:
    """Take so many of the first free blocks; what they held is forgotten."""
    c, last = s.counter, s.pool.shape[0] - 1
    some = min(blocks, c[Counter.BLANK])
    c[Counter.BLANK] -= some
    blocks -= some
    c[Counter.FREE] -= blocks
    while blocks > 0:
        first = s.pool[last, Block.BEHIND]
        some = min(blocks, s.pool[first, Block.AHEAD])
        s.pool[first, Block.AHEAD] -= some
        blocks -= some
        if blocks > 0:
            leave_queue(s, first)
            forget(s, first)
            blocks -= 1


@kernel
def leave_queue(s: State, block: int) -> None:
    """Take a block out of the queue; it still counts as free."""
    front, behind = s.pool[block, Block.IN_FRONT], s.pool[block, Block.BEHIND]
    s.pool[front, Block.BEHIND], s.pool[behind, Block.IN_FRONT] = behind, front
    s.pool[behind, Block.AHEAD] += s.pool[block, Block.AHEAD]


@kernel
def give_back(s: State, block: int) -> None:
    """Hold a block no more; one that nobody holds is free: the last of the queue, the first if nothing is known."""
    s.pool[block, Block.HOLDERS] -= 1
    if s.pool[block, Block.HOLDERS] > 0:
        return
    s.counter[Counter.HELD] -= 1
    if s.pool[block, Block.KNOWN] == NOBODY:
        s.counter[Counter.BLANK] += 1
        spare(s, block)
        return
    s.counter[Counter.FREE] += 1
    last = s.pool.shape[0] - 1
    front = s.pool[last, Block.IN_FRONT]
    s.pool[block, Block.AHEAD], s.pool[last, Block.AHEAD] = s.pool[last, Block.AHEAD], 0
    s.pool[block, Block.IN_FRONT], s.pool[block, Block.BEHIND] = front, last
    s.pool[front, Block.BEHIND] = s.pool[last, Block.IN_FRONT] = block


@kernel
def new_row(s: State, known: int) -> int:
    """Give a row to a block that a request holds, known by this key, or by nothing if that is NOBODY."""
    last = s.pool.shape[0] - 1
    block = s.pool[last, Block.NEXT]
    s.pool[last, Block.NEXT] = s.pool[block, Block.NEXT]
    s.pool[block, Block.HOLDERS], s.pool[block, Block.KNOWN], s.pool[block, Block.NEXT] = 1, known, UNLISTED
    return int(block)


@kernel
def spare(s: State, block: int) -> None:
    """Take the row of a block back."""
    last = s.pool.shape[0] - 1
    s.pool[block, Block.NEXT], s.pool[last, Block.NEXT] = s.pool[last, Block.NEXT], block


@kernel
def key_at(s: State, request: int, at: int, place: int) -> int:
    """Return what the block in a column of a request's table, at this place, is known by."""
    return int(stream_at(s, request, place) * s.table.shape[1] + at)


@kernel
def found_at(s: State, request: int, place: int, group: int) -> int:
    """Return the block of a group that is found at a place of a request; NOBODY where there is none."""
    known = key_at(s, request, column(s, group, place), place)
    block = s.pool[known % s.pool.shape[0], Block.FIRST]
    while block != NOBODY and s.pool[block, Block.KNOWN] != known:
        block = s.pool[block, Block.NEXT]
    return int(block)


@kernel
def stream_at(s: State, request: int, place: int) -> int:
    """Return the stream that a block of a request ends in."""
    stream = s.request[request, Request.LEAF]
    while s.stream[stream, Stream.BEGIN] > place:
        stream = s.stream[stream, Stream.PARENT]
    return int(stream)


@kernel
def register(s: State, block: int, known: int) -> None:
    """Have a block found by a key, behind those that are known alike."""
    s.pool[block, Block.KNOWN], s.pool[block, Block.NEXT] = known, NOBODY
    s.pool[block, Block.SINCE], s.counter[Counter.NOTED] = s.counter[Counter.ITERATIONS], ANEW
    bucket = known % s.pool.shape[0]
    last = s.pool[bucket, Block.FIRST]
    if last == NOBODY:
        s.pool[bucket, Block.FIRST] = block
        return
    while s.pool[last, Block.NEXT] != NOBODY:
        last = s.pool[last, Block.NEXT]
    s.pool[last, Block.NEXT] = block


@kernel
def forget(s: State, block: int) -> None:
    """Have a block found no more, and take its row back."""
    if s.pool[block, Block.NEXT] != UNLISTED:
        s.counter[Counter.NOTED] = ANEW
        bucket = s.pool[block, Block.KNOWN] % s.pool.shape[0]
        before = s.pool[bucket, Block.FIRST]
        if before == block:
            s.pool[bucket, Block.FIRST] = s.pool[block, Block.NEXT]
        else:
            while s.pool[before, Block.NEXT] != block:
                before = s.pool[before, Block.NEXT]
            s.pool[before, Block.NEXT] = s.pool[block, Block.NEXT]
    spare(s, block)


# --------------------------------------------------------------------------------------------------------- the look-up


@kernel
def passed(s: State, group: int, tokens: int) -> int:
    """Count the leading blocks that a group needs no more once so many tokens are computed."""
    window, chunk = s.kept[group, Kept.WINDOW], s.kept[group, Kept.CHUNK]
    if window > 0:
        return int(max(tokens - window + 1, 0) // s.fixed[Fixed.BLOCK])
    if chunk > 0:
        return int(tokens // chunk * chunk // s.fixed[Fixed.BLOCK])
    return 0


@kernel
def hits_in_groups(s: State, request: int) -> int:
    """Count the leading blocks of a waiting request that all groups have; one token at least is left to compute.

    Those whose own tokens have not been computed find the same where they begin alike, until other blocks are known.
    """
    c, places, before = s.counter, (sequence(s, request) - 1) // s.fixed[Fixed.BLOCK], NOBODY
    alike = s.request[request, Request.EVICTIONS] == 0 and places >= s.request[request, Request.ROWS]
    parent = s.stream[s.request[request, Request.LEAF], Stream.PARENT]
    if alike and c[Counter.NOTED] == parent:
        return int(c[Counter.FOUND])
    for group in range(s.kept.shape[0]):
        if keeps_all(s, group):
            places = longest_of(s, request, group, places)
    while places != before:
        before = places
        for group in range(s.kept.shape[0]):
            if not keeps_all(s, group):
                places = longest_of(s, request, group, places)
    c[Counter.NOTED], c[Counter.FOUND] = parent if alike else ANEW, places
    return int(places)


@kernel
def keeps_all(s: State, group: int) -> bool:
    return bool(s.kept[group, Kept.WINDOW] == 0 and s.kept[group, Kept.CHUNK] == 0)


@kernel
def longest_of(s: State, request: int, group: int, most: int) -> int:
    """Find how far, at most so many blocks, one group has what a request begins with; the last row notes the blocks."""
    window, row = s.kept[group, Kept.WINDOW], s.table.shape[0] - 1
    if window == 0:
        place = passed(s, group, most * s.fixed[Fixed.BLOCK])
        while place < most:
            block = found_at(s, request, place, group)
            if block == NOBODY:
                return place
            s.table[row, column(s, group, place)] = block
            place += 1
        return place
    wanted, run, place = (window - 2) // s.fixed[Fixed.BLOCK] + 1, 0, most - 1
    while place >= 0 and run < wanted:
        block = found_at(s, request, place, group)
        run = run + 1 if block != NOBODY else 0
        s.table[row, column(s, group, place)] = block
        place -= 1
    return place + 1 + run


@kernel
def idle_in_groups(s: State, found: int) -> int:
    """Count, of the blocks just found that are needed, those that nobody holds."""
    idle, row = 0, s.table.shape[0] - 1
    for group in range(s.kept.shape[0]):
        first = passed(s, group, found * s.fixed[Fixed.BLOCK])
        for at in range(column(s, group, first), column(s, group, found)):
            if s.pool[s.table[row, at], Block.HOLDERS] == 0:
                idle += 1
    return idle


@kernel
def state_is_new(s: State, request: int, found: int) -> bool:
    """Tell whether a state that a request would begin with has become known in this iteration, or a copy of it."""
    for group in range(s.kept.shape[0] if found > 0 else 0):
        block = found_at(s, request, found - 1, group) if s.kept[group, Kept.STATE] > 0 else NOBODY
        while block != NOBODY:
            same = s.pool[block, Block.KNOWN] == key_at(s, request, column(s, group, found - 1), found - 1)
            if same and s.pool[block, Block.SINCE] == s.counter[Counter.ITERATIONS]:
                return True
            block = s.pool[block, Block.NEXT]
    return False


# ----------------------------------------------------------------------------------------------------- tables of blocks


@kernel
def column(s: State, group: int, place: int) -> int:
    """Return the column of a place in `State.table`; in the first the rows that are free again name each other."""
    return int(1 + group * ((s.table.shape[1] - 1) // s.kept.shape[0]) + place)


@kernel
def hold_in_groups(s: State, request: int, found: int) -> int:
    """Give a request a table, with what has just been found of it; returns its tokens."""
    c, row = s.counter, s.counter[Counter.SPARE]
    if row == NOBODY:
        row = c[Counter.ROWS]
        c[Counter.ROWS] += 1
    else:
        c[Counter.SPARE] = s.table[row, 0]
    s.request[request, Request.TABLE] = row
    s.request[request, Request.TAKEN] = s.request[request, Request.FULL] = found
    s.request[request, Request.PASSED] = found * s.fixed[Fixed.BLOCK]
    s.request[request, Request.HOLDS] = found * s.kept.shape[0]
    s.request[request, Request.ROWS] = max(s.request[request, Request.ROWS], found)
    for group in range(s.kept.shape[0]):
        first = passed(s, group, found * s.fixed[Fixed.BLOCK])
        for at in range(column(s, group, first), column(s, group, found)):
            block = s.table[row, at] = s.table[s.table.shape[0] - 1, at]
            if s.pool[block, Block.HOLDERS] == 0:
                leave_queue(s, block)
                c[Counter.FREE] -= 1
                c[Counter.HELD] += 1
            s.pool[block, Block.HOLDERS] += 1
    return count_hits(s, request, found)


@kernel
def ask_in_groups(s: State, request: int, begin: int, end: int) -> None:
    """Free what is passed once `begin` tokens are computed, and ask for slots up to `end`."""
    let_pass(s, request, begin)
    more = s.blocks[end, Blocks.FILLED] - s.request[request, Request.HOLDS]
    s.request[request, Request.HOLDS] += more
    s.counter[Counter.HELD] += more


@kernel
def let_pass(s: State, request: int, tokens: int) -> None:
    """Free what a request has passed once so many tokens are computed, the last block first."""
    before = s.request[request, Request.PASSED]
    if s.blocks[tokens, Blocks.PASSED] == s.blocks[before, Blocks.PASSED]:
        return
    s.request[request, Request.PASSED] = tokens
    row, rows = s.request[request, Request.TABLE], s.request[request, Request.ROWS]
    for group in range(s.kept.shape[0]):
        begin, end = passed(s, group, before), passed(s, group, tokens)
        for at in range(column(s, group, max(begin, rows)), column(s, group, end)):
            s.table[row, at] = new_row(s, s.request[request, Request.LEAF] * s.table.shape[1] + at)
        give_back_rows(s, row, column(s, group, begin), column(s, group, end))


@kernel
def give_back_rows(s: State, row: int, begin: int, end: int) -> None:
    """Hold the blocks of some columns no more, the last first."""
    for back in range(end - begin):
        give_back(s, s.table[row, end - 1 - back])


@kernel
def take_in_groups(s: State, request: int, begin: int, end: int) -> None:
    """Take the blocks asked for, and make those known that tokens from `begin` to `end` fill."""
    row, block = s.request[request, Request.TABLE], s.fixed[Fixed.BLOCK]
    first, groups = s.request[request, Request.TAKEN], s.kept.shape[0]
    if s.request[request, Request.HOLDS] == first * groups and begin // block == end // block:
        return
    held, rows = s.request[request, Request.HOLDS] // groups, s.request[request, Request.ROWS]
    take(s, (held - first) * groups)
    for group in range(groups):
        for at in range(column(s, group, first), column(s, group, min(held, rows))):
            s.table[row, at] = new_row(s, NOBODY)
        for place in range(begin // block, min(end // block, rows)):
            at = column(s, group, place)
            register(s, s.table[row, at], key_at(s, request, at, place))
    s.request[request, Request.TAKEN], s.request[request, Request.FULL] = held, end // block


@kernel
def list_own(s: State, request: int) -> None:
    """Have a request that is preempted find its own blocks again: those that it holds, and those that it has passed."""
    row, rows = s.request[request, Request.TABLE], s.request[request, Request.ROWS]
    full = s.request[request, Request.FULL]
    for group in range(s.kept.shape[0]):
        begin = passed(s, group, s.request[request, Request.PASSED])
        for place in range(rows, full):
            at = column(s, group, place)
            known = key_at(s, request, at, place)
            if place >= begin:
                s.table[row, at] = new_row(s, known)
            block = s.table[row, at]
            if s.pool[block, Block.KNOWN] == known and s.pool[block, Block.NEXT] == UNLISTED:
                register(s, block, known)  # else the row of what it has passed is another's by now
    s.request[request, Request.ROWS] = max(rows, full)


@kernel
def leave_groups(s: State, request: int) -> None:
    """Free all that a request holds, group by group, the last block first."""
    c, last = s.counter, s.pool.shape[0] - 1
    row, taken = s.request[request, Request.TABLE], s.request[request, Request.TAKEN]
    c[Counter.HELD] -= s.request[request, Request.HOLDS] - taken * s.kept.shape[0]
    for group in range(s.kept.shape[0]):
        begin = passed(s, group, s.request[request, Request.PASSED])
        rows = min(s.request[request, Request.ROWS], taken)
        own = max(begin, rows)
        known = max(s.request[request, Request.FULL] - own, 0)
        s.pool[last, Block.AHEAD] += known
        c[Counter.FREE] += known
        c[Counter.BLANK] += taken - own - known
        c[Counter.HELD] -= taken - own
        give_back_rows(s, row, column(s, group, begin), column(s, group, rows))
    s.table[row, 0] = c[Counter.SPARE]
    c[Counter.SPARE] = row
