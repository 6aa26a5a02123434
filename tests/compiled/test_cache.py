"""Compiled code is kept where it can be; a file that is damaged, or cannot be written, costs a note and no result."""

import hashlib
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from command import ENVIRONMENT

from kvplan import compiling
from kvplan.compiling import native
from kvplan.ingest.trace import prefixes

CODE = """
import numpy as np
from kvplan.ingest.trace import prefixes

prefixes._COMPILE_FROM = 0  # its loop is the soonest compiled
ones = np.array([1, 0, 1])
print(prefixes.stack_distances(np.array([1, 2, 1, 2]), np.array([0, 2, 3, 4]), ones, np.array([4, 10, 0]), 16).tolist())
"""
COMMAND = [sys.executable, "-P", "-c", CODE]


def process(folder: Path, prepare: Callable[[], None] | None = None) -> subprocess.CompletedProcess[str]:
    """One that keeps compiled code in a folder."""
    return subprocess.run(
        COMMAND,
        capture_output=True,
        text=True,
        check=True,
        # Python itself does not notice when its byte code is cut off
        env=ENVIRONMENT | {"KVPLAN_CACHE_DIR": str(folder), "PYTHONDONTWRITEBYTECODE": "1"},
        timeout=100,
        preexec_fn=prepare,
    )


Use = Callable[[Path], tuple[list[int], list[str]]]
object_code = cache(native.object_code)  # LLVM makes the same of the same


@pytest.fixture
def use(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> Iterator[Use]:
    """Do in this process what CODE does in one of its own: what is found with code kept in a folder, and the notes."""
    monkeypatch.setattr(prefixes, "_COMPILE_FROM", 0)
    monkeypatch.setattr(native, "object_code", object_code)
    known = (compiling.folder, compiling._say, prefixes._compiled)

    def used(folder: Path) -> tuple[list[int], list[str]]:
        monkeypatch.setenv("KVPLAN_CACHE_DIR", str(folder))
        for each in known:
            each.cache_clear()
        caplog.clear()
        ones = np.array([1, 0, 1])
        given = (np.array([1, 2, 1, 2]), np.array([0, 2, 3, 4]), ones, np.array([4, 10, 0]), 16)
        return prefixes.stack_distances(*given).tolist(), caplog.messages

    yield used
    for each in known:
        each.cache_clear()


def kept(folder: Path) -> Path:
    [file] = (path for path in folder.rglob("*") if path.is_file())
    return file


def test_a_full_disk_costs_a_note_and_leaves_nothing_behind(tmp_path: Path) -> None:
    done = process(tmp_path, prepare=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100)))
    [folder] = tmp_path.iterdir()
    assert (
        done.stderr
        == f"note: compiled code cannot be kept in {str(folder)!r}, later runs compile again: File too large\n"
    )
    assert list(folder.iterdir()) == []


def test_nobody_is_waited_for_to_write_code_into_a_pipe(tmp_path: Path) -> None:
    pipe = tmp_path / "loop"
    os.mkfifo(pipe)
    assert compiling.load(str(pipe)) is None
    compiling.save(str(pipe), b"code")
    assert compiling.load(str(pipe)) == b"code"


def test_code_that_others_could_have_written_is_not_run(use: Use, tmp_path: Path) -> None:
    use(tmp_path)
    file = kept(tmp_path)
    file.write_bytes(b"harmful")
    file.parent.chmod(0o777)
    [note] = use(tmp_path)[1]
    assert "later runs compile again: others could write to it" in note
    assert file.read_bytes() == b"harmful"


def test_a_folder_around_it_that_others_could_write_to_is_as_bad(use: Use, tmp_path: Path) -> None:
    """They could put another one in its place; not where nobody moves what is another's, as in /tmp."""
    around = tmp_path / "around"
    around.mkdir()
    for mode, said in (
        (0o777, f"others could write to {str(around)!r}"),
        (0o1777, ""),
        (0o775, "others"),
        (0o755, ""),
    ):
        around.chmod(mode)
        for _ in range(2):  # what is not kept is not there the next time
            notes = use(around / "loops")[1]
            assert [said in note for note in notes] == [True] * bool(said)


def test_a_file_that_others_could_write_to_is_not_run(use: Use, tmp_path: Path) -> None:
    use(tmp_path)
    file = kept(tmp_path)
    file.chmod(0o666)
    [note] = use(tmp_path)[1]
    assert f"others could write to {file.name!r}" in note


def test_junk_with_a_right_digest_is_compiled_anew(tmp_path: Path) -> None:
    """LLVM would end the process."""
    first = process(tmp_path)
    file = kept(tmp_path)
    whole = file.read_bytes()[32:]
    assert native.is_object(whole)
    for junk in (b"", b"junk" * 500, whole[:300], whole[:64] + b"junk" * 500):
        assert not native.is_object(junk)
    file.write_bytes(hashlib.sha256(junk).digest() + junk)
    done = process(tmp_path)
    assert done.stdout == first.stdout
    assert done.stderr == f"note: compiled code in {str(file.parent)!r} was damaged, compiling again\n"
    assert file.read_bytes()[32:] == whole


def test_processes_that_write_at_once_leave_one_whole_file(tmp_path: Path) -> None:
    environment = ENVIRONMENT | {"KVPLAN_CACHE_DIR": str(tmp_path)}
    together = [
        subprocess.Popen(COMMAND, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment)
        for _ in range(2)
    ]
    assert len({one.communicate() for one in together}) == 1
    kept(tmp_path)
    assert process(tmp_path).stderr == ""


SLOW_TO_COMPILE = """
import signal, sys
from kvplan.cli.app import main
from kvplan.compiling import native

signal.signal(signal.SIGINT, signal.default_int_handler)  # background jobs ignore it
native.__file__ = sys.argv[1]  # instead of LLVM
print("begins", flush=True)
sys.exit(main(["simulate", "tool-calls-h100", "--policy", "greedy", "--requests", "1000000", "--format", "csv"]))
"""


def test_an_interrupt_while_compiling_ends_the_command_within_half_a_second(tmp_path: Path) -> None:
    compiler = tmp_path / "compiler.py"
    compiler.write_text(
        f"import time\nopen({str(tmp_path / 'compiling')!r}, 'w').close()\ntime.sleep(60)\n", encoding="utf-8"
    )
    command = subprocess.Popen(
        [sys.executable, "-c", SLOW_TO_COMPILE, str(compiler)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=ENVIRONMENT | {"KVPLAN_CACHE_DIR": str(tmp_path / "cache")},
        start_new_session=True,
    )
    deadline = time.monotonic() + 60
    while not (tmp_path / "compiling").exists() and time.monotonic() < deadline:
        time.sleep(0.01)
    began = time.monotonic()
    os.killpg(command.pid, signal.SIGINT)  # as a terminal does, to the compiler too
    _, said = command.communicate(timeout=30)
    took = time.monotonic() - began
    print(said, took)
    assert command.returncode == 130
    assert "Traceback" not in said
    assert said.count("\n") <= 1
    assert took < 2, "half a second on a machine that does nothing else"


def test_damaged_code_is_compiled_again_and_renewed_with_one_note(use: Use, tmp_path: Path) -> None:
    found, notes = use(tmp_path)
    assert notes == []
    file = kept(tmp_path)
    whole = file.read_bytes()
    file.write_bytes(whole[:-1000] + bytes([whole[-1000] ^ 1]) + whole[-999:])
    assert compiling.load(str(file)) is None  # else it would be run
    assert use(tmp_path) == (
        found,
        [f"note: compiled code in {str(file.parent)!r} was damaged, compiling again"],
    )
    renewed = file.read_bytes()
    assert renewed[:32] == hashlib.sha256(renewed[32:]).digest()
    for damaged in (b"", whole[:16], whole[: len(whole) // 2]):
        file.write_bytes(damaged)
        assert compiling.load(str(file)) is None
    file.write_bytes(renewed)
    assert use(tmp_path) == (found, [])


def test_a_folder_of_caches_that_is_relative_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("KVPLAN_CACHE_DIR")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    for caches, expected in (("here", "home/.cache/kvplan"), (str(tmp_path / "there"), "there/kvplan")):
        monkeypatch.setenv("XDG_CACHE_HOME", caches)
        folder = compiling.folder.__wrapped__()
        assert folder is not None
        assert Path(folder).parent == tmp_path / expected
    assert not (tmp_path / "here").exists()


@pytest.mark.nightly
def test_where_there_is_no_folder_nothing_is_kept(tmp_path: Path) -> None:
    taken = tmp_path / "a file"
    taken.touch()
    for folder, why in (
        *((taken, "Not a directory"), (taken / "below", "Not a directory")),
        (Path("/proc"), "No such file or directory"),
    ):
        (note,) = process(folder).stderr.splitlines()
        assert note.startswith(f"note: compiled code cannot be kept in '{folder}/")
        assert note.endswith(f", later runs compile again: {why}")
    assert list(tmp_path.iterdir()) == [taken]
