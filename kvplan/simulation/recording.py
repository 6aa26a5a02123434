"""The thinned record of a run: every iteration at first, then every second one, and so on."""

from kvplan.simulation.kernels import kernel
from kvplan.simulation.state import (
    BUSY,
    COMPLETED,
    EVICTED,
    ITERATIONS,
    NOW,
    RECORDED,
    RESIDENT,
    STRIDE,
    WAITING,
    State,
)


@kernel
def record(s: State, held: int, cached: int) -> None:
    """Note what there is, in every so manieth iteration; tokens that are held, and known though nobody holds them."""
    c = s.counter
    if c[ITERATIONS] % c[STRIDE]:
        return
    if c[RECORDED] == s.record.shape[0]:
        half = s.record.shape[0] // 2
        for i in range(half):
            for column in range(s.record.shape[1]):
                s.record[i, column] = s.record[2 * i + 1, column]
        c[RECORDED] = half
        c[STRIDE] *= 2
        if c[ITERATIONS] % c[STRIDE]:
            return
    at = c[RECORDED]
    s.record[at, 0] = s.clock[NOW]
    s.record[at, 1] = s.clock[BUSY]
    s.record[at, 2] = held
    s.record[at, 3] = c[WAITING]
    s.record[at, 4] = c[RESIDENT]
    s.record[at, 5] = c[EVICTED]
    s.record[at, 6] = c[COMPLETED]
    s.record[at, 7] = cached
    c[RECORDED] += 1
