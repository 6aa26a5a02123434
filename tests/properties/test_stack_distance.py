"""Stack distances against a cache of every size, played out."""

from collections import OrderedDict
from collections.abc import Hashable, Sequence
from typing import NamedTuple

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from kvplan.ingest.trace import prefixes
from kvplan.ingest.trace.prefixes import Blocks, Identities, blocks_of


class Prompt(NamedTuple):
    """A request by its blocks, each named by all that is in it and before it; and its lengths in tokens."""

    blocks: Sequence[Hashable]
    looked_up: int
    private_tokens: int


def hit_blocks(prompts: Sequence[Prompt], memory_tokens: int, block_tokens: int) -> list[int]:
    """How many leading blocks of each prompt an LRU cache of this size has."""
    cache: OrderedDict[Hashable, int] = OrderedDict()
    hits = []
    for number, prompt in enumerate(prompts):
        found = 0
        while found < prompt.looked_up and prompt.blocks[found] in cache:
            found += 1
        hits.append(found)
        cache["private", number] = prompt.private_tokens
        for block in reversed(prompt.blocks):
            cache[block] = block_tokens
            cache.move_to_end(block)
        while sum(cache.values()) > memory_tokens:
            cache.popitem(last=False)
    return hits


BLOCK = 16


@st.composite
def traces(draw: st.DrawFn) -> list[tuple[tuple[int, ...], int, int]]:
    """Requests by the hashes of their blocks, tokens beyond whole ones, and generated tokens; many begin alike."""
    requests: list[tuple[tuple[int, ...], int, int]] = []
    for _ in range(draw(st.integers(1, 12))):
        before = draw(st.sampled_from([(), *(hashes for hashes, _, _ in requests)]))
        kept = before[: draw(st.integers(0, len(before)))]
        hashes = (*kept, *draw(st.lists(st.integers(0, 3), max_size=4)))
        rest = draw(st.integers(0 if hashes else 1, BLOCK - 1))
        requests.append((hashes, rest, draw(st.integers(1, 60))))
    return requests


def recorded(requests: list[tuple[tuple[int, ...], int, int]]) -> Identities:
    """A part of a block has a hash of its own."""
    found = Identities()
    for number, (hashes, rest, outputs) in enumerate(requests):
        part = [10**6 + number] if rest else []
        found.add((float(number), BLOCK * len(hashes) + rest, outputs), [*hashes, *part])
    return found


def played(requests: list[tuple[tuple[int, ...], int, int]]) -> list[Prompt]:
    return [
        Prompt(
            blocks=[hashes[: i + 1] for i in range(len(hashes))],
            looked_up=(BLOCK * len(hashes) + rest - 1) // BLOCK,
            private_tokens=rest + outputs - 1,
        )
        for hashes, rest, outputs in requests
    ]


def blocks(requests: list[tuple[tuple[int, ...], int, int]]) -> Blocks | None:
    found = blocks_of(recorded(requests))
    return found if found is None or found.block_tokens == BLOCK else None  # a trace can be too short to tell


@given(traces())
def test_what_every_cache_size_finds_is_what_a_cache_of_that_size_finds(
    requests: list[tuple[tuple[int, ...], int, int]],
) -> None:
    found = blocks(requests)
    if found is None:
        return
    distance = found.distances()
    sizes = {1, 10**9, *distance.tolist(), *(distance - 1).tolist()} - {0, -1}
    for size in sizes:
        hits = (distance > 0) & (distance <= size)
        of_each = np.bincount(found.request, hits, found.count.size)
        assert of_each.tolist() == hit_blocks(played(requests), size, BLOCK)


@given(traces())
def test_the_compiled_loop_is_the_same(requests: list[tuple[tuple[int, ...], int, int]]) -> None:
    found = blocks(requests)
    if found is None:
        return
    plain = found.distances()
    least, prefixes._COMPILE_FROM = prefixes._COMPILE_FROM, 0
    try:
        assert plain.tolist() == found.distances().tolist()
    finally:
        prefixes._COMPILE_FROM = least


@given(
    st.lists(st.integers(1, 1000), max_size=30),
    st.lists(st.floats(0.001, 0.1), min_size=30, max_size=30),
    st.integers(2, 40),
)
def test_straight_lines_between_knots_are_near_the_curve(
    gaps: list[int], rises: list[float], most: int
) -> None:
    size, ratio = np.cumsum(gaps), np.cumsum(rises[: len(gaps)])
    kept = prefixes.knots(size, ratio, 0.01, most)
    assert len(kept) <= most
    if 0 < len(kept) < most:
        lines = np.interp(size, [0, *size[kept]], [0, *ratio[kept]])
        assert np.abs(lines - ratio).max() <= 0.01
        assert kept[-1] == size.size - 1
