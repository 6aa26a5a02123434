"""All of ingest reads files through one reader: compressed, marked, with any line ends; what is broken is refused."""

import ast
import gzip
import math
import time
import tracemalloc
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path

import pytest
import zstandard
from every import every
from sampled import read_samples

import kvplan.ingest
from kvplan.errors import UsageError
from kvplan.ingest.engine_log import read_log
from kvplan.ingest.metrics import read_metrics
from kvplan.ingest.model.json_keys import read_object
from kvplan.ingest.recognition import kind_of
from kvplan.ingest.text_file import lines_of
from kvplan.ingest.trace.traffic import measure

# Each reads a file and gives the digest it found, with a text that it understands.
READERS: dict[str, tuple[Callable[[Path], str], str]] = {
    "trace": (lambda path: measure(path).sha256, "time,input,output\n1.5,374,44\n2.5,396,109\n"),
    "samples": (lambda path: read_samples(path)[0].sha256, "kv_tokens,iteration_ms\n1000,12\n"),
    "log": (lambda path: read_log(path).limits().sha256, "GPU KV cache size: 32,000 tokens\n# more\n"),
    "metrics": (lambda path: read_metrics(path, interval_s=10).sha256, "# TYPE x counter\nvllm:x 1\n"),
}
each_reader = pytest.mark.parametrize(("read", "text"), READERS.values(), ids=READERS)


@each_reader
@pytest.mark.parametrize("packed", [bytes, gzip.compress, zstandard.compress])
def test_files_are_unpacked_decoded_and_hashed_as_stored(
    tmp_path: Path, read: Callable[[Path], str], text: str, packed: Callable[[bytes], bytes]
) -> None:
    path = tmp_path / "file"
    for written in (text, text.replace("\n", "\r\n"), text[:-1]):
        for encoding in ("utf-8", "utf-8-sig", "utf-16", "utf-16-le", "utf-16-be", "utf-32"):
            path.write_bytes(stored := packed(written.encode(encoding)))
            assert read(path) == sha256(stored).hexdigest()


@each_reader
def test_a_file_that_is_broken_is_refused(tmp_path: Path, read: Callable[[Path], str], text: str) -> None:
    path = tmp_path / "file"

    def refusal(data: bytes) -> str:
        path.write_bytes(data)
        with pytest.raises(UsageError) as caught:
            read(path)
        return str(caught.value).removeprefix(f"{path}: ")

    long = text.encode() + text.encode().splitlines(keepends=True)[-1] * 300
    assert refusal(gzip.compress(long)[:-9]) == "the compressed data are cut off"
    packed = zstandard.compress(long)
    assert refusal(packed[: len(packed) // 2]) == "the compressed data are cut off"
    assert refusal(packed[:8] + b"\xff" * 8 + packed[16:]) == "the compressed data are damaged"
    if read is not READERS["log"][0]:  # an engine prints what it likes
        assert refusal(b"\xff\xfe" + text.encode()) == "must be text in UTF-8 or UTF-16"


@every("read", [*(read for read, _ in READERS.values()), read_object])
def test_what_cannot_be_opened_is_refused(tmp_path: Path, read: Callable[[Path], object]) -> None:
    with pytest.raises(UsageError, match="none: cannot be read: No such file or directory"):
        read(tmp_path / "none")
    with pytest.raises(UsageError, match="cannot be read: Is a directory"):
        read(tmp_path)


@every(
    "magic", [b"BZh91AY", b"\xfd7zXZ\0\0", b"PK\x03\x04", b"PAR1\x15", b"a.log".ljust(257, b"\0") + b"ustar"]
)
def test_what_others_unpack_is_refused_with_what_unpacks_it(tmp_path: Path, magic: bytes) -> None:
    path = tmp_path / "file"
    for packed in (bytes, gzip.compress):
        path.write_bytes(packed(magic + b"GPU KV cache size: 32,000 tokens"))
        with pytest.raises(UsageError, match=r"which is not read; .* makes text of it"):
            kind_of(path)


def test_nothing_else_in_ingest_opens_a_file_from_outside() -> None:
    """The catalogues beside `named` come with the package."""
    opening = {"open", "read_text", "read_bytes", "loadtxt", "genfromtxt"}
    found = {
        path.name
        for path in Path(kvplan.ingest.__path__[0]).rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text("utf-8")))
        if isinstance(node, ast.Call) and getattr(node.func, "attr", getattr(node.func, "id", "")) in opening
    }
    assert found == {"text_file.py", "hardware.py"}


def test_zstd_frames_follow_one_another_and_unpack_piece_by_piece(tmp_path: Path) -> None:
    path = tmp_path / "file.zst"
    path.write_bytes(zstandard.compress(b"a\n" * 5000) + zstandard.compress(b"b"))
    with lines_of(path) as lines:
        assert list(lines) == ["a\n"] * 5000 + ["b"]
    assert lines.sha256 == sha256(path.read_bytes()).hexdigest()
    path.write_bytes(zstandard.compress(b"\0" * (1 << 28)))
    tracemalloc.start()
    with pytest.raises(UsageError, match="200 times"), lines_of(path) as lines:
        list(lines)
    assert tracemalloc.get_traced_memory()[1] < 100e6
    tracemalloc.stop()


@each_reader
def test_a_line_without_end_is_refused(read: Callable[[Path], str], text: str) -> None:
    with pytest.raises(UsageError, match="/dev/zero"):
        read(Path("/dev/zero"))


HEADS = [
    "KV Cache is allocated. ",
    "Prefill batch, #new-token: 5, ",
    "Decode batch, #running-req: 5, #token: 5, ",
    "Avg prompt throughput: 1 tokens/s, Avg generation throughput: 1 tokens/s, Running: 5 reqs, ",
    "#new-token: 5",
]


@pytest.mark.parametrize("head", HEADS)
@pytest.mark.parametrize("read", [lambda path: read_log(path).limits(), read_samples])
def test_a_statement_that_is_begun_again_and_again_is_searched_once(
    tmp_path: Path, read: Callable[[Path], object], head: str
) -> None:
    """Four times the line take four times as long; begun anew at every statement, sixteen times."""

    def seconds(characters: int) -> float:
        path = tmp_path / "one-line.log"
        path.write_text("begins\n" + head * (characters // len(head)))
        best = math.inf
        for _ in range(3):
            start = time.process_time()
            with pytest.raises(UsageError):
                read(path)
            best = min(best, time.process_time() - start)
        return best

    assert seconds(100_000) < 8 * seconds(25_000) + 0.02
