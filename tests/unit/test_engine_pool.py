"""Blocks of vLLM's pool from what it logs: start-up lines of real servers, and lines that do not go together."""

from collections.abc import Iterable
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvplan.errors import ProfileError
from kvplan.ingest.engine_log import EngineLimits, ReadLog
from kvplan.ingest.kv_pool import find_pools, most_blocks
from kvplan.model import Replica
from kvplan.model.kv_layout import Attention, KvLayout, Layers

FULL, WINDOW, CHUNK, STATE = Attention
GIB = 2**30
QWEN = KvLayout((Layers(FULL, 16, 4096), Layers(STATE, 48, 3_207_168)), 784)
QWEN_FP8_TP2 = KvLayout((Layers(FULL, 16, 1024), Layers(STATE, 48, 3_207_168 // 2)), 1568)
SCOUT_TP8 = KvLayout((Layers(FULL, 12, 512), Layers(CHUNK, 36, 512, 8192)), 16)
GEMMA = KvLayout((Layers(FULL, 10, 8192), Layers(WINDOW, 50, 8192, 1024)), 16)

# github.com/vllm-project/vllm/issues/40691; github.com/mitchross/talos-argocd-proxmox/pull/1995; Llama-4-Scout on 8
# GPUs; github.com/tenstorrent/tt-xla/issues/5727
QWEN_LINES = (
    "INFO [kv_cache_utils.py:1319] GPU KV cache size: 290,864 tokens",
    "INFO [kv_cache_utils.py:1324] Maximum concurrency for 32,768 tokens per request: 33.04x",
)
QWEN_FP8_LINES = (
    "GPU KV cache size: 302,921 tokens",
    "Maximum concurrency for 131,072 tokens per request: 2.31x",
)
SCOUT_LINES = (
    "GPU KV cache size: 3,919,664 tokens",
    "Maximum concurrency for 8,388,608 tokens per request: 1.86x",
)


def parsed(lines: Iterable[str], layout: KvLayout | None, batched: int | None = 8192) -> EngineLimits:
    base = Replica(
        10**9,
        layout.block_tokens if layout else 16,
        max_num_batched_tokens=batched,
        prefix_caching=False,
        layout=layout,
    )
    return ReadLog("serve.log").add(lines).limits(base)


def test_tokens_over_the_groups() -> None:
    """42 blocks of 784 hold 32,768 tokens, and three groups a state each: 1,487 / 45 = 33.04; 1,487 // 4 = 371."""
    found = parsed(QWEN_LINES, QWEN, 16_384)
    assert most_blocks(QWEN, 32_768, 16_384) == 45
    assert (found.layout, found.prefix_caching) == (QWEN, False)
    assert (found.memory_tokens, found.block_tokens) == (1487 * 784, 784)
    assert found.notes == (
        "1,487 blocks: 290,864 tokens are taken as blocks of 784 over 4 groups",
        "prefix caching of states is off, by the blocks that a request takes",
    )


def test_tokens_of_the_maximum_concurrency() -> None:
    """84 blocks of 1,568 and two states in each of three groups: 208 / 90 · 131,072 = 302,921.96."""
    found = parsed(QWEN_FP8_LINES, QWEN_FP8_TP2)
    assert (found.layout.state_blocks, found.prefix_caching) == (2, True)
    assert most_blocks(found.layout, 131_072, 8192) == 90
    assert found.memory_tokens == 208 * 1568
    assert found.notes == (
        "208 blocks: 302,921 tokens are taken as the maximum concurrency, 2.31111, times 131,072 tokens",
        "prefix caching of states is on, by the blocks that a request takes",
    )


@pytest.mark.parametrize(("states", "cached"), [(4, False), (5, True)])
def test_drafts_have_states_of_their_own(states: int, cached: bool) -> None:
    """With three drafts 84 blocks of 1,568, and 4 states in each of three groups, or 5: 208 / 96, 208 / 99."""
    layout = replace(QWEN_FP8_TP2, state_blocks=4)
    most = 84 + 3 * states
    tokens = int(208 / most * 131_072)
    lines = (
        f"GPU KV cache size: {tokens:,} tokens",
        f"Maximum concurrency for 131,072 tokens per request: {208 / most:.2f}x",
    )
    found = parsed(lines, layout)
    assert (found.memory_tokens, found.prefix_caching) == (208 * 1568, cached)
    assert found.layout == replace(layout, state_blocks=states)


def test_chunks_beside_the_tokens_of_an_iteration() -> None:
    """524,288 blocks, and (8,192 + 8,192) / 16 in each of three groups; 89.71 GiB hold 979,880 blocks, give or take."""
    found = parsed(SCOUT_LINES, SCOUT_TP8)
    assert most_blocks(SCOUT_TP8, 8_388_608, 8192) == 524_288 + 3 * 1024
    blocks = found.memory_tokens // 16
    assert f"{blocks / 527_360:.2f}" == "1.86"
    assert blocks // 4 * 16 == 3_919_664
    of_memory = int(89.71 * GIB) // SCOUT_TP8.block_bytes
    assert of_memory // 4 * 16 == pytest.approx(3_919_664, abs=200)
    assert blocks == pytest.approx(of_memory, abs=60)  # two digits of the memory


def test_windows_hold_every_token_where_the_log_or_its_version_says_so() -> None:
    """A real start (tt-xla, issue 5727) states 7,584 tokens, which are 474 blocks of 16 in all 60 layers."""
    disabled = "WARNING [kv_cache_utils.py:1339] Hybrid KV cache manager is disabled for this hybrid model"
    lines = (
        "INFO [kv_cache_utils.py:1733] GPU KV cache size: 7,584 tokens",
        "INFO [kv_cache_utils.py:1734] Maximum concurrency for 128 tokens per request: 59.25x",
    )
    every_token = replace(GEMMA, hybrid=False)
    flag = "INFO [utils.py:254] non-default args: {'model': 'm', 'disable_hybrid_kv_cache_manager': True}"
    for found in (
        parsed((disabled, *lines), GEMMA),
        parsed((flag, *lines), GEMMA),
        parsed(lines, every_token),
    ):
        assert (found.layout, found.memory_tokens) == (every_token, 7584)
        assert (
            "474 blocks: 7,584 tokens, for every layer holds every token, of windows and chunks too"
            in found.notes
        )
    unlike = KvLayout((Layers(FULL, 10, 4096), Layers(WINDOW, 50, 8192, 1024)), 16)
    found = parsed((disabled, *lines), unlike)
    assert (found.layout, found.memory_tokens) == (None, 7584)


def test_blocks_are_those_of_the_pool() -> None:
    """What states take of them is not said."""
    for layout in (GEMMA, QWEN):
        found = parsed(["# GPU blocks: 1381"], layout)
        assert (found.memory_tokens, found.layout) == (1381 * layout.block_tokens, layout)
        assert found.prefix_caching is None
        assert not any("caching of states" in note for note in found.notes)


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (
            (QWEN_LINES[0], QWEN_LINES[1].replace("33.04", "30.04")),
            r"^serve.log:1: contradicts line 2, with 4 groups of layers in blocks of 784 as in the base, and 45 blocks "
            r"a request of 32,768 tokens with 8,192 batched: .*290,864 tokens \| .*30\.04x$",
        ),
        (QWEN_LINES[:1], r"^serve.log:1: no maximum concurrency after it, .*290,864 tokens$"),
        (
            ["max_total_num_tokens=2086558"],
            r"^serve.log:1: SGLang has no pool that layers of several kinds share",
        ),
    ],
)
def test_lines_that_do_not_go_together(lines: Iterable[str], message: str) -> None:
    with pytest.raises(ProfileError, match=message):
        parsed(lines, QWEN)


@given(
    st.sampled_from([QWEN, QWEN_FP8_TP2, SCOUT_TP8, GEMMA]),
    st.integers(100, 10**6),
    st.integers(1024, 10**6),
    st.sampled_from([2048, 8192, 16_384]),
    st.booleans(),
)
def test_what_an_engine_would_log_is_read_back(
    layout: KvLayout, blocks: int, length: int, batched: int, newer: bool
) -> None:
    most = most_blocks(layout, length, batched)
    groups = sum(group.copies for group in layout.groups)
    tokens = int(blocks / most * length) if newer else blocks // groups * layout.block_tokens
    pools = find_pools(layout, tokens, length, float(f"{blocks / most:.2f}"), batched)
    assert blocks in {pool.blocks for pool in pools if pool.layout == layout}
    told = {f"{pool.blocks / most_blocks(pool.layout, length, batched):.2f}" for pool in pools}
    assert told == {f"{blocks / most:.2f}"}


MOE = KvLayout((Layers(FULL, 10, 1024), Layers(STATE, 30, 2_146_304)), 2096)
MOE_LINES = (
    "GPU KV cache size: 567,978 tokens",
    "Maximum concurrency for 131,072 tokens per request: 4.33x",
)
ON, OFF = (f"non-default args: {{'enable_prefix_caching': {value}}}" for value in (True, False))
MEMORY = "Available KV cache memory: {} GiB"


@pytest.mark.parametrize(
    ("before", "blocks", "caches", "open"),
    [
        ((ON,), 299, True, False),
        ((OFF,), 286, False, False),
        ((MEMORY.format("5.98"),), 299, True, False),
        ((MEMORY.format("5.72"),), 286, False, False),
        ((ON, MEMORY.format("9.99")), 299, True, False),  # of which no reading makes anything
        ((), 286, False, True),
    ],
)
def test_memory_and_prefix_caching_settle_which_reading_holds(
    before: tuple[str, ...], blocks: int, caches: bool, open: bool
) -> None:
    """286 / 66 = 299 / 69, of 21,463,040 bytes each: 5.717 or 5.977 GiB."""
    found = parsed([*before, *MOE_LINES], MOE)
    assert (found.memory_tokens, found.prefix_caching) == (blocks * 2096, caches)
    assert any("2 readings fit the two lines" in note for note in found.notes) == open


@pytest.mark.parametrize(("drafts", "block", "blocks"), [(3, 1600, 424), (3, 1600, 425), (0, 1600, None)])
def test_drafts_make_blocks_larger(drafts: int, block: int, blocks: int | None) -> None:
    """164 blocks of 1,600 tokens and 5 states in each of three groups: 424 / 179, 425 / 179."""
    layout = KvLayout((Layers(FULL, 16, 1024), Layers(STATE, 48, 1_603_584)), 1568)
    arguments = "args: {'enable_prefix_caching': True, 'speculative_config': {'num_speculative_tokens': %d}}"
    lines = [
        "non-default " + arguments % drafts,
        f"GPU KV cache size: {int((blocks or 424) / 179 * 262_144):,} tokens",
        "Maximum concurrency for 262,144 tokens per request: 2.37x",
    ]
    if blocks is None:
        with pytest.raises(ProfileError, match="contradicts line 3"):
            parsed(lines, layout)
        return
    found = parsed(lines, layout)
    assert (found.memory_tokens, found.block_tokens, found.prefix_caching) == (blocks * block, block, True)
