"""Blocks of a request in a group of layers, kept block by block: the obvious way."""

from kvplan.model.kv_layout import Attention, Layers


class Allocator:
    """Blocks of one request in one group: a block is there once it has a slot, until nothing to come reads it."""

    def __init__(self, layers: Layers, block_tokens: int) -> None:
        self.layers, self.block_tokens, self.blocks = layers, block_tokens, set[int]()

    def step(self, computed: int, new: int, ahead: int) -> int:
        """Blocks held while `new` tokens are computed after `computed`, with slots for as many more `ahead`."""
        first_read = 0
        if self.layers.kind is Attention.WINDOW:
            assert self.layers.window
            first_read = max(0, computed - self.layers.window + 1)
        if self.layers.kind is Attention.CHUNK:
            first_read = next(p for p in range(computed, -1, -1) if p % self.layers.window == 0)
        for block in list(self.blocks):
            if all(block * self.block_tokens + i < first_read for i in range(self.block_tokens)):
                self.blocks.discard(block)
        for token in range(first_read, computed + new + ahead):
            self.blocks.add(token // self.block_tokens)
        return len(self.blocks)
