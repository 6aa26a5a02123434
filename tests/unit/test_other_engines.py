"""Logs of engines and devices beside the usual: what they state, what is taken from it, and what is refused."""

import json
import random
from pathlib import Path

import numpy as np
import pytest
from every import every
from sampled import parse_samples

from kvplan.errors import UsageError
from kvplan.ingest.engine_log import EngineLimits, ReadLog
from kvplan.ingest.gathering import Asked, gather
from kvplan.ingest.reader import FileKind
from kvplan.ingest.timing.fit import NOTHING, fit_measured
from kvplan.ingest.timing.samples import Samples
from kvplan.model import Parallelism, Timing


def parsed(*lines: str) -> EngineLimits:
    return ReadLog("serve.log").add([f"{line}\n" for line in lines]).limits()


def samples(*lines: str, capacity: int | None = None) -> Samples:
    (found,) = parse_samples([f"{line}\n" for line in lines], "serve.log", capacity_tokens=capacity)
    assert isinstance(found, Samples)
    return found


# -- blocks of other devices ------------------------------------------------------------------------------------------

FITS = "INFO 02-05 10:22:01 [executor_base.py:115] Maximum concurrency for {} tokens per request: {}x"


@every(
    ("blocks", "tokens", "fits", "size"),
    [
        ("# HPU blocks: 6399, # CPU blocks: 910", 4096, 199.97, 128),  # published of Gaudi
        ("# hpu blocks: 2634, # CPU blocks: 910", 4096, 82.31, 128),
        ("# npu blocks: 3411, # CPU blocks: 585", 32_768, 13.32, 128),
        ("# cpu blocks: 9362, # CPU blocks: 0", 32_768, 4.57, 16),
        ("INFO cpu_executor.py:72] # CPU blocks: 4096", 8192, 16.0, 32),
        ("# tpu blocks: 1000, # CPU blocks: 0", 2048, 125.0, 256),
        ("# cuda blocks: 1395, # CPU blocks: 2340", 4096, 10.9, 32),  # not vLLM's default
        ("# npu blocks: 60, # CPU blocks: 0", 32_768, 0.23, 128),  # 123 to 128 fit: one power of two
    ],
)
def test_the_maximum_concurrency_settles_the_size_of_blocks(
    blocks: str, tokens: int, fits: float, size: int
) -> None:
    found = parsed(blocks, FITS.format(tokens, fits))
    count = int(blocks.partition("locks: ")[2].partition(",")[0])
    assert (found.memory_tokens, found.block_tokens) == (count * size, size)
    assert found.notes == (f"blocks have {size} tokens, by the maximum concurrency that the log states",)
    stats = (
        "Avg prompt throughput: 0.0 tokens/s, Avg generation throughput: 200.0 tokens/s, Running: 2 reqs, "
    )
    stats += "Waiting: 0 reqs, GPU KV cache usage: 50.0%"
    assert samples(blocks, FITS.format(tokens, fits), stats).kv_tokens == pytest.approx([count * size / 2])


@every(
    "lines",
    [
        ["# hpu blocks: 2634, # CPU blocks: 910"],
        ["# npu blocks: 3, # CPU blocks: 0", FITS.format(100_000, 0.01)],
        ["# tpu blocks: 1000, # CPU blocks: 0", FITS.format(2048, 0.0)],
        ["# hpu blocks: 2634, # CPU blocks: 910", *["chatter"] * 20, FITS.format(4096, 82.31)],
    ],
)
def test_blocks_of_a_device_without_a_size_are_refused(lines: list[str]) -> None:
    with pytest.raises(UsageError, match=r"serve.log:1: blocks of unknown size.*--capacity: # \wpu blocks"):
        parsed(*lines)


def test_a_stated_size_counts_before_the_one_that_fits() -> None:
    found = parsed(
        "block_size=64, device=hpu", "# hpu blocks: 2634, # CPU blocks: 0", FITS.format(4096, 82.31)
    )
    assert (found.memory_tokens, found.block_tokens) == (2634 * 64, 64)
    assert any("+100%" in note for note in found.notes)


# -- llama.cpp and LMDeploy -------------------------------------------------------------------------------------------

LLAMA = (
    "llama_context: n_seq_max     = 4",
    "llama_context: n_ctx         = 32768",
    "llama_context: n_ctx_seq     = 8192",
    "llama_context: n_batch       = 2048",
    "llama_context: n_ubatch      = 512",
    "llama_context: kv_unified    = false",
)
TURBOMIND = (
    "[TM][INFO] [BlockManager] block_size = 8.000 MB",
    "[TM][INFO] [BlockManager] max_block_count = 6214",
    "[TM][INFO] [BlockManager] chunk_size = 6214",
)
CONFIG = (
    "TurbomindEngineConfig(dtype='auto', tp=2, session_len=None, max_batch_size=256, cache_block_seq_len={}, "
    "max_prefill_token_num=8192)"
)


@every(
    ("lines", "engine", "memory", "block", "seqs", "batched", "said"),
    [
        (LLAMA, "llama.cpp", 32_768, None, 4, 2048, "a request has 8,192 tokens at most"),
        (
            ["0.03.1 I srv load_model: initializing, n_slots = 4, n_ctx_slot = 8192, kv_unified = 'false'"],
            *("llama.cpp", 32_768, None, 4, None),
            "4 slots with room of their own: a request has 8,192 tokens at most",
        ),
        (
            ["0.03.1 I srv load_model: initializing, n_slots = 4, n_ctx_slot = 262144, kv_unified = 'true'"],
            *("llama.cpp", 262_144, None, 4, None),
            "4 slots share one pool: a request has 262,144 tokens at most",
        ),
        (
            [
                "llama_new_context_with_model: n_ctx      = 4096",
                "llama_new_context_with_model: n_batch    = 512",
                "srv          init: initializing slots, n_slots = 2",
                "slot         init: id  0 | task -1 | new slot n_ctx_slot = 2048",
                "slot         init: id  1 | task -1 | new slot n_ctx_slot = 2048",
            ],
            *("llama.cpp", 4096, None, 2, 512),
            "",
        ),
        (
            [
                'INFO [                    init] initializing slots | tid="1" timestamp=1 n_slots=2',
                *(
                    f'INFO [ init] new slot | tid="1" timestamp=1 id_slot={i} n_ctx_slot=2048'
                    for i in range(2)
                ),
                "llama_new_context_with_model: n_ctx      = 4096",
            ],
            *("llama.cpp", 4096, None, 2, None),
            "",
        ),
        (  # the draft model's context is smaller
            [*LLAMA, "llama_context: n_ctx         = 8192"],
            *("llama.cpp", 32_768, None, 4, 2048),
            "",
        ),
        (  # another start, which is smaller
            ["main: loading model", *LLAMA, "main: loading model", LLAMA[1].replace("32768", "16384")],
            *("llama.cpp", 16_384, None, None, None),
            "2 KV capacities are stated",
        ),
        (TURBOMIND, "LMDeploy", 6214 * 64, 64, None, None, "LMDeploy's default of 64 tokens is assumed"),
        (
            ["  max_batch_size: 100", '  "cache_block_seq_len": 32,', *TURBOMIND],
            *("LMDeploy", 6214 * 32, 32, 100, None),
            "",
        ),
        ([CONFIG.format(128), *TURBOMIND], "LMDeploy", 6214 * 128, 128, 256, 8192, ""),
        (
            [
                "[TM][WARNING] [LlamaTritonModel] `cache_block_seq_len` is not set, default to 128.",
                *TURBOMIND,
            ],
            *("LMDeploy", 6214 * 128, 128, None, None),
            "",
        ),
        (
            [
                "lmdeploy - INFO - cache_engine.py:36 - build CacheEngine with config:CacheConfig(max_batches=128, "
                "block_size=32, num_cpu_blocks=128, num_gpu_blocks=21, window_size=-1, max_prefill_token_num=4096)"
            ],
            *("LMDeploy", 21 * 32, 32, 128, 4096),
            "",
        ),
    ],
)
def test_other_engines_state_capacity_and_limits(
    lines: list[str],
    engine: str,
    memory: int,
    block: int | None,
    seqs: int | None,
    batched: int | None,
    said: str,
) -> None:
    found = parsed("chatter", *lines)
    limits = found.max_num_seqs, found.max_num_batched_tokens
    assert (found.engine, found.memory_tokens, found.block_tokens, *limits) == (
        engine,
        memory,
        block,
        seqs,
        batched,
    )
    assert any(said in note for note in found.notes) or not said


def test_lmdeploy_logs_averages() -> None:
    average = (
        "[2026-01-01 10:00:00 Engine 000] Avg thr (in/out): {} / {} tokens/s, Server (succeeded/failed/routed/waiting)"
        ": 1 / 0 / 1 / 0, Engine (running/waiting): {} / 0, KV cache: {}%, "
    )
    drafts = "SpecDecoding metrics: Draft acceptance rate: 50.00%"
    found = samples(
        *TURBOMIND,
        average.format(100.0, 400.0, 8, 50.0),
        average.format(100.0, 400.0, 8, 25.0) + "Prefix cache hit rate: 40.0%, ",
        average.format(0.0, 400.0, 8, 25.0) + drafts,
        average.format(100.0, 400.0, 8, 25.0)[:150],
    )
    assert found.seconds == pytest.approx([0.02, 0.02])  # 8 running, each a token
    assert found.prefill_tokens == pytest.approx([2.0, 1.2])
    assert found.kv_tokens == pytest.approx([6214 * 32, 6214 * 16])
    assert sorted(left.count for left in found.left_out) == [1, 1]


# -- TensorRT-LLM's iterations ----------------------------------------------------------------------------------------

LAW = Timing(d0=7e-3, d1=0.12e-6, d2=45e-6, d3=20e-6)
TENSORRT = "[08/04/2026-19:08:01] [TRT-LLM] [I] [_torch][RANK {rank}] iter = {n}, global_rank = {rank}, rank = {rank}, "
STATES = "states = {{'num_ctx_requests': {c}, 'num_ctx_tokens': {p}, 'num_generation_tokens': {g}"
TIMES = "host_step_time = {ms}ms, prev_device_step_time = N/A, timestamp = 2026-08-04 19:08:13, "
FETCHED = "currank_total_requests = 1/8, "
USED = f"{TENSORRT}num_scheduled_requests = {{b}}, kv_cache_util = 0.250, {FETCHED}{TIMES}{STATES}}}}}"
NEW = USED[:-2] + ", 'cached_kv_tokens': {k}}}"
OLD = f"{TENSORRT}{FETCHED}{TIMES}num_scheduled_requests: {{b}}, {STATES}}}}}"
BATCH = {"rank": 0, "n": 1, "c": 1, "p": 100, "g": 4, "b": 5, "k": 900, "ms": 12.5}


def iteration(form: str = NEW, **values: object) -> str:
    return form.format(**(BATCH | values))


def drawn(count: int = 2000) -> list[dict[str, float]]:
    """Iterations of the law, from 1 request to a full batch, with and without prompts."""
    rng = random.Random(7)
    batches = []
    for n in range(count):
        g, p = rng.randint(1, 64), rng.choice([0, 0, 128, 700, 2048])
        k, c = sum(rng.randint(50, 4000) for _ in range(g)), int(p > 0)
        seconds = LAW.d0 + LAW.d1 * k + LAW.d2 * p + LAW.d3 * (g + c)
        batches.append({"n": n, "c": c, "p": p, "g": g, "b": g + c, "k": k, "ms": round(1e3 * seconds, 6)})
    return batches


def as_stats(batch: dict[str, float]) -> dict[str, object]:
    """One iteration of /metrics, in blocks of a token."""
    requests = {"numContextRequests": batch["c"], "numGenRequests": batch["g"], "numCtxTokens": batch["p"]}
    kv = {"maxNumBlocks": 400_000, "tokensPerBlock": 1, "usedNumBlocks": batch["k"]}
    return {
        "iter": batch["n"],
        "iterLatencyMS": batch["ms"],
        "inflightBatchingStats": requests,
        "kvCacheStats": kv,
    }


@pytest.mark.parametrize("as_json", [False, True])
def test_the_law_comes_out_of_iterations(as_json: bool) -> None:
    stats = json.dumps([as_stats(batch) for batch in drawn()], indent=1).splitlines()
    lines = stats if as_json else [iteration(**batch) for batch in drawn()]
    law = fit_measured([samples(*lines)], NOTHING.timing).timing
    for name in ("d0", "d1", "d2", "d3"):
        assert getattr(law, name) == pytest.approx(getattr(LAW, name), rel=0.02), name


@every(
    ("line", "reason"),
    [
        (iteration(g=8), "drafts"),
        (iteration(OLD), "neither cached_kv_tokens nor kv_cache_util"),
        (iteration(b=0, c=0, p=0, g=0), "nothing was generated"),
        (iteration()[:-1], "cut off"),
        (iteration().replace("12.5ms", "0.0125s"), "unknown form"),
        (iteration().replace("12.5ms", "N/A"), "unknown form"),
        (iteration(rank=1, n=0, ms=8.0), "by another rank"),
    ],
)
def test_an_iteration_that_says_too_little_is_left_out(line: str, reason: str) -> None:
    found = samples(iteration(n=0), line)
    assert found.kv_tokens.tolist() == [900.0]
    assert [(reason in left.reason, left.count, left.line) for left in found.left_out] == [(True, 1, 2)]


def test_usage_is_that_of_the_capacity_that_is_stated() -> None:
    usage = iteration(USED)
    stated = (
        "[TensorRT-LLM][INFO] [MemUsageChange] Allocated 0.56 GiB for max tokens in paged KV cache (8224)."
    )
    assert samples(stated, usage).kv_tokens.tolist() == [2056.0]
    assert samples(stated, usage, capacity=4000).kv_tokens.tolist() == [1000.0]
    with pytest.raises(UsageError, match=r"serve.log:1: KV usage is a share .* --capacity"):
        samples(usage)


def test_ranks_with_requests_of_their_own_have_an_iteration_each() -> None:
    found = samples(iteration(rank=0), iteration(rank=1, k=400), iteration(rank=1, n=2))
    assert found.kv_tokens.tolist() == [900.0, 400.0, 900.0]


def test_metrics_without_a_batch_or_with_drafts_are_left_out() -> None:
    good = as_stats(drawn(1)[0])
    others = [
        {"iter": 2, "iterLatencyMS": 7.0, "kvCacheStats": good["kvCacheStats"]},
        good | {"specDecodingStats": {"numDraftTokens": 3}},
        good | {"inflightBatchingStats": {"numScheduledRequests": 0, "numCtxTokens": 0}},
    ]
    found = samples(*map(json.dumps, [good, *others]))
    assert np.size(found.seconds) == 1
    assert [left.count for left in found.left_out] == [1, 1, 1]
    assert any("--capacity 400000" in note for note in found.notes)
    for wrong in ({"iterLatencyMS": "7 ms"}, {"kvCacheStats": {"usedNumBlocks": -1, "tokensPerBlock": 32}}):
        with pytest.raises(UsageError, match="must be a number"):
            samples(json.dumps(good | wrong))


# -- what a profile gets ----------------------------------------------------------------------------------------------


def test_an_engine_that_is_not_simulated_brings_no_defaults_of_another(tmp_path: Path) -> None:
    path = tmp_path / "llama.log"
    path.write_text("\n".join(LLAMA))
    gathered = gather({FileKind.LOG: [path]}, Asked())
    gpu = {"memory_tokens": 32_768, "max_num_seqs": 4, "max_num_batched_tokens": 2048}
    assert gathered.profile.tables["gpu"] == gpu
    assert any("how llama.cpp schedules is not known" in note for note in gathered.notes)


@every(
    ("line", "reason"),
    [(iteration(OLD), "neither cached_kv_tokens nor kv_cache_util"), (iteration(g=9), "with drafts")],
)
def test_a_log_whose_iterations_are_all_left_out_is_refused_with_the_reason(
    line: str, reason: str, tmp_path: Path
) -> None:
    path = tmp_path / "iterations.log"
    path.write_text(f"{line}\n" * 3)
    with pytest.raises(UsageError, match=f"3 rows: .*{reason}"):
        gather({FileKind.LOG: [path]}, Asked())


# -- parallelism ------------------------------------------------------------------------------------------------------

VLLM_ARGUMENTS = (
    "INFO 08-07 21:32:22 [api_utils.py:273] non-default args: {'model': 'm', %s, 'max_num_seqs': 256}"
)
VLLM_CONFIG = (
    "(EngineCore_DP0 pid=7) INFO Initializing a V1 LLM engine (v0.25.0) with config: model='m', max_seq_len=9216, "
    "tensor_parallel_size=8, pipeline_parallel_size=2, data_parallel_size=1, decode_context_parallel_size=4, seed=0"
)
VLLM_CAPACITY = (
    "(EngineCore_DP%d pid=7) INFO 08-07 21:33:00 [kv_cache_utils.py:524] GPU KV cache size: %s tokens"
)
SGLANG_ARGUMENTS = (
    "[2025-10-02 10:00:00] server_args=ServerArgs(model_path='m', tp_size=8, pp_size=1, dp_size=%d, %s)"
)
SGLANG_CAPACITY = (
    "[2025-10-02 10:02:00 DP0 TP0 EP0] max_total_num_tokens=500000, chunked_prefill_size=1024, "
    "max_prefill_tokens=16384, max_running_requests=32, context_len=163840"
)
TRTLLM_ARGUMENTS = (
    "[TensorRT-LLM][INFO] args: tensor_parallel_size=8 pipeline_parallel_size=1 %s max_batch_size=64"
)
TRTLLM_CAPACITY = (
    "[TensorRT-LLM][INFO] [MemUsageChange] Allocated 9.5 GiB for max tokens in paged KV cache (8224)."
)


ALL_EXPERTS = "'data_parallel_size': 8, 'enable_expert_parallel': True"
TWO_OF_FOUR = "'tensor_parallel_size': 4, 'data_parallel_size': 2"


@every(
    ("arguments", "capacity", "ranks"),
    [
        # as of a start of DeepSeek-V4-Flash on 8 B200, vLLM issue 51454
        (VLLM_ARGUMENTS % ALL_EXPERTS, VLLM_CAPACITY % (0, "9"), Parallelism(1, 8, 8)),
        (VLLM_ARGUMENTS % TWO_OF_FOUR, VLLM_CAPACITY % (0, "9"), Parallelism(4, 2)),
        (VLLM_CONFIG, VLLM_CAPACITY % (0, "9"), Parallelism(8, pipeline=2, context=4)),
        (VLLM_ARGUMENTS % "'block_size': 16", VLLM_CAPACITY % (0, "9"), None),
        (
            SGLANG_ARGUMENTS % (8, "ep_size=8, enable_dp_attention=True"),
            SGLANG_CAPACITY,
            Parallelism(1, 8, 8),
        ),
        (SGLANG_ARGUMENTS % (2, "ep_size=1, enable_dp_attention=True"), SGLANG_CAPACITY, Parallelism(4, 2)),
        # copies of the whole model, which are replicas
        (
            SGLANG_ARGUMENTS % (2, "ep_size=4, enable_dp_attention=False"),
            SGLANG_CAPACITY,
            Parallelism(8, 1, 4),
        ),
        (
            TRTLLM_ARGUMENTS % "moe_expert_parallel_size=4 enable_attention_dp=True",
            TRTLLM_CAPACITY,
            Parallelism(1, 8, 4),
        ),
        (TRTLLM_ARGUMENTS % "enable_attention_dp=False", TRTLLM_CAPACITY, Parallelism(8)),
    ],
)
def test_logs_say_how_gpus_share_the_model(arguments: str, capacity: str, ranks: Parallelism | None) -> None:
    assert parsed(arguments, capacity).parallelism == ranks


def test_a_profile_of_ranks_has_the_capacity_of_one(tmp_path: Path) -> None:
    log = tmp_path / "serve.log"
    arguments = VLLM_ARGUMENTS % "'data_parallel_size': 2, 'enable_expert_parallel': True"
    log.write_text("\n".join((arguments, VLLM_CAPACITY % (0, "500,016"), VLLM_CAPACITY % (1, "499,984"), "")))
    profile = gather({FileKind.LOG: [log]}, Asked()).profile
    gpu = profile.tables["gpu"]
    assert {key: gpu[key] for key in ("memory_tokens", "max_num_seqs")} == {
        "memory_tokens": 499_984,
        "max_num_seqs": 256,
    }
    assert {key: gpu[key] for key in gpu if "parallel" in key} == {"data_parallel": 2, "expert_parallel": 2}


def test_a_log_that_few_ranks_wrote_to_says_how_many_there_are() -> None:
    lines = (VLLM_ARGUMENTS % ALL_EXPERTS, *(VLLM_CAPACITY % (rank, "500,016") for rank in range(2)))
    assert "8 data-parallel engines; this is the capacity of one" in parsed(*lines).notes


@every("number", [10_001, 999_999])
def test_ranks_that_no_replica_has_are_refused(tmp_path: Path, number: int) -> None:
    log = tmp_path / "serve.log"
    arguments = VLLM_ARGUMENTS % f"'data_parallel_size': {number}"
    log.write_text(f"{arguments}\n{VLLM_CAPACITY % (0, '500,016')}\n")
    with pytest.raises(UsageError, match=rf"gpu[.]data_parallel: must be at most 10,000, not {number}"):
        gather({FileKind.LOG: [log]}, Asked())


def test_ranks_that_do_not_go_together_are_refused_by_key() -> None:
    with pytest.raises(UsageError, match=r"does not go with the rest: gpu[.]expert_parallel: must divide"):
        gather({}, Asked(capacity=100_000, dp=8, ep=3))
