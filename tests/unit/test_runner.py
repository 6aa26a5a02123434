"""Runs in several threads."""

import signal
import threading
import time

import pytest

from kvplan.simulation import engine
from kvplan.simulation.experiments.runner import at_once


def test_ctrl_c_ends_the_runs_that_are_waited_for() -> None:
    ended = []

    def work(place: int) -> None:
        if place == 0:
            time.sleep(0.05)  # until it is waited for
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
        until = time.monotonic() + 10
        try:
            while time.monotonic() < until:
                engine.look_up()
                time.sleep(0.001)
        except KeyboardInterrupt:
            ended.append(place)
            raise

    with pytest.raises(KeyboardInterrupt):
        at_once(work, range(3), threads=2)
    assert sorted(ended) == [0, 1]  # the third had not begun
    engine.look_up()  # what comes afterwards is run
