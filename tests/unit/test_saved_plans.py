"""A saved plan takes the options of `plan`: what is asked for otherwise, and the rest as it was."""

from typing import Any, cast

import pytest
from every import every

from kvplan.errors import UsageError
from kvplan.model import Plan
from kvplan.options import PlanOptions
from kvplan.planning.demand import Replay
from kvplan.planning.kinds import Kind
from kvplan.planning.options import request
from kvplan.planning.plan import _in_words
from kvplan.planning.result import Request
from kvplan.planning.service import replica_profile, with_demand
from kvplan.profile.reading import Profile, parse_profile
from kvplan.study.trial import Task

SAVED = """\
schema = 1
name = "saved"
model = { name = "Qwen/Qwen3-8B", weights = "fp8", kv_dtype = "fp8", gpu = "H100 SXM" }
gpu = { memory_tokens = 400_000, block_tokens = 16, max_num_seqs = 256, max_num_batched_tokens = 8192 }
engine = { version = "0.19.0", max_model_len = 32_768 }
timing = { d0 = "10 ms", d1 = "0.03 us", d2 = "20 us" }
TRAFFIC
slo = { ttft_s.p95 = "2 s" }
cost = { gpu_hour = 2.5 }
plan = { slower = 0.1, headroom = 0.2, spare = 1 }
fleet = { replicas = 2, routing = "round-robin" }
"""
INPUT = {"lognormal": {"mean": 1800, "cv": 0.95}}
LAW = "{ lognormal = { mean = 1800, cv = 0.95 } }"
ONE = f"""classes = [{{ name = "requests", input = {LAW}, decode = 200, rate = 4.0 }}]"""
TALK = """sessions = [{ name = "talk", users = 40, shared = 500, first = 900, user = 300, decode = 200, turns = 4,
think = { law = "exponential", mean = "20 s" } }]"""
CHATS = TALK.replace("users = 40", "rate = 0.5")
TWO = ONE.replace("}]", '}, { name = "more", input = 9, decode = 9, rate = 1.0 }]')


def saved(traffic: str = ONE) -> Profile:
    return parse_profile(SAVED.replace("TRAFFIC", traffic).encode(), "plan.toml")


def asked(traffic: str = ONE, **options: Any) -> Request:
    return request([saved(traffic)], PlanOptions((), **options))


def planned(traffic: str = ONE, **options: Any) -> Profile:
    """The first replica that is looked at."""
    wanted = asked(traffic, **options)
    found = replica_profile(wanted.options[0], wanted)
    assert isinstance(found, Profile)
    return found


@every(
    ("traffic", "options", "changed"),
    [
        (ONE, {"input": "3600"}, {"input": {"lognormal": {"mean": 3600, "cv": 0.95}}}),
        (ONE, {"input": "3600:0"}, {"input": 3600}),
        (ONE, {"output": "50:0"}, {"decode": 50}),
        (ONE, {"rate": 50.0}, {"rate": 50.0}),
        (ONE, {"rate": 8.0, "output": "50:0"}, {"decode": 50, "rate": 8.0}),
        (
            ONE,
            {"users": 30},
            {"users": 30, "rate": None, "first": INPUT, "user": INPUT, "turns": 1, "shared": 0},
        ),
        (ONE, {"system_prompt": 700}, {"shared": 700, "rate": 4.0, "first": INPUT}),
        (TALK, {"users": 80}, {"users": 80}),
        (TALK, {"input": "500:0"}, {"first": 500, "user": 500}),
        (TALK, {"think": "5 s"}, {"think": {"law": "exponential", "mean": "5 s"}}),
        (TALK, {"rate": 2.0}, {"users": None, "rate": 0.5}),
        (CHATS, {"rate": 6.0}, {"rate": 1.5}),
        (CHATS, {"system_prompt": 900}, {"shared": 900}),
    ],
)
def test_what_is_asked_for_changes_and_the_rest_stays(
    traffic: str, options: dict[str, Any], changed: dict[str, Any]
) -> None:
    found = planned(traffic, **options).tables
    [before] = [*saved(traffic).tables.get("classes", ()), *saved(traffic).tables.get("sessions", ())]
    [now] = [*found.get("classes", ()), *found.get("sessions", ())]
    assert {key: now.get(key) for key in changed} == changed
    same = now.keys() & before.keys() - changed.keys()
    assert {key: now[key] for key in same} == {key: before[key] for key in same}


def test_another_number_of_turns_is_as_many_requests() -> None:
    found = planned(CHATS, turns="2")
    assert found.model.total_rate_rps == pytest.approx(saved(CHATS).model.total_rate_rps, rel=1e-9)
    assert found.tables["sessions"][0]["turns"] != saved(CHATS).tables["sessions"][0]["turns"]


@every(
    ("options", "words"),
    [({}, "40 users, "), ({"users": 30}, "30 users, "), ({"rate": 2.0}, "2 requests/s, ")],
)
def test_a_population_is_called_by_its_number(options: dict[str, Any], words: str) -> None:
    assert _in_words(planned(TALK, **options)).startswith(words)


def test_other_gpus_are_estimated_for_the_model_as_it_was() -> None:
    wanted = asked(gpu="H200,L40S", rate=20.0)
    kinds = [kind for kind in wanted.options if isinstance(kind, Kind)]
    assert {(kind.gpu.name, kind.parallelism.tensor) for kind in kinds} == {
        (gpu, tensor) for gpu in ("H200", "L40S") for tensor in (1, 2, 4, 8)
    }
    assert {(k.shape.name, k.weights, k.kv_dtype, k.version) for k in kinds} == {
        ("Qwen/Qwen3-8B", "fp8", "fp8", "0.19.0")
    }
    found = replica_profile(kinds[0], wanted)
    assert isinstance(found, Profile)
    assert found.tables["classes"] == [{**saved().tables["classes"][0], "rate": 20.0}]
    assert found.tables["model"] == {**saved().tables["model"], "gpu": "H200"}
    assert found.tables["engine"] == {"version": "0.19.0", "max_model_len": 32_768}
    assert (wanted.slower, wanted.headroom, wanted.spare) == (0.1, 0.2, 1)
    assert (wanted.router, wanted.prices) == ("round-robin", None)
    assert [(slo.key, slo.bound) for slo in wanted.slos] == [("ttft_s.p95", 2.0)]


def test_what_is_given_counts_though_it_is_the_default() -> None:
    given = asked(slower="5%", headroom=0, router="any", engine="vllm")
    assert (given.slower, given.headroom, given.router) == (0.05, 0.0, None)
    spare = request([saved().changed({("plan", "spare"): 2})], PlanOptions(()))
    none = request([saved().changed({("plan", "spare"): 2})], PlanOptions((), spare=0))
    assert (spare.spare, none.spare) == (2, 0)


@pytest.mark.parametrize("engine", ["sglang", "vllm==0.10.1"])
def test_another_engine_has_other_memory_and_is_estimated_anew(engine: str) -> None:
    with pytest.raises(
        UsageError, match=f"--engine {engine}: plan.toml is of vllm==0.19.0; with --gpu its model"
    ):
        asked(engine=engine)
    assert asked(engine="vllm==0.19.0").engine == "vllm"
    found = asked(engine=engine, gpu="H100").options[0]
    assert isinstance(found, Kind)
    assert "==".join(filter(None, (found.engine, found.version))) == engine


@pytest.mark.parametrize("caching", ["true", "false"])
def test_how_many_users_are_too_many_hangs_on_no_fleet_that_was_saved(caching: str) -> None:
    """They ask more of two replicas than of one, and 40 of them are as many on each."""
    text = SAVED.replace("TRAFFIC", TALK).replace(
        "block_tokens = 16", f"block_tokens = 16, prefix_caching = {caching}"
    )
    loads = []
    for count in (1, 2, 3):
        model = parse_profile(text.replace("replicas = 2", f"replicas = {count}").encode(), "plan.toml").model
        task = Task(model, Plan())
        loads.append(task.rate_rps / task.sustainable_rps(8192))
    assert loads == pytest.approx([loads[0]] * 3, rel=1e-6)


def test_an_objective_takes_the_place_of_the_saved_one() -> None:
    assert [(slo.key, slo.bound) for slo in asked(slo="ttft-p95=1s", rate=9.0).slos] == [("ttft_s.p95", 1.0)]


def test_the_price_of_a_gpu_stays_with_it() -> None:
    assert asked(tp=2).prices == {"H100 SXM TP2 fp8": 5.0}
    assert asked(gpu="H100", tp=2).prices == {"H100 SXM TP2 fp8": 5.0}


@every(
    ("options", "said"),
    [
        ({"gpu": "H200"}, "plan.toml has the price of H100 SXM: --gpu-hour gives those asked for theirs"),
        ({"gpu": "H200", "gpu_hour": "3"}, ""),
        ({"gpu": "H100"}, ""),
        ({"rate": 9.0}, ""),
    ],
)
def test_a_price_that_is_left_out_is_named(options: dict[str, Any], said: str) -> None:
    assert asked(**options).unpriced == said


@every(
    ("options", "says_so"),
    [
        ({}, False),
        ({"input": "3600"}, True),
        ({"input": "3600:0.5"}, False),
        ({"gpu": "H200", "input": "3600"}, True),
        ({"input": "3600", "output": "50:1", "rate": 2.0}, True),
        ({"input": "3600:1", "output": "50:1", "rate": 2.0}, False),
    ],
)
def test_a_spread_that_nobody_states_is_said_to_be_assumed(options: dict[str, Any], says_so: bool) -> None:
    found = planned(**options)
    assert ("spread of " in found.model.provenance.workload.source) is says_so
    again = request([found], PlanOptions((), gpu="L40S"))
    other = replica_profile(again.options[0], again)
    assert isinstance(other, Profile)
    assert other.model.provenance.workload == found.model.provenance.workload


@every(
    ("traffic", "options", "why"),
    [
        (TWO, {"input": "500"}, "2 classes; give --in, --out and --rate or --users"),
        ("", {"input": "500"}, "0 classes"),
        (ONE, {"input": "0"}, "--in '0': tokens are wanted"),
        (ONE, {"rate": 1.0, "users": 4}, "one of them says how much"),
        (
            ONE.replace("rate", "shared = 1, rate"),
            {"users": 4},
            "a class with shared is not made a conversation",
        ),
    ],
)
def test_what_cannot_be_asked_again_is_refused(traffic: str, options: dict[str, Any], why: str) -> None:
    with pytest.raises(UsageError, match=why):
        asked(traffic, **options)


def test_a_profile_without_a_model_cannot_be_estimated() -> None:
    plain = saved().changed({("model",): None})
    with pytest.raises(UsageError, match=r"plan\.toml: .* and the profile has no \[model\] with its name"):
        request([plain], PlanOptions((), gpu="H200"))


def test_a_trace_does_not_take_the_place_of_classes_with_promises() -> None:
    promised = ONE.replace("rate = 4.0", 'rate = 4.0, slo = { ttft_s.p95 = "1 s" }')
    with pytest.raises(UsageError, match=r"--trace: .* plan\.toml has classes with slo"):
        with_demand(saved(promised), Replay({}, cast(Any, None), "t.csv"))
