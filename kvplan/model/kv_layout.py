"""KV that a request holds and reads where layers keep different kinds: groups of layers on one pool of blocks.

Full attention keeps every token of a request, a window the last of them, a chunk those since its beginning, and a state
(Mamba, linear attention) has one size. vLLM puts layers of one kind into groups of equal size that draw on one pool; a
block is `block_tokens` tokens in every layer of a group, and weights are counted in *pool tokens*: blocks times
`block_tokens` (theory §10). Without its hybrid KV cache manager windows and chunks are read as such, and held as full
attention is.
"""

import math
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property

import numpy as np

from kvplan.model.arrays import FloatArray, IntArray

LEAST_BLOCK = 16  # tokens that blocks are multiples of, where states set their size
_ALIKE = 1.5  # counts of layers in groups of one size, with some padding


class Attention(StrEnum):
    """KV that a layer keeps of a request."""

    FULL = "full"
    WINDOW = "window"
    CHUNK = "chunk"
    STATE = "state"


@dataclass(frozen=True, slots=True)
class Layers:
    """Layers of one kind: how many, bytes per token and layer or of one state, and tokens of a window or chunk."""

    kind: Attention
    count: int
    bytes: int
    window: int | None = None
    checkpoints: bool = False  # of a state: it is kept at the end of every block, for those who begin alike

    @property
    def is_state(self) -> bool:
        """Tell whether they keep one state of fixed size."""
        return self.kind is Attention.STATE


@dataclass(frozen=True, slots=True)
class Group:
    """Layers that share blocks: `copies` groups alike, whose blocks hold `block_tokens` tokens in each layer.

    Of states with checkpoints each block has one, and the next token reads the last: they are as a window of 2.
    """

    kind: Attention
    copies: int
    block_tokens: int
    window: int | None = None

    def blocks(self, begin: IntArray, end: IntArray) -> IntArray:
        """Blocks of one of them in a step that has computed `begin` tokens before, and has slots for `end` after it."""
        passed = np.zeros_like(begin)  # leading tokens that no later one attends to
        if self.window is not None and self.kind is not Attention.CHUNK:
            passed = np.maximum(begin - self.window + 1, 0)
        elif self.window is not None:
            passed = begin // self.window * self.window
        return np.asarray(-(-end // self.block_tokens) - passed // self.block_tokens)


@dataclass(frozen=True)
class KvLayout:
    """Layers of several kinds, in blocks of `block_tokens` tokens of those with the most bytes per token.

    Raises
    ------
    ValueError
        There are no layers, a block has no room for a state, blocks of two kinds cannot have one size, or layers that
        are not `hybrid` are not alike.

    Examples
    --------
    Gemma-3-27B: 52 layers with a window to 10 with full attention make 7 groups of 10.

    >>> window = Layers(Attention.WINDOW, 52, 8192, window=1024)
    >>> gemma = KvLayout((window, Layers(Attention.FULL, 10, 8192)), block_tokens=16)
    >>> gemma.group_size, [g.copies for g in gemma.groups], gemma.bytes_per_token, gemma.fixed_tokens
    (10, [6, 1], 81920, 6234)
    >>> gemma.pool_tokens(np.array([0, 16_383]), np.array([1366, 16_384])).tolist()
    [9632, 22528]
    """

    layers: tuple[Layers, ...]
    block_tokens: int
    # of a request in each group of states: one more with prefix caching, and for each draft
    state_blocks: int = 1
    hybrid: bool = (
        True  # layers drop what they do not attend to again; otherwise all attention holds every token
    )

    def __post_init__(self) -> None:
        if not self.layers:
            raise ValueError("no layers")
        if self.block_tokens < (least := least_block_tokens(self.layers)):
            raise ValueError(f"must be at least {least}, for a state to fit into a block")
        for kind in self.layers:
            if not kind.is_state and self.token_bytes % kind.bytes:
                raise ValueError(f"{kind.bytes} bytes; must divide the most of any kind, {self.token_bytes}")
        if not self.hybrid and (self.has_states or len({kind.bytes for kind in self.layers}) > 1):
            raise ValueError("must all have attention and the same bytes with hybrid_kv_cache = false")

    @property
    def token_bytes(self) -> int:
        """Most bytes per token and layer; of a model of states only, a 16th of a state."""
        return _token_bytes(self.layers)

    @property
    def has_states(self) -> bool:
        return any(layer.is_state for layer in self.layers)

    @property
    def not_cached(self) -> str | None:
        """Reason why no prefix cache is modelled beside these layers; None: it is."""
        if any(group.kind is Attention.STATE and group.window is None for group in self.groups):
            return "states without checkpoints, which engines keep at some places of a prompt only"
        if len({group.block_tokens for group in self.groups}) > 1:
            return "layers whose blocks have different numbers of tokens"
        return None

    @cached_property
    def held(self) -> tuple[Layers, ...]:
        """Layers by what they hold, which without `hybrid` is every token wherever one layer holds that."""
        if self.hybrid or all(layer.kind is not Attention.FULL for layer in self.layers):
            return self.layers
        return (Layers(Attention.FULL, sum(layer.count for layer in self.layers), self.token_bytes),)

    @cached_property
    def group_size(self) -> int:
        """Layers of a group: the largest count of a kind if that wastes little, else the smallest."""
        counts = [layers.count for layers in self.held]
        return max(counts) if max(counts) < _ALIKE * min(counts) else min(counts)

    @cached_property
    def groups(self) -> tuple[Group, ...]:
        """One for each kind of layers that are held, in their order."""
        groups = []
        for layers in self.held:
            block = self.block_tokens
            if not layers.is_state:
                block = block * self.token_bytes // layers.bytes
            window = 2 if layers.checkpoints else layers.window
            groups.append(Group(layers.kind, -(-layers.count // self.group_size), block, window))
        return tuple(groups)

    @property
    def block_bytes(self) -> int:
        """Bytes of one block, in all layers of a group."""
        return self.block_tokens * self.token_bytes * self.group_size

    @property
    def bytes_per_token(self) -> int:
        """Bytes that a long request takes for one token more."""
        full = [group for group in self.groups if group.kind is Attention.FULL]
        return sum(group.copies * self.block_bytes // group.block_tokens for group in full)

    @property
    def fixed_tokens(self) -> int:
        """Pool tokens at most, on average over the places in a block, that a request holds whatever its length.

        A window of W tokens spans W + b - 1, a state a block; a chunk is held up to its size.
        """
        total = 0
        for g in self.groups:
            per_block = self.block_tokens * g.copies
            if g.kind is Attention.STATE and g.window is None:
                total += per_block * self.state_blocks
            elif g.window is not None:
                most = g.window + (g.block_tokens - 1 if g.kind is not Attention.CHUNK else 0)
                total += per_block * most // g.block_tokens
        return total

    def pool_tokens(self, begin: IntArray, end: IntArray) -> IntArray:
        """Pool tokens of a request in a step that has computed `begin` tokens before and has slots for `end`."""
        held = np.zeros_like(end)
        for g in self.groups:
            is_fixed = g.kind is Attention.STATE and g.window is None
            held += g.copies * (self.state_blocks if is_fixed else g.blocks(begin, end))
        return np.asarray(self.block_tokens * held)

    def in_common(self, common: int, first: IntArray, stages: IntArray) -> tuple[int, FloatArray]:
        """Pool tokens of a beginning of `common` tokens, held once; and what each request has of it, summed up.

        `first` tokens at stage 0 and `stages` are of each request: it has the beginning whole in its first iteration,
        and then what its windows and chunks have not passed.
        """
        blocks, held = common // self.block_tokens, 0
        tokens = np.arange(int((first + stages).max(initial=1)) + 1)
        has = np.zeros(tokens.size)
        for g in self.groups:
            passed = -(-tokens // g.block_tokens) - g.blocks(tokens, tokens)
            held += g.copies * (blocks - int(passed[common]))
            has += g.copies * np.maximum(blocks - passed, 0)
        upto = np.concatenate([[0.0], np.cumsum(has)])
        later = upto[first + stages - 1] - upto[first]
        copies = sum(g.copies for g in self.groups)
        return self.block_tokens * held, np.asarray(self.block_tokens * (copies * blocks + later))

    def read_tokens(self, tokens: FloatArray) -> FloatArray:
        """Context that a step of a request of so many tokens reads, in tokens of the layers with full attention.

        In tokens of the kind with the most bytes where none has full attention; states are a constant of each request.
        """
        full = sum(layer.count * layer.bytes for layer in self.layers if layer.kind is Attention.FULL)
        bounded = [layer for layer in self.layers if layer.window is not None]
        unit = full or max((layer.count * layer.bytes for layer in bounded), default=1)
        read = tokens * (full / unit)
        for layer in bounded:
            assert layer.window is not None
            recent = tokens if layer.kind is Attention.WINDOW else (tokens - 1) % layer.window + 1
            read = read + layer.count * layer.bytes / unit * np.minimum(recent, layer.window)
        return np.asarray(read)


def least_block_tokens(layers: tuple[Layers, ...]) -> int:
    """Tokens of the smallest block that a state fits into; 1 without states.

    Examples
    --------
    Qwen3.5-27B: a state of 3,207,168 bytes beside 4,096 bytes per token.

    >>> least_block_tokens((Layers(Attention.STATE, 48, 3_207_168), Layers(Attention.FULL, 16, 4096)))
    784
    """
    state = max((layer.bytes for layer in layers if layer.is_state), default=0)
    return LEAST_BLOCK * math.ceil(state / (LEAST_BLOCK * _token_bytes(layers))) if state else 1


def _token_bytes(layers: tuple[Layers, ...]) -> int:
    per_token = [layer.bytes for layer in layers if not layer.is_state]
    return max(per_token) if per_token else -(-max(layer.bytes for layer in layers) // LEAST_BLOCK)
