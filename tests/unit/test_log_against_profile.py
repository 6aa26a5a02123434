"""What a log states against what a profile says of the same service: the log counts, and what hangs on it is said."""

from pathlib import Path

import pytest
from every import every

from kvplan.errors import UsageError
from kvplan.ingest.gathering import Asked, Gathered, gather_files
from kvplan.model import Knowledge
from kvplan.profile.reading import parse_profile

BASE = """\
schema = 1
name = "two GPUs"
[provenance]
timing = { basis = "measured", source = "tensor_parallel_size=2, kv_cache_dtype=fp8" }
[gpu]
memory_tokens = 50_000
max_num_seqs = 7
gpus = 2
[timing]
d0 = "30 ms"
[[classes]]
name = "chat"
rate = 0.5
input = 2_000
decode = 400
[[classes]]
name = "long"
rate = 0.125
input = 24_000
decode = { 100 = 1, 800 = 1 }
"""
ARGUMENTS = "INFO [utils.py:233] non-default args: {%s}\n"
CAPACITY = "INFO [kv_cache_utils.py:1087] GPU KV cache size: 90,000 tokens\n"


def gathered(folder: Path, arguments: str, base: str = BASE, **asked: str) -> Gathered:
    log = folder / "serve.log"
    log.write_text(ARGUMENTS % arguments + CAPACITY)
    return gather_files([(None, log)], Asked(**asked), parse_profile(base.encode(), "base.toml"))  # type: ignore[arg-type]


@every(
    ("arguments", "gpus", "basis"),
    [
        ("'tensor_parallel_size': 2, 'kv_cache_dtype': 'fp8'", 2, "measured"),
        ("'tensor_parallel_size': 4, 'kv_cache_dtype': 'fp8'", 4, "assumed"),
        ("'tensor_parallel_size': 2", 2, "assumed"),  # the cache is of another type
        ("'kv_cache_dtype': 'fp8'", 1, "assumed"),
        ("'tensor_parallel_size': 1, 'pipeline_parallel_size': 2, 'kv_cache_dtype': 'fp8'", 2, "measured"),
    ],
)
def test_a_timing_of_another_service_is_assumed(
    tmp_path: Path, arguments: str, gpus: int, basis: str
) -> None:
    found = gathered(tmp_path, arguments)
    assert found.profile.model.replica.gpus == gpus
    assert found.profile.model.replica.max_num_seqs is None  # which the arguments leave to the engine
    assert found.profile.provenance.timing.basis is Knowledge(basis)
    assert (basis == "assumed") == any("[timing] is assumed" in note for note in found.notes)


@every(
    ("length", "rates", "said"),
    [
        (32_768, [0.5, 0.125], ""),
        (16_384, [0.5, 0.0], "20% of the requests (long) are longer than max_model_len, 16,384 tokens"),
        (24_500, [0.5, 0.125], "10% of the requests (long) are longer than max_model_len, 24,500 tokens"),
        (1_000, [0.5, 0.125], "100% of the requests (chat, long) are longer"),
    ],
)
def test_requests_that_the_engine_rejects_are_said_and_no_load(
    tmp_path: Path, length: int, rates: list[float], said: str
) -> None:
    found = gathered(tmp_path, f"'max_model_len': {length}")
    assert [c["rate"] for c in found.profile.tables["classes"]] == rates
    assert [note[: len(said)] for note in found.notes if "max_model_len" in note] == [said] * bool(said)


@every(("version", "said"), [("0.17.1", True), ("0.18.0", False), ("", False)])
def test_an_old_version_admits_by_the_first_chunk(tmp_path: Path, version: str, said: bool) -> None:
    log = tmp_path / "serve.log"
    log.write_text(f"vLLM API server version {version}\n{CAPACITY}")
    for base, twice in ((BASE, True), (f'{BASE}[engine]\nadmission = "first-chunk"\n', False)):
        found = gather_files([(None, log)], Asked(), parse_profile(base.encode(), "base.toml"))
        assert any("its first chunk fits" in note for note in found.notes) == (said and twice)
        assert found.profile.tables.get("engine", {}).get("admission") == (
            "first-chunk" if said or not twice else None
        )


def test_prefix_caching_follows_the_log(tmp_path: Path) -> None:
    assert not gathered(tmp_path, "'enable_prefix_caching': False").profile.model.replica.prefix_caching


def test_a_default_of_the_engine_is_not_measured(tmp_path: Path) -> None:
    found = gathered(tmp_path, "'tensor_parallel_size': 2", gpu="H100 SXM").profile
    assert found.model.replica.max_num_seqs == 1024
    assert found.provenance.gpu.basis is Knowledge.ESTIMATED


def test_a_group_is_a_service_of_the_log(tmp_path: Path) -> None:
    log = tmp_path / "two.log"
    log.write_text(f"chat-1 | {CAPACITY}embed-1 | {CAPACITY.replace('90,000', '9,000')}")
    found = gather_files([(None, log)], Asked(group="chat-1"), None)
    assert found.profile.tables["gpu"]["memory_tokens"] == 90_000
    for group in (None, "chat-2"):
        with pytest.raises(UsageError, match="choose one with --group: 'chat-1', 'embed-1'"):
            gather_files([(None, log)], Asked(group=group), None)
