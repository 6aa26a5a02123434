"""Names that command a terminal or a runner, and a system that lacks what kvplan needs."""

import resource
from pathlib import Path
from typing import NoReturn

import pytest
from command import Run, process
from every import check_every

from kvplan.simulation.experiments import study

PLAIN = """schema = 1
name = "plain"
gpu = { memory_tokens = 10_000 }
timing = { d0 = 0.01, d2 = 1e-5 }
classes = [{ name = "a", input = 100, decode = 20, rate = 1 }]
"""


def is_harmless(text: str) -> bool:
    lines = text.splitlines()
    return all(c.isprintable() or c == "\u200b" for line in lines for c in line) and not any(
        line.lstrip().startswith("::") or "##[" in line for line in lines
    )


@pytest.mark.usefixtures("brief")
def test_no_name_commands_a_terminal_or_a_ci_server(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "profile.toml"
    path.write_text(PLAIN.replace('"plain"', '"##[error]p"').replace('"a"', '"::error::x"'))

    def check(call: str) -> None:
        command, *options = call.split()
        at = 1 if command == "explain" else 0
        code, out, error = run(command, *options[:at], str(path), *options[at:])
        assert code == 0, error
        assert is_harmless(out + error)

    check_every(
        (
            *("analyze --format text", "analyze --format markdown", "analyze --format json"),
            "explain wait.classes[].threshold",
            "explain equilibrium.classes[].in_flight --format markdown",
            *("simulate --requests 50", "plan", "emit --target vllm"),
            "mix --replicas 2",
        ),
        check,
    )


def test_no_file_name_commands_a_terminal_or_a_runner(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In results, in messages, and in annotations."""
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    table = tmp_path / "a\x1b[31m\u202e.csv"
    table.write_text("kv_tokens,iteration_ms\n" + "".join(f"{1000 * i},{10 + i}\n" for i in range(40)))
    path = table.with_suffix(".toml")
    path.write_text(PLAIN)
    said = [run("import", str(table))]
    said.append(run("check", str(path), "--require", "load.headroom > 1e9"))
    said.append(run("import", "no\x1b[31mil\u202e.csv"))
    for _, out, error in said:
        assert "\\x1b" in out + error
        assert all(c.isprintable() or c in "\n\u200b" for c in out + error)
    assert [code for code, *_ in said] == [0, 1, 2]


def test_more_memory_than_there_is_is_one_error(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def too_much(*given: object, **named: object) -> NoReturn:
        raise MemoryError("Unable to allocate 381. MiB")

    monkeypatch.setattr(study, "study", too_much)
    code, out, error = run("simulate", "tool-calls-h100", "--policy", "greedy", "--requests", "100000000")
    assert (code, out) == (2, "")
    told, refused = error.splitlines()
    assert told == "note: 100,000,000 requests in all take some 6 GB of memory"
    assert refused == "error: out of memory: Unable to allocate 381. MiB"


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (OSError("Could not find/load shared object file 'libllvmlite.so'"), 2),
        (ImportError("libopenblas.so: failed to map segment from shared object", name="numpy.linalg"), 2),
        (ImportError("cannot import name 'x'", name="kvplan.simulation"), 3),
    ],
)
def test_a_library_that_cannot_be_loaded_is_no_defect_of_kvplan(
    run: Run, monkeypatch: pytest.MonkeyPatch, error: Exception, code: int
) -> None:
    def lacking(*given: object, **named: object) -> NoReturn:
        raise error

    monkeypatch.setattr(study, "study", lacking)
    returned, out, said = run("simulate", "tool-calls-h100", "--policy", "greedy", "--requests", "60")
    assert (returned, out) == (code, "")
    refusal = "error: a library cannot be loaded" if code == 2 else "error: kvplan itself failed"
    assert said.startswith(refusal)
    assert str(error) in said


def test_no_more_open_files_is_one_error(tmp_path: Path) -> None:
    vary = ("--vary", "gpu.memory_tokens=20k:400k:9", "--simulate", "--workers", "2")
    said = process(
        *("sweep", "tool-calls-h100", *vary, "-o", tmp_path / "rows.csv"),
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (10, 10)),
    )
    assert (said.returncode, said.stdout) == (2, "")
    assert said.stderr == "error: kvplan cannot go on: Too many open files\n"
