"""A profile as settings: a module for each engine with its record, `ENGINE`, and templates for its operation."""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kvplan.emit.base import Engine


def engine(name: str) -> "Engine":
    """Return the record of an engine.

    >>> engine("sglang").title
    'SGLang'
    """
    record: Engine = import_module(f"{__name__}.{name}").ENGINE
    return record
