"""kvplan: a capacity planner for LLM serving.

For programs and notebooks; `kvplan` on the command line makes the same calls::

    model, GPUs, demand ─────────► plan ─────► Plan
    import_files(files) ─► Imported.profile ┐
    load(path or name) ──► Profile ─────────┼► analyze ──► Report
                                            ├► measure ──► Measured, runs of a benchmark
                                            ├► check ────► Checked
                                            ├► simulate ─► Study
                                            └► sweep ────► Sweep, arrays by name

Results print their first screen, show in notebooks, and have `to_dict()` and `columns()`. Everything heavy is imported
when a function is called, not with the package.
"""

from kvplan.api import analyze, check, import_files, load, measure, plan, simulate, sweep
from kvplan.version import __version__

__all__ = ["__version__", "analyze", "check", "import_files", "load", "measure", "plan", "simulate", "sweep"]
