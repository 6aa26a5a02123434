"""A prefix cache of one size, the slow and obvious way: a dictionary in order of use."""

from collections import OrderedDict
from collections.abc import Hashable, Sequence
from typing import NamedTuple


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
