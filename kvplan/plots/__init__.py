"""Plots of a report: `data` computes what is in them, `catalogue` says it in words, `drawing` draws it.

::

    Report, ServingModel, Plan ──► data ──► catalogue ──► drawing (matplotlib, optional) ──► SVG, PNG
"""
