"""The kind of a file, by its content and never by its name."""

import re
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path

from kvplan.errors import UsageError, shown
from kvplan.ingest.cells import tables_in
from kvplan.ingest.engines import LOGS, METRICS, telling
from kvplan.ingest.forms import instead_of
from kvplan.ingest.model.gguf import is_gguf
from kvplan.ingest.reader import Beginning, FileKind
from kvplan.ingest.results import reader_of
from kvplan.ingest.results.summaries import SUMMARIES, runs_in
from kvplan.ingest.results.tables import REQUEST_LOG
from kvplan.ingest.results.vllm_bench import TITLE
from kvplan.ingest.text_file import STANDARD_INPUT
from kvplan.ingest.timing.reading import tells_of_drafts
from kvplan.ingest.trace.formats import lists_requests, nearest
from kvplan.ingest.trace.servegen import DESCRIPTIONS

LOOKED_FOR = {
    FileKind.LOG: f"the log of {', '.join(log.engine for log in LOGS[:-1])} or {LOGS[-1].engine}",
    FileKind.TIMING: "results of a load generator, or a table of iterations or loads",
    FileKind.DRAFTS: "a table of runs with drafts",
    FileKind.REQUESTS: "requests with time, input and output tokens",
    FileKind.METRICS: f"an answer of /metrics of {' or '.join(metrics.engine for metrics in METRICS)}",
    FileKind.MODEL: "a config.json of Hugging Face",
    FileKind.PROFILE: "a profile of kvplan",
}
_SCHEMA, _NAME = re.compile(r"schema\s*=\s*\d"), re.compile(r"name\s*=\s*[\"']")
_PREFIXES = "|".join(metrics.prefix for metrics in METRICS)
_METRICS = re.compile(
    rf"^(# (HELP|TYPE) |(ray_)?({_PREFIXES})[:_]\w+[{{ ]|request_(prompt|generation)_tokens_\w+[{{ ])",
    re.MULTILINE,
)
_MODEL_KEYS = {"model_type", "architectures", "num_hidden_layers", "hidden_size", "text_config", "vocab_size"}
_FEWEST = 2  # of these


def _is_a_profile(start: Beginning) -> bool:
    """Tell whether `schema` or `name` and `schema` come first, below comments."""
    lines = (line.strip() for line in start.text.splitlines())
    first, second, *_ = *islice((line for line in lines if line and line[0] != "#"), 2), "", ""
    return bool(_SCHEMA.match(first) or (_NAME.match(first) and _SCHEMA.match(second)))


def _is_of_an_engine(start: Beginning) -> bool:
    lines = telling(enumerate(start.log_lines()))
    return any(ran or any(log.says(text) for log in LOGS) for _, text, ran in lines)


def _is_metrics(start: Beginning) -> bool:
    answer = (start.values or {}).get("data")
    return bool(_METRICS.search(start.text)) or (isinstance(answer, dict) and "resultType" in answer)


def _is_printed(start: Beginning) -> bool:
    if start.in_json or _is_of_an_engine(start):
        return False
    return any(TITLE in line for line in start.log_lines()) or _is_summary(start)


def _is_summary(start: Beginning) -> bool:
    """Tell whether the labels of lines with a figure each are those of a format of results."""
    runs = runs_in("", enumerate(start.text.splitlines(), 1))
    return any(reader_of(start._replace(names=tuple(run.values))) in SUMMARIES for run in runs)


def _is_a_model(start: Beginning) -> bool:
    return len(_MODEL_KEYS & (start.values or {}).keys()) >= _FEWEST


# what they recognise is nothing else: a profile quotes what it was made of
_ALONE = (*((some.kind, some.recognises) for some in DESCRIPTIONS), (FileKind.PROFILE, _is_a_profile))
_OTHERS = (
    (FileKind.METRICS, _is_metrics),
    (FileKind.MODEL, _is_a_model),
    (FileKind.TIMING, _is_printed),
    (FileKind.LOG, lambda start: not start.in_json and _is_of_an_engine(start)),
)


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
    if path.is_dir() or is_gguf(path):
        return FileKind.MODEL
    start = Beginning.of_file(path)
    tables = tables_in(enumerate(start.text.splitlines(), 1))
    headers = [Beginning.of_line(header)._replace(text=header) for header, _ in tables]
    kinds = _kinds(*headers) or _kinds(start)
    if not kinds and start.in_json and _is_of_an_engine(start):  # a logger's, of a form of its own
        kinds = [FileKind.LOG]
    if kinds in ([], [FileKind.METRICS]) and (instead := instead_of(start.text)):
        raise UsageError(f"{path}: {instead}")
    if len(kinds) == 1:
        return kinds[0]
    way_out = "; --as KIND=FILE says what it is"
    if kinds:
        several = " and ".join(f"{kind} ({LOOKED_FOR[kind]})" for kind in kinds)
        raise UsageError(f"{path}: can be {several}{way_out}")
    if not start.line:
        raise UsageError(f"{path}: empty")
    every = "; ".join(f"{kind}: {text}" for kind, text in LOOKED_FOR.items())
    raise UsageError(
        f"{path}: not recognized, begins {shown(start.text[:200])}{nearest(start)}; looked for {every}{way_out}"
    )


def _kinds(*starts: Beginning) -> list[FileKind]:
    return list(dict.fromkeys(kind for start in starts for kind in _recognised(start)))


def carries_times(path: Path) -> bool:
    """Tell whether requests come with the times of their tokens, from which iterations can be told."""
    return reader_of(Beginning.of_file(path)) is REQUEST_LOG


def _recognised(start: Beginning) -> Iterator[FileKind]:
    if alone := [kind for kind, recognises in _ALONE if recognises(start)]:
        yield from alone
        return
    yield from (kind for kind, recognises in _OTHERS if recognises(start))
    if not start.in_json and tells_of_drafts(start):
        yield FileKind.DRAFTS
        return
    result = reader_of(start)
    if result is not None:
        yield result.kind
        if start.in_json and result.kind is FileKind.TIMING and start.has("input_lens"):
            return  # a benchmark's own requests are no traffic
    if lists_requests(start):
        yield FileKind.REQUESTS
