"""Commands that are printed, parsed by the table of flags of the engine's version."""

import json
import shlex
from dataclasses import replace
from functools import cache
from io import BytesIO
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import tomli
from every import every

import kvplan.emit
from kvplan.emit import engine
from kvplan.emit.settings import flags_of_profile
from kvplan.emit.start import started
from kvplan.engine import EngineName, numbers
from kvplan.errors import UsageError
from kvplan.ingest.model.config import models, read_model
from kvplan.ingest.model.hardware import find_gpu
from kvplan.model import Admission, Engine, Parallelism, Replica, RequestClass, ServingModel, Timing
from kvplan.planning.demand import Demand, Length
from kvplan.planning.kinds import Kind, kinds
from kvplan.planning.result import Request
from kvplan.planning.service import replica_profile
from kvplan.profile.reading import Profile, load_profile, shipped_profiles

TABLE = tomli.loads(Path(kvplan.emit.__file__).with_name("flags.toml").read_text("utf-8"))
VERSIONS = {
    "vllm": [
        "0.6.6",
        "0.7.3",
        "0.8.0",
        "0.10.2",
        "0.15.1",
        "0.18.0",
        "0.19.0",
        "0.24.0",
        "0.29.0",
        "0.33.0",
        "",
    ],
    "sglang": ["0.2.15", "0.4.1", "0.4.9", "0.5.3", ""],
    "trtllm": ["0.16.0", "1.0.0", "1.4", ""],
}
NAMES = sorted({name for names in models().values() for name in names.values()})
SERVED = ["meta-llama/Llama-3.3-70B-Instruct", *NAMES[:: len(NAMES) // 60 + 1]]
KINDS = (("H100", "bf16", "auto"), ("RTX 4090", "fp8", "fp8"), ("B200", "nvfp4", "auto"))
REPLICA = ServingModel((RequestClass("a", 15, (10,), (1.0,), 1.0),), Timing(1.0), Replica(1025))


def accepts(takes: Any, value: str | None) -> bool:
    """What the table says that a flag takes."""
    if takes == "nothing" or value is None:
        return takes == "nothing" and value is None
    if isinstance(takes, dict):
        return value in takes.values()
    if takes == "json":
        return isinstance(json.loads(value), dict)
    if takes == "true or false":
        return value in ("true", "false")
    number = float(value)
    within = {"count": number >= 0 and value.isdecimal(), "share": 0 < number <= 1, "ratio": number > 1}
    return within[takes]


def parsed(name: str, version: str, command: str) -> dict[str, str | None]:
    """Parse a command as the engine of a version would; an AssertionError where that exits."""
    words = shlex.split(command)[{"vllm": 3, "sglang": 5}[name] :]
    found: dict[str, str | None] = {}
    while words:
        flag = words.pop(0)
        value = words.pop(0) if words and not words[0].startswith("--") else None
        known = TABLE[name][flag]
        assert not version or numbers(known.get("since", "0")) <= numbers(version), f"{version} has no {flag}"
        assert accepts(known["takes"], value), f"{flag} {value}"
        assert flag not in found
        found[flag] = value
    return found


@cache
def replica(
    name: str, gpu: str, version: str, weights: str, kv_dtype: str = "auto"
) -> tuple[Kind, Profile] | None:
    """The kind with the fewest GPUs that holds a model, and its profile."""
    how = {"kv_dtype": kv_dtype, "engine": EngineName.VLLM, "version": version}
    ranks = [Parallelism(tensor) for tensor in (1, 2, 4, 8)]
    asked = Demand(Length(600, 0.5), Length(100, 0.5), rate_rps=0.01)
    for kind in kinds(read_model(name), [find_gpu(gpu)], parallelism=ranks, weights=(weights,), **how):
        found = replica_profile(kind, Request([kind], asked, ()))
        if isinstance(found, Profile):
            return kind, found
    return None


@pytest.mark.parametrize("name", SERVED)
def test_a_planned_command_is_one_that_the_version_takes(name: str) -> None:
    for version, (gpu, weights, kv_dtype) in product(VERSIONS["vllm"], KINDS):
        if (found := replica(name, gpu, version, weights, kv_dtype)) is None:
            continue
        kind, profile = found
        record, model = engine("vllm"), profile.model
        made = started(record, flags_of_profile(record, model), model, profile.tables["model"])
        flags = parsed("vllm", version, made.command)
        served, longest = shlex.split(made.command)[2], read_model(name).max_model_len
        assert 1 <= int(flags["--max-model-len"] or 0) <= (longest or 10**9)
        assert int(flags.get("--tensor-parallel-size") or 1) == kind.parallelism.tensor
        assert flags.get("--kv-cache-dtype") == (None if kv_dtype == "auto" else kv_dtype)
        if served != name:
            assert any(f"A checkpoint of {name} in " in note for note in made.notes)
            assert "--quantization" not in flags
        else:
            assert flags.get("--quantization") == (None if kind.own_weights else "fp8")


@every("name", shipped_profiles())
def test_a_shipped_profile_is_written_for_every_version(name: str) -> None:
    model = load_profile(name, stdin=BytesIO()).known
    for served, versions in VERSIONS.items():
        record = engine(served)
        for version in versions:
            how = {"version": version, "max_model_len": 4096}
            how |= {"watermark": 0.02, "admission": Admission.FIRST_CHUNK} if served == "vllm" else {}
            asked = replace(model, engine=Engine(EngineName(served), **how))
            try:
                flags = [*flags_of_profile(record, asked)]
            except UsageError:
                continue
            made = started(record, flags, asked)
            assert len(made.flags) + len(made.notes) == len(flags)
            if not made.in_file:
                parsed(served, version, made.command)
            for flag in made.flags:
                assert accepts(TABLE[served][flag.flag]["takes"], flag.value and flag.value.strip("'"))


def test_a_flag_that_a_version_lacks_is_named_and_not_set() -> None:
    model = replace(REPLICA, engine=Engine(version="0.19.0", watermark=0.02))
    record = engine("vllm")
    made = started(record, flags_of_profile(record, model), model)
    assert "--watermark" not in made.command
    assert made.notes == ("Not set: --watermark 0.02 needs vLLM 0.24, and this is 0.19.0 (the profile's).",)
    newer = replace(model, engine=replace(model.engine, version="0.24.0"))
    assert "--watermark 0.02" in started(record, flags_of_profile(record, newer), newer).command


@every(
    ("gpu", "version", "weights", "served", "quantized"),
    [
        # 16.1 GB of 16-bit weights fit into 0.9 of 25.3 GB, 65.5 GB of Qwen3-32B do not
        ("RTX 4090", "0.14.0", "fp8", "meta-llama/Llama-3.1-8B", True),
        ("RTX 4090", "0.14.0", "int4", "MODEL", False),
        ("L4", "0.33.0", "fp8", "meta-llama/Llama-3.1-8B", True),
        ("T4", "0.14.0", "fp8", "MODEL", False),
        ("T4", "0.15.0", "fp8", "meta-llama/Llama-3.1-8B", True),
    ],
)
def test_weights_are_quantised_only_where_they_load(
    gpu: str, version: str, weights: str, served: str, quantized: bool
) -> None:
    table = {"name": "meta-llama/Llama-3.1-8B", "weights": weights, "gpu": gpu}
    model = replace(REPLICA, engine=Engine(version=version))
    made = started(engine("vllm"), (), model, table)
    assert made.words == f"vllm serve {served}"
    assert ("--quantization fp8" in made.command) == quantized


def test_a_checkpoint_that_is_known_is_named() -> None:
    table = {"name": "Qwen/Qwen3-32B", "weights": "int4", "gpu": "L40S"}
    made = started(engine("vllm"), (), REPLICA, table)
    assert made.words == "vllm serve Qwen/Qwen3-32B-AWQ"
    said = "A checkpoint of Qwen/Qwen3-32B in int4 is needed, and this is Qwen/Qwen3-32B-AWQ: "
    assert made.notes == (f"{said}vLLM makes none as it loads here.",)


@every(
    ("version", "caching", "flag"),
    [
        ("0.7.3", True, "--enable-prefix-caching"),
        ("0.7.3", False, ""),
        ("0.8.0", True, ""),
        ("0.8.0", False, "--no-enable-prefix-caching"),
        ("", False, "--no-enable-prefix-caching"),
    ],
)
def test_the_prefix_cache_is_set_where_its_default_is_another(version: str, caching: bool, flag: str) -> None:
    replica = replace(REPLICA.replica, prefix_caching=caching)
    model = replace(REPLICA, replica=replica, engine=Engine(version=version))
    assert [f.flag for f in flags_of_profile(engine("vllm"), model)] == [flag] * bool(flag)


def test_a_name_is_one_word_to_a_shell() -> None:
    made = started(engine("vllm"), (), REPLICA, {"name": "a/b; $(reboot) `x`", "weights": "bf16"})
    assert shlex.split(made.command)[:3] == ["vllm", "serve", "a/b; $(reboot) `x`"]
