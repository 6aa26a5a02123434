"""How inputs are known, and how far they are asked, in every command that judges or foretells by them."""

import json
from pathlib import Path

import pytest
from command import Done, Run, document
from command import run as inside

TOLD = """\
schema = 1
name = "told"
[provenance]
gpu = "measured"
timing = { basis = "estimated", source = "a data sheet", date = 2026-11-22 }
workload = "measured"
[gpu]
memory_tokens = 20_000
max_num_seqs = 100
[timing]
d0 = "10 ms"
d1 = "0.5 us"
measured = { kv_tokens = [0, 5_000], sequences = [1, 50], band = [0.5, 2] }
[[classes]]
name = "a"
input = 100
decode = 50
rate = 90
"""
FULL = "a full replica 12,550, 2.51 times"  # 100 sequences of 125.5 tokens on average


@pytest.fixture
def told(tmp_path: Path) -> str:
    path = tmp_path / "told.toml"
    path.write_text(TOLD)
    return str(path)


def test_a_requirement_can_be_about_how_an_input_is_known(run: Run, told: str) -> None:
    for wanted, expected in (
        ("inputs.gpu == measured", 0),
        ("inputs.timing == measured", 1),
        ("inputs.timing != assumed", 0),
    ):
        assert run("check", told, "--require", wanted)[0] == expected
    code, _, messages = run("check", told, "--require", "inputs.timing == guessed")
    assert (code, messages.count("\n")) == (2, 1)
    assert "inputs.timing is one of measured, stated, estimated, assumed, never 'guessed'" in messages
    _, text, _ = run("check", told, "--require", "inputs.timing == measured")
    assert "measure it, and say so in [provenance]" in " ".join(text.split())
    assert "times the memory" not in text


def test_check_says_what_a_pass_is_worth(run: Run, told: str) -> None:
    code, text, _ = run("check", told, "--require", "load.headroom >= 0", "--format", "json")
    (found,) = json.loads(text)["profiles"]
    assert code == 0
    inputs, kv, sequences, band, changes = found["notes"]
    assert inputs == "Inputs: gpu measured; timing estimated (a data sheet, 2026-11-22); workload measured."
    assert kv.startswith("The timing is extrapolated: the equilibrium holds ")
    assert kv.endswith(f" times the 5,000 it was measured to; {FULL}.")
    assert sequences.endswith(" times the 50 it was measured to; a full replica 100, 2 times.")
    assert band.startswith("Error band of the timing: iterations took 0.5 to 2 times as long as it says.")
    assert "overloaded beyond" in changes
    for format in ("text", "markdown"):
        shown = run("check", told, "--require", "load.headroom >= 0", "--format", format)[1]
        assert FULL in " ".join(shown.split()).replace("<!-- -->", "")


GATED = """\
schema = 1
name = "gated"
gpu = {{ memory_tokens = 60, prefill = "disaggregated" }}
timing = {{ d0 = "1 s" }}
classes = [{{ name = "a", input = 1, decode = 2, rate = 8 }}]
provenance = {{ timing = {{ basis = "assumed", source = "another's" }}, workload = "assumed" }}
gate = {{ require = ["load.headroom >= 0.25"], accept = {accept} }}
"""


def gated(tmp_path: Path, accept: str) -> str:
    path = tmp_path / "gated.toml"
    path.write_text(GATED.format(accept=accept))
    return str(path)


def test_nothing_passes_on_an_assumption_that_nobody_accepted(run: Run, tmp_path: Path) -> None:
    path = gated(tmp_path, "[]")
    code, _, messages = run("check", path)
    assert (code, messages.count("\n")) == (2, 1)
    assert f"error: {path}:6: provenance.timing: timing and workload are assumed (another's)" in messages
    assert "timing: kvplan import RESULT..., workload: kvplan import REQUESTS" in messages
    assert messages.endswith('accept = ["timing", "workload"], or --accept timing --accept workload\n')
    code, _, messages = run("check", path, "--accept", "timing")
    assert code == 2
    assert "workload is assumed, and" in messages
    assert run("check", path, "--accept", "timing", "--accept", "gpu")[0] == 2


@pytest.mark.parametrize(
    ("accept", "options"), [('["timing", "workload"]', ()), ('["timing"]', ("workload",))]
)
def test_what_is_accepted_passes_and_is_still_said_to_be_assumed(
    accept: str, options: tuple[str, ...], run: Run, tmp_path: Path
) -> None:
    path = gated(tmp_path, accept)
    (found,) = document(run, "check", path, *(word for part in options for word in ("--accept", part)))[
        "profiles"
    ]
    assert found["outcome"] == "passed"
    assert found["notes"] == ["Inputs: gpu stated; timing assumed (another's); workload assumed."]
    assert run("check", path, "--accept", "workload", "--require", "inputs.timing == measured")[0] == 1


def test_a_gate_judges_what_was_measured_or_estimated_for_the_service(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In pipelines: a part that nothing supplied is refused, and what is estimated may pass."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "trace.csv").write_text(
        "time,input,output\n" + "".join(f"{t},100,{20 + t % 7}\n" for t in range(60))
    )
    rows = [(k, p, s) for k in range(0, 20_000, 2_000) for p in (0, 500) for s in (1, 40)]
    (tmp_path / "iterations.csv").write_text(
        "kv_tokens,prefill_tokens,sequences,iteration_ms\n"
        + "".join(f"{k},{p},{s},{10 + k / 1000 + p / 20 + s / 100}\n" for k, p, s in rows)
    )

    def piped(*commands: str) -> tuple[int, str]:
        found = Done([], 0, "", "")
        for command in commands:
            found = inside(*command.split(), input=found.stdout)
        return found.returncode, found.stderr

    check = "check - --require load.headroom>=0"
    code, messages = piped("import iterations.csv", check)
    assert (code, "no [gpu]: kvplan import LOG" in messages, "no [[classes]]" in messages) == (2, True, True)
    model = "import --model Llama-3.1-8B --gpu RTX-4090 trace.csv"
    assert piped(model, check)[0] == 0
    assert piped(model, "import - iterations.csv", check)[0] == 0
    code, messages = piped("init", check)
    assert (code, "gpu, timing and workload are assumed (an example)" in messages) == (2, True)
