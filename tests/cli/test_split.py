"""`kvplan size --split`."""

import json
from pathlib import Path

import pytest
from command import Run


def test_the_command_names_the_winner_and_all_it_tried(run: Run) -> None:
    arguments = [
        "size",
        "prefill-decode",
        "--split",
        "8",
        "--requests",
        "2000",
        "--seeds",
        "2",
        "--price",
        "gpu=2",
    ]
    code, text, messages = run(*arguments, "--format", "json")
    assert (code, messages) == (0, "")
    found = json.loads(text)
    tried = {
        (one["prefill"], one["decode"], one["max_num_batched_tokens"]): one for one in found["candidates"]
    }
    assert {one["gpus"] for one in tried.values()} == {8}
    assert {one["cost_per_hour"] for one in tried.values()} == {16}
    assert found["fleet"]["winner"] == "split", "at 20 ms between tokens"
    best = max(tried.values(), key=lambda one: one["goodput_rps"])
    assert found["fleet"]["split"]["goodput_rps"] == best["goodput_rps"]
    assert found["fleet"]["crossing_itl_s"] == pytest.approx(0.0494, rel=0.01)
    code, text, _ = run(*arguments)
    assert code == 0
    assert f"Split {best['prefill']} + {best['decode']}:" in " ".join(text.split())


def test_options_that_do_not_go_with_it_are_refused(run: Run) -> None:
    for more in (["--rate", "5"], ["--compare"], ["--plot", "x.svg"], ["llama-3.1-8b-rtx4090"]):
        code, _, error = run("size", "prefill-decode", "--split", "8", *more)
        assert code == 2
        assert "--split" in error


def test_a_split_fleet_is_simulated_without_being_told_how(run: Run) -> None:
    code, text, messages = run("simulate", "prefill-decode", "--requests", "300", "--format", "json")
    assert (code, messages) == (0, "")
    [policy] = json.loads(text)["policies"]
    assert (policy["policy"], policy["completed"]) == ("vllm", 300)
    code, _, error = run("simulate", "prefill-decode", "--policy", "greedy")
    assert code == 2
    assert "prefill and decode apart" in error


def test_what_many_prefix_caches_know_is_bounded(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "many.toml"
    path.write_text("""schema = 1
name = "many"
timing = { d0 = "8 ms" }
classes = [{ name = "a", input = 90, decode = 9, shared = 32, rate = 9e4 }]
gpu = { memory_tokens = 9000, block_tokens = 16 }
fleet = { replicas = 10_000 }
""")
    code, _, error = run("simulate", str(path), "--policy", "vllm", "--requests", "20000")
    assert code == 2
    assert "GiB" in error
