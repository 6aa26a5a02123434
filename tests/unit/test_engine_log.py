"""KV capacity out of engines' logs: every form, the right start, and what is assumed is said."""

import pytest
from every import every
from hypothesis import given
from hypothesis import strategies as st

from kvplan.errors import ProfileError, UsageError
from kvplan.ingest import log_starts
from kvplan.ingest.engine_log import EngineLimits, ReadLog
from kvplan.ingest.engines import telling

BLOCKS = "INFO 01-30 03:19:14 kv_cache_utils.py:395] # GPU blocks: 1381\n"
TOKENS = "INFO 02-19 23:56:55 kv_cache_utils.py:524] GPU KV cache size: 32,000 tokens\n"
SERVER = "(APIServer pid=1) INFO 02-19 23:50:00 [api_server.py:1839] vLLM API server version 0.11.0\n"
ARGUMENTS = (
    "(APIServer pid=1) INFO 04-19 10:18:36 [utils.py:233] non-default args: {'model': 'm', "
    "'max_num_batched_tokens': 8192, 'max_num_seqs': 32, 'block_size': 32}\n"
)
SGLANG = (
    "[2026-06-28 15:16:45] max_total_num_tokens=2086558, chunked_prefill_size=8192, max_prefill_tokens=16384, "
    "max_running_requests=33, context_len=256000, available_gpu_mem=17.22 GB\n"
)
POOL = (
    "[2025-12-18 22:43:05 TP{rank}] KV Cache is allocated. #tokens: {tokens}, KV size: 0.13 GB, page_size=1\n"
)
TENSORRT = (
    "[TensorRT-LLM][INFO] Number of tokens per block: 32.\n",
    "[TensorRT-LLM][INFO] [MemUsageChange] Allocated 0.56 GiB for max tokens in paged KV cache (8224).\n",
    "[12/20/2025-04:21:10] [TRT-LLM] [I] max_seq_len=8224, max_num_requests=64, max_num_tokens=8192, "
    "max_batch_size=48\n",
)


def parsed(*lines: str) -> EngineLimits:
    return ReadLog("serve.log").add(lines).limits()


def limits(found: EngineLimits) -> tuple[int | None, int | None, int | None]:
    return found.block_tokens, found.max_num_seqs, found.max_num_batched_tokens


@every(
    ("line", "engine", "tokens"),
    [
        ("INFO 08-22 15:27:25 llm_engine.py:196] # GPU blocks: 1478, # CPU blocks: 2048", "vLLM", 1478 * 16),
        ("GPU blocks: 1478, CPU blocks: 2048", "vLLM", 1478 * 16),
        ("INFO 03-29 executor_base.py:111] # cuda blocks: 1395, # CPU blocks: 2340", "vLLM", 1395 * 16),
        (BLOCKS, "vLLM", 1381 * 16),
        (TOKENS, "vLLM", 32_000),
        (
            "INFO [kv_cache_utils.py:1148] GPU KV cache size: 446,320 tokens, Maximum concurrency for 8,192 tokens "
            "per request: 54.48x",
            "vLLM",
            446_320,
        ),
        (SGLANG, "SGLang", 2_086_558),
        (POOL.format(rank=0, tokens=60_000), "SGLang", 60_000),
        ("[x] KV Cache is allocated. dtype: torch.bfloat16, #tokens: 60000, K size: 1 GB", "SGLang", 60_000),
        (TENSORRT[1], "TensorRT-LLM", 8224),
        ("[TensorRT-LLM][INFO] Using 132608 tokens in paged KV cache.", "TensorRT-LLM", 132_608),
        ("INFO text_generation_router: Setting max batch total tokens to 446320", "TGI", 446_320),
        (
            '{"level":"INFO","message":"Setting max batch total tokens to 133696","line_number":328}',
            "TGI",
            133_696,
        ),
    ],
)
def test_every_form_of_statement_is_read(line: str, engine: str, tokens: int) -> None:
    found = parsed("something else\n", line)
    assert (found.engine, found.memory_tokens, found.line) == (engine, tokens, 2)
    assert found.stated_in[:18] == line[:18]


def test_a_block_size_that_is_nowhere_is_assumed_and_that_is_said() -> None:
    found = parsed(BLOCKS)
    assert found.block_tokens == 16
    assert found.notes == ("the log states no block size; vLLM's default of 16 tokens is assumed",)


@every("stated", ["block_size=32, enable", "'block_size': 32,", '"block_size":32', "--block-size 32"])
def test_blocks_have_the_size_that_the_engine_arguments_state(stated: str) -> None:
    found = parsed(f"args: {stated}\n", BLOCKS)
    assert (found.memory_tokens, found.block_tokens, found.notes) == (1381 * 32, 32, ())


def test_vllm_arguments_give_the_limits() -> None:
    assert limits(parsed(SERVER, ARGUMENTS, TOKENS)) == (32, 32, 8192)
    chunked = "INFO [scheduler.py:205] Chunked prefill is enabled with max_num_batched_tokens=2048.\n"
    assert limits(parsed(chunked, TOKENS)) == (None, None, 2048)


def test_sglang_states_limits_in_one_line() -> None:
    assert limits(parsed(SGLANG)) == (None, 33, 8192)
    whole = SGLANG.replace("chunked_prefill_size=8192", "chunked_prefill_size=-1")
    assert limits(parsed("server_args=ServerArgs(page_size=64)\n", whole)) == (64, 33, 16_384)


def test_tensorrt_states_blocks_before_and_limits_after() -> None:
    assert limits(parsed(*TENSORRT)) == (32, 48, 8192)
    assert limits(parsed(*TENSORRT[:2], *["chatter\n"] * 20, TENSORRT[2])) == (32, None, None)


def test_of_several_starts_the_last_counts_and_that_is_said() -> None:
    found = parsed(TOKENS, TOKENS.replace("32,000", "40,000").replace("23:56", "23:59"))
    assert (found.memory_tokens, found.line) == (40_000, 2)
    (note,) = found.notes
    assert note == (
        "2 KV capacities are stated one after the other; the last, in line 2, counts; "
        "before it: 32,000 tokens in line 1"
    )


def test_limits_of_an_earlier_start_are_not_borrowed() -> None:
    assert limits(parsed(SERVER, ARGUMENTS, TOKENS, SERVER, TOKENS)) == (None, None, None)
    assert limits(parsed(*TENSORRT, "[TRT-LLM] TensorRT-LLM version: 1.0\n", TENSORRT[1])) == (
        None,
        None,
        None,
    )


def test_a_start_in_two_phases_has_what_was_stated_between_them() -> None:
    """TensorRT-LLM measures with a small cache first; limits behind that one are those of the other too."""
    large = TENSORRT[1].replace("8224", "822432")
    for lines in ((*TENSORRT, large), (TENSORRT[1], TENSORRT[2], TENSORRT[0], large)):
        found = parsed(*lines)
        assert (found.memory_tokens, limits(found)) == (822_432, (32, 48, 8192))


def test_a_block_size_that_contradicts_the_capacity_is_left_out() -> None:
    """8,230 tokens are 257.2 blocks of 32."""
    found = parsed(TENSORRT[0], TENSORRT[1].replace("8224", "8230"))
    assert (found.memory_tokens, found.block_tokens) == (8230, None)
    assert found.notes == (
        "blocks of 32 tokens, as stated, are left out: 8,230 tokens are no multiple of that",
    )


def test_ranks_that_agree_are_one_start() -> None:
    ranks = [POOL.format(rank=rank, tokens=60_000) for rank in range(4)]
    total = SGLANG.replace("45]", "45 TP0]").replace("2086558", "60000")
    assert parsed(*ranks).notes == ()
    assert parsed(*ranks, total).notes == ()
    assert parsed(*ranks, total).max_num_seqs == 33
    assert parsed(*ranks, total).block_tokens == 1


def test_the_total_of_sglang_counts_before_its_pools() -> None:
    """A draft model has a pool of its own, before the total."""
    pools = [POOL.format(rank=0, tokens=60_000), POOL.format(rank=0, tokens=61_000)]
    draft = "[2025-12-18 22:43:05 TP0] Draft model loaded: d, max_total_num_tokens=7\n"
    found = parsed(*pools, draft, SGLANG.replace("2086558", "60000"))
    assert (found.memory_tokens, found.line, found.notes) == (60_000, 4, ())
    assert parsed(*pools).notes == ("a rank states several KV pools; its last one counts",)


@pytest.mark.parametrize("name", ["(EngineCore_DP{} pid=7{})", "(EngineCore_{} pid=7{})", "Engine 00{} {}:"])
def test_data_parallel_engines_are_replicas_and_the_capacity_is_of_one(name: str) -> None:
    lines = [f"{name.format(rank, rank)} {TOKENS}" for rank in range(2)]
    found = parsed(*lines)
    assert found.memory_tokens == 32_000
    assert found.notes == ("2 data-parallel engines; this is the capacity of one",)


def test_every_engine_is_compared_with_its_own_concurrency() -> None:
    """Lines of engines that start together are mixed."""
    sizes, factors = ("32,000", "16,000"), ("15.62", "7.81")
    lines = [
        f"(EngineCore_DP{rank} pid=1) GPU KV cache size: {size} tokens" for rank, size in enumerate(sizes)
    ]
    lines += [
        f"(EngineCore_DP{rank} pid=1) Maximum concurrency for 2,048 tokens per request: {factor}x"
        for rank, factor in enumerate(factors)
    ]
    found = parsed(*lines)
    assert found.memory_tokens == 16_000
    assert not any("concurrency" in note for note in found.notes)


def test_no_statement_is_an_error_that_names_what_is_looked_for() -> None:
    with pytest.raises(
        UsageError, match=r"serve\.log: states no KV capacity; .*max_total_num_tokens.*GPU KV cache size"
    ):
        parsed("INFO 07-28 Engine 000: Running: 8 reqs, GPU KV cache usage: 91.2%\n", "# CPU blocks: 2048\n")


@every(
    ("line", "seen"),
    [
        ("# GPU blocks: 0, # CPU blocks: 1024", "a KV capacity of 0 tokens"),
        ("# GPU blocks: -3", "a KV capacity of -48 tokens"),
        ("GPU KV cache size: 1,000,000,000,001 tokens", "an absurd KV capacity"),
        (f"GPU KV cache size: {'9' * 5000} tokens", "an absurd KV capacity"),
    ],
)
def test_a_capacity_that_cannot_be_is_an_error_with_its_line(line: str, seen: str) -> None:
    with pytest.raises(ProfileError, match=f"serve.log:2: {seen}; must be at least 1") as caught:
        parsed("first\n", line)
    assert caught.value.line == 2
    assert len(str(caught.value)) < 400


STATS = (
    "INFO [loggers.py:118] Engine 000: Avg prompt throughput: 100.0 tokens/s, Running: 8 reqs, GPU KV cache usage: "
    "50.0%, Prefix cache hit rate: {}%, External prefix cache hit rate: 90.0%\n"
)
PREFILL = "[2026-04-08 14:05:20 TP0] Prefill batch, #new-seq: 1, #new-token: {}, #cached-token: {}, token usage: 0.1\n"


def test_the_hit_rate_stated_last_is_that_of_the_start() -> None:
    found = parsed(TOKENS, STATS.format("12.0"), STATS.format("38.2"), "chatter\n")
    assert found.notes == ("the prefix cache found 38.2% of the prompt tokens (stated last in line 3)",)
    older = parsed(BLOCKS, "INFO metrics.py:471] Prefix cache hit rate: GPU: 26.05%, CPU: 99.00%\n")
    assert any(note.startswith("the prefix cache found 26.1% of") for note in older.notes)


def test_sglang_counts_the_tokens_of_its_prefill_batches() -> None:
    """1,000 found of 4,000; those of the start before do not count."""
    server = "server_args=ServerArgs(page_size=64)\n"
    lines = (server, SGLANG, PREFILL.format(10, 5000), server, SGLANG)
    found = parsed(
        *lines, PREFILL.format(1000, 0), PREFILL.format(2000, 1000), PREFILL.replace(",", ".", 1).format(0, 0)
    )
    assert found.notes[-1].startswith("the prefix cache found 25% of the prompt tokens (1,000 of 4,000")


BANNER = "(APIServer pid=1) INFO 04-15 07:10:41 [utils.py:299]  ▄▄ ▄█ █     █     █ ▀▄▀ █  version 0.19.1\n"
DEFAULTS = "(APIServer pid=1) INFO 04-15 07:22:41 [utils.py:233] non-default args: {'model': 'm'}\n"
NEGATIVE = "(EngineCore_DP0 pid=7) INFO [gpu_worker.py:298] Available KV cache memory: -0.94 GiB\n"
TOO_LONG = (
    "(EngineCore_DP0 pid=7) ERROR [core.py:708] ValueError: To serve at least one request with the models's max seq "
    "len (131072), (32.00 GiB KV cache is needed); the estimated maximum model length is 96256.\n"
)
FAILED = "(EngineCore_DP0 pid=7) ERROR [core.py:708] EngineCore failed to start.\n"
BACKEND = "(EngineCore_DP0 pid=7) ERROR [core.py:708] RuntimeError: no such backend\n"
NO_MEMORY = "RuntimeError: Not enough memory. Please try to increase --mem-fraction-static.\n"


@every(
    ("lines", "expected"),
    [
        ((BANNER, ARGUMENTS, BANNER, DEFAULTS, TOKENS), (None, None, None)),
        ((BANNER, ARGUMENTS, BANNER, TOKENS), (None, None, None)),
        ((ARGUMENTS, DEFAULTS, TOKENS), (None, None, None)),  # the banner is cut off
        ((DEFAULTS, ARGUMENTS, FAILED, SERVER, ARGUMENTS, TOKENS), (32, 32, 8192)),
        (("vLLM server version 0.19.1, serving model m\n", ARGUMENTS, TOKENS), (32, 32, 8192)),
    ],
)
def test_limits_of_a_start_that_crashed_do_not_leak(
    lines: tuple[str, ...], expected: tuple[int | None, ...]
) -> None:
    assert limits(parsed(*lines)) == expected


@every(
    ("arguments", "absent"),
    [
        (DEFAULTS, ("max_num_seqs", "max_num_batched_tokens", "gpus")),
        (ARGUMENTS, ("gpus",)),
        (DEFAULTS.replace("'}", "', 'max_num_"), ()),  # cut off: what follows is not known
    ],
)
def test_what_all_arguments_leave_out_is_the_default_of_the_engine(
    arguments: str, absent: tuple[str]
) -> None:
    assert parsed(SERVER, arguments, TOKENS).absent == absent


@every(
    ("lines", "line", "reason"),
    [
        (
            (SERVER, TOKENS, SERVER, FAILED, TOO_LONG),
            5,
            "length is 96256.*32,000 tokens in line 2.*head -n 2 serve.log",
        ),
        ((SERVER, NEGATIVE, FAILED), 2, "Available KV cache memory: -0.94 GiB"),
        ((SERVER, TOKENS, FAILED, BACKEND), 4, "no such backend"),  # while graphs are captured
        (
            (SGLANG, "server_args=ServerArgs()\n", NO_MEMORY),
            3,
            "Not enough memory.*2,086,558 tokens in line 1",
        ),
        ((FAILED,), 1, "EngineCore failed to start"),
    ],
)
def test_a_last_start_that_failed_is_refused_with_its_reason(
    lines: tuple[str, ...], line: int, reason: str
) -> None:
    with pytest.raises(ProfileError, match=f"^serve.log:{line}: the last start.* failed.*{reason}"):
        parsed(*lines)


def test_an_error_of_an_engine_that_serves_is_no_failed_start() -> None:
    error = "ERROR torch.OutOfMemoryError: CUDA out of memory.\n"
    assert parsed(SERVER, TOKENS, STATS.format("0.0"), error).memory_tokens == 32_000
    later = parsed(SERVER, TOKENS, SERVER)
    assert later.notes == ("a later start, from line 3 on, states no KV capacity",)


PREFIXES = {
    "chat-1": "chat-1    | ",
    "pod/embed-0/vllm": "[pod/embed-0/vllm] ",
    "rank-0 vllm": "rank-0 vllm ",
    "chat@2": "Oct 02 08:00:01 host chat@2[31]: ",
}


@every("other", list(PREFIXES)[1:])
def test_services_of_one_log_are_told_apart_and_one_is_chosen(other: str) -> None:
    """Their lines are mixed, and neither takes the other's limits; a proxy that states nothing is none."""
    fewer = ARGUMENTS.replace("'max_num_seqs': 32", "'max_num_seqs': 16")
    pairs = ((SERVER, SERVER), (ARGUMENTS, fewer), (TOKENS, TOKENS.replace("32,000", "9,000")))
    first, second = PREFIXES["chat-1"], PREFIXES[other]
    lines = ["proxy-1 | GET / args: 1\n", *(line for a, b in pairs for line in (first + a, second + b))]
    with pytest.raises(UsageError, match=f"2 services; choose one with --group: 'chat-1', '{other}'"):
        parsed(*lines)
    for name, tokens, seqs in (("chat-1", 32_000, 32), (other, 9_000, 16)):
        found = ReadLog("serve.log").add(lines).limits(service=name)
        assert (found.memory_tokens, found.max_num_seqs) == (tokens, seqs)
    assert parsed(*(line for line in lines if line.startswith(first))).max_num_seqs == 32


def test_settings_are_those_of_the_start() -> None:
    config = "Initializing a V1 LLM engine (v0.11.0) with config: model='/m/c', max_seq_len=16384, kv_cache_dtype=fp8\n"
    found = parsed(SERVER, ARGUMENTS, config, TOKENS)
    assert (found.max_model_len, found.parallelism) == (16_384, None)
    words = {"model": "/m/c", "kv_cache_dtype": "fp8", "quantization": "auto", "version": "0.11.0"}
    assert found.settings == words
    assert (
        parsed(SERVER, ARGUMENTS, TOKENS).settings["version"] in SERVER
    )  # which the line of arguments does not end


@given(
    st.lists(st.text("abG0 :_\rkv", max_size=12) | st.just("Decode batch. a"), max_size=20),
    st.lists(st.text("abG0_", min_size=1), max_size=4),
)
def test_lines_that_say_something_are_those_with_a_word(texts: list[str], words: list[str]) -> None:
    every = (*words, "Decode batch")
    expected = [(number, text) for number, text in enumerate(texts) if any(word in text for word in every)]
    found = list(telling(enumerate(texts), words))
    assert [line[:2] for line in found] == expected
    assert all((line.log is not None) == ("Decode batch" in line.text) for line in found)


def test_a_capacity_that_comes_again_without_end_is_searched_a_few_hundred_times(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    line = "INFO 07-28 06:40:49 [kv_cache_utils.py:1148] GPU KV cache size: 41,408 tokens"
    searched: list[int] = []
    search = log_starts._statement
    monkeypatch.setattr(log_starts, "_statement", lambda n, text: searched.append(n) or search(n, text))
    assert ReadLog("a.log").add([line] * 20_000).limits().memory_tokens == 41_408
    assert len(searched) < 1_000
