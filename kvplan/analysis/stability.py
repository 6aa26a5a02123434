"""Is the eviction-free equilibrium stable under greedy admission? (theory §3)

Eviction-free perturbations of the saturated fluid map obey Σ_k W_k δ_(t-k) = 0, so they die out iff every root of
the survival polynomial P(z) = Σ_k W_k z^(L-1-k) has modulus below one (SIC eq. 9, 10). A common divisor of the
iteration counts leaves synchronised modes undamped (SIC Theorem 3), but a gcd of one is not enough at finite
input length: the spectral radius decides.
"""

import math
from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from kvplan.analysis.concurrency import eviction_free_limit, never_grows
from kvplan.analysis.roots import (
    MOST,
    ComplexArray,
    all_inside_exact,
    count_outside,
    expand_on_circle,
    largest_root,
)
from kvplan.model import FloatArray, IntArray, Prefill, ServingModel, TabledWeights, sum_by, survival
from kvplan.model.weights import first_tokens, prompt_stages
from kvplan.solve import falling_root
from kvplan.units import format_number, format_tokens

_EXACT_MAX_STAGES = 300  # exact Schur-Cohn takes about a second there
_NEAR_CIRCLE = 1e-9  # where the circle itself cannot be decided in floats, roots are counted this far out
_ADVICE_MAX_CHANGE = 8  # tokens by which a decode limit may be moved in search of stability
_ADVICE_MAX_CLASSES = 16
_ADVICE_MAX_STAGES = 2_000
_LAW_ERROR = 1e-10  # of weights that are means over the law of a stay, all together
_BELOW_1 = math.nextafter(1, 0)
_MOST_PHASES = 4_000_000  # of an asymptotic input, compared at once
_QUICK = 3  # stays of the longest request

UNCERTIFIED = f"too close to call in floating point, or outputs are longer than {MOST:,} tokens"


class MinStableInput(NamedTuple):
    """Smallest input length from which the equilibrium is stable; None where there is none or it is unproved."""

    exact: int | None  # computed on the survival polynomial
    asymptotic: float | None  # SIC eq. 13, B.8.7: several decode lengths, one input


class Stability(NamedTuple):
    """Local stability of the eviction-free equilibrium: the report's `stability` block."""

    gcd: int
    spectral_radius: float
    radius_certified: bool
    # roots outside the unit circle, by more than 1e-9 where one is on it; None: unproved
    unstable_modes: int | None
    stable: bool
    certified: bool  # `stable` is proved, floating-point rounding included
    recovery_iterations: float | None  # 1/(1 - ρ)
    growth_iterations: float | None  # 1/ln ρ
    min_stable_input_tokens: MinStableInput
    advice: str
    # the smallest one of a decode limit that is proved to make it stable, in words
    stabilising_change: str | None


class Spectrum(NamedTuple):
    """Roots of a survival polynomial against the unit circle."""

    radius: float
    radius_certified: bool
    unstable_modes: int | None
    stable: bool
    certified: bool


def nothing_else_attracts(stages: IntArray, *, stable: bool, certified: bool, radius: float) -> bool:
    """Tell whether a stable equilibrium is all that collapsed states were seen to end in: disturbances die out quickly.

    Within 3·L iterations an e-fold, L those of the longest request. Where they take longer, other attractors exist
    beside some equilibria, and the fluid map is asked (new; observed, not proved).
    """
    return stable and certified and _QUICK * int(stages.max()) * (1 - radius) >= 1


def spectrum(
    w: FloatArray, exact: Callable[[], list[int]] | None = None, *, relative_error: float = 0.0
) -> Spectrum:
    """Spectral radius and stability of Σ_k w_k z^(L-1-k), the weights W_k > 0 within a bound on their relative error.

    `exact` gives integers proportional to them, where a root is too close to the circle for floats (SIC eq. 9, 10;
    float traps: theory §3).

    Examples
    --------
    Lengths 2 and 3, half each, input 1: both roots are exactly on the circle.

    >>> result = spectrum(np.array([2.0, 3.0, 2.0]), lambda: [2, 3, 2])
    >>> result.radius, result.stable, result.certified, result.unstable_modes
    (1.0, False, True, 0)
    """
    root = largest_root(w, relative_error=relative_error)
    outside = count_outside(w, relative_error=relative_error)
    if outside is None:  # a root on the circle, or too close to it: look a little further out
        outside = count_outside(w, 1 + _NEAR_CIRCLE, relative_error=relative_error)
        if not outside:
            stable = all_inside_exact(tuple(exact())) if exact and w.size <= _EXACT_MAX_STAGES else None
            if stable is None:
                return Spectrum(root.modulus, root.certified, None, stable=False, certified=False)
            modulus = min(root.modulus, _BELOW_1) if stable else max(root.modulus, 1.0)
            return Spectrum(modulus, root.certified, outside, stable=stable, certified=True)
    modulus = root.modulus if outside else min(root.modulus, _BELOW_1)
    return Spectrum(modulus, root.certified, outside, stable=outside == 0, certified=True)


def rounding_error(stages: IntArray) -> float:
    """Bound on the relative error of `Weights.survival`: its sums add each row at most twice."""
    return (2 * stages.size + 8) * float(np.finfo(np.float64).eps)


def survival_error(model: ServingModel) -> float:
    """Bound on the relative error of a model's survival weights, all together where they are means over a law."""
    means = model.drafts is not None or _has_laws(model)
    return _LAW_ERROR if means else rounding_error(model.mix.stages)


def _has_laws(model: ServingModel) -> bool:
    """Tell whether laws have more lengths than `mix`, with survival weights by a formula."""
    depend = any(prompt.decode is not None for c in model.classes for prompt in c.kinds)
    return model.is_plain and not depend and any(c.input_law or c.decode_law for c in model.classes)


def survival_weights(model: ServingModel) -> FloatArray:
    """Memory held at each stage by the requests still there, tokens per admission; shape (most stages,).

    Of every length of laws, since fewer leave gaps that the smallest modes feel. Inputs and outputs are independent,
    so a weight is P(n > k) times the mean of a + k tokens in whole pages, which only the residue of a changes.
    """
    mix = model.mix
    if not _has_laws(model):
        return mix.held.survival(mix.share)
    prefill, page = model.replica.prefill, model.replica.block_tokens
    to_full = np.fft.rfft(-np.arange(page) % page)
    weights = np.zeros(int(mix.stages.max()))
    for c in model.classes:
        first = first_tokens(prefill, c.inputs.values)
        residues = np.fft.rfft(np.bincount(first % page, c.inputs.probabilities, page))
        more = np.fft.irfft(residues.conj() * to_full, page)  # to the end of a page, at stages 0, 1, … of one
        present = np.append(np.ones(prompt_stages(prefill)), c.outputs.at_least())
        stage = np.arange(present.size)
        held = c.inputs.probabilities @ first + stage + more[stage % page]
        weights[: present.size] += c.rate_rps / model.total_rate_rps * present * held
    return weights


def exact_survival_weights(model: ServingModel) -> list[int]:
    """Integers proportional to the survival weights, from the decimals written in the profile."""
    shares = model.exact_shares()
    denominator = math.lcm(*(p.denominator for p in shares))
    weights = [0] * int(model.mix.stages.max())
    for held, p in zip(model.mix.held.by_stage(), shares, strict=True):
        count = int(p * denominator)
        for k, tokens in enumerate(held.tolist()):
            weights[k] += count * int(tokens)
    content = math.gcd(*weights)
    return [w // content for w in weights]


def min_stable_input(model: ServingModel) -> MinStableInput:
    """Smallest share-weighted mean input from which on greedy admission is stable, inputs scaled in common.

    With inputs c_i·m of mean m, and pages counted by their mean, the survival polynomial is m·A(z) + B(z). A root can
    cross the unit circle only where Im(B·conj(A)) = 0, at m = -Re(B·conj(A))/|A|²: beyond the largest such m nothing
    crosses any more, and for large inputs all roots are inside when the gcd is 1 (SIC Theorem 3). A root count proves
    the result stable. There is none where the gcd of the iteration counts exceeds 1, or layers keep KV of many kinds.

    References
    ----------
    `exact`: new. `asymptotic`: SIC eq. 13 and B.8.7, for a common input.
    """
    mix = model.mix
    if int(np.gcd.reduce(mix.stages)) > 1 or model.replica.layout is not None:
        return MinStableInput(None, None)
    mean_input = float(mix.share @ mix.input_tokens)
    smallest = 1 if model.replica.prefill is Prefill.INLINE else 0
    # the products first: an input over the mean may be more than a float holds, where it all but never comes
    slope = survival(mix.stages, mix.share * mix.input_tokens / mean_input if mean_input > 0 else mix.share)
    if isinstance(mix.held, TabledWeights):
        constant = mix.held.survival(mix.share) - survival(mix.stages, mix.share * mix.input_tokens)
        return MinStableInput(
            exact=_exact_min_input(slope, constant, smallest, _LAW_ERROR),
            asymptotic=_asymptotic_with_drafts(model),
        )
    half_page = (model.replica.block_tokens - 1) / 2
    offset = mix.held.first - mix.input_tokens + half_page
    constant = survival(mix.stages, mix.share * offset)
    constant = constant + np.arange(constant.size) * survival(mix.stages, mix.share)
    return MinStableInput(
        exact=_exact_min_input(slope, constant, smallest, rounding_error(mix.stages)),
        asymptotic=_asymptotic_min_input(mix.stages, mix.input_tokens, mix.share, smallest),
    )


def _asymptotic_min_input(
    stages: IntArray, inputs: IntArray, share: FloatArray, smallest: int
) -> float | None:
    """2d̄/E_p[φ²], φ_i = d_i·θ - 2π·k_i, least over the angles θ away from 0 at which E_p[φ] = 0, and one input.

    There θ = 2π·E_p[k]/d̄ and φ_i = 2π·Σ_j p_j·(d_i·k_j - k_i·d_j)/d̄, for the whole turns k nearest to d·θ/2π
    anywhere in (0, π]; two lengths give eq. 13. `inline` is the (s-1, d+1) system, hence one token more.
    """
    lengths, position = np.unique(stages, return_inverse=True)
    if lengths.size == 1 or np.ptp(inputs) > 0:
        return None
    turns = int((lengths // 2 + 1).sum())  # in Python's integers, whose products do not wrap
    if turns * lengths.size**2 > _MOST_PHASES:
        return None
    p = sum_by(position, share, lengths.size)
    changes = np.unique(np.concatenate([*((np.arange(d // 2 + 1) + 0.5) / d for d in lengths), [0.5]]))
    changes = changes[changes <= 0.5]
    k = np.rint(((changes[1:] + changes[:-1]) / 2)[:, None] * lengths)
    phases = (lengths[:, None] * k[:, None, :] - k[:, :, None] * lengths) @ p
    return smallest + float(p @ lengths) ** 3 / (2 * math.pi**2 * float((phases**2 @ p).min()))


def _asymptotic_with_drafts(model: ServingModel) -> float | None:
    """Ḡ·d²/(2π²·Var G) for one length (theory §11): a fixed length is a random number of iterations."""
    drafts, lengths = model.drafts, {d for c in model.classes for d in c.decode_tokens}
    if drafts is None or len(lengths) > 1 or drafts.variance == 0:
        return None
    return drafts.mean * float(*lengths) ** 2 / (2 * math.pi**2 * drafts.variance)


def _exact_min_input(
    slope: FloatArray, constant: FloatArray, smallest: int, relative_error: float
) -> int | None:
    """Smallest whole mean input that is proved stable, at or above the last crossing of the unit circle."""
    if slope.size > MOST:
        return None
    start = max(smallest, math.floor(_last_crossing(slope, constant)))
    for mean_input in range(start, start + 3):
        w = mean_input * slope + constant
        if w.min() > 0 and count_outside(w, relative_error=relative_error) == 0:
            return mean_input
    return None


def _last_crossing(slope: FloatArray, constant: FloatArray) -> float:
    """Largest m at which m·A(z) + B(z) has a root on the unit circle; 0 if there is none."""
    a, b = expand_on_circle(slope).taylor, expand_on_circle(constant).taylor
    real_axis = -b[0, -1].real / a[0, -1].real if a[0, -1].real != 0 else 0.0  # z = -1
    side = (b[0] * np.conj(a[0])).imag
    crosses = np.flatnonzero(side[1:-1] * side[:-2] <= 0)
    a, b = a[:, crosses], b[:, crosses]
    falling = np.sign(side[crosses])

    def above(t: FloatArray) -> FloatArray:
        return np.asarray(falling * (_horner(b, t) * np.conj(_horner(a, t))).imag)

    # neighbouring centres are two half widths apart
    low = falling_root(above, np.zeros(crosses.size), np.full(crosses.size, 2.0))
    at_a, at_b = _horner(a, low), _horner(b, low)
    size = np.abs(at_a) ** 2
    crossings = np.divide(-(at_b * np.conj(at_a)).real, size, out=np.zeros(size.size), where=size > 0)
    return float(crossings.max(initial=max(0.0, real_axis)))


def _horner(coefficients: ComplexArray, t: FloatArray) -> ComplexArray:
    value: ComplexArray = coefficients[-1]
    for c in coefficients[-2::-1]:
        value = value * t + c
    return value


def model_spectrum(model: ServingModel) -> Spectrum:
    """`spectrum` of the survival polynomial of a model's mix; a single stage has no roots and is stable."""
    mix, weights = model.mix, survival_weights(model)
    if model.drafts is not None or _has_laws(model):
        return spectrum(weights, relative_error=_LAW_ERROR)
    if never_grows(model):
        return _of_falling(weights, int(np.gcd.reduce(mix.held.drops)), rounding_error(mix.stages))
    error = rounding_error(mix.stages)
    return spectrum(weights, lambda: exact_survival_weights(model), relative_error=error)


def _of_falling(w: FloatArray, gcd: int, relative_error: float) -> Spectrum:
    """Spectrum of weights that never rise, and fall where `gcd` is the greatest common divisor of the stages.

    None is outside the unit circle (Eneström-Kakeya). From (z - 1)P(z), one on it has z^k = 1 at each k where they
    fall: there are gcd - 1, and none but for a common divisor. No root needs to be found for the verdict.
    """
    if gcd > 1:
        return Spectrum(1.0, radius_certified=True, unstable_modes=0, stable=False, certified=True)
    root = largest_root(w, relative_error=relative_error)
    radius = min(root.modulus, _BELOW_1)
    return Spectrum(radius, root.certified, unstable_modes=0, stable=True, certified=True)


def stability(model: ServingModel, *, advised: bool = True) -> Stability:
    """Local stability of the eviction-free equilibrium under greedy admission; what is unproved is uncertified.

    Unless `advised`, no change is looked for that would make the mix stable.

    References
    ----------
    SIC eq. 9-13, Theorem 3; recovery time, certificate and advice new, theory §3.
    """
    every = _with_every_length(model)
    roots, inputs = model_spectrum(model), min_stable_input(every)
    change = _stabilising_change(model) if advised and roots.certified and not roots.stable else None
    return Stability(
        gcd=int(np.gcd.reduce(every.mix.stages)),
        spectral_radius=roots.radius,
        radius_certified=roots.radius_certified,
        unstable_modes=roots.unstable_modes,
        stable=roots.stable,
        certified=roots.certified,
        recovery_iterations=1 / (1 - roots.radius) if roots.stable else None,
        growth_iterations=1 / math.log(roots.radius) if roots.certified and roots.radius > 1 else None,
        min_stable_input_tokens=inputs,
        advice=_advice(roots, inputs, change),
        stabilising_change=change,
    )


def _with_every_length(model: ServingModel) -> ServingModel:
    """Return the model with all decode lengths of its laws, and the mean of inputs, since the two are independent."""
    if not _has_laws(model):
        return model
    laws = [(c, tuple(c.outputs.values.tolist()), tuple(c.outputs.weights.tolist())) for c in model.classes]
    classes = tuple(
        replace(c, decode_tokens=d, decode_weights=w, prompts=(), input_law=None, decode_law=None)
        for c, d, w in laws
    )
    return replace(model, classes=classes)


def _advice(roots: Spectrum, inputs: MinStableInput, change: str | None) -> str:
    if roots.stable:
        return "None needed for small disturbances: the mix of lengths damps them by itself."
    where = "where memory can fill"
    if not roots.certified:
        return f"Cap admissions {where}: stability is {UNCERTIFIED}; the cap is safe either way."
    if change is not None:
        return f"{change}, or cap admissions {where}."
    if inputs.exact is not None:
        tokens = format_tokens(inputs.exact)
        return f"Cap admissions {where}: this mix is stable only from a mean input of {tokens} tokens."
    return f"Cap admissions {where}: no change of a decode limit was found that makes this mix stable."


def _stabilising_change(model: ServingModel) -> str | None:
    """Find the smallest change of one fixed decode limit that is proved to stabilise the mix, in words."""
    classes = model.classes
    fixed = [(i, c.decode_tokens[0]) for i, c in enumerate(classes) if len(c.decode_tokens) == 1]
    too_many = len(fixed) > _ADVICE_MAX_CLASSES or model.mix.stages.max() > _ADVICE_MAX_STAGES
    if len(classes) == 1 or too_many:
        return None
    for size in range(1, _ADVICE_MAX_CHANGE + 1):
        stable = [
            (radius, i, old, new)
            for i, old in fixed
            for new in (old - size, old + size)
            if (radius := _radius_if_stable(model, i, new)) is not None
        ]
        if stable:
            radius, i, old, new = min(stable)
            verb = "Shorten" if new < old else "Lengthen"
            return (
                f"{verb} the decode limit of class {classes[i].name} from {format_tokens(old)} to {format_tokens(new)} "
                f"(spectral radius {format_number(radius, 8)})"
            )
    return None


def _radius_if_stable(model: ServingModel, index: int, decode: int) -> float | None:
    """Spectral radius with another decode limit for one class; None unless it is possible and proved stable."""
    limited = replace(model.classes[index], decode_tokens=(decode,))
    changed = replace(model, classes=(*model.classes[:index], limited, *model.classes[index + 1 :]))
    if decode < 1 or eviction_free_limit(changed) < 1:
        return None
    weights = changed.mix.held.survival(changed.mix.share)
    error = survival_error(changed)
    if count_outside(weights, relative_error=error) != 0:
        return None
    return largest_root(weights, relative_error=error).modulus
