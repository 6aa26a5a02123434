"""Tables of a profile: what each means in the model, and the one line about those that do not go together."""

import pytest
from every import every

from kvplan.analysis.cache_states import cached_replica
from kvplan.errors import ProfileError, UsageError
from kvplan.ingest.facts import Part, facts, merged
from kvplan.model import Admission, Engine, EngineName, Knowledge, Origin, Scheduling, ServingModel
from kvplan.model.drafts import Drafts
from kvplan.model.fleet import Fleet, Routing
from kvplan.model.kv_layout import Attention, Layers
from kvplan.model.replica import Offload
from kvplan.model.sessions import SharedPrompt
from kvplan.profile.reading import Profile, parse_profile
from kvplan.simulation.policies import engine_settings

TIMING = '[timing]\nd0 = "10 ms"\nd3 = "10 us"\n'
CLASS = '[[classes]]\nname = "chat"\ninput = 100\ndecode = 50\nrate = 1\n'
MEMORY = "memory_tokens = 40_000\n"
BYTES = 'memory = "5 GiB"\nkv_bytes_per_token = 131_072\n'


def profile(gpu: str = MEMORY, more: str = "", of_class: str = CLASS) -> Profile:
    text = f'schema = 1\nname = "tables"\n[gpu]\n{gpu}{TIMING}{of_class}{more}'
    return parse_profile(text.encode(), "x.toml")


def model(gpu: str = MEMORY, more: str = "") -> ServingModel:
    return profile(gpu, more).model


def refusal(gpu: str, more: str = "", of_class: str = CLASS) -> str:
    with pytest.raises(ProfileError) as error:
        profile(gpu, more, of_class)
    return str(error.value)


def test_a_model_wants_all_parts_and_says_what_supplies_those_that_are_missing() -> None:
    parts = {"[gpu]": "[gpu]\n" + MEMORY, "[timing]": TIMING, "[[classes]]": CLASS}
    for left in range(1, 7):
        there = [name for bit, name in enumerate(parts) if left >> bit & 1]
        text = 'schema = 1\nname = "part"\n' + "".join(parts[name] for name in there)
        partial = parse_profile(text.encode(), "part.toml")
        assert partial.known is None
        with pytest.raises(ProfileError) as error:
            partial.model  # noqa: B018
        assert str(error.value).startswith("part.toml: no [")
        for name in parts:
            assert (f"no {name}: kvplan import " in str(error.value)) == (name not in there)


WHOLE, FIRST = Admission


@every(
    ("table", "engine", "policy", "given"),
    [
        ("", None, "vllm", {"watermark": (0.0,), "admission": (0.0,)}),
        ("[engine]\n", Engine(), "vllm", {"watermark": (0.0,), "admission": (0.0,)}),
        (
            '[engine]\nname = "vllm"\nadmission = "first-chunk"\nwatermark = 0.05\n',
            Engine(EngineName.VLLM, FIRST, 0.05),
            "vllm",
            {"watermark": (0.05,), "admission": (1.0,)},
        ),
        ('engine.name = "sglang"\n', Engine(EngineName.SGLANG), "sglang", {}),
        (
            'engine = { name = "sglang", receive_every_steps = 10 }\n',
            Engine(EngineName.SGLANG, receive_every_steps=10),
            "sglang",
            {},
        ),
        (
            'engine = { name = "trtllm", batch_wait_iterations = 20, batch_wait_tokens = 7_373 }\n',
            Engine(EngineName.TRTLLM, batch_wait_iterations=20, batch_wait_tokens=7373),
            "trtllm-no-evict",
            {},
        ),
        ('engine.name = "trtllm"\n', Engine(EngineName.TRTLLM), "trtllm-no-evict", {}),
        (
            'engine = { name = "trtllm", admission = "whole-prompt" }\n',
            Engine(EngineName.TRTLLM, WHOLE),
            "trtllm-no-evict",
            {},
        ),
        (
            'engine = { name = "trtllm", admission = "first-chunk" }\n',
            Engine(EngineName.TRTLLM, FIRST),
            "trtllm-max-utilization",
            {},
        ),
    ],
)
def test_an_engine_is_run_as_its_version_admits(
    table: str, engine: Engine | None, policy: str, given: dict[str, tuple[float, ...]]
) -> None:
    head = 'schema = 1\nname = "engine"\n'
    found = parse_profile(f"{head}{table}[gpu]\n{MEMORY}{TIMING}{CLASS}".encode(), "x.toml").model
    assert (found.engine, *engine_settings(found)[:2]) == (engine, policy, given)


def test_an_engine_is_kept_where_a_profile_is_composed() -> None:
    base = profile(more='[engine]\nname = "trtllm"\nadmission = "first-chunk"  # MAX_UTILIZATION\n')
    timing = Part("timing", facts("timing", {"d0": "9 ms"}, Origin(Knowledge.MEASURED, "a.csv")))
    found = merged(base, [timing], source="a.csv")
    assert found.model.engine == base.model.engine
    assert "# MAX_UTILIZATION" in found.text


SPLIT = '[fleet]\nprefill = 3\ndecode = 5\ntransfer = "20 GB/s"\n'


def test_prefill_and_decode_apart() -> None:
    """2,000 tokens of 128 KiB at 20 GB/s take 13.1072 ms."""
    for gpu in (BYTES, MEMORY + "kv_bytes_per_token = 131_072\n"):
        fleet = model(gpu, SPLIT).fleet
        assert fleet == Fleet(3, 5, 0, Routing.LEAST_REQUESTS, 20e9, 131_072)
        assert (fleet.is_split, fleet.size) == (True, 8)
        assert fleet.transfer_s(2000) == pytest.approx(13.1072e-3)


def test_replicas_that_do_both() -> None:
    fleet = model(BYTES, '[fleet]\nreplicas = 8\nrouting = "session"\n').fleet
    assert fleet == Fleet(replicas=8, routing=Routing.SESSION, bytes_per_token=131_072)
    assert (fleet.is_split, fleet.size, fleet.transfer_s(2000)) == (False, 8, 0.0)


def test_bytes_of_a_token_stand_beside_memory_tokens_only_where_kv_moves() -> None:
    said = refusal(MEMORY + "kv_bytes_per_token = 131_072\n", "[fleet]\nprefill = 3\ndecode = 5\n")
    assert said.startswith("x.toml:5: gpu.kv_bytes_per_token: ")
    assert "unless KV goes over a link" in said


@every(
    ("amount", "more", "tokens", "stored"),
    [
        ('memory = "2 GiB"', "", 16_384, 2**31),
        ("memory_tokens = 500", "inclusive = false\noverlap = false\n", 500, 500 * 131_072),
    ],
)
def test_a_host_tier_is_told_in_tokens(amount: str, more: str, tokens: int, stored: int) -> None:
    """2 GiB are 16,384 tokens of 128 KiB, and each takes 131,072/25e9 s."""
    tier = f'[gpu.offload]\n{amount}\nbandwidth = "25 GB/s"\n{more}'
    found = model(MEMORY + "kv_bytes_per_token = 131_072\n", tier).replica.offload
    load_s, is_default = pytest.approx(5.24288e-6), not more
    assert found == Offload(tokens, load_s, inclusive=is_default, overlap=is_default, memory_bytes=stored)


DRAFTS = """[speculative]
tokens = 2
accepted = [0.7, 0.5, 0.3]
draft_time = "1 ms"
verify_time = "20 us"
overhead = "0.5 ms"
"""


def test_drafts_cost_time() -> None:
    """10 ms + 0.5 ms + 2·1 ms an iteration, 10 µs + 2·20 µs a sequence."""
    found = model(more=DRAFTS)
    assert found.drafts == Drafts(2, (0.7, 0.5, 0.3), 1e-3, 20e-6, 0.5e-3)
    assert (found.timing.d0, found.timing.d3) == (pytest.approx(12.5e-3), pytest.approx(50e-6))


ONE_WINDOW = 'kv_blocks = {}\n[[gpu.kv]]\nkind = "window"\nlayers = 1\nbytes = 64\nwindow = 120\n'


@every(
    ("memory", "decode", "needed"),
    [
        ("memory_tokens = {}\n", 50, 154),  # 150 tokens, two drafts and as many slots ahead
        ("memory_tokens = {}\n", 1, 101),  # the iteration of the prompt drafts nothing
        (ONE_WINDOW, 50, 124),  # a window of 120, and four slots beyond what is computed
        (ONE_WINDOW, 1, 101),
    ],
)
def test_the_longest_request_with_drafts_just_fits(memory: str, decode: int, needed: int) -> None:
    of_class = CLASS.replace("decode = 50", f"decode = {decode}")
    profile(memory.format(needed), DRAFTS, of_class)
    said = refusal(memory.format(needed - 1), DRAFTS, of_class)
    assert f"its longest request holds {needed} KV tokens" in said


WINDOW = 'kind = "window"\nlayers = 50\nbytes = 8192\nwindow = 1024\n'
KINDS = {
    "window": WINDOW,
    "chunk": WINDOW.replace('"window"', '"chunk"'),
    "state": 'kind = "state"\nlayers = 50\nbytes = 131_072\n\n',
}


def layered(kind: str = WINDOW, memory: str = "kv_blocks = 500", block: str = "block_tokens = 16") -> str:
    return f'{memory}\n{block}\n[[gpu.kv]]\n{kind}[[gpu.kv]]\nkind = "full"\nlayers = 10\nbytes = 8192\n'


def test_pool_tokens_are_the_memory_and_layers_alike_are_counted_together() -> None:
    replica = model(layered()).replica
    assert (replica.memory_tokens, replica.block_tokens) == (8000, 16)
    window, full = Layers(Attention.WINDOW, 50, 8192, 1024), Layers(Attention.FULL, 10, 8192)
    assert replica.layout.layers == (window, full)
    apart = layered().replace("layers = 10", "layers = 6")
    assert model(apart + '[[gpu.kv]]\nkind = "full"\nlayers = 4\nbytes = 8192\n').replica == replica


@every(("caching", "states"), [("", 1), ("prefix_caching = true\n", 2), ("prefix_caching = false\n", 1)])
def test_a_prefix_cache_that_is_asked_for_keeps_a_second_state(caching: str, states: int) -> None:
    state = 'kind = "state"\nlayers = 30\nbytes = 3_207_168\n'
    replica = model(caching + layered(state, block="block_tokens = 400")).replica
    assert (replica.layout.state_blocks, replica.prefix_caching) == (states, states == 2)


SESSIONS = (
    '[[sessions]]\nname = "a"\nrate = 0.1\nfirst = 100\nuser = 30\ndecode = 20\nturns = 2\n'
    'think = { law = "exponential", mean = "10 s" }\n'
)


@every("kind", KINDS)
@every(
    ("more", "line", "key"),
    [
        (
            'reuse = { tokens = 0.8, share = 0.9, gap = { law = "fixed", value = "3 s" }, from = "arrival" }\n',
            23,
            "classes[0].reuse",
        ),
        ("[prefix]\nhit_curve = [[1_000, 0.05], [3_000, 0.1]]\n", 24, "prefix.hit_curve"),
    ],
)
def test_what_is_asked_for_again_is_refused_beside_layers(kind: str, more: str, line: int, key: str) -> None:
    why = "layers of several kinds; what is modelled is shared, and sessions"
    assert refusal(layered(KINDS[kind]), more) == f"x.toml:{line}: {key}: not modelled beside {why}"


@every("kind", KINDS)
@every("shared", ["shared = 50\n", "shared = [{ tokens = 30, weight = 0.6 }]\n"])
def test_what_is_shared_is_refused_beside_states_alone(kind: str, shared: str) -> None:
    if kind == "state":
        why = "states without checkpoints, which engines keep at some places of a prompt only"
        off = "with [gpu] prefix_caching = false it is"
        assert (
            refusal(layered(KINDS[kind]), shared)
            == f"x.toml:23: classes[0].shared: not modelled beside {why}; {off}"
        )
    else:
        assert model(layered(KINDS[kind]), shared).classes[0].shared


def test_versions_of_vllm_that_keep_no_state_at_every_block_refuse_them() -> None:
    kept = "prefix_caching = true\n" + layered(KINDS["state"].strip() + "\ncheckpoints = true\n")
    assert model(kept, 'shared = 50\n[engine]\nversion = "0.31.2"\n').replica.layout.layers[0].checkpoints
    said = refusal(kept, '[engine]\nversion = "0.32.0"\n')
    assert said.endswith("gpu.kv[0].checkpoints: must be false: no mode of vLLM 0.32 and later")


@every(
    ("engine", "why"),
    [
        ('scheduling = "priority"', 'layers of several kinds and scheduling = "priority"'),
        ('name = "sglang"', "layers of several kinds but in vLLM"),
    ],
)
def test_what_is_shared_beside_layers_is_of_vllm_first_come_first_served(engine: str, why: str) -> None:
    assert refusal(layered(), f"shared = 50\n[engine]\n{engine}\n").endswith(
        f"not modelled beside {why}; with [gpu] prefix_caching = false it is"
    )


def test_conversations_beside_layers_are_run_and_formulas_refuse_them() -> None:
    talks = model(layered(), SESSIONS)
    assert talks.classes[-1].sessions is not None
    with pytest.raises(UsageError, match=r"a: sessions .* \[gpu\] prefix_caching = false"):
        cached_replica(talks)
    users, off = SESSIONS.replace("rate = 0.1", "users = 5"), "prefix_caching = false\n"
    assert model(layered(), users).total_rate_rps == model(off + layered(), users).total_rate_rps > 0


@every("engine", ["", '[engine]\nname = "sglang"\n'])
def test_what_is_shared_is_computed_whole_where_the_cache_is_off(engine: str) -> None:
    """A class of 100 tokens, and turns of 50 + 100 and 50 + 100 + 20 + 30, of which all are computed."""
    kind = KINDS["window" if engine else "state"]
    talks = model("prefix_caching = false\n" + layered(kind), SESSIONS + "shared = 50\n" + engine)
    assert (talks.has_common_prefixes, talks.finds_prefixes) == (True, False)
    assert talks.mix.prefill_tokens.tolist() == [100, 150, 200]


def test_sessions_of_one_turn_are_a_class_beside_layers() -> None:
    once = SESSIONS.replace("turns = 2", "turns = 1\nshared = 50")
    ours = model(layered(), once).classes[-1]
    assert (ours.sessions, ours.shared, ours.input_tokens, ours.rate_rps) == (
        None,
        (SharedPrompt(50),),
        150,
        0.1,
    )


@every("kind", KINDS)
@every(
    ("memory", "key"),
    [("memory_tokens = 8000", "memory_tokens"), ('memory = "1 GiB"\nkv_bytes_per_token = 9', "memory")],
)
def test_memory_in_tokens_is_refused_beside_any_kind(kind: str, memory: str, key: str) -> None:
    said = refusal(layered(KINDS[kind], memory))
    assert said == f"x.toml:4: gpu.{key}: not allowed beside kv; give kv_blocks"


def test_a_size_goes_with_windows_and_chunks_alone() -> None:
    for kind, says in (
        (
            KINDS["chunk"].replace("window = 1024\n", ""),
            '6: gpu.kv[0].window: required beside kind = "chunk"',
        ),
        (KINDS["state"] + "window = 9\n", '11: gpu.kv[0].window: not allowed beside kind = "state"'),
    ):
        assert refusal(layered(kind)) == f"x.toml:{says}"


@every(
    ("more", "of_class", "says"),
    [
        (
            '[engine]\nname = "trtllm"\nversion = "1.0"\nprefill_interval = 4\n',
            CLASS,
            'engine.prefill_interval: not allowed beside name = "trtllm"',
        ),
        (
            '[engine]\nname = "sglang"\nversion = "0.5"\nscheduling = "priority"\n',
            CLASS,
            'engine.scheduling: not allowed beside name = "sglang"',
        ),
        (
            '[engine]\nname = "sglang"\nversion = "0.5"\nprefill_interval = 4\n',
            CLASS,
            "engine.prefill_interval: sglang 0.5 has none; later versions do",
        ),
        (
            "",
            "".join(CLASS.replace("chat", name) + "priority = 1\n" for name in "abc"),
            'classes[0].priority: not allowed without [engine] scheduling = "priority"; nor is that of 2 more',
        ),
    ],
)
def test_one_mistake_is_said_in_one_line(more: str, of_class: str, says: str) -> None:
    with pytest.raises(ProfileError) as refused:
        profile(MEMORY, more, of_class)
    assert str(refused.value).endswith(f": {says}")
    assert refused.value.others == ()


def test_first_come_first_served_stands_beside_what_priority_does_not() -> None:
    """It is what an engine does anyway."""
    more = '[engine]\nscheduling = "fcfs"\n' + DRAFTS
    assert model(more=more).engine.scheduling is Scheduling.FCFS
    wrong = refusal(MEMORY, more.replace("fcfs", "priority"))
    assert 'not modelled beside [engine] scheduling = "priority"' in wrong
