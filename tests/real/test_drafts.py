"""Speculative decoding against measured times between tokens: Llama-3.1-8B on one H100, a request at a time."""

import csv
from pathlib import Path

import numpy as np
import pytest

from kvplan.analysis.speculative import speculative, with_drafts
from kvplan.model import Replica, RequestClass, ServingModel, Timing
from kvplan.model.drafts import Drafts

FILE = Path(__file__).resolve().parents[3] / "shared/data/speculative-20780.csv"
pytestmark = pytest.mark.skipif(not FILE.exists(), reason="the measured drafts are not here")


def rows(method: str) -> list[tuple[int, float, float]]:
    """Drafts, mean tokens of an iteration, seconds between tokens."""
    with FILE.open(encoding="utf-8") as file:
        found = [row for row in csv.DictReader(file) if row["method"] == method]
    return [(int(r["drafts"]), float(r["mean_acceptance_length"]), float(r["tpot_ms"]) / 1e3) for r in found]


def model(method: str, fixed_s: float, draft_s: float, tokens: int) -> ServingModel:
    """One request at a time, with the acceptance that was measured; of the first two drafts half of both."""
    [(_, _, alone_s)] = rows("none")
    lengths = [length for _, length, _ in rows(method)]
    first = (lengths[0] - 1) / 2
    accepted = (first, first, *np.diff(lengths).tolist())
    drafts = Drafts(tokens, accepted, draft_s=draft_s, overhead_s=fixed_s - alone_s)
    slow = RequestClass("a", 100, (1000,), (1.0,), 1e-6)
    return ServingModel((slow,), drafts.slowed(Timing(alone_s)), Replica(10**6), drafts=drafts)


def fitted(of: list[tuple[int, float, float]]) -> tuple[float, float]:
    """Iterations of `fixed + k·draft` seconds: least squares."""
    tokens, length, between = np.array(of).T
    draft_s, fixed_s = np.polyfit(tokens, between * length, 1)
    return float(fixed_s), float(draft_s)


@pytest.mark.parametrize("method", ["EAGLE-1", "EAGLE-3"])
def test_a_number_of_drafts_is_foretold_from_the_others(method: str) -> None:
    """Leave one out: within 4 %."""
    measured = rows(method)
    for i, (tokens, _, between_s) in enumerate(measured):
        one = model(method, *fitted(measured[:i] + measured[i + 1 :]), tokens)
        found, plain = speculative(one), with_drafts(one, 0)
        assert found is not None
        assert found.itl_speed_up is not None
        assert plain.timing.d0 / found.itl_speed_up == pytest.approx(between_s, rel=0.04)


@pytest.mark.parametrize("method", ["EAGLE-1", "EAGLE-3"])
def test_the_best_number_of_drafts_is_the_one_measured(method: str) -> None:
    measured = rows(method)
    found = speculative(model(method, *fitted(measured), 3))
    assert found is not None
    assert found.best_tokens == min(measured, key=lambda row: row[2])[0]
