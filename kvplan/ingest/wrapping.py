"""Lines that a collector of logs wrapped are taken out of it, whatever reads them then.

A line is an entry of the container runtime's (CRI) or of logcli, a JSON object with the text under a known key, or a
row of a CSV with a column of it; a JSON document has a list of such objects. One with numbers of tokens or latencies
beside its text is no wrapping, but a record. A line of another form stays as it is. Many exports begin with the newest.
"""

import csv
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from kvplan.errors import UsageError
from kvplan.ingest.cells import is_json, json_object, json_records

# where the text stands, by whom it is written like that; the first that is there counts
_TEXTS = {
    "log": "Docker's JSON lines",  # Fluent Bit too
    "line": "an export of Loki",
    "textPayload": "an export of Cloud Logging",
    "jsonPayload.message": "an export of Cloud Logging",
    "_source.message": "an export of Elasticsearch",
    "_source.log": "an export of Elasticsearch",
    "fields.message": "JSON lines of a logger",  # tracing, of Rust
    "@message": "an export of CloudWatch Logs Insights",
    "MESSAGE": "journald's JSON lines",
    "LogMessage": "an export of Azure Monitor",
    "LogEntry": "an export of Azure Monitor",
    "body.stringValue": "OpenTelemetry's log records",
    "message": "JSON lines of a logger",
    "msg": "JSON lines of a logger",
}
_COLUMNS = ("@message", "message", "textPayload", "jsonPayload.message", "_raw", "line", "log", "content")
_CLOUDWATCH = "an export of CloudWatch Logs"
_IN_CLOUDWATCH = ("ingestionTime", "eventId", "logStreamName", "id")
_LOKI = "an answer of Loki"
# lists of entries, and lists of these
_LISTS = ("events", "logEvents", "entries", "results", "hits.hits", "data.result")
_INNER_LISTS = ("resourceLogs", "scopeLogs", "logRecords")
_ORIGINS = ("pod", "pod_name", "k8s_pod_name", "instance", "container", "container_name", "logStreamName")
_HAVE_ORIGINS = ("", "labels", "fields", "stream", "kubernetes", "resource.labels", "kubernetes.labels")
_TIMES = ("time", "timestamp", "ts", "@timestamp", "date", "timeUnixNano", "__REALTIME_TIMESTAMP", "_time")
_KEYS = "|".join(["values", "value", *(path.rpartition(".")[2] for path in _TEXTS)])
_MEASURED = re.compile("token|prompt|input|output|complet|generat|concurren|latency|ttft|tpot", re.IGNORECASE)
_SAYS_TEXT = re.compile(rf'"(?:{_KEYS})"\s*:')
_CRI = re.compile(r"(\d{4}-\d\d-\d\dT[\d:.]{8,18}(?:Z|[+-]\d\d:\d\d)) (stdout|stderr) ([FP])(?::\S+)?(?: |$)")
_LOGCLI = re.compile(r"(\d{4}-\d\d-\d\dT[\d:.]{8,18}(?:Z|[+-]\d\d:\d\d)) \{((?:\w+=\"[^\"]*\",? ?)*)\} {1,9}")
_LABEL = re.compile(r"(\w+)=\"([^\"]*)\"")
# times that engines write: vLLM and others, SGLang, TensorRT-LLM
_STAMP = re.compile(
    r"(?:INFO|WARNING|ERROR|DEBUG) (\d\d-\d\d \d\d:\d\d:\d\d)|\[(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d)"
    r"|\[(\d\d/\d\d/\d{4}-\d\d:\d\d:\d\d)\]"
)
# how a line of an engine's log begins
_BEGUN = re.compile(
    r"\(\w{1,40} pid=\d{1,9}\) |(?:INFO|WARNING|ERROR|DEBUG)(?:: | \d\d-\d\d )|\[?\d{4}[-/]\d\d[-/]\d\d[ T]"
    r"|\[\d\d/\d\d/\d{4}-|time=\d{4}-|\[TensorRT-LLM\]|[A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d "
)
_WIDTHS = 60, 300  # columns of a terminal
_TELLING_TIMES = 3  # different ones that only go back are an order; threads may mix two
_BEFORE_JSON = re.compile(
    r"(?:\(\w{1,40} pid=\d{1,9}\)|\[pod/([^\]\s]{1,300})\]|([\w.-]{1,100}) {1,40}\|"
    r"|\d{4}-\d\d-\d\d[T ][\d:.,]{8,18}(?:Z|[+-]\d\d:?\d\d)?)\s{1,40}(?=[\[{])"
)
# llm-d's benchmark report, 0.1 and 0.2
_REPORT = re.compile(r"(?s)(?:metrics|results):\s*\n +\w+:(?=.*(?:request_performance|time_to_first_token):)")
_LONGEST = 64_000_000  # characters of a document
_LONGEST_REPORT, _MOST_BRACKETS = 100_000, 1_000  # of one in YAML, ten times what they have
_SHORTEST = 8  # characters of a line that can be an entry; there can be millions of blank ones
_DEEP = 3  # wrappings within each other
_DOCKERS_PART = 16_384  # bytes of a line in one entry


class _Entry(NamedTuple):
    """A text, who wrapped it, when it was written, whether a line ends with it, and who wrote it."""

    text: str
    name: str
    time: str = ""
    ended: bool = True
    stream: str = ""
    origin: str = ""  # the pod or the like that wrote it


def unwrapped(head: str, lines: Iterator[str]) -> tuple[Iterator[str], str] | None:
    """Take out the lines of a text that begins with `head`, and say whose wrapping it was; None where it has none.

    Entries whose newest comes first are put in the order of time. What is left of `lines` follows as it stands.
    """
    rows = [row for row in head.lstrip("\ufeff").splitlines(keepends=True) if row.strip()]
    if not rows:
        return None
    if columns := _columns(rows[0]):
        known = list(_of_csv(iter(rows[1:-1]), columns))
        texts = _joined(([entry] for entry in _of_csv(lines, columns)), _several(known))
        return _in_order(texts, known, "a CSV of lines")
    plain = _without_prefix(rows[0])
    entries = [list(_entries(row, _DEEP)) for row in rows]
    known = [entry for row in entries for entry in row]
    if 2 * sum(map(bool, entries)) >= len(rows):
        return _in_order(_joined(map(_of_line, lines), _several(known)), known, known[0].name)
    if json_object(plain) is not None:
        return (_joined(map(_of_line, lines)), "lines with a prefix") if plain != rows[0] else None
    if _REPORT.match(head.lstrip("\ufeff")):
        stored, whole = _stored(lines, _LONGEST_REPORT)
        document = _in_json(stored) if whole else None
        return (iter([document]), "YAML") if document else (iter(stored), "")
    if is_json(plain):
        return _of_document(lines) if _SAYS_TEXT.search(head) else None
    if width := _broken_at(rows[:-1]):
        return _rejoined(lines, width), f"a text that a terminal broke at {width} columns"
    texts, name = _in_order(lines, [_Entry(row, "") for row in rows[:-1]], "")
    return (texts, f"a text{name}") if name else None


def _of_document(lines: Iterator[str]) -> tuple[Iterator[str], str]:
    """Take out the entries of JSON over many lines; one without any stays as it is, and is nobody's."""
    stored, whole = _stored(lines)
    if not whole:
        return iter(stored), ""
    try:
        records = json_records("", 1, stored[0], iter(stored[1:]))
        known = [entry for record in records for entry in _of_object(record.values, _DEEP)]
    except UsageError:
        return iter(stored), ""
    if not known:
        return iter(stored), ""
    if known[0].name == _LOKI:  # several streams, one after the other
        known.sort(key=lambda entry: entry.time)
    return _in_order(_joined(([entry] for entry in known), _several(known)), known, known[0].name)


def _in_json(lines: Sequence[str]) -> str | None:
    """Write a document in YAML as JSON; None where it is none, or has references, which could stand for anything."""
    import yaml  # type: ignore[import-untyped]

    text, loader = "".join(lines), getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    if text.count("[") + text.count("{") > _MOST_BRACKETS:
        return None
    try:
        if any(isinstance(token, yaml.AliasToken) for token in yaml.scan(text, loader)):
            return None
        return json.dumps(yaml.load(text, loader), default=str) + "\n"
    except (yaml.YAMLError, ValueError, TypeError, RecursionError):  # of keys that are no text too
        return None


def _stored(lines: Iterator[str], longest: int = _LONGEST) -> tuple[list[str], bool]:
    """Take the lines of a document, and tell whether that is all of it; it may be too long."""
    stored, length = [], 0
    for line in lines:
        stored.append(line)
        length += len(line)
        if length > longest:
            return stored, False
    return stored, True


def _in_order(texts: Iterator[str], known: list[_Entry], name: str) -> tuple[Iterator[str], str]:
    """Put texts into the order of time, where their entries begin with the newest."""
    for times in ([entry.time for entry in known], _stamps(known)):
        if times and all(times) and times[0] > times[-1] and times == sorted(times, reverse=True):
            return iter(list(texts)[::-1]), f"{name}, the newest first, which are put in the order of time"
    return texts, name


def _broken_at(rows: Sequence[str]) -> int:
    """Tell the width of a terminal that broke the lines of a log, of which none is longer; 0 where none did.

    Where it did, many lines are as wide, and what follows each is no line of its own.
    """
    lengths = [len(row.rstrip("\r\n")) for row in rows]
    width = max(lengths, default=0)
    begun = [_BEGUN.match(row) is not None for row in rows]
    after = [begun[place + 1] for place, length in enumerate(lengths[:-1]) if length == width]
    enough = len(after) >= max(2, len(rows) / 10) and sum(begun) >= 2
    return width if _WIDTHS[0] <= width <= _WIDTHS[1] and enough and 2 * sum(after) <= len(after) else 0


def _rejoined(lines: Iterable[str], width: int) -> Iterator[str]:
    """Join the parts of lines that were broken, an empty line for each but the last, so that they are counted."""
    before = ""
    for line in lines:
        text = line.rstrip("\r\n")
        if before:
            begins = _BEGUN.match(text)
            yield f"{before}\n" if begins else "\n"
            before = "" if begins else before
        before += text
        if len(text) < width - 1 or len(before) > _DOCKERS_PART:
            yield f"{before}\n"
            before = ""
        else:
            before += " " * (width - len(text))
    if before:
        yield f"{before}\n"


def _stamps(entries: Iterable[_Entry]) -> list[str]:
    """List the times that engines wrote before their lines, where there are enough of them to tell an order."""
    stamps = [match[match.lastindex or 0] for entry in entries if (match := _STAMP.search(entry.text))]
    return stamps if len(set(stamps)) >= _TELLING_TIMES else []


def _columns(header: str) -> tuple[list[str], str] | None:
    """Tell the columns of a CSV and that of its text; None where it is of something else than lines of a log."""
    names = [name.strip() for name in next(csv.reader([header]), [])]
    lower = {name.lower(): name for name in names}
    text = next((lower[name.lower()] for name in _COLUMNS if name.lower() in lower), None)
    return None if text is None or len(names) < 2 or any(map(_MEASURED.search, names)) else (names, text)


def _of_csv(lines: Iterator[str], columns: tuple[list[str], str]) -> Iterator[_Entry]:
    names, text = columns
    for row in csv.reader(lines):
        if row == names:
            yield _Entry("", "")  # so that lines are counted as stored
        elif row:
            values = dict(zip(names, row, strict=False))
            time = next((values[name] for name in names if name.lower() in _TIMES and name in values), "")
            labels = {"labels": json_object(values.get("labels", ""))}
            yield _Entry(values.get(text, ""), "", time, origin=_origin(values) or _origin(labels))


def _of_line(line: str) -> list[_Entry]:
    """Take the texts out of a line; itself where it is no entry."""
    if len(line) < _SHORTEST:
        return [_Entry(line, "")]
    return list(_entries(line, _DEEP)) or [_Entry(_without_prefix(line), "")]


def _without_prefix(line: str) -> str:
    """Take away what stands before JSON: the process, the pod, the container, the time."""
    return line[prefix.end() :] if (prefix := _BEFORE_JSON.match(line)) else line


def _several(entries: Sequence[_Entry]) -> bool:
    """Tell whether entries can be of several origins, which are told apart then as kubectl does.

    Lines of an engine are, whose other pods may come later.
    """
    stamped = any(entry.origin and _STAMP.search(entry.text) for entry in entries)
    return stamped or len({entry.origin for entry in entries}) > 1


def _joined(entries: Iterable[list[_Entry]], several_origins: bool = False) -> Iterator[str]:
    """Yield lines of entries, those in parts together; a part is an empty line, so that lines are counted as stored."""
    parts: dict[str, str] = {}
    for several in entries:
        for entry in several:
            text = entry.text.rstrip("\r\n") if entry.ended else entry.text
            before = parts.pop(entry.stream, "")
            if entry.ended:
                log_of = several_origins and entry.origin and not text.startswith("{")
                yield f"{f'[pod/{entry.origin}] ' if log_of else ''}{before}{text}\n"
            else:
                parts[entry.stream] = before + text
                yield "\n"
    yield from (f"{text}\n" for text in parts.values())


def _entries(line: str, deep: int) -> Iterator[_Entry]:
    """Yield the texts in a line; nothing where it is no entry."""
    if deep > 0 and (match := _CRI.match(line)):
        text, ended = line[match.end() :], match[3] == "F"
        for entry in _entries(text, deep - 1) if ended else ():
            yield entry._replace(time=match[1])
            return
        yield _Entry(text if ended else text.rstrip("\r\n"), "lines of CRI", match[1], ended, match[2])
    elif deep > 0 and (match := _LOGCLI.match(line)):
        text = line[match.end() :]
        labels = _origin(dict(_LABEL.findall(match[2])))
        for entry in list(_entries(text, deep - 1)) or [_Entry(text, "lines of logcli")]:
            yield entry._replace(time=match[1], origin=entry.origin or labels)
    elif deep > 0 and "{" in line and (values := json_object(_without_prefix(line))) is not None:
        prefix = _BEFORE_JSON.match(line)
        origin = (prefix[1] or prefix[2]) if prefix else None
        yield from (e._replace(origin=origin) if origin else e for e in _of_object(values, deep))


def _of_object(values: Mapping[str, Any], deep: int) -> Iterator[_Entry]:
    path = next((path for path in _TEXTS if isinstance(_at(values, path), str)), None)
    if path is None:
        for name in (*_LISTS, *_INNER_LISTS) if deep > 0 else ():
            if isinstance(several := _at(values, name), list):
                for part in several:
                    yield from _of_part(part, name, deep)
        return
    text = _at(values, path)
    if _measures(values):
        return
    origin = _origin(values)
    inner = list(_entries(text, deep - 1))
    if inner:
        yield from (entry._replace(origin=entry.origin or origin) for entry in inner)
        return
    ended = not (
        values.get("logtag") == "P"
        or (path == "log" and text[-1:] != "\n" and len(text.encode(errors="replace")) >= _DOCKERS_PART)
    )
    by_cloudwatch = path == "message" and any(key in values for key in _IN_CLOUDWATCH)
    time = next((str(values[key]) for key in _TIMES if key in values), "")
    name, stream = _CLOUDWATCH if by_cloudwatch else _TEXTS[path], str(values.get("stream"))
    yield _Entry(text, name, time, ended, stream, origin)


def _of_part(part: Any, name: str, deep: int) -> Iterator[_Entry]:
    """Yield the texts in what a list of entries has."""
    if name == "results" and isinstance(part, list):  # of Logs Insights: a field each
        fields = (field for field in part if isinstance(field, dict))
        part = {str(field.get("field")): field.get("value") for field in fields}
    if not isinstance(part, dict):
        return
    values = part.get("values")
    if name == "data.result" and "stream" in part and isinstance(values, list):  # of Loki: time and line
        pairs = [value for value in values if isinstance(value, list) and len(value) > 1]
        for time, text in ((value[0], value[1]) for value in pairs if isinstance(value[1], str)):
            entries = list(_entries(text, deep - 1)) or [_Entry(text, _LOKI, str(time))]
            yield from (entry._replace(origin=_origin(part)) for entry in entries)
        return
    for entry in _of_object(part, deep - 1):
        yield entry._replace(name=_CLOUDWATCH) if name in ("events", "logEvents") else entry


def _at(values: Any, path: str) -> Any:
    for key in path.split("."):
        values = values.get(key) if isinstance(values, Mapping) else None
    return values


def _origin(values: Mapping[str, Any]) -> str:
    """Tell the pod, or else the instance or container, that an object names; without what a prefix cannot have."""
    for place in _HAVE_ORIGINS:
        named = _at(values, place) if place else values
        if isinstance(named, Mapping):
            for key in _ORIGINS:
                if isinstance(name := named.get(key), str) and name:
                    return re.sub(r"[\]\s]", "-", name)
    return ""


def _measures(values: Mapping[str, Any], deep: int = _DEEP) -> bool:
    """Tell whether an object has numbers of its own, and the text is only one of its values."""
    for key, value in values.items():
        if isinstance(value, int | float) and _MEASURED.search(key):
            return True
        if deep and isinstance(value, dict) and _measures(value, deep - 1):
            return True
        if key == "attributes" and _MEASURED.search(str(value)):  # of OpenTelemetry, in a list
            return True
    return False
