"""Extremes that people may write give numbers, not errors; `tests/campaign` draws others."""

import json
import math
from collections.abc import Callable
from typing import Any

import pytest
from every import check_every, every
from strategies import mix_model

from kvplan.model import ServingModel, Timing
from kvplan.report.assembly import analyze, to_document

TIMING = Timing(0.01, 1e-7, 1e-5, 1e-5)


def report(model: ServingModel) -> dict[str, Any]:
    found = to_document(analyze(model, name="extreme", sha256=""))
    json.dumps(found, allow_nan=False)
    assert found["verdict"]["status"] in {"stable", "needs_cap", "overloaded"}
    assert found["saturation"]["admissions_per_iteration"] > 0
    assert math.isfinite(found["load"]["sustainable_rps"])
    return found


CASES: dict[str, Callable[[], ServingModel]] = {
    "one token to decode": lambda: mix_model((5, 1, 1.0), memory=100),
    "memory for one request exactly": lambda: mix_model((50, 50, 1.0), memory=100),
    "a token of memory to spare": lambda: mix_model((50, 49, 1.0), (1, 2, 1.0), memory=100),
    "a token of memory in all": lambda: mix_model((0, 1, 1.0), memory=1),
    "rates of 1e9 and 1e-9": lambda: mix_model((9, 4, 1e9), (9, 5, 1e-9), memory=1000, timing=TIMING),
    "an input of 1e7": lambda: mix_model((10**7, 20, 1e-9), (0, 21, 1e-9), memory=10**8, timing=TIMING),
    "an iteration of an hour at 1e9 requests/s": lambda: mix_model((10, 20, 1e9), timing=Timing(3600.0)),
    "an iteration of 1 ns": lambda: mix_model((10, 20, 1e-9), (7, 5, 1.0), timing=Timing(1e-9)),
    "work rate just below one": lambda: mix_model((0, 1, 1.0), timing=Timing(1.0, 1 - 1e-15)),
    "work rate one": lambda: mix_model((10, 20, 1.0), timing=Timing(1.0, 1 / 410)),
    "twice minus one on the circle": lambda: mix_model((0, 2, 2.0), (0, 3, 1.0)),
}


def test_a_report_all_the_same() -> None:
    check_every(CASES, lambda make: report(make()))


@pytest.mark.nightly
def test_so_are_reports_of_the_longest_answers() -> None:
    report(mix_model((50, 100_000, 0.1), timing=TIMING))


@every("exponent", [-9, 9])
def test_what_does_not_depend_on_the_rate_is_the_same_at_any_rate(exponent: int) -> None:
    """Sustainable rate, cycle and stability of a mix are those of its shares."""
    one, scaled = (
        report(mix_model((9, 4, 3 * rate), (9, 6, rate), memory=1000))
        for rate in (1.0, float(f"1e{exponent}"))
    )
    for block, key in (
        ("load", "sustainable_rps"),
        ("worst_cycle", "throughput_per_iteration"),
        ("stability", "spectral_radius"),
        ("rate_cap", "per_iteration"),
    ):
        assert scaled[block][key] == pytest.approx(one[block][key], rel=1e-9), key
    assert scaled["stability"]["stable"] == one["stability"]["stable"]
    assert scaled["load"]["offered_rps"] == pytest.approx(4 * float(f"1e{exponent}"), rel=1e-12)
