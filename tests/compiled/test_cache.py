"""Compiled code is kept where it can be; a file that is damaged, or cannot be written, costs a note and no result."""

import os
import resource
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

COMMAND = ["simulate", "tool-calls-h100", "--policy", "greedy", "--requests", "300000", "--format", "csv"]
ONE_MORE = """
from kvplan.compiling import at_hand, compiled


def one_more(x):
    return x + 1


found = compiled(one_more, "one more")
print(at_hand(found), found(41))
"""


def process(
    *command: str, folder: Path, prepare: Callable[[], None] | None = None
) -> subprocess.CompletedProcess[str]:
    """One that keeps compiled code in a folder."""
    environment = os.environ | {"KVPLAN_CACHE_DIR": str(folder)}
    return subprocess.run(
        [sys.executable, *command],
        capture_output=True,
        text=True,
        check=True,
        env=environment,
        timeout=250,
        preexec_fn=prepare,
    )


def kept(folder: Path) -> Path:
    [file] = (path for path in folder.rglob("*") if path.is_file())
    return file


DAMAGES: dict[str, Callable[[bytes], bytes]] = {
    "empty": lambda whole: b"",
    "truncated": lambda whole: whole[: len(whole) // 2],
    "garbage": lambda whole: b"garbage " * (len(whole) // 8),
    "one bit": lambda whole: whole[:-1000] + bytes([whole[-1000] ^ 1]) + whole[-999:],
}


def test_damaged_code_is_compiled_again_and_renewed_with_one_note(tmp_path: Path) -> None:
    first = process("-c", ONE_MORE, folder=tmp_path)
    assert (first.stdout, first.stderr) == ("False 42\n", "")
    file = kept(tmp_path)
    whole = file.read_bytes()
    for damage in DAMAGES.values():
        file.write_bytes(damage(whole))
        done = process("-c", ONE_MORE, folder=tmp_path)
        assert done.stdout == "True 42\n"
        assert done.stderr == f"note: compiled code in {str(file.parent)!r} was damaged, compiling again\n"
        later = process("-c", ONE_MORE, folder=tmp_path)
        assert (later.stdout, later.stderr) == ("True 42\n", "")


def test_a_full_disk_costs_a_note_and_leaves_nothing_behind(tmp_path: Path) -> None:
    def full() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100))

    done = process("-c", ONE_MORE, folder=tmp_path, prepare=full)
    assert done.stdout == "False 42\n"
    [folder] = tmp_path.iterdir()
    assert (
        done.stderr
        == f"note: compiled code cannot be kept in {str(folder)!r}, later runs compile again: File too large\n"
    )
    assert list(folder.iterdir()) == []


def test_where_there_is_no_folder_nothing_is_kept(tmp_path: Path) -> None:
    taken = tmp_path / "a file"
    taken.touch()
    for folder in (taken, taken / "below"):
        done = process("-c", ONE_MORE, folder=folder)
        assert (done.stdout, done.stderr) == ("False 42\n", "")
    assert list(tmp_path.iterdir()) == [taken]


def test_code_that_others_can_write_is_not_run(tmp_path: Path) -> None:
    process("-c", ONE_MORE, folder=tmp_path)
    kept(tmp_path).parent.chmod(0o777)
    assert process("-c", ONE_MORE, folder=tmp_path).stdout == "False 42\n"


def test_processes_that_write_at_once_leave_one_whole_file(tmp_path: Path) -> None:
    environment = os.environ | {"KVPLAN_CACHE_DIR": str(tmp_path)}
    together = [
        subprocess.Popen([sys.executable, "-c", ONE_MORE], stdout=subprocess.PIPE, env=environment, text=True)
        for _ in range(3)
    ]
    assert {one.communicate()[0] for one in together} <= {"False 42\n", "True 42\n"}
    assert kept(tmp_path).is_file()
    assert process("-c", ONE_MORE, folder=tmp_path).stderr == ""


@pytest.mark.nightly
def test_the_first_process_says_that_it_compiles_and_the_next_one_does_not(tmp_path: Path) -> None:
    first, second = (process("-m", "kvplan", *COMMAND, folder=tmp_path) for _ in range(2))
    assert (
        first.stderr == "note: compiling the loop for greedy, some ten seconds; later runs find it on disk\n"
    )
    assert second.stderr == ""
    kept(tmp_path).write_bytes(b"garbage")
    damaged = process("-m", "kvplan", *COMMAND, folder=tmp_path)
    assert damaged.stderr.startswith("note: compiled code in ")
    assert damaged.stderr.count("\n") == 1
    alone = process("-m", "kvplan", *COMMAND, folder=Path("/dev/null"))
    assert alone.stderr.endswith("there is no folder to keep it in, so every long run does\n")
    assert first.stdout == second.stdout == damaged.stdout == alone.stdout
