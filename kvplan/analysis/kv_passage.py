"""Probability of any overflow within a horizon: the passage of KV usage over a level (theory §7).

Overflowing iterations come in clumps, and clumps in clumps, so neither the sum over iterations nor crossings of the
level say how likely any is. Usage in normal scores is taken for an Ornstein-Uhlenbeck process, whose mean passage time
is known; its speed is such that usage changes as much as it does over the time that an excursion lasts.
"""

import math
from dataclasses import replace
from functools import cache
from typing import NamedTuple

import numpy as np

from kvplan.analysis.dispersion import excess_dispersion
from kvplan.analysis.equilibrium import iteration_time, tangent
from kvplan.analysis.kv_cumulants import alike_in_both, first_read
from kvplan.analysis.roots import ComplexArray
from kvplan.model import FloatArray, IntArray, ServingModel, StageWeights, TabledWeights, sum_by

_FACTOR = 1.15  # fitted, of the rate of passages; theory §7
_STAGES = 2000  # transformed at once
_SCORE = 3.0  # an excursion above it lasts 1/(c·score²) iterations, over which the speed is taken
_LONGEST_LAG = 10**9
_LOWEST, _HIGHEST, _STEPS_A_SCORE = -8, 37, 128  # normal scores tabulated; above the highest is 6e-300
_FREQUENCIES = 768
_CROWDING = 4  # power by which frequencies crowd towards 0, so that stays of 1e5 iterations are resolved


def passage_speed(model: ServingModel, std: float) -> float:
    """Return c of `passage`: the share of its variance, `std`², by which KV usage changes per iteration; Λ < 1.

    Changes are taken over the time that an excursion above three standard deviations lasts. Over a single iteration
    they are up to half of that per iteration where there is feedback: whom a long iteration lets in comes after it.

    References
    ----------
    New: theory §7 with the lag 1/(9c) in place of a single iteration, c = E(K_{t+m} - K_t)²/(2m·Var K).
    """
    changes = usage_changes(model)
    lag, speed = 1, 0.0
    for _ in range(3):
        speed = changes.squared(lag) / lag / std / std / 2
        lag = max(1, round(min(1 / (speed * _SCORE**2), _LONGEST_LAG)))
    return speed


class UsageChanges(NamedTuple):
    """How much KV usage changes from one iteration to later ones, its feedback included.

    `caused` is what feedback and clusters of arrivals add to the spectrum of usage over τ*, tokens²/s, weighted for a
    sum over the frequencies (radians per iteration); empty where neither is there. `spread` is the variance of usage
    over what it would be if arrivals were Poisson.
    """

    model: ServingModel
    frequency: FloatArray = np.empty(0)
    caused: FloatArray = np.empty(0)
    spread: float = 1.0

    def squared(self, lag: int) -> float:
        """E(K_{t+lag} - K_t)² of KV usage K, tokens²; between first and last weights pages come at an even pace."""
        mix, tau = self.model.mix, iteration_time(self.model)
        assert tau is not None
        caused = float((self.caused * 4 * np.sin(lag * self.frequency / 2) ** 2).sum())
        return tau * (float(mix.rate_rps @ _squared_changes(mix.held, lag)) + caused)


def _squared_changes(held: StageWeights, lag: int) -> FloatArray:
    """Σ_k (w(k + lag) - w(k))² of each row, w = 0 before the first stage and after the last; shape (n_rows,)."""
    if isinstance(held, TabledWeights):
        again = [float(w[lag:] @ w[: w.size - lag]) if lag < w.size else 0.0 for w in held.by_stage()]
        return np.asarray(2 * (held.squares - np.array(again)))
    page = held.block_tokens
    first = np.minimum(lag, held.stages)
    rest = held.stages - first
    taken = lag * (held.at_end - held.at_start) / page / np.maximum(held.stages - 1, 1)
    whole = np.floor(taken)
    between = page**2 * (whole**2 + (2 * whole + 1) * (taken - whole))
    alone = replace(held, stages=first).squares + held.squares - replace(held, stages=rest).squares
    return np.asarray(alone + rest * between)


def usage_changes(model: ServingModel) -> UsageChanges:
    """Lay out the changes of KV usage of a model with Λ < 1; requests of like first weight and length are one.

    Prompts longer than the token budget count from their last part on.

    References
    ----------
    New, theory §7: the spectrum Σ λ_i·τ*·|W_i + G·V_i/(1 - H)|² less Σ λ_i·τ*·|W_i|²; §9 step 7 where arrivals cluster:
    (I - 1)·τ*/λ·|Σ λ_i·W_i/(1 - H)|² more, I the index of dispersion over a stay.
    """
    clusters = excess_dispersion(model)
    mix, law = model.mix, tangent(model)
    prefill_s = law.prefill_s(mix.prefill_tokens, mix.prefill_pairs)
    if law.per_kv_token_s == law.per_sequence_s == 0 and not prefill_s.any() and clusters == 0:
        return UsageChanges(model)
    stages, read = mix.stages.astype(np.float64), first_read(mix.read)
    group = alike_in_both(read, stages, mix.rate_rps / mix.rate_rps.max() * stages)
    rate = sum_by(group, mix.rate_rps)
    means = (sum_by(group, mix.rate_rps * amount) / rate for amount in (stages, read, prefill_s))
    n, first, prefill = (mean[:, None] for mean in means)
    middle = (np.arange(_FREQUENCIES) + 0.5) / _FREQUENCIES
    frequency = math.pi * middle**_CROWDING
    share = _CROWDING * middle ** (_CROWDING - 1) / _FREQUENCIES

    # transforms: a stage each, k at stage k, time added, pages taken after the first ones, memory held
    z, over = np.exp(-1j * frequency), np.exp(-1j * frequency * n)
    present = (1 - over) / (1 - z)
    grown = (present - 1 - (n - 1) * over) / (1 - z)
    work = (law.per_kv_token_s * first + law.per_sequence_s) * present + law.per_kv_token_s * grown + prefill
    held = _transform(mix.held, group, mix.rate_rps, first, n, frequency)

    rates = rate[:, None]
    together = (rates * held).sum(axis=0) / (1 - z * (rates * work).sum(axis=0))
    caused = z * together * work
    added = 2 * (held.conj() * caused).real + np.abs(caused) ** 2
    by_feedback = share * (rates * added).sum(axis=0)
    by_clusters = share * clusters / float(rate.sum()) * np.abs(together) ** 2
    alone = float(mix.rate_rps @ mix.held.squares) + float(by_feedback.sum())
    return UsageChanges(model, frequency, by_feedback + by_clusters, 1 + float(by_clusters.sum()) / alone)


def _transform(
    held: StageWeights,
    group: IntArray,
    rate: FloatArray,
    first: FloatArray,
    stages: FloatArray,
    frequency: FloatArray,
) -> ComplexArray:
    """Σ_k w(k)·exp(-i·frequency·k) of memory held, means over groups; shape (n_groups, n_frequencies)."""
    total = sum_by(group, rate)
    if isinstance(held, TabledWeights):
        mean = [held.survival(np.where(group == g, rate, 0.0) / total[g]) for g in range(total.size)]
        turns = np.exp(-1j * np.outer(np.arange(min(_STAGES, mean[0].size)), frequency))
        transform = np.zeros((total.size, frequency.size), dtype=np.complex128)
        for k in range(0, mean[0].size, _STAGES):
            some = np.array([w[k : k + _STAGES] for w in mean])
            transform += some @ turns[: some.shape[1]] * np.exp(-1j * frequency * k)
        return transform
    start, end = ((sum_by(group, rate * amount) / total)[:, None] for amount in (held.at_start, held.at_end))
    page, z, over = held.block_tokens, np.exp(-1j * frequency), np.exp(-1j * frequency * stages)
    present = (1 - over) / (1 - z)
    first_taken = np.exp(-1j * frequency * np.minimum(start - first + 1, stages))
    all_taken = first_taken * (1 - np.exp(-1j * frequency * (end - start))) / (1 - z**page)
    return np.asarray(start * present + page * (all_taken - (end - start) / page * over) / (1 - z))


class Passage(NamedTuple):
    """Probabilities of any overflow in a horizon, for ascending levels: logarithms, of shape (n_levels,), falling."""

    log_exceeded: FloatArray  # of P(KV > M) in an iteration
    log_any: FloatArray  # of the probability of any overflow

    def any_overflow(self, log_exceeded: float) -> float:
        """Probability of any overflow of a level that is exceeded with a probability, given by its logarithm."""
        beyond = min(log_exceeded - float(self.log_exceeded[-1]), 0.0)
        any_overflow = math.exp(float(np.interp(-log_exceeded, -self.log_exceeded, self.log_any)) + beyond)
        return max(any_overflow, math.exp(log_exceeded))

    def log_allowed(self, probability: float) -> float:
        """Logarithm of P(KV > M) with which any overflow has a probability, above 0 and at most 1."""
        log_any = math.log(probability)
        beyond = min(log_any - float(self.log_any[-1]), 0.0)
        return float(np.interp(-log_any, -self.log_any, self.log_exceeded)) + beyond


def passage(speed: float, iterations: float) -> Passage:
    """Probability of any overflow within at least one iteration, for every level, at the speed c of `passage_speed`.

    References
    ----------
    New, theory §7: u = Φ⁻¹(1 - P), T(u) = (1/c)∫_{-∞}^u Φ²/φ dy, rate = min(P, 1.15·(1 - P)/T(u)), and 1 - (1 -
    P)·exp(-(N - 1)·rate): the first iteration overflows, or one of those after it.
    """
    log_exceeded, log_below, log_time = _normal_passage()
    log_speed = math.log(_FACTOR * speed) if speed > 0 else -math.inf  # else the usage hardly ever changes
    log_rate = np.minimum(log_exceeded, log_speed + log_below - log_time)
    log_spared = log_below - (iterations - 1) * np.exp(log_rate)
    return Passage(log_exceeded, np.log(-np.expm1(log_spared)))


@cache
def _normal_passage() -> tuple[FloatArray, FloatArray, FloatArray]:
    """Logarithms of 1 - Φ, Φ and c·T, by normal score."""
    score = np.arange(_LOWEST * _STEPS_A_SCORE, _HIGHEST * _STEPS_A_SCORE + 1) / _STEPS_A_SCORE
    half = [math.erfc(u / math.sqrt(2)) / 2 for u in score.tolist()]
    log_above, log_below = np.log(half), np.log1p(np.negative(half))
    log_density = -(score**2) / 2 - math.log(2 * math.pi) / 2
    log_integrand = 2 * log_below - log_density
    pieces = np.logaddexp(log_integrand[1:], log_integrand[:-1]) - math.log(2 * _STEPS_A_SCORE)
    # far below, Φ²/φ is φ/y²
    start = log_density[0] - 3 * math.log(-_LOWEST)
    return log_above, log_below, np.logaddexp.accumulate(np.append(start, pieces))
