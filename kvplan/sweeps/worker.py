"""Imports that worker processes are forked with: all that a simulated point needs, so that they start at once."""

import os

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # before numpy is imported: cores are shared out already

import kvplan.compiling.native
import kvplan.simulation.experiments.study
import kvplan.sweeps.run  # noqa: F401
