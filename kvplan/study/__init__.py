"""Figures of a profile by runs of the simulator: measured, with intervals, where an operator acts on them."""
