"""Traces made from a profile give that profile back; what fitting keeps whatever the trace."""

import math
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tiers import examples

from kvplan.ingest.facts import merged
from kvplan.ingest.trace.fit import binned, compact, moment_errors
from kvplan.ingest.trace.text import traffic_parts
from kvplan.ingest.trace.traffic import Traffic, measure
from kvplan.model import Replica, RequestClass, ServingModel, Timing
from kvplan.profile.reading import parse_profile
from kvplan.simulation.requests import Requests, poisson

# Five standard deviations: with the few thousand figures compared here, one false alarm in about a thousand runs.
SIGMAS = 5.0


@st.composite
def models(draw: st.DrawFn) -> ServingModel:
    """Up to 8 classes of distinct inputs, each with a few decode lengths."""
    inputs = draw(st.lists(st.integers(1, 5000), min_size=1, max_size=8, unique=True))
    classes = []
    for length in sorted(inputs):
        decode = sorted(draw(st.lists(st.integers(1, 800), min_size=1, max_size=12, unique=True)))
        weights = [draw(st.sampled_from([1.0, 2.0, 5.0])) for _ in decode]
        rate = draw(st.sampled_from([0.5, 1.0, 4.0]))
        classes.append(RequestClass(f"input {length}", length, tuple(decode), tuple(weights), rate))
    return ServingModel(tuple(classes), Timing(0.01), Replica(10**6))


def recorded(requests: Requests, folder: str) -> Path:
    path = Path(folder, "trace.csv")
    columns = (requests.arrival_s, requests.input_tokens, requests.decode_tokens)
    rows = zip(*(column.tolist() for column in columns), strict=True)
    path.write_text("time,input,output\n" + "".join(f"{t},{i},{o}\n" for t, i, o in rows))
    return path


def fit_of(requests: Requests) -> Traffic:
    with TemporaryDirectory() as folder:
        return measure(recorded(requests, folder))


@given(models(), st.integers(0, 2**32 - 1))
def test_a_trace_of_a_profile_gives_it_back_within_chance(model: ServingModel, seed: int) -> None:
    n = 4000
    made = poisson(model, np.random.default_rng(seed), requests=n, horizon_s=None)
    traffic = fit_of(made)
    assert traffic.rate_rps == pytest.approx(model.total_rate_rps, rel=SIGMAS / math.sqrt(n))
    found = {c.input_tokens: c for c in binned(traffic)}
    for c in model.classes:
        share = c.rate_rps / model.total_rate_rps
        deviation = math.sqrt(share * (1 - share) / n)
        mine = found[c.input_tokens]
        assert abs(mine.rate_rps / traffic.rate_rps - share) <= SIGMAS * deviation + 1e-9
        seen = dict(zip(mine.decode_tokens, mine.decode_weights, strict=True))
        assert set(seen) <= set(c.decode_tokens)
        drawn, weights = sum(seen.values()), sum(c.decode_weights)
        for length, weight in zip(c.decode_tokens, c.decode_weights, strict=True):
            p = weight / weights
            assert abs(seen.get(length, 0) / drawn - p) <= SIGMAS * math.sqrt(p * (1 - p) / drawn) + 5 / drawn


@st.composite
def traces(draw: st.DrawFn) -> Traffic:
    seed, size = draw(st.integers(0, 2**32 - 1)), draw(st.integers(2, 3000))
    rng = np.random.default_rng(seed)
    spread = draw(st.floats(0.1, 1.0))
    inputs = np.minimum(rng.lognormal(6, spread, size) + 1, 100_000).astype(int)
    decode = np.minimum(rng.lognormal(5, spread, size) + 1, 5_000).astype(int)
    times = np.arange(size) / 4
    return fit_of(Requests(times, inputs, decode, np.zeros(size, dtype=np.int64)))


@given(traces())
def test_bins_keep_rate_means_footprint_and_variance(traffic: Traffic) -> None:
    classes = binned(traffic)
    assert len(classes) <= 8
    assert all(len(c.decode_tokens) <= 50 for c in classes)
    assert len({c.name for c in classes}) == len(classes)
    model = ServingModel(classes, Timing(0.01), Replica(10**7))
    mix = model.mix
    assert model.total_rate_rps == pytest.approx(traffic.rate_rps)
    assert mix.share @ mix.input_tokens == pytest.approx(traffic.mean_input, abs=0.5)
    assert mix.share @ mix.decode_tokens == pytest.approx(traffic.mean_decode, abs=0.5)
    footprint, variance = moment_errors(traffic, classes, model)
    assert abs(footprint) < 0.02
    assert abs(variance) < 0.08


@examples(10)
@given(traces(), st.integers(1, 30))
def test_compact_classes_are_few_fixed_and_together_the_trace(traffic: Traffic, k: int) -> None:
    classes = compact(traffic, k)
    assert len(classes) == min(k, traffic.count.size)
    assert all(len(c.decode_tokens) == 1 for c in classes)
    assert len({c.name for c in classes}) == len(classes)
    mix = ServingModel(classes, Timing(0.01), Replica(10**7)).mix
    assert mix.rate_rps.sum() == pytest.approx(traffic.rate_rps)
    assert mix.share @ mix.input_tokens == pytest.approx(traffic.mean_input, abs=0.5)
    assert mix.share @ mix.decode_tokens == pytest.approx(traffic.mean_decode, abs=0.5)


@examples(10)
@given(traces())
def test_what_is_written_reads_back(traffic: Traffic) -> None:
    base = parse_profile(
        b"""# about the file
schema = 1
name = "base"
plan = { delta = 0.5, horizon = "2 h" }

# measured yesterday
[gpu]
memory_tokens = 10_000_000  # from the log
# [not] a table
prefill = "inline"

# traffic of yesteryear
[[classes]]
name = "yesteryear"
input = 1
decode = 1
rate = 1.0

[timing]
d0 = "10 ms"

[gate]
require = ["load.headroom >= 0.2"]
""",
        "base.toml",
    )
    classes = binned(traffic)
    fitted = merged(base, traffic_parts(traffic, classes, base.model), source="x")
    assert parse_profile(fitted.text.encode(), "again").model == fitted.model
    assert (fitted.plan, fitted.requirements) == (base.plan, base.requirements)
    assert (fitted.model.replica, fitted.model.timing) == (base.model.replica, base.model.timing)
    for c, written in zip(classes, fitted.model.classes, strict=True):
        assert (c.name, c.input_tokens, c.decode_tokens) == (
            written.name,
            written.input_tokens,
            written.decode_tokens,
        )
        assert written.rate_rps == pytest.approx(c.rate_rps, rel=1e-5)
    assert "yesteryear" not in fitted.text
    again = merged(fitted, traffic_parts(traffic, classes, fitted.model), source="x")
    assert (again.name, again.model) == (fitted.name, fitted.model)
    assert max(map(len, fitted.text.partition("schema")[0].splitlines())) <= 120


def test_tables_are_kept_with_their_comments_where_they_stand_for_themselves() -> None:
    """The comment above a table belongs to it, the one above the classes goes with them."""
    base = parse_profile(
        b"""schema = 1
name = "base"

# from the log
[gpu]
memory_tokens = 10_000  # 625 blocks

[timing]  # calibrated
d0 = "10 ms"

# yesteryear traffic
[[classes]]
name = "yesteryear"
input = 1
decode = 1
rate = 1.0
""",
        "base.toml",
    )
    requests = Requests(np.arange(3.0), np.array([5, 5, 6]), np.array([7, 8, 9]), np.zeros(3, dtype=np.int64))
    traffic = fit_of(requests)
    text = merged(base, traffic_parts(traffic, binned(traffic), base.model), source="x").text
    kept = '# from the log\n[gpu]\nmemory_tokens = 10_000  # 625 blocks\n\n[timing]  # calibrated\nd0 = "10 ms"\n'
    assert kept in text
    assert "yesteryear" not in text
