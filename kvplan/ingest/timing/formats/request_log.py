"""A request log: CSV or JSON lines with a request each, its lengths and its times in seconds.

Columns input_tokens, output_tokens, arrival_time, first_token_time and last_token_time under such names; queued and
scheduled times where known, and cached_tokens of the prompt. Names ending in _ms are of milliseconds.
"""

from kvplan.errors import ProfileError
from kvplan.ingest.timing.collector import Collector
from kvplan.ingest.timing.format import Names, Row, TableFormat, names
from kvplan.ingest.timing.requests import Request

_INPUT = names(
    "inputtoks inputtokens inputlen inputlength numprompttokens prompttokens promptlen contexttokens isl"
)
_CACHED = names("cachedtokens numcachedtokens cachedprompttokens promptcachedtokens")
_OUTPUT = names(
    "outputtoks outputtokens outputlen outputlength numgenerationtokens generationtokens generatedtokens "
    "completiontokens osl"
)


def _time(stems: str) -> Names:
    """What a time can be called: arrival_time, arrival_ts, arrival_s, arrival, arrival_ms and so on."""
    seconds = [
        f"{stem}{end}"
        for stem in stems.split()
        for end in ("time", "ts", "times", "s", "at", "timestamp", "")
    ]
    return {**names(" ".join(seconds)), **names(" ".join(f"{name}ms" for name in seconds), 1e-3)}


_ARRIVAL, _FIRST, _LAST = map(_time, ("arrival arrived", "firsttoken", "lasttoken finished finish"))
_QUEUED, _SCHEDULED = map(_time, ("queued", "scheduled firstscheduled"))
_MOST_TOKENS = 1e9


def _add(row: Row, collector: Collector) -> None:
    outputs, first = row.number(_OUTPUT), row.optional(_FIRST)
    if outputs == 0 or first is None:
        collector.skip("nothing was generated", row.line)
        return
    request = Request(
        input_tokens=_tokens(row, _INPUT),
        output_tokens=_tokens(row, _OUTPUT),
        arrival_s=row.number(_ARRIVAL),
        queued_s=row.optional(_QUEUED),
        scheduled_s=row.optional(_SCHEDULED),
        first_token_s=first,
        last_token_s=row.number(_LAST),
        line=row.line,
        cached_tokens=0 if row.optional(_CACHED) is None else _tokens(row, _CACHED),
    )
    collector.add_request(FORMAT.name, request)


def _tokens(row: Row, column: Names) -> int:
    value = row.number(column)
    if value > _MOST_TOKENS or value != int(value):
        key = next(row.written[name] for name in column if name in row.written)
        raise ProfileError(row.source, f"{value:g}; must be a whole number of tokens", key=key, line=row.line)
    return int(value)


FORMAT = TableFormat("request log", (_INPUT, _OUTPUT, _ARRIVAL, _FIRST, _LAST), _add)
