"""What layers of several kinds hold, block by block, and the published models."""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
from every import every
from hypothesis import given
from hypothesis import strategies as st
from slow_blocks import Allocator
from tiers import examples

from kvplan.model.kv_layout import Attention, KvLayout, Layers


def steps(prompt: int, chunk: int, decode: int) -> Iterator[tuple[int, int]]:
    """Tokens computed before each step, and in it."""
    done = 0
    while done < prompt:
        new = min(chunk, prompt - done)
        yield done, new
        done += new
    for token in range(decode):
        yield prompt + token, 1


KINDS = st.sampled_from([Attention.FULL, Attention.WINDOW, Attention.CHUNK, Attention.STATE])
LAYERS = st.builds(
    lambda kind, count, share, window: Layers(
        kind, count, 64 // share, window if kind in (Attention.WINDOW, Attention.CHUNK) else None
    ),
    KINDS,
    st.integers(1, 60),
    st.sampled_from([1, 2, 4]),
    st.integers(1, 70),
)


@given(
    st.lists(LAYERS, min_size=1, max_size=3),
    st.integers(1, 24),
    st.tuples(st.integers(1, 150), st.integers(1, 80), st.integers(0, 90), st.integers(0, 4)),
    st.integers(1, 4),
)
@examples(70)  # at night 2,000
def test_pool_tokens_are_those_of_an_allocator(
    kinds: list[Layers], block: int, request: tuple[int, int, int, int], states: int
) -> None:
    """Kept block by block: one request in chunks of its prompt, then token by token, with slots to spare."""
    layers = tuple(kinds)
    if any(one.is_state for one in layers):
        block = 16 * block
    layout = KvLayout(layers, block, states)
    counts = [one.count for one in layers]
    size = max(counts) if max(counts) * 2 < 3 * min(counts) else min(counts)
    assert layout.group_size == size
    prompt, chunk, decode, ahead = request
    most = max(one.bytes for one in layers if not one.is_state) if any(not o.is_state for o in layers) else 0
    tables = [
        (-(-one.count // size), one, None if one.is_state else Allocator(one, block * most // one.bytes))
        for one in layers
    ]
    for computed, new in steps(prompt, chunk, decode):
        held = sum(
            n * (states if table is None else table.step(computed, new, ahead)) for n, _, table in tables
        )
        found = layout.pool_tokens(np.array([computed]), np.array([computed + new + ahead]))
        assert found.tolist() == [block * held]


FULL, WINDOW, CHUNK, STATE = Attention
MODELS = {  # theory §10: bytes of a token that stays, tokens held whatever the length; layers by the published configs
    "gpt-oss-120b": ((Layers(WINDOW, 18, 2048, 128), Layers(FULL, 18, 2048)), 16, 36_864, 143),
    "Gemma-3-27B": ((Layers(WINDOW, 52, 8192, 1024), Layers(FULL, 10, 8192)), 16, 81_920, 6_234),
    "Llama-4-Scout": ((Layers(CHUNK, 36, 4096, 8192), Layers(FULL, 12, 4096)), 16, 49_152, 3 * 8192),
    "Qwen3-Next-80B": ((Layers(STATE, 36, 1_097_728), Layers(FULL, 12, 2048)), 544, 24_576, 1_632),
    "Qwen3.5-27B": ((Layers(STATE, 48, 3_207_168), Layers(FULL, 16, 4096)), 784, 65_536, 2_352),
    "DeepSeek-V3": ((Layers(FULL, 61, 1152),), 16, 70_272, 0),
}


@every("name", MODELS)
def test_published_models(name: str) -> None:
    layers, block, bytes_per_token, fixed = MODELS[name]
    layout = KvLayout(layers, block)
    assert (layout.bytes_per_token, layout.fixed_tokens) == (bytes_per_token, fixed)


def test_a_window_reaches_as_far_as_the_tokens_that_it_reads() -> None:
    """Without blocks: 5 tokens to read and the one computed is among them, once there are so many."""
    layout = KvLayout((Layers(WINDOW, 1, 8, window=5),), 1)
    before = np.arange(12)
    assert layout.pool_tokens(before, before + 1).tolist() == [1, 2, 3, 4] + [5] * 8


@pytest.mark.parametrize(
    ("layers", "block", "message"),
    [
        ((), 16, "no layers"),
        ((Layers(STATE, 3, 1000), Layers(FULL, 3, 10)), 96, "at least 112"),
        ((Layers(WINDOW, 3, 48, 16), Layers(FULL, 3, 64)), 16, "48 bytes; must divide .* 64"),
    ],
)
def test_what_cannot_be(layers: tuple[Layers, ...], block: int, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        KvLayout(layers, block)


@pytest.mark.parametrize("other", [Layers(STATE, 3, 128), Layers(WINDOW, 3, 32, 16)])
def test_layers_that_hold_every_token_are_alike(other: Layers) -> None:
    assert KvLayout((other, Layers(FULL, 3, 64)), 16).hybrid
    with pytest.raises(ValueError, match="must all have attention and the same bytes"):
        KvLayout((other, Layers(FULL, 3, 64)), 16, hybrid=False)


def test_a_window_that_holds_every_token_reads_its_last() -> None:
    """Two of six layers have a window of 20: 100 tokens are held in seven blocks of 16, and 20 read there."""
    layout = KvLayout((Layers(WINDOW, 2, 64, 20), Layers(FULL, 4, 64)), 16, hybrid=False)
    assert layout.pool_tokens(np.array([99]), np.array([100])).tolist() == [7 * 16]
    assert layout.read_tokens(np.array([100.0])).tolist() == [100 + 2 / 4 * 20]
    assert (layout.block_bytes, layout.bytes_per_token, layout.fixed_tokens) == (16 * 6 * 64, 6 * 64, 0)
    alone = KvLayout((Layers(WINDOW, 2, 64, 20),), 16, hybrid=False)  # nothing to hold more for
    assert alone.groups == replace(alone, hybrid=True).groups


@every(("kind", "window"), [(Attention.WINDOW, 20), (Attention.WINDOW, 3), (Attention.CHUNK, 24)])
def test_what_a_request_has_of_a_shared_beginning_is_counted_block_by_block(
    kind: Attention, window: int
) -> None:
    """A prompt of 45 tokens of which 40 are shared, in blocks of 4, and 30 answers, stage by stage."""
    layers = Layers(Attention.FULL, 1, 16), Layers(kind, 2, 16, window)
    layout, found, first, stages = KvLayout(layers, 4), 40, 46, 30
    once, each = 0, 0
    for group, one in zip(layout.groups, layers, strict=True):
        request = Allocator(one, 4)
        request.step(0, first - 1, 0)
        each += group.copies * found // 4  # all of it is there in the iteration that computes the prompt
        for computed in range(first, first + stages - 1):
            request.step(computed, 1, 0)
            each += group.copies * sum(block < found // 4 for block in request.blocks)
        reader = Allocator(one, 4)
        reader.step(0, found, 0)
        reader.step(found, 1, 0)
        once += group.copies * sum(block < found // 4 for block in reader.blocks)
    held, summed = layout.in_common(found, np.array([first]), np.array([stages]))
    assert (held, summed.tolist()) == (4 * once, [4 * each])
