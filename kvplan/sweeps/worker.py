"""What worker processes are forked with: all that a simulated point imports, so that they start at once."""

import os

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # before numpy is imported: cores are shared out already

import numba  # noqa: F401
import scipy.special  # type: ignore[import-untyped]  # noqa: F401

import kvplan.simulation.experiments.study
import kvplan.sweeps.run  # noqa: F401
