"""What a log states beside what a profile, options and requests say: the log counts, and contradictions are said."""

import re
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import PurePath
from typing import Any

from kvplan.engine import VERSION, EngineName
from kvplan.errors import UsageError
from kvplan.ingest.engine_log import EngineLimits
from kvplan.ingest.engines import Setting, setting, version_of
from kvplan.ingest.model.engines import takes
from kvplan.ingest.profile_text import Part, kv_tables, replica_part
from kvplan.model import Knowledge, Origin
from kvplan.options import LIMITS, RANKS, ImportOptions
from kvplan.profile import schema
from kvplan.profile.reading import Profile
from kvplan.profile.replica import Gpu
from kvplan.units import format_percent, format_tokens
from kvplan.version import __version__

_LISTED = 8  # classes in a note
_RESERVES_PROMPTS = (0, 18)  # vLLM's version from which on whole prompts have to fit, or the next


def log_part(limits: EngineLimits, base: Profile | None, defaults: Mapping[str, int] | None = None) -> Part:
    """Write the table [gpu] with what a log states, and `defaults` of the engine where it says nothing."""
    stated: dict[str, Any] = {"memory_tokens": limits.memory_tokens, "block_tokens": limits.block_tokens}
    if (layout := limits.layout) is not None:
        stated = {
            "kv_blocks": limits.memory_tokens // layout.block_tokens,
            "block_tokens": layout.block_tokens,
            "kv": kv_tables(layout),
        }
    for name in ("prefix_caching", "max_num_seqs", "max_num_batched_tokens"):
        stated[name] = getattr(limits, name)
    if limits.parallelism is not None:
        stated |= limits.parallelism.keys or {"gpus": 1}
    values = {key: value for key, value in stated.items() if value is not None}
    keys = ", ".join(key for key in values if key != "kv")
    where = f"{limits.engine} in {limits.source}, line {limits.line}, as read by kvplan {__version__}."
    about = [f"{keys}: stated by {where}", f'"{limits.stated_in}"']
    about += [f"sha256 {limits.sha256}"] if limits.sha256 else []
    about += [f"Note: {note}." for note in limits.notes]
    old = base.tables.get("gpu", {}) if base is not None else {}
    known = {*values, *(key for key in old if key not in limits.absent)}
    if taken := {key: value for key, value in (defaults or {}).items() if key not in known}:
        about.append(f"{', '.join(taken)}: defaults of {limits.engine}.")
    if gone := [key for key in limits.absent if key in old and key not in taken]:
        about.append(f"{', '.join(gone)}: not kept, for this start leaves them to {limits.engine}.")
    name = PurePath(limits.source).name
    origin = Origin(Knowledge.MEASURED, name)
    if settled := [key for key in taken if key != Setting.BLOCK]:
        origin = Origin(
            Knowledge.ESTIMATED, f"{', '.join(settled)} by default of {limits.engine}; the rest: {name}"
        )
    part = replica_part(base, values | taken, about, origin, without=limits.absent)
    return part._replace(kept=(*part.kept, "kv")) if "kv" in values and "kv" in old else part


def notes_by_version(limits: EngineLimits | None, tables: Mapping[str, Any]) -> list[str]:
    """Say which admission a version of vLLM has, where the profile says no other than the newest."""
    version = "" if limits is None else limits.settings.get(Setting.VERSION, "")
    if not version or version_of(version) >= _RESERVES_PROMPTS or "admission" in tables.get("engine", {}):
        return []
    rule = "admits a prompt once its first chunk fits (before pull request 37307 of March 2026)"
    return [f'vLLM {version} {rule}: [engine] admission = "first-chunk" says so']


def _same_type(one: str, other: str) -> bool:
    eight = [text.lower().startswith(("fp8", "int8")) for text in (one, other)]
    return eight[0] == eight[1]


def refuse_other_options(limits: EngineLimits, asked: ImportOptions) -> None:
    """Refuse options that say otherwise than the log how the model ran."""
    ranks = {} if limits.ranks is None else asdict(limits.ranks)
    kept_in = limits.settings.get(Setting.KV_DTYPE)
    other_type = kept_in and asked.kv_dtype != "auto" and not _same_type(asked.kv_dtype, kept_in)
    pairs = [
        *(
            (option, asked.ranks[kind], asked.ranks[kind] != number and number, f"{kind} parallelism")
            for (kind, number), option in zip(ranks.items(), RANKS, strict=False)
            if kind in asked.ranks
        ),
        ("--kv-dtype", asked.kv_dtype, other_type and kept_in, Setting.KV_DTYPE),
        *(
            (f"--{key.replace('_', '-')}", given, given != (logged := getattr(limits, key)) and logged, key)
            for key, given in asked.limits.items()
        ),
    ]
    for option, value, stated, what in pairs:
        if stated:
            raise UsageError(
                f"{option} {value}, but {limits.source} says {what} {stated}; leave {option} out"
            )


def told_version(
    engine: EngineName | None, asked: ImportOptions, stated: EngineLimits | None, tables: Mapping[str, Any]
) -> str:
    """The version of an engine: by --engine, else its log, else the base; empty where none says it."""
    name, version = asked.engine_named
    if name is not None:
        takes(name, version)  # refuses one that is not known
    logged = "" if stated is None or name not in (None, engine) else stated.settings.get(Setting.VERSION, "")
    kept = (
        tables.get("engine", {}) if tables.get("engine", {}).get("name", "vllm") == (engine or "vllm") else {}
    )
    return version or (logged if re.fullmatch(VERSION, logged) else "") or str(kept.get("version", ""))


def told_limits(asked: ImportOptions, stated: EngineLimits | None, base: Mapping[str, Any]) -> dict[str, int]:
    """Limits of a rank: by options, else by a log, else of the [gpu] of the base."""
    told = {**base, **{key: n for key in LIMITS if (n := getattr(stated, key, None))}, **asked.limits}
    return {key: told[key] for key in LIMITS[:2] if key in told}


def differences(limits: EngineLimits, kept: Profile) -> list[str]:
    """List what a log states and a profile contradicts, on which the time of an iteration hangs."""
    ranks, was = (
        limits.ranks,
        Gpu.model_validate(kept.tables["gpu"]).parallelism if "gpu" in kept.tables else None,
    )
    pairs: list[tuple[str, Any, Any]] = [
        (name, getattr(ranks, key, None), getattr(was, key, None))
        for name, key in (("GPUs", "gpus"), ("data parallelism", "data"), ("expert parallelism", "expert"))
    ]
    before = f"{kept.provenance.timing.source} {kept.provenance.gpu.source}"
    for name in Setting.OF_TIMES:
        other = setting(name).search(before)
        pairs.append((name, limits.settings.get(name), other and other[1]))
    source = PurePath(kept.source).name
    return [
        f"{name}: {own} in the log, {other} in {source}"
        for name, own, other in pairs
        if own and other and own != other
    ]


def rejected(tables: dict[str, Any], most: int) -> list[str]:
    """Say which requests an engine rejects that takes up to `most` tokens; classes of such alone get the rate 0."""
    classes = schema.check({"schema": 1, "name": "traffic", **tables}).classes or []
    longer = [
        float(
            c.inputs.probabilities
            @ (c.inputs.values[:, None] + c.outputs.values > most)
            @ c.outputs.probabilities
        )
        for c in classes
    ]
    weights = [float(c.rate or c.share or 0) for c in classes]
    share = sum(w * over for w, over in zip(weights, longer, strict=True)) / (sum(weights) or 1)
    if share <= 0:
        return []
    names = [c.name for c, over in zip(classes, longer, strict=True) if over > 0]
    said = f"{', '.join(names[:_LISTED])}{', …' if len(names) > _LISTED else ''}"
    limit = f"max_model_len, {format_tokens(most)} tokens"
    said = (
        f"{format_percent(share)} of the requests ({said}) are longer than {limit}: the engine rejects them"
    )
    rejected = [i for i, over in enumerate(longer) if over > 1 - 1e-9]
    if "workload" in tables or not 0 < len(rejected) < len(classes):
        return [f"{said}, and their load should not count; take them out"]
    tables["classes"] = [c | ({"rate": 0} if i in rejected else {}) for i, c in enumerate(tables["classes"])]
    rest = f", and of {len(names) - len(rejected)} more classes in part" if len(names) > len(rejected) else ""
    return [f"{said}, and the rates of {len(rejected)} classes are 0{rest}"]
