"""A scheduler that lies: nothing but lines of the points asked for reaches the file, which can be gone on with."""

import os
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from kvplan import executors
from kvplan.cli.app import main

SWEEP = ["sweep", "tool-calls-h100", "--vary", "gpu.memory_tokens=2k:900k:200", "--columns", "rate_cap.*"]
LIES: dict[str, Callable[[list[bytes]], Any]] = {
    "points twice": lambda found: found * 2,
    "a point twice": lambda found: [*found[:-1], found[0]],
    "two lines in one": lambda found: [found[0] + found[1], *found[2:], b""],
    "other values": lambda found: [b"0,12345" + found[0][found[0].index(b",", 2) :], *found[1:]],
    "garbage": lambda found: os.urandom(300),
}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    out = tmp_path_factory.mktemp("whole") / "out.csv"
    assert main([*SWEEP, "--executor", "serial", "-o", str(out)]) == 0
    return out.read_bytes()


class Lying(Executor):
    """Tells the truth once."""

    def __init__(self, lie: Callable[[list[bytes]], Any]) -> None:
        self._lie, self._asked = lie, 0

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()
        found = fn(*args, **kwargs)
        self._asked += 1
        future.set_result(found if self._asked == 1 else self._lie(found))
        return future


@pytest.mark.parametrize("name", LIES)
def test_what_is_not_asked_for_is_not_written(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    whole: bytes,
    name: str,
) -> None:
    lie = LIES[name]
    if name == "other values":
        # the first point is a truth of the first batch
        monkeypatch.setattr(Lying, "submit", lambda self, fn, *args: _done(lie(fn(*args))))

    @contextmanager
    def started(kind: str, workers: int | None) -> Iterator[executors.Engine]:
        yield executors.Engine(Lying(lie), 2, lambda: None)

    out = tmp_path / "out.csv"
    with monkeypatch.context() as patched:
        patched.setattr(executors, "started", started)
        assert main([*SWEEP, "--executor", "cores", "-o", str(out)]) == 3
    said = capsys.readouterr().err
    assert "what came back is not points" in said
    assert "--resume" in said
    if out.exists():
        assert whole.startswith(out.read_bytes())
        assert main([*SWEEP, "--resume", "--executor", "serial", "-o", str(out)]) == 0
        assert out.read_bytes() == whole


def _done(value: Any) -> Future[Any]:
    future: Future[Any] = Future()
    future.set_result(value)
    return future


ANSWERS = {
    "garbage": bytes(range(256)) * 9,
    "of another kind": b"HTTP/1.1 400 Bad Request\r\n\r\n",
    "hangs": None,
}


@pytest.mark.parametrize("answer", ANSWERS.values(), ids=ANSWERS)
def test_what_is_no_scheduler_is_told_by_its_answer(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    answer: bytes | None,
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
    command = [sys.executable, "-m", "kvplan", *SWEEP, "--executor", "serial", "-o", str(tmp_path / "a.csv")]
    reading, writing = os.pipe()
    os.close(reading)
    done = subprocess.run(command, stdout=writing, stderr=subprocess.PIPE, text=True, check=False)
    os.close(writing)
    assert (done.returncode, done.stderr) == (0, "")
    assert (tmp_path / "a.csv").read_bytes() == whole
