"""What takes a process of its own: streams that are closed, full or gone, locales, interrupts, terminals."""

import os
import pty
import re
import signal
import subprocess
import sys
from pathlib import Path
from unittest import mock

import pytest
from command import ENVIRONMENT, process, run
from tiers import at_night, is_night

from kvplan.cli.app import main

# 12 requests/s are sustainable: a headroom of 0.5 at 8, and too little at 11
PROFILE = """schema = 1
name = "Größe – 日本"
gpu = {{ memory_tokens = 60, prefill = "disaggregated" }}
timing = {{ d0 = "1 s" }}
classes = [{{ name = "a", input = 1, decode = 2, rate = {} }}]
gate.require = ["load.headroom >= 0.25"]
"""


@pytest.fixture
def good(tmp_path: Path) -> Path:
    path = tmp_path / "good.toml"
    path.write_text(PROFILE.format(8))
    return path


@pytest.fixture
def bad(tmp_path: Path) -> Path:
    path = tmp_path / "bad.toml"
    path.write_text(PROFILE.format(11))
    return path


def test_the_exit_code_survives_streams_that_are_closed_or_full(good: Path, bad: Path) -> None:
    cases = [
        (f"check {bad} 2>&-", 1),
        (f"check {good} >&-", 2),
        (f"check {bad} >/dev/full 2>/dev/full", 2),
        ("analyze - <&-", 2),
        *(
            [("--version >/dev/full", 2), ("--help >/dev/full", 2), (f"check {good} <&- 2>&-", 0)]
            if is_night()
            else []
        ),
    ]
    for call, code in cases:
        command = f"{sys.executable} -P -m kvplan {call}"
        done = subprocess.run(["sh", "-c", command], env=ENVIRONMENT, capture_output=True, text=True)
        assert (call, done.returncode) == (call, code)
        assert "Traceback" not in done.stderr
        if call.endswith(" >/dev/full"):
            assert re.fullmatch(r"error: .*No space left on device\n", done.stderr)


@pytest.mark.parametrize(
    "environment",
    [
        {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"},
        *at_night({"PYTHONIOENCODING": "ascii"}, {"PYTHONIOENCODING": "latin-1"}),
    ],
)
def test_the_locale_changes_no_byte(environment: dict[str, str], bad: Path, tmp_path: Path) -> None:
    call = ("check", bad, "--format", "markdown", "--junit")
    plain = run(*call, tmp_path / "1.xml")
    found = process(*call, tmp_path / "2.xml", env=environment)
    assert (found.returncode, found.stdout) == (1, plain.stdout)
    assert "Größe – 日本" in found.stdout
    assert (tmp_path / "1.xml").read_bytes() == (tmp_path / "2.xml").read_bytes()


def test_an_interrupt_while_reading_ends_the_command_quietly(tmp_path: Path) -> None:
    fifo = tmp_path / "profile.toml"
    os.mkfifo(fifo)
    command = subprocess.Popen(
        [sys.executable, "-P", "-m", "kvplan", "analyze", str(fifo)],
        env=ENVIRONMENT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    with command, fifo.open("w"):  # opens once the command has opened the other end
        command.send_signal(signal.SIGINT)
        assert command.communicate(timeout=60) == (b"", b"")
    assert command.returncode == 130


INTERRUPTED = """
import atexit, os, signal, sys

signal.signal(signal.SIGINT, signal.default_int_handler)  # background jobs ignore it
when = sys.argv.pop()


class Finder:
    def find_spec(self, name, path, target=None):
        if name == when:
            os.kill(os.getpid(), signal.SIGINT)


sys.meta_path.insert(0, Finder())
from kvplan.__main__ import main

if when == "exit":
    atexit.register(os.kill, os.getpid(), signal.SIGINT)
sys.exit(main())
"""


@pytest.mark.parametrize("when", ["typer", "exit", *at_night("numpy", "kvplan.analysis")])
def test_an_interrupt_while_starting_or_ending_is_quiet(when: str, good: Path) -> None:
    """While it imports what all commands need, and what this one does; and when all is said."""
    command = [sys.executable, "-c", INTERRUPTED, "check", str(good), "-o", os.devnull, when]
    done = subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True, timeout=60)
    assert (done.stdout, done.stderr) == ("", "")
    assert done.returncode in (130, -signal.SIGINT)


def on_terminal(*arguments: object, **environment: str) -> str:
    """What the command writes to a terminal."""
    leader, follower = pty.openpty()
    command = subprocess.Popen(
        [sys.executable, "-P", "-m", "kvplan", *map(str, arguments)],
        stdout=follower,
        env=ENVIRONMENT | {"TERM": "xterm"} | environment,
    )
    os.close(follower)
    received = b""
    while True:
        try:
            data = os.read(leader, 65536)
        except OSError:  # how Linux says that nobody holds the other end
            break
        if not data:
            break
        received += data
    os.close(leader)
    assert command.wait(timeout=60) == 0
    return received.decode(environment.get("PYTHONIOENCODING", "utf-8"))


def shown(*arguments: object, **environment: str) -> str:
    """What the command writes to a terminal in this process; no more than a terminal keeps unread."""
    leader, follower = pty.openpty()
    environment = ENVIRONMENT | {"TERM": "xterm"} | environment
    with (
        open(follower, "w", encoding="utf-8") as terminal,
        mock.patch.object(sys, "stdout", terminal),
        mock.patch.dict(os.environ, environment, clear=True),
    ):
        assert main(list(map(str, arguments))) == 0
        terminal.write("\n")
    text = os.read(leader, 65536)
    os.close(leader)
    return text.decode()


def test_colour_is_for_terminals_that_want_it(good: Path, tmp_path: Path) -> None:
    assert "\x1b[1;32mSTABLE\x1b[0m" in on_terminal("analyze", good)
    assert "\x1b" in shown("check", good)
    assert "\x1b" not in shown("check", good, NO_COLOR="1")
    assert "\x1b" not in shown("check", good, TERM="dumb")
    shown("check", good, "-o", tmp_path / "report.txt")
    assert "\x1b" not in (tmp_path / "report.txt").read_text("utf-8")
