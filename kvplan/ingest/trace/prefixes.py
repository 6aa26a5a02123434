"""Hits that a prefix cache would have in a trace, prompts that many share, and what is asked for again.

An LRU cache of M tokens holds what was used last, M tokens of it. So a block is found by every cache that is at least
as large as what was used since the block was, itself included: its stack distance. One pass over a trace gives the hits
of caches of every size (Mattson, Gecsei, Slutz, Traiger, "Evaluation techniques for storage hierarchies", IBM Systems
Journal 9(2), 1970). A tree of sums over the order of use (Fenwick 1994) makes that O(N log N).
"""

import sys
from array import array
from collections.abc import Callable, Hashable
from dataclasses import dataclass, replace
from functools import cache, cached_property
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from kvplan import compiling
from kvplan.analysis.cache_states import hit_ratio
from kvplan.ingest.trace.formats import BadRowError, Request
from kvplan.model import FloatArray, IntArray
from kvplan.model.gaps import Quantiles
from kvplan.model.sessions import Reuse, SharedPrompt

MOST_HASHES = 8_000_000  # remembered; below a gigabyte where they are used
_MOST_REQUESTS = 1_500_000
_SIZES = tuple(16 << power for power in range(8))  # of blocks that hashes can be of, tokens
_FITTING = 0.9  # share of the prompts that must have as many hashes as they have blocks
_PAGE = 16  # tokens, where conversations and not hashes tell; larger if these make too many
_WITHIN, _POINTS = 0.001, 40  # of the curve: how near straight lines must be, and points at most
_MOST = 0.999  # found, that a profile may say
_MANY, _FEWEST = 0.01, 10  # ways in which prompts go on from what is shared: of all prompts, and at least
_PROMPTS, _LEAST = 20, 0.001  # shared ones that are named; share of the prompts, and its last digit
_STEPS = 20  # of the law of gaps
_COMPILE_FROM = 20_000  # references; below that compiling takes longer than it saves


class Identities:
    """Requests with tokens and what identifies them, in the order of the file, as far as there is room.

    Of the hashes of the blocks of all prompts each request has `hash_count`; `conversation` is the number of the one
    that it is a turn of, or -1.
    """

    def __init__(self) -> None:
        self.arrival_s = array("d")
        self.input_tokens, self.output_tokens = array("q"), array("q")
        self.hashes, self.hash_count = array("q"), array("q")
        self.conversation = array("q")
        self.full = False
        self._known: dict[Hashable, int] = {}
        self._responses: dict[Hashable, int] = {}  # which request has which

    def add(
        self,
        request: Request,
        hashes: Any,
        conversation: Any = None,
        parent: Any = None,
        response: Hashable = None,
    ) -> None:
        """Remember a request; `parent` is the conversation that this one goes on with, where turns have names.

        Of several with the same response the last says how long that is.
        """
        if not (request[1] and request[2]):
            return
        if response is not None and response in self._responses:
            self.output_tokens[self._responses[response]] = request[2]
            return
        hashes = hashes if isinstance(hashes, list) else []
        if len(self.hashes) + len(hashes) > MOST_HASHES or len(self.arrival_s) >= _MOST_REQUESTS:
            self.full = True
        if self.full:
            return
        try:
            self.hashes.extend(hashes)
        except (TypeError, OverflowError):
            raise BadRowError("must be a list of whole numbers", "hash_ids") from None
        if response is not None:
            self._responses[response] = len(self.hash_count)
        self.hash_count.append(len(hashes))
        arrival, inputs, outputs = request
        self.arrival_s.append(arrival)
        self.input_tokens.append(inputs)
        self.output_tokens.append(outputs)
        self.conversation.append(self._number(conversation, parent))

    def _number(self, conversation: Any, parent: Any) -> int:
        if not isinstance(conversation, str | int) or conversation == "":
            return -1
        before = self._known.get(parent) if isinstance(parent, str | int) else None
        return self._known.setdefault(conversation, len(self._known) if before is None else before)


@dataclass(frozen=True)
class Blocks:
    """The requests of a trace by the blocks that they leave in a cache, in order of arrival."""

    arrival_s: FloatArray  # shape (n_requests,)
    input_tokens: IntArray
    output_tokens: IntArray
    node: IntArray  # blocks that others may have too, as `stack_distances` wants them
    begin: IntArray
    block_tokens: int
    # by hashes; or by conversations, whose turns are taken to repeat what came before them where their prompts are long
    # enough
    hashed: bool

    @property
    def left_tokens(self) -> IntArray:
        """Tokens that a request leaves: the last one emitted is never computed."""
        return self.input_tokens + self.output_tokens - 1

    @cached_property
    def count(self) -> IntArray:
        """Blocks of each request."""
        return np.diff(self.begin)

    @cached_property
    def request(self) -> IntArray:
        """Whose each block is."""
        return np.repeat(np.arange(self.count.size), self.count)

    @cached_property
    def depth(self) -> IntArray:
        """How many blocks of the request are before each."""
        depth: IntArray = np.arange(self.node.size) - self.begin[self.request]
        return depth

    def distances(self) -> IntArray:
        """Find the cache size that has each block, tokens; 0: none has it."""
        looked_up = np.minimum((self.input_tokens - 1) // self.block_tokens, self.count)
        private = self.left_tokens - self.count * self.block_tokens
        return stack_distances(self.node, self.begin, looked_up, private, self.block_tokens)


@dataclass(frozen=True)
class Prefixes:
    """Common beginnings of a trace's prompts."""

    # cache sizes, tokens, and the share of the prompt tokens that each finds: straight lines from (0, 0) on
    curve: tuple[tuple[int, float], ...]
    shared: tuple[SharedPrompt, ...]  # what many prompts begin with, the most frequent first
    reuse: Reuse | None  # what is asked for again beyond that
    requests: int  # of which this is known, and how
    hashed: bool
    block_tokens: int
    complete: bool  # they are all of the trace

    @property
    def reusable(self) -> float:
        """Share of the prompt tokens that a cache without limit finds."""
        return self.curve[-1][1] if self.curve else 0.0

    def scaled(self, hit_ratio: float) -> "Prefixes":
        """Scale the curve to end at a measured `hit_ratio`: conversations only suggest it."""
        if not self.curve:
            return self
        factor = hit_ratio / self.reusable
        return replace(
            self, curve=tuple((size, min(round(share * factor, 4), _MOST)) for size, share in self.curve)
        )

    def found_by(self, memory_tokens: float) -> float:
        """Share of the prompt tokens that a cache of this size finds.

        >>> some = Prefixes(((100, 0.2), (300, 0.3)), (), None, 9, True, 16, True)
        >>> [some.found_by(tokens) for tokens in (50, 200, 1000)]
        [0.1, 0.25, 0.3]
        """
        return hit_ratio(self.curve, memory_tokens)


def prefixes_of(identities: Identities) -> Prefixes | None:
    """Find what requests have in common; None where nothing identifies them, or hashes fit no block size.

    Examples
    --------
    Three prompts of 40 tokens in blocks of 16, and 8 more that each leaves. The last one finds the two whole blocks of
    the second, of which a cache of 32 tokens has both.

    >>> some = Identities()
    >>> for arrival, hashes in ((0.0, [7, 8, 9]), (1.0, [7, 5, 6]), (4.0, [7, 5, 3])):
    ...     some.add((arrival, 40, 9), hashes)
    >>> prefixes = prefixes_of(some)
    >>> prefixes.curve, prefixes.reuse.share, prefixes.reuse.gap.values_s[::10]
    (((16, 0.2667), (32, 0.4)), 0.667, (1.0, 3.0))
    """
    blocks = blocks_of(identities)
    if blocks is None:
        return None
    size, ratio = hit_curve(blocks.distances(), blocks.block_tokens, float(blocks.input_tokens.sum()))
    kept = knots(size, ratio, _WITHIN, _POINTS)
    shared, depth = _shared(blocks)
    return Prefixes(
        curve=tuple(zip(size[kept].tolist(), ratio[kept].round(4).clip(0, _MOST).tolist(), strict=True)),
        shared=shared,
        reuse=_reuse(blocks, depth),
        requests=blocks.count.size,
        hashed=blocks.hashed,
        block_tokens=blocks.block_tokens,
        complete=not identities.full,
    )


def blocks_of(identities: Identities) -> Blocks | None:
    """Cut requests into blocks; None where nothing identifies them, or hashes fit no block size."""
    arrival = np.array(identities.arrival_s)
    order = np.argsort(arrival, kind="stable")
    inputs, outputs = (np.array(v)[order] for v in (identities.input_tokens, identities.output_tokens))
    count = np.array(identities.hash_count)[order]
    conversation = np.array(identities.conversation)[order]
    if count.any():
        block = block_size(inputs, count)
        if block is None:
            return None
        first = (np.cumsum(identities.hash_count) - identities.hash_count)[order]
        count = np.minimum(count, inputs // block)  # of a part of a block nobody else can have all tokens
        begin = _begin(count)
        place = np.arange(begin[-1]) + np.repeat(first - begin[:-1], count)
        node = _numbered(np.array(identities.hashes)[place], begin)
        return Blocks(arrival[order], inputs, outputs, node, begin, block, hashed=True)
    if (conversation < 0).all():
        return None
    thread = _threads(conversation, inputs, inputs + outputs)
    left = np.where(np.bincount(thread)[thread] > 1, inputs + outputs - 1, 0)
    page = _PAGE
    while (left // page).sum() > MOST_HASHES:
        page *= 2
    count = left // page
    longest = np.zeros(thread.max() + 1, dtype=np.int64)
    np.maximum.at(longest, thread, count)
    begin = _begin(count)
    depth = np.arange(begin[-1]) - np.repeat(begin[:-1], count)
    node = np.repeat(_begin(longest)[thread], count) + depth
    return Blocks(arrival[order], inputs, outputs, node, begin, page, hashed=False)


def _begin(count: IntArray) -> IntArray:
    return np.concatenate([[0], np.cumsum(count)])


def block_size(inputs: IntArray, count: IntArray) -> int | None:
    """Find the block size at which prompts have as many blocks as hashes, the last one whole or not."""
    fitting = [float(((inputs // b == count) | (-(-inputs // b) == count)).mean()) for b in _SIZES]
    best = int(np.argmax(fitting))
    return _SIZES[best] if fitting[best] >= _FITTING else None


def _numbered(hashes: IntArray, begin: IntArray) -> IntArray:
    """Number blocks alike where their hashes and all before are alike, whether or not hashes imply that."""
    known = np.unique(hashes, return_inverse=True)[1].reshape(-1)
    kinds = int(known.max(initial=0)) + 1
    depth = np.arange(hashes.size) - np.repeat(begin[:-1], np.diff(begin))
    order = np.argsort(depth, kind="stable")
    node = np.zeros(hashes.size, dtype=np.int64)
    numbers = 0
    for low, high in pairwise([0, *np.cumsum(np.bincount(depth)).tolist()]):
        at = order[low:high]
        before = node[at - 1] if low else 0
        distinct, same = np.unique(before * kinds + known[at], return_inverse=True)
        node[at] = numbers + same.reshape(-1)
        numbers += distinct.size
    return node


def _threads(conversation: IntArray, inputs: IntArray, after: IntArray) -> IntArray:
    """Number threads: a prompt at least as long as the turn before it with its answer continues that one."""
    thread = np.arange(conversation.size)
    last: dict[int, int] = {}
    for i, of in enumerate(conversation.tolist()):
        before = last.get(of)
        if before is not None and inputs[i] >= after[before]:
            thread[i] = thread[before]
        if of >= 0:
            last[of] = i
    return np.unique(thread, return_inverse=True)[1].reshape(-1)


def _shared(blocks: Blocks) -> tuple[tuple[SharedPrompt, ...], IntArray]:
    """Shared prompts, and how many blocks of each request are one.

    What follows a conversation is its next turn; a prompt in common is followed by many different things.
    """
    requests = blocks.count.size
    depth = np.zeros(requests, dtype=np.int64)
    filled = blocks.count > 0
    if not filled.any():
        return (), depth
    node = blocks.node
    first = np.unique(node, return_index=True)[1]
    followed = node[first[blocks.depth[first] > 0] - 1]
    ends = node[blocks.begin[1:][filled] - 1]
    ways = np.bincount(followed, minlength=first.size) + np.bincount(ends, minlength=first.size)
    common = ways[node] >= max(_MANY * requests, _FEWEST)
    starts = blocks.begin[:-1][filled]
    depth[filled] = np.maximum.reduceat(np.where(common, blocks.depth + 1, 0), starts)
    some = np.flatnonzero(depth)
    prompt, count = np.unique(node[blocks.begin[some] + depth[some] - 1], return_counts=True)
    tokens = (blocks.depth[first[prompt]] + 1) * blocks.block_tokens
    weight = np.floor(count / requests / _LEAST) * _LEAST  # down, for all of them to make no more than 1
    order = np.argsort(-count, kind="stable")[:_PROMPTS]
    prompts = zip(tokens[order].tolist(), weight[order].round(4).tolist(), strict=True)
    return tuple(SharedPrompt(tokens, weight) for tokens, weight in prompts if weight), depth


def _reuse(blocks: Blocks, shared: IntArray) -> Reuse | None:
    """Measure the reuse of what requests leave beyond `shared` blocks, and the time from arrival to it."""
    order = np.argsort(blocks.node, kind="stable")
    again = np.flatnonzero(np.diff(blocks.node[order]) == 0)
    now, later = order[again], order[again + 1]
    private = blocks.depth[now] >= shared[blocks.request[now]]
    now, later = now[private], later[private]
    if not now.size:
        return None
    wanted = np.zeros(blocks.count.size, dtype=np.int64)
    np.maximum.at(wanted, blocks.request[now], blocks.depth[now] + 1)
    asked = wanted > 0
    tokens = float(wanted.sum() * blocks.block_tokens / blocks.left_tokens[asked].sum())
    gaps = blocks.arrival_s[blocks.request[later]] - blocks.arrival_s[blocks.request[now]]
    values = np.quantile(gaps, (np.arange(_STEPS) + 0.5) / _STEPS, method="inverted_cdf")
    return Reuse(
        tokens=float(f"{tokens:.3g}"),
        share=float(f"{asked.mean():.3g}"),
        gap=Quantiles(tuple(float(f"{value:.3g}") for value in values)),
        from_arrival=True,
    )


# ------------------------------------------------------------------------------------- stack distances


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

    >>> [column.tolist() for column in hit_curve(np.array([0, 26, 40, 26]), 16, 100)]
    [[26, 40], [0.32, 0.48]]
    """
    size, count = np.unique(distances[distances > 0], return_counts=True)
    return size, np.cumsum(count) * block_tokens / prompt_tokens


def knots(size: IntArray, ratio: FloatArray, within: float, most: int) -> IntArray:
    """Choose points of a curve from (0, 0), `most` of them, for straight lines to be `within` it; the last is one.

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
    """State of `_fill`: the arrays of `stack_distances`, and when each block was used last (-1 before).

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
    """Compile `_fill`, kept on disk where that is possible."""
    file = compiling.file("stack-distances", [sys.modules[__name__]])
    kernel = compiling.compiled(_fill, _State, file, {})
    assert kernel is not None
    return kernel
