"""How long plans take on two quiet cores, and how soon Ctrl-C is answered: `pytest tests/benchmarks -s -n 0`."""

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from measure import seconds, used

KVPLAN = [sys.executable, "-P", "-m", "kvplan"]
EXPERTS = "DeepSeek-V3 --gpu H200 --dp 1,8 --ep 1,8 --rate 4 --in 4000 --out 1000"
CHAT = "--rate 12 --in 3000 --out 400 --slo ttft-p95=2s --slo tpot-p95=50ms"
USERS = "Llama-3.1-70B --gpu H100 --users 100 --turns 6 --in 800 --out 300"
LONG = "Qwen3-14B --gpu H100 --rate 2 --in 1000 --out 10000"
MOST = {  # seconds of a clock
    f"Llama-3.1-70B --gpu H100 --tp 4 {CHAT}": 10,
    f"Llama-3.1-70B --gpu H100,H200,B200,L40S {CHAT}": 60,
    "Llama-3.1-8B --gpu L40S --rate 2 --in 1000 --out 4000": 20,
    LONG: 20,
    "gpt-oss-120b --gpu H100 --rate 4 --in 1000 --out 3000": 20,
    "Qwen3-30B-A3B --gpu H100 --rate 2 --in 30000 --out 500": 20,
    USERS: 20,
    EXPERTS: 90,
}
MOST_OF_ANALYZE_S, MOST_MIB = 15, 1024  # of processors


@pytest.mark.parametrize("demand", MOST)
def test_a_plan_and_its_analysis_take_so_long_and_so_much_memory_at_most(demand: str, tmp_path: Path) -> None:
    plan, analyze = [*KVPLAN, "plan", *demand.split(), "-o", "plan.toml"], [*KVPLAN, "analyze", "plan.toml"]
    made = []
    taken = seconds(lambda: made.append(used(plan, cwd=tmp_path)))
    made.append(used(analyze, cwd=tmp_path))
    found = ", ".join(f"{one.seconds:.1f} s of processors and {one.mib:.0f} MiB" for one in made)
    print(f"\n{demand}: {taken:.1f} s; plan and analyze {found}")
    assert [one.code for one in made] == [0, 0]
    assert taken <= MOST[demand]
    assert made[1].seconds <= MOST_OF_ANALYZE_S
    assert max(one.mib for one in made) <= MOST_MIB


def test_ctrl_c_is_answered_within_a_second_at_ten_moments() -> None:
    """Background jobs ignore it, so that it is turned on."""
    listening = "import signal, sys; signal.signal(signal.SIGINT, signal.default_int_handler); "
    run = "from kvplan.__main__ import main; sys.exit(main())"
    begin = [sys.executable, "-P", "-c", listening + run, "plan"]
    rng, answered = random.Random(1), []
    for demand in [LONG, USERS] * 5:
        with subprocess.Popen(
            [*begin, *demand.split()], stdout=subprocess.PIPE, stderr=subprocess.PIPE
        ) as command:
            time.sleep(rng.uniform(0.5, 6))
            os.kill(command.pid, signal.SIGINT)
            answered.append(seconds(command.communicate))
            assert command.returncode == 130
    print("\nCtrl-C is answered after", ", ".join(f"{after:.2f}" for after in answered), "s")
    assert max(answered) <= 1
