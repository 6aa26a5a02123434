"""Formats of samples, a module each: what has a record called ``FORMAT`` is read, nothing else need know of it."""

from importlib import import_module
from pkgutil import iter_modules

from kvplan.ingest.timing.format import Format

FORMATS: tuple[Format, ...] = tuple(
    import_module(f"{__name__}.{module.name}").FORMAT for module in iter_modules(__path__)
)
