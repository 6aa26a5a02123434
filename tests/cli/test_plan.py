"""`kvplan plan`: the screen, the document, the profile that it writes, and what it refuses."""

import json
from pathlib import Path

import command
import pytest
from command import Run
from every import every

COMMAND = ["plan"]
DEMAND = ("Llama-3.1-8B", "--gpu", "H100", "--tp", "1", "--weights", "fp8", "--rate", "60", "--in", "500:0")
SHORT = (*DEMAND, "--out", "20:0", "--slo", "ttft-p95=300ms", "--gpu-hour", "3")


@pytest.fixture(scope="module")
def planned(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path]:
    """The screen, and the file that was written beside it."""
    path = tmp_path_factory.mktemp("plan") / "plan.toml"
    done = command.run("plan", *SHORT, "-o", path)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout, path


def test_the_screen_says_how_many_at_what_price_and_why(planned: tuple[str, Path]) -> None:
    text = " ".join(planned[0].split())
    assert "1 replica x 1 H100 SXM = 1 GPU, fp8 weights, $3.00/h" in text
    assert "ttft p95 300 ms" in text
    assert "* 1 1 $3.00 all met" in text
    assert "vllm serve meta-llama/Llama-3.1-8B --quantization fp8 --max-num-batched-tokens" in text
    lines = planned[0].splitlines()
    assert len(lines) <= 40
    assert max(map(len, lines)) <= 80


def test_the_document_and_the_written_profile_agree_with_analyze(run: Run, planned: tuple[str, Path]) -> None:
    code, text, _ = run(*SHORT, "--format", "json")
    document = json.loads(text)
    found, report = (
        document["plan"],
        json.loads(command.run("analyze", planned[1], "--format", "json").stdout),
    )
    assert (code, document["schema_version"], found["status"], found["replicas"]) == (0, 2, "planned", 1)
    [ttft] = [one for one in found["objectives"] if one["key"] == "ttft_s.p95"]
    assert ttft["value"] == report["latency"]["ttft_s"]["p95"]
    assert [ttft["low"], ttft["high"]] == report["latency"]["ci95"]["ttft_s.p95"]
    assert found["recovers"] == report["verdict"]["status"]
    assert found["burst"]["drain_s"] == report["verdict"]["drain"]["seconds"]
    assert found["profile"]["sha256"] == report["profile"]["sha256"]
    assert found["cost"]["per_hour"] == report["cost"]["per_hour"] == 3.0
    assert report["inputs"] == {"gpu": "estimated", "timing": "estimated", "workload": "stated"}


def test_the_written_profile_passes_its_own_gate_and_fewer_replicas_do_not(
    planned: tuple[str, Path], tmp_path: Path
) -> None:
    done = command.run("check", planned[1])
    assert (done.returncode, done.stderr) == (0, "")
    assert "plan.holds" in done.stdout
    tight = tmp_path / "tight.toml"
    tight.write_text(planned[1].read_text().replace("rate = 60", "rate = 150"))
    done = command.run("check", tight)
    assert done.returncode == 1
    assert "misses load" in done.stdout


def test_a_profile_is_planned_at_another_rate(run: Run) -> None:
    """Two replicas at 100 requests/s: 54.87 are sustainable each, 52.3 with iterations 5 % longer."""
    code, text, _ = command_result(
        command.run("plan", "tool-calls-h100", "--rate", "100", "--format", "json")
    )
    found = json.loads(text)["plan"]
    assert (code, found["replicas"], found["cost"]["per_hour"]) == (0, 2, None)
    assert [size["state"] for size in found["sizes"]] == ["misses", "holds", "holds"]
    assert found["sizes"][0]["missed"] == ["load"]


def command_result(done: command.Done) -> tuple[int, str, str]:
    return done.returncode, done.stdout, done.stderr


def test_what_no_replica_can_do_is_said_with_exit_1(run: Run) -> None:
    code, text, _ = run(*DEMAND, "--out", "20:0", "--slo", "ttft-p95=9ms")
    assert code == 1
    assert "Impossible at any number of replicas" in text
    assert "H100 SXM TP1 fp8" in text


@every(
    ("arguments", "message"),
    [
        (["Llama-3.1-8B", "--gpu", "H100"], "a model needs a demand: --rate or --users, --in and --out"),
        (
            ["Llama-3.1-8B", "--rate", "1", "--in", "9", "--out", "9"],
            "--gpu is missing: which GPUs? Known are",
        ),
        (["Llama-3.1-9B", "--gpu", "H100", "--rate", "1", "--in", "9", "--out", "9"], "Llama-3.1-8B"),
        (["Llama-3.1-8B", "--gpu", "H1000", "--rate", "1", "--in", "9", "--out", "9"], "H100"),
        ([*DEMAND], "--out is missing"),
        ([*DEMAND, "--out", "9", "--users", "3"], "--rate and --users"),
        ([*DEMAND, "--out", "9k"], "--out '9k': tokens are wanted"),
        ([*DEMAND, "--out", "9", "--slo", "ttft-p95=2"], "a time with a unit is wanted, such as 2s"),
        ([*DEMAND, "--out", "9", "--slo", "ttft-p94=2s"], "did you mean ttft_s.p9"),
        ([*DEMAND, "--out", "9", "--slo", "recomputed_share<=1%"], "a plan holds times"),
        ([*DEMAND, "--out", "9", "--gpu-hour", "x"], "--gpu-hour 'x': a price above 0"),
        ([*DEMAND, "--out", "9", "--gpu-hour", "B200=3"], "no price for H100 SXM"),
        ([*DEMAND, "--out", "9", "--headroom", "x"], "--headroom 'x': a share"),
        ([*DEMAND, "--out", "9", "--think", "30s"], "--think goes with --users or --turns"),
        ([*DEMAND, "--out", "9", "--turns", "0"], "--turns 0: 1 to 1000"),
        (["tool-calls-h100", "Llama-3.1-8B"], "a model does not go with profiles"),
        (["tool-calls-h100", "--gpu", "H100"], "go with a model"),
        (["nowhere.toml"], "nowhere.toml"),
    ],
)
def test_what_cannot_be_used_is_refused_in_a_line(run: Run, arguments: list[str], message: str) -> None:
    code, text, messages = run(*arguments)
    assert (code, text) == (2, "")
    assert message in messages
    assert messages.count("\n") == 1
