"""`kvplan emit`: lines to paste, the figures of `analyze` beside them, refusals."""

import json
import subprocess
from pathlib import Path

import command
import pytest
from command import Run, document
from operated import TARGETS

from kvplan.version import __version__

COMMAND = ["emit"]
PROFILE = """
schema = 1
name = "chat"
gpu = { memory_tokens = 4_096, block_tokens = 16, max_num_seqs = 64, max_num_batched_tokens = 2048 }
timing = { d0 = "10 ms", d2 = "0.625 ms" }
classes = [{ name = "a", input = 128, decode = 64, rate = RATE }]
"""


@pytest.fixture
def chat(tmp_path: Path) -> str:
    path = tmp_path / "chat.toml"
    path.write_text(PROFILE.replace("RATE", "5.0"))
    return str(path)


def arguments(text: str) -> list[str]:
    """What a shell gives to vllm that runs a text as its script."""
    script = f"vllm() {{ printf '%s\\n' \"$@\"; }}\n{text}"
    return subprocess.run(
        ["bash"], input=script, capture_output=True, text=True, check=True
    ).stdout.splitlines()


def test_a_shell_takes_the_lines_as_the_settings_of_the_document(run: Run, chat: str) -> None:
    code, text, messages = run(chat)
    assert (code, messages) == (0, "")
    assert f"kvplan {__version__}" in text
    words = arguments(text)
    wanted = document(run, chat)["settings"]
    assert words[:2] == ["serve", "MODEL"]
    assert words[2:] == [word for flag in wanted for word in (flag["flag"], flag["value"])]
    assert [flag["flag"] for flag in wanted][:1] == ["--max-num-seqs"]


def test_the_figures_are_those_of_analyze(run: Run, chat: str) -> None:
    report = json.loads(command.run("analyze", chat, "--format", "json").stdout)
    emitted = document(run, chat)
    for key in ("verdict", "latency", "advice"):
        assert emitted[key] == report[key]


def test_the_engine_of_the_profile_is_the_default(run: Run, chat: str) -> None:
    with Path(chat).open("a") as file:
        file.write('[engine]\nname = "trtllm"\nadmission = "first-chunk"\n')
    _, text, _ = run(chat)
    assert text.startswith("# TensorRT-LLM settings for: chat\n")
    assert "\nscheduler_config:\n  capacity_scheduler_policy: MAX_UTILIZATION\n" in text
    assert document(run, chat, "--target", "vllm")["engine"] == "vllm"


def test_names_cannot_leave_a_comment_or_a_cell(run: Run, chat: str) -> None:
    name = r"x\n--trust-remote-code # `id` $(id) <script>| \u001b[31m"
    Path(chat).write_text(Path(chat).read_text().replace('name = "chat"', f'name = "{name}"'))
    _, text, _ = run(chat)
    assert not set("`$<>|\x1b") & set(text)
    assert all(line.startswith(("#", "vllm serve MODEL --max-num-", "  --")) for line in text.splitlines())
    _, page, _ = run(chat, "--format", "markdown")
    assert "<script>" not in page
    assert "\x1b" not in page


@pytest.mark.parametrize("target", TARGETS)
def test_what_operates_the_service_is_written_from_its_objectives(
    run: Run, chat: str, tmp_path: Path, target: str
) -> None:
    file = tmp_path / "written.yaml"
    names = ["--name", "chat", "--namespace", "llm", "--model", "m", "--pool", "pool", "--arrivals", "epp"]
    asked = ["--target", target, "--headroom", "10%", "--load-time", "90s", "--slo", "ttft-p95=1s"]
    assert run(chat, *asked, *names, "-o", str(file)) == (0, "", "")
    text = file.read_text()
    assert text.count("\n---\n") == (target == "hpa")
    assert "\n# Objectives: ttft_s.p95 <= 1s\n" in text
    assert "Headroom: 0.1, as asked for; 1.5 min until a new replica serves" in text


def test_where_no_rate_meets_the_objectives_nothing_is_written(run: Run, chat: str) -> None:
    asked = ["--target", "keda", "--headroom", "0.1", "--slo", "ttft-p95=1ms"]
    assert run(chat, *asked) == (1, "", "no rate meets the objectives: ttft_s.p95 <= 1ms\n")


SLOW_CHAT = """
schema = 1
name = "chat"
gpu = { memory_tokens = 3000, block_tokens = 16, gpus = 2 }
timing = { d0 = "200 ms", d2 = "1 ms" }
classes = [{ name = "a", input = 90, decode = { 10 = 1, 30 = 1 }, rate = 6.0 }]
slo = { ttft_s = { p95 = "2 s" } }
workload = { period = "2 h", schedule = [{ at = "0 s", factor = 1 }, { at = "1 h", factor = 2 }] }
"""


def test_what_is_emitted_stands_beside_guesses_on_standard_error(tmp_path: Path) -> None:
    """Of five ways to keep 2-GPU replicas for two hours a fixed fleet for the peak costs its replicas times four."""
    path = tmp_path / "slow.toml"
    path.write_text(SLOW_CHAT)
    asked = ("emit", str(path), "--target", "hpa", "--headroom", "0.25", "--load-time", "1 min")
    plain, verified = command.run(*asked), command.run(*asked, "--verify")
    assert (verified.returncode, verified.stdout) == (0, plain.stdout)
    rows = {words[0]: words for line in verified.stderr.splitlines() if (words := line.split())}
    assert {"derived", "0.80/5", "0.60/30", "latency", "fixed"} <= rows.keys()
    assert float(rows["fixed"][-1]) == 4 * int(rows["fixed"][1])
    refused = command.run("emit", str(path), "--target", "vllm", "--verify")
    assert refused.returncode == 2
