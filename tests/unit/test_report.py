"""The report: its contract key by key, and the rules for verdict, kinds and nulls (product.md)."""

import json
import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import jsonschema  # type: ignore[import-untyped]
import pytest
from contract import BLOCKS, KEYS, keys_of
from every import every
from hypothesis import given
from strategies import mix_model, models

from kvplan.model import Plan, ServingModel, Timing
from kvplan.model.drafts import Drafts
from kvplan.model.fleet import Fleet
from kvplan.model.kv_layout import Attention, KvLayout, Layers
from kvplan.report.assembly import Analyses, analyze, to_document
from kvplan.report.keys import json_schema
from kvplan.version import __version__

SCHEMA = jsonschema.Draft202012Validator(json_schema())


def document(model: ServingModel) -> dict[str, Any]:
    return to_document(analyze(model, name="a test", sha256="0" * 64))


def scalars(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Every leaf of a document with its path."""
    if isinstance(value, dict):
        for key, item in value.items():
            yield from scalars(item, f"{path}.{key}".lstrip("."))
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from scalars(item, f"{path}[{index}]")
    else:
        yield path, value


def test_the_keys_are_those_of_the_contract() -> None:
    """Key for key, in its order at the top, nothing beside it."""
    found = document(mix_model((5, 3, 1.0), (7, 4, 1.0), memory=1200))
    assert list(found) == BLOCKS
    assert keys_of(found) == set(KEYS)
    assert found["schema_version"] == 2
    assert found["kvplan_version"] == __version__
    assert found["profile"] == {"name": "a test", "sha256": "0" * 64}
    assert set(found["sources"]) == {*BLOCKS[3:-2]} - {"inputs"}
    for source in found["sources"].values():
        assert set(source) == {"source", "kind"}
        assert source["kind"] in {"theorem", "computed", "simulated", "assumption"}
    assert found["notes"]
    for block in ("equilibrium", "worst_cycle", "rate_cap", "wait"):
        assert [c["name"] for c in found[block]["classes"]] == ["class 0", "class 1"]


def check_rules(model: ServingModel) -> None:
    found = document(model)
    load, cycle, local, full = (found[k] for k in ("load", "worst_cycle", "stability", "saturation"))
    assert json.loads(json.dumps(found, allow_nan=False)) == found
    SCHEMA.validate(found)
    for path, value in scalars(found):
        assert value is None or type(value) in (str, bool, int, float), path
        assert not isinstance(value, float) or math.isfinite(value), path

    # the verdict
    overloaded = load["offered_rps"] > load["sustainable_rps"]
    recovers = found["verdict"]["recovers_up_to_rps"]
    assert 0 <= recovers <= load["sustainable_rps"]
    expected = "overloaded" if overloaded else "stable" if load["offered_rps"] <= recovers else "needs_cap"
    assert found["verdict"]["status"] == expected
    assert found["verdict"]["binding"] in {"kv_memory", "compute", "max_num_seqs", "max_num_batched_tokens"}
    assert overloaded == (load["headroom"] is not None and load["headroom"] < 0)

    # the equilibrium exists where Λ < 1
    numbers = [v for path, v in scalars(found["equilibrium"]) if not path.endswith("name")]
    assert all(v is None for v in numbers) if load["work_rate"] >= 1 else None not in numbers

    # the cycle
    zone = cycle["danger_zone_rps"]
    assert zone == ([recovers, load["sustainable_rps"]] if recovers < load["sustainable_rps"] else None)
    if cycle["kind"] == "none":
        assert (cycle["loss"], cycle["evictions_per_iteration"], cycle["period"]) == (0, 0, None)
        assert cycle["throughput_per_iteration"] == full["admissions_per_iteration"]
    inline = model.replica.prefill == "inline"
    lengths = {d + inline for c in model.classes for d in c.decode_tokens}
    no_eviction = (
        model.replica.max_num_seqs is not None
        and model.replica.block_tokens == 1
        and model.replica.max_num_seqs * max(c.max_tokens for c in model.classes)
        <= model.replica.memory_tokens
    )
    block, first = model.replica.block_tokens, 0 if inline else 1
    constant = all(  # no request takes another page
        -(-(c.input_tokens + first) // block) == -(-c.max_tokens // block) for c in model.classes
    )
    if constant or no_eviction:
        assert cycle["kind"] == "none"
    elif len(lengths) == 1 and model.replica.max_num_seqs is None:
        assert cycle["kind"] == "homogeneous"

    # stability
    assert local["gcd"] == math.gcd(*lengths)
    if local["gcd"] > 1:
        assert local["min_stable_input_tokens"] == {"exact": None, "asymptotic": None}
    if lengths == {1}:
        assert (local["spectral_radius"], local["stable"], local["unstable_modes"]) == (0, True, 0)
    if local["stable"]:
        assert local["recovery_iterations"] == pytest.approx(1 / (1 - local["spectral_radius"]))
    else:
        assert local["recovery_iterations"] is None

    # the cap
    assert found["rate_cap"]["per_iteration"] == full["admissions_per_iteration"]
    if load["work_rate"] >= 1:
        assert all(c["integer_budget"] is None for c in found["rate_cap"]["classes"])

    # thresholds and the buffer exist where Λ < 1 (1e-12 below for whole thresholds)
    wait, nested, buffer = found["wait"], found["nested_wait"], found["safety_buffer"]
    if load["work_rate"] >= 1:
        assert not wait["feasible"]
        assert not nested["feasible"]
        assert set(buffer.values()) == {None}
    elif load["work_rate"] < 1 - 1e-9:
        assert wait["feasible"]
        assert nested["feasible"]
        parts = [
            nested[f"{part}_kv_tokens"] for part in ("base", "boundary", "high_probability", "input_spread")
        ]
        assert nested["required_kv_tokens"] == pytest.approx(sum(parts), abs=1)
        ups = [segment["upto_decode"] for segment in nested["segments"]]
        assert ups == sorted(set(ups))
        assert ups[-1] == max(c.decode_tokens[-1] for c in model.classes)
        assert nested["segments"][0]["continue_probability"] is None
        assert wait["thresholds"] == [c["threshold"] for c in wait["classes"]]
        assert buffer["overflow_probability_horizon"] >= buffer["overflow_probability_per_iteration"]


@given(models(max_decode=7, max_input=50, max_classes=3, limits=True, more_pages=500))
def test_any_model_gives_a_report_that_keeps_the_rules(model: ServingModel) -> None:
    check_rules(model)


@pytest.mark.usefixtures("brief")
@every("share", [0.5, 0.78, 0.81, 0.99, 1.01, 3.0])
def test_the_verdict_on_one_length_follows_the_danger_zone(share: float) -> None:
    """Input 2, decode 3: below 0.8 of the sustainable rate stable, then needs_cap, beyond it overloaded.

    That is the worst cycle of very many requests; of so many as here, a hundredth less is kept.
    """
    model = mix_model((2, 3, share * 1e2), memory=1200)
    expected = "overloaded" if share > 1 else "needs_cap" if share > 0.8 else "stable"
    assert document(model)["verdict"]["status"] == expected
    check_rules(model)


@pytest.mark.usefixtures("brief")
@pytest.mark.parametrize(("seqs", "kind"), [(100, "none"), (101, "homogeneous")])
def test_a_concurrency_limit_that_fits_memory_rules_out_evictions(seqs: int, kind: str) -> None:
    """100 requests of at most 12 tokens in 1200: nothing can be evicted, greedy admission is safe."""
    model = mix_model((5, 7, 0.1), memory=1200, max_num_seqs=seqs)
    assert document(model)["worst_cycle"]["kind"] == kind
    check_rules(model)


def test_completing_more_short_requests_does_not_make_up_for_starved_long_ones() -> None:
    """Lengths 1 and 10: in all more than n* complete, but of the long class a third of what the equilibrium serves."""
    model = mix_model((0, 1, 1500.0), (0, 10, 1500.0), memory=1000, prefill="fused", timing=Timing(0.01))
    found, n_star = Analyses(model, Plan()), 1000 / 28
    assert found.saturation.admissions_per_iteration == pytest.approx(n_star)
    assert found.worst_cycle.throughput_per_iteration == pytest.approx(20, rel=1e-6)
    assert found.worst_cycle.loss == pytest.approx(1 - 20 / n_star, rel=1e-6)


@pytest.mark.usefixtures("brief")
@pytest.mark.parametrize("beside", ["drafts", "layers"])
def test_nothing_is_promised_of_what_is_not_modelled(beside: str) -> None:
    """Beside drafts and layers of several kinds: Nested WAIT, prefix caching, theorems on plain requests."""
    plain = mix_model((20, 4, 1.0), memory=4000, prefill="fused")
    layers = KvLayout((Layers(Attention.WINDOW, 2, 8, 10), Layers(Attention.FULL, 1, 8)), 1)
    special = {
        "drafts": replace(plain, drafts=Drafts(2, (0.7, 0.5))),
        "layers": replace(plain, replica=replace(plain.replica, layout=layers)),
    }[beside]
    for model, modelled in ((plain, True), (special, False)):
        found = to_document(analyze(model, name="a", sha256=""))
        assert (found["prefix_cache"] is not None) == modelled
        assert found["nested_wait"]["feasible"] == modelled
        assert any("nested_wait: " in note for note in found["notes"]) == modelled
        assert (found["sources"]["load"]["kind"] == "theorem") == modelled
        assert any("Nested WAIT" in note for note in found["notes"]) != modelled


def test_a_fleet_of_one_is_not_one_of_many() -> None:
    model = mix_model((5, 10, 0.1), memory=300)
    begins = {
        n: Analyses(replace(model, fleet=Fleet(replicas=n)), Plan()).verdict.summary.split(",")[0]
        for n in (1, 2)
    }
    assert begins == {1: "The one replica", 2: "One of 2 replicas"}
