"""kvplan: a capacity planner for LLM serving.

For programs and notebooks; `kvplan` on the command line makes the same calls::

    load(path or name) ──► Profile ──► analyze ──► Report
                              ├──────► simulate ─► Study
                              └──────► sweep ────► arrays by name

Everything heavy is imported when a function is called, not with the package.
"""

from kvplan.api import analyze, load, simulate, sweep
from kvplan.version import __version__

__all__ = ["__version__", "analyze", "load", "simulate", "sweep"]
