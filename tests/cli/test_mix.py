"""`kvplan mix`: SIC's mixing experiments, and that text, Markdown and JSON say what the search and simulator found."""

import math
import operator
from pathlib import Path

import numpy as np
import pytest
import slow_simulator
from command import Run, document
from every import every

from kvplan.analysis.mixing import compare, place
from kvplan.analysis.pool import pool, subset
from kvplan.analysis.worst_cycle import CycleKind
from kvplan.decide import mixing as deciding
from kvplan.decide.mixing import Comparison, placements_compared
from kvplan.layout.mixing import build, notes
from kvplan.model import Plan, Prefill, Replica, RequestClass, ServingModel, Timing
from kvplan.profile.reading import parse_profile
from kvplan.simulation.experiments.load import Arrivals, Load
from kvplan.simulation.experiments.options import chosen
from kvplan.simulation.experiments.pools import Pooled, Runs, arrivals, measure
from kvplan.simulation.experiments.study import study
from kvplan.simulation.requests import Requests
from kvplan.units import format_percent

COMMAND = ["mix"]

PROFILE = """
schema = 1
name = "tiers"
[gpu]
memory_tokens = 4_000
prefill = "disaggregated"
[timing]
d0 = "10 ms"
[[classes]]
name = "short"
input = 100
decode = 4
rate = 40.0
[[classes]]
name = "long"
input = 100
decode = 6
rate = 20.0
[[classes]]
name = "odd"
input = 100
decode = 5
rate = 30.0
"""
SMALL = ["--requests", "600", "--seeds", "2"]


@pytest.fixture
def tiers(tmp_path: Path) -> str:
    path = tmp_path / "tiers.toml"
    path.write_text(PROFILE)
    return str(path)


# ------------------------------------------------------------------ SIC 6.2, Table 1: {20}, {21} and {100}, {125}


def table_1(
    lengths: tuple[int, int], tokens: int, memory: int, requests: int
) -> list[tuple[float, float, float]]:
    """Evictions, late evictions and requests/s of three devices: one with each class, one with both.

    Inputs, memory and the number of requests are not legible in our copy of the paper. Here: for (20, 21) inputs above
    the smallest stable one, and as many requests as it takes until the beginning, when memory fills at once, is
    forgotten.
    """
    classes = tuple(RequestClass(str(d), tokens, (d,), (1.0,), 1.0) for d in lengths)
    model = ServingModel(classes, Timing(0.0072, 0.124e-6), Replica(memory, prefill=Prefill.FUSED))
    devices = []
    for kept in ((0,), (1,), (0, 1)):
        found = study(
            subset(model, kept), Plan(), Load(Arrivals.SATURATED, requests), chosen(["greedy"], []), [0]
        )
        (result,), evicted = found.results, found.first[0].series.evictions
        assert result.throughput_rps is not None
        late = float(evicted[-1] - evicted[evicted.size // 2])
        devices.append((result.evictions, late, result.throughput_rps))
    return devices


@pytest.mark.parametrize(
    ("lengths", "tokens", "memory", "requests", "least_reduction"),
    [
        pytest.param((20, 21), 1900, 446_464, 100_000, 0.75, marks=pytest.mark.nightly),
        ((100, 125), 600, 200_000, 10_000, 0.15),
    ],
)
def test_mixing_evicts_less_and_serves_more(
    lengths: tuple[int, int], tokens: int, memory: int, requests: int, least_reduction: float
) -> None:
    """SIC prints -94.2 % and -34.0 % evictions, more throughput in both, each device with the same work."""
    one, other, mixed = table_1(lengths, tokens, memory, requests)
    assert mixed[0] < (1 - least_reduction) * (one[0] + other[0]) / 2
    assert mixed[2] > (one[2] + other[2]) / 2  # SegAvg of the paper
    if lengths == (20, 21):  # nearly clean, once the beginning is forgotten
        assert mixed[1] < 0.02 * (one[1] + other[1]) / 2


def test_lengths_20_and_21_are_stable_together_only() -> None:
    """SIC Theorem 3; its inputs must be long enough, 1,848 tokens for these two."""
    classes = tuple(RequestClass(str(d), 2000, (d,), (1.0,), 1.0) for d in (20, 21))
    model = ServingModel(classes, Timing(0.01), Replica(446_464, prefill=Prefill.DISAGGREGATED))
    found = compare(model, 2)
    assert [(g.pool.gcd, g.pool.stable) for g in found.segregated.groups] == [(20, False), (21, False)]
    (group,) = found.best.groups
    assert (group.pool.gcd, group.pool.stable, group.pool.loss) == (1, True, 0.0)


# --------------------------------------------------------------------------------------------- the simulated pools


def test_a_pool_is_what_a_slow_simulator_says_of_one_replica_times_how_many_there_are() -> None:
    model = ServingModel(
        (RequestClass("a", 20, (6,), (1.0,), 3.0),), Timing(0.5, 1e-3), Replica(200, prefill=Prefill.FUSED)
    )
    [found] = measure(model, [Pooled((0,), 3, 60)], Plan(), saturated=True, seeds=[0, 1])
    assert found is not None
    at_once = Requests(np.zeros(60), np.full(60, 20), np.full(60, 6), np.zeros(60, dtype=np.int64))
    slow = slow_simulator.simulate("greedy", at_once, model.timing, model.replica, {})
    # from the completion of the 13th, all of its iteration included, to the last before the queue was empty
    done = sorted(slow.finish_s)
    begin = done[12]
    end = max(t for t in done if t <= max(slow.first_token_s))
    rate = sum(begin < t <= end for t in done) / (end - begin)
    assert found.requests == 180
    assert found.throughput_rps == pytest.approx((3 * rate,) * 2)
    assert found.evictions == pytest.approx((sum(slow.evictions) / 60,) * 2)
    assert found.e2e_s == pytest.approx((float(np.mean(slow.finish_s)),) * 2)


def test_a_class_brings_the_same_requests_into_every_group_and_other_ones_with_another_seed() -> None:
    classes = (
        RequestClass("a", 20, (6, 9), (1.0, 1.0), 3.0),
        RequestClass("b", 10, (2, 3), (1.0, 2.0), 1.0),
    )
    model = ServingModel(classes, Timing(0.5, 1e-3), Replica(200))
    alone, both = Pooled((1,), 1, 400), Pooled((0, 1), 2, 900)
    one = arrivals(subset(model, (1,)), alone, 0, saturated=False)
    two = arrivals(subset(model, (0, 1), 2), both, 0, saturated=False)
    mine = two.class_index == 1
    count = int(np.count_nonzero(mine))
    assert 150 < count < 300  # a quarter of 900
    assert two.decode_tokens[mine].tolist() == one.decode_tokens[:count].tolist()
    assert two.arrival_s[mine] == pytest.approx(2 * one.arrival_s[:count])  # at half the rate
    assert two.arrival_s.size == 900
    assert np.all(np.diff(two.arrival_s) >= 0)
    at_once = arrivals(subset(model, (0, 1), 2), both, 0, saturated=True)
    assert at_once.class_index.tolist() == two.class_index.tolist()
    assert not at_once.arrival_s.any()
    other = arrivals(subset(model, (1,)), alone, 1, saturated=False)
    assert other.decode_tokens.tolist() != one.decode_tokens.tolist()


def test_a_few_large_requests_count_for_what_they_hold_not_for_one() -> None:
    """Many short and few long: whichever happen to be done, the rate is that of the mix."""
    short = RequestClass("short", 100, (10,), (1.0,), 13_000.0)
    long = RequestClass("long", 5000, (500,), (1.0,), 9.5)
    model = ServingModel((short, long), Timing(0.01), Replica(100_000, prefill=Prefill.FUSED))
    [found] = measure(model, [Pooled((0, 1), 3, 200_000)], Plan(), saturated=True, seeds=[0, 1])
    assert found is not None
    # pulses of period 10: M/Σp(s·d + d(d + 10)/2)
    rates = np.array([13_000.0, 9.5])
    footprint = rates @ np.array([100 * 10 + 10 * 20 / 2, 5000 * 500 + 500 * 510 / 2]) / rates.sum()
    assert np.mean(found.throughput_rps) == pytest.approx(3 * 100_000 / footprint / 0.01, rel=0.03)


# ------------------------------------------------------------------------------------------------------ the choice


def chat_rag_tools() -> ServingModel:
    classes = (
        RequestClass("chat", 800, (50, 250, 600), (0.3, 0.5, 0.2), 9.3),
        RequestClass("rag", 6000, (100, 300), (0.5, 0.5), 3.875),
        RequestClass("tool-call", 1500, (80,), (1.0,), 2.325),
    )
    replica = Replica(
        450_000, block_tokens=16, max_num_seqs=256, max_num_batched_tokens=8192, prefill=Prefill.FUSED
    )
    return ServingModel(classes, Timing(0.02, 0.03e-6, 60e-6), replica)


def test_a_little_loss_in_an_iteration_does_not_outweigh_headroom() -> None:
    """Apart from chat, retrieval and tools lose a little less in an iteration; a replica is then nearly full."""
    found = placements_compared(chat_rag_tools(), Plan(), 3, requests=9_000, seeds=[0, 1])
    assert [g.classes for g in found.best.placement.groups] == [(0, 1, 2)]
    parted = place((0b001, 0b110), 3, lambda mask: pool(subset(chat_rag_tools(), MEMBERS[mask])))
    assert found.best.placement.score.headroom > parted.score.headroom + 0.1


MEMBERS = {0b001: (0,), 0b110: (1, 2)}


def two_that_are_near(**runs: tuple[float, float]) -> Comparison:
    """Two like classes that the formulas cannot tell apart, on two replicas; saturated, replicas serve what is said.

    The group of both is first by the formulas: the first of equals.
    """

    def measured(model: ServingModel, groups: list[Pooled], *_: object, **__: object) -> list[Runs]:
        return [Runs(9, runs["".join("ab"[i] for i in g.classes)], (1.0, 1.0), (0.0, 0.0)) for g in groups]

    classes = tuple(RequestClass(name, 30, (1,), (1.0,), 10.0) for name in "ab")
    model = ServingModel(classes, Timing(0.01), Replica(10_000, prefill=Prefill.DISAGGREGATED))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(deciding, "measure", measured)
        return placements_compared(model, Plan(), 2, requests=None, seeds=[0, 1])


@every(
    ("runs", "groups"),
    [
        # more of the 20 offered is served, on average over the seeds
        ({"ab": (16.0, 22.0), "a": (9.0, 12.0), "b": (10.0, 10.0)}, [(0,), (1,)]),
        ({"ab": (18.0, 22.0), "a": (8.0, 9.0), "b": (99.0, 99.0)}, [(0, 1)]),
        # the same is served: more to spare where there is least
        ({"ab": (22.0, 22.0), "a": (11.5, 11.0), "b": (99.0, 99.0)}, [(0,), (1,)]),
        ({"ab": (24.0, 22.0), "a": (11.0, 11.0), "b": (99.0, 99.0)}, [(0, 1)]),
        # the same in everything: what the formulas have first
        ({"ab": (22.0, 22.0), "a": (11.0, 11.0), "b": (11.0, 11.0)}, [(0, 1)]),
    ],
)
def test_what_the_formulas_do_not_tell_apart_is_decided_by_simulation(
    runs: dict[str, tuple[float, float]], groups: list[tuple[int, ...]]
) -> None:
    found = two_that_are_near(**runs)
    assert found.mixing.near_count == 2
    assert [g.classes for g in found.best.placement.groups] == groups
    said = any(
        note.startswith("By the formulas alone the best is a, b on 2 replicas") for note in notes(found)
    )
    assert said == (groups != [(0, 1)])
    for other in (found.segregated, found.mixed):
        assert found.best.simulated is not None
        assert other.simulated is not None
        assert found.best.simulated.key <= other.simulated.key


def test_a_placement_with_more_beyond_capacity_is_not_chosen_for_its_simulation(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Mixed leaves nothing unserved by the formulas, segregated a tenth; whatever the simulation makes of them."""

    def measured(model: ServingModel, groups: list[Pooled], *_: object, **__: object) -> list[Runs]:
        return [
            Runs(9, (50.0 if len(g.classes) == 2 else 200.0,) * 2, (1.0,) * 2, (0.0,) * 2) for g in groups
        ]

    monkeypatch.setattr(deciding, "measure", measured)
    classes = (RequestClass("a", 100, (2,), (1.0,), 40.0), RequestClass("b", 100, (2,), (1.0,), 240.0))
    model = ServingModel(classes, Timing(0.01), Replica(400, prefill=Prefill.DISAGGREGATED))
    found = placements_compared(model, Plan(), 2, requests=None, seeds=[0, 1])
    assert found.best.placement == found.mixing.mixed
    (note,) = (note for note in notes(found) if "not chosen" in note)
    assert note.startswith("Segregated serves more in simulation")


# ---------------------------------------------------------------------------------------------------- the command


def test_json_has_the_three_placements_and_what_they_are_worth(run: Run, tiers: str) -> None:
    found = document(run, tiers, "--replicas", "3", *SMALL)
    assert found["schema_version"] == 1
    assert found["search"] == {"method": "exact", "partitions": 5, "complete": True, "near_count": 1}
    assert found["simulated"] == {"policy": "greedy", "seeds": [0, 1]}
    apart, mixed, best = found["placements"]
    assert [p["name"] for p in found["placements"]] == ["segregated", "mixed", "best"]
    assert [g["classes"] for g in apart["groups"]] == [["short"], ["long"], ["odd"]]
    assert [g["gcd"] for g in apart["groups"]] == [4, 6, 5]
    # one class alone loses (d - 1)/(2(s + d))
    losses = [3 / 208, 5 / 212, 4 / 210]
    assert [g["worst_cycle"]["loss"] for g in apart["groups"]] == pytest.approx(losses)
    rates, lengths = [40.0, 20.0, 30.0], [4, 6, 5]
    worst = [4000 / (d * (100 + d)) / 0.01 for d in lengths]
    assert apart["worst_served_rps"] == pytest.approx(sum(map(min, rates, worst)))
    assert apart["worst_headroom"] == pytest.approx(min(x / r for x, r in zip(worst, rates, strict=True)) - 1)
    (group,) = mixed["groups"]
    assert (group["classes"], group["replicas"], group["gcd"]) == (["short", "long", "odd"], 3, 1)
    assert best["worst_served_rps"] >= max(apart["worst_served_rps"], mixed["worst_served_rps"])
    for placement in found["placements"]:
        low, high = placement["simulated"]["headroom"]["ci95"] or (
            -math.inf,
            math.inf,
        )  # of one length no chance
        assert low <= placement["simulated"]["headroom"]["mean"] <= high
        served = [g["simulated"]["saturated"]["throughput_rps"]["mean"] for g in placement["groups"]]
        offered = [g["offered_rps"] for g in placement["groups"]]
        # far from overloaded: no seed serves less than is offered
        assert placement["simulated"]["served_rps"]["mean"] == pytest.approx(sum(map(min, offered, served)))
        evictions = [g["simulated"]["saturated"]["evictions"]["mean"] for g in placement["groups"]]
        weighted = sum(map(operator.mul, offered, evictions)) / sum(offered)
        assert placement["simulated"]["saturated"]["evictions"]["mean"] == pytest.approx(weighted)
        requests = sum(g["simulated"]["saturated"]["requests"] for g in placement["groups"])
        assert requests == pytest.approx(600, abs=3)
    shown = [[g["classes"] for g in p["groups"]] for p in found["contenders"]]
    assert [g["classes"] for g in best["groups"]] in shown


def test_changes_by_one_are_of_the_best_placement(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "two.toml"
    path.write_text(PROFILE.rpartition("[[classes]]")[0])  # without the odd class
    found = document(run, str(path), "--replicas", "1", "--no-simulate")
    assert found["simulated"] is None
    assert found["placements"][2]["simulated"] is None
    assert {(c["class"], c["decode"]["from"], c["decode"]["to"]) for c in found["diversification"]} == {
        ("short", 4, 3),
        ("short", 4, 5),
        ("long", 6, 5),
        ("long", 6, 7),
    }
    first = found["diversification"][0]
    assert first["stable"]
    assert first["loss"] == 0.0
    by_hand = parse_profile(
        path.read_text().replace("decode = 6", f"decode = {first['decode']['to']}").encode(), "two.toml"
    ).model
    assert first["class"] == "long"
    assert first["spectral_radius"] == pool(by_hand).spectral_radius


def test_text_and_markdown_say_what_the_json_says_and_the_same_again(
    run: Run, tiers: str, tmp_path: Path
) -> None:
    found = document(run, tiers, "--replicas", "2", *SMALL)
    code, text, _ = run(tiers, "--replicas", "2", *SMALL)
    assert code == 0
    assert format_percent(found["placements"][0]["headroom"], signed=True) in text
    path = tmp_path / "mix.md"
    assert run(tiers, "--replicas", "2", *SMALL, "--format", "markdown", "-o", str(path)) == (0, "", "")
    assert "Segregated: neighbours in decode length together" in path.read_text("utf-8")
    assert run(tiers, "--replicas", "2", *SMALL)[1] == text


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--replicas", "0"], "--replicas 0: 1 to 1,000,000"),
        (["--replicas", "2", "--seeds", "1"], "--seeds 1: at least 2"),
        (["--replicas", "2", "--requests", "0"], "--requests 0: 1 to"),
        (["--replicas", "2", "--requests", "9", "--no-simulate"], "--requests goes with --simulate only"),
        ([], "--replicas"),
    ],
)
def test_bad_usage_is_one_line(run: Run, tiers: str, arguments: list[str], message: str) -> None:
    code, out, err = run(tiers, *arguments)
    assert (code, out) == (2, "")
    assert message in err
    assert err.count("\n") == 1


def test_an_overloaded_cluster_is_told_so(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "overloaded.toml"
    path.write_text(PROFILE.replace("rate = 40.0", "rate = 4000.0"))
    found = document(run, str(path), "--replicas", "2", "--no-simulate")
    assert all(p["unserved"] > 0 for p in found["placements"])
    code, text, _ = run(str(path), "--replicas", "2", "--no-simulate")
    assert code == 0
    assert "of the requests are more than these replicas can serve" in " ".join(text.split())


def test_a_schedule_is_left_out_and_a_note_says_so(run: Run, tiers: str, tmp_path: Path) -> None:
    path = tmp_path / "day.toml"
    path.write_text(
        PROFILE.replace(
            "[[classes]]",
            '[workload]\nperiod = "1 h"\nschedule = [{ at = "0 s", factor = 3 }, '
            '{ at = "30 min", factors = { long = 0.5 } }]\n[[classes]]',
            1,
        )
    )
    plain = document(run, tiers, "--replicas", "2", *SMALL)
    found = document(run, str(path), "--replicas", "2", *SMALL)
    (note,) = set(found["notes"]) - set(plain["notes"])
    assert note.startswith("The schedule of the profile is left out")
    assert found["placements"] == plain["placements"]


def test_notes_tell_of_runs_that_could_not_be_ended_and_of_cycles_that_did_not_settle(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def measured(model: ServingModel, groups: list[Pooled], *_: object, **__: object) -> list[Runs | None]:
        return [None if g.classes == (1,) else Runs(3, (99.0, 99.0), (1.0, 1.0), (0, 0)) for g in groups]

    monkeypatch.setattr(deciding, "measure", measured)
    model = parse_profile(PROFILE.encode(), "tiers.toml").model
    found = placements_compared(model, Plan(), 3, requests=600, seeds=[0, 1])
    assert found.segregated.simulated is None
    assert any("could not be ended" in note for note in notes(found))
    assert not any("not always settled" in note for note in notes(found))
    assert build(found, "x").key == "mix"
    group = found.best.placement.groups[0]
    restless = group._replace(pool=group.pool._replace(kind=CycleKind.SIMULATED, settled=False))
    best = found.best._replace(placement=found.best.placement._replace(groups=(restless,)))
    said = notes(found._replace(best=best))
    assert any("not always settled" in note for note in said)


def test_the_table_of_the_documentation_is_what_the_command_finds(run: Run) -> None:
    page = (Path(__file__).resolve().parents[2] / "docs" / "planning.md").read_text(encoding="utf-8")
    apart, mixed, best = document(run, "two-tier-100-125", "--replicas", "2")["placements"]
    assert best["groups"] == mixed["groups"]
    gcds = "; ".join(str(g["gcd"]) for g in apart["groups"])
    assert f"| gcd | {gcds} | {mixed['groups'][0]['gcd']} |" in page
    for label, values in (
        ("headroom, tightest group", [p["headroom"] for p in (apart, mixed)]),
        ("headroom in the worst state, by the formulas", [p["worst_headroom"] for p in (apart, mixed)]),
        ("headroom saturated, simulated", [p["simulated"]["headroom"]["mean"] for p in (apart, mixed)]),
    ):
        assert "| {} | {:+.1%} | {:+.1%} |".format(label, *values) in page
