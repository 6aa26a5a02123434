"""Where a capacity and classes out of a server's metrics come from, in sentences."""

from pathlib import PurePath

from kvplan.errors import UsageError
from kvplan.ingest.metrics.server import ServerMetrics
from kvplan.ingest.profile_text import Part, classes_part, replica_part
from kvplan.model import Knowledge, Origin
from kvplan.profile.reading import Profile
from kvplan.units import format_tokens
from kvplan.version import __version__


def metrics_parts(found: ServerMetrics, base: Profile | None) -> list[Part]:
    """The table [gpu] if the metrics have the capacity, and the classes if they have the lengths.

    Raises
    ------
    UsageError
        They have neither.
    """
    where = f"{found.source} ({found.engine}, {', '.join(found.models) or 'no model named'})"
    notes = [f"sha256 {found.sha256}", *(f"Note: {note}." for note in found.notes)]
    origin = Origin(Knowledge.MEASURED, PurePath(found.source).name)
    parts = []
    stated = {"memory_tokens": found.memory_tokens, "block_tokens": found.block_tokens}
    values = {key: value for key, value in stated.items() if value is not None}
    if found.memory_tokens is not None:
        about = f"{', '.join(values)}: exported by {where}, as read by kvplan {__version__}."
        parts.append(replica_part(base, values, [about, notes[0]], origin))
    if found.classes:
        about = (
            f"Classes and rates: {format_tokens(found.requests)} requests, {found.rate_from}, counted by {where}, as "
            f"read by kvplan {__version__}."
        )
        means = format_tokens(found.mean_input), format_tokens(found.mean_decode)
        lengths = f"Lengths: {means[0]} tokens in, {means[1]} out, on average."
        preempted = f"Preemptions in that time: {format_tokens(found.preemptions)}."
        more = [lengths] if found.preemptions is None else [lengths, preempted]
        parts.append(classes_part(found.classes, [about, *more, *notes], origin))
    if not parts:
        raise UsageError(f"{found.source}: neither KV capacity nor finished requests; nothing to import")
    return parts
