"""The installed command in a process of its own, as a user starts it; what each command does its own tests say."""

import shlex
import shutil
import subprocess
import sys
from pathlib import Path

from command import ENVIRONMENT
from every import every

PROFILE = """schema = 1
name = "a shop"
gpu = { memory_tokens = 1_500 }
timing = { d0 = "10 ms", d2 = "20 us" }
classes = [{ name = "chat", input = 200, decode = { 4 = 1, 8 = 1 }, rate = 6 }]
"""
CALLS = {  # with the exit code and some of what is said
    "--version": (0, "kvplan "),
    "analyze tool-calls-h100": (0, "STABLE"),
    "check tool-calls-h100 --accept workload --require 'load.headroom >= 30%'": (1, "FAIL"),
    "diff tool-calls-h100 tool-calls-h100": (0, "Nothing differs."),
    "simulate tool-calls-h100 --requests 20": (0, "greedy"),
    "sweep tool-calls-h100 --vary gpu.memory_tokens=200k,400k --executor serial -o out.csv": (0, ""),
    "size tool-calls-h100 --rate 20 --requests 20 --seeds 2": (0, "replica"),
    "emit tool-calls-h100 --engine vllm": (0, "--max-num-seqs 698"),
    "mix tool-calls-h100 --replicas 2": (0, "replica"),
    "explain worst_cycle.loss tool-calls-h100": (0, "worst_cycle.loss"),
    "reproduce sic-example-02": (0, "reproduced"),
    "init mine.toml": (0, ""),
    "profiles": (0, "tool-calls-h100"),
    "schema": (0, "$schema"),
    "import model Llama-3.1-8B --gpu 'RTX 4090'": (0, "memory_tokens"),
    "import log /dev/null": (2, "/dev/null"),
}


@every("call", CALLS)
def test_the_command_runs_as_installed(call: str, tmp_path: Path) -> None:
    kvplan = shutil.which("kvplan", path=str(Path(sys.executable).parent))
    assert kvplan is not None
    (tmp_path / "shop.toml").write_text(PROFILE)
    done = subprocess.run(
        [kvplan, *shlex.split(call)], env=ENVIRONMENT, cwd=tmp_path, capture_output=True, text=True
    )
    code, says = CALLS[call]
    assert done.returncode == code, done.stderr
    assert says in done.stdout + done.stderr
