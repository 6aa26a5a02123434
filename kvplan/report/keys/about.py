"""Keys of the blocks that say what was judged, how its inputs are known, and what was assumed."""

from kvplan.report.keys.record import Block, Kind, Record
from kvplan.report.words import Basis

_KNOWLEDGE = (
    "measured",
    "stated",
    "estimated",
    "assumed",
)  # of `kvplan.model.provenance`, which brings numpy

SCHEMA_VERSION = Block(
    "schema_version",
    "Version of the report's keys.",
    (Record("schema_version", "Version of the contract; programs should check it.", whole=True),),
    has_source=False,
)
KVPLAN_VERSION = Block(
    "kvplan_version",
    "Version of kvplan.",
    (Record("kvplan_version", "Version of kvplan that wrote the report.", kind=Kind.TEXT),),
    has_source=False,
)
PROFILE = Block(
    "profile",
    "Which profile the report is about.",
    (
        Record("profile.name", "Name that the profile gives itself.", kind=Kind.TEXT),
        Record(
            "profile.sha256",
            "SHA-256 of the profile's bytes: the same profile gives the same report.",
            kind=Kind.TEXT,
        ),
    ),
    has_source=False,
)
INPUTS = Block(
    "inputs",
    "How the parts of the profile are known.",
    tuple(
        Record(
            f"inputs.{name}",
            f"How {what} are known: measured, stated, estimated or assumed; of several ways the weakest.",
            "as [provenance] says; stated, where it says nothing",
            f"origin_{name}",
            source="the profile",
            kind=Kind.TEXT,
            allowed=_KNOWLEDGE,
        )
        for name, what in (
            ("gpu", "memory and limits of the replica"),
            ("timing", "the constants of the iteration time"),
            ("workload", "classes and rates"),
        )
    ),
    has_source=False,
)
SOURCES = Block(
    "sources",
    "Where the numbers of each block come from.",
    (
        Record(
            "sources",
            "For each block how its numbers are known, and from where.",
            formula="theorem: a published formula; computed: beyond the papers, or numerical with a certificate; "
            "simulated: measured on runs, or the fluid map iterated; estimated: approximations whose "
            "error was measured by simulation; assumption: from the profile, or observed",
            kind=Kind.TABLE,
        ),
    ),
    has_source=False,
)
NOTES = Block(
    "notes",
    "What was assumed or not modelled.",
    (Record("notes[]", "What was assumed, what is not modelled, and what to beware of.", kind=Kind.TEXT),),
    has_source=False,
)


def source_records(block: str) -> tuple[Record, ...]:
    """Make the records of what `sources` says of a block."""
    return (
        Record(f"sources.{block}.source", "Where the numbers of the block come from.", kind=Kind.TEXT),
        Record(f"sources.{block}.kind", "How they are known.", kind=Kind.TEXT, allowed=tuple(Basis)),
    )
