"""How errors of rows become those of a run, by hand; and what is shown of them."""

from dataclasses import replace

import pytest
from every import every
from hypothesis import given
from hypothesis import strategies as st
from scoreboard.hidden import split
from scoreboard.record import Bound, Configuration, Off, Over, Row
from scoreboard.score import scored

from kvplan.ingest.timing.equations import Kind
from kvplan.ingest.timing.samples import Deployment, Point, Sweep

DENSE, OTHER, MOE = (
    Configuration("Llama on A", "dense", "Llama", "vllm"),
    Configuration("Llama on B", "dense", "Llama", "vllm"),
    Configuration("Qwen on A", "MoE", "Qwen", "sglang"),
)


def row(of: Configuration, foretold: float, measured: float = 1.0) -> Row:
    return Row(of, "", "TPOT", "s", foretold, measured)


ROWS = (row(DENSE, 1.1), row(DENSE, 1.2), row(DENSE, 0.7), row(OTHER, 1.5), row(MOE, 0.5), row(MOE, 0.5))


@every(
    ("over", "kind", "error", "most", "configurations"),
    [
        # of Llama on A 0.1, 0.2, 0.3; of Llama on B 0.5; of Qwen 0.5, 0.5
        (Over.MEDIAN, "dense", 0.35, 0.5, 2),
        (Over.MEDIAN, None, 0.5, 0.5, 3),
        (Over.MEAN, None, 0.4, 0.5, 3),
        (Over.WORST, "MoE", 0.5, 0.5, 1),
    ],
)
def test_errors_are_summed_up_within_configurations_then_over_them(
    over: Over, kind: str | None, error: float, most: float, configurations: int
) -> None:
    found = scored(Bound(quantity="TPOT", kind=kind, over=over, recorded=1.0), ROWS)
    assert (found.value, found.worst) == pytest.approx((error, most))
    assert found.configurations == configurations


def test_a_factor_is_the_same_either_way() -> None:
    bound = Bound(quantity="TPOT", off=Off.FACTOR, recorded=9.0)
    assert scored(bound, [row(DENSE, 0.5)]).value == scored(bound, [row(DENSE, 2.0)]).value == 2.0


def test_what_is_not_foretold_at_all_is_no_success() -> None:
    bound = Bound(quantity="TPOT", must=0.5, recorded=0.5)
    for rows in ([], [row(DENSE, float("nan"))]):
        assert not scored(bound, rows).holds
        assert not scored(bound, rows).as_recorded


points = st.builds(
    Point,
    line=st.integers(2, 99),
    inputs=st.just((9, 9)),
    outputs=st.just((5, 5)),
    concurrency=st.integers(1, 64),
    ttft_s=st.floats(0.001, 9.0),
    tpot_s=st.floats(0.001, 9.0),
    e2e_s=st.none() | st.floats(0.001, 9.0),
    throughput_rps=st.none() | st.floats(0.001, 9.0),
)


@given(st.lists(points, max_size=8), st.integers(1, 64))
def test_loads_that_are_to_be_foretold_carry_no_measurement(some: list[Point], most: int) -> None:
    known, hidden = split(
        Sweep("", "", Deployment(), tuple(some)), lambda point: (point.concurrency or 0) > most
    )
    times = ("ttft_s", "tpot_s", "e2e_s", "throughput_rps")
    assert all(getattr(point, name) is None for point in hidden.loads.points for name in times)
    foretold: list[dict[Kind, float]] = [{} for _ in hidden.loads.points]
    measured = [point for point, _ in hidden.against(foretold)]
    assert sorted([*known.points, *measured], key=some.index) == sorted(some, key=some.index)
    assert [replace(point, **dict.fromkeys(times)) for point in measured] == list(hidden.loads.points)
