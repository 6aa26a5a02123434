"""Lines that a collector of logs wrapped are taken out of it, whatever reads them then.

A line is an entry of the container runtime's (CRI), or a JSON object with the text under a known key; a JSON document
has a list of such objects. One with numbers of tokens or latencies beside its text is no wrapping, but a record. A line
of another form stays as it is.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from itertools import chain
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
_CLOUDWATCH = "an export of CloudWatch Logs"
_IN_CLOUDWATCH = ("ingestionTime", "eventId", "logStreamName", "id")
_LOKI = "an answer of Loki"
# lists of entries, and lists of these
_LISTS = ("events", "logEvents", "entries", "results", "hits.hits", "data.result")
_INNER_LISTS = ("resourceLogs", "scopeLogs", "logRecords")
_ORIGINS = ("pod", "pod_name", "k8s_pod_name", "instance", "container", "container_name", "logStreamName")
_HAVE_ORIGINS = ("", "labels", "fields", "stream", "kubernetes", "resource.labels", "kubernetes.labels")
_TIMES = ("time", "timestamp", "ts", "@timestamp", "date", "timeUnixNano", "__REALTIME_TIMESTAMP")
_KEYS = "|".join(["values", "value", *(path.rpartition(".")[2] for path in _TEXTS)])
_MEASURED = re.compile("token|prompt|input|output|complet|generat|concurren|latency|ttft|tpot", re.IGNORECASE)
_SAYS_TEXT = re.compile(rf'"(?:{_KEYS})"\s*:')
_CRI = re.compile(r"(\d{4}-\d\d-\d\dT[\d:.]{8,18}(?:Z|[+-]\d\d:\d\d)) (stdout|stderr) ([FP])(?::\S+)?(?: |$)")
_BEFORE_JSON = re.compile(
    r"(?:\(\w{1,40} pid=\d{1,9}\)|\[pod/([^\]\s]{1,300})\]|([\w.-]{1,100}) {1,40}\|"
    r"|\d{4}-\d\d-\d\d[T ][\d:.,]{8,18}(?:Z|[+-]\d\d:?\d\d)?)\s{1,40}(?=[\[{])"
)
_LONGEST = 64_000_000  # characters of a document
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

    Entries whose newest comes first are put in the order of time.
    """
    rows = [row for row in head.lstrip("\ufeff").splitlines(keepends=True) if row.strip()]
    if not rows:
        return None
    plain = _without_prefix(rows[0])
    entries = [list(_entries(row, _DEEP)) for row in rows]
    known = [entry for row in entries for entry in row]
    if 2 * sum(map(bool, entries)) >= len(rows):
        return _in_order(_joined(map(_of_line, lines), _several(known)), known, known[0].name)
    if json_object(plain) is not None:
        return (_joined(map(_of_line, lines)), "lines with a prefix") if plain != rows[0] else None
    return _of_document(lines) if is_json(plain) and _SAYS_TEXT.search(head) else None


def _of_document(lines: Iterator[str]) -> tuple[Iterator[str], str]:
    """Take out the entries of JSON over many lines; one without any stays as it is, and is nobody's."""
    stored, length = [], 0
    for line in lines:
        stored.append(line)
        length += len(line)
        if length > _LONGEST:
            return chain(stored, lines), ""
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


def _in_order(texts: Iterator[str], known: list[_Entry], name: str) -> tuple[Iterator[str], str]:
    """Put texts into the order of time, where their entries begin with the newest."""
    times = [entry.time for entry in known]
    if all(times) and times[0] > times[-1] and times == sorted(times, reverse=True):
        return iter(list(texts)[::-1]), f"{name}, the newest first, which are put in the order of time"
    return texts, name


def _of_line(line: str) -> list[_Entry]:
    """Take the texts out of a line; itself where it is no entry."""
    if len(line) < _SHORTEST:
        return [_Entry(line, "")]
    return list(_entries(line, _DEEP)) or [_Entry(_without_prefix(line), "")]


def _without_prefix(line: str) -> str:
    """Take away what stands before JSON: the process, the pod, the container, the time."""
    return line[prefix.end() :] if (prefix := _BEFORE_JSON.match(line)) else line


def _several(entries: Iterable[_Entry]) -> bool:
    """Tell whether entries are of several origins, which are told apart then as kubectl does."""
    return len({entry.origin for entry in entries}) > 1


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
    elif deep > 0 and "{" in line and (values := json_object(_without_prefix(line))) is not None:
        prefix = _BEFORE_JSON.match(line)
        origin = (prefix[1] or prefix[2]) if prefix else None
        yield from (e._replace(origin=origin) if origin else e for e in _of_object(values, deep))


def _of_object(values: Mapping[str, Any], deep: int) -> Iterator[_Entry]:
    """Yield the texts in an object."""
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
