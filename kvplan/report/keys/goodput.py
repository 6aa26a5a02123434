"""Keys of the `goodput` block."""

from kvplan.report.keys.record import Block, Kind, Record

_SOURCE = "new: the largest rate whose latencies in closed form stay within the objectives"

GOODPUT = Block(
    "goodput",
    "The largest rate at which every latency objective (SLO) is met.",
    (
        Record(
            "goodput.rate_rps",
            "Largest rate of this mix at which all objectives of [slo] and --slo are met.",
            formula="largest rate with latency.* at most its bound, for each objective",
            source=_SOURCE,
            unit="requests/s",
            absent="No objectives are set, or the closed forms end before one is missed: see at_least_rps.",
        ),
        Record(
            "goodput.binding",
            "Objective that is missed first as the rate rises, or the limit of the sustainable rate.",
            source=_SOURCE,
            absent="No objectives are set, or the closed forms end before one is missed.",
            kind=Kind.TEXT,
        ),
        Record(
            "goodput.reason",
            "Why there is no goodput in closed form.",
            source=_SOURCE,
            absent="There is one, or no objectives are set.",
            kind=Kind.TEXT,
        ),
        Record(
            "goodput.at_least_rps",
            "Rate up to which all objectives are known to be met: the goodput, or where the closed forms end.",
            source=_SOURCE,
            unit="requests/s",
            absent="No objectives are set, or there is no closed form even at low rates.",
        ),
    ),
)
