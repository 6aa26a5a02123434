"""Shapes of models out of config.json and the catalogue: KV bytes, parameters, windows, and what is refused."""

import json
import string
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from every import every
from hypothesis import given
from hypothesis import strategies as st

from kvplan.errors import UsageError
from kvplan.ingest.model.config import catalogue, read_model, shape_of
from kvplan.ingest.model.json_keys import Keys, parse_object
from kvplan.ingest.model.layers import State
from kvplan.ingest.model.shape import ModelShape, kv_bytes_per_token, kv_layers, with_adapters, with_weights
from kvplan.ingest.model.weights import named_storage
from kvplan.model.kv_layout import Attention
from kvplan.model.parallelism import ALONE

SMALL: dict[str, Any] = {
    "model_type": "llama",
    "num_hidden_layers": 4,
    "hidden_size": 64,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "intermediate_size": 96,
    "vocab_size": 100,
    "max_position_embeddings": 8192,
}
# Two kv heads of 8 numbers of 2 bytes, keys and values.
LAYER = 2 * 2 * 8 * 2


def small(**changes: Any) -> ModelShape:
    values = {key: value for key, value in (SMALL | changes).items() if value is not ...}
    return shape_of(Keys("config.json", values), "small")


# -- bytes per token --------------------------------------------------------------------------------------------------


@every(
    ("name", "expected"),
    [
        ("Llama-3.1-8B", 32 * 2 * 8 * 128 * 2),
        ("Llama-3.1-70B", 80 * 2 * 8 * 128 * 2),
        ("Llama-2-7B", 32 * 2 * 32 * 128 * 2),
        ("DeepSeek-V3", 61 * (512 + 64) * 2),
        ("Qwen3-32B", 64 * 2 * 8 * 128 * 2),
        ("MiniMax-M1", 10 * 2 * 8 * 128 * 2),
        ("Granite-4.0-h-small", 4 * 2 * 8 * 128 * 2),
        ("Nemotron-Nano-9B-v2", 4 * 2 * 8 * 128 * 2),
        ("Command-A", 16 * 2 * 8 * 128 * 2),
        ("Qwen3-VL-30B-A3B", 48 * 2 * 4 * 128 * 2),
        ("Llama-4-Maverick", 12 * 2 * 8 * 128 * 2),
        ("GLM-4.7-Flash", 47 * (512 + 64) * 2),
        ("Ring-mini-linear-2.0", 4 * 2 * 4 * 128 * 2),
        ("gemma-3n-E4B", 4 * 2 * 2 * 256 * 2),  # every fifth of the 20 layers with a cache of their own
    ],
)
def test_bytes_per_token_of_known_models(name: str, expected: int) -> None:
    assert kv_bytes_per_token(read_model(name)) == expected


def test_an_8_bit_cache_takes_half() -> None:
    assert (
        kv_bytes_per_token(small(), kv_dtype="fp8_e4m3") == kv_bytes_per_token(small()) // 2 == 4 * LAYER // 2
    )


@pytest.mark.parametrize(
    ("kv_heads", "tensor_parallel", "message"),
    [
        (2, 3, "must divide the 8 attention heads"),
        (4, 0, "must be at least 1"),
        (4, 16, "must divide the 8 attention heads"),
    ],
)
def test_heads_that_cannot_be_shared_out_are_refused(
    kv_heads: int, tensor_parallel: int, message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        kv_bytes_per_token(small(num_key_value_heads=kv_heads), tensor_parallel=tensor_parallel)


def test_key_value_heads_are_split_evenly_or_copied_whole() -> None:
    shape = small(num_attention_heads=24, num_key_value_heads=8, hidden_size=192)
    with pytest.raises(UsageError, match="must divide the 8 key-value heads of small or be a multiple"):
        kv_bytes_per_token(shape, tensor_parallel=3)


# -- layers that keep less --------------------------------------------------------------------------------------------


WINDOW = {"sliding_window": 1024}
CHUNK = {"attention_chunk_size": 1024}
LINEAR = {
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 16,
    "linear_conv_kernel_dim": 4,
}
LATENT = {"kv_lora_rank": 32, "qk_rope_head_dim": 4, "qk_nope_head_dim": 8, "v_head_dim": 8}
MAMBA = {"mamba_d_state": 16, "mamba_d_conv": 4, "mamba_expand": 2}


@every(
    ("changes", "full", "window", "chunk", "state"),
    [
        ({"sliding_window": None}, 4, 0, 0, 0),
        (WINDOW, 0, 4, 0, 0),
        (WINDOW | {"use_sliding_window": False}, 4, 0, 0, 0),
        (WINDOW | {"model_type": "qwen2"}, 4, 0, 0, 0),
        (WINDOW | {"model_type": "qwen2", "use_sliding_window": True, "max_window_layers": 3}, 3, 1, 0, 0),
        (WINDOW | {"max_window_layers": 28}, 4, 0, 0, 0),
        ({"sliding_window": 8192}, 4, 0, 0, 0),
        (WINDOW | {"model_type": "gemma2", "head_dim": 8}, 2, 2, 0, 0),
        (WINDOW | {"model_type": "cohere2"}, 1, 3, 0, 0),
        (WINDOW | {"sliding_window_pattern": "LLLG"}, 1, 3, 0, 0),
        (WINDOW | {"global_attn_every_n_layers": 2}, 2, 2, 0, 0),
        (WINDOW | {"model_type": "cohere2", "layer_switch": 2}, 2, 2, 0, 0),
        (WINDOW | {"sliding_window_pattern": 3}, 1, 3, 0, 0),
        (WINDOW | {"_sliding_window_pattern": 3}, 1, 3, 0, 0),
        (WINDOW | {"layer_types": ["sliding_attention", "full_attention"] * 2}, 2, 2, 0, 0),
        (CHUNK | {"layer_types": ["chunked_attention"] * 3 + ["full_attention"]}, 1, 0, 3, 0),
        (CHUNK | {"model_type": "llama4_text"}, 1, 0, 3, 0),
        (CHUNK | {"no_rope_layers": [1, 0, 1, 0]}, 2, 0, 2, 0),
        (LINEAR | {"layer_types": ["linear_attention"] * 3 + ["full_attention"]}, 1, 0, 0, 3),
        (LINEAR | {"full_attention_interval": 4}, 1, 0, 0, 3),
        (MAMBA | {"layers_block_type": ["mamba", "attention"] * 2}, 2, 0, 0, 2),
        (MAMBA | {"attn_layer_indices": [1, 3]}, 2, 0, 0, 2),
        (MAMBA | {"attn_layer_period": 4, "attn_layer_offset": 1}, 1, 0, 0, 3),
        (MAMBA | {"hybrid_override_pattern": "M-M*"}, 1, 0, 0, 2),
        ({"attn_type_list": [1] * 4}, 4, 0, 0, 0),
        ({"attn_type_list": [0, 1, 0, 1]}, 2, 0, 0, 2),
        ({"layer_group_size": 2}, 2, 0, 0, 2),
        ({"layer_group_size": 3}, 2, 0, 0, 2),  # the third, and the fourth that makes no whole group
        ({"mixer_types": ["minicpm4", *["lightning-attn"] * 3]}, 1, 0, 0, 3),
        ({"model_type": "minimax", "layer_types": ["full_attention", "linear_attention"] * 2}, 2, 0, 0, 2),
    ],
)
def test_layers_are_told_apart_by_what_they_keep(
    changes: dict[str, Any], full: int, window: int, chunk: int, state: int
) -> None:
    shape = small(**changes)
    found = {one.kind: one.count for one in shape.kept}
    assert [found.get(kind, 0) for kind in Attention] == [full, window, chunk, state]
    assert all(one.window == (1024 if one.kind in ("window", "chunk") else None) for one in shape.kept)
    assert kv_bytes_per_token(shape) == (full or window) * LAYER


def test_windows_take_their_bytes_a_token_on_each_gpu() -> None:
    shape = small(sliding_window=1024, sliding_window_pattern=2)
    assert [(one.count, one.bytes) for one in kv_layers(shape)] == [(2, LAYER), (2, LAYER)]
    halves = kv_layers(shape, kv_dtype="fp8", tensor_parallel=2)
    assert [one.bytes for one in halves] == [LAYER // 4] * 2


@every(
    ("changes", "tensor_parallel", "expected"),
    [
        # 4 heads of 8 by 16 numbers; 3 inputs to 2 · 2 · 8 + 4 · 16 channels.
        (LINEAR, 1, 4 * 8 * 16 * 2 + 3 * 96 * 2),
        (LINEAR, 2, (4 * 8 * 16 * 2 + 3 * 96 * 2) // 2),
        (LINEAR | {"mamba_ssm_dtype": "float32"}, 1, 4 * 8 * 16 * 4 + 3 * 96 * 2),
        # 2 · 64 channels of 16 numbers.
        (MAMBA, 1, 128 * 16 * 2 + 3 * 128 * 2),
        (MAMBA, 4, (128 * 16 * 2 + 3 * 128 * 2) // 4),
        # 8 heads of 8 by 8; with a convolution over queries, keys and values of 64 channels each.
        ({"layer_group_size": 4}, 2, 8 * 8 * 8 * 2 // 2),
        ({"layer_group_size": 4, "short_conv_kernel_size": 4}, 1, 8 * 8 * 8 * 2 + 3 * 192 * 2),
    ],
)
def test_a_state_by_hand(changes: dict[str, Any], tensor_parallel: int, expected: int) -> None:
    shape = small(**changes, layer_types=["mamba"] * 3 + ["attention"])
    assert kv_layers(shape, tensor_parallel=tensor_parallel)[1].bytes == expected


def test_drafts_add_inputs_to_the_convolution_of_a_state() -> None:
    """Qwen3.5-27B on two GPUs: 24 heads of 128 by 128 in 32 bits, and 5,120 channels, as a start with 3 drafts had."""
    state = State(16, 48 * 128 * 128, 4, 3, 10_240, 0)
    assert state.bytes(2) == 1_572_864 + 3 * 5_120 * 2
    assert state.bytes(2, drafts=3) == 1_634_304
    assert State(8, 512, 2, 0, 0, 0).bytes(1, drafts=3) == 1_024  # without a convolution


def test_states_that_cannot_be_shared_out_are_refused() -> None:
    shape = small(**LINEAR, full_attention_interval=4)
    with pytest.raises(UsageError, match="parallelism 4: must divide the 2 heads of the layers with states"):
        kv_layers(shape, tensor_parallel=4)


# -- parameters and weights -------------------------------------------------------------------------------------------


def is_about(count: float, published: float, share: float) -> bool:
    """Whether a count is the published number, which may be rounded to whole billions."""
    rounding = 0.5 if isinstance(published, int) and share > 0.01 else 0
    return abs(count / 1e9 - published) <= max(share * published, rounding)


@every("name", catalogue())
def test_parameters_are_those_the_makers_publish(name: str) -> None:
    shape, published = read_model(name), catalogue()[name]
    totals = shape.counts.total, shape.counts.total + shape.encoder_bytes / 2
    assert any(is_about(total, published["total_billion"], 0.01) for total in totals)
    if (active := published.get("active_billion")) is not None:
        table = shape.counts.embeddings / shape.counts.tables
        assert any(is_about(shape.counts.active - left_out * table, active, 0.03) for left_out in range(3))
    else:
        assert shape.counts.experts == 0


# Published configurations as far as sizes depend on them, the billions of parameters their model cards give, and the
# numbers that a token keeps in one layer.
OLDER: dict[str, tuple[dict[str, Any], float, int]] = {
    "gpt2": (
        {"n_layer": 12, "n_head": 12, "n_embd": 768, "n_positions": 1024, "vocab_size": 50257},
        0.124,
        2 * 768,
    ),
    "bloom": (
        {"n_layer": 24, "num_attention_heads": 16, "hidden_size": 1024, "vocab_size": 250880},
        0.559,
        2 * 1024,
    ),
    "falcon": (
        {"num_hidden_layers": 32, "num_attention_heads": 71, "num_kv_heads": 71, "hidden_size": 4544}
        | {"vocab_size": 65024, "multi_query": True, "parallel_attn": True},
        6.92,
        2 * 64,
    ),
    "RefinedWeb": (
        {"n_layer": 60, "n_head": 128, "n_head_kv": 8, "hidden_size": 8192, "vocab_size": 65024}
        | {"multi_query": True, "new_decoder_architecture": True},
        41.3,
        2 * 8 * 64,
    ),
    "gpt_bigcode": (
        {
            "n_layer": 40,
            "n_head": 48,
            "n_embd": 6144,
            "n_inner": 24576,
            "vocab_size": 49152,
            "multi_query": True,
        },
        15.5,
        2 * 128,
    ),
    "qwen": (
        {"num_hidden_layers": 32, "num_attention_heads": 32, "hidden_size": 4096, "intermediate_size": 22016}
        | {"kv_channels": 128, "vocab_size": 151936, "tie_word_embeddings": False},
        7.72,
        2 * 4096,
    ),
    "chatglm": (
        {"num_layers": 28, "num_attention_heads": 32, "hidden_size": 4096, "ffn_hidden_size": 13696}
        | {
            "kv_channels": 128,
            "multi_query_attention": True,
            "multi_query_group_num": 2,
            "padded_vocab_size": 65024,
        },
        6.24,
        2 * 2 * 128,
    ),
    "opt": (
        {
            "num_hidden_layers": 32,
            "num_attention_heads": 32,
            "hidden_size": 4096,
            "ffn_dim": 16384,
            "vocab_size": 50272,
        },
        6.66,
        2 * 4096,
    ),
}


@every("kind", OLDER)
def test_older_families_have_their_own_keys_and_rules(kind: str) -> None:
    config, billions, numbers = OLDER[kind]
    shape = shape_of(Keys("config.json", {"model_type": kind, **config}), kind)
    assert shape.counts.total / 1e9 == pytest.approx(billions, rel=0.01)
    assert shape.attention.token_bytes(1, 1) == numbers


def test_a_group_of_queries_counts_only_where_it_is_in_use() -> None:
    """ChatGLM states the number of its groups whether or not it has them."""
    grouped = {"num_key_value_heads": ..., "multi_query_group_num": 2}
    assert small(**grouped, multi_query_attention=True).attention.kv_heads == 2
    assert small(**grouped, multi_query_attention=False).attention.kv_heads == 8


@every("kind", ["afmoe", "qwen3_next", "beam"])
def test_a_gate_of_the_output_is_as_large_as_the_queries(kind: str) -> None:
    gated = small(model_type=kind, sliding_window=None)
    assert gated.counts.other - small().counts.other == 4 * 64 * 64


DELTA = {
    "full_attn_layers": [2, 4],
    "kda_layers": [1, 3],
    "num_heads": 8,
    "head_dim": 16,
    "short_conv_kernel_size": 4,
}


def test_query_heads_may_differ_by_layer() -> None:
    """Half the layers have twice the queries: on average half as much again of queries and output."""
    alike, other = (
        small(num_attention_heads=4),
        small(num_attention_heads=4, num_attention_heads_per_layer=[4, 8]),
    )
    width = alike.attention.head_dim
    assert other.attention.parameters - alike.attention.parameters == 2 * 2 * width * alike.hidden_size
    assert other.attention.kv_heads == alike.attention.kv_heads


@every("scheme", ["FP8", {"num_bits": 8, "type": "float"}])
def test_a_type_of_cache_is_read_as_a_word_or_a_table(scheme: Any) -> None:
    quantised = {"quant_method": "modelopt", "quant_algo": "FP8", "kv_cache_scheme": scheme}
    assert small(quantization_config=quantised).kv_dtype == "fp8"


def test_a_table_of_delta_attention_counts_layers_from_1() -> None:
    """Kimi Linear: states in 32 bits, 8 heads of 16 by 16, and 3 inputs to queries, keys and values."""
    full, state = kv_layers(small(**LATENT, linear_attn_config=DELTA))
    assert (full.count, full.bytes) == (2, (32 + 4) * 2)
    assert (state.count, state.bytes) == (2, 8 * 16 * 16 * 4 + 3 * 3 * 128 * 2)
    with pytest.raises(
        UsageError, match="linear_attn_config: full_attn_layers and kda_layers must name each"
    ):
        small(linear_attn_config=DELTA | {"kda_layers": [0, 2]})


def test_layers_that_draft_may_be_listed_behind_the_others() -> None:
    words = ["full_attention"] * 6
    assert small(num_hidden_layers=4, layer_types=words, num_nextn_predict_layers=2).layers == 4


def test_layers_are_as_many_as_are_listed() -> None:
    assert small(num_hidden_layers=..., layer_types=["full_attention"] * 3).layers == 3


def test_experts_by_hand() -> None:
    changes = {
        "n_routed_experts": 16,
        "num_experts_per_tok": 2,
        "n_shared_experts": 1,
        "moe_intermediate_size": 32,
    }
    shape = small(**changes, first_k_dense_replace=1)
    expert = 3 * 64 * 32
    dense = 4 * 10_240 + 3 * 64 * 96 + 3 * (expert + 64 * 16) + 2 * 6_400
    assert shape.counts.total == dense + 3 * 16 * expert
    assert shape.counts.active == dense + 3 * 2 * expert
    assert small(**changes, mlp_only_layers=[0]).counts.total == shape.counts.total
    every_second = small(**changes, decoder_sparse_step=2)
    assert every_second.counts.experts == 2 * 16 * expert


@every(
    ("quantization", "name", "bits"),
    [
        ({"quant_method": "fp8"}, "fp8", 8),
        ({"quant_method": "awq", "bits": 4, "group_size": 128}, "awq", 4 + 20 / 128),
        ({"quant_method": "gptq", "bits": 4, "group_size": -1}, "gptq", 4),
        ({"quant_method": "auto-round", "bits": 4, "group_size": 128}, "auto-round", 4 + 20 / 128),
        ({"quant_method": "bitsandbytes", "load_in_4bit": True}, "bitsandbytes", 4.5),
        ({"quant_method": "modelopt", "quant_algo": "NVFP4"}, "nvfp4", 4.5),
        (
            {
                "quant_method": "compressed-tensors",
                "config_groups": {"group_0": {"weights": {"num_bits": 8, "type": "float"}}},
            },
            "fp8",
            8,
        ),
        (
            {
                "quant_method": "compressed-tensors",
                "config_groups": {"group_0": {"weights": {"num_bits": 4, "group_size": 64}}},
            },
            "compressed-tensors",
            4 + 20 / 64,
        ),
        (
            {
                "quant_method": "compressed-tensors",
                "config_groups": {"group_0": {"weights": {"num_bits": 4, "type": "float", "group_size": 16}}},
            },
            "nvfp4",
            4.5,
        ),
    ],
)
def test_quantised_weights_leave_embeddings_alone(
    quantization: dict[str, Any], name: str, bits: float
) -> None:
    shape = small(quantization_config=quantization)
    assert (shape.storage.name, shape.storage.bits) == (name, bits)
    assert shape.weight_bytes == int(2 * 12_800 + shape.counts.other * bits / 8)
    assert "estimate" in shape.notes[0]


NVFP4 = {"quant_algo": "NVFP4", "kv_cache_quant_algo": "FP8", "exclude_modules": ["lm_head"]}


@every(
    ("file", "content", "name", "bits", "kv_bytes"),
    [
        ("hf_quant_config.json", {"producer": {"name": "modelopt"}, "quantization": NVFP4}, "nvfp4", 4.5, 1),
        ("hf_quant_config.json", {"quantization": {"quant_algo": "FP8"}}, "fp8", 8, 2),
        ("hf_quant_config.json", {"quantization": {"quant_algo": "W4A8_AWQ"}}, "int4", 4 + 20 / 128, 2),
        ("quantize_config.json", {"bits": 4, "group_size": 64, "desc_act": True}, "gptq", 4 + 20 / 64, 2),
    ],
)
def test_quantisation_is_read_from_the_files_beside_a_configuration(
    tmp_path: Path, file: str, content: dict[str, Any], name: str, bits: float, kv_bytes: int
) -> None:
    (tmp_path / "config.json").write_text(json.dumps(SMALL), "utf-8")
    (tmp_path / file).write_text(json.dumps(content), "utf-8")
    shape = read_model(tmp_path)
    assert (shape.storage.name, shape.storage.bits) == (name, bits)
    assert kv_bytes_per_token(shape) == 4 * LAYER * kv_bytes // 2
    assert kv_bytes_per_token(shape, kv_dtype="bf16") == 4 * LAYER


# -- where it comes from ----------------------------------------------------------------------------------------------


def test_a_file_and_its_folder_are_read(tmp_path: Path) -> None:
    folder = tmp_path / "Llama-small"
    folder.mkdir()
    (folder / "config.json").write_text("\ufeff" + json.dumps(SMALL), "utf-8")
    for reference in (folder, folder / "config.json", str(folder), str(folder / "config.json")):
        shape = read_model(reference)
        assert (shape.name, shape.source) == ("Llama-small", str(folder / "config.json"))


def test_names_need_no_owner_case_or_punctuation() -> None:
    expected = read_model("meta-llama/Llama-3.1-8B")
    for name in ("llama 3.1 8b", "LLAMA-3.1-8B", "Llama_3.1_8B"):
        assert read_model(name) == expected


@every(
    ("asked", "served", "entry"),
    [
        ("Llama-3.3-70B-Instruct", "meta-llama/Llama-3.3-70B-Instruct", "meta-llama/Llama-3.1-70B"),
        ("llama-3.3-70b", "meta-llama/Llama-3.3-70B-Instruct", "meta-llama/Llama-3.1-70B"),
        ("Llama-3.1-8B-Instruct", "meta-llama/Llama-3.1-8B-Instruct", "meta-llama/Llama-3.1-8B"),
        ("deepseek-ai/DeepSeek-R1", "deepseek-ai/DeepSeek-R1", "deepseek-ai/DeepSeek-V3"),
        ("Mistral-Nemo", "mistralai/Mistral-Nemo-Instruct-2407", "mistralai/Mistral-Nemo-Instruct-2407"),
        ("zhipuai/GLM-5", "zai-org/GLM-5", "zai-org/GLM-5"),
        ("someone/Qwen3-32B-FP8", "someone/Qwen3-32B-FP8", "Qwen/Qwen3-32B"),
        ("Qwen3-32B-FP8", "Qwen/Qwen3-32B-FP8", "Qwen/Qwen3-32B"),
    ],
)
def test_the_model_is_the_one_that_was_asked_for(asked: str, served: str, entry: str) -> None:
    shape = read_model(asked)
    assert (shape.name, shape.like) == (served, entry)


YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 1024}


@every(
    ("changed", "longest"),
    [
        ({}, 4096),
        ({"rope_scaling": {"type": "linear", "factor": 2.0}}, 8192),
        ({"rope_scaling": {"rope_type": "dynamic", "factor": 4}}, 16384),
        ({"rope_scaling": {"rope_type": "llama3", "factor": 8.0}}, 4096),
        ({"rope_scaling": {"type": "su", "factor": 32.0}}, 4096),
        ({"rope_scaling": {"rope_type": "longrope", "factor": 32.0}}, 4096),
        ({"rope_scaling": YARN}, 4096),
        ({"rope_scaling": YARN | {"original_max_position_embeddings": 2048}}, 8192),
        ({"rope_parameters": {"rope_type": "default", "rope_theta": 1e6}}, 4096),
        ({"rope_parameters": {"full_attention": YARN | {"factor": 8}, "sliding_attention": {}}}, 8192),
        ({"model_type": "gemma3_text", "rope_scaling": {"rope_type": "linear", "factor": 8.0}}, 4096),
        ({"rope_scaling": {"type": "mrope", "mrope_section": [16, 24, 24]}}, 4096),
    ],
)
def test_the_longest_request_is_as_vllm_derives_it(changed: dict[str, Any], longest: int) -> None:
    """By hand, after `_get_and_verify_max_len` of vLLM 0.24."""
    config = {**SMALL, "max_position_embeddings": 4096, **changed}
    assert shape_of(Keys("config.json", config), "small").max_model_len == longest


@pytest.mark.parametrize(
    ("name", "plain", "storage"),
    [
        ("Qwen/Qwen3-235B-A22B-FP8", "Qwen3-235B-A22B", "fp8"),
        ("nvidia/DeepSeek-R1-NVFP4", "DeepSeek-V3", "nvfp4"),
        ("Llama-3.3-70B-Instruct-fp4", "Llama-3.1-70B", "nvfp4"),
    ],
)
def test_a_name_may_end_with_the_type_of_weights(name: str, plain: str, storage: str) -> None:
    shape, other = read_model(name), read_model(plain)
    assert shape.storage == named_storage(storage)
    assert (shape.like, shape.counts) == (other.like, other.counts)


def test_an_unknown_name_brings_the_nearest() -> None:
    with pytest.raises(
        UsageError, match=r"Llama-3\.1-9B: no model .*did you mean .*meta-llama/Llama-3\.1-8B or"
    ):
        read_model("Llama-3.1-9B")
    with pytest.raises(UsageError, match=r"Llama-3\.1-9B: no model .*did you mean"):
        read_model("nvidia/Llama-3.1-9B-FP8")
    with pytest.raises(UsageError, match="'': no model"):
        read_model("")


def test_a_text_model_within_another_is_read() -> None:
    text = {key: value for key, value in SMALL.items() if key != "vocab_size"} | {"model_type": "gemma3_text"}
    whole = {
        "model_type": "gemma3",
        "hidden_size": 7,
        "text_config": text | {"sliding_window": 1024},
        "vision_config": {},
    }
    shape = shape_of(Keys("config.json", whole), "nested")
    assert (shape.hidden_size, [(one.kind, one.count) for one in shape.kept]) == (64, [(Attention.WINDOW, 4)])
    assert shape.counts.embeddings == 262_208 * 64
    assert "only the text model" in shape.notes[-1]


def test_a_text_model_within_a_part_of_another_is_read() -> None:
    whole = {
        "model_type": "omni",
        "thinker_config": {"text_config": SMALL, "audio_config": {"layers": 9}},
        "talker_config": {},
    }
    assert shape_of(Keys("config.json", whole), "omni").counts == small().counts


def test_keys_that_change_no_size_are_passed_over_and_unknown_ones_named() -> None:
    """As Qwen, Bailing, Mamba, Command-A, MiniMax and ERNIE publish them; a switch that is off says nothing."""
    silent = {"output_hidden_states": True, "chunk_size_feed_forward": 1, "use_conv_bias": True, "n_group": 8}
    silent |= {
        "order_of_interleaved_layers": "local_attn_first",
        "shared_moe_mode": "sigmoid",
        "compression_ratio": 1.0,
    }
    off = {"use_window_attention": False, "num_experts": 0, "sparse_heads": [], "index_layers": None}
    assert small(**silent, **off).notes == ()
    assert small(colour="red", taste=7).notes == ("keys not known, taken to change no size: colour, taste",)


def test_key_value_heads_that_are_missing_are_those_of_the_class_or_all() -> None:
    assert (alone := small(num_key_value_heads=...)).attention.kv_heads == 8
    assert "lacks num_key_value_heads 8" in alone.notes[0]
    assert small(num_key_value_heads=..., model_type="qwen3_moe").attention.kv_heads == 4
    assert small(num_key_value_heads=[2] * 4).attention.kv_heads == 2


@every(
    ("kind", "tables"), [("llama", 2), ("cohere", 1), ("cohere2", 1), ("gemma3_text", 1), ("starcoder2", 1)]
)
def test_tables_are_tied_where_the_family_does(kind: str, tables: int) -> None:
    assert small(model_type=kind, sliding_window=None).counts.tables == tables


@every(
    ("changes", "sparse"),
    [
        ({"moe_layer_freq": [0, 1, 1, 1]}, 3),
        ({"mlp_layer_types": ["dense", "sparse", "dense", "sparse"]}, 2),
        ({"moe_layers": [1, 3]}, 2),
        ({"moe_layers_enum": "1,2,3,4"}, 3),  # of four layers
        ({"num_dense_layers": 1}, 3),
        ({"moe_layer_start_index": 1, "moe_layer_end_index": 2, "moe_layer_interval": 1}, 2),
        ({"interleave_moe_layer_step": 2}, 2),
    ],
)
def test_layers_with_experts_are_told_by_each_key(changes: dict[str, Any], sparse: int) -> None:
    shape = small(num_experts=4, num_experts_per_tok=2, moe_intermediate_size=16, **changes)
    assert shape.counts.experts == sparse * 4 * 3 * 64 * 16


def test_sparse_latent_attention_keeps_index_keys() -> None:
    """DeepSeek-V3.2 by hand: 43.67 GB for 975,424 tokens in 8 bits, says SGLang's pull request 11309."""
    shape = read_model("DeepSeek-V3.2")
    assert kv_bytes_per_token(shape) == 61 * (2 * (512 + 64) + 128 + 4)
    eight = kv_bytes_per_token(shape, kv_dtype="fp8", tensor_parallel=8)
    assert eight == 61 * ((512 + 16 + 2 * 64) + 128 + 4)
    assert eight * 975_424 == pytest.approx(43.67 * 2**30, rel=1e-3)


def test_context_parallelism_deals_tokens_out_but_copies_index_keys() -> None:
    latent = read_model("DeepSeek-V3")
    halves = kv_bytes_per_token(latent, kv_dtype="fp8", tensor_parallel=8, context_parallel=2)
    assert halves == kv_bytes_per_token(latent, kv_dtype="fp8") / 2 == 35_136 / 2
    halves = kv_bytes_per_token(read_model("GLM-5"), tensor_parallel=8, context_parallel=2)
    assert halves == 78 * (512 + 64 + 128 + 4)  # 1.81 times the tokens of one GPU


def test_context_parallelism_uses_the_copies_of_heads() -> None:
    eight = small(num_attention_heads=16, num_key_value_heads=2)
    assert kv_bytes_per_token(eight, tensor_parallel=8, context_parallel=4) * 4 == kv_bytes_per_token(
        eight, tensor_parallel=8
    )
    with pytest.raises(UsageError, match="context parallelism 8: must divide the 4 GPUs that keep the same"):
        kv_bytes_per_token(eight, tensor_parallel=8, context_parallel=8)
    with pytest.raises(
        UsageError, match=r"context parallelism 2: must be 1 for .*: not modelled beside windows"
    ):
        kv_layers(read_model("gpt-oss-20b"), tensor_parallel=16, context_parallel=2)


def test_an_encoder_and_adapters_take_memory() -> None:
    """SigLIP has 0.41·10⁹ parameters; LoRA of rank 16 on Llama-3.1-8B has 41,943,040, as PEFT prints."""
    vision = {"num_hidden_layers": 27, "hidden_size": 1152, "intermediate_size": 4304}
    seeing = small(vision_config=vision)
    assert seeing.loaded_bytes(ALONE) - small().loaded_bytes(ALONE) == seeing.encoder_bytes == 2 * 411_070_464
    assert "encoder of images" in seeing.notes[-1]
    assert "take memory besides" in small(vision_config={"architecture": "timm"}).notes[-1]
    llama = read_model("Llama-3.1-8B")
    assert with_adapters(llama, 2, 16).loaded_bytes(ALONE) - llama.loaded_bytes(ALONE) == 2 * 2 * 41_943_040
    assert with_adapters(llama, None, None) is llama
    with pytest.raises(UsageError, match="--lora-rank is missing"):
        with_adapters(llama, 2, None)


MIXED = {"a": {"weights": {"num_bits": 4}}, "b": {"weights": {"num_bits": 8, "type": "float"}}}


@every(
    ("quantization", "message"),
    [
        ({"quant_method": "quip"}, "quant_method: quip; known are fp8"),
        ({"bits": 4}, "quant_method: missing; known are"),
        ({"quant_method": "modelopt", "quant_algo": "MIXED_PRECISION"}, "quant_algo: mixed_precision; known"),
        ({"quant_method": "compressed-tensors"}, "config_groups: missing; known"),
        (
            {"quant_method": "compressed-tensors", "config_groups": MIXED},
            "mixture of compressed-tensors, fp8",
        ),
    ],
)
def test_an_unknown_quantisation_is_named_unless_weights_are_stated(
    quantization: dict[str, Any], message: str
) -> None:
    shape = small(quantization_config=quantization)
    with pytest.raises(UsageError, match=f"{message}.*; --weights says"):
        with_weights(shape, None)
    assert with_weights(shape, "fp8").storage == named_storage("fp8")


# -- what cannot be read ----------------------------------------------------------------------------------------------


@every(
    ("changes", "message"),
    [
        ({"num_hidden_layers": -1}, "num_hidden_layers: -1; must be a whole number from 1 to 10,000"),
        ({"num_hidden_layers": 10**6}, "num_hidden_layers: 1000000; must be"),
        ({"hidden_size": "4096"}, "hidden_size: '4096'; must be a whole number"),
        ({"hidden_size": 64.5}, r"hidden_size: 64\.5; must be"),
        ({"hidden_size": True}, "hidden_size: true; must be"),
        ({"hidden_size": [64]}, "hidden_size: a list; must be"),
        ({"vocab_size": 10**400}, "vocab_size: 1000.*; must be a whole number from 1 to 1,000,000,000"),
        ({"vocab_size": 10**5000}, "vocab_size: a whole number with too many digits; must be"),
        ({"num_key_value_heads": 3}, "num_key_value_heads: 3; must divide num_attention_heads, 8"),
        (
            {"num_attention_heads": 9, "num_key_value_heads": 9},
            "must divide hidden_size, 64, without head_dim",
        ),
        ({"vocab_size": ..., "hidden_size": None}, "misses hidden_size, vocab_size; the config.json of a"),
        ({"layer_types": ["full_attention"]}, "layer_types: a list of 1; num_hidden_layers is 4"),
        ({"layer_types": ["half_attention"] * 4}, "layer_types: 'half_attention'; must be one of attention"),
        ({"layer_types": "full"}, "layer_types: 'full'; must be a list of strings"),
        ({"layer_types": ["mamba"] * 4}, "no layer with attention"),
        ({"attn_layer_indices": []}, "no layer with attention"),
        ({"layer_types": ["sliding_attention"] * 4}, "sliding_window: missing; must be a whole number"),
        (
            {"layer_types": ["conv", *["full_attention"] * 3]},
            "layer_types: 'conv'; must be one of attention, ",
        ),
        ({"hybrid_override_pattern": "M*Z-"}, r"hybrid_override_pattern: 'Z'; must be one of \*, -, E, M"),
        ({"hybrid_override_pattern": "M*"}, "hybrid_override_pattern: a list of 2; num_hidden_layers is 4"),
        ({"hybrid_override_pattern": "M*-E"}, "layers with states of no size; must have linear_num_value"),
        ({"hybrid_override_pattern": "***E"}, "n_routed_experts: missing; must be how many experts"),
        ({"attn_type_list": [1, 0]}, "attn_type_list: a list of 2; num_hidden_layers is 4"),
        ({"num_key_value_heads": [8, 8, 4, 4]}, "num_key_value_heads: a list; must be a whole number"),
        ({"attention_chunk_size": 9}, "no_rope_layer_interval: missing; must be a whole number"),
        ({"attention_chunk_size": 9, "no_rope_layers": [1]}, "no_rope_layers: a list of 1; num_hidden"),
        ({"mamba_d_state": 9}, "mamba_d_state: states in layers that no key lists; must have layer_types"),
        (
            LINEAR | {"full_attention_interval": 4, "mamba_ssm_dtype": "float8"},
            "mamba_ssm_dtype: 'float8'; must be one of auto, bfloat16, float16, float32",
        ),
        ({"use_sliding_window": "no", "sliding_window": 9}, "use_sliding_window: 'no'; must be true or"),
        ({"model_type": 3}, "model_type: 3; must be a string"),
        ({"quantization_config": "fp8"}, "quantization_config: 'fp8'; must be an object"),
        ({"num_experts": 8}, "num_experts_per_tok: missing; must be a whole number from 1 to 8"),
        ({"num_experts": 8, "num_experts_per_tok": 9}, "num_experts_per_tok: 9; must be"),
        ({"kv_lora_rank": 32}, "qk_rope_head_dim: missing"),
        ({"num_kv_shared_layers": 4}, "num_kv_shared_layers: 4; must be a whole number from 0 to 3"),
        ({"compress_ratios": [0, 4]}, "compress_ratios: caches of compressed tokens are not supported"),
        (
            {"is_encoder_decoder": True},
            "is_encoder_decoder: decoders that attend to an encoder are not supported",
        ),
        ({"num_key_value_heads": ..., "is_encoder_decoder": True, "vocab_size": ...}, "is_encoder_decoder: "),
        ({"type_vocab_size": 2}, "type_vocab_size: encoders, which keep no KV, are not supported"),
        ({"model_type": "jetmoe"}, "model_type: jetmoe: attention split into experts are not supported"),
        (
            LATENT | {"qk_head_dim": 13},
            "qk_head_dim: must be qk_rope_head_dim and qk_nope_head_dim together, 12",
        ),
        ({"total_ut_steps": 4}, "total_ut_steps: layers that run several times"),
        ({"use_cla": True}, "use_cla: layers that share one cache"),
        (
            {"conv_L_cache": 3, "gate_rank": 2},
            r"conv_L_cache: not known, and .* sizes \(so may gate_rank\); state",
        ),
        (
            {"swa_num_key_value_heads": 4},
            "swa_num_key_value_heads: not known, and may change the sizes; state",
        ),
        ({"full_attn_idxs": [1]}, "full_attn_idxs: not known"),
        ({"index_head_dim": 8}, "index_head_dim: not supported beside other attention than latent"),
        (LATENT | {"index_head_dim": 8, "index_topk_freq": 4}, "index_topk_freq: index keys in some layers"),
        (LATENT | {"index_head_dim": 8, "indexer_types": ["full", "shared"]}, "indexer_types: index keys in"),
        ({"num\nheads": 2}, r"'num\\nheads': not known"),
    ],
)
def test_what_is_wrong_is_said_with_file_key_and_range(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=f"^config.json: .*{message}"):
        small(**changes)


@every(
    ("content", "message"),
    [
        (b"", "not JSON: Expecting value; is the file cut off"),
        (b'{"hidden_size": 40', r"config\.json:1: not JSON"),
        (b"[1, 2]", "a list; must be a JSON object"),
        (b"\xff\xfe\x00", "must be text in UTF-8"),
        (b"[" * 200_000, "too deeply nested"),
        (b'{"hidden_size": ' + b"9" * 5000 + b"}", "too many digits"),
        (b"{}", "misses num_hidden_layers, hidden_size, num_attention_heads, vocab_size"),
        (b" " * (16 * 2**20 + 1), "larger than 16 MiB"),
    ],
)
def test_a_file_that_is_no_configuration_is_refused(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "config.json"
    path.write_bytes(content)
    with pytest.raises(UsageError, match=message):
        read_model(path)


TEXT = st.text(string.printable + "\x00é\u2028", max_size=20)
SCALARS = st.none() | st.booleans() | st.integers(-5, 200) | st.integers() | st.floats() | TEXT
JSON = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXT, inner, max_size=4),
    max_leaves=8,
)
READ_KEYS = st.sampled_from(
    [
        *SMALL,
        "head_dim",
        "kv_lora_rank",
        "qk_rope_head_dim",
        "qk_nope_head_dim",
        "v_head_dim",
        "q_lora_rank",
        "num_experts",
        "num_experts_per_tok",
        "moe_intermediate_size",
        "first_k_dense_replace",
        "decoder_sparse_step",
        "mlp_only_layers",
        "sliding_window",
        "sliding_window_pattern",
        "max_window_layers",
        "layer_types",
        "attn_layer_indices",
        "attn_layer_period",
        "hybrid_override_pattern",
        "full_attention_interval",
        "layer_group_size",
        "mixer_types",
        "moe_layer_freq",
        "mlp_layer_types",
        "index_head_dim",
        "vision_config",
        "thinker_config",
        "attention_chunk_size",
        "no_rope_layers",
        *LINEAR,
        *MAMBA,
        "mamba_dt_rank",
        "mamba_ssm_dtype",
        "expert_layer_period",
        "text_config",
        "quantization_config",
        "tie_word_embeddings",
        "multi_query",
        "num_kv_shared_layers",
    ]
)
METHODS = st.sampled_from(["fp8", "awq", "gptq", "mxfp4", "bitsandbytes", "modelopt", "compressed-tensors"])
QUANTISED = st.fixed_dictionaries(
    {"quant_method": METHODS},
    optional={"bits": JSON, "group_size": JSON, "config_groups": st.dictionaries(TEXT, JSON, max_size=2)},
)


def refusal(read: Callable[[], ModelShape]) -> str:
    """What is wrong, or nothing where the shape read makes sense."""
    try:
        shape = read()
    except UsageError as error:
        return str(error)
    assert kv_bytes_per_token(shape) > 0
    assert 0 < shape.counts.active <= shape.counts.total
    assert shape.weight_bytes > 0
    return ""


@given(st.dictionaries(READ_KEYS, JSON | st.integers(1, 64) | QUANTISED, max_size=8), st.booleans())
def test_any_configuration_gives_a_shape_or_one_clear_refusal(
    changes: dict[str, Any], complete: bool
) -> None:
    text = json.dumps(SMALL | changes if complete else changes)
    said = refusal(lambda: shape_of(parse_object(text, "config.json"), "any"))
    assert said.startswith("config.json: ") or not said
    assert "\n" not in said


def test_a_variant_of_a_model_may_take_longer_requests() -> None:
    """As the config.json of Qwen3-Coder-30B-A3B-Instruct has it; all else is the same."""
    shape, like = read_model("Qwen3-Coder-30B-A3B"), read_model("Qwen3-30B-A3B")
    assert (shape.max_model_len, like.max_model_len) == (262_144, 40_960)
    assert (shape.counts, shape.kept) == (like.counts, like.kept)
