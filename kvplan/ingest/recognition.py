"""What a file is, told by its content and never by its name."""

import csv
import re
from collections.abc import Iterator, Mapping, Sequence
from enum import StrEnum
from itertools import islice
from pathlib import Path
from typing import Any

from kvplan.errors import UsageError, shown
from kvplan.ingest.cells import plain_name
from kvplan.ingest.log.engine_log import LOGS
from kvplan.ingest.text_file import STANDARD_INPUT, Lines, beginning, lines_of
from kvplan.ingest.timing.format import Document, DocumentFormat
from kvplan.ingest.timing.formats import FORMATS as TIMING_FORMATS
from kvplan.ingest.timing.formats.request_log import FORMAT as REQUEST_LOG
from kvplan.ingest.timing.json_text import documents, is_json
from kvplan.ingest.timing.reading import table_format, tells_of_drafts
from kvplan.ingest.trace.columns import is_usual
from kvplan.ingest.trace.format import DescriptionFormat, FirstLine, RequestFormat
from kvplan.ingest.trace.formats import FORMATS as TRACE_FORMATS


class FileKind(StrEnum):
    """What a file tells of."""

    LOG = "log"
    TIMING = "timing"
    DRAFTS = "drafts"
    REQUESTS = "requests"
    METRICS = "metrics"
    MODEL = "model"
    PROFILE = "profile"


LOOKED_FOR: Mapping[FileKind, str] = {
    FileKind.LOG: "the log of vLLM, SGLang, TensorRT-LLM or TGI",
    FileKind.TIMING: "results of a load generator, or a table of iterations or loads",
    FileKind.DRAFTS: "a table of runs with drafts",
    FileKind.REQUESTS: "requests with time, input and output tokens",
    FileKind.METRICS: "an answer of /metrics of vLLM or SGLang",
    FileKind.MODEL: "a config.json of Hugging Face",
    FileKind.PROFILE: "a profile of kvplan",
}
_MOST_LINES = 100_000  # that are read of a log until it says what it is
_BEGINNING = 1 << 16  # characters
_SCHEMA, _NAME = re.compile(r"schema\s*=\s*\d"), re.compile(r"name\s*=\s*[\"']")
_METRICS = re.compile(r"^(# (HELP|TYPE) |(vllm|sglang)[:_]\w+(\{| ))", re.MULTILINE)
_STATISTICS = ("Avg prompt throughput", "Iteration(", "Decode batch", "Prefill batch")  # lines of logs
_CAPACITIES = tuple(kind.form for log in LOGS for kind in log.capacities)
_MODEL_KEYS = {"model_type", "architectures", "num_hidden_layers", "hidden_size", "text_config", "vocab_size"}
_FEWEST = 2  # of these


def named(files: Sequence[str], told: Sequence[str] = ()) -> list[tuple[FileKind | None, Path]]:
    """Return files, ``-`` for standard input, with the kinds that are told as ``KIND=FILE``, None for the others.

    Raises
    ------
    UsageError
        What is told is not of that form.

    Examples
    --------
    >>> [(kind and kind.value, path.name) for kind, path in named(["a.log"], ["requests=b.csv"])]
    [('requests', 'b.csv'), (None, 'a.log')]
    """
    found: list[tuple[FileKind | None, Path]] = []
    for text in told:
        kind, equals, file = text.partition("=")
        if not equals or kind not in list(FileKind):
            raise UsageError(f"--as {text[:80]!r}: KIND=FILE, where KIND is {', '.join(FileKind)}")
        found.append((FileKind(kind), _path(file)))
    return [*found, *((None, _path(file)) for file in files)]


def _path(file: str) -> Path:
    return STANDARD_INPUT if file == "-" else Path(file)


def kind_of(path: Path) -> FileKind:
    """The kind of a file.

    Raises
    ------
    UsageError
        It cannot be read, or its content is of no kind, or of several.

    Examples
    --------
    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder:
    ...     path = Path(folder, "any-name")
    ...     _ = path.write_text("kv_tokens,iteration_ms\\n100,12\\n")
    ...     str(kind_of(path))
    'timing'
    """
    found = [FileKind.MODEL] if path.is_dir() else list(dict.fromkeys(_kinds(path)))
    if len(found) == 1:
        return found[0]
    way_out = "; --as KIND=FILE says what it is"
    if found:
        several = " and ".join(f"{kind} ({LOOKED_FOR[kind]})" for kind in found)
        raise UsageError(f"{path}: can be {several}{way_out}")
    start = beginning(path, 200, "replace")
    if not start.strip():
        raise UsageError(f"{path}: empty")
    every = "; ".join(f"{kind}: {text}" for kind, text in LOOKED_FOR.items())
    raise UsageError(f"{path}: not recognized, begins {shown(start)}; looked for {every}{way_out}")


def carries_times(path: Path) -> bool:
    """Whether requests come with the times of their tokens, from which iterations can be told."""
    with lines_of(path, errors="replace") as lines:
        first = FirstLine.of(lines)
    return table_format(map(plain_name, first.names)) is REQUEST_LOG


def _kinds(path: Path) -> Iterator[FileKind]:
    start = beginning(path, _BEGINNING, "replace")
    if any(f.recognises(start) for f in TRACE_FORMATS if isinstance(f, DescriptionFormat)):
        yield FileKind.REQUESTS
        return
    if _begins_as_a_profile(start):
        yield FileKind.PROFILE
        return
    if _METRICS.search(start):
        yield FileKind.METRICS
    with lines_of(path, errors="replace") as lines:
        first = next((line for line in lines if line.strip()), "")
        if is_json(first):
            yield from _of_json(first, lines)
        else:
            yield from _of_table(first, lines)
            if _is_of_a_log(first) or any(map(_is_of_a_log, islice(lines, _MOST_LINES))):
                yield FileKind.LOG


def _begins_as_a_profile(start: str) -> bool:
    """Whether `schema` or `name` and `schema` come first, below comments, which quote what it was made of."""
    lines = (line.strip() for line in start.splitlines())
    first, second, *_ = *islice((line for line in lines if line and line[0] != "#"), 2), "", ""
    return bool(_SCHEMA.match(first) or (_NAME.match(first) and _SCHEMA.match(second)))


def _of_json(first: str, lines: Lines) -> Iterator[FileKind]:
    document = next(iter(documents(lines.source, lines.number, first, iter(lines))), None)
    if not isinstance(document, Document):
        return
    keys: dict[str, Any] = document.value
    if len(_MODEL_KEYS & keys.keys()) >= _FEWEST:
        yield FileKind.MODEL
    known = (format for format in TIMING_FORMATS if isinstance(format, DocumentFormat))
    table = table_format(map(plain_name, keys))
    if table is REQUEST_LOG:
        yield FileKind.REQUESTS
    elif table is not None or any(format.recognises(document) for format in known):
        yield FileKind.TIMING
        if table is not None and "input_lens" in keys:
            return  # a benchmark's own requests are no traffic
    if (
        _lists_requests(FirstLine(first, True, list(keys), keys))
        or {"input_lens", "output_lens"} <= keys.keys()
    ):
        yield FileKind.REQUESTS


def _of_table(first: str, lines: Lines) -> Iterator[FileKind]:
    try:
        header = next(csv.reader([first]), [])
        listed = _lists_requests(FirstLine.of_text(first)) if header else False
    except csv.Error:
        return
    if tells_of_drafts(header):
        yield FileKind.DRAFTS
        return
    table = table_format(map(plain_name, header))
    if table is not None and table is not REQUEST_LOG:
        yield FileKind.TIMING
    if table is REQUEST_LOG or listed:
        yield FileKind.REQUESTS


def _lists_requests(first: FirstLine) -> bool:
    listed = (format for format in TRACE_FORMATS if isinstance(format, RequestFormat))
    return is_usual(first) or any(format.recognises(first) for format in listed)


def _is_of_a_log(line: str) -> bool:
    return any(word in line for word in _STATISTICS) or any(form.search(line) for form in _CAPACITIES)
