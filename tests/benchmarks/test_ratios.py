"""How long kvplan takes, as ratios measured side by side in one run. Run with `pytest tests/benchmarks -s -n 0`.

Not part of the test command: a busy machine can fail it. Each ratio is the median over interleaved pairs.
"""

import csv
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from measure import ratio

from kvplan.analysis.fluid_map import collapsed_starts, compiled, fluid_map, run
from kvplan.analysis.roots import count_outside, largest_root
from kvplan.analysis.stability import rounding_error
from kvplan.ingest.engine_log import read_log
from kvplan.ingest.timing.reading import KnownFiles, read_groups
from kvplan.model import Weights
from kvplan.profile.reading import DEFAULT_PROFILE


def weights(stages: tuple[int, ...], input_tokens: float) -> tuple[np.ndarray, float]:
    """Survival weights of equally frequent lengths, and the bound on their rounding."""
    share = np.full(len(stages), 1 / len(stages))
    w = Weights(np.full(len(stages), input_tokens + 1), np.array(stages)).survival(share)
    return w, rounding_error(np.array(stages))


ROOT = Path(__file__).resolve().parents[2]
MIXES = {
    "one length": lambda size: weights((size,), 1000.0),
    "two neighbours": lambda size: weights((size - 1, size), 1000.0),
    "half and whole": lambda size: weights((size // 2, size), 100.0),
    "uniform": lambda size: weights(tuple(range(size // 2, size + 1)), 500.0),
}


ANALYZE = [sys.executable, "-P", "-m", "kvplan", "analyze"]
AS_INSTALLED = os.environ | {"PYTHONDONTWRITEBYTECODE": ""}  # with byte code on disk


def launch(command: list[str]) -> Callable[[], object]:
    return lambda: subprocess.run(command, check=True, capture_output=True, env=AS_INSTALLED)


def test_analyze_takes_little_more_than_its_imports() -> None:
    """What it cannot do without: `rich` and `pydantic` by name alone import next to nothing of what is used of them.

    Latency beside a token budget, which the default profile has, takes as long as these imports.
    """
    needed = "import numpy.fft, rich.console, rich.table, tomli, typer; from pydantic import BaseModel, Field"
    imports = [sys.executable, "-c", needed]
    for profile, bound in (("tool-calls-h100", 2.5), (DEFAULT_PROFILE, 3.5)):
        analyze = launch([*ANALYZE, profile])
        analyze()
        assert ratio(analyze, launch(imports), 25, f"kvplan analyze {profile} against its imports") <= bound


def test_a_law_with_a_knee_takes_one_and_a_half_times_as_long_as_a_linear_one(tmp_path: Path) -> None:
    """Qwen3-14B on an H100 as it is estimated, against a linear law of much the same speed."""
    bent = 'd0 = "13.3 ms"\nd1 = "0.058 us"\nd3 = "2.9 us"\nd5 = "42 us"\nd6 = "1.66 ns"\nknee_tokens = 235\n'
    linear = 'd0 = "13.3 ms"\nd1 = "0.058 us"\nd2 = "30 us"\nd3 = "2.9 us"\n'
    limits = "block_tokens = 16\nmax_num_seqs = 256\nmax_num_batched_tokens = 8192\n"
    commands = []
    for name, law in (("bent", bent), ("linear", linear)):
        path = tmp_path / f"{name}.toml"
        path.write_text(
            f'schema = 1\nname = "{name}"\n[gpu]\nmemory_tokens = 260_000\n{limits}[timing]\n{law}'
            '[[classes]]\nname = "chat"\ninput = 1000\ndecode = { uniform = [40, 360] }\nrate = 6\n',
            encoding="utf-8",
        )
        commands.append(launch([*ANALYZE, str(path)]))
        commands[-1]()
    assert ratio(*commands, 9, "a bent law against a linear one") <= 1.5


@pytest.mark.parametrize("factor", [0.5, 3.0], ids=["mostly passing", "mostly failing"])
def test_checking_two_hundred_profiles_of_all_kinds_takes_less_than_25_analyses(
    tmp_path: Path, factor: float
) -> None:
    """The shipped profiles in turn, their rates half or three times as high, no two alike."""
    shipped = sorted((ROOT / "profiles").glob("*.toml"))
    for i in range(200):
        text = shipped[i % len(shipped)].read_text("utf-8").partition("\n[gate]")[0]

        def moved(found: re.Match[str], i: int = i) -> str:
            return f"{found[1]}{float(found[2]) * factor * (1 + i / 1000)!r}"

        text = re.sub(r"(?m)(\brate = )([0-9.]+)", moved, text)
        (tmp_path / f"{i}.toml").write_text(text, encoding="utf-8")
    check = [sys.executable, "-P", "-m", "kvplan", "check", *map(str, sorted(tmp_path.glob("*.toml")))]
    check += ["--require", "load.headroom >= 20%", "--require", "verdict.status != overloaded"]
    check += [word for part in ("gpu", "timing", "workload") for word in ("--accept", part)]

    def checking() -> None:
        assert subprocess.run(check, capture_output=True, check=False, env=AS_INSTALLED).returncode == 1

    label = f"200 of the shipped profiles at {factor} times their rate against one analyze"
    assert ratio(checking, launch(ANALYZE), 3, label) <= 25


@pytest.mark.parametrize("input_tokens", [500, 0], ids=["stable", "unstable"])
def test_two_thousand_decode_lengths_take_less_than_six_times_the_default(
    tmp_path: Path, input_tokens: int
) -> None:
    lengths = ", ".join(f"{d} = 1" for d in range(1, 2001))
    long = tmp_path / "long.toml"
    long.write_text(
        f"""schema = 1
name = "2,000 lengths"
gpu = {{ memory_tokens = 400_000 }}
timing = {{ d0 = "10 ms", d1 = "0.05 us" }}
classes = [{{ name = "a", input = {input_tokens}, rate = 5.0, decode = {{ {lengths} }} }}]
"""
    )
    assert ratio(launch([*ANALYZE, str(long)]), launch(ANALYZE), 7, "2,000 lengths against the default") < 6


@pytest.mark.parametrize("mix", MIXES)
@pytest.mark.parametrize(("size", "yardstick"), [(10_000, 700), (100_000, 1200)])
def test_long_polynomials_are_certified_in_the_time_numpy_needs_for_short_ones(
    mix: str, size: int, yardstick: int
) -> None:
    (long, error), (short, _) = MIXES[mix](size), MIXES[mix](yardstick)
    assert largest_root(long, relative_error=error).certified
    assert count_outside(long, relative_error=error) is not None
    label = f"L = {size:,} against numpy.roots at L = {yardstick:,}, {mix}"
    assert ratio(lambda: largest_root(long, relative_error=error), lambda: np.roots(short), 3, label) <= 1


def test_the_fluid_map_is_fifty_times_faster_than_a_numpy_shift() -> None:
    decode, capacity = 100, 1e6
    lone = Weights(np.array([31.0]), np.array([decode]))
    weight = lone.survival(np.ones(1))
    system = fluid_map(lone, np.ones(1), np.array([30.0]), capacity)
    start = next(collapsed_starts(system))
    many, few = 2_000_000, 2_000

    def shift() -> float:
        """The obvious array: one entry a stage."""
        mass = start.copy()
        completed = 0.0
        for _ in range(few):
            completed += mass[-1]
            mass[1:] = mass[:-1].copy()
            mass[0] = 0.0
            kv = float(mass @ weight)
            if kv > capacity:
                held = np.cumsum(mass * weight)
                cut = int(np.searchsorted(held, kv - capacity))
                before = held[cut - 1] if cut else 0.0
                mass[:cut] = 0.0
                mass[cut] -= (kv - capacity - before) / weight[cut]
            else:
                mass[0] = (capacity - kv) / weight[0]
        return completed

    assert shift() == pytest.approx(run(system, start, few).completed.sum(), rel=1e-9)
    compiled()
    run(system, start, many)
    label = f"{many:,} iterations of the fluid map against {few:,} of a numpy shift, d = {decode}"
    per_iteration = ratio(lambda: run(system, start, many), shift, 5, label) * few / many
    print(f"per iteration: {1 / per_iteration:.0f} times faster")
    assert per_iteration <= 1 / 50


AZURE = ROOT.parent / "shared/data/azure-conv/AzureLLMInferenceTrace_conv.csv"
READ_WITH_CSV = "import sys, csv, numpy; list(csv.reader(open(sys.argv[1], newline='')))"


@pytest.mark.skipif(not AZURE.exists(), reason="the Azure conversation trace is not here")
def test_fit_takes_less_than_eight_times_numpy_and_csv() -> None:
    ours = [sys.executable, "-P", "-m", "kvplan", "import", str(AZURE)]
    theirs = [sys.executable, "-c", READ_WITH_CSV, str(AZURE)]
    assert ratio(launch(ours), launch(theirs), 7, "kvplan import of Azure conv against numpy and csv") <= 8


def test_fitting_four_times_the_rows_takes_four_times_as_long(tmp_path: Path) -> None:
    from kvplan.ingest.trace.fit import binned
    from kvplan.ingest.trace.traffic import measure

    def trace(rows: int) -> Path:
        path = tmp_path / f"{rows}.csv"
        lengths = np.random.default_rng(0).lognormal(6, 1, (rows, 2)).astype(int) + 1
        rows_ = (f"{t},{i},{o}\n" for t, (i, o) in enumerate(lengths.tolist()))
        path.write_text("time,input,output\n" + "".join(rows_))
        return path

    long, short = trace(400_000), trace(100_000)
    label = "fit of 400,000 rows against 100,000"
    assert ratio(lambda: binned(measure(long)), lambda: binned(measure(short)), 3, label) < 5.5


def test_a_log_takes_a_few_times_as_long_as_a_pattern_on_each_of_its_lines(tmp_path: Path) -> None:
    """20 MB of statistics, of which every line says something."""
    stats = (
        "(APIServer pid=1) INFO 10-02 00:{:02}:{:02} [loggers.py:123] Engine 000: Avg prompt throughput: {}.5 "
        "tokens/s, Avg generation throughput: {}.1 tokens/s, Running: {} reqs, Waiting: 0 reqs, GPU KV cache usage: "
        "{:.1f}%, Prefix cache hit rate: 12.3%\n"
    )
    start = "INFO 10-02 00:00:00 [kv_cache_utils.py:864] GPU KV cache size: 446,320 tokens\n"
    path = tmp_path / "serve.log"
    rows = (stats.format(i // 60 % 60, i % 60, i % 3000, 40, i % 200 + 1, i % 200 / 3) for i in range(85_000))
    path.write_text(start + "".join(rows), encoding="utf-8")
    number = re.compile(r"Running: (\d+) reqs")

    def plainly() -> None:
        with path.open(encoding="utf-8") as lines:
            assert sum(bool(number.search(line)) for line in lines) == 85_000

    def read() -> None:
        log = read_log(path)
        assert log.limits().memory_tokens == 446_320
        read_groups([path], may_lack=[path], before=KnownFiles({path: log.told}))

    assert ratio(read, plainly, 5, "a log of 20 MB against a pattern on its lines") <= 40


def test_rows_of_a_table_of_loads_take_a_few_times_as_long_as_their_csv(tmp_path: Path) -> None:
    path = tmp_path / "loads.csv"
    header = "concurrency,input_tokens,output_tokens,ttft_ms,tpot_ms\n"
    rows = (
        f"{i % 256 + 1},{900 + i % 200},{90 + i % 20},{50 + i / 1e3},{10 + i / 1e4}\n" for i in range(10_000)
    )
    path.write_text(header + "".join(rows), encoding="utf-8")

    def plainly() -> None:
        with path.open(encoding="utf-8") as lines:
            assert sum(sum(map(float, row.values())) > 0 for row in csv.DictReader(lines)) == 10_000

    assert ratio(lambda: read_groups([path]), plainly, 5, "10,000 loads against their CSV") <= 30
