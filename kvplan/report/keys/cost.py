"""Keys of the `cost` block."""

from kvplan.report.keys.record import Block, Record

_NO_PRICE = "The profile has no [cost]."
_SOURCE = "arithmetic; the price is the profile's"


def _per(at: str, rate: str, absent: str) -> tuple[Record, ...]:
    return tuple(
        Record(
            f"cost.{at}.per_million_{name}",
            f"Cost of a million {words} at the {at} rate.",
            formula=f"per_hour/3600/(rate·{tokens})·10⁶, rate = {rate}",
            source=_SOURCE,
            absent=absent,
        )
        for name, words, tokens in (
            ("output_tokens", "output tokens", "d̄"),
            ("tokens", "tokens, input and output", "(s̄ + d̄)"),
        )
    )


COST = Block(
    "cost",
    "What a replica costs, by the hour and by the token.",
    (
        Record("cost.gpus_per_replica", "GPUs of a replica.", source="the profile", whole=True, least=1.0),
        Record(
            "cost.per_hour",
            "Cost of a replica for an hour.",
            formula="gpus_per_replica·gpu_hour",
            source=_SOURCE,
        ),
        *_per("offered", "load.offered_rps", "More is offered than is served."),
        *_per("sustainable", "load.sustainable_rps", "Never: what is sustainable is above 0."),
    ),
    absent=_NO_PRICE,
    nullable=True,
)
