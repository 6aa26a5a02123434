"""Which terms a law needs: linear, with d4, with d5, with both; judged by what it was not fitted to.

Each law of the family is fitted without some equations and asked about those. The simplest counts whose error is
within one standard error of the best: of the differences between the two, equation by equation, since the same
equations are hard for both. A law that is known to have d4 (a mixture of experts, of the prior) is not tried without.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from kvplan.ingest.timing.equations import BoolArray, Equations, Kind, Terms
from kvplan.ingest.timing.robust import agreeing, constants
from kvplan.model import FloatArray, Timing

FOLDS = 5
_FEWEST = 2  # groups to fit to
_MOST_OFF = 1.0  # relative error; what is further off counts no more
_NO_MATTER = 1e-3  # difference of errors that is not worth a term
_TTFT_COUNTS = 0.3  # of its error, beside that of TPOT


class Tried(NamedTuple):
    """A law of the family, and its relative errors on equations it was not fitted to, above 0 where it is too slow."""

    terms: Terms
    held_out: FloatArray


def family(equations: Equations, prior: Timing) -> tuple[Terms, ...]:
    """Laws to try, simple ones first."""
    concave = (True,) if prior.d4 > 0 else (False, True)
    return tuple(Terms(d4, knee) for d4 in concave for knee in (None, *map(float, equations.knees)))


def folds(equations: Equations) -> tuple[BoolArray, ...]:
    """Equations to leave out, one set after the other, each shape (n_equations,); none where there are too few."""
    groups = np.unique(equations.group)
    several = min(FOLDS, groups.size) if _of_iterations(equations) else groups.size
    if groups.size < 2:
        return ()
    fold = np.searchsorted(groups, equations.group) % several
    return tuple(fold == number for number in range(several))


def tried(
    equations: Equations, among: Sequence[Terms], prior: Timing, envelope: bool, usable: BoolArray
) -> tuple[Tried, ...]:
    """Laws with their held-out errors; empty where there are too few equations to leave any out."""
    left_out = folds(equations)
    rests = [~out & usable for out in left_out]
    if not rests or min(np.unique(equations.group[rest]).size for rest in rests) < _FEWEST:
        return ()
    agree = [rest.copy() for rest in rests]
    for rest, mine in zip(rests, agree, strict=True):
        mine[rest] = agreeing(equations.part(rest), envelope)
    found = []
    for terms in among:
        off = np.empty(len(equations))
        drawn = in_order(equations, terms, prior)
        for out, mine in zip(left_out, agree, strict=True):
            asked = equations.part(out)
            fitted = asked.times(terms, constants(equations.part(mine), terms, drawn))
            off[out] = fitted / asked.seconds - 1
        found.append(Tried(terms, off))
    return tuple(found)


def losses(equations: Equations, off: FloatArray) -> FloatArray:
    """What relative errors count for, shape (n_equations,): of TTFT less, and beyond a limit no more."""
    weight = np.where(equations.kind == Kind.TTFT, _TTFT_COUNTS, 1.0)
    return np.asarray(np.minimum(np.abs(off), _MOST_OFF) * weight)


def chosen(laws: Sequence[Tried], equations: Equations, kept: BoolArray) -> Tried:
    """The simplest within one standard error of the best."""
    each = [losses(equations, law.held_out)[kept] for law in laws]
    best = min(each, key=np.mean)
    near = [
        (law.terms.more, float(loss.mean()), law)
        for law, loss in zip(laws, each, strict=True)
        if (loss - best).mean() <= max((loss - best).std() / np.sqrt(loss.size), _NO_MATTER)
    ]
    return min(near, key=lambda one: one[:2])[2]


def in_order(equations: Equations, terms: Terms, prior: Timing) -> FloatArray:
    """The prior in the order of a design: no knee and no overhead is known beforehand."""
    width = equations.design(terms).shape[1]
    known = (prior.d0, prior.d1, prior.d2, prior.d3, *([prior.d4] if terms.d4 else []))
    return np.array([*known, *([0.0] * (width - len(known)))])


def _of_iterations(equations: Equations) -> bool:
    return bool((equations.kind == Kind.ITERATION).all())
