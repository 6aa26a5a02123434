"""Plots: what is in them, what they say in words, and the drawing of them with matplotlib, which is optional.

::

    Report, ServingModel, Plan ──► data ─────┬──► catalogue (title, caption, figures in words)
    what sweep and size found ───► planning ─┴──► drawing, charts ──► SVG, PNG
"""
