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
    "check shop.toml --require 'load.headroom >= 30'": (1, "FAIL"),
    "sweep shop.toml --vary gpu.memory_tokens=2k,4k --columns load.headroom --workers 2 -o out.csv": (0, ""),
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
