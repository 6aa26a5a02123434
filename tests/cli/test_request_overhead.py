"""What a request takes outside the engine: part of TTFT, E2E and of WAIT's latency in every command, of no load."""

from pathlib import Path

import pytest
from command import Run, document

LOADED = """\
schema = 1
name = "with overhead"
gpu = { memory_tokens = 3_000, block_tokens = 16, max_num_seqs = 30 }
timing = { d0 = "10 ms", d1 = "1 us", d2 = "20 us", request_overhead = "250 ms" }
[[classes]]
name = "a"
input = 40
decode = { 10 = 1, 30 = 1 }
rate = 20
[[classes]]
name = "b"
input = 90
decode = 20
rate = 10
"""
OVERHEAD = 0.25
LATENCIES = ("ttft_s", "e2e_s")


@pytest.fixture
def pair(tmp_path: Path) -> tuple[str, str]:
    """The profile with an overhead, and the same without."""
    paths = (tmp_path / "with.toml", tmp_path / "without.toml")
    paths[0].write_text(LOADED)
    paths[1].write_text(LOADED.replace(', request_overhead = "250 ms"', ""))
    return str(paths[0]), str(paths[1])


@pytest.mark.parametrize("seeds", ["1", "3"])
def test_it_moves_ttft_and_e2e_of_every_policy_with_their_intervals_and_nothing_else(
    run: Run, pair: tuple[str, str], seeds: str
) -> None:
    arguments = ("--policy", "greedy,vllm,wait", "--requests", "3000", "--seeds", seeds)
    told, plain = (document(run, "simulate", profile, *arguments)["policies"] for profile in pair)
    for one, other in zip(told, plain, strict=True):
        intervals = one.pop("ci95"), other.pop("ci95")
        for mine, theirs in [(one, other), *zip(one.pop("classes"), other.pop("classes"), strict=True)]:
            for latency in LATENCIES:
                moved, still = mine.pop(latency), theirs.pop(latency)
                assert moved == {key: pytest.approx(value + OVERHEAD) for key, value in still.items()}
            assert mine == theirs
        for key, interval in intervals[0].items():
            shift = OVERHEAD if key.startswith(LATENCIES) else 0.0
            before = intervals[1][key]
            assert interval == (before and pytest.approx([end + shift for end in before]))


def test_it_is_part_of_latencies_and_of_no_load(run: Run, pair: tuple[str, str]) -> None:
    told, plain = (document(run, "analyze", profile) for profile in pair)
    with_latency = [each["wait"]["classes"] + each["wait"]["dial"] for each in (told, plain)]
    for one, other in zip(*with_latency, strict=True):
        assert one.pop("latency_s") == pytest.approx(other.pop("latency_s") + OVERHEAD)
    longer, shorter = told.pop("latency"), plain.pop("latency")
    for time in ("ttft_s", "itl_s", "e2e_s"):
        added = 0.0 if time == "itl_s" else OVERHEAD
        for figure in ("mean", "p50", "p99"):
            assert longer[time][figure] == pytest.approx(shorter[time][figure] + added)
    told.pop("profile"), plain.pop("profile")
    assert told == plain
