"""Sweeps on a Dask cluster of two workers, started by Dask's own commands as docs/simulate.md says."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

import pytest

from kvplan.cli.app import main

pytest.importorskip("distributed", reason="the extra dask is not installed")

DASK = [sys.executable, "-m", "dask"]
SWEEP = ["sweep", "tool-calls-h100", "--vary", "gpu.memory_tokens=2k:900k:600", "--columns", "rate_cap.*"]


class Cluster(NamedTuple):
    address: str
    scheduler: subprocess.Popen[bytes]
    workers: tuple[subprocess.Popen[bytes], ...]


@contextmanager
def a_cluster(folder: Path) -> Iterator[Cluster]:
    """A scheduler on a free port of this machine, and two workers of one thread."""
    place, log = folder / "scheduler.json", (folder / "dask.log").open("wb")
    local = ["--host", "127.0.0.1", "--no-dashboard", "--scheduler-file", str(place)]
    started = [subprocess.Popen([*DASK, "scheduler", "--port", "0", *local], stdout=log, stderr=log)]
    try:
        for i in range(2):
            options = ["--nthreads", "1", "--no-nanny", "--local-directory", str(folder / f"worker-{i}")]
            started.append(subprocess.Popen([*DASK, "worker", *local, *options], stdout=log, stderr=log))
        wait_until(lambda: place.exists() and place.stat().st_size > 0)
        address = json.loads(place.read_text())["address"]
        yield Cluster(address, started[0], tuple(started[1:]))
    finally:
        for process in started:
            process.kill()
            process.wait()
        log.close()


def wait_until(met: object) -> None:
    deadline = time.monotonic() + 60
    while not met():  # type: ignore[operator]
        assert time.monotonic() < deadline
        time.sleep(0.02)


def begun(cluster: Cluster, out: Path) -> subprocess.Popen[str]:
    """A sweep on the cluster that has written some lines, and not all."""
    command = [sys.executable, "-P", "-m", "kvplan", *SWEEP, "--executor", cluster.address, "-o", str(out)]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    wait_until(lambda: out.exists() and out.read_bytes().count(b"\n") > 20)
    assert process.poll() is None
    return process


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    out = tmp_path_factory.mktemp("whole") / "out.csv"
    assert main([*SWEEP, "--executor", "serial", "-o", str(out)]) == 0
    return out.read_bytes()


@pytest.mark.nightly
def test_a_cluster_that_loses_a_worker_gives_the_same_bytes_and_one_that_loses_its_scheduler_can_be_resumed(
    tmp_path: Path, whole: bytes
) -> None:
    one, two = tmp_path / "one.csv", tmp_path / "two.csv"
    with a_cluster(tmp_path) as cluster:
        process = begun(cluster, one)
        os.kill(cluster.workers[0].pid, signal.SIGKILL)
        assert process.communicate(timeout=120)[1] == ""
        assert process.returncode == 0
        assert one.read_bytes() == whole
        process = begun(cluster, two)
        cluster.scheduler.terminate()
        said = process.communicate(timeout=120)[1]
        assert process.returncode == 3
        assert said == (
            f"error: {cluster.address}: the Dask scheduler is gone; --resume goes on from what is there\n"
        )
        assert whole.startswith(two.read_bytes())
    assert main([*SWEEP, "--executor", "serial", "-o", str(two), "--resume"]) == 0
    assert two.read_bytes() == whole


def test_a_local_cluster_gives_the_same_bytes(tmp_path: Path, whole: bytes) -> None:
    """And says nothing, though another cluster has the port of its web server."""
    out = tmp_path / "out.csv"
    command = [sys.executable, "-P", "-m", "kvplan", *SWEEP, "--executor", "dask", "--workers", "2"]
    with socket.socket() as other:
        with suppress(OSError):  # somebody else's then
            other.bind(("", 8787))
            other.listen()
        done = subprocess.run([*command, "-o", str(out)], capture_output=True, text=True, check=True)
    assert done.stderr == ""
    assert out.read_bytes() == whole
