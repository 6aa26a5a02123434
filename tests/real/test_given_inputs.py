"""Files that people have, each read as its page of expectations says, or refused with what is missing."""

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
from command import run

CASES = Path(__file__).resolve().parents[3] / "shared/cases/inputs3"
pytestmark = pytest.mark.skipif(not CASES.exists(), reason="the shared cases are not here")


def imported(case: str, files: str, *options: str) -> tuple[dict[str, Any], str]:
    """The profile, or nothing where the input is refused; and what was said, in one line."""
    folder = next(CASES.glob(f"{case}-*"))
    paths = [str(folder / name) for name in files.split()]
    done = run("import", *paths, *options)
    code = done.returncode
    assert code == 0 or (code == 2 and done.stderr.count("\n") == 1), done.stderr
    text = done.stdout if code == 0 else ""
    return tomllib.loads(text), " ".join((done.stderr + text.replace("\n#", "")).split())


def traffic(profile: dict[str, Any]) -> tuple[float, float, float]:
    """Rate, and the mean lengths of prompts and answers."""
    rate = sum(one["rate"] for one in profile["classes"])

    def mean(lengths: Any) -> float:
        if not isinstance(lengths, dict):
            return float(lengths)
        return sum(int(length) * share for length, share in lengths.items()) / sum(lengths.values())

    means = (sum(mean(one[key]) * one["rate"] for one in profile["classes"]) for key in ("input", "decode"))
    return rate, *(total / rate for total in means)


@pytest.mark.parametrize("file", ["input.csv", "input.json"])
def test_buckets_of_usage_are_sums(file: str) -> None:
    """12,430 requests in 12 hours, of 1,350 tokens and 280."""
    profile, said = imported("01", file)
    assert traffic(profile) == pytest.approx((12_430 / 43_200, 1350, 280), rel=0.005)
    assert profile["workload"]["period"] == 43_200
    assert profile["provenance"]["workload"]["basis"] == "estimated"
    assert "sums of several requests" in said
    assert "assumed" in said


@pytest.mark.parametrize("file", ["input.csv", "input.json"])
def test_days_of_activity_are_sums(file: str) -> None:
    """14 days of 1,000, 1,100 … 2,300 requests: 1,650 a day."""
    assert traffic(imported("02", file)[0]) == pytest.approx((1650 / 86_400, 2100, 310), rel=0.005)


def test_a_call_in_several_lines_is_one_request() -> None:
    profile, said = imported("03", "input.jsonl")
    assert traffic(profile) == pytest.approx((0.0417, 62_140, 493), rel=0.005)
    assert re.search("120 rows repeat a response", said)
    assert profile["prefix"]["hit_curve"][-1][1] == pytest.approx(0.975, abs=0.001)
