"""The constants of the iteration-time law, fitted to what was measured, and how far to trust them.

The pieces: what was measured as equations in the constants (`equations`, `played`), constants of least error with a
prior for what is left open (`least_squares`, `robust`), the terms a law needs (`family`), and what cannot be told
(`doubts`).
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from kvplan.errors import UsageError
from kvplan.ingest.timing.doubts import doubts, refuse_too_few, settled_by_prior
from kvplan.ingest.timing.equations import BoolArray, Equations, Kind, Terms, of_samples
from kvplan.ingest.timing.family import chosen, family, in_order, losses, tried
from kvplan.ingest.timing.played import UNLIMITED, Law, corrected, play
from kvplan.ingest.timing.robust import agreeing, constants, contradicted, nothing_free
from kvplan.ingest.timing.samples import Measured, Samples, Sweep
from kvplan.model import FloatArray, IntArray, Prefill, Replica, Timing
from kvplan.simulation.experiments.runner import Announce, Progress

_BAND = (0.1, 0.9)  # quantiles of measured over fitted
_FEWEST_FOR_BAND = 5
_ROUNDS = 2  # of playing loads at the law that the last round gave


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
    constants : ndarray, shape (n_terms,)
        As the equations have them: of the law, then the overhead.
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

    constants: FloatArray
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
    def law(self) -> Law:
        """What loads are played by."""
        return Law(self.timing, self.request_overhead_s)

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
    equations: Equations,
    prior: Timing,
    *,
    envelope: bool = False,
    names: Sequence[str] = (),
    among: Sequence[Terms] | None = None,
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
    among
        Laws to choose from; None: the family.

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
    among = family(equations, prior) if among is None else among
    opposed = contradicted(equations)
    usable = opposed < 0
    kept = usable.copy()
    kept[usable] = agreeing(equations.part(usable), envelope)
    laws = tried(equations, among, prior, envelope, usable)
    best = chosen(laws, equations, kept) if laws else None
    terms = among[0] if best is None else best.terms
    resting = equations.part(kept)
    found = constants(resting, terms, in_order(resting, terms, prior))
    if (needed := terms.needed(found)) != terms:
        terms, found = needed, constants(resting, needed, in_order(resting, needed, prior))
    follow = settled_by_prior(resting, terms, prior, found)
    found, free = nothing_free(resting, terms, in_order(resting, terms, prior), found)
    from_prior = {*follow, *(terms.names[index] for index in free)}
    held_out = next((law.held_out for law in laws if law.terms == terms), None)
    timing, overhead = equations.law(terms, found)
    fitted = equations.times(terms, found)
    return TimingFit(
        constants=found,
        timing=timing,
        request_overhead_s=overhead,
        terms=terms,
        from_prior=tuple(sorted(from_prior)),
        equations=equations,
        kept=kept,
        fitted_s=fitted,
        held_out=held_out,
        considered=tuple((law.terms, float(np.abs(law.held_out[kept]).mean())) for law in laws),
        envelope=envelope,
        outliers=_outliers(names, equations, fitted, kept, opposed),
        warnings=doubts(equations, kept, fitted, held_out),
    )


def fit_measured(
    measured: Sequence[Measured],
    prior: Timing,
    *,
    believed: bool = True,
    replica: Replica | None = None,
    capacity_tokens: int | None = None,
    progress: Progress | None = None,
    announce: Announce | None = None,
) -> TimingFit:
    """Fit an iteration time to what files say of one replica.

    Parameters
    ----------
    believed
        Whether `prior` is of this replica; if not, there must be as much measured as there is to tell.
    replica
        What the engine has and allows, where loads are played; None: memory without end.
    capacity_tokens
        Its memory, if it is another.

    Raises
    ------
    UsageError
        Too little was measured, or iterations and loads are mixed.
    """
    samples = [some for some in measured if isinstance(some, Samples)]
    sweeps = [some for some in measured if isinstance(some, Sweep)]
    if samples and sweeps:
        raise UsageError(
            f"{samples[0].source} has iterations, {sweeps[0].source} has loads: fit one or the other"
        )
    if samples:
        equations = of_samples(samples)
        if not believed:
            refuse_too_few(equations, samples[0].source)
        envelope = any(some.hidden_prefill for some in samples)
        return fit_timing(equations, prior, envelope=envelope, names=[some.source for some in samples])
    played = replace(replica, prefill=Prefill.FUSED) if replica is not None else UNLIMITED
    if capacity_tokens is not None:
        played = replace(played, memory_tokens=capacity_tokens)
    return _fit_sweeps(sweeps, prior, played, believed, progress, announce)


def _fit_sweeps(
    sweeps: Sequence[Sweep],
    prior: Timing,
    replica: Replica,
    believed: bool,
    progress: Progress | None,
    announce: Announce | None,
) -> TimingFit:
    """Loads at a rate are played at the law that was found, for what requests wait, and the best law is kept."""
    names = [sweep.source for sweep in sweeps]
    equations = play(sweeps, replica, progress=progress, announce=announce)
    if not believed:
        refuse_too_few(equations, names[0])
    if not any(point.rate_rps is not None for sweep in sweeps for point in sweep.points):
        return fit_timing(equations, prior, names=names)

    def waited(fit: TimingFit) -> Equations:
        return corrected(equations, sweeps, fit.terms, fit.constants, replica)

    simple = fit_timing(equations, prior, names=names, among=family(equations, prior)[:1])
    fits = [fit_timing(waited(simple), prior, names=names)]
    for _ in range(_ROUNDS):
        fits.append(fit_timing(waited(fits[-1]), prior, names=names, among=[fits[0].terms]))
    best = min(fits, key=lambda fit: _misfit(fit, waited(fit)))
    return replace(best, considered=fits[0].considered)


def _misfit(fit: TimingFit, played: Equations) -> float:
    """Mean error of a law where loads are played by it."""
    return float(losses(played, played.times(fit.terms, fit.constants) / played.seconds - 1).mean())


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
