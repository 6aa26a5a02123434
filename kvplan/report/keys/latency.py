"""Keys of the `latency` block."""

from collections.abc import Iterator

from kvplan.report.keys.record import Block, Kind, Record, class_name

_NEW = "new: runs at the offered rate, in rounds of two, intervals by batches"
_GROWS = "The queue grows: see latency.reason; or the engine does not run what the profile has."
_FIGURES = {
    "mean": "Mean",
    "p50": "Median",
    "p90": "90th percentile",
    "p95": "95th percentile",
    "p99": "99th percentile",
}
_TTFT = "time to first token (TTFT), from arrival"
_ITL = "inter-token latency (ITL), every gap between two tokens counted as one"
_TPOT = "time per output token (TPOT), the mean gap of a request"
_E2E = "time from arrival to the last token (E2E)"
_TIMES = {"ttft_s": _TTFT, "itl_s": _ITL, "tpot_s": _TPOT, "e2e_s": _E2E}
_ONE_TOKEN = f"{_GROWS} Or every answer is one token, so that there are no gaps."
_OF_TRACE = f"{_GROWS} Or the arrivals are a trace, which came only once."


def _records(prefix: str, times: tuple[str, ...], of: str = "") -> Iterator[Record]:
    for time in times:
        absent = _ONE_TOKEN if time in ("itl_s", "tpot_s") else _GROWS
        for name, words in _FIGURES.items():
            yield Record(
                f"{prefix}.{time}.{name}",
                f"{words} of the {_TIMES[time]}{of}.",
                source=_NEW,
                unit="s",
                absent=absent,
            )


def _over_time(name: str, meaning: str, unit: str = "") -> Record:
    return Record(f"latency.{name}", meaning, source=_NEW, unit=unit, absent=_GROWS)


_OF_REQUESTS = ("ttft_s", "tpot_s", "e2e_s")
LATENCY = Block(
    "latency",
    "How long requests wait for their tokens at the offered rate, and what is in the replica meanwhile; of a fleet, "
    "all of it behind its router.",
    (
        Record(
            "latency.status",
            "Whether the queue is steady or grows, or the runs cannot tell; unsettled: steady, but some figures are "
            "not known well.",
            source=_NEW,
            kind=Kind.TEXT,
            allowed=("steady", "growing", "undecided", "unsettled"),
        ),
        Record(
            "latency.reason", "Why there are no figures.", source=_NEW, absent="There are.", kind=Kind.TEXT
        ),
        *_records("latency", tuple(_TIMES)),
        class_name("latency"),
        *_records("latency.classes[]", _OF_REQUESTS, " of the class"),
        Record(
            "latency.ci95",
            "95 % confidence interval of each figure, by its key; the upper end is null where the runs do not show it.",
            source=_NEW,
            kind=Kind.TABLE,
        ),
        Record("latency.unsettled[]", "Figures that are not known well.", source=_NEW, kind=Kind.TEXT),
        Record(
            "latency.cliffs[].key",
            "A percentile that moves far for a per cent of the requests.",
            kind=Kind.TEXT,
        ),
        Record("latency.cliffs[].low_s", "From where it moves.", unit="s"),
        Record("latency.cliffs[].high_s", "To where it moves.", unit="s"),
        *(
            Record(
                f"latency.worst_part.{end}_s",
                f"Where the 24th part of the schedule, or of the trace, {words} in which requests wait longest.",
                source=_NEW,
                unit="s",
                absent="Rates do not vary.",
            )
            for end, words in (("begin", "begins"), ("end", "ends"))
        ),
        *_records("latency.worst_part", tuple(_TIMES), ", in that part"),
        _over_time("preemptions_per_request", "Preemptions of a request until it is done, in the mean."),
        _over_time("running", "Requests that hold memory, in the mean over time."),
        _over_time("waiting", "Requests that wait, in the mean over time."),
        _over_time("kv_tokens_mean", "KV tokens held, in whole pages, in the mean over time.", "tokens"),
    ),
)
