"""The constants of the iteration-time law, fitted to what was measured, and how far to trust them.

The pieces: what was measured as equations in the constants (`equations`, `played`), constants of least error with a
prior for what is left open (`least_squares`, `robust`), the terms a law needs (`family`), and what cannot be told
(`doubts`).
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from kvplan.ingest.timing.doubts import doubts, settled_by_prior
from kvplan.ingest.timing.equations import BoolArray, Equations, Kind, Terms, of_samples
from kvplan.ingest.timing.family import believed, chosen, family, tried
from kvplan.ingest.timing.robust import agreeing, constants, contradicted
from kvplan.ingest.timing.samples import Samples
from kvplan.model import FloatArray, IntArray, Timing

_BAND = (0.1, 0.9)  # quantiles of measured over fitted
_FEWEST_FOR_BAND = 5


@dataclass(frozen=True, slots=True)
class Outlier:
    """An iteration that the fit leaves out, or that contradicts others.

    `contradicts` is the line of a repeated measurement that did less in more time, or more in less.
    """

    source: str
    line: int
    kv_tokens: float
    prefill_tokens: float
    sequences: float
    seconds: float
    fitted_s: float
    contradicts: int | None


@dataclass(frozen=True)
class TimingFit:
    """A timing, and how far to trust it.

    Attributes
    ----------
    request_overhead_s
        What a client waits for beside the engine.
    terms
        Of the law, beyond the linear ones.
    from_prior
        Constants that rest on the prior more than on what was measured.
    equations
        What was measured.
    kept : ndarray of bool, shape (n_equations,)
        What the fit rests on.
    fitted_s, held_out : ndarray, shape (n_equations,), seconds; relative
        By the fit; the error where the timing was fitted without the equations it is asked about, a fold at a time.
        `held_out` is None where there are too few to leave any out.
    considered
        Laws of the family, simple ones first, and their mean held-out error.
    envelope
        Whether it is a lower envelope.
    outliers
        Iterations that were left out or contradict others, the furthest off first.
    warnings
        What the equations cannot tell.
    """

    timing: Timing
    request_overhead_s: float
    terms: Terms
    from_prior: tuple[str, ...]
    equations: Equations
    kept: BoolArray
    fitted_s: FloatArray
    held_out: FloatArray | None
    considered: tuple[tuple[Terms, float], ...]
    envelope: bool
    outliers: tuple[Outlier, ...]
    warnings: tuple[str, ...]

    @property
    def trimmed(self) -> int:
        """Equations the fit leaves out."""
        return int((~self.kept).sum())

    @property
    def trimmed_share(self) -> float:
        """Share of the equations that the fit leaves out."""
        return self.trimmed / self.kept.size

    def error(self, kind: Kind) -> float:
        """Mean of |measured - fitted| / measured over what the fit rests on, of one kind."""
        off = np.abs(self.fitted_s - self.equations.seconds) / self.equations.seconds
        return float(off[self.kept & (self.equations.kind == kind)].mean())

    def held_out_error(self, kind: Kind) -> float | None:
        """The same for what the timing was not fitted to; None where there is too little to leave any out."""
        mine = self.kept & (self.equations.kind == kind)
        return None if self.held_out is None else float(np.abs(self.held_out[mine]).mean())

    @property
    def kinds(self) -> tuple[Kind, ...]:
        """What was timed."""
        seen = set(self.equations.kind.tolist())
        return tuple(kind for kind in Kind if kind.value in seen)

    @property
    def band(self) -> tuple[float, float] | None:
        """Measured over foretold, of iterations and of loads: eight in ten lie between these; None from a few."""
        if self.held_out is None:
            return None
        mine = self.kept & (self.equations.kind != Kind.TTFT)
        if mine.sum() < _FEWEST_FOR_BAND:
            return None
        low, high = np.quantile(1 / (1 + self.held_out[mine]), _BAND)
        return min(float(low), 1.0), max(float(high), 1.0)


def fit_timing(
    equations: Equations, prior: Timing, *, envelope: bool = False, names: Sequence[str] = ()
) -> TimingFit:
    """Fit an iteration time.

    Parameters
    ----------
    prior
        A law whose ratios count where the equations leave them open.
    envelope
        Whether iterations can be too slow for what they say they did.
    names
        Of the files, as `Equations.source` counts them.

    Examples
    --------
    >>> from kvplan.ingest.timing.reading import parse_samples
    >>> rows = [f"{k},{p},{(10 + k / 1000 + p / 10):.3f}\\n" for k in (0, 4000, 20000) for p in (0, 50, 200)]
    >>> samples = parse_samples(["kv_tokens,prefill_tokens,iteration_ms\\n", *rows], "iterations.csv")
    >>> fit = fit_timing(of_samples(samples), Timing(0.01))
    >>> [round(value, 9) for value in (fit.timing.d0, fit.timing.d1, fit.timing.d2)]
    [0.01, 1e-06, 0.0001]
    >>> fit.trimmed, fit.terms.names
    (0, ('d0', 'd1', 'd2', 'd3'))
    """
    opposed = contradicted(equations)
    usable = opposed < 0
    kept = usable.copy()
    kept[usable] = agreeing(equations.part(usable), envelope)
    laws = tried(equations, prior, envelope, usable)
    best = chosen(laws, equations, kept) if laws else None
    terms = family(equations, prior)[0] if best is None else best.terms
    resting = equations.part(kept)
    found = constants(resting, terms, believed(equations, terms, prior))
    timing, overhead = equations.law(terms, found)
    fitted = equations.times(terms, found)
    return TimingFit(
        timing=timing,
        request_overhead_s=overhead,
        terms=terms,
        from_prior=settled_by_prior(resting, terms, prior, timing),
        equations=equations,
        kept=kept,
        fitted_s=fitted,
        held_out=None if best is None else best.held_out,
        considered=tuple((law.terms, float(np.abs(law.held_out[kept]).mean())) for law in laws),
        envelope=envelope,
        outliers=_outliers(names, equations, fitted, kept, opposed),
        warnings=doubts(equations, kept, None if best is None else best.held_out),
    )


def fit_samples(*samples: Samples, prior: Timing) -> TimingFit:
    """Fit an iteration time to iterations of one replica, from one file or several."""
    return fit_timing(
        of_samples(samples),
        prior,
        envelope=any(some.hidden_prefill for some in samples),
        names=[some.source for some in samples],
    )


def _outliers(
    names: Sequence[str], equations: Equations, fitted: FloatArray, kept: BoolArray, opposed: IntArray
) -> tuple[Outlier, ...]:
    named = np.flatnonzero(~kept)
    off = np.abs(np.log(equations.seconds[named] / np.maximum(fitted[named], 1e-12)))
    return tuple(
        Outlier(
            source=names[equations.source[i]],
            line=int(equations.line[i]),
            kv_tokens=float(equations.kv_tokens[i]),
            prefill_tokens=float(equations.prefill_tokens[i]),
            sequences=float(equations.sequences[i]),
            seconds=float(equations.seconds[i]),
            fitted_s=float(fitted[i]),
            contradicts=int(equations.line[opposed[i]]) if opposed[i] >= 0 else None,
        )
        for i in named[np.argsort(-off, kind="stable")]
    )
