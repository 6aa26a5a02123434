"""Files that are pipes, change while they are read, or are larger than memory."""

import os
import threading
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path

import pytest
from command import process, run
from every import every
from tiers import at_night

from kvplan.ingest.text_file import lines_of

ROWS = "time,input,output\n0,100,20\n1,100,40\n2,300,5\n4,300,7\n5,300,5\n"
PROFILE = """schema = 1
name = "piped"
gpu = { memory_tokens = 41_408 }
timing = { d0 = 0.0145, d1 = 2.5e-7 }
classes = [{ name = "a", input = 1155, decode = 211, rate = 1 }]
"""
LOG = "GPU KV cache size: 32,000 tokens\n"
METRICS = '# TYPE x counter\nvllm:cache_config_info{block_size="16",num_gpu_blocks="2000"} 1\n'
SAMPLES = "kv_tokens,prefill_tokens,iteration_ms\n" + "".join(
    f"{k},{p},{10 + k / 1000 + p / 10}\n" for k in (0, 4000, 20000) for p in (0, 50)
)
COMMANDS = [
    (["analyze", "PIPE"], PROFILE),
    *((["import", "PIPE", "--base", "tool-calls-h100"], text) for text in (ROWS, SAMPLES, LOG)),
    *at_night(
        (["check", "PIPE", "--require", "load.headroom > 0"], PROFILE),
        (["diff", "PIPE", "tool-calls-h100"], PROFILE),
        (["explain", "load.headroom", "PIPE"], PROFILE),
        (["simulate", "PIPE", "--requests", "50"], PROFILE),
        (["simulate", "tool-calls-h100", "--policy", "greedy,vllm", "--trace", "PIPE"], ROWS),
        (["emit", "PIPE", "--target", "vllm"], PROFILE),
        (["plan", "PIPE", "--rate", "2"], PROFILE),
        (["mix", "PIPE", "--replicas", "2"], PROFILE),
        (["sweep", "PIPE", "--vary", "timing.d0=1ms,2ms", "-o", "OUTPUT"], PROFILE),
        (["import", "PIPE"], METRICS),
    ),
]


@pytest.mark.parametrize("command", COMMANDS)
def test_a_pipe_that_has_a_name_is_read_as_a_file_is(command: tuple[list[str], str], tmp_path: Path) -> None:
    """Once, and from its beginning: what came through a pipe does not come again."""
    arguments, text = command
    path, found = tmp_path / "a.toml", []
    os.mkfifo(path)

    def write() -> None:
        with path.open("w") as end:
            end.write(text)

    threading.Thread(target=write, daemon=True).start()
    for started in (process, run):
        output = tmp_path / "out.csv"
        places = {"PIPE": str(path), "OUTPUT": str(output)}
        done = started(*(places.get(word, word) for word in arguments))
        assert done.returncode == 0, done.stderr
        found.append((done.stdout, done.stderr, output.read_bytes() if output.exists() else b""))
        output.unlink(missing_ok=True)
        path.unlink()
        path.write_text(text)
    assert found[0] == found[1]


def grow(path: Path) -> None:
    with path.open("ab") as file:
        file.write(b"1,2,3\n" * 9)


def replace(path: Path) -> None:
    path.with_name("new").write_bytes(b"other\n")
    path.with_name("new").replace(path)


def shrink(path: Path) -> None:
    os.truncate(path, 0)


@every("change", [grow, replace, shrink, Path.unlink])
def test_a_file_that_changes_is_what_was_read_of_it(change: Callable[[Path], object], tmp_path: Path) -> None:
    """The digest is that of the lines given out, whatever the file has become."""
    path = tmp_path / "moving"
    path.write_bytes(b"0123456,789\n" * 100_000)
    taken = []
    with lines_of(path) as lines:
        for line in lines:
            if not taken:
                change(path)
            taken.append(line)
    assert len(taken) > 10_000
    assert lines.sha256 == sha256("".join(taken).encode()).hexdigest()


@every(
    "command",
    [
        *("analyze IT -o IT", "emit IT --target vllm -o IT", "plan IT -o IT", "explain load IT -o IT"),
        *("mix IT --replicas 2 -o IT", "diff tool-calls-h100 IT -o IT"),
        *(
            f"simulate IT --trace TRACE {option} {read}"
            for option in ("-o", "--series")
            for read in ("IT", "TRACE")
        ),
        *("plan IT --rate 5 --plot IT", "analyze IT --plot IT", "simulate IT --plot IT"),
        "sweep IT --vary timing.d0=1ms,2ms -o ROWS --plot IT",
    ],
)
def test_nothing_is_written_over_what_is_read(command: str, tmp_path: Path) -> None:
    files = {"IT": tmp_path / "it.svg", "TRACE": tmp_path / "trace.csv", "ROWS": tmp_path / "rows.csv"}
    files["IT"].write_text(PROFILE)
    files["TRACE"].write_text(ROWS)
    words = [str(files.get(word, word)) for word in command.split()]
    done = run(*words)
    refusal = f"error: {words[-2]} {words[-1]}: would overwrite what is read\n"
    assert (done.returncode, done.stderr) == (2, refusal)
    assert (files["IT"].read_text(), files["TRACE"].read_text()) == (PROFILE, ROWS)
