"""The registry of the report's keys: one record each, in the order of the contract.

The gate, `kvplan explain`, completion, the columns of a sweep and the JSON Schema of the report are drawn from here.
A new key of the report is its computation and its record. Nothing heavy is imported: completion reads this.
"""

from collections.abc import Mapping
from functools import cache

from kvplan.report.keys.advice import ADVICE
from kvplan.report.keys.cost import COST
from kvplan.report.keys.equilibrium import EQUILIBRIUM
from kvplan.report.keys.fleet import FLEET
from kvplan.report.keys.goodput import GOODPUT
from kvplan.report.keys.head import KVPLAN_VERSION, PROFILE, SCHEMA_VERSION, VERDICT
from kvplan.report.keys.kv_layout import KV_LAYOUT
from kvplan.report.keys.latency import LATENCY
from kvplan.report.keys.load import LEVERS, LOAD
from kvplan.report.keys.nested_wait import NESTED_WAIT
from kvplan.report.keys.prefix_cache import PREFIX_CACHE
from kvplan.report.keys.rate_cap import RATE_CAP
from kvplan.report.keys.record import Block, Kind, Record
from kvplan.report.keys.safety_buffer import SAFETY_BUFFER
from kvplan.report.keys.saturation import SATURATION
from kvplan.report.keys.speculative import SPECULATIVE
from kvplan.report.keys.stability import STABILITY
from kvplan.report.keys.tail import ACTIONS, INPUTS, NOTES, SOURCES, source_records
from kvplan.report.keys.wait import WAIT
from kvplan.report.keys.worst_cycle import WORST_CYCLE

__all__ = ["BLOCKS", "CONTRACT", "REGISTRY", "SOURCE_KEYS", "Block", "Kind", "Record", "gateable"]

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
REGISTRY: Mapping[str, Record] = {
    record.key: record for block in (*BLOCKS.values(), LEVERS, ACTIONS) for record in block.records
}
CONTRACT: Mapping[str, Record] = {key: record for key, record in REGISTRY.items() if record.in_contract}


SOURCE_KEYS: Mapping[str, Record] = {
    record.key: record
    for block in BLOCKS.values()
    if block.has_source
    for record in source_records(block.name)
}  # what stands below `sources`


@cache
def gateable() -> Mapping[str, Record]:
    """The record of every key that a requirement can be about, entries of lists and pairs as ``[]``.

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
