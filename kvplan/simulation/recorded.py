"""What recorded requests have in common, from the hashes that a trace has of their prompts."""

from collections.abc import Sequence

import numpy as np

from kvplan.model import IntArray
from kvplan.simulation.prefixes import Prefixes


def prefixes_of_hashes(
    hashes: Sequence[Sequence[int]], input_tokens: IntArray, block_tokens: int
) -> Prefixes:
    """Streams of prompts whose blocks are known by hashes; what is generated is each request's own.

    Two prompts have a block in common where their hashes are the same up to it. A tree of hashes, in which blocks that
    are always followed by the same one are a stream.

    Parameters
    ----------
    hashes
        Of each prompt, in order; the last block may be a part of one.
    input_tokens : ndarray of int64, shape (n_requests,)
    block_tokens
        Of the trace: 512 in Mooncake's, 16 in Qwen-Bailian's.

    Examples
    --------
    >>> some = prefixes_of_hashes([[7, 8, 9], [7, 8, 5], [3]], np.array([1300, 1500, 100]), 512)
    >>> some.parent.tolist(), some.end_tokens.tolist(), some.stream.tolist()
    ([-1, 0, 0, -1], [1024, 0, 0, 0], [1, 2, 3])
    """
    step: dict[tuple[int, int], int] = {}  # from a node of the tree of blocks by a hash
    above, depth = [-1], [0]
    goes_on = [0]  # prompts that end in a node, and nodes that follow it
    ends: list[int] = []
    for chain, tokens in zip(hashes, input_tokens.tolist(), strict=True):
        node = 0
        for known_by in chain[
            : tokens // block_tokens
        ]:  # of a part of a block nobody else can have all tokens
            found = step.get((node, known_by))
            if found is None:
                found = step[node, known_by] = len(above)
                above.append(node)
                depth.append(depth[node] + 1)
                goes_on.append(0)
                goes_on[node] += 1
            node = found
        ends.append(node)
    for node in ends:
        goes_on[node] += 1
    # a stream ends where more than one thing follows; what nobody shares is the request's own
    parent: list[int] = []
    end_tokens: list[int] = []
    last = [-1] * len(above)  # stream that ends at a node, or last before it
    for node in range(1, len(above)):
        last[node] = last[above[node]]
        if goes_on[node] > 1:
            parent.append(last[node])
            end_tokens.append(depth[node] * block_tokens)
            last[node] = len(parent) - 1
    count = len(ends)
    return Prefixes(
        stream=len(parent) + np.arange(count),
        parent=np.array([*parent, *(last[node] for node in ends)], dtype=np.int64),
        end_tokens=np.array([*end_tokens, *([0] * count)], dtype=np.int64),
    )
