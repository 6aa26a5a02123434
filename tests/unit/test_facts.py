"""Facts merge to profiles that say how their tables are known, and read back as what was written."""

from datetime import date

import pytest
import tomli
from every import every
from hypothesis import given
from hypothesis import strategies as st

from kvplan.errors import ProfileError
from kvplan.ingest.facts import Fact, Part, class_tables, facts, merged, surest, timing_table
from kvplan.model import Knowledge, MeasuredRange, Origin, Provenance, RequestClass, Timing
from kvplan.profile.reading import Profile, parse_profile, shipped_profiles
from kvplan.profile.writing import table_text

BASE = """\
schema = 1
name = "base"
[gpu]
memory_tokens = 40_000
max_num_seqs = 64
[timing]
d0 = 0.01
[[classes]]
name = "a"
input = 10
decode = 20
rate = 1
[provenance]
timing = { basis = "estimated", source = "a data sheet", date = 2026-01-02 }
workload = "assumed"
"""
ESTIMATE = Origin(Knowledge.ESTIMATED, "a data sheet", date(2026, 1, 2))
LOG = Origin(Knowledge.MEASURED, "serve.log", date(2026, 3, 4))
STATED, ASSUMED = Origin(Knowledge.STATED), Origin(Knowledge.ASSUMED)
TRAFFIC = Part("classes", {"classes": Fact(class_tables([RequestClass("b", 5, (6,), (1.0,), 2.0)]), LOG)})


def base(text: str = BASE) -> Profile:
    return parse_profile(text.encode(), "base.toml")


def origins(kept: Profile, *parts: Part) -> Provenance:
    return merged(kept, parts, source="x").model.provenance


def test_what_is_kept_of_a_base_is_known_as_it_was() -> None:
    assert origins(base(), TRAFFIC) == Provenance(STATED, ESTIMATE, LOG)
    timing = Part("timing", facts("timing", timing_table(Timing(0.02)), LOG))
    assert origins(base(), timing) == Provenance(STATED, LOG, ASSUMED)


@every(
    ("own", "of_base", "expected"),
    [
        ("measured", "measured", "measured"),
        ("measured", "stated", "stated"),
        ("measured", "assumed", "assumed"),
        ("estimated", "stated", "estimated"),
        ("estimated", "assumed", "assumed"),
    ],
)
def test_of_a_table_that_keeps_keys_of_its_base_the_weakest_counts(
    own: str, of_base: str, expected: str
) -> None:
    kept = base(BASE + f'gpu = "{of_base}"\n')
    part = Part("gpu", facts("gpu", {"memory_tokens": 9000}, Origin(Knowledge(own), "serve.log")))
    found = origins(kept, part).gpu
    assert found.basis == expected
    weaker = expected != own
    assert found.source == "max_num_seqs kept from base.toml; the rest: " * weaker + "serve.log"
    whole = Part(
        "gpu", facts("gpu", {"memory_tokens": 9000, "max_num_seqs": 3}, Origin(Knowledge(own), "log"))
    )
    assert origins(kept, whole).gpu == Origin(Knowledge(own), "log")  # nothing is kept


def test_the_surest_source_of_a_table_counts_and_the_first_of_equals() -> None:
    parts = [
        Part("gpu", facts("gpu", {"memory_tokens": tokens}, Origin(Knowledge(basis))))
        for tokens, basis in ((1, "assumed"), (2, "estimated"), (3, "stated"), (4, "stated"))
    ]
    assert surest([None, *parts]) is parts[2]
    assert surest([*parts[:2], None]) is parts[1]
    assert surest([None]) is None


def test_a_key_that_is_not_to_be_set_is_not_kept_either_and_the_comment_says_so() -> None:
    left = {
        "gpu.max_num_seqs": Fact(None, LOG, "left to the engine"),
        "gpu.gpus": Fact(None, LOG, "left too"),
    }
    part = Part("gpu", {"gpu.memory_tokens": Fact(9000, LOG, "stated"), **left}, notes=("so much",))
    profile = merged(base(), [part], source="x")
    assert profile.tables["gpu"] == {"memory_tokens": 9000}
    assert (
        "# memory_tokens: stated.\n# max_num_seqs: left to the engine.\n# Note: so much.\n[gpu]"
        in profile.text
    )
    assert profile.model.provenance.gpu == LOG


@every("together", [{"memory_tokens": 5000}, {"gpus": 2}])
def test_what_one_source_says_alone_is_not_mixed(together: dict[str, int]) -> None:
    kept = base(
        BASE.replace(
            "memory_tokens = 40_000", 'memory = "1 GiB"\nkv_bytes_per_token = 65_536\ntensor_parallel = 4'
        )
    )
    table = merged(kept, [Part("gpu", facts("gpu", together, LOG))], source="x").tables["gpu"]
    said = {"memory", "kv_bytes_per_token"} if "gpus" in together else {"tensor_parallel"}
    assert set(table) == {"max_num_seqs", *said, *together}


def test_a_timing_keeps_the_overhead_of_its_base_unless_it_has_its_own() -> None:
    kept = base(BASE.replace("d0 = 0.01", 'd0 = 0.01\nrequest_overhead = "14 ms"'))
    for overhead, expected, basis in ((0.0, 0.014, "estimated"), (0.02, 0.02, "measured")):
        timing = Part("timing", facts("timing", timing_table(Timing(0.02), overhead), LOG))
        model = merged(kept, [timing], source="x").model
        assert (model.timing.d0, model.request_overhead_s) == (0.02, expected)
        assert model.provenance.timing.basis == basis


constants = st.one_of(st.just(0.0), st.floats(1e-9, 10.0))
ranges = st.none() | st.tuples(st.floats(0, 1e6), st.floats(0, 1e6)).map(lambda two: (min(two), max(two)))


@given(
    st.floats(1e-4, 10.0), st.lists(constants, min_size=6, max_size=6), st.integers(0, 10_000), ranges, ranges
)
def test_a_timing_reads_back_as_it_was_written(
    d0: float,
    others: list[float],
    knee: int,
    kv_tokens: tuple[float, float] | None,
    band: tuple[float, float] | None,
) -> None:
    *terms, overhead = others
    timing = Timing(d0, *terms, knee_tokens=knee, experts=terms[-1] / 2, chosen=0.0078125)
    wide = None if band is None else (band[0] / 1e4 + 0.5, band[1] / 1e4 + 0.5)
    written = timing_table(timing, overhead, MeasuredRange(kv_tokens=kv_tokens, band=wide))
    text = table_text("timing", written)
    table = tomli.loads(text)["timing"]
    found = parse_profile(
        f'schema = 1\nname = "n"\ngpu.memory_tokens = 99\n{CLASS}\n{text}'.encode(), "t"
    ).model
    assert found.timing.constants[:6] == pytest.approx(timing.constants[:6], rel=5e-4, abs=1e-12)
    assert found.timing.knee_tokens == (knee if timing.d5 else 0)
    assert found.timing.experts == pytest.approx(timing.experts, rel=5e-4, abs=1e-12)
    assert found.timing.chosen == (0.0078125 if timing.experts else 0)
    assert found.request_overhead_s == pytest.approx(overhead, rel=5e-4)
    for one, other in ((found.measured.kv_tokens, kv_tokens), (found.measured.band, wide)):
        assert one == (None if other is None else pytest.approx(other, rel=5e-4, abs=1e-9))
    said = {"d4": timing.d4, "d5": timing.d5, "knee_tokens": timing.d5, "request_overhead": overhead}
    said |= {"experts": timing.experts, "chosen": timing.experts}
    said |= {"measured": kv_tokens is not None or wide is not None}
    assert set(table) == {"d0", "d1", "d2", "d3", *(name for name, value in said.items() if value)}


CLASS = 'classes = [{ name = "a", input = 2, decode = 4, rate = 0.5 }]'


def test_profiles_written_anew_say_the_same() -> None:
    for name, path in shipped_profiles().items():
        profile = parse_profile(path.read_bytes(), name)
        again = parse_profile(profile.changed({}).text.encode(), name)
        assert (again.model, again.plan) == (profile.model, profile.plan), name
        assert again.tables == profile.tables, name


def test_a_changed_profile_is_the_one_that_is_read_from_the_changed_text() -> None:
    changes = {("classes", 0, "rate"): 2.5, ("timing", "d0"): "20 ms", ("gpu", "max_num_seqs"): None}
    changed = base().changed(changes | {("slo", "ttft_s", "p95"): "1 s"})
    text = (
        BASE.replace("rate = 1", "rate = 2.5").replace("0.01", '"20 ms"').replace("max_num_seqs = 64\n", "")
    )
    read = base(text + '[slo]\nttft_s.p95 = "1 s"\n')
    assert (changed.model, changed.plan, changed.tables) == (read.model, read.plan, read.tables)
    assert parse_profile(changed.text.encode(), "base.toml").sha256 == changed.sha256
    assert base().tables["gpu"]["max_num_seqs"] == 64


def test_values_that_are_not_allowed_are_refused_with_their_key() -> None:
    with pytest.raises(ProfileError, match="must be at least 1, not 0") as caught:
        base().changed({("classes", 0, "rate"): -1, ("gpu", "memory_tokens"): 0})
    assert str(caught.value) == "base.toml: gpu.memory_tokens: must be at least 1, not 0"
    (other,) = caught.value.others
    assert str(other).startswith("base.toml: classes[0].rate: must be")
