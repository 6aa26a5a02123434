"""Engines that settings can be written for: a module each with its record, `ENGINE`, and its line here."""

from enum import StrEnum
from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kvplan.engines.base import Engine


class EngineName(StrEnum):
    """Engines by the names of their modules; cheap to import, for the command line."""

    VLLM = "vllm"
    SGLANG = "sglang"
    TRTLLM = "trtllm"


def engine(name: str) -> "Engine":
    """The record of an engine.

    >>> engine("sglang").title
    'SGLang'
    """
    record: Engine = import_module(f"{__name__}.{name}").ENGINE
    return record
