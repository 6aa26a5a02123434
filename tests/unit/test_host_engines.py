"""A host tier as settings of engines, and where no policy has one."""

import json
from dataclasses import replace

import numpy as np
import pytest

from kvplan.engines import engine
from kvplan.engines.collapse import as_simulated, cache_notes, planned
from kvplan.errors import UsageError
from kvplan.model import Plan, Replica, RequestClass, ServingModel, Timing
from kvplan.model.gaps import Exponential
from kvplan.model.offload import Offload
from kvplan.model.reuse import Reuse
from kvplan.report.assembly import Report, analyze
from kvplan.simulation.policies import POLICIES
from kvplan.simulation.policies.protocol import Scenario, Settings
from kvplan.simulation.requests import Requests

TIER = Offload(800_000, 5e-6, memory_bytes=800_000 * 131_072)


def model(tier: Offload = TIER, rate: float = 4.4) -> ServingModel:
    one = RequestClass("a", 3000, (200,), (1.0,), rate, reuse=Reuse(3000, 0.8, Exponential(60.0)))
    return ServingModel((one,), Timing(0.012, 1e-7, 60e-6), Replica(400_000, 16, gpus=2, offload=tier))


def report(some: ServingModel) -> Report:
    return analyze(some, name="", sha256="")


def flags(name: str, some: ServingModel) -> dict[str, str | None]:
    return {one.flag: one.value for one in planned(engine(name), report(some), some)}


def test_vllm_is_told_the_bytes_of_all_ranks() -> None:
    found = flags("vllm", model())
    assert list(found) == ["--kv-transfer-config"]
    assert json.loads((found["--kv-transfer-config"] or "").strip("'")) == {
        "kv_connector": "OffloadingConnector",
        "kv_role": "kv_both",
        "kv_connector_extra_config": {"cpu_bytes_to_use": 104_857_600_000, "offload_prompt_only": False},
    }


def test_sglang_is_told_how_many_times_the_gpu() -> None:
    wanted = {
        "--enable-hierarchical-cache": None,
        "--hicache-ratio": "2",
        "--hicache-write-policy": "write_through",
    }
    assert flags("sglang", model()) == wanted
    victims = flags("sglang", model(replace(TIER, inclusive=False)))
    assert victims == wanted | {"--hicache-write-policy": "write_back"}


def test_what_an_engine_does_not_have_is_said() -> None:
    small, some = model(replace(TIER, memory_tokens=300_000)), model()
    assert flags("sglang", small) == {}
    for name, about, words in (
        ("sglang", small, "the host tier is left out"),
        ("sglang", some, "Runs are without the host tier."),
        ("trtllm", some, "not written for TensorRT-LLM"),
        ("vllm", model(replace(TIER, overlap=False)), "loads them while others run"),
        ("vllm", some, "requests that wait longer than 1"),
    ):
        assert any(words in note for note in cache_notes(engine(name), report(about), about)), name


def test_runs_of_an_engine_have_a_tier_where_its_policy_has() -> None:
    assert as_simulated(engine("vllm"), model()).replica.offload == TIER
    for name in ("sglang", "trtllm"):
        assert as_simulated(engine(name), model()).replica.offload is None


def test_a_policy_without_a_host_tier_refuses_it() -> None:
    none = np.zeros(1, dtype=np.int64)
    scenario = Scenario(model(), Plan(), Requests(np.zeros(1), none + 9, none + 9, none), ("a",))
    with pytest.raises(UsageError, match=r"sglang: a host tier, \[gpu.offload\], is not modelled"):
        POLICIES["sglang"].prepare(scenario, Settings("sglang", {}))
    assert POLICIES["sglang"].prepare(scenario, Settings("sglang", {"prefix_caching": (0.0,)}))
