"""What ends a command before its time, and files made to never end: whole results, one line, the documented code."""

import array
import fcntl
import gzip
import os
import resource
import signal
import subprocess
import sys
import termios
import time
from pathlib import Path

import pytest
import zstandard
from command import ENVIRONMENT, process, run

SWEEP = ("sweep", "tool-calls-h100", "--vary", "gpu.memory_tokens=2k:900k:40000", "--columns", "rate_cap.*")
SWEEP += ("--workers", "1")
MANY = 20_000


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_leaves_whole_lines_and_nothing_else(number: signal.Signals, tmp_path: Path) -> None:
    out = tmp_path / "out.csv"
    command = [sys.executable, "-P", "-m", "kvplan", *SWEEP, "-o", str(out)]
    with subprocess.Popen(command, env=ENVIRONMENT, stderr=subprocess.PIPE, start_new_session=True) as child:
        deadline = time.monotonic() + 60
        while not (out.exists() and out.read_bytes().count(b"\n") > 3) and time.monotonic() < deadline:
            time.sleep(0.01)
        os.killpg(child.pid, number)
        assert child.communicate(timeout=60) == (None, b"")
    assert child.returncode == -number  # which shells call 128 + number
    assert out.read_bytes().endswith(b"\n")
    assert list(tmp_path.iterdir()) == [out]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_an_import_that_is_stopped_while_it_reads_writes_nothing(
    number: signal.Signals, tmp_path: Path
) -> None:
    fifo, out = tmp_path / "results.csv", tmp_path / "out.toml"
    os.mkfifo(fifo)
    child = subprocess.Popen(
        [sys.executable, "-P", "-m", "kvplan", "import", str(fifo), "-o", str(out)],
        env=ENVIRONMENT | {"TMPDIR": str(tmp_path)},
        stderr=subprocess.PIPE,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    with child, fifo.open("w") as pipe:  # opens once the command has opened the other end
        pipe.write("kv_tokens,iteration_ms\n1000,10\n")
        pipe.flush()
        while array.array("i", fcntl.ioctl(pipe, termios.FIONREAD, b"\0" * 4))[0]:
            time.sleep(0.01)
        time.sleep(0.2)  # until it waits for more: a signal just before is looked at after the wait
        child.send_signal(number)
        assert child.communicate(timeout=60) == (None, b"")
    assert child.returncode == (130 if number == signal.SIGINT else -number)
    assert list(tmp_path.iterdir()) == [fifo]


def test_a_disk_that_is_full_under_a_sweep_keeps_whole_lines(tmp_path: Path) -> None:
    out = tmp_path / "out.csv"
    done = process(
        *SWEEP, "-o", out, preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (3_000, 3_000)),
        env={"PYTHONDONTWRITEBYTECODE": "1"},
    )  # fmt: skip
    assert (done.returncode, done.stderr.count("error: ")) == (2, 1)
    assert out.read_bytes().endswith(b"\n")
    assert 0 < out.stat().st_size <= 3_000


def test_a_reader_that_goes_after_a_line_ends_the_command_quietly(tmp_path: Path) -> None:
    messages = tmp_path / "messages"
    command = f"{sys.executable} -P -m kvplan schema 2>{messages} | head -1; exit ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", command], env=ENVIRONMENT, capture_output=True, timeout=60)
    assert done.stdout.count(b"\n") == 1
    assert done.returncode in (0, 141)
    assert messages.read_bytes() == b""


def test_two_processes_do_not_sweep_into_one_file(tmp_path: Path) -> None:
    out = tmp_path / "out.csv"
    command = [sys.executable, "-P", "-m", "kvplan", *SWEEP, "-o", str(out)]
    with subprocess.Popen(command, env=ENVIRONMENT, stderr=subprocess.DEVNULL) as first:
        deadline = time.monotonic() + 60
        while not out.exists() and time.monotonic() < deadline:
            time.sleep(0.01)
        second = run(*SWEEP, "-o", out, "--resume")
        first.kill()
    assert (second.returncode, second.stderr.count("\n")) == (2, 1)
    assert "another sweep is writing it" in second.stderr


STATEMENTS = (
    *("Prefill batch", "Decode batch. #running-req: 1, #token: 1,", "KV Cache is allocated."),
    *("Avg prompt throughput: 1", "new slot = ", 'load request="{Operation:commit ', "llama_kv_cache: size = ("),
    "Iteration(1): ",
    *("host_step_time states = {iter = 1, ", "Drafted: 1 tokens, Per-position acceptance rate: 0.1, "),
    *("non-default args: {", "server_args=ServerArgs(", "\x1b]", "(A pid=1) ", "| - + "),
    '2025-01-01T00:00:00Z {a="" ',
)  # fmt: skip
ENDLESS = {
    "gzip": gzip.compress(b"\n" * (1 << 27), 1),
    "zstd": zstandard.compress(b"\n" * (1 << 27)),
    "JSON, deep": b"[" * 100_000,
    "objects, deep": b'{"a":' * 100_000,
    "quotes": b'"' * 1_000_001,
    "a header of commas": b"," * 1_000_000 + b"\n1\n",
    "YAML, deep": b"results:\n request_performance: " + b"[" * 50_000,
    "YAML, long": b"results:\n request_performance:\n" + b"  - a: 1\n" * 9_000,
    **{repr(words): (words * MANY).encode() for words in STATEMENTS},
}


@pytest.mark.parametrize("name", ENDLESS)
def test_a_file_made_to_take_for_ever_is_refused_in_a_line(name: str, tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(ENDLESS[name])
    start = time.process_time()
    done = run("import", path, "-o", tmp_path / "out.toml")
    assert time.process_time() - start < 4
    assert (done.returncode, done.stderr.count("error: ")) == (2, 1), done.stderr[:300]
    assert len(done.stderr) < 2_000
    assert list(tmp_path.iterdir()) == [path]
