"""Traces that are tables, in CSV or JSON lines, by the names of their columns."""

import csv
import math
import re
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from itertools import chain
from typing import Any, NamedTuple

from kvplan.errors import ProfileError
from kvplan.ingest.cells import json_object, plain_name, shown
from kvplan.ingest.reader import Beginning
from kvplan.ingest.text_file import Lines
from kvplan.ingest.trace.format import BadRowError, Extras, Request, request_list
from kvplan.ranges import LATEST_S, MAX_DECODE_TOKENS, MAX_TOKENS

# Usual names, plain; the first that is there counts.
_TIME, _INPUT, _OUTPUT = map(
    str.split,
    (
        """
        timestamp arrivaltime arrivaltimestamp arrivaltimes arrivals arrivalms arrival arrivedat
        timestampms timestamps times timems time
        """,
        """
        contexttokens requesttokens inputlength inputtoks inputtokens inputlen prompttokens promptlength
        promptlen promptsize numprefilltokens numprompttokens numinputtokens input prompt
        """,
        """
        generatedtokens responsetokens outputlength outputtoks outputtokens outputlen completiontokens
        decodetokens decodelength numdecodetokens numcompletiontokens numoutputtokens tokensize output
        decode
        """,
    ),
)
_SESSION = ("sessionid", "conversationid", "chatid")
_PARENT = "parent_chat_id"  # of the turn before, where each turn has a chat_id of its own


class Columns(NamedTuple):
    """What the columns of time, input and output are called, and the unit of time in seconds.

    >>> Columns("t", "in", "out", 1e-3).request([1500, 7, 8], (0, 1, 2))
    (1.5, 7, 8)
    """

    time: str
    input: str
    output: str
    unit_s: float = 1.0

    def requests(self, first: Beginning, lines: Lines, extras: Extras) -> Iterator[Request]:
        """The requests of a table that begins with this line."""
        session = next((name for name in first.names if plain_name(name) in _SESSION), None)
        identified = session is not None or first.has("hash_ids")
        remember = extras.identities.add
        if not first.in_json:
            places = tuple(map(first.names.index, self[:3]))
            turn_of = None if session is None else first.names.index(session)
            for cells in csv.reader(lines, delimiter=first.delimiter):
                if cells:
                    request = self.request(cells, places)
                    if turn_of is not None:
                        remember(request, None, cells[turn_of] if turn_of < len(cells) else None)
                    yield request
            return
        for text in chain([first.line], lines):
            if not text.strip():
                continue
            row = json_object(text)
            if row is None:
                raise BadRowError(f"not a JSON object: {shown(text)}")
            request = self.request(row, self[:3])
            if identified:
                remember(request, row.get("hash_ids"), row.get(session or ""), row.get(_PARENT))
            yield request

    def request(self, row: Any, places: Sequence[Any]) -> Request:
        """The request in a row that has time, input and output in these places; or raise a `BadRowError`."""
        time, inputs, outputs = places
        try:
            seen = row[time], row[inputs], row[outputs]
        except (IndexError, KeyError):
            name = next(n for p, n in zip(places, self[:3], strict=True) if not _has(row, p))
            raise BadRowError("missing", name) from None
        return (
            seconds(seen[0], self.time) * self.unit_s,
            _tokens(seen[1], self.input, MAX_TOKENS),
            _tokens(seen[2], self.output, MAX_DECODE_TOKENS),
        )


def _usual(first: Beginning, lines: Lines, extras: Extras) -> Iterator[Request]:
    """The requests of a table that has a column each for time, input and output under a usual name."""
    found = _columns(first)
    if missing := [what for what, name in found.items() if not name]:
        raise ProfileError(
            lines.source,
            f"not a trace: no column for {', '.join(missing)}, such as timestamp, input_tokens, output_tokens; "
            f"the line begins {shown(first.line)}",
            line=lines.number,
        )
    in_ms = re.search(r"(_| |\()ms\)?$", found["time"].lower())
    columns = Columns(found["time"], found["input"], found["output"], 1e-3 if in_ms else 1.0)
    return columns.requests(first, lines, extras)


def is_usual(first: Beginning) -> bool:
    """Whether there is a column each for time, input and output, under a usual name."""
    return all(_columns(first).values())


def _columns(first: Beginning) -> dict[str, str]:
    """What columns are called; empty where they are missing."""
    plain = {plain_name(name): name for name in reversed(first.names)}
    return {
        what: next((plain[alias] for alias in aliases if alias in plain), "")
        for what, aliases in (("time", _TIME), ("input", _INPUT), ("output", _OUTPUT))
    }


USUAL = (
    request_list("CSV", lambda first: not first.in_json, _usual),
    request_list("JSON lines", lambda first: first.in_json, _usual),
)


def _has(row: Any, place: Any) -> bool:
    return place in row if isinstance(row, dict) else place < len(row)


def seconds(value: Any, name: str) -> float:
    """Seconds of a number, or of a date and time; one without a zone is in UTC."""
    try:
        if isinstance(value, bool):
            raise ValueError
        try:
            found = float(value)
        except ValueError:
            date = datetime.fromisoformat(value.strip())
            found = (date if date.tzinfo else date.replace(tzinfo=UTC)).timestamp()
    except (TypeError, ValueError, OverflowError, AttributeError):
        found = math.nan
    if not abs(found) <= LATEST_S:
        raise BadRowError(
            f"{shown(value)}; must be a time: a number of seconds, or a date; a column of milliseconds is called "
            "timestamp_ms",
            name,
        )
    return found


def _tokens(value: Any, name: str, most: int) -> int:
    try:
        number = int(value) if type(value) is int or type(value) is str else _whole(value)
    except ValueError:
        try:
            number = _whole(float(value))
        except ValueError:
            number = -1
    if not 0 <= number <= most:
        raise BadRowError(f"{shown(value)}; must be a whole number of tokens, at most {most:,}", name)
    return number


def _whole(value: Any) -> int:
    return int(value) if type(value) is float and value.is_integer() else -1
