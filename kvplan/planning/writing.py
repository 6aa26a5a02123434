"""Profiles written anew: tables of one with some changed."""

from collections.abc import Mapping
from typing import Any

from kvplan.ingest.profile_text import quoted, table_text

_ORDER = (
    "provenance", "gpu", "engine", "timing", "speculative", "fleet", "workload", "classes", "sessions", "prefix",
    "slo", "cost", "plan", "gate",
)  # fmt: skip
TRAFFIC: tuple[str, ...] = ("classes", "sessions", "workload", "prefix")


def written(tables: Mapping[str, Any], changes: Mapping[str, Any]) -> str:
    """Write a profile with some of its tables changed, or left out where that is None.

    New classes or sessions take the place of all traffic.
    """
    replaced = TRAFFIC if "classes" in changes or "sessions" in changes else ()
    every = {**{k: v for k, v in tables.items() if k not in replaced}, **changes}
    head = f"schema = {every['schema']}\nname = {quoted(every['name'])}"
    found = [table_text(name, every[name]) for name in _ORDER if every.get(name)]
    return "\n\n".join([head, *found]) + "\n"
