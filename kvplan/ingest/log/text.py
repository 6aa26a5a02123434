"""Where a capacity and limits out of a log come from, in sentences."""

from collections.abc import Iterable, Mapping
from pathlib import PurePath
from typing import Any

from kvplan.ingest.log.engine_log import EngineLimits
from kvplan.ingest.profile_text import Part, kv_tables, replica_part
from kvplan.model import Knowledge, Origin
from kvplan.profile.reading import Profile
from kvplan.version import __version__


def log_part(found: EngineLimits, base: Profile | None, defaults: Mapping[str, int] | None = None) -> Part:
    """The table [gpu] with what a log states, and `defaults` of the engine where it says nothing.

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
    stated: dict[str, Any] = {"memory_tokens": found.memory_tokens, "block_tokens": found.block_tokens}
    if (layout := found.layout) is not None:
        stated = {
            "kv_blocks": found.memory_tokens // layout.block_tokens,
            "block_tokens": layout.block_tokens,
            "kv": kv_tables(layout),
        }
    stated |= {
        "prefix_caching": found.prefix_caching,
        "max_num_seqs": found.max_num_seqs,
        "max_num_batched_tokens": found.max_num_batched_tokens,
        "gpus": found.gpus,
    }
    values = {key: value for key, value in stated.items() if value is not None}
    about = list(_about(found, values))
    known = values.keys() | (base.tables.get("gpu", {}).keys() if base is not None else set())
    if taken := {key: value for key, value in (defaults or {}).items() if key not in known}:
        about.append(f"{', '.join(taken)}: defaults of {found.engine}.")
    origin = Origin(Knowledge.MEASURED, PurePath(found.source).name)
    return replica_part(base, values | taken, about, origin)


def _about(found: EngineLimits, values: Iterable[str]) -> Iterable[str]:
    keys = ", ".join(key for key in values if key != "kv")
    yield (
        f"{keys}: stated by {found.engine} in {found.source}, line {found.line}, as read by kvplan {__version__}."
    )
    yield f'"{found.stated_in}"'
    if found.sha256:
        yield f"sha256 {found.sha256}"
    for note in found.notes:
        yield f"Note: {note}."
