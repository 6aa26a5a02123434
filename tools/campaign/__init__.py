"""Hostile input by the thousand: profiles, damaged files, laws, and faults of the machine, each from its number.

    PYTHONPATH=tools:tests python -m campaign --seconds 60 --seed 7 --processes 2

What a case is made of follows from its kind, the seed and its number alone. The command that shows a failing one again
is printed with it.
"""

import os

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # as the command does, and before numpy is imported
