"""A profile as settings of engines: flags worked out by hand, and the report's advice among them."""

import json
import math
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest
import shipped
from every import every
from measured import UNDRAINED
from strategies import mix_model

from kvplan.analysis.equilibrium import sustainable_rate
from kvplan.emit import engine
from kvplan.emit.settings import EngineSettings, engine_settings_of, flags_of_profile, for_engine, order_notes
from kvplan.engine import has_intervals, has_priorities
from kvplan.errors import UsageError
from kvplan.model import (
    Admission,
    Engine,
    EngineName,
    Parallelism,
    Plan,
    Prefill,
    Replica,
    RequestClass,
    ServingModel,
    Timing,
)
from kvplan.model.drafts import Drafts
from kvplan.model.gaps import Exponential
from kvplan.model.kv_layout import Attention, KvLayout, Layers
from kvplan.model.replica import Offload
from kvplan.model.sessions import Reuse, SharedPrompt
from kvplan.report.assembly import Analyses, ProfileIdentity
from kvplan.report.words import Status
from kvplan.show import settings
from kvplan.simulation.policies import POLICIES
from kvplan.simulation.policies.protocol import Scenario, Settings
from kvplan.simulation.requests import Requests
from kvplan.study.advice import Advice
from kvplan.study.warm_cache import Setting

# A request holds 16 … 25 tokens, 205 in all over ten iterations: 5 admissions an iteration fill the memory.
ONE = mix_model((15, 10, 0.1), memory=1025, prefill="fused", timing=Timing(1.0, d2=0.125))
TIER = Offload(800_000, 5e-6, memory_bytes=800_000 * 131_072)
WATERMARK = Advice((Setting("watermark", 0.019),), 0.0466, True, "vLLM of June 2026", 0.39, 0.38)
SEATS = Advice((Setting("max_num_seqs", 46),), 0.03, True, None, 0.39, 0.4)
BOTH = Advice((Setting("max_num_seqs", 50), Setting("shed_after", 4.5)), 0.09, True, None, 0.1, 0.1)


@cache
def report_of(name: str, model: ServingModel, *advice: Advice, collapses: bool = False) -> Any:
    """A report of which only those blocks are made that are looked at."""
    known = {"advice": advice, "drain": UNDRAINED, "profile": ProfileIdentity("a model", "5e6f" * 16)}
    known |= {"status": Status.NEEDS_CAP} if collapses else {}
    return Analyses(for_engine(engine(name), model), Plan(), known)


def written(
    name: str, model: ServingModel, *advice: Advice, collapses: bool = False
) -> tuple[EngineSettings, Any]:
    report = report_of(name, model, *advice, collapses=collapses)
    return engine_settings_of(engine(name), report, model, Plan()), report


def flags(name: str, model: ServingModel, *advice: Advice, collapses: bool = False) -> dict[str, str | None]:
    found, _ = written(name, model, *advice, collapses=collapses)
    return {flag.flag: flag.value for flag in found.start.flags}


def limited(**limits: Any) -> ServingModel:
    return replace(ONE, replica=replace(ONE.replica, **limits))


def cached(tier: Offload | None = TIER) -> ServingModel:
    one = RequestClass("a", 3000, (200,), (1.0,), 1.0, reuse=Reuse(3000, 0.8, Exponential(60.0)))
    return ServingModel(
        (one,),
        Timing(0.012, 1e-7, 60e-6),
        Replica(400_000, 16, gpus=2, offload=tier, parallelism=Parallelism(2)),
    )


def test_what_the_profile_says_is_written_in_the_words_of_each_engine() -> None:
    both = limited(max_num_seqs=64, max_num_batched_tokens=512)
    assert flags("vllm", both) == {"--max-num-seqs": "64", "--max-num-batched-tokens": "512"}
    assert flags("sglang", both) == {"--max-running-requests": "64", "--chunked-prefill-size": "512"}
    assert flags("trtllm", both) == {"max_batch_size": "64", "max_num_tokens": "512"}
    assert flags("vllm", ONE) == {}


@every(
    ("name", "ranks", "wanted"),
    [
        ("vllm", Parallelism(8), {"--tensor-parallel-size": "8"}),
        ("vllm", Parallelism(1, 8, 8), {"--data-parallel-size": "8", "--enable-expert-parallel": None}),
        (
            "vllm",
            Parallelism(8, pipeline=2, context=4),
            {
                "--tensor-parallel-size": "8",
                "--pipeline-parallel-size": "2",
                "--decode-context-parallel-size": "4",
            },
        ),
        (
            "sglang",
            Parallelism(2, 4, 8, 2, 2),
            {
                "--tp-size": "8",
                "--dp-size": "4",
                "--enable-dp-attention": None,
                "--ep-size": "8",
                "--pp-size": "2",
                "--dcp-size": "2",
            },
        ),
        (
            "trtllm",
            Parallelism(1, 8, 4, 2),
            {
                "tensor_parallel_size": "8",
                "enable_attention_dp": "true",
                "moe_expert_parallel_size": "4",
                "pipeline_parallel_size": "2",
            },
        ),
    ],
)
def test_engines_are_told_how_gpus_share_the_model(
    name: str, ranks: Parallelism, wanted: dict[str, str | None]
) -> None:
    assert flags(name, limited(parallelism=ranks)) == wanted


def test_limits_are_of_a_rank_and_of_all_where_the_engine_divides_them() -> None:
    """SGLang divides --max-running-requests and --chunked-prefill-size by the ranks of attention."""
    ranks = limited(max_num_seqs=4 * 64, max_num_batched_tokens=4 * 512, parallelism=Parallelism(1, 4))
    rank = SEATS._replace(settings=(Setting("max_num_seqs", 50),))
    running = SEATS._replace(settings=(Setting("max_running_requests", 50),))
    found = flags("vllm", ranks)
    assert (found["--max-num-seqs"], found["--max-num-batched-tokens"]) == ("64", "512")
    assert (
        flags("vllm", ranks, rank)["--max-num-seqs"] == flags("trtllm", ranks, rank)["max_batch_size"] == "50"
    )
    found = flags("sglang", ranks)
    assert (found["--max-running-requests"], found["--chunked-prefill-size"]) == ("256", "2048")
    assert flags("sglang", ranks, running)["--max-running-requests"] == "200"


def test_tensorrt_llm_has_a_gpu_for_each_rank() -> None:
    with pytest.raises(
        UsageError, match="TensorRT-LLM has no TP2 DP4: its data-parallel ranks have a GPU each"
    ):
        flags("trtllm", limited(parallelism=Parallelism(2, 4)))


def test_the_longest_request_is_written_for_every_engine() -> None:
    model = replace(ONE, engine=Engine(version="0.15.1", max_model_len=4096))
    assert flags("vllm", model) == {"--max-model-len": "4096"}
    assert flags("sglang", model) == {"--context-length": "4096"}
    assert flags("trtllm", model) == {"max_seq_len": "4096"}


def test_how_the_engine_admits_is_written_for_that_engine_alone() -> None:
    first = replace(ONE, engine=Engine(EngineName.VLLM, Admission.FIRST_CHUNK, watermark=0.05))
    assert flags("vllm", first) == {"--watermark": "0.05", "--no-scheduler-reserve-full-isl": None}
    assert flags("sglang", first) == {}
    paused = replace(ONE, engine=Engine(EngineName.TRTLLM, Admission.FIRST_CHUNK))
    assert flags("trtllm", paused) == {"capacity_scheduler_policy": "MAX_UTILIZATION"}
    assert flags("trtllm", replace(ONE, engine=Engine(EngineName.TRTLLM))) == {}


def test_how_long_prompts_wait_is_written_for_that_engine_alone() -> None:
    seldom = replace(ONE, engine=Engine(EngineName.SGLANG, receive_every_steps=30))
    assert flags("sglang", seldom) == {"--scheduler-recv-interval": "30"}
    assert flags("vllm", seldom) == {}
    waits = Engine(EngineName.TRTLLM, batch_wait_iterations=20, batch_wait_tokens=400)
    assert flags("trtllm", replace(limited(max_num_batched_tokens=500), engine=waits)) == {
        "max_num_tokens": "500",
        "batch_wait_timeout_iters": "20",
        "batch_wait_max_tokens_ratio": "0.8",
    }
    balances = Engine(EngineName.TRTLLM, balance_iterations=60)
    ranks = replace(limited(parallelism=Parallelism(1, 8)), engine=balances)
    assert flags("trtllm", ranks) == {
        "tensor_parallel_size": "8",
        "enable_attention_dp": "true",
        "enable_balance": "true",
        "batching_wait_iters": "0",
        "timeout_iters": "60",
    }


def test_no_engine_computes_prompts_apart() -> None:
    with pytest.raises(UsageError, match=r'engines compute prompts .* the profile says "inline"'):
        for_engine(engine("sglang"), limited(prefill=Prefill.INLINE))
    drafting = replace(ONE, drafts=Drafts(2, (0.7, 0.5)))
    with pytest.raises(UsageError, match="not simulated beside drafts"):
        for_engine(engine("sglang"), drafting)
    assert flags("vllm", drafting) == {"--speculative-config": "'{\"num_speculative_tokens\": 2}'"}


def test_what_gains_most_stands_in_the_place_of_what_the_profile_says_where_that_collapses() -> None:
    some = limited(max_num_seqs=64)
    with_watermark = {"--max-num-seqs": "64", "--watermark": "0.019"}
    assert flags("vllm", some, WATERMARK, collapses=True) == with_watermark
    assert flags("vllm", some, SEATS, collapses=True) == {"--max-num-seqs": "46"}
    text = text_of(*written("vllm", some, WATERMARK, SEATS, collapses=True))
    assert "--watermark 0.019: tried, +4.66% under a backlog; the offered rate then drains; TTFT p95" in text
    assert "Or --max-num-seqs 46: tried, +3% under a backlog" in text


def test_what_recovers_is_started_as_it_is_and_what_gains_is_told() -> None:
    found, report = written("vllm", limited(max_num_seqs=64), WATERMARK)
    assert [flag.words for flag in found.start.flags] == ["--max-num-seqs 64"]
    told = "Or --watermark 0.019: tried, +4.66% under a backlog; the offered rate drains without it"
    assert told in text_of(found, report)


def text_of(found: EngineSettings, report: Any) -> str:
    return " ".join(settings.text(found, report).replace("\n#", " ").split())


def test_limits_that_end_a_collapse_are_a_cap_and_a_bound_on_the_queue() -> None:
    """What waits is served within 4.5 s by 50 running requests that find nothing; vLLM counts those that run, too."""
    model = cached(None)
    served = sustainable_rate(replace(model, replica=replace(model.replica, max_num_seqs=50)))[1]
    waiting = math.floor(4.5 * served)
    assert flags("vllm", model, BOTH, collapses=True) == {
        "--tensor-parallel-size": "2",
        "--max-num-seqs": "50",
        "--max-num-queued-reqs": str(50 + waiting),
    }
    seats = BOTH._replace(settings=(Setting("max_running_requests", 50), BOTH.settings[1]))
    assert flags("sglang", model, seats, collapses=True) == {
        "--tp-size": "2",
        "--max-running-requests": "50",
        "--max-queued-requests": str(waiting),
    }
    found, _ = written("trtllm", ONE, BOTH, collapses=True)
    assert [flag.flag for flag in found.start.flags] == ["max_batch_size"]
    assert any("no bound on its queue: have a gateway give up" in note for note in found.notes)


def test_vllm_is_told_the_bytes_of_all_ranks() -> None:
    found = flags("vllm", cached())
    assert json.loads((found["--kv-transfer-config"] or "").strip("'")) == {
        "kv_connector": "OffloadingConnector",
        "kv_role": "kv_both",
        "kv_connector_extra_config": {"cpu_bytes_to_use": 104_857_600_000, "offload_prompt_only": False},
    }


def test_a_comment_has_a_value_as_it_is() -> None:
    found, report = written("vllm", cached(), collapses=True)
    (value,) = (flag.value for flag in found.start.flags if flag.flag == "--kv-transfer-config")
    comment = text_of(found, report).partition(" vllm serve")[0]
    assert f"--kv-transfer-config {value}: the profile's host tier" in comment


def test_sglang_is_told_how_many_times_the_gpu() -> None:
    wanted = {
        "--tp-size": "2",
        "--enable-hierarchical-cache": None,
        "--hicache-ratio": "2",
        "--hicache-write-policy": "write_through",
    }
    assert flags("sglang", cached()) == wanted
    victims = flags("sglang", cached(replace(TIER, inclusive=False)))
    assert victims == wanted | {"--hicache-write-policy": "write_back"}


@pytest.mark.parametrize(
    ("name", "tokens", "words"),
    [
        ("sglang", 300_000, "the host tier is left out"),
        ("sglang", 800_000, "Figures are without the host tier."),
        ("trtllm", 800_000, "not written for TensorRT-LLM"),
        ("trtllm", 800_000, "without a prefix cache, which the engine has"),
    ],
)
def test_what_an_engine_does_not_have_is_said(name: str, tokens: int, words: str) -> None:
    found, _ = written(name, cached(replace(TIER, memory_tokens=tokens)))
    assert any(words in note for note in found.notes)


def test_a_policy_without_a_host_tier_refuses_it() -> None:
    none = np.zeros(1, dtype=np.int64)
    scenario = Scenario(cached(), Plan(), Requests(np.zeros(1), none + 9, none + 9, none), ("a",))
    with pytest.raises(UsageError, match=r"sglang: a host tier, \[gpu.offload\], is not modelled"):
        POLICIES["sglang"].prepare(scenario, Settings("sglang", {}))
    assert POLICIES["sglang"].prepare(scenario, Settings("sglang", {"prefix_caching": (0.0,)}))


def test_an_interval_of_prompts_is_the_engines_own_and_left_out_of_others() -> None:
    model = replace(cached(), engine=Engine(prefill_interval=2))
    said = "prefill_interval is another engine's: it is not written for SGLang, and figures are without it."
    assert [*order_notes(engine("sglang"), model)] == [said]
    assert not [*order_notes(engine("vllm"), model)]


def test_sglang_is_told_the_decodes_between_prompts() -> None:
    for interval, words in (
        (1, []),
        (2, ["--prefill-decode-interval 1"]),
        (20, ["--prefill-decode-interval 19"]),
    ):
        model = replace(cached(), engine=Engine(EngineName.SGLANG, prefill_interval=interval))
        flags = flags_of_profile(engine("sglang"), model)
        assert [flag.words for flag in flags if flag.flag.startswith("--prefill")] == words
        assert not [*order_notes(engine("sglang"), model)]


def test_windows_that_hold_every_token_are_so_by_flag_where_a_version_has_it() -> None:
    gemma = shipped.profile("gemma-3-27b-h100").model
    assert gemma.replica.layout is not None
    every_token = replace(gemma.replica, layout=replace(gemma.replica.layout, hybrid=False))
    for version, replica, written in (
        ("", gemma.replica, False),
        ("", every_token, True),
        ("0.9.1", every_token, True),
        ("0.9.0", every_token, False),
    ):
        model = replace(gemma, replica=replica, engine=Engine(version=version))
        flags = {flag.flag for flag in flags_of_profile(engine("vllm"), model)}
        assert ("--disable-hybrid-kv-cache-manager" in flags) == written


def test_states_at_the_end_of_every_block_are_a_mode_where_a_version_has_modes() -> None:
    layers = (
        Layers(Attention.STATE, 3, 128, checkpoints=True),
        Layers(Attention.FULL, 1, 8),
    )
    replica = Replica(1600, 16, layout=KvLayout(layers, 16))
    for version, written in (("", True), ("0.31.0", True), ("0.15.1", False)):
        model = replace(cached(), replica=replica, engine=Engine(version=version))
        flags = {flag.words for flag in flags_of_profile(engine("vllm"), model)}
        assert ("--mamba-cache-mode all" in flags) == written
        assert "--enable-prefix-caching" in flags


@pytest.mark.parametrize("name", ["vllm", "sglang"])
def test_intervals_are_looked_for_in_versions_that_have_the_flag(name: str) -> None:
    flag = engine(name).flags[engine(name).spellings["prefill_interval"]]
    assert flag.since
    for version in ("", flag.since, f"{flag.since}.post1", "0.5.18", "0.23.0", "0.33.0"):
        assert has_intervals(Engine(EngineName(name), version=version)) == flag.is_in(version)


def test_priorities_are_of_versions_that_have_the_flag() -> None:
    flag = engine("vllm").flags["--scheduling-policy"]
    for version in ("", flag.since, f"{flag.since}.post1", "0.9.1", "0.10.0"):
        assert has_priorities(Engine(version=version)) == flag.is_in(version)


def test_a_prefix_cache_of_windows_is_not_written_for_an_engine_that_is_not_simulated_so() -> None:
    gemma = shipped.profile("gemma-3-27b-h100").model
    shares = tuple(replace(c, shared=(SharedPrompt(64, 1.0),)) for c in gemma.classes)
    model = replace(gemma, classes=shares)
    assert for_engine(engine("sglang"), gemma)
    assert for_engine(engine("vllm"), model)
    with pytest.raises(UsageError, match="not simulated beside a prefix cache of layers of several kinds"):
        for_engine(engine("sglang"), model)
