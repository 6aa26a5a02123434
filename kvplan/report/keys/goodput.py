"""Keys of the `goodput` block."""

from kvplan.report.keys.record import Block, Kind, Record

_SOURCE = "new: runs at one rate after another, objectives decided by shares"

GOODPUT = Block(
    "goodput",
    "The largest rate at which every latency objective (SLO) holds; of a fleet all of it.",
    (
        Record(
            "goodput.rate_rps",
            "Largest rate of this mix at which all objectives of [slo] and --slo hold; 0 where an idle replica misses "
            "one.",
            formula="where ln(share beyond a limit / share allowed) passes 0, between low and high",
            source=_SOURCE,
            unit="requests/s",
        ),
        Record("goodput.low", "Largest rate that was seen to hold.", source=_SOURCE, unit="requests/s"),
        Record(
            "goodput.high",
            "Least rate that was seen to miss.",
            source=_SOURCE,
            unit="requests/s",
            absent="None missed.",
        ),
        Record(
            "goodput.binding",
            "Objective that is missed first as the rate rises, or the limit of the sustainable rate.",
            source=_SOURCE,
            kind=Kind.TEXT,
        ),
        *(
            Record(
                f"goodput.cliff.{end}",
                f"{words} of the range in which the binding figure moves for a per cent of the requests.",
                source=_SOURCE,
                unit="s",
                absent="It sits on no cliff.",
            )
            for end, words in (("low", "Lower end"), ("high", "Upper end"))
        ),
    ),
    absent="No objectives are set: [slo] in the profile, or --slo.",
    nullable=True,
)
