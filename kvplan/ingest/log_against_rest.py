"""A log beside a profile, options and requests: the log counts, and contradictions are reported."""

import re
from collections.abc import Mapping
from pathlib import PurePath
from typing import Any

from kvplan.engine import VERSION, EngineName
from kvplan.errors import UsageError
from kvplan.ingest.engine_log import EngineLimits
from kvplan.ingest.engines import Setting, setting
from kvplan.ingest.facts import Fact, Part, facts, kept_of, layout_keys
from kvplan.ingest.model.estimate import takes
from kvplan.ingest.trace.formats import listed
from kvplan.model import Knowledge, Origin
from kvplan.options import LIMITS, RANKS, ImportOptions
from kvplan.profile import schema
from kvplan.profile.reading import Profile
from kvplan.profile.replica import Gpu
from kvplan.units import format_percent, format_tokens
from kvplan.version import __version__


def log_part(limits: EngineLimits, base: Profile | None, defaults: Mapping[str, int]) -> Part:
    """Make [gpu] from a log, and from `defaults` of the engine where neither it nor the base says anything."""
    stated: dict[str, Any] = {"memory_tokens": limits.memory_tokens, "block_tokens": limits.block_tokens}
    if (layout := limits.layout) is not None:
        stated = {"kv_blocks": limits.memory_tokens // layout.block_tokens, **layout_keys(layout)}
    stated |= {name: getattr(limits, name) for name in ("prefix_caching", *LIMITS[:2])}
    if limits.parallelism is not None:
        stated |= limits.parallelism.keys or {"gpus": 1}
    name, engine = PurePath(limits.source).name, limits.engine
    measured = Origin(Knowledge.MEASURED, name)
    where = f"stated by {engine} in {limits.source}, line {limits.line}, as read by kvplan {__version__}"
    told = facts("gpu", stated, measured, where)
    old = {} if base is None else base.tables.get("gpu", {})
    if base is not None and "gpu.kv" in told and "kv" in old:
        told["gpu.kv"] = told["gpu.kv"]._replace(origin=kept_of(base, "gpu"))
    known = {*old} - {*limits.absent}
    by_default = facts(
        "gpu", {k: n for k, n in defaults.items() if k not in known}, measured, f"defaults of {engine}"
    )
    for key in (f"gpu.{limit}" for limit in LIMITS[:2]):
        if key in by_default:
            unsure = Origin(Knowledge.ESTIMATED, f"by default of {engine}")
            by_default[key] = by_default[key]._replace(origin=unsure)
    left = Fact(None, measured, f"not kept, for this start leaves them to {engine}")
    rest = {f"gpu.{key}": left for key in limits.absent} | by_default
    told |= {key: fact for key, fact in rest.items() if key not in told}
    about = (f'"{limits.stated_in}"', *([f"sha256 {limits.sha256}"] if limits.sha256 else []))
    return Part("gpu", told, name, f"{engine}'s log", about=about, notes=limits.notes)


def refuse_other_options(limits: EngineLimits, asked: ImportOptions) -> None:
    """Refuse options that say otherwise than the log how the model ran."""
    told: list[tuple[str, Any, Any, str]] = [
        (option, asked.ranks[kind], getattr(limits.ranks, kind, None), f"{kind} parallelism")
        for option, kind in RANKS.items()
        if kind in asked.ranks
    ]
    told += [(f"--{k.replace('_', '-')}", value, getattr(limits, k), k) for k, value in asked.limits.items()]
    types = asked.kv_dtype, limits.settings.get(Setting.KV_DTYPE, "")
    if len({kind.lower().startswith(("fp8", "int8")) for kind in types}) > 1 and asked.kv_dtype != "auto":
        told.append(("--kv-dtype", *types, Setting.KV_DTYPE))
    for option, value, stated, what in told:
        if stated and stated != value:
            raise UsageError(
                f"{option} {value}, but {limits.source} says {what} {stated}; leave {option} out"
            )


def told_version(
    engine: EngineName | None, asked: ImportOptions, stated: EngineLimits | None, tables: Mapping[str, Any]
) -> str:
    """Tell an engine's version: by --engine, else its log, else the base; empty where none says it."""
    name, version = asked.engine_named
    if name is not None:
        takes(name, version)  # refuses one that is not known
    logged = stated.settings.get(Setting.VERSION, "") if stated and name in (None, engine) else ""
    kept = {"name": "vllm", "version": "", **tables.get("engine", {})}
    same = kept["name"] == (engine or "vllm")
    return (
        version or (logged if re.fullmatch(VERSION, logged) else "") or (str(kept["version"]) if same else "")
    )


def told_limits(asked: ImportOptions, stated: EngineLimits | None, base: Mapping[str, Any]) -> dict[str, int]:
    """Limits of a rank: by options, else by a log, else of the [gpu] of the base."""
    told = {**base, **{key: n for key in LIMITS if (n := getattr(stated, key, None))}, **asked.limits}
    return {key: told[key] for key in LIMITS[:2] if key in told}


def differences(limits: EngineLimits, kept: Profile) -> list[str]:
    """List the settings of iteration times on which a log and a profile disagree."""
    was = Gpu.model_validate(kept.tables["gpu"]).parallelism if "gpu" in kept.tables else None
    pairs: list[tuple[str, Any, Any]] = [
        (name, getattr(limits.ranks, key, None), getattr(was, key, None))
        for name, key in (("GPUs", "gpus"), ("data parallelism", "data"), ("expert parallelism", "expert"))
    ]
    before = f"{kept.provenance.timing.source} {kept.provenance.gpu.source}"
    for name in Setting.OF_TIMES:
        other = setting(name).search(before)
        pairs.append((name, limits.settings.get(name), other and other[1]))
    there = PurePath(kept.source).name
    return [f"{name}: {a} in the log, {b} in {there}" for name, a, b in pairs if a and b and a != b]


def rejected(tables: dict[str, Any], most: int, *, kept: bool) -> list[str]:
    """Say which requests an engine with a limit of `most` tokens rejects.

    Classes of such alone get the rate 0, unless the profile has `kept` the limit: that is enough.
    """
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
    limit = f"max_model_len, {format_tokens(most)} tokens: the engine rejects them"
    said = f"{format_percent(share)} of the requests ({listed(names)}) are longer than {limit}"
    if kept:
        return [said]
    rejected = [i for i, over in enumerate(longer) if over > 1 - 1e-9]
    if "workload" in tables or not 0 < len(rejected) < len(classes):
        return [f"{said}, and their load should not count; take them out"]
    tables["classes"] = [c | ({"rate": 0} if i in rejected else {}) for i, c in enumerate(tables["classes"])]
    rest = f", and of {len(names) - len(rejected)} more classes in part" if len(names) > len(rejected) else ""
    return [f"{said}, and the rates of {len(rejected)} classes are 0{rest}"]
