"""What inputs are worth: where a plan leaves the measured range, what the error band makes of it, how that is said."""

from dataclasses import replace
from datetime import date
from typing import Any

import pytest
from every import every
from hypothesis import given
from hypothesis import strategies as st
from measured import brief_report
from tiers import examples

from kvplan.analysis.equilibrium import load
from kvplan.model import (
    Knowledge,
    MeasuredRange,
    Origin,
    Prefill,
    Provenance,
    Replica,
    RequestClass,
    ServingModel,
    Timing,
)
from kvplan.report.assembly import to_document
from kvplan.report.inputs import State, beyond, caveat, extrapolations, states, verdicts_in
from kvplan.report.words import Status
from kvplan.show.page import Table
from kvplan.show.report import build

# K = 100·λτ tokens of 10 iterations each: input 5, decode 10, Σ(5 + k + 1) = 105 for k = 0 … 9.
ONE = RequestClass("a", 5, (10,), (1.0,), 1.0)


def model(rate: float = 1.0, **fields: Any) -> ServingModel:
    """Iterations of a second, whatever they do: at the equilibrium as many requests are admitted as come in one."""
    one = replace(ONE, rate_rps=rate)
    given_fields: dict[str, Any] = {"timing": Timing(1.0), "replica": Replica(1050)} | fields
    return ServingModel((one,), **given_fields)


# ---------------------------------------------------------------------------------------------- the range


def test_the_states_of_a_plan_are_its_equilibrium_the_full_replica_and_the_longest_prompt() -> None:
    assert list(states(model(2.0))) == [
        State("the equilibrium", 210, 10, 20),
        State("a full replica", 1050, 50, 100),  # ten admissions an iteration
        State("the longest prompt", None, 5, None),
    ]


@pytest.mark.parametrize(
    ("limits", "full"),
    [
        ({"max_num_seqs": 40}, State("a full replica", 420, 20, 40)),
        ({"max_num_batched_tokens": 28}, State("a full replica", 210, 10, 20)),  # 14 a request: 5 + 9
        ({"prefill": Prefill.DISAGGREGATED}, State("a full replica", 1050, 0, 100)),
    ],
)
def test_a_full_replica_is_where_the_first_limit_is_met(limits: dict[str, Any], full: State) -> None:
    found = {state.name: state for state in states(model(replica=Replica(1050, **limits)))}
    assert found["a full replica"] == full


HALF = State("half", 50, 50, 50)


@every(
    ("ends", "factors"),
    [
        ((0, 50), []),
        ((50, 50), []),
        ((0, 49.9), []),  # by less than shows
        ((0, 40), [1.25]),
        ((0, 0), [float("inf")]),
        ((100, 200), [0.5]),
    ],
)
def test_a_state_is_beyond_a_range_by_a_factor(ends: tuple[float, float], factors: list[float]) -> None:
    assert [one.factor for one in beyond(MeasuredRange(kv_tokens=ends), [HALF])] == factors
    assert [one.factor for one in beyond(MeasuredRange(sequences=ends), [HALF])] == factors


def test_it_is_said_once_for_each_end_with_the_factors() -> None:
    measured = MeasuredRange(kv_tokens=(20, 40), prefill_tokens=(0, 25), sequences=(0, 900))
    visited = [HALF, State("more", 80, 10, 800), State("less", 10, 0, 1)]
    assert extrapolations(measured, visited) == [
        "The timing is extrapolated: half holds 50 KV tokens, 1.25 times the 40 it was measured to; more 80, 2 times.",
        "The timing is extrapolated: less holds 10 KV tokens, 0.5 times the 20 it was measured from.",
        "The timing is extrapolated: half has 50 prefill tokens computed in an iteration, 2 times the 25 it was "
        "measured to.",
    ]


def test_a_report_says_where_its_plan_leaves_the_range() -> None:
    told = model(2.0, measured=MeasuredRange(kv_tokens=(0, 700)))
    report = brief_report(told)
    said = "The timing is extrapolated: a full replica holds 1,050 KV tokens, 1.5 times the 700 it was measured to."
    assert said in report.notes
    assert report.caveat == "timing extrapolated 1.5 times"
    within = model(2.0, measured=MeasuredRange(kv_tokens=(0, 1050)))
    assert not any("extrapolated" in note for note in brief_report(within).notes)


# --------------------------------------------------------------------------------------------- the error band


TIMINGS = st.builds(
    Timing,
    d0=st.floats(1e-3, 1.0),
    d1=st.sampled_from([0.0, 1e-6, 1e-5]),
    d2=st.sampled_from([0.0, 1e-4]),
    d3=st.sampled_from([0.0, 1e-4]),
    d4=st.sampled_from([0.0, 1e-3]),
    d5=st.sampled_from([0.0, 1e-5]),
    knee_tokens=st.just(64.0),
    experts=st.sampled_from([0.0, 1e-3]),
    chosen=st.just(0.1),
)
MIX = (RequestClass("a", 60, (40,), (1.0,), 1.0), RequestClass("b", 90, (55,), (1.0,), 2.0))


def slower(timing: Timing, factor: float) -> Timing:
    """Every iteration takes so many times as long."""
    times = ("d0", "d1", "d2", "d3", "d4", "d5", "experts")
    return replace(timing, **{name: factor * getattr(timing, name) for name in times})


@examples(4)
@given(TIMINGS, st.floats(0.2, 1.0), st.floats(1.0, 5.0), st.floats(0.3, 1.6))
def test_rates_and_verdict_at_the_ends_are_those_of_timings_that_are_faster_and_slower(
    timing: Timing, least: float, most: float, share: float
) -> None:
    """Reports made anew with every constant multiplied say the same as the band of one report."""
    full = ServingModel(MIX, timing, Replica(9_000, 16, max_num_seqs=150))
    rate = share * load(full).sustainable_rps / full.total_rate_rps
    offered = replace(full, classes=tuple(replace(c, rate_rps=c.rate_rps * rate) for c in MIX))
    banded = replace(offered, measured=MeasuredRange(band=(least, most)))
    middle = brief_report(banded)
    ends = [brief_report(replace(offered, timing=slower(timing, end))) for end in (most, least)]
    assert middle.load.sustainable_rps_range == pytest.approx([one.load.sustainable_rps for one in ends])
    assert (middle.verdict.status, middle.load.sustainable_rps) == (
        (plain := brief_report(offered)).verdict.status,
        plain.load.sustainable_rps,
    )
    recovers = middle.verdict.recovers_up_to_rps
    assert recovers is not None
    found = verdicts_in((least, most), middle.load.offered_rps, middle.load.sustainable_rps, recovers)
    assert [found[-1][0], found[0][0]] == [one.verdict.status for one in ends]
    changes = any("the verdict changes" in note for note in middle.notes)
    assert changes == (ends[0].verdict.status != ends[1].verdict.status)


@every(
    ("band", "offered", "expected"),
    [
        ((0.9, 1.1), 5.0, [(Status.STABLE, 1.1)]),
        ((0.9, 1.3), 10.0, [(Status.NEEDS_CAP, 1.2), (Status.OVERLOADED, 1.3)]),
        ((0.5, 2.0), 10.0, [(Status.STABLE, 0.8), (Status.NEEDS_CAP, 1.2), (Status.OVERLOADED, 2.0)]),
        ((1.5, 2.0), 10.0, [(Status.OVERLOADED, 2.0)]),
    ],
)
def test_verdicts_change_where_a_rate_passes_the_offered_one(
    band: tuple[float, float], offered: float, expected: list[tuple[Status, float]]
) -> None:
    assert verdicts_in(band, offered, 12.0, 8.0) == [(status, pytest.approx(end)) for status, end in expected]


def test_a_report_has_the_range_of_the_rate() -> None:
    report = brief_report(model(8.0, measured=MeasuredRange(band=(0.8, 1.25))))
    built = build(report)
    [load_table] = (block for block in built.sections[0].blocks if isinstance(block, Table))
    assert ("Sustainable rate", "10 requests/s (8 to 12.5)") in load_table.rows
    assert ("Capacity above the load", "+25%") in load_table.rows
    assert "8 requests/s offered, 10 sustainable (8 to 12.5 in the error band of the timing)" in (
        report.verdict.summary
    )


# --------------------------------------------------------------------------------------------- provenance


TOLD = Provenance(
    Origin(Knowledge.ESTIMATED, "a data sheet"),
    Origin(Knowledge.ASSUMED, "another model's", date(2026, 11, 22)),
    Origin(Knowledge.MEASURED, "trace.csv"),
)


def test_a_report_says_how_its_inputs_are_known() -> None:
    found = to_document(brief_report(model(provenance=TOLD)))
    assert found["inputs"] == {"gpu": "estimated", "timing": "assumed", "workload": "measured"}
    assert found["notes"][0] == (
        "Inputs: gpu estimated (a data sheet); timing assumed (another model's, 2026-11-22); workload measured "
        "(trace.csv)."
    )
    silent = to_document(brief_report(model()))
    assert silent["inputs"] == {"gpu": "stated", "timing": "stated", "workload": "stated"}
    assert not any("Inputs:" in note for note in silent["notes"])


@pytest.mark.parametrize(
    ("parts", "expected"),
    [
        ((Knowledge.ASSUMED,) * 3, "gpu, timing and workload assumed"),
        ((Knowledge.ASSUMED, Knowledge.ESTIMATED, Knowledge.STATED), "timing estimated, gpu assumed"),
        ((Knowledge.MEASURED, Knowledge.ESTIMATED, Knowledge.ESTIMATED), "timing and workload estimated"),
    ],
)
def test_the_first_screen_names_the_parts_that_are_not_sure(
    parts: tuple[Knowledge, ...], expected: str
) -> None:
    assert caveat(model(provenance=Provenance(*map(Origin, parts)))) == expected
    twice = Provenance(*(Origin(part, "an <example>") for part in parts))
    assert caveat(model(provenance=twice)) == f"{expected} (an <example>)"
