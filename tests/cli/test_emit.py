"""`kvplan emit`: what it says of small profiles, checked by other means, and its settings put back into profiles."""

import json
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import slow_simulator
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from strategies import models

from kvplan import __version__
from kvplan.cli import main
from kvplan.engines import Engine, advise
from kvplan.model import Plan, Replica, ServingModel, Timing
from kvplan.profile import parse_profile, shipped_profiles
from kvplan.report import analyze
from kvplan.simulation.paired import Measured, Variant, measure
from kvplan.simulation.requests import Requests

Run = Callable[..., tuple[int, str, str]]

# Some 24 requests of one length in memory, and a prompt takes as long as eight iterations: evicting is dear.
DEAR = """
schema = 1
name = "dear"
[gpu]
memory_tokens = 4_096
block_tokens = 16
max_num_seqs = 64
max_num_batched_tokens = 2048
[timing]
d0 = "10 ms"
d2 = "0.625 ms"
[[classes]]
name = "a"
input = 128
decode = 64
rate = {rate}
"""
SMALL = ["--requests", "300", "--seeds", "2"]


@pytest.fixture
def run(capfd: pytest.CaptureFixture[str]) -> Run:
    def command(*arguments: str) -> tuple[int, str, str]:
        code = main(["emit", *arguments])
        out, err = capfd.readouterr()
        return code, out, "".join(s for s in err.splitlines(True) if "compiling" not in s)

    return command


@pytest.fixture
def dear(tmp_path: Path) -> str:
    path = tmp_path / "dear.toml"
    path.write_text(DEAR.format(rate=5.0))
    return str(path)


def document(run: Run, *arguments: str) -> dict[str, Any]:
    code, text, _ = run(*arguments, "--format", "json")
    assert code == 0
    found: dict[str, Any] = json.loads(text)
    return found


def test_the_gain_of_a_cap_is_that_of_a_slow_simulator(run: Run, dear: str) -> None:
    """300 equal requests at once, by a simulator that shares no code with the one that was used."""
    (cap,) = document(run, dear, "--engine", "vllm", *SMALL)["settings"]
    assert (cap["flag"], cap["block"]) == ("--max-num-active-seqs", "rate_cap.engine_max_num_seqs")
    assert cap["value"] == str(4096 // (128 + 64))

    def rate(most: int) -> float:
        replica = Replica(4096, block_tokens=16, max_num_seqs=most, max_num_batched_tokens=2048)
        at_once = Requests(np.zeros(300), np.full(300, 128), np.full(300, 64), np.zeros(300, dtype=np.int64))
        timing = Timing(0.01, d2=0.000625)
        return 300 / slow_simulator.simulate("vllm", at_once, timing, replica, {}).end_s

    gain = rate(int(cap["value"])) / rate(64) - 1
    assert gain > 0.005
    assert cap["gains"]["saturated_throughput"]["mean"] == pytest.approx(gain, rel=1e-6)
    assert cap["gains"]["saturated_throughput"]["ci95"] == pytest.approx([gain, gain], rel=1e-6)


def test_what_sglangs_conservativeness_does_is_that_of_a_slow_simulator(run: Run, dear: str) -> None:
    found = document(run, dear, "--engine", "sglang", *SMALL)
    assert found["simulated"]["policy"] == "sglang"
    flags = {one["flag"]: one for one in (*found["settings"], *found["left_out"]) if one["value"] == "0.3"}
    assert set(flags) == {"--schedule-conservativeness"}

    def rate(conservativeness: float) -> float:
        replica = Replica(4096, block_tokens=16, max_num_seqs=64, max_num_batched_tokens=2048)
        at_once = Requests(np.zeros(300), np.full(300, 128), np.full(300, 64), np.zeros(300, dtype=np.int64))
        parameters = {"conservativeness": conservativeness, "max_new": [64]}
        slow = slow_simulator.simulate("sglang", at_once, Timing(0.01, d2=0.000625), replica, parameters)
        return 300 / slow.end_s

    gain = rate(0.3) / rate(1.0) - 1
    assert gain != 0
    measured = flags["--schedule-conservativeness"]["gains"]["saturated_throughput"]["mean"]
    assert measured == pytest.approx(gain, rel=1e-6)


def test_lines_for_the_shell_say_the_same_as_the_json(run: Run, dear: str) -> None:
    code, text, messages = run(dear, "--engine", "vllm", *SMALL)
    assert (code, messages) == (0, "")
    assert f"kvplan {__version__}" in text
    script = "printf '%s\\n' $(sed 's/#.*//')"
    words = subprocess.run(["bash", "-c", script], input=text, capture_output=True, text=True, check=True)
    wanted = document(run, dear, "--engine", "vllm", *SMALL)["settings"]
    assert words.stdout.split() == [word for one in wanted for word in (one["flag"], one["value"])]


def test_the_same_command_gives_the_same_bytes(run: Run, dear: str, tmp_path: Path) -> None:
    path = tmp_path / "flags.txt"
    _, text, _ = run(dear, "--engine", "trtllm", *SMALL)
    assert run(dear, "--engine", "trtllm", *SMALL, "-o", str(path)) == (0, "", "")
    assert path.read_text("utf-8") == text


def test_where_nothing_is_evicted_the_defaults_stay(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "roomy.toml"
    path.write_text(DEAR.format(rate=5.0).replace("4_096", "40_960_000").replace("0.625 ms", "0 s"))
    code, text, _ = run(str(path), "--engine", "vllm", *SMALL)
    assert code == 0
    assert "# Nothing to set: leave the engine's defaults." in text
    assert "nobody was evicted in any run" in text
    assert all(line.startswith("#") for line in text.splitlines())


def test_an_overloaded_replica_is_told_so_and_gets_a_bound_on_its_queue(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "overloaded.toml"
    path.write_text(DEAR.format(rate=500.0))
    found = document(run, str(path), "--engine", "vllm", *SMALL)
    assert [one["flag"] for one in found["not_simulated"]] == ["--max-num-queued-reqs"]
    assert any("more than can be sustained" in note for note in found["notes"])
    assert found["settings"]  # it is always saturated: what gains then, gains


def test_without_a_profile_the_shipped_one_is_taken_and_named(run: Run) -> None:
    code, text, messages = run("--engine", "sglang", "--requests", "20", "--seeds", "2")
    assert code == 0
    assert messages == "note: no profile given; using the shipped llama-3.1-8b-rtx4090\n"
    assert text.startswith("# SGLang settings for: Llama-3.1-8B on one RTX 4090, conversation\n")
    assert "runs of 20 are mostly filling and draining" in text


def test_names_cannot_leave_a_comment_or_a_cell(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "nasty.toml"
    name = r"x\n--trust-remote-code # `id` $(id) <script>| \u001b[31m"
    path.write_text(DEAR.format(rate=5.0).replace('name = "dear"', f'name = "{name}"'))
    _, text, _ = run(str(path), "--engine", "vllm", *SMALL)
    assert not set("`$<>|\x1b") & set(text)
    assert all(line.startswith(("#", "--max-num-active-seqs ")) for line in text.splitlines())
    _, page, _ = run(str(path), "--engine", "vllm", *SMALL, "--format", "markdown")
    assert "<script>" not in page
    assert "\x1b" not in page


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--engine", "tgi"], "'tgi' is not one of 'vllm', 'sglang', 'trtllm'"),
        ([], "Missing option '--engine'"),
        (["--engine", "vllm", "--seeds", "1"], "--seeds 1: at least 2"),
        (["--engine", "vllm", "--requests", "0"], "--requests 0: 1 to"),
        (["--engine", "vllm", "-o", "nowhere/flags.txt"], "cannot be written"),
    ],
)
def test_what_cannot_be_used_is_refused_in_a_line(run: Run, arguments: list[str], message: str) -> None:
    code, text, messages = run("tool-calls-h100", *arguments)
    assert (code, text) == (2, "")
    assert message in messages
    assert messages.count("\n") == 1


def test_a_request_that_fits_the_memory_but_not_the_engines_blocks_is_refused(
    run: Run, tmp_path: Path
) -> None:
    """192 tokens fit, but one of the twelve blocks is the engine's own."""
    path = tmp_path / "tight.toml"
    path.write_text(DEAR.format(rate=5.0).replace("4_096", "192"))
    code, text, messages = run(str(path), "--engine", "vllm", *SMALL)
    assert (code, text) == (2, "")
    assert "a request never fits" in messages


README = (Path(__file__).resolve().parents[2] / "README.md").read_text("utf-8")


@pytest.mark.parametrize("name", ["llama-3.1-8b-rtx4090", "tool-calls-h100"])
def test_the_readme_says_what_the_command_does(run: Run, name: str) -> None:
    _, page, _ = run(name, "--engine", "vllm", "--format", "markdown")
    table = page.partition("Tried and left out")[0]
    (row,) = [line for line in table.splitlines() if line.startswith("| --")]
    flag, value, rate, e2e, block, _ = (cell.strip() for cell in row.strip("|").split("|"))
    assert f"| `{name}` | `{flag} {value}` | `{block}` | {rate} | {e2e} |" in README


# -- put back into a profile ------------------------------------------------------------------------------------


def fed_back(model: ServingModel, keys: dict[str, int]) -> ServingModel:
    return replace(model, replica=replace(model.replica, **keys))


def serves_no_less(
    model: ServingModel, keys: dict[str, int], watermark: float, requests: int, seeds: int
) -> None:
    """Saturated, on average over the seeds: the profile with the limits in it, and the watermark."""
    mark = (("watermark", watermark),) if watermark else ()
    (before,) = measure(model, Plan(), [Variant("vllm")], requests=requests, seeds=range(seeds))
    (after,) = measure(
        fed_back(model, keys), Plan(), [Variant("vllm", mark)], requests=requests, seeds=range(seeds)
    )
    assert isinstance(before, Measured)
    assert isinstance(after, Measured)
    ratios = [b / a for a, b in zip(before.saturated_rps, after.saturated_rps, strict=True)]
    assert np.mean(ratios) >= 1 - 1e-12


def keys_of(settings_: list[tuple[str, str, str | None]]) -> tuple[dict[str, int], float]:
    """What goes into `[gpu]`, and the watermark, which no profile has."""
    keys = {key.removeprefix("gpu."): int(value) for _, value, key in settings_ if key is not None}
    marks = [float(value) for flag, value, _ in settings_ if flag == "--watermark"]
    return keys, marks[0] if marks else 0.0


@pytest.mark.parametrize("name", shipped_profiles())
def test_settings_put_into_a_shipped_profile_never_lower_its_throughput(run: Run, name: str) -> None:
    found = document(run, name, "--engine", "vllm", *SMALL)
    keys, mark = keys_of([(s["flag"], s["value"], s["profile_key"]) for s in found["settings"]])
    profile = parse_profile(shipped_profiles()[name].read_bytes(), name)
    serves_no_less(profile.model, keys, mark, 300, 2)
    for key, value in keys.items():
        serves_no_less(profile.model, {key: value}, 0.0, 300, 2)


def test_settings_put_into_the_profile_of_the_file_never_lower_its_throughput(run: Run, dear: str) -> None:
    found = document(run, dear, "--engine", "vllm", *SMALL)
    text = Path(dear).read_text()
    for setting in found["settings"]:
        before = text
        key = setting["profile_key"].removeprefix("gpu.")
        text = "\n".join(
            f"{key} = {setting['value']}" if line.startswith(f"{key} =") else line
            for line in text.splitlines()
        )
        assert text != before
    model = parse_profile(text.encode(), "").model
    assert model.replica.max_num_seqs == 21
    serves_no_less(parse_profile(Path(dear).read_bytes(), "").model, {"max_num_seqs": 21}, 0.0, 300, 2)


@settings(max_examples=4, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(model=models(max_classes=2, max_input=40, max_decode=30, blocks=False, min_memory=4.0), data=st.data())
def test_settings_of_random_profiles_never_lower_throughput(model: ServingModel, data: st.DataObject) -> None:
    memory = min(model.replica.memory_tokens, 2000)
    longest = max(c.max_tokens for c in model.classes)
    model = replace(model, replica=replace(model.replica, memory_tokens=max(memory, 2 * longest)))

    def run_small(variants: Any) -> list[Measured | None]:
        return measure(model, Plan(), variants, requests=150, seeds=[0, 1, 2])

    report = analyze(model, name="", sha256="")
    found = advise(Engine.VLLM, report, model, Plan(), requests=150, measure=run_small)
    for chosen in ([one.candidate for one in found.emitted], *([one.candidate] for one in found.emitted)):
        parameters = dict(p for c in chosen for p in c.variant.parameters)
        mark = parameters.pop("watermark", 0.0)
        serves_no_less(model, {k: int(v) for k, v in parameters.items()}, mark, 150, 3)
