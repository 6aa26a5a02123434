"""What a request holds where layers keep KV of several kinds: the block of the report."""

from typing import NamedTuple

from kvplan.model.kv_layout import Attention, KvLayout


class GroupOfLayers(NamedTuple):
    """Layers of one kind, in so many groups."""

    kind: Attention
    layers: int
    groups: int
    block_tokens: int
    window_tokens: int | None


class LayoutBlock(NamedTuple):
    """The keys of the report's `kv_layout` block."""

    groups: tuple[GroupOfLayers, ...]
    block_tokens: int
    block_bytes: int
    bytes_per_token: int
    fixed_tokens_per_request: int


def layout_block(layout: KvLayout | None) -> LayoutBlock | None:
    """None where one kind of attention says all.

    Examples
    --------
    >>> from kvplan.model.kv_layout import Layers
    >>> states, full = Layers(Attention.STATE, 48, 3_207_168), Layers(Attention.FULL, 16, 4096)
    >>> found = layout_block(KvLayout((states, full), 784))
    >>> found.block_bytes, found.bytes_per_token, found.fixed_tokens_per_request
    (51380224, 65536, 2352)
    """
    if layout is None:
        return None
    groups = tuple(
        GroupOfLayers(one.kind, one.count, group.copies, group.block_tokens, one.window)
        for one, group in zip(layout.layers, layout.groups, strict=True)
    )
    return LayoutBlock(
        groups, layout.block_tokens, layout.block_bytes, layout.bytes_per_token, layout.fixed_tokens
    )
