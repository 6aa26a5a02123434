"""Where a replica's memory and limits come from, in sentences."""

from collections.abc import Iterable

from kvplan.errors import UsageError
from kvplan.ingest.log.engine_log import EngineLimits
from kvplan.ingest.metrics.server import ServerMetrics
from kvplan.ingest.model.config import ModelShape
from kvplan.ingest.model.estimate import ReplicaEstimate
from kvplan.ingest.model.hardware import Gpu
from kvplan.ingest.profile_text import Part, classes_part, replica_part
from kvplan.profile.reading import Profile
from kvplan.units import format_bytes, format_tokens
from kvplan.version import __version__


def log_part(found: EngineLimits, base: Profile) -> Part:
    """The table [gpu] with what a log states.

    Examples
    --------
    >>> from io import BytesIO
    >>> from kvplan.ingest.log.engine_log import parse_engine_log
    >>> from kvplan.profile.reading import load_profile
    >>> found = parse_engine_log(["GPU KV cache size: 446,320 tokens"], "serve.log")
    >>> part = log_part(found, load_profile("tool-calls-h100", stdin=BytesIO()))
    >>> print(part.body.splitlines()[1])
    memory_tokens = 446_320
    """
    stated = {
        "memory_tokens": found.memory_tokens,
        "block_tokens": found.block_tokens,
        "max_num_seqs": found.max_num_seqs,
        "max_num_batched_tokens": found.max_num_batched_tokens,
    }
    values = {key: value for key, value in stated.items() if value is not None}
    return replica_part(base, values, _about(found, values))


def metrics_parts(found: ServerMetrics, base: Profile) -> list[Part]:
    """The table [gpu] if the metrics have the capacity, and the classes if they have the lengths.

    Raises
    ------
    UsageError
        They have neither.
    """
    where = f"{found.source} ({found.engine}, {', '.join(found.models) or 'no model named'})"
    notes = [f"sha256 {found.sha256}", *(f"Note: {note}." for note in found.notes)]
    parts = []
    stated = {"memory_tokens": found.memory_tokens, "block_tokens": found.block_tokens}
    values = {key: value for key, value in stated.items() if value is not None}
    if found.memory_tokens is not None:
        about = f"{', '.join(values)}: exported by {where}, as read by kvplan {__version__}."
        parts.append(replica_part(base, values, [about, notes[0]]))
    if found.classes:
        about = (
            f"Classes and rates: {format_tokens(found.requests)} requests, {found.rate_from}, counted by {where}, as "
            f"read by kvplan {__version__}."
        )
        means = format_tokens(found.mean_input), format_tokens(found.mean_decode)
        lengths = f"Lengths: {means[0]} tokens in, {means[1]} out, on average."
        preempted = f"Preemptions in that time: {format_tokens(found.preemptions)}."
        more = [lengths] if found.preemptions is None else [lengths, preempted]
        parts.append(classes_part(found.classes, [about, *more, *notes]))
    if not parts:
        raise UsageError(f"{found.source}: neither KV capacity nor finished requests; nothing to import")
    return parts


def estimate_part(found: ReplicaEstimate, shape: ModelShape, gpu: Gpu, base: Profile) -> Part:
    """The table [gpu] of an estimate."""
    several = f"{found.tensor_parallel} x " if found.tensor_parallel > 1 else ""
    each = " each" if found.tensor_parallel > 1 else ""
    about = (
        f"memory_tokens: estimated by kvplan {__version__} for {shape.name} ({shape.source}) on {several}{gpu.name} "
        f"({gpu.source}); what the engine logs when it starts is better: kvplan import log.",
        f"{format_bytes(found.memory_bytes_for_kv)}{each} for KV at {found.kv_bytes_per_token:,} bytes a token, beside "
        f"{format_bytes(found.weights_bytes)} of weights and {format_bytes(found.overhead_bytes)} of overhead, an "
        "assumption.",
        *(f"Note: {note}." for note in found.notes),
    )
    values = {"memory_tokens": found.memory_tokens, "block_tokens": found.block_tokens}
    return replica_part(base, values, about)


def _about(found: EngineLimits, values: Iterable[str]) -> Iterable[str]:
    yield (
        f"{', '.join(values)}: stated by {found.engine} in {found.source}, line {found.line}, as read by kvplan "
        f"{__version__}."
    )
    yield f'"{found.stated_in}"'
    if found.sha256:
        yield f"sha256 {found.sha256}"
    for note in found.notes:
        yield f"Note: {note}."
