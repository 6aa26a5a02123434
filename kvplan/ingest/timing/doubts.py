"""What measurements leave open: terms that they cannot tell apart, and errors that say the law is another."""

from dataclasses import replace

import numpy as np

from kvplan.errors import UsageError
from kvplan.ingest.timing.equations import AMOUNTS, LINEAR, BoolArray, Equations, Kind, Terms
from kvplan.ingest.timing.family import in_order
from kvplan.ingest.timing.robust import constants
from kvplan.model import FloatArray, Timing

_FEWEST = 2  # equations, and loads
_DOUBTFUL = 0.2  # held-out error of which to warn
_NARROW = 0.25  # spread of a column, against its middle, below which it is as good as constant
_LITTLE = 0.01  # share of the time
_TOGETHER = 0.95  # R² of one column on the others
_FOLLOWS = 0.25  # logarithm of a constant over that of its prior, from which on it rests on that


def refuse_too_few(equations: Equations, source: str) -> None:
    """Refuse what is too little to tell the constants apart, where nothing else is known.

    Raises
    ------
    UsageError
        Fewer equations than constants that vary.
    """
    varying = [name for name, column in equations.columns.items() if np.ptp(column) > 0]
    wanted = max(1 + len(varying) + bool(equations.overhead.any()), _FEWEST)
    known = "or a --base, or --model and --gpu, for what they leave open"
    if len(equations) < wanted:
        raise UsageError(
            f"{source}: {len(equations)} times were measured; at least {wanted} are needed to tell "
            f"{', '.join(('d0', *varying))} apart, {known}"
        )
    if np.unique(equations.group).size < _FEWEST:
        raise UsageError(f"{source}: one load alone does not tell what it is made of; give several, {known}")


def settled_by_prior(equations: Equations, terms: Terms, prior: Timing, found: FloatArray) -> tuple[str, ...]:
    """Constants that follow the prior: twice as much or half as much there changes them by more than a fifth here.

    Examples
    --------
    Without prompts the prior alone says what they take:

    >>> from kvplan.ingest.timing.equations import of_samples
    >>> from kvplan.ingest.timing.reading import parse_samples
    >>> rows = [f"{k},{(10 + k / 1000):.3f}\\n" for k in range(0, 20_000, 1000)]
    >>> equations = of_samples(parse_samples(["kv_tokens,iteration_ms\\n", *rows], "iterations.csv"))
    >>> prior = Timing(0.02, d1=1e-6, d2=1e-4)
    >>> settled_by_prior(equations, Terms(), prior, np.array([0.01, 1e-6, 1e-4, 0.0]))
    ('d2',)
    """
    follow = []
    for index, name in enumerate(terms.names[: 5 if terms.d4 else 4]):
        if getattr(prior, name) <= 0:
            continue
        for factor in (2.0, 0.5):
            other = replace(prior, **{name: factor * getattr(prior, name)})
            then = constants(equations, terms, in_order(equations, terms, other))[index]
            if max(then, found[index]) > 2**_FOLLOWS * min(then, found[index]):
                follow.append(name)
                break
    return tuple(follow)


def doubts(
    equations: Equations, kept: BoolArray, fitted_s: FloatArray, held_out: FloatArray | None
) -> tuple[str, ...]:
    """What to say of a fit."""
    off = fitted_s / equations.seconds - 1 if held_out is None else held_out
    return (*_error(equations, kept, off), *_ranges(equations, kept), *_below_zero(equations.part(kept)))


def _error(equations: Equations, kept: BoolArray, off: FloatArray) -> list[str]:
    """What a large error says: that times contradict each other, or are made of something else."""
    found = []
    for kind in Kind:
        mine = kept & (equations.kind == kind)
        error = float(np.abs(off[mine]).mean()) if mine.any() else 0.0
        if error >= _DOUBTFUL:
            why = "many outliers, or no such law of time"
            if kind is not Kind.ITERATION:
                why = "contradictions, or an engine with other limits than --base has (max_num_seqs, memory)"
            found.append(f"{kind.value} is off by {error:.0%} on average where it was not fitted to: {why}")
    return found


def _ranges(equations: Equations, kept: BoolArray) -> list[str]:
    """Amounts that hardly vary, and those that vary with others."""
    found, telling = [], []
    columns = {name: column[kept] for name, column in equations.columns.items()}
    for name, column in columns.items():
        what = AMOUNTS[name]
        low, middle, high = np.quantile(column, (0.05, 0.5, 0.95))
        if np.ptp(column) == 0:
            found.append(f"all samples have {column[0]:,.0f} {what}: they do not tell {name} from d0")
        elif middle > 0 and high - low < _NARROW * middle:
            found.append(
                f"nine in ten samples have {low:,.0f} to {high:,.0f} {what}: too narrow a range to tell {name} from d0"
            )
        else:
            telling.append(name)
    for name in telling:
        rest = [other for other in telling if other != name]
        others = np.column_stack([np.ones(kept.sum()), *(columns[other] for other in rest)])
        column = columns[name]
        left = column - others @ np.linalg.lstsq(others, column, rcond=None)[0]
        if left.var() < (1 - _TOGETHER) * column.var():
            those = " and ".join(AMOUNTS[other] for other in rest)
            found.append(f"{AMOUNTS[name]} move with {those}: {name} is hard to tell from the others")
    return found


def _below_zero(equations: Equations) -> list[str]:
    """Constants of the linear law that a fit without limits would have below 0, by more than a little."""
    relative = equations.design(Terms()) / equations.seconds[:, None]
    free = np.linalg.lstsq(relative, 1 - equations.offset / equations.seconds, rcond=None)[0]
    shares = free * relative.mean(axis=0)
    return [
        f"{name} would be {constant * 1e6:.3g} us, below 0; taken as 0 or nearly so"
        for name, constant, share in zip((*LINEAR, "the overhead"), free, shares, strict=False)
        if share < -_LITTLE
    ]
