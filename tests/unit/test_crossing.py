"""Where split and together change places in simulation: fleets whose figures are known, and rates by plain means."""

import math

import numpy as np
import pytest

from kvplan.decide.crossing import Lines, lines, where_crossed
from kvplan.decide.fixed_runs import Estimate, Measured
from kvplan.errors import UsageError
from kvplan.model import Replica, RequestClass, ServingModel, Timing
from kvplan.model.slo import parse_slo
from kvplan.plots import drawing

D0 = 8e-3
CHAT = RequestClass("chat", 2000, (200,), (1.0,), 60.0)
REPLICA = Replica(450_000, 16, max_num_batched_tokens=8192)
MODEL = ServingModel((CHAT,), Timing(D0, 0.04e-6, 25e-6, 15e-6), REPLICA)
SLOS = [parse_slo("itl_s.p99 <= 30 ms"), parse_slo("ttft_s.p95 <= 2 s")]


def stretched(load: float) -> float:
    """Seconds between tokens of a replica so busy that an iteration takes its fixed time and this part of itself."""
    return D0 / (1 - load) if load < 1 else math.inf


def measured(model: ServingModel, prefill: float, decode: float, both: float) -> Measured:
    """Replicas that serve so many requests/s each; those that do both need budgets that are neither small nor large."""
    fleet, rate = model.fleet, model.total_rate_rps
    if fleet.is_split:
        steady, itl_s = rate < fleet.prefill * prefill, stretched(rate / (fleet.decode * decode))
    else:
        budget = model.replica.max_num_batched_tokens
        load = rate / (fleet.replicas * both * budget / (budget + 50))
        steady, itl_s = load < 0.99, stretched(load) + 1e-5 * budget
    fine = steady and itl_s < math.inf
    ttft = Estimate(0.1, 0.1, 0.1)
    return Measured(fine, {"ttft_s.p95": ttft, "itl_s.p99": Estimate(*[min(itl_s, 1e9)] * 3)})


def rates_at(limit_s: float, gpus: int, prefill: float, decode: float, both: float) -> tuple[float, float]:
    """The same fleets by hand: all splits, all budgets."""
    split = max(min(p * prefill, (gpus - p) * decode * max(1 - D0 / limit_s, 0)) for p in range(1, gpus))
    budgets = np.arange(64, 8193)
    left = limit_s - 1e-5 * budgets
    load = np.where(left > D0, np.minimum(1 - D0 / np.maximum(left, D0), 0.99), 0)
    return split, float((load * gpus * both * budgets / (budgets + 50)).max())


@pytest.fixture(scope="module", params=[(8, 20.0, 31.0, 12.6), (40, 20.0, 31.0, 12.9)], ids=["8", "40"])
def known(request: pytest.FixtureRequest) -> tuple[Lines, tuple[float, ...]]:
    gpus, *rates = request.param
    return lines(MODEL, gpus, SLOS, lambda model: measured(model, *rates)), request.param


def test_both_lines_are_what_all_candidates_serve(known: tuple[Lines, tuple[float, ...]]) -> None:
    found, fleet = known
    assert found.key == "itl_s.p99"
    for i in range(60, found.limit_s.size, 20):
        split, together = rates_at(found.limit_s[i], *fleet)
        assert found.simulated[0, i] == pytest.approx(split, rel=0.06), found.limit_s[i]
        assert found.simulated[1, i] == pytest.approx(together, rel=0.06), found.limit_s[i]
        assert (found.simulated[:, i] <= np.array([split, together]) * 1.005).all(), "never more"


def test_they_cross_where_all_candidates_do(known: tuple[Lines, tuple[float, ...]]) -> None:
    found, fleet = known
    limits = np.geomspace(9e-3, 0.4, 4000)
    ahead = np.array([one - other for one, other in (rates_at(limit, *fleet) for limit in limits)])
    at = limits[np.flatnonzero(np.diff(np.sign(ahead)))[-1]]
    assert found.crossed is not None
    assert found.crossed.low_s <= found.crossed.itl_s <= found.crossed.high_s
    assert found.crossed.low_s * 0.97 <= at <= found.crossed.high_s * 1.03
    assert found.crossed.split_wins_below


def test_what_never_crosses_is_said_to() -> None:
    limit = np.array([0.01, 0.02, 0.04])
    assert where_crossed(limit, np.array([0.0, 2.0, 3.0]), np.array([0.0, 1.0, 2.0])) is None
    nearly = where_crossed(limit, np.array([2.0, 2.0, 1.99]), np.array([1.0, 1.5, 2.0]))
    assert nearly is None, "half a percent is nothing"


def test_the_last_of_several_crossings_counts() -> None:
    limit = np.array([1.0, 2.0, 4.0, 8.0])
    found = where_crossed(limit, np.array([1.0, 3.0, 1.0, 4.0]), np.array([2.0, 2.0, 2.0, 2.0]))
    assert found is not None
    assert (found.low_s, found.high_s, found.split_wins_below) == (4.0, 8.0, False)
    assert found.itl_s == pytest.approx(4 * math.sqrt(2))


def test_without_an_objective_between_tokens_there_are_no_lines() -> None:
    with pytest.raises(UsageError, match="time between tokens"):
        lines(MODEL, 8, SLOS[1:], lambda model: measured(model, 1, 1, 1))


def test_the_plot_marks_both_crossings(known: tuple[Lines, tuple[float, ...]]) -> None:
    pytest.importorskip("matplotlib")
    found, _ = known
    assert drawing.file_of("split", found, ".svg") == drawing.file_of("split", found, ".svg")
    text = drawing.inline_svg("split", found)
    for label in ("apart", "together", "by formula", "even", "alike to 2%", "limit on ITL p99, ms"):
        assert f">{label}</text>" in text
