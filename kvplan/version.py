"""The version of kvplan, apart so that whatever names it imports nothing else."""

__version__ = "0.1.0"
