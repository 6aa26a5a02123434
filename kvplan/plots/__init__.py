"""Plots of a report: `data` computes what is in them, `catalogue` says it in words, `drawing` draws it.

::

    Report, ServingModel, Plan ──► data ──► catalogue ──► drawing (matplotlib, optional) ──► SVG, PNG

`planning` and `charts` are the same for what `kvplan sweep` and `kvplan size` found.
"""
