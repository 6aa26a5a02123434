"""Keys of the `latency` block."""

from collections.abc import Iterator

from kvplan.report.keys.record import Block, Kind, Record, class_name

_NEW = "new, latency below saturation: Poisson cluster law of iteration times, its transforms inverted"
_NONE = (
    "No closed form holds: `latency.reason` says why. A simulation (`kvplan simulate`) answers all the same."
)
_NO_GAP = "Null as a rule: the percentile is a single number."
_FIGURES = {
    "mean": "Mean",
    "p50": "Median",
    "p90": "90th percentile",
    "p95": "95th percentile",
    "p99": "99th percentile",
}
_TIMES = {
    "ttft_s": (
        "time to first token (TTFT), from arrival",
        "what is left of the iteration under way, and the own prefill",
    ),
    "itl_s": (
        "inter-token latency (ITL), every gap between two tokens counted as one",
        "e(m) = τ* + C(m + 1)/τ* + u(m), over own iterations m ≥ 1",
    ),
    "e2e_s": ("time from arrival to the last token (E2E)", "TTFT + Σ e(m), m = 1 … d − 1"),
}  # what is measured, and how the mean comes about


def _records(prefix: str, of: str) -> Iterator[Record]:
    for time, (what, mean) in _TIMES.items():
        for name, words in _FIGURES.items():
            yield Record(
                f"{prefix}.{time}.{name}",
                f"{words} of the {what}{of}.",
                formula=mean if name == "mean" else "inverse of the law's characteristic function",
                source=_NEW,
                unit="s",
                absent=_NONE,
            )
        for name, words in _FIGURES.items():
            if name != "mean":
                yield Record(
                    f"{prefix}.{time}.{name}_range",
                    f"Range of the {words.lower()} of the {what.partition(' (')[0]}{of}, where it falls into a gap of "
                    "the law: between iterations with and without a prompt it moves far for little.",
                    formula="percentiles at q ± (1 − q)/10, where they differ by a factor above 1.2",
                    source=_NEW,
                    unit="s",
                    absent=_NO_GAP,
                    kind=Kind.PAIR,
                )


LATENCY = Block(
    "latency",
    "How long requests wait for their tokens at the offered rate, without a simulation.",
    (
        *_records("latency", ""),
        class_name("latency"),
        *_records("latency.classes[]", " of the class"),
        Record("latency.method", "How the figures were found.", source=_NEW, absent=_NONE, kind=Kind.TEXT),
        Record(
            "latency.reason",
            "Why no closed form holds.",
            source=_NEW,
            absent="A closed form holds.",
            kind=Kind.TEXT,
        ),
    ),
)
