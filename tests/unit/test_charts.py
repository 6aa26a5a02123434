"""Charts: what is in them against what is reported, and their drawings: nothing is cut, nothing is missing."""

import re
import xml.etree.ElementTree as ET
from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from measured import brief_report
from shipped import profile

import kvplan
from kvplan.model import Plan
from kvplan.model.slo import parse_slo
from kvplan.planning.host_memory import Tier
from kvplan.show import charts, svg
from kvplan.show.chart import Axis, Chart, Line, Patch
from kvplan.show.sweeps import of_sweep
from kvplan.study.goodput import at_rate
from kvplan.study.operating_point import operating_point
from kvplan.sweeps.definition import define

SVG = "{http://www.w3.org/2000/svg}"
NAME = "tool-calls-h100"


def chart(labels: list[str], *, right: str | None = None) -> Chart:
    at = np.array([1.0, 2.0, 3.0])
    lines = [
        Line(label, at, at + i, "blue", style)
        for i, (label, style) in enumerate(zip(labels, "abc" * 9, strict=False))
    ]
    patch = Patch("zone", np.array([[1.0, 1.0, 2.0, 2.0]]), "red")
    x, y = Axis("offered, requests/s", 0.0, 3.0), Axis("served", 0.0, 9.0)
    return Chart("A title", "A caption.", x, y, lines, [patch], None if right is None else (right, 2.0))


def boxes(text: str) -> Iterator[tuple[str, float, float, float]]:
    """Every text of a drawing with its ends and its base line, in units of the view box."""
    for found in ET.fromstring(text).iter(f"{SVG}text"):
        label, x = found.text or "", float(found.attrib["x"])
        width = float(found.get("textLength", svg.text_width(label)))
        before = {"start": 0.0, "middle": 0.5, "end": 1.0}[found.attrib["text-anchor"]] * width
        yield label, x - before, x - before + width, float(found.attrib["y"])


def overlap(one: tuple[str, float, float, float], other: tuple[str, float, float, float]) -> bool:
    return abs(one[3] - other[3]) < 8 and one[1] < other[2] - 0.1 and other[1] < one[2] - 0.1


LABELS = st.lists(st.text(st.characters(min_codepoint=32, max_codepoint=0x3FFF), max_size=90), max_size=9)


@given(LABELS, st.none() | st.text("abcXYZ 1", min_size=1, max_size=80))
def test_every_text_is_inside_complete_and_by_itself(labels: list[str], right: str | None) -> None:
    drawn = svg.file([chart(labels, right=right)])
    found = list(boxes(drawn))
    assert all(left >= -0.1 and end <= svg.WIDTH + 0.1 for _, left, end, _ in found)
    assert not [
        pair for i, one in enumerate(found) for pair in [(one, o) for o in found[:i]] if overlap(*pair)
    ]
    shown = [label for label, *_ in found]
    wanted = [svg._CONTROL.sub("\N{REPLACEMENT CHARACTER}", label) for label in [*labels, "zone"] if label]
    assert sorted(label for label in shown if label in wanted) == sorted(wanted)


numbers = st.floats(1e-9, 1e9)


@given(numbers, st.floats(1.001, 1e6), st.booleans(), st.integers(3, 8))
def test_ticks_are_few_round_and_on_the_axis(low: float, times: float, log: bool, most: int) -> None:
    axis = Axis("", low, low * times, log)
    ticks = axis.ticks(most)
    assert 1 <= len(ticks) <= most
    assert ticks == sorted(set(ticks))
    assert all(low * (1 - 1e-9) <= tick <= low * times * (1 + 1e-9) for tick in ticks)
    assert all(
        f"{tick:.12e}".split("e")[0].rstrip("0") == f"{tick:.6e}".split("e")[0].rstrip("0") for tick in ticks
    )


def test_a_line_is_drawn_where_its_points_are() -> None:
    drawn = chart(["one"])
    text = svg.file([drawn])
    plot = next(found for found in ET.fromstring(text).iter(f"{SVG}svg") if "overflow" in found.attrib)
    width, height = float(plot.attrib["width"]), float(plot.attrib["height"])
    path = [found.attrib["d"] for found in plot.iter(f"{SVG}path")][-1]
    points = [tuple(map(float, point.split())) for point in re.findall(r"[ML]([\d.]+ [\d.]+)", path)]
    assert [round(3 * x / width, 1) for x, _ in points] == [1, 2, 3]
    assert [round(9 * (1 - y / height), 1) for _, y in points] == [1, 2, 3]


# ------------------------------------------------------------------------------------------------- reports


def test_latency_against_load_has_goodput_and_objectives_and_the_figures_of_the_simulator() -> None:
    given = profile(NAME)
    plan = Plan(slos=(parse_slo("ttft_s.p95 <= 60 ms"), parse_slo("e2e_s.p90 <= 9 s")))
    found = brief_report(given.model, plan)
    throughput, *latencies = charts.of_report(found, given.model, plan)
    assert throughput.title == "Throughput against load"
    assert [drawn.title for drawn in latencies] == [f"{time} against load" for time in ("TTFT", "ITL", "E2E")]
    assert found.goodput is not None
    for drawn, limit in zip(latencies, (0.06, None, 9.0), strict=True):
        lines = {line.label: line for line in drawn.lines}
        assert lines["goodput"].x.tolist() == [found.goodput.rate_rps] * 2
        assert lines["offered"].x.tolist() == [45.0] * 2
        levels = [line.y[0] for label, line in lines.items() if "at most" in label]
        assert levels == ([] if limit is None else [limit])
        assert all(np.all(line.x <= drawn.x.high) for line in lines.values())
        for percentile, line in lines.items():
            if percentile.startswith("p") and "most" not in percentile:
                assert drawn.y.low < line.y.min() <= line.y.max() < drawn.y.high
                assert line.y[-1] > line.y[0]
    ttft = {line.label: line for line in latencies[0].lines}["p95"]
    at = float(ttft.x[4])
    assert ttft.y[4] == pytest.approx(
        operating_point(at_rate(given.model, at), plan).latency.ttft_s.p95, rel=0.2
    )
    # goodput is where the curve of the objective crosses its limit
    binding = {"ttft_s.p95": (latencies[0], "p95", 0.06), "e2e_s.p90": (latencies[2], "p90", 9.0)}
    drawn, percentile, limit = binding[found.goodput.binding]
    line = {line.label: line for line in drawn.lines}[percentile]
    beyond = line.x[line.y > limit].min()
    assert line.x[line.y <= limit].max() * 0.9 <= found.goodput.rate_rps <= beyond * 1.1


# -------------------------------------------------------------------------------------------------- sweeps


def test_a_border_is_between_all_cells_that_differ_and_nowhere_else() -> None:
    sweep = define(
        kvplan.load(NAME),
        ["gpu.memory_tokens=100k,200k,300k", "classes[0].rate=10,20,30,40"],
        columns=["verdict.status", "load.headroom"],
    )
    status = ["stable", "stable", "needs_cap", "overloaded"] * 2 + ["stable", "stable", None, "overloaded"]
    figures = [None, *range(1, 12)]
    (drawn,) = of_sweep(sweep, {"verdict.status": status, "load.headroom": figures})
    assert (drawn.x.label, drawn.y.label) == ("classes[0].rate", "gpu.memory_tokens")
    lines = {line.label: line for line in drawn.lines}
    capped, overloaded = lines["beyond: needs cap"], lines["beyond: overloaded"]
    assert np.isnan(capped.x[2::3]).all()
    assert set(capped.x[~np.isnan(capped.x)]) == {25.0}
    assert sorted(set(capped.y[~np.isnan(capped.y)])) == [100e3, 150e3, 250e3]  # the third row is not known
    assert set(overloaded.x[~np.isnan(overloaded.x)]) == {35.0}
    # all cells but the one without a figure are covered, once
    covered = np.concatenate([patch.boxes for patch in drawn.patches])
    area = ((covered[:, 2] - covered[:, 0]) * (covered[:, 3] - covered[:, 1])).sum()
    assert area == pytest.approx(30 * 200e3 - 5 * 50e3)
    assert len(np.unique(covered, axis=0)) == 11


def test_host_memory_is_drawn_with_its_rates_hits_and_replicas() -> None:
    tiers = [
        Tier(0.0, 3, 0.5, 12.0, 8.0, 6.0),
        Tier(50.0, 2, 0.5, 12.0, 8.0, 6.0),
        Tier(100.0, 1, 0.8, 20.0, 8.0, 4.0),
    ]
    beyond = Tier(150.0, 1, None, 22.0, 8.0, 4.0)
    drawn = charts._host_memory(tiers, [*tiers, beyond])
    assert drawn.right == ("share of prompts found", pytest.approx(24.2))
    lines = {line.label: (line.x.tolist(), line.y.tolist()) for line in drawn.lines}
    assert lines["guaranteed"] == ([0.0, 50.0, 100.0, 150.0], [8.0, 8.0, 8.0, 8.0])
    assert lines["with a warm cache"][1] == [12.0, 12.0, 20.0, 22.0]
    assert lines["found, on the right"][1] == pytest.approx([12.1, 12.1, 19.36, np.nan], nan_ok=True)
    assert lines["2 replicas with 50 GiB"] == ([50.0, 50.0], [0.0, pytest.approx(24.2)])
    assert lines["1 replica with 100 GiB"] == ([100.0, 100.0], [0.0, pytest.approx(24.2)])
    assert len({(line.colour, line.style) for line in drawn.lines}) == len(drawn.lines) == 5
    svg.file([drawn])
