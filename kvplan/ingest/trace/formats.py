"""Lists of requests in CSV and JSON: traces, and logs of gateways, of observability, of clients; by formats.toml.

Values are recognised by their names.

The unit of a time comes from its name (``timestamp_ms``), from a ``unit`` beside it, from the size of an epoch (1.7e9
s, 1.7e12 ms, 1.7e15 us, 1.7e18 ns) or from the documentation of the format, never from the look of the number.

References
----------
LiteLLM: litellm/types/utils.py (StandardLoggingPayload) and its spend logs. Langfuse: observations of its API.
OpenRouter: generation of its API. Ollama: docs/api.md, whose created_at is written at the end. OpenTelemetry: semantic
conventions gen_ai, OTLP in JSON, vllm/tracing.py. Bedrock: model invocation logs. Envoy AI Gateway and nginx: variables
of access logs. AIPerf: profile_export.jsonl.
"""

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from functools import lru_cache
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

from kvplan.ingest.cells import json_object, names, number_of, plain_name, shown
from kvplan.ingest.model.hardware import tables
from kvplan.ingest.reader import Beginning
from kvplan.ranges import LATEST_S, MAX_DECODE_TOKENS, MAX_TOKENS

UNITS = {
    **dict.fromkeys(("ns", "nano", "nanos", "nanoseconds"), 1e-9),
    **dict.fromkeys(("us", "micros", "microseconds"), 1e-6),
    **dict.fromkeys(("ms", "millis", "milliseconds"), 1e-3),
    **dict.fromkeys(("s", "sec", "secs", "seconds"), 1.0),
}
_CAPITAL = "|".join(f"{unit.capitalize()}|{unit.upper()}" for unit in UNITS)
_UNIT = re.compile(rf"(?:[_ (]((?i:{'|'.join(UNITS)}))|(?<=[a-z])({_CAPITAL}))\)?$")  # t_ms, t (ms), tMs
_OPEN_DATE = re.compile(r"\s*\d{1,2}[./]\d{1,2}[./]\d{2,4}\b")
_OPEN_NUMBER = re.compile(r"[1-9]\d{0,2}(\.\d{3})+")
_UNIT_ENDS = ("", *UNITS, "unixnano")
_EPOCHS = {1e9: 1.0, 1e12: 1e-3, 1e15: 1e-6, 1e18: 1e-9}  # from 2001 to 2286, and their units
_CALLED = {"time": "timestamp", "input": "input_tokens", "output": "output_tokens"}
# totals, what was asked for at most, text, gaps
_LURE = re.compile(r"total|max|char|word|byte|inter.?arrival|gap|delta", re.IGNORECASE)
_MEAN = re.compile(  # of tokens
    r"(?:avg|average|mean|median|p\d\d).*(?:token|input|output|prompt|completion|length|isl|osl)"
    r"|.*(?:token|prompt|completion|length)s?(?:avg|average|mean|median|p\d\d)$"
)
_SHOWN, _LONGEST_NAME = 8, 60  # names in a message
_TRIED = 20  # rows by which a file is told
_LOCAL_TIME = "%d/%b/%Y:%H:%M:%S%z"  # of nginx


_POINTS = ("time", "queued", "scheduled", "first", "last")
_TIMES = (*_POINTS, "ttft", "e2e")
# of a row itself
_TOP = names(
    "input output prompt decode created time times ts model start end arrival queued id requests invocations count n "
    "date day hour"
)
_FAILURES = names(
    "error errorcode errormessage wascancelled cancelled level statuscode responsecode status status.code "
    "status.statuscode"
)
_PLAIN_TIMES = names("timestamp timestamps time times ts")  # which say nothing of their unit
_BESIDE_INPUT = {"cachereadinputtokens", "cachereadinputtokencount"}  # Anthropic's and Bedrock's
_DETAILED = ("usagedetails.input", "usagedetails.output")  # Langfuse's, less what their details have
_NO_COMPLETIONS = {"invoke_agent", "create_agent", "invoke_workflow", "execute_tool", "embeddings"}
_FAILED = {"failure", "failed", "error", "cancelled", "true", "status_code_error"}
_FAILED_SPAN = 2  # code of an OTLP status


_PER_SECOND = re.compile(r"/s(?:ec)?\b|per.sec", re.IGNORECASE)
MOST_REQUESTS = 1_000_000_000  # in a row
Request = tuple[float, int, int]  # when it arrived, seconds; tokens in; tokens out


class BadRowError(Exception):
    """A row that cannot be read; `key` names the column."""

    def __init__(self, message: str, key: str | None = None) -> None:
        super().__init__(message)
        self.key = key


class Place(NamedTuple):
    """Where a value is in a row, how it is called there, and its unit in seconds: known, or in another value."""

    key: Any
    name: str
    unit: float | None = None
    unit_key: str = ""


class Format(NamedTuple):
    """A list of requests, as formats.toml describes it."""

    name: str
    tells: Sequence[frozenset[str]]
    units: Mapping[str, float]
    whole: bool = False
    ends: bool = False
    sparse: bool = True
    pooled: bool = False
    spans: bool = False


def _format(
    *, name: str, tells: Iterable[str], seconds: bool = False, units: Mapping[str, float] = {}, **how: bool
) -> Format:
    points = dict.fromkeys(_POINTS if seconds else (), 1.0)
    return Format(name, [frozenset(names.split()) for names in tells], {**points, **units}, **how)


_TABLES = tables(Path(__file__).with_suffix(".toml"))
_ENDS = ("time", "ts", "times", "at", "timestamp", "")  # of points in time
_NAMES = {
    role: [
        f"{name.rstrip('*')}{end}" for name in text.split() for end in (_ENDS if name[-1] == "*" else ("",))
    ]
    for role, text in _TABLES["names"].items()
}
FORMATS = tuple(_format(**table) for table in _TABLES["formats"])


class Layout(NamedTuple):
    """A format, and the places in its rows."""

    format: Format
    places: Mapping[str, Place]
    failures: tuple[Place, ...]
    exclusive: bool  # tokens that a cache had are not among the input
    missing: tuple[str, ...]  # of what a request needs

    def lacking(self, names: Iterable[str]) -> str:
        """Say which columns are missing, and what to call those that are there."""
        known = {place.name for place in self.places.values()}
        others = listed([name for name in names if name not in known]) or "no other columns"
        if means := listed([name for name in names if _MEAN.match(plain_name(name.rpartition(".")[2]))]):
            return f"{means}: a mean of requests, and neither a request nor a sum; requests themselves tell, or sums"
        if lures := listed([name for name in names if name not in known and _LURE.search(name)]):
            return f"no column for {', '.join(self.missing)}, which {lures} is not (there are {others})"
        wanted = ", ".join(_CALLED[role] for role in self.missing)
        return f"no column for {', '.join(self.missing)}; rename what has it to {wanted} (there are {others})"

    @property
    def timed(self) -> bool:
        """Whether the first and the last token have times."""
        first, last = self.places.keys() & {"first", "ttft"}, self.places.keys() & {"last", "e2e"}
        return not self.missing and bool(first and last)


def listed(names: Sequence[str]) -> str:
    """List names in a message, no more of them than one reads."""
    return ", ".join([name[:_LONGEST_NAME] for name in names[:_SHOWN]] + ["…"] * (len(names) > _SHOWN))


@lru_cache(4096)
def layout_of(keys: tuple[str, ...], in_json: bool) -> Layout:
    """Tell the format of rows with these keys, or with columns in this order.

    Examples
    --------
    >>> layout = layout_of(("Arrival_ms", "Prompt Tokens", "completion_tokens"), in_json=False)
    >>> layout.format.name, layout.places["time"]
    ('CSV', Place(key=0, name='Arrival_ms', unit=0.001, unit_key=''))
    """
    written = {
        ".".join(map(plain_name, name.split("."))): index for index, name in reversed(list(enumerate(keys)))
    }
    within = {path[start:]: index for path, index in written.items() for start in _starts(path)} | written
    within |= {plain: index for index, name in enumerate(keys) if (plain := plain_name(name)) not in within}

    def place(role: str, format: Format) -> Place | None:
        for alias in _NAMES[role]:
            known = written if alias in _TOP else within
            ends = _UNIT_ENDS if role in _TIMES else ("",)
            for index in (known[alias + end] for end in ends if alias + end in known):
                name = keys[index]
                beside = f"{name.removesuffix('value')}unit" if name.endswith(".value") else ""
                unit = None if beside in keys else unit_of(name, format.units.get(role))
                return Place(name if in_json else index, name, unit, beside if beside in keys else "")
        return None

    format = next(format for format in FORMATS if any(names <= within.keys() for names in format.tells))
    if not in_json:
        format = format._replace(name=format.name.replace("JSON lines", "CSV"))
    places = {role: column for role in _NAMES if (column := place(role, format)) is not None}
    if (bucket := places.pop("bucket", None)) and "requests" in places:
        places.setdefault("time", bucket)
    failures = [within[name] for name in _FAILURES if name in within]
    cached, inputs = (places[role].name if role in places else "" for role in ("cached", "input"))
    return Layout(
        format,
        places,
        tuple(Place(keys[index] if in_json else index, keys[index]) for index in failures),
        plain_name(cached.rpartition(".")[2]) in _BESIDE_INPUT and "prompt" not in inputs.lower(),
        tuple(role for role in _CALLED if role not in places),
    )


def _starts(path: str) -> list[int]:
    """List where a path, and the shorter ones at its end, begin; the whole path last."""
    return [*(match.end() for match in re.finditer(r"\.", path)), 0]


@lru_cache(4096)
def unit_of(name: str, documented: float | None = None) -> float | None:
    """Tell the unit that a name ends with, seconds; else the documented one.

    Examples
    --------
    >>> [unit_of(name) for name in ("timestamp_ms", "startTimeUnixNano", "TTFT (s)", "timestamps")]
    [0.001, 1e-09, 1.0, None]
    """
    match = _UNIT.search(name)
    return UNITS[(match[1] or match[2]).lower()] if match else documented


def epoch_unit(number: float) -> float | None:
    """Tell the unit of a number that is seconds, milliseconds and so on since 1970; None of another."""
    return next((unit for least, unit in _EPOCHS.items() if least <= number < 10 * least), None)


class Reading:
    """Reads the rows of a file: what a layout has in them, in seconds and tokens."""

    def __init__(self, unit_s: float | None = None, model: str | None = None) -> None:
        self.open_time = ""  # the name of times whose unit nothing tells; they are read as whole ones
        self.plain_time = ""  # of times that are seconds because no unit is named
        self.named_by = self.counted_by = ""  # which name a response, and say of how many requests a row is
        self.beside_input = ""  # the name of tokens that a cache had, where they are not among the input
        self.models: dict[str, None] = {}  # that are told apart
        self._unit_s = unit_s
        self._model = model
        self._spans: dict[tuple[str, ...], tuple[float, float, Any]] = {}
        self._epoch: float | None = None
        self._seen = False

    def reason(self, layout: Layout, row: Any) -> str:
        """Say why a row is left out; empty where it is not."""
        at, sparse = layout.places, layout.format.sparse
        if sparse and (
            value_at(row, at["time"]) in (None, "", "-")
            or any(number_of(value_at(row, at[role])) is None for role in ("input", "output"))
        ):
            return "without time or tokens"
        if "operation" in at and value_at(row, at["operation"]) in _NO_COMPLETIONS:
            return "no completions"
        if "phase" in at and value_at(row, at["phase"]) not in (None, "", "profiling"):
            return "of the warm-up"
        if any(_is_failure(place.name, value_at(row, place)) for place in layout.failures):
            return "failed or cancelled"
        if "hit" in at and str(value_at(row, at["hit"])).lower() == "true":
            return "answered by the cache of the gateway"
        if layout.format.spans and "trace" in at and self._told_before(layout, row):
            return "spans within or around another span of the same request"
        return self._other_model(layout, row) if "model" in at and not layout.format.pooled else ""

    def _told_before(self, layout: Layout, row: Any) -> bool:
        """Tell whether a span is of a request that another one tells: nested in time, of one trace and length."""
        at, start = layout.places, self.point(layout, row, "time")
        end = self.point(layout, row, "last") if _filled(layout, row, "last") else start
        key = tuple(str(value_at(row, at[role])) for role in ("trace", "input", "output"))
        parent = value_at(row, at.get("within"))
        begun, ended, other = self._spans.setdefault(key, (start, end, parent))
        return other != parent and ((begun <= start and end <= ended) or (start <= begun and ended <= end))

    def _other_model(self, layout: Layout, row: Any) -> str:
        model = str(value_at(row, layout.places["model"]) or "")
        if model:
            self.models[model] = None
        return "of other models" if self._model not in (None, model) else ""

    def request(self, layout: Layout, row: Any) -> tuple[float, int, int]:
        """Read when it arrived, seconds, its tokens in and its tokens out."""
        time, place = self.point(layout, row, "time"), layout.places["input"]
        if layout.format.ends and "e2e" in layout.places:
            time -= self.span(layout, row, "e2e") or 0.0
        count = max(self.count(layout, row), 1)
        inputs = _tokens(row, place, MAX_TOKENS * count)
        if layout.exclusive:
            self.beside_input = layout.places["cached"].name
            inputs += sum(_optional_tokens(row, layout, role, count) for role in ("cached", "written"))
        return time, inputs, _tokens(row, layout.places["output"], MAX_DECODE_TOKENS * count)

    def count(self, layout: Layout, row: Any) -> int:
        """Read how many requests a row is the sum of; 1 where it does not say, 0 of a step without any."""
        if not _filled(layout, row, "requests"):
            return 1
        self.counted_by = layout.places["requests"].name
        number = number_of(value_at(row, layout.places["requests"]))
        return int(number) if number == 0 or (number is not None and 1 < number <= MOST_REQUESTS) else 1

    def response(self, layout: Layout, row: Any, request: Request) -> tuple[str, int] | None:
        """Tell a response from others, by its name and prompt; None where it has no name, or one that is a number."""
        name = value_at(row, layout.places.get("id"))
        named = isinstance(name, str) and name != "-" and not name.strip().isdecimal() and bool(name.strip())
        if not named:
            return None
        self.named_by = layout.places["id"].name
        return str(name), request[1]

    def times(self, layout: Layout, row: Any, arrival_s: float) -> dict[str, float | None]:
        """Read when it was queued and scheduled, and had its first and its last token; None: it does not say."""
        read = {
            f"{role}_s": self.point(layout, row, role) if _filled(layout, row, role) else None
            for role in ("queued", "scheduled", "first", "last")
        }
        for role, span in (("first_s", "ttft"), ("last_s", "e2e")):
            if read[role] is None and (seconds := self.span(layout, row, span)) is not None:
                read[role] = arrival_s + seconds
        return read

    def cached_tokens(self, layout: Layout, row: Any) -> int:
        """Read how many tokens of the prompt a cache had; 0 where it does not say."""
        return _optional_tokens(row, layout, "cached", max(self.count(layout, row), 1))

    def point(self, layout: Layout, row: Any, role: str) -> float:
        """Read a point in time, seconds since 1970 or since the file began."""
        place = layout.places[role]
        value = _there(row, place)
        number = number_of(value)
        if number is None:
            return dated(value, place.name)
        epoch, unit = epoch_unit(number), place.unit
        if role == "time":
            unit = self._unit_of_time(layout, place, value, epoch)
        elif epoch is not None and unit_of(place.name) is None:
            unit = epoch
        return _within(number * (1.0 if unit is None else unit), value, place.name)

    def _unit_of_time(self, layout: Layout, place: Place, value: Any, epoch: float | None) -> float | None:
        if self._unit_s is not None:
            return self._unit_s
        named = unit_of(place.name)
        if self._seen and epoch != self._epoch and named is None and None not in (epoch, self._epoch):
            raise BadRowError(f"{shown(value)}; those before are of another unit", place.name)
        if not self._seen:
            self._seen, self._epoch = True, epoch
            if epoch is not None and named is not None and named != epoch:
                raise BadRowError(
                    f"{shown(value)}; its size is an epoch's in another unit; --unit says which", place.name
                )
        if named is not None or self._epoch is None:
            if named is None and layout.format.whole and not _is_whole(value):
                self.open_time = place.name
            if (
                named is None
                and layout.format.tells == [frozenset()]
                and plain_name(place.name) in _PLAIN_TIMES
            ):
                self.plain_time = place.name
            return place.unit
        return self._epoch

    def without_unit(self, layout: Layout, row: Any, *roles: str) -> str:
        """Name the first of some spans that is there in a unit that nothing tells; empty where none is."""
        filled = [role for role in roles if _filled(layout, row, role)]
        open_spans = (role for role in filled if self.span(layout, row, role) is None)
        return next((layout.places[role].name for role in open_spans), "")

    def span(self, layout: Layout, row: Any, role: str) -> float | None:
        """Read how long something took, seconds; None where it does not say, or not in which unit."""
        if not _filled(layout, row, role):
            return None
        place = layout.places[role]
        unit = UNITS.get(str(row.get(place.unit_key))) if place.unit_key else place.unit
        number = number_of(value_at(row, place))
        return None if unit is None or number is None else number * unit


def value_at(row: Any, place: Place | None) -> Any:
    """Look up a value; None where there is none."""
    try:
        return None if place is None else row[place.key]
    except (IndexError, KeyError):
        return None


def _there(row: Any, place: Place) -> Any:
    try:
        return row[place.key]
    except (IndexError, KeyError):
        raise BadRowError("missing", place.name) from None


def _filled(layout: Layout, row: Any, role: str) -> bool:
    return role in layout.places and value_at(row, layout.places[role]) not in (None, "", "-")


def _is_whole(value: Any) -> bool:
    return type(value) is int or (type(value) is str and value.strip().isdecimal())


def dated(value: Any, name: str) -> float:
    """Read seconds since 1970 of a date and time; one without a zone is in UTC."""
    text = value.strip().replace(" UTC", "Z").replace(" +", "+") if isinstance(value, str) else ""
    try:
        date = datetime.strptime(text, _LOCAL_TIME) if text[2:3] == "/" else datetime.fromisoformat(text)
        return (date if date.tzinfo else date.replace(tzinfo=UTC)).timestamp()
    except (ValueError, OverflowError):
        return _within(math.nan, value, name)


def _within(seconds: float, value: Any, name: str) -> float:
    if not abs(seconds) <= LATEST_S:
        what = f"{shown(value)}; must be a time: a number of seconds, or a date; a column of milliseconds is called "
        if isinstance(value, str) and _OPEN_DATE.match(value):
            raise BadRowError(
                f"{shown(value)}; day or month may come first: must be as in 2026-11-03 09:00:01 (ISO 8601)",
                name,
            )
        raise BadRowError(f"{what}timestamp_ms", name)
    return seconds


def _tokens(row: Any, place: Place, most: int) -> int:
    value = _there(row, place)
    if isinstance(row, dict) and place.name.lower().endswith(_DETAILED):
        value = sum(
            number for key, number in row.items() if key.startswith(place.name) and type(number) is int
        )
    if isinstance(value, str) and _OPEN_NUMBER.fullmatch(value.strip()):
        raise BadRowError(
            f"{shown(value)}; thousands, or decimals? must be a whole number, as in 1204 or 1,204", place.name
        )
    number = number_of(value) if type(value) is not int else value
    if number is None or not (0 <= number <= most and number == int(number)):
        raise BadRowError(f"{shown(value)}; must be a whole number of tokens, at most {most:,}", place.name)
    return int(number)


def _optional_tokens(row: Any, layout: Layout, role: str, count: int) -> int:
    return _tokens(row, layout.places[role], MAX_TOKENS * count) if _filled(layout, row, role) else 0


def _is_failure(name: str, value: Any) -> bool:
    """Tell whether a value says that a request failed: a code, a word, or whatever an error has."""
    kind = plain_name(name.rpartition(".")[2])
    if kind.startswith("error"):
        return value not in (None, "", "-", False, "None", "null", "false", 0, "0")
    code = number_of(value)
    if code is not None:
        return code >= 400 or (kind == "code" and code == _FAILED_SPAN)
    return str(value).lower() in _FAILED


# -- objects ----------------------------------------------------------------------------------------------------------

_OF_RUNS = names("concurrency maxconcurrency concurrentrequests conc requestedrps requestrate numprompts")
_WRAPPERS = names(
    "data requests logs items records results rows spans resourcespans scopespans observations generations"
)
_BEDROCK_METRICS = "amazon-bedrock-invocationMetrics"


def requests_in(
    document: Mapping[str, Any], of_list: Mapping[str, Any] = {}
) -> Iterator[tuple[Layout, dict[str, Any]]]:
    """Yield the rows of a JSON object, each with its layout: itself, flat, or the objects of the lists in it.

    Those without a time have that of the list, `of_list`.

    Examples
    --------
    >>> rows = requests_in({"data": [{"created": 1, "usage": {"prompt_tokens": 7}}]})
    >>> [(layout.missing, row["usage.prompt_tokens"]) for layout, row in rows]
    [(('output',), 7)]
    """
    row = flat(document)
    layout = layout_of(tuple(row), in_json=True)
    if of_list and "time" in layout.missing:
        row = {**of_list, **row}
        layout = layout_of(tuple(row), in_json=True)
    parts: list[Any] = []
    if layout.missing:
        lists = (value for key, value in document.items() if plain_name(key) in _WRAPPERS)
        parts = [
            part for value in lists if isinstance(value, list) for part in value if isinstance(part, dict)
        ]
    if not parts:
        yield layout, row
    times = [layout.places[role].name for role in ("time", "last") if role in layout.places] if parts else ()
    for part in parts:
        yield from requests_in(part, {name: row[name] for name in times})


def flat(document: Mapping[str, Any], within: str = "") -> dict[str, Any]:
    """Flatten objects within objects, and lists of attributes, to paths."""
    row: dict[str, Any] = {}
    for key, value in document.items():
        path = f"{within}{key}"
        if isinstance(value, list) and value and isinstance(value[-1], dict):
            if _BEDROCK_METRICS in value[-1]:
                value = value[-1][_BEDROCK_METRICS]
            elif all(isinstance(part, dict) and "key" in part for part in value):
                value = {part["key"]: _attribute(part.get("value")) for part in value}
        if isinstance(value, dict) and value:
            row |= flat(value, f"{path}.")
        else:
            row[path] = value
    return row


def _attribute(value: Any) -> Any:
    """Unwrap ``{"intValue": "12"}``."""
    return next(iter(value.values()), None) if isinstance(value, dict) else value


def lists_requests(start: Beginning, *, timed: bool = False) -> bool:
    """Tell whether a file begins with requests: their times and tokens, or with `timed` the times of tokens too."""
    if not timed and start.in_json and (start.has("input_lens", "output_lens") or '"gen_ai.' in start.text):
        return True
    if start.plain_names & _OF_RUNS.keys():
        return False
    return any(layout.timed if timed else not layout.missing for layout, _ in _layouts(start))


def nearest(start: Beginning) -> str:
    """Say what keeps a file from being a list of requests; empty where it is nothing like one."""
    layout, names = next(_layouts(start), (None, ()))
    if not start.in_json and any(map(_PER_SECOND.search, names)):
        return (
            "; nearest is a series of averages: its columns are time, prompt_throughput and gen_throughput, running, "
            "kv_cache_pct"
        )
    some = layout is not None and 0 < len(layout.missing) < len(_CALLED)
    return f"; nearest are requests, but {layout.lacking(names)}" if layout and some else ""


def _layouts(start: Beginning) -> Iterator[tuple[Layout, Iterable[str]]]:
    """Yield the layouts of the first rows; the very first can be one that failed."""
    if not start.in_json:
        return iter([(layout_of(tuple(start.names), False), start.names)])
    later = filter(None, map(json_object, start.text.splitlines()[1:_TRIED]))
    return (row for document in chain([start.values or {}], later) for row in requests_in(document))
