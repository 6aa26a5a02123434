"""Recorded runs and sweeps, read as their files have them."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from sampled import parse_samples, read_samples

from kvplan.ingest.timing.equations import of_samples
from kvplan.ingest.timing.fit import fit_timing
from kvplan.ingest.timing.reading import read_groups
from kvplan.ingest.timing.samples import Point, Samples, Sweep
from kvplan.model import Timing

DATA = Path(__file__).resolve().parents[3] / "shared/data"
REPORTS, SILICON = DATA / "inference-perf", DATA / "silicon-sweeps/sweeps.csv"
WITH_USAGE, WITHOUT = DATA / "vllm-rtx4090", DATA / "vllm-rtxpro6000"
CAPACITY = 2588 * 16  # meta.json of the RTX 4090: kv_cache
PRIOR = Timing(0.01, d1=1e-7, d2=5e-5)

needs_reports = pytest.mark.skipif(not REPORTS.exists(), reason="inference-perf's reports are not here")
needs_silicon = pytest.mark.skipif(not SILICON.exists(), reason="the silicon sweeps are not here")
needs_runs = pytest.mark.skipif(
    not (WITH_USAGE.exists() and WITHOUT.exists()), reason="the runs are not here"
)


def points(variant: str) -> list[Point]:
    """Of the reports of a variant, stage by stage."""
    (found,) = read_groups(sorted((REPORTS / variant).glob("stage_*_lifecycle.json")))
    return [point for sweep in found if isinstance(sweep, Sweep) for point in sweep.points]


@needs_reports
@pytest.mark.parametrize(("variant", "kept_up"), [("vllm", 4), ("vllm+batch_size", 4)])
def test_stages_beyond_the_knee_are_closed_loops_of_the_clients_limit(variant: str, kept_up: int) -> None:
    """The client has 44 workers of at most 10 requests; some workers wait where others do not."""
    found = points(variant)
    assert [point.rate_rps is not None for point in found] == [True] * kept_up + [False] * (7 - kept_up)
    assert all(380 <= point.concurrency <= 440 for point in found if point.concurrency is not None)


@needs_silicon
def test_every_row_of_the_silicon_sweeps_is_a_point() -> None:
    """1,559, of which ten have the same figures as another of the same deployment, but for version and date."""
    found = read_samples(SILICON)
    assert all(isinstance(some, Sweep) and not some.left_out for some in found)
    assert sum(len(some.points) for some in found if isinstance(some, Sweep)) == 1549


def without_usage(path: Path) -> str:
    """A series as if its KV usage had not been recorded."""
    header, *rows = path.read_text().splitlines()
    return "\n".join([header, *(row.rsplit(",", 1)[0] + ",0.0" for row in rows)]) + "\n"


@needs_runs
def test_the_kv_that_is_rebuilt_is_the_kv_that_was_recorded(tmp_path: Path) -> None:
    """Of the run that recorded it, which preempted 188 times; recorded at the end of a second, rebuilt over it."""
    blind = tmp_path / "blind.csv"
    blind.write_text(without_usage(WITH_USAGE / "timeseries.csv"))
    ((rebuilt,),) = read_groups([blind, WITH_USAGE / "requests.jsonl"])
    (recorded,) = read_samples(WITH_USAGE / "timeseries.csv", capacity_tokens=CAPACITY)
    assert isinstance(rebuilt, Samples)
    assert isinstance(recorded, Samples)
    _, mine, theirs = np.intersect1d(rebuilt.line, recorded.line, return_indices=True)
    full = recorded.kv_tokens[theirs] > 0.5 * CAPACITY
    off = rebuilt.kv_tokens[mine][full] / recorded.kv_tokens[theirs][full] - 1
    assert full.sum() > 150
    assert abs(np.median(off)) < 0.03
    assert np.abs(off).mean() < 0.05


def held_out(samples: Samples) -> float:
    """Mean relative error of the second half under a fit of the first."""
    equations = of_samples([samples])
    first = np.arange(len(equations)) < len(equations) // 2
    timing = fit_timing(equations.part(first), PRIOR, envelope=True).timing
    rest = equations.part(~first)
    return float(
        np.abs(timing(rest.kv_tokens, rest.prefill_tokens, rest.sequences) / rest.seconds - 1).mean()
    )


@needs_runs
def test_half_a_rebuilt_series_foretells_the_rest() -> None:
    """Read as empty, memory of the same run misleads: 18%."""
    files = [WITHOUT / "timeseries.csv", WITHOUT / "requests.jsonl"]
    ((rebuilt,),) = read_groups(files)
    assert isinstance(rebuilt, Samples)
    assert held_out(rebuilt) < 0.06
    some_usage = [line + "\n" for line in files[0].read_text().splitlines()]
    (empty,) = parse_samples(
        [*some_usage, "68.0,0.0,0.0,0,0,1.0\n"], "series", capacity_tokens=1
    )  # usage of an idle second
    assert isinstance(empty, Samples)
    assert held_out(empty) > 0.13


@needs_reports
def test_the_table_of_the_reports_says_what_they_say() -> None:
    by_variant = {
        sweep.group: sweep for sweep in read_samples(REPORTS / "sweeps.csv") if isinstance(sweep, Sweep)
    }
    assert len(by_variant) == 3
    for variant, sweep in by_variant.items():
        for told, own in zip(sweep.points, points(variant), strict=True):
            assert told.concurrency == own.concurrency
            assert told.rate_rps == own.rate_rps
            assert own.outputs == (
                64,
                64,
            )  # as asked for; the table has tokens counted anew, and TPOT by these
            assert told.tpot_s is not None
            assert own.tpot_s is not None
            assert told.tpot_s * (sum(told.outputs) / 2 - 1) == pytest.approx(63 * own.tpot_s, rel=0.02)
            assert told.ttft_s == pytest.approx(own.ttft_s, rel=1e-9)


@needs_runs
def test_lives_of_half_the_requests_foretell_those_of_the_rest() -> None:
    """Of the run without preemptions, by the order in which they were done."""
    (lives,) = read_samples(WITHOUT / "requests.jsonl")
    assert isinstance(lives, Samples)
    assert lives.requests is not None
    order = np.argsort(lives.requests.last_token_s)
    columns = ("kv_tokens", "prefill_tokens", "sequences", "seconds", "line")
    assert held_out(replace(lives, **{name: getattr(lives, name)[order] for name in columns})) < 0.02
