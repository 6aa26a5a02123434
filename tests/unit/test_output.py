import errno
import os
import stat
import threading
from pathlib import Path

import pytest

from kvplan.cli.output import write_result
from kvplan.errors import OutputError


def test_a_new_file_has_the_text_and_the_permissions_of_any_new_file(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        write_result("ρ – 日本\n", tmp_path / "report.txt")
    finally:
        os.umask(before)
    assert (tmp_path / "report.txt").read_bytes() == "ρ – 日本\n".encode()
    assert stat.S_IMODE((tmp_path / "report.txt").stat().st_mode) == 0o640
    assert os.listdir(tmp_path) == ["report.txt"]


@pytest.mark.parametrize("step", ["fsync", "replace"])
@pytest.mark.parametrize("existing", ["old", None])
def test_a_failure_leaves_the_folder_as_it_was(
    step: str, existing: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = tmp_path / "report.txt"
    if existing is not None:
        target.write_text(existing)
    before = {path.name: path.read_text() for path in tmp_path.iterdir()}

    def no_space(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, step, no_space)
    with pytest.raises(OutputError, match=r"report\.txt: cannot be written: No space left on device"):
        write_result("new\n", target)
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == before


def test_an_interruption_leaves_no_temporary_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(_: int) -> None:
        assert len(os.listdir(tmp_path)) == 1
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "fsync", interrupt)
    with pytest.raises(KeyboardInterrupt):
        write_result("new\n", tmp_path / "report.txt")
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize(("name", "reason"), [("", "Is a directory"), ("missing/report.txt", "No such file")])
def test_an_impossible_place_is_named(name: str, reason: str, tmp_path: Path) -> None:
    with pytest.raises(OutputError, match=reason) as refusal:
        write_result("new\n", tmp_path / name)
    assert str(refusal.value).startswith(f"{tmp_path / name}: ")
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("exists", [True, False])
def test_a_link_is_followed(exists: bool, tmp_path: Path) -> None:
    folder = tmp_path / "elsewhere"
    folder.mkdir()
    if exists:
        (folder / "target.txt").write_text("old")
    link = tmp_path / "link.txt"
    link.symlink_to(folder / "target.txt")
    write_result("new\n", link)
    assert link.is_symlink()
    assert (folder / "target.txt").read_text() == "new\n"


def test_a_pipe_is_written_to_and_stays_a_pipe(tmp_path: Path) -> None:
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    received: list[str] = []
    reader = threading.Thread(target=lambda: received.append(fifo.read_text()))
    reader.start()
    write_result("new\n", fifo)
    reader.join(timeout=10)
    assert received == ["new\n"]
    assert stat.S_ISFIFO(fifo.stat().st_mode)


def test_standard_output_is_utf8_where_no_terminal_says_otherwise(
    capfdbinary: pytest.CaptureFixture[bytes],
) -> None:
    write_result("ρ – 日本\n")
    assert capfdbinary.readouterr().out == "ρ – 日本\n".encode()
