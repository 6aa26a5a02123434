"""`analyze --simulate`: figures of the simulator beside the formulas."""

import json
from pathlib import Path

import pytest
from contract import KEYS, keys_of

from kvplan.cli.app import main
from kvplan.layout.elements import Table
from kvplan.layout.report import build
from kvplan.profile.reading import load_profile
from kvplan.report.assembly import analyze
from kvplan.report.formula_check import SEEDS, TOLERANCE, agreement, figures, simulate

NAME = "paper-sic-limit-cycle"


@pytest.fixture(scope="module")
def document(tmp_path_factory: pytest.TempPathFactory) -> dict[str, object]:
    path: Path = tmp_path_factory.mktemp("simulated") / "report.json"
    assert main(["analyze", NAME, "--simulate", "--format", "json", "-o", str(path)]) == 0
    found: dict[str, object] = json.loads(path.read_text())
    return found


def test_only_the_simulation_block_is_new(document: dict[str, object], tmp_path: Path) -> None:
    path = tmp_path / "plain.json"
    assert main(["analyze", NAME, "--format", "json", "-o", str(path)]) == 0
    plain = json.loads(path.read_text())
    assert plain["simulation"] is None
    assert {**document, "simulation": None} == plain
    assert keys_of(plain) == set(KEYS)


def test_the_published_worst_cycle_is_simulated(document: dict[str, object]) -> None:
    """SIC's limit cycle: 40 requests an iteration under greedy admission where 50 are possible."""
    block = document["simulation"]
    assert isinstance(block, dict)
    rows = {row["figure"]: row for row in block["comparison"]}
    greedy = rows["Greedy, saturated, requests an iteration"]
    assert greedy["formula"] == pytest.approx(40)
    assert greedy["simulated"] == pytest.approx(40, rel=0.02)
    capped = rows["Capped, saturated, requests an iteration"]
    assert capped["formula"] == pytest.approx(50)
    assert capped["simulated"] == pytest.approx(50, rel=0.02)
    assert greedy["agrees"] is capped["agrees"] is True
    assert greedy["ci95"] is capped["ci95"] is None  # all are alike: no chance, one run
    assert block["seeds"] == list(range(SEEDS))
    assert [p["policy"] for p in block["policies"]] == ["greedy", "rate-limited"]


def test_a_wide_interval_is_no_agreement() -> None:
    """Within the tolerance counts all that the interval holds, as does beyond it; what is both cannot be told."""
    for formula in (1e-6, 1.0, 3e5):
        near, beyond = formula * (1 + 0.9 * TOLERANCE), formula * (1 + 1.1 * TOLERANCE)
        below = formula * (1 - 1.1 * TOLERANCE)
        factor = 1 + TOLERANCE
        assert agreement(formula, near, formula, factor) is True
        assert agreement(beyond, 2 * beyond, formula, factor) is False
        assert agreement(below / 2, below, formula, factor) is False
        assert agreement(below, beyond, formula, factor) is None
        assert agreement(near, beyond, formula, factor) is None
        assert agreement(beyond, beyond, formula, factor) is False  # without chance: a point


LIMITED = """
schema = 1
name = "limited"
gpu = { memory_tokens = 60_000, block_tokens = 16, max_num_seqs = 32 }
timing = { d0 = "10 ms", d2 = "20 us" }
classes = [{ name = "chat", input = 300, decode = { 40 = 0.5, 160 = 0.5 }, rate = 15 }]
"""


def test_where_max_num_seqs_binds_the_simulator_says_what_the_formulas_do(tmp_path: Path) -> None:
    """32 run at once, for 100 iterations each: 0.32 an iteration, where memory alone would allow for 1.3 or so."""
    path, out = tmp_path / "limited.toml", tmp_path / "out.json"
    path.write_text(LIMITED)
    assert main(["analyze", str(path), "--simulate", "--format", "json", "-o", str(out)]) == 0
    found = json.loads(out.read_text())
    assert found["verdict"]["binding"] == "max_num_seqs"
    assert found["rate_cap"]["per_iteration"] > 1
    rows = {row["figure"]: row for row in found["simulation"]["comparison"]}
    for name in ("Greedy, saturated, requests an iteration", "Capped, saturated, requests an iteration"):
        assert rows[name]["formula"] == pytest.approx(0.32)
        assert rows[name]["agrees"] is True
    for policy in (*found["simulation"]["policies"], *found["simulation"]["saturated"]):
        assert policy["evictions"] == 0
        assert policy["parameters"]["max_num_seqs"] == 32


def test_a_wrong_formula_is_flagged() -> None:
    profile = load_profile(NAME, stdin=None)  # type: ignore[arg-type]
    report = analyze(profile.model, name="n", sha256="")
    wrong = report._replace(worst_cycle=report.worst_cycle._replace(throughput_per_iteration=45.0))
    runs = simulate(profile.model, profile.plan, requests=4000)
    block = figures(wrong, runs, profile.model)
    rows = {row["figure"]: row["agrees"] for row in block["comparison"]}
    assert rows["Greedy, saturated, requests an iteration"] is False
    assert rows["Capped, saturated, requests an iteration"] is True


def test_the_text_says_what_agrees(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["analyze", NAME, "--simulate", "--section", "simulation"]) == 0
    text = capsys.readouterr().out
    assert "\nSimulation  simulated\n" in text
    outcomes = [text.count(f"{word}\n") for word in ("agrees", "differs", "cannot tell")]
    assert sum(outcomes) == 5
    assert outcomes[0] >= 2  # both saturated runs, which nothing disturbs
    assert f"{SEEDS} seeds, of each run the steady part" in " ".join(text.split())
    assert "simulated" not in text.split("Simulation")[0]


def test_a_probability_is_written_alike_in_all_sections() -> None:
    """Of KV above memory: by formula under the safety buffer, and again beside what was simulated."""
    profile = load_profile("tool-calls-h100", stdin=None)  # type: ignore[arg-type]
    found = analyze(profile.model, name="n", sha256="")
    chance = found.safety_buffer.overflow_probability_per_iteration
    assert chance is not None
    assert chance < 1e-12
    runs = simulate(profile.model, profile.plan, requests=50)
    block = figures(found, runs, profile.model)
    shown = {section.key: section for section in build(found._replace(simulation=block)).sections}
    cells = {
        row[0]: row[1]
        for key in ("safety_buffer", "simulation")
        for table in shown[key].blocks
        if isinstance(table, Table)
        for row in table.rows
    }
    assert cells["Overflow, per iteration"] == cells["KV above memory, per iteration"] == "below 1e-12"
