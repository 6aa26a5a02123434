"""`import kvplan`: light to import, and the same figures as the command line."""

import inspect
import json
import shlex
from html import escape
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command import python
from every import every

import kvplan
from kvplan import options
from kvplan.arguments import options_of
from kvplan.cli import app
from kvplan.cli.app import main
from kvplan.errors import UsageError
from kvplan.report.assembly import analyze, to_document

NAME = "paper-fc-budgets"
PLAN = {
    "tp": 1,
    "weights": ["bf16"],
    "rate": 4,
    "input": 500,
    "output": "50",
    "slo": "ttft-p95=2s",
    "gpu_hour": {"H100": 3},
}


# after every module was imported: a module of its name would have taken the place of a function
IMPORTS = """
import importlib, pkgutil, kvplan
for module in pkgutil.walk_packages(kvplan.__path__, "kvplan."):
    if not module.name.endswith("__main__"):
        importlib.import_module(module.name)
assert all(callable(getattr(kvplan, name)) for name in kvplan.__all__ if name != "__version__")
"""


def test_functions_are_not_hidden_by_modules(tmp_path: Path) -> None:
    python(IMPORTS, cwd=tmp_path)
    assert (Path(kvplan.__file__).parent / "py.typed").is_file()  # tells type checkers that there are types


def test_every_function_returns_a_result_that_shows_itself() -> None:
    profile = kvplan.load(NAME)
    results = {
        "analyze": kvplan.analyze(profile),
        "check": kvplan.check(profile, require="load.headroom >= 0", accept=["workload"]),
        "import_files": kvplan.import_files(model="Llama-3.1-8B", gpu="H100"),
        "measure": kvplan.measure("two-tier-100-125", slo="tpot-mean=100ms"),
        "plan": kvplan.plan("Llama-3.1-8B", gpu="H100", **PLAN),
        "simulate": kvplan.simulate(profile, requests=20),
        "sweep": kvplan.sweep(profile, {"gpu.max_num_seqs": [5, 10]}, "load.headroom"),
    }
    assert {"__version__", "load", *results} == set(kvplan.__all__)
    for name, result in results.items():
        columns = result.columns()
        assert columns, name
        assert len({len(column) for column in columns.values()}) == 1, name
        assert result.to_dict(), name
        assert str(result)[-1] != "\n", name
        assert max(map(len, str(result).splitlines())) <= 80, name


def test_results_print_the_screens_of_the_commands(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    demand = shlex.split("--tp 1 --weights bf16 --rate 4 --in 500 --out 50 --slo ttft-p95=2s --gpu-hour 3")
    planned = kvplan.plan("Llama-3.1-8B", gpu="H100", **PLAN)
    for command, result in (
        (["plan", "Llama-3.1-8B", "--gpu", "H100", *demand], planned),
        (["analyze", NAME], kvplan.analyze(NAME)),
        (["simulate", NAME, "--policy", "vllm", "--requests", "30"], kvplan.simulate(NAME, requests=30)),
        (
            ["check", NAME, "--accept", "workload", "--require", "load.headroom >= -0.9"],
            kvplan.check(NAME, accept="workload", require="load.headroom >= -0.9"),
        ),
    ):
        assert main(command) == 0
        *screen, _ = capsys.readouterr().out.rstrip("\n").split("\n")
        assert str(result).split("\n")[:-1] == screen  # the last line says of what
        if command[0] in ("simulate", "check"):  # a view of a result is one; its page may take long to draw
            assert main([*command, "--format", "html"]) == 0
            assert escape(capsys.readouterr().out) in result._repr_html_()


def test_a_report_is_that_of_the_command(tmp_path: Path) -> None:
    assert main(["analyze", NAME, "--format", "json", "-o", str(tmp_path / "report.json")]) == 0
    written = json.loads((tmp_path / "report.json").read_text())
    profile = kvplan.load(NAME)
    assert json.loads(json.dumps(to_document(kvplan.analyze(profile)))) == written
    direct = analyze(profile.model, name=profile.name, sha256=profile.sha256, plan=profile.plan)
    assert kvplan.analyze(profile) == direct


def test_a_simulation_is_that_of_the_command(tmp_path: Path) -> None:
    options = shlex.split("--policy vllm --set vllm.watermark=0.1 --requests 60 --seeds 2 --seed 5")
    target = tmp_path / "study.json"
    assert main(["simulate", NAME, *options, "--format", "json", "-o", str(target)]) == 0
    (written,) = json.loads(target.read_text())["policies"]
    found = kvplan.simulate(
        kvplan.load(NAME), "vllm", settings={"vllm.watermark": 0.1}, requests=60, seeds=2, seed=5
    )
    assert found.seeds == (5, 6)
    assert found.results[0].figures["e2e_s.p95"] == written["e2e_s"]["p95"]
    assert found.results[0].parameters["watermark"] == written["parameters"]["watermark"] == 0.1


def test_a_trace_is_replayed_once(tmp_path: Path) -> None:
    (tmp_path / "trace.csv").write_text("time,input,output\n0,5,6\n1,5,6\n")
    with pytest.raises(UsageError, match="--trace has no chance in it"):
        kvplan.simulate(kvplan.load(NAME), trace=tmp_path / "trace.csv", seeds=2)


def test_a_sweep_is_that_of_the_command(tmp_path: Path) -> None:
    """With a value that no profile may have: numbers are NaN then, and the reason is there."""
    target = tmp_path / "rows.jsonl"
    vary = ["--vary", "gpu.memory_tokens=10,9k", "--vary", "timing.d0=1 ms,2 ms"]
    columns = ["load.headroom", "verdict.status", "simulation.vllm.e2e_s.mean"]
    simulate = ["--simulate", "--policy", "vllm", "--requests", "20", "--seed", "3"]
    chosen = ["--columns", ",".join(columns), "--executor", "serial"]
    assert main(["sweep", "tool-calls-h100", *vary, *simulate, *chosen, "-o", str(target)]) == 0
    rows = [json.loads(line) for line in target.read_text().splitlines()[1:]]
    found = kvplan.sweep(
        kvplan.load("tool-calls-h100"),
        {"gpu.memory_tokens": np.array([10, 9000]), "timing.d0": "1 ms,2 ms"},
        columns,
        policy="vllm",
        requests=20,
        seed=3,
    )
    assert list(found) == list(rows[0])
    for name, values in found.items():
        written = [row[name] for row in rows]
        assert [None if value != value else value for value in values.tolist()] == written
    assert np.isnan(found["load.headroom"]).tolist() == [True, True, False, False]
    assert found["load.headroom"].dtype == np.float64
    assert found["point"].dtype == np.int64
    assert "must be at most the memory, 10 tokens" in found["error"][0]


@every(
    ("name", "arguments", "options", "said"),
    [
        ("load", [3], {}, "a profile is wanted, or its path or name, not 3"),
        ("load", [{}], {}, "a profile is wanted, or its path or name, not a table"),
        ("analyze", ["x"], {}, "x: neither a file nor a shipped profile"),
        ("simulate", [7], {}, "a profile is wanted"),
        ("simulate", [None], {"concurrency": 3}, "--concurrency goes with --arrivals closed only"),
        ("simulate", [None], {"arrivals": "closed", "concurrency": 0}, "--concurrency 0: 1 to"),
        (
            "simulate",
            [None],
            {"arrivals": "closed", "concurrency": "3"},
            "concurrency: a whole number is wanted",
        ),
        ("simulate", [None], {"arrivals": "often"}, "arrivals 'often' does not exist"),
        ("simulate", [None], {"trace": "nowhere.csv"}, "nowhere.csv: cannot be read"),
        ("simulate", [None], {"trace": 3}, "trace: a path is wanted, not 3"),
        ("simulate", [None], {"trace": "x.csv", "arrivals": "poisson"}, "--trace brings its own arrivals"),
        ("simulate", ["agents-collapse"], {"arrivals": "closed"}, "arrive as it describes them"),
        ("simulate", [None, "vlm"], {}, "does not exist"),
        ("simulate", [None, "vllm"], {"requests": 10.5}, "requests: a whole number is wanted, not 10.5"),
        ("simulate", [None, "vllm"], {"seeds": "2"}, "seeds: a whole number is wanted"),
        ("simulate", [None, 3], {}, "policy: a list of names is wanted, not 3"),
        (
            "simulate",
            [None, "vllm"],
            {"settings": [3]},
            "settings: a value by key, such as a dict, is wanted",
        ),
        ("sweep", [7, {}], {}, "a profile is wanted"),
        ("sweep", [None, {}], {}, "--vary"),
        ("sweep", [None, {"gpu.memory_token": [1, 2]}], {}, "memory_token"),
        ("sweep", [None, {"gpu.memory_tokens": []}], {}, "no values"),
        ("sweep", [None, "timing.d0"], {}, "KEY=VALUES"),
        ("sweep", [None, np.eye(3)], {}, "vary: a value by key, such as a dict, is wanted"),
        ("sweep", [None, {"timing.d0": [1]}, [3]], {}, "columns: a list of names is wanted"),
        ("sweep", [None, {"timing.d0": [1]}, ","], {}, "--columns: at least one"),
        ("sweep", [None, {"timing.d0": [1]}], {"sample": 9}, "--sample '9': random:N or lhs:N"),
        ("plan", [[]], {}, "a model is wanted, or profiles, not an empty list"),
        ("plan", ["Llama-3.1-8B"], {"gpu_hour": True}, "gpu_hour: a number or a text is wanted, not true"),
        ("plan", [None], {"router": "best"}, "router 'best' does not exist"),
        ("plan", ["Llama-3.1-8B"], {"engine": "best"}, "--engine 'best': one of vllm, sglang, trtllm"),
        ("import_files", [3], {}, "files: a path is wanted, not 3"),
        ("import_files", [], {}, "a FILE is wanted"),
        ("import_files", [], {"engine": "best"}, "--engine 'best': one of vllm, sglang, trtllm"),
        ("check", [None], {"require": 3}, "require: a list of names is wanted"),
        ("check", [None], {"accept": "all"}, "accept 'all' does not exist"),
        ("sweep", [None, {"gpu.memory_tokens": range(1, 10**9)}], {}, "more than 50,000 values"),
        ("sweep", [None, {"gpu.memory_tokens": range(10**30)}], {}, "more than 50,000 values"),
        ("sweep", [None, {"gpu.memory_tokens": count(1)}], {}, "more than 50,000 values"),
    ],
)
def test_wrong_arguments_are_refused_in_one_line(
    name: str, arguments: list[Any], options: dict[str, Any], said: str
) -> None:
    """None among the arguments stands for a profile."""
    given = [kvplan.load(NAME) if one is None else one for one in arguments]
    with pytest.raises(UsageError) as caught:
        getattr(kvplan, name)(*given, **options)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


@every("name", ["plan", "analyze", "check", "import", "simulate", "sweep"])
def test_a_function_and_its_command_have_the_options_of_one_record(name: str) -> None:
    record, function = getattr(options, f"{name.title()}Options"), getattr(kvplan, name, kvplan.import_files)
    flags = {flag for each in app._command_line().commands[name].params for flag in each.opts}
    for argument, option in options_of(record).items():
        assert argument in inspect.signature(function).parameters
        assert f"    {argument} : {option.given}\n        {option.help}\n" in function.__doc__
        assert option.flag is None or option.flag in flags


def test_a_record_of_options_has_numbers_and_stays_as_it_is() -> None:
    asked = options.PlanOptions(think="2 min", gpu=["H100", "B200"], tp="1,2", headroom="20%", gpu_hour=3)
    assert (asked.think, asked.gpu, asked.tp) == (120.0, ("H100", "B200"), (1, 2))
    assert (asked.headroom, asked.gpu_hour) == (0.2, {"": 3.0})
    assert options.PlanOptions(offload="200GiB,100GiB,204800MiB").offload == (200.0, 100.0)
    with pytest.raises(AttributeError, match="think is set"):
        asked.think = 3
