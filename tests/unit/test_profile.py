"""Good profiles become the model that they describe."""

import hashlib
import io
from datetime import date
from fractions import Fraction
from pathlib import Path

import pytest
from every import every

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
timing.d0 = 1
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
