"""Keys of the `advice` block."""

from kvplan.report.keys.record import Block, Kind, Record

_SOURCE = "new: tried by simulation against the replica as it is, remeasured on fresh requests"

ADVICE = Block(
    "advice",
    "Settings of the engine that were tried and gain, best first; several where only together they help. Empty where "
    "nothing helps, or nothing is needed.",
    (
        Record(
            "advice[].settings[].name", "Parameter of the engine's policy.", source=_SOURCE, kind=Kind.TEXT
        ),
        Record("advice[].settings[].value", "Its value.", source=_SOURCE),
        Record(
            "advice[].gain_backlogged",
            "How much more is served under a backlog, relative.",
            source=_SOURCE,
            least=-1.0,
        ),
        Record(
            "advice[].sustains_offered",
            "Whether a backlog drains at the offered rate with it.",
            source=_SOURCE,
            kind=Kind.TRUTH,
        ),
        Record(
            "advice[].needs_version",
            "Of the engine.",
            source=_SOURCE,
            kind=Kind.TEXT,
            absent="Any version has it.",
        ),
        *(
            Record(
                f"advice[].ttft_p95_s_{word}",
                f"95th percentile of TTFT at the offered rate {word} it.",
                source=_SOURCE,
                unit="s",
                absent="The queue grows.",
            )
            for word in ("without", "with")
        ),
    ),
)
