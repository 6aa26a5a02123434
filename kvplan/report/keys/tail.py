"""Keys of the blocks that close the report: inputs, the simulation, sources and notes, and what is to be done."""

from kvplan.report.keys.record import Block, Kind, Record
from kvplan.report.words import Basis

_KNOWLEDGE = (
    "measured",
    "stated",
    "estimated",
    "assumed",
)  # of `kvplan.model.provenance`, which brings numpy


def _input(name: str, what: str) -> Record:
    return Record(
        f"inputs.{name}",
        f"How {what} are known: measured, stated, estimated or assumed; of several ways the weakest.",
        formula="as [provenance] says; stated, where it says nothing",
        here=lambda e: e(f"origin_{name}"),
        source="the profile",
        kind=Kind.TEXT,
        allowed=_KNOWLEDGE,
        basis="assumption",
    )


INPUTS = Block(
    "inputs",
    "How the parts of the profile are known.",
    (
        _input("gpu", "memory and limits of the replica"),
        _input("timing", "the constants of the iteration time"),
        _input("workload", "classes and rates"),
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
ACTIONS = Block(
    "actions",
    "What to do.",
    (
        Record("actions[]", "What to do, most important first.", kind=Kind.TEXT, in_contract=False),
        Record(
            "caveat",
            "What is to be known first of inputs that are not sure.",
            kind=Kind.TEXT,
            in_contract=False,
        ),
    ),
    has_source=False,
)


def source_records(block: str) -> tuple[Record, ...]:
    """The records of what `sources` says of a block."""
    return (
        Record(f"sources.{block}.source", "Where the numbers of the block come from.", kind=Kind.TEXT),
        Record(f"sources.{block}.kind", "How they are known.", kind=Kind.TEXT, allowed=tuple(Basis)),
    )
