"""Recorded requests: when each arrived, how long its prompt was, how much it generated."""

import csv
from array import array
from collections import Counter
from collections.abc import Hashable, Iterable, Iterator
from itertools import chain, pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from kvplan.errors import ProfileError, UsageError
from kvplan.ingest.cells import Record, is_json, json_records, number_of, shown, tables_in
from kvplan.ingest.reader import Beginning
from kvplan.ingest.text_file import Lines, beginning, lines_of
from kvplan.ingest.trace import servegen
from kvplan.ingest.trace.formats import (
    UNITS,
    BadRowError,
    Layout,
    Reading,
    Request,
    layout_of,
    listed,
    requests_in,
    value_at,
)
from kvplan.ingest.trace.prefixes import Identities
from kvplan.ingest.trace.servegen import Description
from kvplan.model import FloatArray, IntArray
from kvplan.units import format_number, format_rate

_BEGINNING = 4096  # characters by which a description is told
_SHOWN = 8  # names in a message
_MILLISECONDS = 1e-3  # as which times of an open unit are read
_REMEMBERED = 1_000_000  # responses; repeats stand near each other
_FIRST_ROWS = 100  # by whose ends sums are told
_FEWEST_STEPS, _SHORTEST_STEP_S = 3, 60.0  # of sums over time
_UNEVEN = 0.01  # of a step, by which those of sums may differ
_FEW_SHORTER = 0.1  # of the rows that repeat a response
_DAYS, _FASTEST_RPS = (36_526, 73_051), 1_000  # of a spreadsheet, 2000 to 2100; nobody serves more
_LONGEST_CONTEXT = 1 << 20  # tokens; a mean above is no mean of prompts


class Rows(NamedTuple):
    """Rows in the order of the file, shape (n_rows,), zeros included; times from an origin of the file's own."""

    time_s: FloatArray
    input_tokens: IntArray  # of all requests of the row
    output_tokens: IntArray
    requests: IntArray  # 1, unless rows are sums


class TraceFile:
    """A trace to be read once; its other attributes are set then.

    `cut_off` is 1 if the file ends within its last row, which is left out,
    as are others, counted by reason in `left_out`. A row that cannot be read is refused with its line. `unit` of the
    times counts whatever the file says, `model` where it has several.

    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder:
    ...     path = Path(folder, "trace.csv")
    ...     _ = path.write_text("time_s,input,output\\n0.5,374,44\\n1.5,396,109\\n")
    ...     trace = TraceFile(path)
    ...     trace.read().input_tokens.tolist(), trace.format
    ([374, 396], 'CSV')
    """

    def __init__(self, path: Path, unit: str | None = None, model: str | None = None) -> None:
        self.path = path
        self.format = ""
        self.sha256 = ""
        self.cut_off = 0
        self.left_out: Counter[str] = Counter()
        self.repeats = 0  # rows of a response that one before them told of
        self._shorter = 0  # of them that have less of its answer, which only grows
        self.cached_tokens = 0  # that a cache had, of the input of those rows that say so
        self.cached_of = 0
        self.duration_s: float | None = None  # of a benchmark without arrival times, all of which are 0
        self.identities = Identities()
        self.wrapping_notes: tuple[str, ...] = ()
        self._model = model
        self._reading = Reading(None if unit is None else UNITS[unit], model)
        self._ends: list[tuple[float, float]] = []  # of the first rows
        self._counted = True  # rows say of how many requests they are

    def read(self) -> Rows:
        """Read the file."""
        time_s, inputs, outputs, requests = array("d"), array("q"), array("q"), array("q")
        told: dict[Hashable, int] = {}  # where the row of a response is
        with lines_of(self.path) as lines:
            try:
                for (arrival_s, input_tokens, output_tokens), count, response in self._requests(lines):
                    if response is not None and (at := told.setdefault(response, len(outputs))) < len(
                        outputs
                    ):
                        self.repeats += 1
                        self._shorter += output_tokens < outputs[at]
                        outputs[at] = output_tokens
                        continue
                    if len(told) > _REMEMBERED:
                        del told[next(iter(told))]
                    time_s.append(arrival_s)
                    inputs.append(input_tokens)
                    outputs.append(output_tokens)
                    requests.append(count)
            except csv.Error as error:
                message = f"not CSV: {error}; is a quote open?"
                raise ProfileError(lines.source, message, line=lines.number) from None
        self.sha256 = lines.sha256
        self.wrapping_notes = lines.notes
        return Rows(*map(np.asarray, (time_s, inputs, outputs, requests)))

    def _requests(self, lines: Lines) -> Iterator[tuple[Request, int, Hashable]]:
        """Yield requests, of how many each is the sum, and what tells its response from others, or None.

        A row that cannot be read is the end of a file that was cut off, or an error.
        """
        line = next((line for line in lines if line.strip()), "")
        if not line:
            raise UsageError(f"{lines.source}: empty; a trace has a row for every request")
        usual: Layout | None = None
        lacking: ProfileError | None = None
        any_before = False
        for number, layout, row in self._in_json(line, lines) if is_json(line) else _in_csv(line, lines):
            if layout.missing and (usual is None or usual.format.sparse):
                lacking = lacking or _lacking(lines.source, number, line, layout, row)
                self.left_out["no requests"] += 1
                continue
            usual = usual or layout
            self.format = usual.format.name
            try:
                if layout.missing:
                    raise BadRowError("missing", usual.places[layout.missing[0]].name)
                if reason := self._reading.reason(layout, row):
                    self.left_out[reason] += 1
                    continue
                request = self._reading.request(layout, row)
                count = self._reading.count(layout, row) or int(any(request[1:]))
                self._counted &= number_of(value_at(row, layout.places.get("requests"))) is not None
                response = self._reading.response(layout, row, request)
                self._remember(request, count, response, layout, row)
            except BadRowError as error:
                if not (any_before and lines.cut_off):
                    raise ProfileError(lines.source, str(error), key=error.key, line=number) from None
                self.cut_off = 1
                break
            any_before = True
            yield request, count, response
        if usual is None and lacking is not None:
            raise lacking

    def _in_json(self, line: str, lines: Lines) -> Iterator[tuple[int, Layout, Any]]:
        any_before = False
        for record in json_records(lines.source, lines.number, line, iter(lines)):
            if not record.ended:
                if not any_before:
                    message = f"not JSON: {shown(line)}; is the file cut off?"
                    raise ProfileError(lines.source, message, line=record.line)
                self.cut_off = 1
                return
            of_benchmark = record.at("input_lens") is not None
            if of_benchmark and any_before:
                raise ProfileError(
                    lines.source, "several benchmark results; give one at a time", line=record.line
                )
            any_before = True
            for layout, row in self._of_benchmark(record) if of_benchmark else requests_in(record.values):
                yield record.line, layout, row

    def _of_benchmark(self, record: Record) -> Iterator[tuple[Layout, dict[str, Any]]]:
        """Yield the requests of a run of ``vllm bench``; without times all at once, done within its duration."""
        inputs, outputs, times = map(record.at, ("input_lens", "output_lens", "start_times"))
        if not (isinstance(inputs, list) and isinstance(outputs, list) and len(inputs) == len(outputs)):
            seen = shown(", ".join(list(record.values)[:_SHOWN]))
            message = f"not a trace: needs the lists input_lens and output_lens, of one length; has {seen}"
            raise ProfileError(record.source, message, line=record.line)
        if not (isinstance(times, list) and len(times) == len(inputs)):
            times = [0] * len(inputs)
            self.duration_s = record.number("duration")
        names = "start_times", "input_lens", "output_lens"
        layout = layout_of(names, True)
        for values in zip(times, inputs, outputs, strict=True):
            yield layout, dict(zip(names, values, strict=True))

    @property
    def cached_share(self) -> float | None:
        """Share of the prompt tokens that a cache had, where rows say so."""
        return self.cached_tokens / self.cached_of if self.cached_of else None

    def _remember(self, request: Request, count: int, response: Hashable, layout: Layout, row: Any) -> None:
        """Keep what tells which prompts begin alike, what a cache had of them, and when the first rows end."""
        places = layout.places
        if count == 1 and ("session" in places or "hashes" in places):
            hashes, session, parent = (
                value_at(row, places.get(role)) for role in ("hashes", "session", "parent")
            )
            self.identities.add(request, hashes, session, parent, response)
        if "cached" in places and value_at(row, places["cached"]) not in (None, ""):
            self.cached_tokens += self._reading.cached_tokens(layout, row)
            self.cached_of += request[1]
        if (
            len(self._ends) < _FIRST_ROWS
            and "last" in places
            and value_at(row, places["last"]) not in (None, "")
        ):
            self._ends.append((request[0], self._reading.point(layout, row, "last")))

    def are_sums(self, rows: Rows) -> bool:
        """Tell whether rows are sums over steps of time; refuse those that do not say of how many requests.

        Of a service that is hardly used none is of more than one.
        """
        starts = np.unique(rows.time_s)
        if (rows.requests > 1).any() or starts.size < _FEWEST_STEPS:
            return bool((rows.requests > 1).any())
        steps, ends = np.diff(starts), dict(self._ends)
        what = ""
        if float(rows.input_tokens.mean()) > _LONGEST_CONTEXT:
            what = f"{rows.input_tokens.mean():,.0f} tokens in on average, more than any context"
        elif np.ptp(steps) == 0 and steps[0] >= _SHORTEST_STEP_S and starts[0] % steps[0] == 0:
            what = f"a time each {format_number(steps[0])} s to the second"
        elif len(ends) >= _FEWEST_STEPS and all(later == ends[t] for t, later in pairwise(sorted(ends))):
            what = "the end of each is the beginning of the next"
        if what and not (self._counted and rows.input_tokens.mean() <= _LONGEST_CONTEXT):
            raise UsageError(
                f"{self.path}: rows are sums over time and not requests ({what}), and none says of how many; a column "
                "requests has their number, 1 where each is a request"
            )
        return bool(what) and np.ptp(steps) <= _UNEVEN * steps[0]

    @property
    def counted_by(self) -> str:
        """The name of the number of requests of a row."""
        return self._reading.counted_by

    def refuse_what_is_open(self, served: int, span_s: float, start_s: float = 0.0) -> None:
        """Refuse requests of several models, names that are of no response, and times in a unit that nothing tells."""
        if self._shorter > max(1, self.repeats * _FEW_SHORTER):
            raise UsageError(
                f"{self.path}: {self._reading.named_by} names no response, for answers of one get shorter in "
                f"{self._shorter:,} of {self.repeats:,} rows that repeat one; rename it, or leave it out"
            )
        models = list(self._reading.models)
        if self._model is not None and self._model not in models:
            raise UsageError(
                f"{self.path}: no requests of the model {self._model}; there are {listed(models)}"
            )
        if self._model is None and len(models) > 1:
            raise UsageError(
                f"{self.path}: requests of several models; choose one with --group: {listed(models)}"
            )
        in_days = _DAYS[0] <= start_s and start_s + span_s <= _DAYS[1]
        if (key := self._reading.plain_time) and in_days and served > _FASTEST_RPS * span_s > 0:
            rate = format_rate(served / span_s)
            raise UsageError(
                f"{self.path}: {key}: days as spreadsheets count them? In seconds they are {rate}; "
                "save them as dates, 2026-11-03 09:00:01, or say --unit s"
            )
        if (key := self._reading.open_time) and span_s > 0:
            fast, slow = (format_rate((served - 1) / seconds) for seconds in (span_s, span_s / _MILLISECONDS))
            raise UsageError(
                f"{self.path}: {key}: decimals, which are milliseconds as Dynamo writes them, and seconds as GuideLLM "
                f"does: {fast} or {slow}; say --unit ms or --unit s, or call it {key}_ms or {key}_s"
            )

    def leave_out(self, rows: NDArray[np.bool_], reason: str) -> int:
        """Count rows that were read, and are left out; return how many rows there are, those not read included."""
        self.left_out[reason] += int(rows.sum())
        return int((~rows).sum()) + self.not_read

    @property
    def not_read(self) -> int:
        """How many rows are left out, or repeat another one."""
        return self.left_out.total() + self.repeats

    def notes(self, rows: int, arrival_s: FloatArray) -> Iterator[str]:
        """Say what was left out of so many rows, in which order the others are, and what was taken for what."""
        for reason, count in self.left_out.items():
            if count:
                yield f"{count:,} of {rows:,} rows left out: {reason}"
        if unsorted := int((arrival_s < np.maximum.accumulate(arrival_s)).sum()):
            yield f"{unsorted:,} arrivals are earlier than one before them in the file; put in order"
        if self.repeats:
            yield f"{self.repeats:,} rows repeat a response of an earlier one; the last row of each counts"
        if self.cut_off:
            yield "the file ends within its last row, which is left out"
        if key := self._reading.plain_time:
            yield f"{key} names no unit and is taken as seconds; --unit, or a name such as {key}_ms, says otherwise"
        if key := self._reading.beside_input:
            yield f"{key} is beside the input tokens, and added to them"
        yield from self.wrapping_notes


def _in_csv(line: str, lines: Lines) -> Iterator[tuple[int, Layout, Any]]:
    header = Beginning.of_line(line)
    layout = layout_of(tuple(header.names), False)
    if layout.missing:
        number = lines.number
        for title, rows in tables_in(enumerate(chain([line], lines), number)):
            names = next(csv.reader([title]))
            if not (table := layout_of(tuple(names), False)).missing:
                yield from ((place, table, next(csv.reader([row]))) for place, row in rows)
                return
        raise _lacking(lines.source, number, line, layout, header.names)
    for cells in csv.reader(lines, delimiter=header.delimiter):
        if cells:
            yield lines.number, layout, cells


def _lacking(source: str, number: int, line: str, layout: Layout, names: Iterable[str]) -> ProfileError:
    message = f"not a trace: {layout.lacking(names)}; the line begins {shown(line)}"
    return ProfileError(source, message, line=number)


def read_description(path: Path) -> tuple[str, Description] | None:
    """Return the name of the format and the description in a file; None where it lists requests."""
    if not path.is_file():  # a pipe can be read only once
        return None
    try:
        start = beginning(path, _BEGINNING)
    except UsageError:
        return None  # whoever reads it next says why
    for reader in servegen.DESCRIPTIONS:
        if reader.recognises(Beginning("", False, (), None, text=start)):
            return reader.name, reader.read(path, start)
    return None
