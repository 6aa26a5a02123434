"""`kvplan size --split`."""

import json
from pathlib import Path

import pytest
from command import Run
from every import every
from shipped import profile


def test_the_command_names_the_winner_and_all_it_tried(run: Run) -> None:
    arguments = [
        "size",
        "prefill-decode",
        "--split",
        "8",
        "--requests",
        "1000",
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
    assert [note.split()[0] for note in found["notes"]] == ["Goodput:", "Simulated", "Runs"], (
        "too short a run"
    )
    code, text, _ = run(*arguments)
    assert code == 0
    assert f"Split {best['prefill']} + {best['decode']}:" in " ".join(text.split())


def test_options_that_do_not_go_with_it_are_refused(run: Run) -> None:
    for more in (
        ["--rate", "5"],
        ["--headroom", "0.2"],
        ["--compare"],
        ["llama-3.1-8b-rtx4090"],
        ["--split", "many"],
    ):
        code, _, error = run("size", "prefill-decode", "--split", "8", *more)
        assert code == 2
        assert "--split" in error
    code, _, error = run("size", "prefill-decode", "--decode", "prefill-decode")
    assert code == 2
    assert "--split" in error


def replica(path: Path, *changes: tuple[str, str]) -> str:
    """The replica of the shipped profile, with other numbers."""
    text = profile("prefill-decode").text
    for before, after in changes:
        assert before in text
        text = text.replace(before, after)
    path.write_text(text)
    return str(path)


SHORT = ["--requests", "1000", "--seeds", "2", "--format", "json"]


def test_sides_like_the_profile_change_nothing(run: Run, tmp_path: Path) -> None:
    same = replica(tmp_path / "same.toml", ("Five replicas prefill, three decode", "another name"))
    alone = run("size", "prefill-decode", "--split", "3", *SHORT)
    assert alone[0] == 0
    assert run("size", "prefill-decode", "--split", "3", "--prefill", same, "--decode", same, *SHORT) == alone


def test_sides_of_their_own_are_counted_and_priced_by_their_gpus(run: Run, tmp_path: Path) -> None:
    """Of seven GPUs, prompts on pairs: 3 + 1, 2 + 3 and 1 + 5."""
    fast = replica(
        tmp_path / "fast.toml", ('d2 = "25 us"', 'd2 = "12 us"'), ("block_tokens", "gpus = 2\nblock_tokens")
    )
    prices = ["--price", "gpu=2", "--price", "fast=7"]
    arguments = ["size", "prefill-decode", "--split", "7", "--prefill", fast, *prices]
    code, text, _ = run(*arguments, *SHORT)
    assert code == 0
    found = json.loads(text)
    assert found["sides"]["prefill"]["gpus_per_replica"] == 2
    cost = {
        (one["prefill"], one["decode"]): one["cost_per_hour"]
        for one in found["candidates"]
        if one["prefill"] is not None
    }
    assert cost.items() <= {(3, 1): 23, (2, 3): 20, (1, 5): 17}.items()
    assert len(cost) >= 2
    assert {one["gpus"] for one in found["candidates"]} == {7}
    assert "equal replicas" not in found["fleet"]["reason"], "no theorem covers these"


@every(
    ("option", "changes", "told"),
    [
        ("--decode", [("131_072", "65_536")], "kv_bytes_per_token"),
        ("--prefill", [("block_tokens = 16", "block_tokens = 32")], "block_tokens"),
        ("--decode", [("58.982 GB", "0.28 GB"), ("decode = 200", "decode = 20")], "holds 2,208 KV tokens"),
        (
            "--prefill",
            [
                ('prefill = 5\ndecode = 3\ntransfer = "20 GB/s"', "replicas = 8\n[speculative]"),
                (
                    "[[classes]]",
                    "tokens = 1\naccepted = [0.5]\ndraft_time = 0.1\nverify_time = 0\n[[classes]]",
                ),
            ],
            "speculative",
        ),
    ],
)
def test_sides_that_contradict_each_other_are_refused(
    run: Run, tmp_path: Path, option: str, changes: list[tuple[str, str]], told: str
) -> None:
    other = replica(tmp_path / "other.toml", *changes)
    code, _, error = run("size", "prefill-decode", "--split", "4", option, other)
    assert code == 2
    assert told in error
    assert option in error


@pytest.mark.nightly
def test_as_many_gpus_as_a_demand_takes(run: Run) -> None:
    arguments = ["size", "prefill-decode", "--split", "auto", "--rate", "20", "--headroom", "0"]
    code, text, _ = run(*arguments, "--requests", "2000", "--seeds", "2", "--format", "json")
    assert code == 0
    found = json.loads(text)
    demand, best = found["demand"], found["fleet"][found["fleet"]["winner"]]
    assert demand["needed_rps"] == 20 <= best["goodput_rps"]
    assert best["gpus"] == demand["gpus"]
    assert demand["fewer"]["gpus"] == demand["gpus"] - 1
    assert demand["fewer"]["goodput_rps"] < 20
    code, text, _ = run(*arguments, "--requests", "2000", "--seeds", "2")
    assert code == 0
    assert f"{demand['gpus']} GPUs for 20 requests/s" in " ".join(text.split())


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


def test_all_of_a_trace_is_replayed(run: Run, tmp_path: Path) -> None:
    (tmp_path / "requests.csv").write_text(
        "arrived_at,num_prefill_tokens,num_decode_tokens\n0,9,2\n1,9,2\n3,9,2\n"
    )
    traced = replica(tmp_path / "traced.toml", ("[fleet]", '[workload]\ntrace = "requests.csv"\n[fleet]'))
    code, _, error = run("size", traced, "--split", "4", "--requests", "100")
    assert code == 2
    assert "trace is replayed, all of it" in error


def test_a_fleet_of_one_is_simulated_as_no_fleet_is(run: Run, tmp_path: Path) -> None:
    """All but the name of the file and its hash."""
    found = []
    for to in ("", "[fleet]\nreplicas = 1"):
        path = replica(tmp_path / "one.toml", ('[fleet]\nprefill = 5\ndecode = 3\ntransfer = "20 GB/s"', to))
        code, text, _ = run("simulate", path, "--policy", "vllm", "--requests", "20", "--format", "json")
        assert code == 0
        found.append({key: value for key, value in json.loads(text).items() if key != "profile"})
    assert found[0] == found[1]
