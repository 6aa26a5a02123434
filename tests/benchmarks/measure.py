"""Ratios of two pieces of work, measured side by side in one run."""

import statistics
import time
from collections.abc import Callable


def seconds(work: Callable[[], object]) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def ratio(ours: Callable[[], object], theirs: Callable[[], object], pairs: int, label: str) -> float:
    """Median of ours/theirs over interleaved pairs, printed with both medians."""
    timed = [(seconds(ours), seconds(theirs)) for _ in range(pairs)]
    mine, other = (statistics.median(column) for column in zip(*timed, strict=True))
    middle = statistics.median(a / b for a, b in timed)
    print(
        f"\n{label}: {mine * 1e3:.3g} ms against {other * 1e3:.3g} ms, ratio {middle:.3g} (1/{1 / middle:.3g})"
    )
    return middle
