"""The constants of the iteration-time law, fitted to what was measured, and how far to trust them.

Each law of the family (linear, with d4, with d5, with both) is fitted without some equations and asked about those. The
simplest counts whose error is within one standard error of the best: of the differences between the two, equation by
equation, since the same equations are hard for both. A law that is known to have d4 (a mixture of experts, of the
prior) is not tried without.

Where no load can be spared, the fit is the posterior mean of the constants of an estimate. On public sweeps up to three
loads foretell others better with it, and more of them better without.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from kvplan.errors import UsageError
from kvplan.ingest.model.config import read_model
from kvplan.ingest.model.hardware import find_gpu
from kvplan.ingest.model.roofline import Efficiency, assumed_kv_dtype, roofline
from kvplan.ingest.model.roofline import request_overhead_s as outside_s
from kvplan.ingest.timing.belief import NOISE, SPREAD, ends, posterior, widths
from kvplan.ingest.timing.equations import BoolArray, Equations, Kind, Terms, of_samples
from kvplan.ingest.timing.played import KNEES, UNLIMITED, Law, corrected, outside_engine_s, play
from kvplan.ingest.timing.robust import agreeing, constants, stand_ins, standard_errors
from kvplan.ingest.timing.samples import Deployment, Measured, Point, Samples, Sweep
from kvplan.model import EngineName, FloatArray, Prefill, Replica, Timing
from kvplan.simulation.experiments.runner import Announce, Progress

_BATCHES = 2.0 ** np.arange(9)  # 1 to 256 sequences
_EACH_OUT, _OF_MANY = 32, 8  # loads of which each is left out alone; folds of more
_FOLDS = 5
_FEWEST = 2  # loads, or groups to fit to
_FEW, _ALIKE = (
    3,
    0.25,
)  # loads that leave to an estimate what they are made of; in how much they differ, relative
_MOST_OFF = 1.0  # relative error; what is further off counts no more
_FAR = 2.0  # standard deviations, beyond which loads contradict each other
_NO_MATTER = 1e-3  # difference of errors that is not worth a term
_TTFT_COUNTS = 0.3  # of its error, beside that of TPOT
_BAND = (0.1, 0.9)  # quantiles of measured over fitted
_FEWEST_FOR_BAND = 4
_ROUNDS = 2  # of playing loads at the law that the last round gave
_CLOSEST = (0.02, 0.05)  # how well a constant is to be known: twice the scatter of samples, within these
_SURE = 0.99  # quantile of Student's t: standard errors within which it is
_HARDLY = 0.5  # times as uncertain as it was: a constant that is not told


class Prior(NamedTuple):
    """Law believed before anything is measured; it counts where equations leave its constants open."""

    timing: Timing | None
    source: str
    request_overhead_s: float = 0.0


NOTHING = Prior(None, "")
_TIME = Timing(1.0)  # an iteration takes time; what of it is proportional to what, nobody knows


def of_deployment(deployment: Deployment, reached: Efficiency | None = None) -> Prior | None:
    """Estimate what a file says was measured; None where the catalogue does not know it.

    `reached` is what the estimate takes engines to reach of the peaks, instead of what is shipped.

    Examples
    --------
    >>> prior = of_deployment(Deployment(model="Llama-3.1-8B", gpu="RTX 4090", engine="vllm"))
    >>> prior.source if prior else None
    'the estimate for meta-llama/Llama-3.1-8B on RTX 4090'
    >>> of_deployment(Deployment(model="unheard-of", gpu="RTX 4090"))
    """
    if not (deployment.model and deployment.gpu):
        return None
    try:
        shape, gpu = read_model(deployment.model), find_gpu(deployment.gpu)
        engine = next((name for name in EngineName if name == deployment.engine), None)
        speed = roofline(
            shape,
            gpu,
            parallelism=deployment.parallelism,
            kv_dtype=assumed_kv_dtype(gpu, engine),
            engine=engine,
            weight_dtype=deployment.weight_dtype or None,
            reached=reached,
        )
    except UsageError:
        return None
    timing = speed.timing.of_ranks(deployment.parallelism.data)
    overhead_s = outside_s(speed.timing, engine or EngineName.VLLM)
    return Prior(timing, f"the estimate for {shape.name} on {gpu.name}", overhead_s)


def of_measured(measured: Iterable[Measured]) -> Prior:
    """Estimate what files say was measured; `NOTHING` where they do not say it."""
    priors = (of_deployment(some.deployment) for some in measured if isinstance(some, Sweep))
    return next(filter(None, priors), NOTHING)


@dataclass(frozen=True, slots=True)
class Outlier:
    """An iteration that the fit leaves out."""

    line: int
    kv_tokens: float
    prefill_tokens: float
    sequences: float
    seconds: float
    fitted_s: float


@dataclass(frozen=True)
class TimingFit:
    """A timing, and how far to trust it; arrays of shape (n_equations,) but where stated."""

    timing: Timing
    request_overhead_s: float  # what a client waits for beside the engine
    terms: Terms
    standard_errors: Mapping[str, float]  # of the constants, relative, by what was measured alone
    equations: Equations
    kept: BoolArray  # what the fit rests on
    fitted_s: FloatArray
    # relative errors of fits without the equation; None: too few to leave any out
    held_out: FloatArray | None
    considered: tuple[tuple[Terms, float], ...]  # laws, simple ones first, and their mean held-out error
    envelope: bool  # a lower one
    outliers: tuple[Outlier, ...]  # the furthest off first
    # of ln(measured/fitted), as believed after so few loads; None where many tell
    spread: float | None = None
    misfit: float = 0.0  # of few loads, in standard deviations of what is believed of their noise

    @property
    def contradicts_itself(self) -> bool:
        """Whether few loads scatter more than their noise, which makes the fit as much less sure."""
        return self.misfit > _FAR

    @property
    def law(self) -> Law:
        """Law that plays loads."""
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
        """Mean such error on what the timing was not fitted to; None where too little could be left out."""
        mine = self.kept & (self.equations.kind == kind)
        return None if self.held_out is None else float(np.abs(self.held_out[mine]).mean())

    @property
    def undetermined(self) -> dict[str, float]:
        """Constants that what was measured does not tell to within a few percent, and their standard errors."""
        from scipy.stats import t  # type: ignore[import-untyped]

        if self.spread is not None:
            return {name: error for name, error in self.standard_errors.items() if error > _HARDLY * SPREAD}
        scatter = self.error(Kind.ITERATION) if self.equations.of_iterations else _CLOSEST[1]
        bound = float(np.clip(2 * scatter, *_CLOSEST))
        constants = len(self.terms.names) + self.equations.has_overhead
        sure = t.ppf(_SURE, max(int(self.kept.sum()) - constants, 1))
        return {name: error for name, error in self.standard_errors.items() if not sure * error <= bound}

    @property
    def kinds(self) -> tuple[Kind, ...]:
        """Kinds timed."""
        seen = set(self.equations.kind.tolist())
        return tuple(kind for kind in Kind if kind.value in seen)

    @property
    def band(self) -> tuple[float, float] | None:
        """Measured over foretold, of iterations and of loads: eight in ten lie between these; None from a few."""
        if self.spread is not None:
            return ends(self.spread)
        mine = self.kept & (self.equations.kind != Kind.TTFT)
        if self.held_out is None or mine.sum() < _FEWEST_FOR_BAND:
            return None
        low, high = np.quantile(1 / (1 + self.held_out[mine]), _BAND)
        return min(float(low), 1.0), max(float(high), 1.0)


def fit_measured(
    measured: Sequence[Measured],
    believed: Timing | None,
    *,
    request_overhead_s: float = 0.0,
    replica: Replica | None = None,
    capacity_tokens: int | None = None,
    progress: Progress | None = None,
    announce: Announce | None = None,
) -> TimingFit:
    """Fit an iteration time to what files say of one replica.

    Parameters
    ----------
    believed, request_overhead_s
        The law of another origin; without, there must be as much measured as there is to tell.
    replica
        What the engine has and allows, where loads are played; None: memory without end.
    capacity_tokens
        Its memory, if it is another.

    Raises
    ------
    UsageError
        Too little was measured, or iterations and loads are mixed.
    """
    prior = rooted(believed) if believed else _TIME
    believed_knees = (prior.knee_tokens,) if prior.d5 > 0 else ()
    samples = [some for some in measured if isinstance(some, Samples)]
    sweeps = [some for some in measured if isinstance(some, Sweep)]
    if samples and sweeps:
        what = f"{samples[0].source} has iterations, {sweeps[0].source} has loads"
        raise UsageError(f"{what}: fit one or the other")
    played = replace(replica, prefill=Prefill.FUSED) if replica is not None else UNLIMITED
    if capacity_tokens is not None:
        played = replace(played, memory_tokens=capacity_tokens)
    if samples:
        equations = of_samples(samples, believed_knees)
        if believed is None:
            _refuse_too_few(equations, measured[0].source)
        envelope = any(some.hidden_prefill for some in samples)
        fit = fit_timing(equations, prior, envelope=envelope)
        waited = [outside_engine_s(some.requests, fit.timing, played) for some in samples if some.requests]
        return replace(fit, request_overhead_s=max(waited, default=request_overhead_s))
    if believed is not None and _different(point for sweep in sweeps for point in sweep.points) <= _FEW:
        overhead_s = request_overhead_s or outside_s(believed, EngineName.VLLM)
        return _believed(sweeps, Law(believed, overhead_s), played, progress, announce)
    knees = believed_knees or KNEES
    attention = prior.d6 / prior.d5 if prior.d5 > 0 else 0.0
    equations = play(sweeps, played, knees=knees, attention=attention, progress=progress, announce=announce)
    if believed is None:
        _refuse_too_few(equations, measured[0].source)
    at_a_rate = any(point.rate_rps is not None for sweep in sweeps for point in sweep.points)
    fit = _fit_waiting(equations, sweeps, prior, played) if at_a_rate else fit_timing(equations, prior)
    return fit if equations.has_overhead else replace(fit, request_overhead_s=request_overhead_s)


def _different(points: Iterable[Point]) -> int:
    """Count loads, those that are nearly alike as one."""
    seen: list[FloatArray] = []
    for point in points:
        amounts = (
            sum(point.inputs),
            sum(point.outputs),
            point.concurrency or math.inf,
            point.rate_rps or math.inf,
        )
        load = np.log(np.array(amounts, dtype=np.float64))
        if not any(np.allclose(load, other, rtol=0, atol=_ALIKE) for other in seen):
            seen.append(load)
    return len(seen)


def _fit_waiting(equations: Equations, sweeps: Sequence[Sweep], prior: Timing, replica: Replica) -> TimingFit:
    """Play loads at a rate at the law that was found, for what requests wait, and keep the best law."""

    def waited(fit: TimingFit) -> Equations:
        return corrected(equations, sweeps, fit.law, fit.fitted_s - fit.equations.offset, replica)

    def off_by(fit: TimingFit) -> float:
        played = waited(fit)
        off = (fit.fitted_s - fit.equations.offset + played.offset) / played.seconds - 1
        return float(_losses(played, off).mean())

    simple = fit_timing(equations, prior, among=_family(equations, prior)[:1])
    fits = [fit_timing(waited(simple), prior)]
    for _ in range(_ROUNDS):
        fits.append(fit_timing(waited(fits[-1]), prior, among=[fits[0].terms]))
    return replace(min(fits, key=off_by), considered=fits[0].considered)


def _believed(
    sweeps: Sequence[Sweep],
    prior: Law,
    replica: Replica,
    progress: Progress | None,
    announce: Announce | None,
) -> TimingFit:
    """Fit the constants of a prior to a few loads, each as far as it is believed to be off."""
    timing, overhead_s = prior
    how: dict[str, Any] = {"chosen": timing.chosen, "progress": progress, "announce": announce}
    equations = play(sweeps, replica, knees=(timing.knee_tokens,), **how)
    names, columns = zip(*equations.parts(timing, overhead_s).items(), strict=True)
    parts, noise = np.column_stack(columns), np.array([NOISE[Kind(kind)] for kind in equations.kind])
    at_a_rate = any(point.rate_rps is not None for sweep in sweeps for point in sweep.points)
    law = prior
    for _ in range(1 + _ROUNDS * at_a_rate):
        belief = posterior(parts, equations.seconds, noise, widths(names), equations.offset)
        factors = dict(zip(names, np.exp(belief.mean).tolist(), strict=True))
        outside = overhead_s * factors.pop("request_overhead")
        law = Law(
            replace(timing, **{name: getattr(timing, name) * f for name, f in factors.items()}), outside
        )
        at_once_s = parts @ np.exp(belief.mean)
        fitted_s = at_once_s + equations.offset
        if at_a_rate:
            equations = corrected(equations, sweeps, law, at_once_s, replica)
    of_tokens = equations.kind != Kind.TTFT
    mostly = of_tokens if of_tokens.any() else np.ones_like(of_tokens)
    longest = np.argmax(np.where(mostly, equations.seconds, 0.0))  # near saturation the band decides
    errors = np.sqrt(np.diag(belief.covariance)).tolist()
    off = (
        np.log(equations.seconds / fitted_s) / noise
    )  # of tokens: how long requests wait is a matter of chance
    misfit = float(np.sqrt(np.mean(off[mostly] ** 2)))
    return TimingFit(
        timing=law.timing,
        request_overhead_s=law.request_overhead_s,
        terms=Terms(),
        standard_errors=dict(zip(names[:-1], errors, strict=False)),
        equations=equations,
        kept=np.ones(len(equations), dtype=np.bool_),
        fitted_s=fitted_s,
        held_out=None,
        considered=(),
        envelope=False,
        outliers=(),
        spread=float(belief.spread(parts)[longest]) * (misfit if misfit > _FAR else 1.0),
        misfit=misfit,
    )


def fit_timing(
    equations: Equations,
    prior: Timing,
    *,
    envelope: bool = False,
    among: Sequence[Terms] | None = None,
) -> TimingFit:
    """Fit an iteration time."""
    among = _family(equations, prior) if among is None else among
    kept = agreeing(equations, envelope)
    laws = _tried(equations, among, prior, envelope)
    terms = _chosen(laws, equations, kept).terms if laws else among[0]
    resting = equations.part(kept)
    fitted = constants(resting, terms, prior)
    if (needed := terms.needed(fitted)) != terms:
        terms, fitted = needed, constants(resting, needed, prior)
    errors = standard_errors(resting, terms, fitted)
    fitted, free = stand_ins(resting, terms, prior, fitted)
    errors[list(free)] = math.inf
    held_out = next((law.held_out for law in laws if law.terms == terms), None)
    timing, overhead = equations.law(terms, fitted)
    fitted_s = equations.times(terms, fitted)
    return TimingFit(
        timing=timing,
        request_overhead_s=overhead,
        terms=terms,
        standard_errors=dict(zip(terms.names, errors.tolist(), strict=False)),
        equations=equations,
        kept=kept,
        fitted_s=fitted_s,
        held_out=held_out,
        considered=tuple((law.terms, float(np.abs(law.held_out[kept]).mean())) for law in laws),
        envelope=envelope,
        outliers=_outliers(equations, fitted_s, kept),
    )


def _refuse_too_few(equations: Equations, source: str) -> None:
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


def rooted(timing: Timing) -> Timing:
    """Replace the term of experts by a constant and d4, as fits have: B sequences wake a + b·√B of them.

    The line is the closest over B = 1, 2, 4, …, 256. Beyond, it is too slow.
    """
    if not timing.experts:
        return timing
    always, per_root = experts_read(timing.chosen)
    d0, d4 = timing.d0 + always * timing.experts, timing.d4 + per_root * timing.experts
    return replace(timing, d0=d0, d4=d4, experts=0.0, chosen=0.0)


def experts_read(chosen: float) -> tuple[float, float]:
    """Fit a + b·√B to the share of experts that B sequences wake if each chooses this share.

    Examples
    --------
    >>> [round(float(term), 3) for term in experts_read(8 / 256)]
    [0.057, 0.073]
    """
    root, share = np.sqrt(_BATCHES), 1 - (1 - chosen) ** _BATCHES
    slope, constant = np.polyfit(root, share, 1)
    if constant < 0:
        slope, constant = (root @ share) / (root @ root), 0.0
    return float(constant), float(max(slope, 0.0))


# -- laws to choose from ----------------------------------------------------------------------------------------------


class _Tried(NamedTuple):
    """A law of the family, and its relative errors on equations it was not fitted to, above 0 where it is too slow."""

    terms: Terms
    held_out: FloatArray


def _family(equations: Equations, prior: Timing) -> tuple[Terms, ...]:
    concave = (True,) if prior.d4 > 0 else (False, True)
    return tuple(Terms(d4, knee) for d4 in concave for knee in (None, *map(float, equations.knees)))


def _tried(equations: Equations, among: Sequence[Terms], prior: Timing, envelope: bool) -> list[_Tried]:
    """Try laws on what they were not fitted to; none where there are too few equations to leave any out."""
    groups = np.unique(equations.group)
    many = _FOLDS if equations.of_iterations else _OF_MANY if groups.size > _EACH_OUT else groups.size
    folds = min(many, groups.size)
    fold = np.searchsorted(groups, equations.group) % folds
    left_out = [fold == number for number in range(folds)] if groups.size > 1 else []
    rests = [~out for out in left_out]
    if not rests or min(np.unique(equations.group[rest]).size for rest in rests) < _FEWEST:
        return []
    for rest in rests:
        rest[rest] = agreeing(equations.part(rest), envelope)
    laws = []
    for terms in among:
        off = np.empty(len(equations))
        for out, rest in zip(left_out, rests, strict=True):
            asked = equations.part(out)
            fitted = asked.times(terms, constants(equations.part(rest), terms, prior))
            off[out] = fitted / asked.seconds - 1
        laws.append(_Tried(terms, off))
    return laws


def _losses(equations: Equations, off: FloatArray) -> FloatArray:
    """Weigh relative errors: of TTFT less, and beyond a limit no more."""
    weight = np.where(equations.kind == Kind.TTFT, _TTFT_COUNTS, 1.0)
    return np.asarray(np.minimum(np.abs(off), _MOST_OFF) * weight)


def _chosen(laws: Sequence[_Tried], equations: Equations, kept: BoolArray) -> _Tried:
    """Choose the simplest within one standard error of the best."""
    losses = [_losses(equations, law.held_out)[kept] for law in laws]
    best = min(losses, key=np.mean)
    near = [
        (len(law.terms.names), float(loss.mean()), law)
        for law, loss in zip(laws, losses, strict=True)
        if (loss - best).mean() <= max((loss - best).std() / np.sqrt(loss.size), _NO_MATTER)
    ]
    return min(near, key=lambda some: some[:2])[2]


def _outliers(equations: Equations, fitted_s: FloatArray, kept: BoolArray) -> tuple[Outlier, ...]:
    left_out = np.flatnonzero(~kept)
    off = np.abs(np.log(equations.seconds[left_out] / np.maximum(fitted_s[left_out], 1e-12)))
    columns = ("kv_tokens", "prefill_tokens", "sequences", "seconds")
    return tuple(
        Outlier(
            line=int(equations.line[i]),
            fitted_s=float(fitted_s[i]),
            **{name: float(getattr(equations, name)[i]) for name in columns},
        )
        for i in left_out[np.argsort(-off, kind="stable")]
    )
