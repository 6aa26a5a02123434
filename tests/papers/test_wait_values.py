"""WAIT and Nested WAIT give the reference values, to the digits printed."""

import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kvplan.analysis.nested import nested_wait, printed_memory, requirement
from kvplan.analysis.segments import decay_rates, lengths_of, segments_of
from kvplan.analysis.wait import wait
from kvplan.model import Prefill, Replica, RequestClass, ServingModel, Timing

TABLES = tomllib.loads(Path(__file__).with_name("wait.toml").read_text(encoding="utf-8"))


def model(
    classes: list[list[Any]], d0: float = 1.0, d1: float = 0.0, memory_tokens: int = 1_000_000
) -> ServingModel:
    return ServingModel(
        tuple(RequestClass(f"{d}", s, (d,), (1.0,), rate) for s, d, rate in classes),
        Timing(d0, d1),
        Replica(memory_tokens, prefill=Prefill.INLINE),
    )


@pytest.mark.parametrize("row", TABLES["thresholds"], ids=lambda row: row["source"])
def test_smallest_thresholds(row: dict[str, Any]) -> None:
    assert wait(model(row["classes"], row["d0"], row["d1"])).thresholds == tuple(row["smallest"])


@pytest.mark.parametrize("row", TABLES["decay"], ids=lambda row: f"{row['before']}-{row['here']}")
def test_decay_rates(row: dict[str, Any]) -> None:
    before, here, p = (np.array([float(row[key])]) for key in ("before", "here", "continuing"))
    assert round(float(decay_rates(before, here, p)[0]), 10) == row["theta"]


@pytest.mark.parametrize("row", TABLES["buffer"], ids=lambda row: row["source"])
def test_required_memory(row: dict[str, Any]) -> None:
    lengths = lengths_of(model(row["classes"]))
    segments = segments_of(lengths, [np.arange(lengths.decode.size)])
    thresholds = np.array(row["thresholds"], dtype=float)[:, None]
    needs = requirement(segments, thresholds, delta=row["delta"], horizon_s=row["iterations"])
    assert needs.base[0] == row["base"]
    assert needs.boundary[0] == row["boundary"]
    for key, found in (("high_probability", needs.high_probability[0]), ("total", needs.total[0])):
        if key in row:
            assert round(float(found), row[key]["digits"]) == row[key]["value"]
    if "queues" in row:
        queues = (thresholds + needs.exponent / needs.theta)[1:, 0]
        assert queues.round(row["queues"]["digits"]).tolist() == row["queues"]["value"]


def test_one_segment_per_length_of_the_four_types_has_the_minimal_thresholds() -> None:
    """(17, 11, 6, 3): nothing is gained from slack there, and 900 tokens wait at the boundaries."""
    row = TABLES["thresholds"][1]
    result = nested_wait(model(row["classes"], row["d0"], row["d1"]), delta=0.01, horizon_s=1.0, segments=4)
    assert [segment.threshold for segment in result.segments] == [17, 11, 6, 3]
    assert (result.base_kv_tokens, result.boundary_kv_tokens) == (64290, 900)


@pytest.mark.parametrize("row", TABLES["printed"], ids=["falling", "equal"])
def test_the_printed_formulas_are_off_by_what_is_claimed(row: dict[str, Any]) -> None:
    lengths = lengths_of(model([[60, 50 * (k + 1), rate] for k, rate in enumerate(row["rates"])]))
    segments = segments_of(lengths, [np.arange(10)])
    thresholds = segments.rate[:, 0]
    right = float(thresholds @ segments.held[:, 0])
    printed = printed_memory(lengths.decode, segments.input_tokens[:, 0], thresholds)
    for key, value in (("eq_13", printed.eq_13), ("segment_design", printed.segment_design)):
        low, high = row[key]
        assert low <= value / right - 1 <= high
