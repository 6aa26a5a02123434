"""A prefix cache beside windows and chunks, as vLLM's: groups of layers with tables of blocks, on one pool.

It mirrors `BlockPool` of `vllm/v1/core/block_pool.py`, `HybridKVCacheCoordinator.find_longest_cache_hit` of
`kv_cache_coordinator.py` and `remove_skipped_blocks` of the managers in `single_type_kv_cache_manager.py`, vLLM 0.19.

A prompt is found as far as all groups have it: full attention needs every block, a window those of the tokens before
the next one that it reaches (fewer at the beginning), a chunk those since it began. What a request has passed is free
at once, and stays known until its room is needed; so is what it leaves in the end, the last block first. A state with
checkpoints (`MambaManager` with `--mamba-cache-mode all`) is needed at the last token found alone, so as a window of 2;
one that an iteration makes known is not found in it, and whoever would find it waits for the next. A block is
known by its group, its place and the stream that it ends in, which says all that is before it; of equal ones that
registered first is found. Each block is followed on its own, as those of a window are not a beginning.

`State.pool` has a row for each block, and one behind them which is the end and the beginning of the queue of free ones.
"""

from kvplan.simulation.prefix_cache import count_hits
from kvplan.simulation.state import (
    NOBODY,
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
def take_first(s: State) -> int:
    """Take the first free block; what it held is forgotten."""
    block = s.pool[s.pool.shape[0] - 1, Block.BEHIND]
    leave_queue(s, block)
    if s.pool[block, Block.STREAM] != NOBODY:
        forget(s, block)
        s.counter[Counter.FREE] -= 1
    s.pool[block, Block.HOLDERS] = 1
    return int(block)


@kernel
def leave_queue(s: State, block: int) -> None:
    front, behind = s.pool[block, Block.IN_FRONT], s.pool[block, Block.BEHIND]
    s.pool[front, Block.BEHIND], s.pool[behind, Block.IN_FRONT] = behind, front


@kernel
def give_back(s: State, block: int) -> None:
    """Hold a block no more; one that nobody holds is free: the last of the queue, the first if nothing is known."""
    s.pool[block, Block.HOLDERS] -= 1
    if s.pool[block, Block.HOLDERS] > 0:
        return
    s.counter[Counter.HELD] -= 1
    front = behind = s.pool.shape[0] - 1
    if s.pool[block, Block.STREAM] == NOBODY:
        behind = s.pool[front, Block.BEHIND]
    else:
        s.counter[Counter.FREE] += 1
        front = s.pool[behind, Block.IN_FRONT]
    s.pool[block, Block.IN_FRONT], s.pool[block, Block.BEHIND] = front, behind
    s.pool[front, Block.BEHIND] = s.pool[behind, Block.IN_FRONT] = block


@kernel
def bucket_of(s: State, stream: int, place: int, group: int) -> int:
    """Return the row of the pool that heads the list of blocks among which one known so is."""
    return int((stream * 1_000_003 + group * 104_729 + place) % s.pool.shape[0])


@kernel
def found_at(s: State, request: int, place: int, group: int) -> int:
    """Return the block of a group that is found at a place of a request; NOBODY where there is none."""
    stream = stream_at(s, request, place)
    block = s.pool[bucket_of(s, stream, place, group), Block.FIRST]
    while block != NOBODY and (
        s.pool[block, Block.STREAM] != stream
        or s.pool[block, Block.PLACE] != place
        or s.pool[block, Block.GROUP] != group
    ):
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
def register(s: State, block: int, stream: int, place: int, group: int) -> None:
    """Make a block known, behind those that are known alike."""
    s.pool[block, Block.STREAM], s.pool[block, Block.PLACE] = stream, place
    s.pool[block, Block.GROUP], s.pool[block, Block.NEXT] = group, NOBODY
    s.pool[block, Block.SINCE] = s.counter[Counter.ITERATIONS]
    bucket = bucket_of(s, stream, place, group)
    last = s.pool[bucket, Block.FIRST]
    if last == NOBODY:
        s.pool[bucket, Block.FIRST] = block
        return
    while s.pool[last, Block.NEXT] != NOBODY:
        last = s.pool[last, Block.NEXT]
    s.pool[last, Block.NEXT] = block


@kernel
def forget(s: State, block: int) -> None:
    bucket = bucket_of(s, s.pool[block, Block.STREAM], s.pool[block, Block.PLACE], s.pool[block, Block.GROUP])
    s.pool[block, Block.STREAM] = NOBODY
    before = s.pool[bucket, Block.FIRST]
    if before == block:
        s.pool[bucket, Block.FIRST] = s.pool[block, Block.NEXT]
        return
    while s.pool[before, Block.NEXT] != block:
        before = s.pool[before, Block.NEXT]
    s.pool[before, Block.NEXT] = s.pool[block, Block.NEXT]


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
    """Count the leading blocks of a waiting request that all groups have; one token at least is left to compute."""
    places, before = (sequence(s, request) - 1) // s.fixed[Fixed.BLOCK], NOBODY
    for group in range(s.kept.shape[0]):
        if keeps_all(s, group):
            places = longest_of(s, request, group, places)
    while places != before:
        before = places
        for group in range(s.kept.shape[0]):
            if not keeps_all(s, group):
                places = longest_of(s, request, group, places)
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
        for place in range(passed(s, group, found * s.fixed[Fixed.BLOCK]), found):
            if s.pool[s.table[row, column(s, group, place)], Block.HOLDERS] == 0:
                idle += 1
    return idle


@kernel
def state_is_new(s: State, request: int, found: int) -> bool:
    """Tell whether a state that a request would begin with has become known in this iteration, or a copy of it."""
    for group in range(s.kept.shape[0] if found > 0 else 0):
        block = found_at(s, request, found - 1, group)
        stream = stream_at(s, request, found - 1)
        while block != NOBODY and s.kept[group, Kept.STATE] > 0:
            place, since = s.pool[block, Block.PLACE], s.pool[block, Block.SINCE]
            same = s.pool[block, Block.STREAM] == stream and s.pool[block, Block.GROUP] == group
            if same and place == found - 1 and since == s.counter[Counter.ITERATIONS]:
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
    s.request[request, Request.TAKEN], s.request[request, Request.PASSED] = found, 0
    s.request[request, Request.HOLDS] = found * s.kept.shape[0]
    for group in range(s.kept.shape[0]):
        skipped = passed(s, group, found * s.fixed[Fixed.BLOCK])
        for place in range(found):
            block = NOBODY
            if place >= skipped:
                block = s.table[s.table.shape[0] - 1, column(s, group, place)]
                if s.pool[block, Block.HOLDERS] == 0:
                    leave_queue(s, block)
                    c[Counter.FREE] -= 1
                    c[Counter.HELD] += 1
                s.pool[block, Block.HOLDERS] += 1
            s.table[row, column(s, group, place)] = block
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
    row = s.request[request, Request.TABLE]
    if s.blocks[tokens, Blocks.PASSED] == s.request[request, Request.PASSED]:
        return
    s.request[request, Request.PASSED] = s.blocks[tokens, Blocks.PASSED]
    for group in range(s.kept.shape[0]):
        place = min(passed(s, group, tokens), s.request[request, Request.TAKEN]) - 1
        while place >= 0 and s.table[row, column(s, group, place)] != NOBODY:
            give_back(s, s.table[row, column(s, group, place)])
            s.table[row, column(s, group, place)] = NOBODY
            place -= 1


@kernel
def take_in_groups(s: State, request: int, begin: int, end: int) -> None:
    """Take the blocks asked for, and make those known that tokens from `begin` to `end` fill."""
    row, block = s.request[request, Request.TABLE], s.fixed[Fixed.BLOCK]
    first, groups = s.request[request, Request.TAKEN], s.kept.shape[0]
    if s.request[request, Request.HOLDS] == first * groups and begin // block == end // block:
        return
    held = s.request[request, Request.HOLDS] // groups
    for group in range(s.kept.shape[0]):
        for place in range(first, held):
            s.table[row, column(s, group, place)] = take_first(s)
    for group in range(s.kept.shape[0]):
        for place in range(begin // block, end // block):
            full = s.table[row, column(s, group, place)]
            if full != NOBODY:
                register(s, full, stream_at(s, request, place), place, group)
    s.request[request, Request.TAKEN] = held


@kernel
def leave_groups(s: State, request: int) -> None:
    """Free all that a request holds, group by group, the last block first."""
    row, taken = s.request[request, Request.TABLE], s.request[request, Request.TAKEN]
    s.counter[Counter.HELD] -= s.request[request, Request.HOLDS] - taken * s.kept.shape[0]
    for group in range(s.kept.shape[0]):
        for back in range(taken):
            block = s.table[row, column(s, group, taken - 1 - back)]
            if block != NOBODY:
                give_back(s, block)
    s.table[row, 0] = s.counter[Counter.SPARE]
    s.counter[Counter.SPARE] = row
