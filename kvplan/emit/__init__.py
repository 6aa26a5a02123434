"""A profile as settings: a module for each engine with its record, `ENGINE`, and for what operates it, `TARGET`."""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kvplan.emit.base import Engine
    from kvplan.emit.service import Target


def engine(name: str) -> "Engine":
    """Return the record of an engine.

    >>> engine("sglang").title
    'SGLang'
    """
    record: Engine = import_module(f"{__name__}.{name}").ENGINE
    return record


def operating(name: str) -> "Target":
    """Return the record of what operates a service.

    >>> operating("keda").title
    'KEDA ScaledObject'
    """
    record: Target = import_module(f"{__name__}.{name}").TARGET
    return record
