"""Recorded requests, to be simulated: as they came, faster, in part; and what they have in common, from hashes."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from kvplan.model import IntArray, Recorded
from kvplan.simulation.prefixes import Prefixes
from kvplan.simulation.requests import Requests

_AS_RECORDED = 1e-3  # a rate that differs by less from that of the trace is a rounded one


def requests_of(recorded: Recorded, rate_rps: float | None = None) -> Requests:
    """All of a trace, as it came; or at another mean rate, with all gaps as much longer or shorter.

    Examples
    --------
    >>> some = Recorded(np.array([0.0, 1.0, 4.0]), np.array([9, 9, 9]), np.array([1, 2, 3]))
    >>> requests_of(some, rate_rps=1.0).arrival_s.tolist()
    [0.0, 0.5, 2.0]
    """
    hashes, inputs = recorded.block_hashes, recorded.input_tokens
    return Requests(
        recorded.arrival_s * stretch(recorded, rate_rps),
        inputs,
        recorded.decode_tokens,
        np.zeros(inputs.size, dtype=np.int64),
        prefixes=None if hashes is None else prefixes_of_hashes(hashes, inputs, recorded.block_tokens),
    )


def stretch(recorded: Recorded, rate_rps: float | None) -> float:
    """How much longer gaps are at a rate than recorded; 1 where it is that of the trace, but for rounding."""
    own = recorded.rate_rps
    factor = 1.0 if own is None or rate_rps is None else own / rate_rps
    return 1.0 if abs(factor - 1) < _AS_RECORDED else factor


def first(requests: Requests, count: int) -> Requests:
    """The first so many."""
    return chosen(requests, np.arange(min(count, requests.arrival_s.size)))


def thinned(requests: Requests, share: float, rng: np.random.Generator) -> Requests:
    """What a router sends to one replica of several: each request with a chance, but at least one.

    Examples
    --------
    >>> some = requests_of(Recorded(np.arange(1000.0), *np.ones((2, 1000), dtype=np.int64)))
    >>> 200 < thinned(some, 0.25, np.random.default_rng(0)).arrival_s.size < 300
    True
    """
    chance = rng.random(requests.arrival_s.size)
    kept = np.flatnonzero(chance < share)
    return chosen(requests, kept if kept.size else np.array([chance.argmin()]))


def chosen(requests: Requests, places: IntArray) -> Requests:
    """Those at these places, ascending."""
    prefixes = requests.prefixes
    return Requests(
        requests.arrival_s[places],
        requests.input_tokens[places],
        requests.decode_tokens[places],
        requests.class_index[places],
        prefixes=prefixes and replace(prefixes, stream=prefixes.stream[places]),
    )


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
