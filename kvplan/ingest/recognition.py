"""What a file is, told by its content and never by its name."""

import re
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path

from kvplan.errors import UsageError, shown
from kvplan.ingest.engines import LOGS, METRICS
from kvplan.ingest.reader import Beginning, FileKind
from kvplan.ingest.results import reader_of
from kvplan.ingest.results.tables import REQUEST_LOG
from kvplan.ingest.text_file import STANDARD_INPUT, lines_of
from kvplan.ingest.timing.reading import tells_of_drafts
from kvplan.ingest.trace.columns import is_usual
from kvplan.ingest.trace.format import DescriptionFormat, RequestFormat
from kvplan.ingest.trace.formats import FORMATS as TRACES

LOOKED_FOR = {
    FileKind.LOG: "the log of vLLM, SGLang, TensorRT-LLM or TGI",
    FileKind.TIMING: "results of a load generator, or a table of iterations or loads",
    FileKind.DRAFTS: "a table of runs with drafts",
    FileKind.REQUESTS: "requests with time, input and output tokens",
    FileKind.METRICS: "an answer of /metrics of vLLM or SGLang",
    FileKind.MODEL: "a config.json of Hugging Face",
    FileKind.PROFILE: "a profile of kvplan",
}
_SCHEMA, _NAME = re.compile(r"schema\s*=\s*\d"), re.compile(r"name\s*=\s*[\"']")
_PREFIXES = "|".join(metrics.prefix for metrics in METRICS)
_METRICS = re.compile(rf"^(# (HELP|TYPE) |({_PREFIXES})[:_]\w+(\{{| ))", re.MULTILINE)
_MODEL_KEYS = {"model_type", "architectures", "num_hidden_layers", "hidden_size", "text_config", "vocab_size"}
_FEWEST = 2  # of these


def named(files: Sequence[str], told: Sequence[str] = ()) -> list[tuple[FileKind | None, Path]]:
    """Return files, ``-`` for standard input, with the kinds that are told as ``KIND=FILE``, None for the others.

    Examples
    --------
    >>> [(kind and kind.value, path.name) for kind, path in named(["a.log"], ["requests=b.csv"])]
    [('requests', 'b.csv'), (None, 'a.log')]
    """
    kinds: list[FileKind | None] = []
    for text in told:
        kind, equals, _ = text.partition("=")
        if not equals or kind not in list(FileKind):
            raise UsageError(f"--as {text[:80]!r}: KIND=FILE, where KIND is {', '.join(FileKind)}")
        kinds.append(FileKind(kind))
    names = [*(text.partition("=")[2] for text in told), *files]
    paths = [STANDARD_INPUT if name == "-" else Path(name) for name in names]
    return list(zip([*kinds, *[None] * len(files)], paths, strict=True))


def kind_of(path: Path) -> FileKind:
    """Tell the kind of a file.

    Raises
    ------
    UsageError
        It cannot be read, or its content is of no kind, or of several.
    """
    if path.is_dir():
        return FileKind.MODEL
    start = Beginning.of_file(path)
    kinds = list(dict.fromkeys(_kinds(start)))
    if len(kinds) == 1:
        return kinds[0]
    way_out = "; --as KIND=FILE says what it is"
    if kinds:
        several = " and ".join(f"{kind} ({LOOKED_FOR[kind]})" for kind in kinds)
        raise UsageError(f"{path}: can be {several}{way_out}")
    if not start.line:
        raise UsageError(f"{path}: empty")
    every = "; ".join(f"{kind}: {text}" for kind, text in LOOKED_FOR.items())
    raise UsageError(f"{path}: not recognized, begins {shown(start.text[:200])}; looked for {every}{way_out}")


def carries_times(path: Path) -> bool:
    """Tell whether requests come with the times of their tokens, from which iterations can be told."""
    with lines_of(path, errors="replace") as lines:
        return reader_of(Beginning.of_lines(lines)) is REQUEST_LOG


def _kinds(start: Beginning) -> Iterator[FileKind]:
    if any(f.recognises(start.text) for f in TRACES if isinstance(f, DescriptionFormat)):
        yield FileKind.REQUESTS
    elif _begins_as_a_profile(start.text):
        yield FileKind.PROFILE  # comments in it quote what it was made of
    else:
        if _METRICS.search(start.text):
            yield FileKind.METRICS
        if len(_MODEL_KEYS & (start.values or {}).keys()) >= _FEWEST:
            yield FileKind.MODEL
        yield from _of_columns(start)
        if any(log.says(line) for line in start.log_lines() for log in LOGS):
            yield FileKind.LOG


def _of_columns(start: Beginning) -> Iterator[FileKind]:
    if tells_of_drafts(start) and not start.in_json:
        yield FileKind.DRAFTS
        return
    reader = reader_of(start)
    if reader is not None:
        yield reader.kind
        if start.in_json and reader.kind is FileKind.TIMING and start.has("input_lens"):
            return  # a benchmark's own requests are no traffic
    listed = (format for format in TRACES if isinstance(format, RequestFormat))
    if is_usual(start) or any(format.recognises(start) for format in listed):
        yield FileKind.REQUESTS


def _begins_as_a_profile(text: str) -> bool:
    """Tell whether `schema` or `name` and `schema` come first, below comments."""
    lines = (line.strip() for line in text.splitlines())
    first, second, *_ = *islice((line for line in lines if line and line[0] != "#"), 2), "", ""
    return bool(_SCHEMA.match(first) or (_NAME.match(first) and _SCHEMA.match(second)))
