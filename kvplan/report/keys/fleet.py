"""Keys of the `fleet` block."""

from kvplan.report.keys.record import Block, Kind, Record

_NEW = "new, theory of prefill and decode apart"
_NO_SPLIT = "No formula covers the traffic with prefill and decode apart, or there are too few GPUs."
_NO_GOODPUT = "goodput.rate_rps has that of the profile's fleet; kvplan plan --split compares both ways."
_NO_TIME = "The queue grows at the offered rate, or the simulator does not model the fleet so."


def _figures(which: str, what: str, rate: str, missing: str) -> tuple[Record, ...]:
    head = f"fleet.{which}"
    return (
        Record(
            f"{head}.gpus",
            f"GPUs of {what}.",
            source="the profile",
            whole=True,
            least=1.0,
            absent=missing if which == "split" else "",
        ),
        Record(
            f"{head}.rate_rps",
            f"Largest rate that {what} sustain, iterations being no longer than the tightest objective on ITL or TPOT.",
            formula=rate,
            source=_NEW,
            unit="requests/s",
            absent=missing,
        ),
        Record(
            f"{head}.goodput_rps",
            f"Largest rate at which {what} meet all objectives, requests being routed at random.",
            formula="replicas · largest rate with latency.* at most its bound, for each objective",
            source=_NEW,
            unit="requests/s",
            absent=_NO_GOODPUT,
        ),
        Record(
            f"{head}.ttft_s",
            f"Mean TTFT of {what} at the offered rate, simulated behind the router.",
            source=_NEW,
            unit="s",
            absent=_NO_TIME,
        ),
        Record(
            f"{head}.itl_s",
            f"Mean ITL of {what} at the offered rate, simulated behind the router.",
            source=_NEW,
            unit="s",
            absent=_NO_TIME,
        ),
    )


FLEET = Block(
    "fleet",
    "Prefill and decode on replicas of their own, or both on each.",
    (
        Record(
            "fleet.split.prefill",
            "Replicas that compute prompts: of [fleet], or of the best split of as many GPUs.",
            source=_NEW,
            whole=True,
            least=1.0,
            absent=_NO_SPLIT,
        ),
        Record(
            "fleet.split.decode",
            "Replicas that generate.",
            source=_NEW,
            whole=True,
            least=1.0,
            absent=_NO_SPLIT,
        ),
        *_figures("split", "replicas apart", "min(x·r_p, y·r_d)", _NO_SPLIT),
        Record(
            "fleet.together.replicas",
            "Replicas that do both, on as many GPUs.",
            source="the profile",
            whole=True,
            least=1.0,
        ),
        *_figures("together", "replicas together", "replicas · r", _NO_SPLIT),
        Record(
            "fleet.winner",
            "What serves more: by goodput where that is known, else by rate.",
            source=_NEW,
            kind=Kind.TEXT,
            allowed=("split", "together", "even"),
            absent=_NO_SPLIT,
        ),
        Record(
            "fleet.crossing_itl_s",
            "Limit on the time between tokens at which both sustain the same rate.",
            formula="x·r_p = r(ITL) of together, or y·r_d(ITL) = r(ITL)",
            source=_NEW,
            unit="s",
            absent="One of them serves more at every limit, or there is no split.",
        ),
        Record("fleet.reason", "In numbers, why.", source=_NEW, kind=Kind.TEXT),
    ),
    absent="The profile has no [fleet].",
    nullable=True,
)
