"""What measurements leave open: terms that they cannot tell apart, and errors that say the law is another."""

from collections.abc import Iterator

import numpy as np

from kvplan.errors import UsageError
from kvplan.ingest.timing.equations import AMOUNTS, LINEAR, BoolArray, Equations, Kind, Terms
from kvplan.model import FloatArray

_FEWEST = 2  # equations, and loads
_DOUBTFUL = 0.2  # held-out error of which to warn
_NARROW = 0.25  # spread of a column, against its middle, below which it is as good as constant
_LITTLE = 0.01  # share of the time
_TOGETHER = 0.95  # R² of one column on the others


def refuse_too_few(equations: Equations, source: str) -> None:
    """Refuse what is too little to tell the constants apart, where nothing else is known."""
    varying = [name for name, column in equations.columns.items() if np.ptp(column) > 0]
    wanted = max(1 + len(varying) + equations.has_overhead, _FEWEST)
    known = "or a --base, or --model and --gpu, for what they leave open"
    if len(equations) < wanted:
        raise UsageError(
            f"{source}: {len(equations)} times were measured; at least {wanted} are needed to tell "
            f"{', '.join(('d0', *varying))} apart, {known}"
        )
    if np.unique(equations.group).size < _FEWEST:
        raise UsageError(f"{source}: one load alone does not tell what it is made of; give several, {known}")


def doubts(
    equations: Equations, kept: BoolArray, fitted_s: FloatArray, held_out: FloatArray | None
) -> tuple[str, ...]:
    """Say what to doubt of a fit."""
    off = fitted_s / equations.seconds - 1 if held_out is None else held_out
    rested = equations.part(kept)
    return (*_errors(rested, off[kept]), *_ranges(rested), *_below_zero(rested))


def _errors(equations: Equations, off: FloatArray) -> Iterator[str]:
    """Say what a large error says: that times contradict each other, or are made of something else."""
    for kind in Kind:
        mine = equations.kind == kind
        error = float(np.abs(off[mine]).mean()) if mine.any() else 0.0
        if error >= _DOUBTFUL:
            why = "many outliers, or no such law of time"
            if kind is not Kind.ITERATION:
                why = "contradictions, or an engine with other limits than --base has (max_num_seqs, memory)"
            yield f"{kind.value} is off by {error:.0%} on average where it was not fitted to: {why}"


def _ranges(equations: Equations) -> Iterator[str]:
    """Name amounts that hardly vary, and those that vary with others."""
    telling = {}
    for name, column in equations.columns.items():
        low, middle, high = np.quantile(column, (0.05, 0.5, 0.95))
        if np.ptp(column) == 0:
            yield f"all samples have {column[0]:,.0f} {AMOUNTS[name]}: they do not tell {name} from d0"
        elif middle > 0 and high - low < _NARROW * middle:
            span = f"{low:,.0f} to {high:,.0f} {AMOUNTS[name]}"
            yield f"nine in ten samples have {span}: too narrow a range to tell {name} from d0"
        else:
            telling[name] = column
    for name, column in telling.items():
        rest = [other for other in telling if other != name]
        others = np.column_stack([np.ones_like(column), *(telling[other] for other in rest)])
        left = column - others @ np.linalg.lstsq(others, column, rcond=None)[0]
        if left.var() < (1 - _TOGETHER) * column.var():
            those = " and ".join(AMOUNTS[other] for other in rest)
            yield f"{AMOUNTS[name]} move with {those}: {name} is hard to tell from the others"


def _below_zero(equations: Equations) -> Iterator[str]:
    """Name constants that a linear fit without limits would have below 0, by more than a little."""
    relative = equations.design(Terms()) / equations.seconds[:, None]
    free = np.linalg.lstsq(relative, 1 - equations.offset / equations.seconds, rcond=None)[0]
    shares = free * relative.mean(axis=0)
    for name, constant, share in zip((*LINEAR, "the overhead"), free, shares, strict=False):
        if share < -_LITTLE:
            yield f"{name} would be {constant * 1e6:.3g} us, below 0; taken as 0 or nearly so"
