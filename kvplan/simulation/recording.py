"""The thinned record of a run: every iteration at first, then every second one, and so on."""

from kvplan.simulation.kernels import kernel
from kvplan.simulation.state import Clock, Counter, Record, State


@kernel
def record(s: State, held: int, cached: int) -> None:
    """Note what there is, in every so manieth iteration; tokens that are held, and known though nobody holds them."""
    c = s.counter
    if c[Counter.ITERATIONS] % c[Counter.STRIDE]:
        return
    if c[Counter.RECORDED] == s.record.shape[0]:
        half = s.record.shape[0] // 2
        for i in range(half):
            for column in range(s.record.shape[1]):
                s.record[i, column] = s.record[2 * i + 1, column]
        c[Counter.RECORDED] = half
        c[Counter.STRIDE] *= 2
        if c[Counter.ITERATIONS] % c[Counter.STRIDE]:
            return
    at = c[Counter.RECORDED]
    s.record[at, Record.NOW] = s.clock[Clock.NOW]
    s.record[at, Record.BUSY] = s.clock[Clock.BUSY]
    s.record[at, Record.HELD] = held
    s.record[at, Record.WAITING] = c[Counter.WAITING]
    s.record[at, Record.RESIDENT] = c[Counter.RESIDENT]
    s.record[at, Record.EVICTED] = c[Counter.EVICTED]
    s.record[at, Record.COMPLETED] = c[Counter.COMPLETED]
    s.record[at, Record.CACHED] = cached
    c[Counter.RECORDED] += 1
