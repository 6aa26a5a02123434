"""What a sweep costs. Run with `pytest tests/benchmarks -s -n 0`; not part of the test command."""

import sys
from pathlib import Path

import pytest
from measure import peak_mib, ratio, seconds

from kvplan import executors

PROFILE = """schema = 1
name = "four classes"
gpu = { memory_tokens = 100_000, block_tokens = 16, max_num_seqs = 256, max_num_batched_tokens = 8192 }
timing = { d0 = "14.5 ms", d1 = "0.25 us", d2 = "85 us" }
classes = [
    { name = "chat", input = 1155, decode = { 50 = 0.2, 200 = 0.5, 400 = 0.3 }, rate = 0.5 },
    { name = "tools", input = 400, decode = 128, rate = 0.3 },
    { name = "documents", input = 4000, decode = { 100 = 1, 300 = 2 }, rate = 0.1 },
    { name = "code", input = 900, decode = 500, rate = 0.2 },
]
"""
CLOSED_FORM = ["--columns", "load.*,equilibrium.*,saturation.*"]
SIMULATED = ["--simulate", "--policy", "vllm", "--requests", "2000"]


@pytest.fixture
def profile(tmp_path: Path) -> Path:
    path = tmp_path / "four.toml"
    path.write_text(PROFILE)
    return path


def swept(profile: Path, memory: int, rates: int, *options: str) -> float:
    """The most memory that a process of the sweep holds, MiB."""
    vary = [f"gpu.memory_tokens=20k:400k:{memory}", f"classes.chat.rate=0.01:4:log{rates}"]
    varied = [word for axis in vary for word in ("--vary", axis)]
    out = profile.with_name("out.csv")
    out.unlink(missing_ok=True)
    peak = peak_mib(
        [sys.executable, "-P", "-m", "kvplan", "sweep", str(profile), *varied, *options, "-o", str(out)]
    )
    assert out.read_bytes().count(b"\n") == memory * rates + 2
    return peak


def test_a_hundred_thousand_points_take_less_than_a_minute_and_bounded_memory(profile: Path) -> None:
    memory: list[float] = []
    taken = seconds(lambda: memory.append(swept(profile, 500, 200, *CLOSED_FORM)))
    print(f"\n100,000 points of four classes: {taken:.1f} s, at most {memory[0]:.0f} MiB in a process")
    assert taken < 60
    assert memory[0] < 400


@pytest.mark.skipif(executors.cores() < 2, reason="one core")
def test_two_cores_are_nearly_twice_as_fast_as_one(profile: Path) -> None:
    """A thousand simulated points; of 2,000 requests each, starting Python is an eighth of the time of one core."""
    for requests, bound in ((10_000, 1.8), (2_000, 1.5)):
        simulated = [*SIMULATED[:-1], str(requests), "--executor", "cores", "--workers"]
        swept(profile, 20, 5, *simulated, "1")  # compiles the loop, if nobody has
        one, two = (lambda n=n, s=simulated: swept(profile, 50, 20, *s, n) for n in "12")
        label = f"1,000 simulated points of {requests:,} requests, one core against two"
        found = ratio(one, two, 3, label)
        print(f"on two cores {1000 / seconds(two):.0f} points/s")
        assert found >= bound
