"""What answers in the place of a scheduler, and what reads in the place of a terminal, does a sweep no harm."""

import os
import socket
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from kvplan import executors
from kvplan.cli.app import main

SWEEP = ["sweep", "tool-calls-h100", "--vary", "gpu.memory_tokens=2k:900k:200", "--columns", "rate_cap.*"]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    out = tmp_path_factory.mktemp("whole") / "out.csv"
    assert main([*SWEEP, "--executor", "serial", "-o", str(out)]) == 0
    return out.read_bytes()


ANSWERS = {
    "garbage": bytes(range(256)) * 9,
    "of another kind": b"HTTP/1.1 400 Bad Request\r\n\r\n",
    "hangs": None,
}


@pytest.mark.parametrize("answer", ANSWERS.values(), ids=ANSWERS)
def test_what_is_no_scheduler_is_told_by_its_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], answer: bytes | None
) -> None:
    pytest.importorskip("distributed", reason="the extra dask is not installed")
    monkeypatch.setattr(executors, "_CONNECT_S", 0.5)
    out = tmp_path / "out.csv"
    with socket.create_server(("127.0.0.1", 0)) as server:
        held: list[socket.socket] = []

        def serve() -> None:
            while True:
                try:
                    held.append(server.accept()[0])
                    if answer is not None:
                        held[-1].sendall(answer)
                        held[-1].shutdown(socket.SHUT_WR)
                except OSError:
                    return

        threading.Thread(target=serve, daemon=True).start()
        address = f"tcp://127.0.0.1:{server.getsockname()[1]}"
        assert main([*SWEEP, "--executor", address, "-o", str(out)]) == 3
        server.shutdown(socket.SHUT_RDWR)
    for one in held:
        one.close()
    said = capsys.readouterr().err
    assert said.startswith(f"error: {address}: no Dask scheduler with workers answers (")
    assert said.count("\n") == 1
    assert not out.exists()


def test_a_closed_pipe_does_not_stop_a_sweep_from_writing_its_file(tmp_path: Path, whole: bytes) -> None:
    """Results go to the file, so that `| head` closes on nothing but messages."""
    out = tmp_path / "a.csv"
    command = [sys.executable, "-P", "-m", "kvplan", *SWEEP, "--executor", "serial", "-o", str(out)]
    reading, writing = os.pipe()
    os.close(reading)
    done = subprocess.run(command, stdout=writing, stderr=subprocess.PIPE, text=True, check=False)
    os.close(writing)
    assert (done.returncode, done.stderr) == (0, "")
    assert out.read_bytes() == whole
