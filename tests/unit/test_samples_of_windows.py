"""Windows of runs and what is read from them: by hand, and against numpy on all values together."""

import math

import numpy as np
import pytest
from runs import a_series

from kvplan.simulation.initial_state import Spans
from kvplan.simulation.outcome import Ending, Outcome, SpanSums
from kvplan.simulation.requests import Requests
from kvplan.simulation.state import GAPS, GAPS_IN_E, SHORTEST_GAP_S, Span
from kvplan.study.sample import Sample
from kvplan.study.windows import Window, window

COLUMNS = Span.LEAST_WAITING + 1


def of_values(
    values: np.ndarray,
    batches: int = 16,
    *,
    begin_s: float = 0.0,
    width_s: float = 1.0,
    gaps: np.ndarray | None = None,
) -> Window:
    """A window whose requests were done one after the other, evenly spread; every latency is the given one."""
    batch = np.arange(values.size) * batches // values.size
    sums = np.zeros((batches, COLUMNS))
    sums[:, Span.RUNNING_S] = np.arange(batches)
    sums[:, Span.LEAST_WAITING] = np.arange(batches)[::-1]
    empty = np.zeros((batches, GAPS), dtype=np.int64)
    return Window(
        begin_s=begin_s,
        width_s=width_s,
        batch=batch,
        values=dict.fromkeys(("ttft_s", "tpot_s", "e2e_s"), values),
        class_index=np.arange(values.size) % 2,
        evictions=np.arange(values.size) % 3,
        sums=sums,
        gaps=empty if gaps is None else gaps,
        arrived=values.size,
        iterations=10,
        recomputed_tokens=0,
        computed_tokens=0,
        stuck=False,
    )


def binned(gaps: np.ndarray, batches: int = 16) -> np.ndarray:
    """Gaps between tokens, evenly spread over batches, in the bins of a run."""
    counts = np.zeros((batches, GAPS), dtype=np.int64)
    place = np.floor(np.log(gaps / SHORTEST_GAP_S) * GAPS_IN_E).astype(int)
    np.add.at(counts, (np.arange(gaps.size) * batches // gaps.size, place), 1)
    return counts


# ------------------------------------------------------------------------------------------------- windows


def test_batches_are_merged_in_pairs() -> None:
    one = of_values(np.array([1.0, 2, 3, 4, 5, 6, 7, 8]), 4, width_s=2.5)
    pairs = one.merged(5.0)
    assert (pairs.width_s, pairs.batches) == (5.0, 2)
    assert pairs.batch.tolist() == [0, 0, 0, 0, 1, 1, 1, 1]
    assert pairs.sums[:, Span.RUNNING_S].tolist() == [0 + 1, 2 + 3]
    assert one.merged(2.5) is one
    whole = one.merged(1000.0)  # a run shorter than a batch is one
    assert (whole.width_s, whole.batches, whole.batch.max()) == (10.0, 1, 0)


def outcome(first: list[float], finish: list[float], end_s: float, spans: int) -> Outcome:
    arrival = np.arange(float(len(first)))
    sums = SpanSums(np.zeros((spans, COLUMNS)), np.zeros((spans, GAPS), dtype=np.int64))
    names = Outcome.__dataclass_fields__
    given = {
        "arrival_s": arrival,
        "first_token_s": np.array(first),
        "finish_s": np.array(finish),
        "evictions": np.arange(len(first)),
        "end_s": end_s,
        "iterations": 7,
        "ending": Ending.HORIZON,
        "spans": sums,
        "series": a_series(np.zeros(0)),
    }
    rest = {name: 0 for name, f in names.items() if name not in given and f.default is not None and f.init}
    return Outcome(**{**rest, **given})  # type: ignore[arg-type]


def test_a_window_holds_what_is_done_in_it() -> None:
    """From 10 s on, two batches of 5 s: done at 9.9 (before), 10, 14.9, 15, 20 (after), never."""
    requests = Requests(
        np.arange(6.0), np.full(6, 4), np.array([3, 1, 3, 5, 3, 3]), np.array([0, 1, 0, 1, 0, 1])
    )
    run = outcome([5, 10, 8, 7, 9, math.nan], [9.9, 10, 14.9, 15, 20, math.nan], 30.0, 2)
    seen = window(requests, run, Spans(10.0, 5.0, 2))
    assert seen.batch.tolist() == [0, 0, 1]
    assert seen.values["ttft_s"].tolist() == [9, 6, 4]
    assert seen.values["e2e_s"] == pytest.approx([9, 12.9, 12])
    assert seen.values["tpot_s"][1:] == pytest.approx([6.9 / 2, 8 / 4])
    assert math.isnan(seen.values["tpot_s"][0])  # a single token
    assert (seen.class_index.tolist(), seen.evictions.tolist()) == ([1, 0, 1], [1, 2, 3])
    assert (seen.arrived, seen.iterations, seen.stuck) == (6, 7, False)


# ------------------------------------------------------------------------------------------------- figures


def test_figures_are_those_of_all_values_together() -> None:
    rng = np.random.default_rng(1)
    runs = [rng.lognormal(0, 1, n) for n in (400, 400, 800)]
    windows = [of_values(v, width_s=w) for v, w in zip(runs, (1.0, 1.0, 2.0), strict=True)]
    sample, everything = Sample.of(windows, 2.0), np.concatenate(runs)
    for time in ("ttft_s", "tpot_s", "e2e_s"):
        mean = sample.estimate(time, "mean")
        assert mean is not None
        assert mean.value == pytest.approx(everything.mean())
        for figure, share in (("p50", 50), ("p90", 90), ("p95", 95), ("p99", 99)):
            found = sample.estimate(time, figure)
            assert found is not None
            assert found.value == pytest.approx(np.percentile(everything, share))
            assert found.low < found.value < found.high
    of_one = sample.of_class(1).estimate("e2e_s", "p90")
    assert of_one is not None
    assert of_one.value == pytest.approx(np.percentile(np.concatenate([v[1::2] for v in runs]), 90))


def test_gaps_between_tokens_are_known_to_a_bin() -> None:
    rng = np.random.default_rng(4)
    gaps = rng.lognormal(-4, 0.5, 20_000)
    sample = Sample.of([of_values(np.ones(16), gaps=binned(gaps))], 1.0)
    for figure, known in (("mean", gaps.mean()), ("p50", np.median(gaps)), ("p99", np.percentile(gaps, 99))):
        found = sample.estimate("itl_s", figure)
        assert found is not None
        assert found.value == pytest.approx(known, rel=1.5 / GAPS_IN_E)
    assert Sample.of([of_values(np.ones(16))], 1.0).estimate("itl_s", "mean") is None


def test_rates_and_states_are_counted_by_time() -> None:
    """Of 32 requests in 16 batches of half a second; running 0 … 15 request-seconds in each of them."""
    sample = Sample.of([of_values(np.ones(32), width_s=0.5)], 0.5)
    assert sample.rate().value == pytest.approx(32 / 8)
    assert sample.over_time(Span.RUNNING_S).value == pytest.approx(sum(range(16)) / 8)
    evictions = sample.evictions()
    assert evictions is not None
    assert evictions.value == pytest.approx(31 / 32)  # of 0, 1, 2, 0, 1, …


# ------------------------------------------------------------------------------------------------- cliffs


def test_a_percentile_in_a_gap_of_the_law_sits_on_a_cliff() -> None:
    """A tenth of the gaps has a prompt, 113 ms instead of 50: p90 is either."""
    rng = np.random.default_rng(9)
    gaps = np.where(rng.random(20_000) < 0.1, 0.113, 0.05) * rng.uniform(0.99, 1.01, 20_000)
    sample = Sample.of([of_values(np.ones(16), gaps=binned(gaps))], 1.0)
    cliff = sample.cliff("itl_s", "p90")
    assert cliff is not None
    assert (cliff.low, cliff.high) == pytest.approx((0.05, 0.113), rel=0.02)
    assert sample.cliff("itl_s", "p50") is None
    assert sample.cliff("itl_s", "p99") is None
