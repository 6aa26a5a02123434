"""Good profiles become the model that they describe."""

import hashlib
import io
import re
from datetime import date
from fractions import Fraction
from pathlib import Path

import pytest
from every import every

from kvplan.engine import Engine, EngineName
from kvplan.errors import ProfileError
from kvplan.model import (
    Knowledge,
    MeasuredRange,
    Origin,
    Prefill,
    Provenance,
    Replica,
    RequestClass,
    Timing,
    as_written,
)
from kvplan.model.parallelism import Parallelism
from kvplan.profile.reading import (
    DEFAULT_PROFILE,
    Plan,
    Profile,
    load_profile,
    parse_profile,
    shipped_profiles,
)

FULL = """\
schema = 1
name = "everything – Ω"

[gpu]
memory = "5.05 GiB"
kv_bytes_per_token = 131_072
block_tokens = 16
prefill = "inline"
max_num_seqs = 256
max_num_batched_tokens = 2048
gpus = 4

[timing]
d0 = "14.5 ms"
d1 = "0.25 us"
d2 = 85e-6
d3 = 0
request_overhead = "14 ms"
measured = { kv_tokens = [0, 900_000], sequences = [1, 25.5], band = [0.9, 1.3] }

[workload]
rate = 0.3

[[classes]]
name = "chat"
input = 1155
decode = 211
share = 0.4

[[classes]]
name = "code"
input = 2_000
decode = { 400 = 3, 50 = 0.2, 200 = 0.5 }
share = 0.6

[plan]
delta = 0.001
horizon = "10 min"
segments = 3

[gate]
require = [
  "load.headroom >= 0.20",
  "verdict.status != overloaded",
]

[provenance]
gpu = "measured"
timing = { basis = "assumed", source = "another model's", date = 2026-11-22 }
"""

SMALL = """\
schema = 1
name = "small"
gpu.memory_tokens = 100
timing.d0 = "1 s"
[[classes]]
name = "a"
input = 0
decode = 4
rate = 2
"""


def parsed(text: str) -> Profile:
    return parse_profile(text.encode(), "profile.toml")


def test_every_feature_reaches_the_model() -> None:
    profile = parsed(FULL)
    assert profile.name == "everything – Ω"
    assert profile.source == "profile.toml"
    assert profile.text == FULL
    assert profile.sha256 == hashlib.sha256(FULL.encode()).hexdigest()
    assert profile.plan == Plan(delta=0.001, horizon_s=600.0, segments=3)
    assert profile.requirements == ("load.headroom >= 0.20", "verdict.status != overloaded")
    assert profile.model.replica == Replica(
        memory_tokens=41_369,
        block_tokens=16,
        prefill=Prefill.INLINE,
        max_num_seqs=256,
        max_num_batched_tokens=2048,
        gpus=4,
        parallelism=Parallelism(tensor=4),
    )
    assert profile.model.timing == Timing(d0=0.0145, d1=2.5e-7, d2=8.5e-5, d3=0.0)
    assert profile.model.request_overhead_s == 0.014
    assert profile.model.measured == MeasuredRange(
        kv_tokens=(0, 900_000), sequences=(1, 25.5), band=(0.9, 1.3)
    )
    assert profile.model.provenance == Provenance(
        gpu=Origin(Knowledge.MEASURED),
        timing=Origin(Knowledge.ASSUMED, "another model's", date(2026, 11, 22)),
        workload=Origin(Knowledge.STATED),
    )
    assert profile.model.classes == (
        RequestClass("chat", 1155, (211,), (1.0,), 0.12),
        RequestClass("code", 2000, (50, 200, 400), (2.0, 5.0, 30.0), 0.18),
    )


def test_what_is_not_given_takes_its_default() -> None:
    profile = parsed(SMALL)
    assert profile.plan == Plan(delta=0.01, horizon_s=3600.0, segments=None)
    assert profile.requirements == ()
    assert profile.model.replica == Replica(memory_tokens=100, block_tokens=1, prefill=Prefill.FUSED)
    assert profile.model.timing == Timing(d0=1.0)
    assert profile.model.request_overhead_s == 0
    assert profile.model.measured == MeasuredRange(None, None, None, None)
    stated = Origin(Knowledge.STATED, "", None)
    assert profile.model.provenance == Provenance(gpu=stated, timing=stated, workload=stated)


@pytest.mark.parametrize(
    ("share", "rest", "rate"), [("0.1", "0.9", "3"), ("0.7", "0.3", "0.1"), ("0.35", "0.65", "1.1")]
)
def test_a_share_of_the_rate_is_exact_in_decimals(share: str, rest: str, rate: str) -> None:
    text = SMALL.replace("rate = 2", f"share = {share}")
    text += f'[[classes]]\nname = "b"\ninput = 1\ndecode = 1\nshare = {rest}\n[workload]\nrate = {rate}\n'
    first, second = parsed(text).model.classes
    assert as_written(first.rate_rps) == Fraction(share) * Fraction(rate)
    assert as_written(second.rate_rps) == Fraction(rest) * Fraction(rate)


def test_shares_may_miss_1_by_rounding() -> None:
    thirds = "".join(
        f'[[classes]]\nname = "{name}"\ninput = 1\ndecode = 1\nshare = 0.3333333333\n' for name in "abc"
    )
    text = SMALL.partition("[[classes]]")[0] + thirds + "[workload]\nrate = 3\n"
    assert len(parsed(text).model.classes) == 3


def test_the_largest_values_that_are_allowed_are_allowed() -> None:
    text = SMALL.replace("= 100", "= 100_000_000").replace("input = 0", "input = 10_000_000")
    model = parsed(
        text.replace("decode = 4", "decode = { 1_000_000 = 1e9, 1 = 1e-9 }".replace("_", ""))
    ).model
    assert model.classes[0].max_tokens == 11_000_000


@every("name", shipped_profiles())
def test_shipped_profiles_are_good(name: str) -> None:
    profile = load_profile(name, stdin=io.BytesIO())
    assert profile.source == name
    assert profile.sha256 == hashlib.sha256(shipped_profiles()[name].read_bytes()).hexdigest()


def test_a_path_that_exists_wins_over_a_shipped_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / DEFAULT_PROFILE).write_text(SMALL)
    monkeypatch.chdir(tmp_path)
    assert load_profile(DEFAULT_PROFILE, stdin=io.BytesIO()).name == "small"
    assert load_profile(None, stdin=io.BytesIO()).name != "small"


def test_many_classes_and_lengths_are_loaded() -> None:
    head = SMALL.partition("[[classes]]")[0].replace("= 100", "= 10_000")
    many = "".join(f'[[classes]]\nname = "{i}"\ninput = 1\ndecode = 1\nrate = 1\n' for i in range(1_000))
    assert len(parsed(head + many).model.classes) == 1_000
    lengths = ", ".join(f"{d} = 1" for d in range(1, 2_001))
    (one,) = parsed(SMALL.replace("= 100", "= 10_000").replace("= 4", f"= {{ {lengths} }}")).model.classes
    assert one.decode_law.values.tolist() == list(range(1, 2_001))
    assert one.decode_tokens[-1] == 2_000


RANKS = """\
schema = 1
name = "ranks"
gpu = { memory_tokens = 1_015, block_tokens = 10, max_num_seqs = 7, data_parallel = 4, tensor_parallel = 2 }
timing = { d0 = "8 ms", d1 = "4 us", d2 = "80 us", d3 = "40 us", all_ranks = "1 us" }
classes = [{ name = "a", input = 900, decode = 100, rate = 1 }]
"""


def ranks(text: str = RANKS) -> Profile:
    return parse_profile(text.encode(), "ranks.toml")


@pytest.mark.parametrize("written", ["1", "1.0", "10", "14.5", "3600"])
def test_an_iteration_of_a_second_or_more_needs_its_unit(written: str):
    law = RANKS.replace('d0 = "8 ms"', f"d0 = {written}")
    number = f"{float(written):,g}"
    with pytest.raises(ProfileError, match=re.escape(f'write "{number} s" or "{number} ms", not {written}')):
        ranks(law)
    assert ranks(RANKS.replace('"8 ms"', f'"{written} s"')).model.timing.d0 == float(written)
    assert ranks(RANKS.replace('"8 ms"', "0.999")).model.timing.d0 == 0.999


def test_ranks_are_one_pool_of_whole_pages_and_limits():
    replica = ranks().model.replica
    assert (replica.memory_tokens, replica.max_num_seqs, replica.max_num_batched_tokens) == (4_040, 28, None)
    assert (replica.gpus, replica.ranks, replica.parallelism) == (8, 4, Parallelism(tensor=2, data=4))


def test_an_iteration_takes_as_long_as_that_of_ranks_that_do_the_same():
    kv, prefill, running = 500, 60, 8  # of each of four ranks
    each = 0.008 + 4e-6 * kv + 80e-6 * prefill + 40e-6 * running + 4 * 1e-6 * (prefill + running)
    assert ranks().model.timing(4 * kv, 4 * prefill, 4 * running) == pytest.approx(each, rel=1e-12)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("decode = 100", "decode = 111"), "does not fit: its longest request holds 1,020 KV tokens"),
        (("tensor_parallel = 2", "gpus = 6"), "gpus: must be tensor x data x pipeline parallelism, 4, not 6"),
        (("tensor_parallel = 2", "expert_parallel = 8"), "expert_parallel: must divide tensor x data"),
        (
            ("tensor_parallel = 2", "context_parallel = 2"),
            "context_parallel: must divide tensor parallelism, 1",
        ),
        (("data_parallel = 4", "pipeline_parallel = 6_000"), "must be at most 10,000, not 12,000"),
        (("data_parallel = 4, ", ""), "timing.all_ranks: not allowed without [gpu] data_parallel above 1"),
        (
            ('"ranks"', '"ranks"\nprefix = { hit_curve = [[1000, 0.5]] }'),
            "prefix.hit_curve: not modelled beside [gpu] data_parallel, whose ranks have caches of their own",
        ),
        (
            ("block_tokens", 'prefill = "inline", block_tokens'),
            'prefill: must be "fused" beside [gpu] data_par',
        ),
        (
            (
                '"ranks"',
                '"ranks"\nengine = { name = "trtllm", batch_wait_iterations = 9, batch_wait_tokens = 9 }',
            ),
            "engine.batch_wait_iterations: not modelled beside [gpu] data_parallel, as TensorRT-LLM only balances",
        ),
    ],
)
def test_ranks_that_cannot_be_are_refused(change: tuple[str, str], message: str):
    with pytest.raises(ProfileError) as refused:
        ranks(RANKS.replace(*change))
    assert message in " ".join(map(str, (refused.value, *refused.value.others)))


def test_ranks_of_tensorrt_llm_may_wait_for_each_other():
    text = RANKS.replace('"ranks"', '"ranks"\nengine = { name = "trtllm", balance_iterations = 60 }')
    assert ranks(text).model.engine == Engine(EngineName.TRTLLM, balance_iterations=60)


def test_what_a_rank_was_measured_at_is_of_all_of_them():
    text = RANKS.replace("all_ranks", "measured = { sequences = [1, 7], band = [0.8, 1.2] }, all_ranks")
    assert ranks(text).model.measured == MeasuredRange(sequences=(4, 28), band=(0.8, 1.2))


def test_gpus_of_which_nothing_else_is_said_are_tensor_parallel():
    text = RANKS.replace("tensor_parallel = 2", "gpus = 24, pipeline_parallel = 3, expert_parallel = 4")
    assert ranks(text).model.replica.parallelism == Parallelism(2, 4, 4, 3)
