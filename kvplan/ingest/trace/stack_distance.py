"""How large a prefix cache has to be to find a block again: LRU stack distances, all cache sizes in one pass.

An LRU cache of M tokens holds what was used last, M tokens of it. So a block is found by every cache that is at least
as large as what was used since the block was, itself included: its stack distance. One pass over a trace gives the hits
of caches of every size (Mattson, Gecsei, Slutz, Traiger 1970). A tree of sums over the order of use (Fenwick 1994)
makes that O(N log N).
"""

import sys
from collections.abc import Callable
from functools import cache
from typing import NamedTuple

import numpy as np

from kvplan import compiling
from kvplan.model import FloatArray, IntArray

_COMPILE_FROM = 20_000  # references; below that compiling takes longer than it saves


def stack_distances(
    node: IntArray, begin: IntArray, looked_up: IntArray, private_tokens: IntArray, block_tokens: int
) -> IntArray:
    """Tokens that a cache must hold to find each block; 0 for those that no look-up can find.

    A request looks its leading blocks up at once, then uses all of its own, the first one last: engines free the last
    block of a request first. So a block is never nearer than the one before it, and what is found leads the prompt.

    Parameters
    ----------
    node : ndarray of int64, shape (n_references,)
        Blocks of the requests one after the other, numbered from 0; the same number for the same one after the same.
    begin : ndarray of int64, shape (n_requests + 1,)
        Where each request's blocks begin.
    looked_up : ndarray of int64, shape (n_requests,)
        Leading blocks that can be found, since at least one token is computed.
    private_tokens : ndarray of int64, shape (n_requests,), tokens
        What else each leaves in the cache, and nobody asks for.

    References
    ----------
    Mattson et al., "Evaluation techniques for storage hierarchies", IBM Systems Journal 9(2), 1970.

    Examples
    --------
    Two requests for the same block of 16 tokens, with 4 tokens of the first beside it and 10 more of another between:

    >>> node, begin = np.array([0, 0]), np.array([0, 1, 1, 2])
    >>> stack_distances(node, begin, np.array([1, 0, 1]), np.array([4, 10, 0]), 16).tolist()
    [0, 26]
    """
    distances = np.zeros(node.size, dtype=np.int64)
    blocks = int(node.max()) + 1 if node.size else 0
    used = np.full(blocks, -1, dtype=np.int64)
    sums = np.zeros(node.size + private_tokens.size + 1, dtype=np.int64)
    fill = _compiled() if node.size >= _COMPILE_FROM else _fill
    size = np.array([block_tokens])
    fill(_State(node, begin, looked_up, private_tokens, size, used, sums, distances))
    return distances


def hit_curve(distances: IntArray, block_tokens: int, prompt_tokens: float) -> tuple[IntArray, FloatArray]:
    """Cache sizes at which more is found, tokens, and the share of the prompt tokens found by each.

    Examples
    --------
    >>> [found.tolist() for found in hit_curve(np.array([0, 26, 40, 26]), 16, 100)]
    [[26, 40], [0.32, 0.48]]
    """
    size, count = np.unique(distances[distances > 0], return_counts=True)
    return size, np.cumsum(count) * block_tokens / prompt_tokens


def knots(size: IntArray, ratio: FloatArray, within: float, most: int) -> IntArray:
    """Which points of a curve from (0, 0) make straight lines that are `within` it; `most` of them, the last included.

    Examples
    --------
    >>> knots(np.array([10, 20, 30, 40]), np.array([0.1, 0.2, 0.3, 0.9]), within=0.01, most=9).tolist()
    [2, 3]
    """
    if not size.size:
        return np.empty(0, dtype=np.int64)
    kept = [size.size - 1]
    while len(kept) < most:
        lines = np.interp(size, [0, *size[kept].tolist()], [0.0, *ratio[kept].tolist()])
        off = np.abs(lines - ratio)
        if off.max() <= within:
            break
        kept = sorted([*kept, int(off.argmax())])
    return np.array(kept)


class _State(NamedTuple):
    """What `_fill` works on: as `stack_distances` has it, and when each block was used last (-1 before).

    `sums` is a Fenwick tree of the tokens used last each time; the block's size stands alone in `block_tokens`.
    """

    node: IntArray
    begin: IntArray
    looked_up: IntArray
    private_tokens: IntArray
    block_tokens: IntArray
    used: IntArray
    sums: IntArray
    distances: IntArray


def _fill(s: _State) -> int:
    node, used, sums, block = s.node, s.used, s.sums, s.block_tokens[0]
    end = s.sums.shape[0]
    now = 0
    total = 0
    for request in range(s.private_tokens.shape[0]):
        first, last = s.begin[request], s.begin[request + 1]
        for i in range(first, first + s.looked_up[request]):
            then = used[node[i]]
            if then < 0:
                break  # nobody has had this one, so nobody has had what follows it
            place = then  # tokens used before that
            older = 0
            while place > 0:
                older += sums[place]
                place -= place & -place
            s.distances[i] = total - older
        place = now + 1
        while place < end:
            sums[place] += s.private_tokens[request]
            place += place & -place
        total += s.private_tokens[request]
        now += 1
        for behind in range(1, last - first + 1):
            i = last - behind
            then = used[node[i]]
            if then < 0:
                total += block
            else:
                place = then + 1
                while place < end:
                    sums[place] -= block
                    place += place & -place
            place = now + 1
            while place < end:
                sums[place] += block
                place += place & -place
            used[node[i]] = now
            now += 1
    return now


@cache
def _compiled() -> Callable[[_State], int]:
    """The same as machine code, kept on disk where that is possible."""
    file = compiling.file("stack-distances", [sys.modules[__name__]])
    found = compiling.compiled(_fill, _State, file, {})
    assert found is not None
    return found
