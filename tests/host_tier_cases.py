"""Random sessions that fill a GPU and a host tier; many prompts end where others branch off."""

import random
from dataclasses import replace

from cached_cases import case_of
from session_shapes import Shape
from small_runs import Case

from kvplan.model import Replica, Timing
from kvplan.model.replica import Offload


def busy_case(seed: int) -> Case:
    """The same for a seed: sessions of up to four turns behind a tree of prompts, and little memory of both kinds."""
    r = random.Random(seed)
    branches = [(r.randint(-1, 9), r.randint(1, 9)) for _ in range(r.randint(1, 4))]

    def turn() -> tuple[int, int, float]:
        return (
            r.choice([0, 0, r.randint(0, 9)]),
            r.choice([1, 1, r.randint(1, 9)]),
            r.choice([0.0, 0.5, 3.0, 11.0]),
        )

    sessions = [
        (r.randint(0, 9), [turn() for _ in range(r.randint(1, 4))], r.choice([0.0, 0.25, 1.0, 2.7, 30.0]))
        for _ in range(r.randint(2, 14))
    ]
    replica = Replica(
        r.choice([r.randint(1, 8), r.randint(1, 40)]),
        r.choice([1, 1, 2, 3, 5]),
        max_num_seqs=r.choice([None, r.randint(1, 6)]),
        max_num_batched_tokens=r.choice([None, r.randint(6, 30)]),
    )
    shape = Shape(branches, sessions, r.choice([None, None, 1, 2, 4]))
    timing = Timing(r.choice([1.0, 0.3]), r.choice([0.0, 0.01]), r.choice([0.0, 0.02]))
    watermark, shed_after = r.choice([0.0, 0.05]), r.choice([None, None, 5.0])
    tier = Offload(
        r.choice([r.randint(5, 40), r.randint(20, 120)]),
        r.choice([0.001, 0.05, 0.3, 2.0]),
        inclusive=r.random() < 0.5,
        overlap=r.random() < 0.5,
    )
    case = case_of(shape, timing, replica, watermark, r.choice([0.0, 1.0]), shed_after, None)
    return replace(case, replica=replace(case.replica, offload=tier))
