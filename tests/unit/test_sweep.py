"""Values of the points of a sweep, the columns that keys name, and profiles with other values."""

from collections import Counter
from itertools import product

import pytest
import tomli
from every import every

from kvplan.axes import Number
from kvplan.errors import UsageError
from kvplan.profile import schema
from kvplan.profile.reading import parse_profile
from kvplan.report import figures
from kvplan.study.drain import Drain
from kvplan.sweeps.definition import Runs, define, expand
from kvplan.sweeps.points import rows
from kvplan.sweeps.store import Format, head, lines
from kvplan.sweeps.vary import parse_axes, parse_sample, stretch

PROFILE = """schema = 1
name = "shares"
gpu = { memory = "1 GiB", kv_bytes_per_token = 1024 }
timing = { d0 = "10 ms" }
workload = { rate = 2 }
classes = [
    { name = "a", input = 9, decode = 3, share = 0.5 },
    { name = "b # c", input = 20, decode = { 5 = 1, 7 = 2 }, share = 0.2 },
    { name = "d, \\"e\\"", input = 20, decode = 9, share = 0.3 },
]
"""
TABLES = tomli.loads(PROFILE)


def values(*texts: str, sample: str | None = None, seed: int = 0) -> list[tuple[Number, ...]]:
    drawn = None if sample is None else parse_sample(sample, seed)
    axes = parse_axes(texts, schema.check(TABLES), TABLES, drawn)
    count = drawn.points if drawn else len(list(product(*(range(axis.count) for axis in axes))))
    return list(stretch(axes, drawn, 0, count))


@every(
    ("text", "expected"),
    [
        ("gpu.memory_tokens=20k:400k:20", [20_000 * i for i in range(1, 21)]),
        ("gpu.max_num_seqs=64, 1_024, 1.5k,2M", [64, 1024, 1500, 2_000_000]),
        ("gpu.memory=1 GiB,1.5 kB", [2**30, 1500]),
        ("gpu.block_tokens=1:4:3", [1, 3, 4]),  # 2.5 is rounded up
        ("timing.d0=5 ms:0.02:4", [0.005, 0.01, 0.015, 0.02]),
        ("timing.d1=1e-7:1e-5:log5", [1e-7, 1e-7 * 10**0.5, 1e-6, 1e-6 * 10**0.5, 1e-5]),
        ("gpu.max_num_seqs=1:1k:log4", [1, 10, 100, 1000]),
        ("plan.horizon=1 h,60", [3600.0, 60.0]),
        ("plan.delta=0.1:0.3:3", [0.1, 0.2, 0.3]),
        ("classes.b # c.share=0.1,0.2", [0.1, 0.2]),
        ('classes[d, "e"].input=0,7', [0, 7]),
        ("classes[0].decode=4,5", [4, 5]),
        ("plan.segments=1,2", [1, 2]),
        ("workload.rate=1k", [1000.0]),
    ],
)
def test_values_are_read_as_written(text: str, expected: list[Number]) -> None:
    found = [value for (value,) in values(text)]
    assert found == pytest.approx(expected, rel=1e-14, abs=0)
    assert [type(value) for value in found] == [type(value) for value in expected]


@pytest.mark.parametrize("kind", ["random", "lhs"])
def test_any_stretch_of_a_sample_is_part_of_the_whole(kind: str) -> None:
    axes = parse_axes(
        ["timing.d0=1:2", "timing.d1=1e-9:1:log"], schema.check(TABLES), TABLES, parse_sample("lhs:9", 0)
    )
    drawn = parse_sample(f"{kind}:2500", 3)
    whole = list(stretch(axes, drawn, 0, 2500))
    assert len(set(whole)) == 2500
    for start, stop in [(0, 1), (1000, 1030), (1023, 2049), (2499, 2500)]:
        assert list(stretch(axes, drawn, start, stop)) == whole[start:stop]
    assert list(stretch(axes, parse_sample(f"{kind}:2500", 4), 0, 9)) != whole[:9]
    assert all(1 <= d0 <= 2 and 1e-9 <= d1 <= 1 for d0, d1 in whole)
    # the logarithm is spread evenly: a third below 1e-6; by chance with a standard deviation of 24
    assert abs(sum(d1 < 1e-6 for _, d1 in whole) - 2500 / 3) < 120


def test_a_latin_hypercube_meets_every_stratum_of_every_key_once() -> None:
    found = values("timing.d0=1:2", "timing.d1=0:1", sample="lhs:1500")
    assert sorted(int((d0 - 1) * 1500) for d0, _ in found) == pytest.approx(range(1500), abs=1)
    assert Counter(int(d1 * 1500) for _, d1 in found) == Counter(range(1500))


@every(
    ("patterns", "expected"),
    [
        (["load.headroom", "load.head*", "load.headroom"], ["load.headroom"]),
        (["wait.classes[].threshold"], [f"wait.classes[{n}].threshold" for n in ("a", "b")]),
        (["*.sensitivity.d?"], None),
        (["equilibrium.classes[*].in*"], [f"equilibrium.classes[{n}].in_flight" for n in ("a", "b")]),
        (["nested_wait.segments[3].theta"], ["nested_wait.segments[3].theta"]),
        (["wait.thresholds[]"], ["wait.thresholds[0]", "wait.thresholds[1]"]),
        (["sources.load.kind"], ["sources.load.kind"]),
        (["simulation.vllm.queue.*"], ["simulation.vllm.queue.peak", "simulation.vllm.queue.end"]),
    ],
)
def test_patterns_name_columns(patterns: list[str], expected: list[str] | None) -> None:
    if expected is None:
        with pytest.raises(UsageError, match="no key of the report is like that"):
            expand(patterns, ["a", "b"], ["vllm"])
    else:
        found = [column.name for column in expand(patterns, ["a", "b"], ["vllm"])]
        assert [name for name in found if "ci95" not in name] == expected


def test_every_column_can_be_computed() -> None:
    """All keys at once, in a profile with names that need quotes."""
    profile = parse_profile(PROFILE.encode(), "p")
    runs = Runs(("greedy",), 50, 1)
    sweep = define(profile, ["gpu.memory_tokens=90,900"], columns=["*"], runs=runs)
    assert len({*sweep.names}) == len(sweep.names) > 150
    for row in rows(sweep, 0, 2):
        assert len(row) == len(sweep.names)
        assert sum(value is not None for value in row) > 100
        assert row[-1] is None


def test_a_burst_is_run_where_a_column_asks_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """And nothing else of the verdict has one: it takes most of the time of a point."""
    seen: list[object] = []

    def drain(*given: object) -> Drain:
        seen.append(given)
        return Drain(3.0, None, None, None, "")

    monkeypatch.setattr(figures, "drain", drain)
    profile = parse_profile(PROFILE.encode(), "p")
    rest = ["verdict.status", "verdict.binding", "verdict.recovers_up_to_rps"]
    for columns, bursts in ((rest, []), ([*rest, "verdict.drain.burst_requests"], [3.0, 3.0])):
        found = list(rows(define(profile, ["timing.d0=1 ms,2 ms"], columns=columns), 0, 2))
        assert [row[2] for row in found] == ["needs_cap", "needs_cap"]
        assert [row[5] for row in found if row[5] is not None] == bursts
        assert len(seen) == len(bursts)


def test_cells_of_any_name_and_text_can_be_read_back() -> None:
    import csv

    sweep = define(
        parse_profile(PROFILE.encode(), "p"),
        ["classes.b # c.input=9,10M"],
        columns=["wait.classes[].threshold"],
    )
    _, names = head(sweep, Format.CSV).decode().splitlines()
    assert next(csv.reader([names])) == list(sweep.names)
    good, bad = lines(sweep, Format.CSV, 0, 2)
    assert len(next(csv.reader([good.decode()]))) == len(sweep.names)
    *_, error = next(csv.reader([bad.decode()]))
    assert error.startswith("classes[1]: class 'b # c' does not fit")
    assert "#" not in bad.decode().split('"')[0]  # or else a reader of comments would end there
