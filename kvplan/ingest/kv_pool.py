"""Blocks of vLLM's pool where layers keep KV of several kinds, from two lines of its log.

``GPU KV cache size: T tokens`` has two meanings: T = ⌊N / groups⌋ · b for a pool of N blocks of b tokens, and in newer
versions the maximum concurrency times ``max_model_len``. ``Maximum concurrency for … tokens`` has one: N over the most
blocks that a request can hold. Both together tell N and the meaning (theory §10).
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from kvplan.model.kv_layout import LEAST_BLOCK, Attention, Group, KvLayout
from kvplan.units import format_number, format_tokens

GIB = 2**30
_MOST_OF_A_DRAFT = 0.02  # of a state: an input of its convolution


@dataclass(frozen=True, slots=True)
class Pool:
    """Blocks of a pool, the layers that share it, and which meaning of the line of tokens says so.

    `caches_states` says whether a request has a block more of each state; None: not told.
    """

    blocks: int
    layout: KvLayout
    meaning: str
    caches_states: bool | None = None


def most_blocks(layout: KvLayout, length: int, batched_tokens: int) -> int:
    """Count the blocks that a request of `length` tokens holds at most, as vLLM does.

    A window or chunk may be held beside all tokens of an iteration.

    Examples
    --------
    Qwen3.5-27B: 42 blocks in layers with full attention, and a state in each of three groups.

    >>> from kvplan.model.kv_layout import Layers
    >>> layers = (Layers(Attention.FULL, 16, 4096), Layers(Attention.STATE, 48, 3_207_168))
    >>> most_blocks(KvLayout(layers, 784), 32_768, 16_384)
    45
    """

    def most(group: Group) -> int:
        if group.kind is Attention.STATE:
            return layout.state_blocks
        tokens, more = length, 0
        if group.window is not None:
            # A window may begin within a block.
            reach, more = (group.window - 1, 1) if group.kind is Attention.WINDOW else (group.window, 0)
            tokens = min(reach + batched_tokens, length)
        return -(-tokens // group.block_tokens) + more

    return sum(group.copies * most(group) for group in layout.groups)


def find_pools(
    layout: KvLayout,
    tokens: int,
    length: int,
    concurrency: float,
    batched_tokens: int,
    *,
    caches_states: bool = False,
) -> list[Pool]:
    """List the pools that fit both lines, one for each reading; none where the lines contradict each other.

    With prefix caching a request has a block more of each state. `caches_states` says whether the layout counts it; the
    log may say otherwise.
    """
    other = replace(layout, state_blocks=layout.state_blocks + (-1 if caches_states else 1))
    pools = []
    for variant, cached in ((layout, caches_states), (other, not caches_states)):
        most = most_blocks(variant, length, batched_tokens)
        for blocks, meaning in _candidates(variant, tokens, length, most):
            if most and f"{blocks / most:.2f}" == f"{concurrency:.2f}":
                pools.append(Pool(blocks, variant, meaning, cached if variant.has_states else None))
        if not variant.has_states:
            break
    return pools


def find_grown(
    layout: KvLayout,
    tokens: int,
    length: int,
    concurrency: float,
    batched_tokens: int,
    *,
    drafts: int,
    caches_states: bool,
) -> list[Pool]:
    """List the pools with drafts that fit both lines: their blocks are the smallest above the layout's.

    The convolution of a state keeps an input more for each draft, so that blocks have more tokens; how large an input
    is no line says.
    """
    largest = layout.block_tokens * (1 + _MOST_OF_A_DRAFT * drafts)
    block = layout.block_tokens
    while (block := block + LEAST_BLOCK) <= largest:
        grown = replace(layout, block_tokens=block)
        pools = find_pools(grown, tokens, length, concurrency, batched_tokens, caches_states=caches_states)
        if pools:
            more = f"; blocks of {format_tokens(block)} tokens, for states are larger with {drafts} drafts"
            return [replace(pool, meaning=pool.meaning + more) for pool in pools]
    return []


def settled(pools: Sequence[Pool], memory_gib: float | None, caching: bool | None) -> list[Pool]:
    """Drop the pools that the rest of the log excludes, unless that is all; one for each reading is left.

    A pool fills the available memory but for less than a block; two digits of it are logged.
    """

    def fills(pool: Pool) -> bool:
        memory, block = (memory_gib or 0) * GIB, pool.layout.block_bytes
        return memory - 0.005 * GIB - block < pool.blocks * block <= memory + 0.005 * GIB

    left = [pool for pool in pools if memory_gib is not None and fills(pool)] or list(pools)
    left = [pool for pool in left if caching is None or pool.caches_states in (None, caching)] or left
    return list({(pool.meaning, pool.caches_states): pool for pool in reversed(left)}.values())[::-1]


def _candidates(layout: KvLayout, tokens: int, length: int, most: int) -> Iterator[tuple[int, str]]:
    """Yield numbers of blocks for which the engine would state these tokens, the fewest first."""
    groups, block = sum(group.copies for group in layout.groups), min(g.block_tokens for g in layout.groups)
    if tokens % block == 0:
        meaning = f"{format_tokens(tokens)} tokens are taken as blocks of {format_tokens(block)} over {groups} groups"
        for spare in range(groups):
            yield tokens // block * groups + spare, meaning
    blocks = -(-tokens * most // length)
    if int(blocks / most * length) == tokens:
        times = format_number(blocks / most, 6)
        length_text = f"times {format_tokens(length)} tokens"
        yield (
            blocks,
            f"{format_tokens(tokens)} tokens are taken as the maximum concurrency, {times}, {length_text}",
        )
