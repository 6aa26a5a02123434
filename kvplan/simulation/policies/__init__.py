"""The policies by name: every module of this package that has a record, `POLICY`, is one."""

from importlib import import_module
from pkgutil import iter_modules

from kvplan.simulation.policies.protocol import Policy

_MODULES = [import_module(f"{__name__}.{found.name}") for found in iter_modules(__path__)]
POLICIES: dict[str, Policy] = {m.POLICY.name: m.POLICY for m in _MODULES if hasattr(m, "POLICY")}
