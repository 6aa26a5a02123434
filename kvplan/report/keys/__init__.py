"""The registry of the report's keys: one record each, in the order of the contract.

The gate, `kvplan explain`, completion, the columns of a sweep and the JSON Schema of the report are drawn from here.
A new key of the report is its computation and its record. Nothing heavy is imported: completion reads this.
"""

from collections.abc import Mapping
from functools import cache

from kvplan.report.keys.about import (
    INPUTS,
    KVPLAN_VERSION,
    NOTES,
    PROFILE,
    SCHEMA_VERSION,
    SOURCES,
    source_records,
)
from kvplan.report.keys.admission import NESTED_WAIT, RATE_CAP, SAFETY_BUFFER, WAIT
from kvplan.report.keys.fluid import EQUILIBRIUM, LOAD, SATURATION, VERDICT
from kvplan.report.keys.greedy import STABILITY, WORST_CYCLE
from kvplan.report.keys.prefix_cache import PREFIX_CACHE
from kvplan.report.keys.record import Block, Kind, Record
from kvplan.report.keys.serving import ADVICE, COST, FLEET, GOODPUT, KV_LAYOUT, LATENCY, SPECULATIVE

__all__ = ["BESIDE_CONTRACT", "BLOCKS", "CONTRACT", "SOURCE_KEYS", "Block", "Kind", "Record", "gateable"]

BLOCKS: Mapping[str, Block] = {
    block.name: block
    for block in (
        SCHEMA_VERSION,
        KVPLAN_VERSION,
        PROFILE,
        VERDICT,
        LOAD,
        EQUILIBRIUM,
        SATURATION,
        WORST_CYCLE,
        STABILITY,
        RATE_CAP,
        WAIT,
        NESTED_WAIT,
        SAFETY_BUFFER,
        INPUTS,
        LATENCY,
        GOODPUT,
        COST,
        PREFIX_CACHE,
        SPECULATIVE,
        KV_LAYOUT,
        FLEET,
        ADVICE,
        SOURCES,
        NOTES,
    )
}
CONTRACT: Mapping[str, Record] = {record.key: record for block in BLOCKS.values() for record in block.records}
BESIDE_CONTRACT = frozenset(
    ["levers", "actions", "caveat", *(key for block in BLOCKS.values() for key in block.beside)]
)
SOURCE_KEYS: Mapping[str, Record] = {
    record.key: record
    for block in BLOCKS.values()
    if block.has_source
    for record in source_records(block.name)
}  # what stands below `sources`


@cache
def gateable() -> Mapping[str, Record]:
    """Find the record of every key that a requirement can be about, entries of lists and pairs as ``[]``.

    Examples
    --------
    >>> gateable()["load.headroom"].kind
    <Kind.NUMBER: 'a number'>
    """
    of_their_own = {
        f"{key}[]" if record.kind is Kind.PAIR else key: record
        for key, record in CONTRACT.items()
        if record.kind is not Kind.TABLE
    }
    return {**of_their_own, **SOURCE_KEYS}
