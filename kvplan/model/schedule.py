"""How rates vary over a period that repeats, such as a day: in steps, or as a sinusoid.

A schedule multiplies the rate of every class by a factor that depends on time. Seen for one class, or for a weighted
mean of several, it is a *course*: one factor over time, whose integral, inverse integral and worst window are exact.
Time is in seconds from the start of a period.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from kvplan.model.arrays import FloatArray

_ULPS = 8  # a sum over a period is rounded by less than so many units in its last place
_RAMP = 1 / 1000  # of a period: so long the worst window of a sinusoid grows all but linearly
_CELLS = 4096
_NEWTON_STEPS = 40


@dataclass(frozen=True)
class StepCourse:
    """A factor that is constant in steps; neighbours differ, but perhaps for the last and the first."""

    period_s: float
    starts_s: FloatArray  # (n_steps,), ascending from 0
    factors: FloatArray  # (n_steps,), at least 0, not all 0

    @cached_property
    def _lasts(self) -> FloatArray:
        return np.diff(self.starts_s, append=self.period_s)

    @cached_property
    def _sums(self) -> FloatArray:
        """Integral from 0 to the start of each step, and to the end of the period."""
        return np.append(0.0, np.cumsum(self._lasts * self.factors))

    @property
    def mean(self) -> float:
        return float(self.factors[0]) if self.factors.size == 1 else float(self._sums[-1]) / self.period_s

    @property
    def peak(self) -> float:
        return float(self.factors.max())

    @property
    def least(self) -> float:
        return float(self.factors.min())

    def time_above(self, factor: float) -> float:
        """Time of a period in which the factor is larger than this one, seconds."""
        return float(self._lasts[self.factors > factor].sum())

    @cached_property
    def ramp(self) -> tuple[float, float]:
        """A factor r and a time D, seconds: the worst window of length L <= D holds at least r·L; here exactly."""
        if self.factors.size == 1:
            return self.peak, math.inf
        lasts = self._lasts.copy()
        if self.factors[0] == self.factors[-1]:
            lasts[[0, -1]] = lasts[0] + lasts[-1]
        return self.peak, float(lasts[self.factors == self.peak].max())

    def integral(self, time_s: FloatArray | float) -> FloatArray:
        """Integral of the factor from 0 to each time, seconds."""
        periods, inside = np.divmod(np.asarray(time_s, dtype=np.float64), self.period_s)
        step = np.searchsorted(self.starts_s, inside, side="right") - 1
        part = self._sums[step] + self.factors[step] * (inside - self.starts_s[step])
        return np.asarray(periods * self._sums[-1] + part)

    def inverse(self, amounts: FloatArray) -> FloatArray:
        """Times at which the integral reaches amounts >= 0; at the end of a time in which the factor is 0."""
        total = float(self._sums[-1])
        periods = np.floor(amounts / total)
        rest = np.clip(amounts - periods * total, 0.0, total)
        step = np.clip(np.searchsorted(self._sums, rest, side="right") - 1, 0, self.factors.size - 1)
        # at a factor of 0, only rounding leaves anything to divide
        slope = np.divide(1.0, self.factors, out=np.zeros(self.factors.size), where=self.factors > 0)
        inside = self.starts_s[step] + np.minimum((rest - self._sums[step]) * slope[step], self._lasts[step])
        return np.asarray(periods * self.period_s + inside)

    def most_in(self, length_s: FloatArray | float) -> FloatArray:
        """Largest integral over any window of each length, seconds; rounded up where it is not a product.

        The integral over a window is piecewise linear in where it starts, so one that starts or ends where a step
        does is the worst (WAIT 7.1, WAIT-s eq. 10; new, theory §6).

        Examples
        --------
        >>> course = StepCourse(10.0, np.array([0.0, 4.0]), np.array([1.0, 3.0]))
        >>> course.most_in(np.array([5.0, 8.0, 16.0])).round(9).tolist()
        [15.0, 20.0, 40.0]
        """
        length = np.asarray(length_s, dtype=np.float64)
        factor, lasts = self.ramp
        if (length <= lasts).all():
            return np.asarray(factor * length)
        total = float(self._sums[-1])
        periods, rest = np.divmod(length, self.period_s)
        starts = np.concatenate([self.starts_s, self.starts_s + self.period_s])
        sums = np.concatenate([self._sums[:-1], self._sums[:-1] + total])
        factors = np.tile(self.factors, 2)
        # one column for each step; differences of starts first: nothing of a short window is lost in a long period
        rest, begin, done = rest[..., None], self.starts_s, self._sums[:-1]
        after = np.searchsorted(starts, begin + rest, side="right") - 1
        forward = (sums[after] - done) + factors[after] * ((begin - starts[after]) + rest)
        end = begin + self.period_s
        before = np.searchsorted(starts, end - rest, side="right") - 1
        backward = ((done + total) - sums[before]) - factors[before] * ((end - starts[before]) - rest)
        most = np.maximum(forward, backward).max(axis=-1)
        rounding = _ULPS * math.ulp(total) * (periods + 1)
        return np.asarray(np.where(length <= lasts, factor * length, periods * total + most + rounding))


@dataclass(frozen=True)
class Sinusoid:
    """One factor for all classes, 1 + amplitude·cos(2π(t - peak_s)/period_s): rates are those of the mean."""

    period_s: float
    amplitude: float  # 0 to 1
    peak_s: float  # time of the largest factor

    def course(self, weights: Sequence[float]) -> "Sinusoid":
        """Mean factor of the classes, however weighted: this one."""
        return self

    def later(self, seconds: float) -> "Sinusoid":
        """Shift it to be seen from so much later on."""
        return replace(self, peak_s=(self.peak_s - seconds) % self.period_s)

    def mixes(self) -> tuple[tuple[float, ...], ...]:
        """Factors of the classes in proportion: none that differ."""
        return ()

    @property
    def mean(self) -> float:
        return 1.0

    @property
    def peak(self) -> float:
        return 1.0 + self.amplitude

    @property
    def least(self) -> float:
        return 1.0 - self.amplitude

    def time_above(self, factor: float) -> float:
        """Time of a period in which the factor is larger than this one, seconds."""
        if not self.least <= factor < self.peak:
            return self.period_s if factor < self.least else 0.0
        return self.period_s / math.pi * math.acos((factor - 1) / self.amplitude)

    @cached_property
    def ramp(self) -> tuple[float, float]:
        """A factor r and a time D, seconds: the worst window of length L <= D holds at least r·L, and little more."""
        if self.amplitude == 0:
            return 1.0, math.inf
        length = self.period_s * _RAMP
        return float(self.most_in(length)) / length * (1 - 1e-12), length

    def integral(self, time_s: FloatArray | float) -> FloatArray:
        """Integral of the factor from 0 to each time, seconds."""
        periods, inside = np.divmod(np.asarray(time_s, dtype=np.float64), self.period_s)
        return np.asarray(periods * self.period_s + self._within(inside))

    def _within(self, time_s: FloatArray) -> FloatArray:
        turn = 2 * math.pi / self.period_s
        waves = np.sin(turn * (time_s - self.peak_s)) + math.sin(turn * self.peak_s)
        return np.asarray(time_s + self.amplitude / turn * waves)

    def inverse(self, amounts: FloatArray) -> FloatArray:
        """Times at which the integral reaches amounts >= 0, by Newton's method from a table."""
        periods = np.floor(amounts / self.period_s)
        rest = amounts - periods * self.period_s
        table = np.linspace(0.0, self.period_s, _CELLS + 1)
        sums = np.maximum.accumulate(self._within(table))
        cell = np.clip(np.searchsorted(sums, rest, side="right") - 1, 0, _CELLS - 1)
        low, high = table[cell], table[cell + 1]
        time = np.clip(np.interp(rest, sums, table), low, high)
        turn = 2 * math.pi / self.period_s
        for _ in range(_NEWTON_STEPS):
            slope = 1 + self.amplitude * np.cos(turn * (time - self.peak_s))
            step = (self._within(time) - rest) / np.maximum(slope, 1e-9)
            time = np.clip(time - step, low, high)
            if (np.abs(step) <= 4 * math.ulp(self.period_s)).all():
                break
        return np.asarray(periods * self.period_s + time)

    def most_in(self, length_s: FloatArray | float) -> FloatArray:
        """Largest integral over any window of each length: L + (aP/π)·\\|sin(πL/P)\\|.

        The worst window is centred on the peak; what is more than whole periods, that is, which hold a period each
        (WAIT 7.1, WAIT-s eq. 10; new, theory §6).

        Examples
        --------
        >>> Sinusoid(24.0, 0.5, 12.0).most_in(np.array([24.0, 36.0])).round(3).tolist()
        [24.0, 39.82]
        """
        length = np.asarray(length_s, dtype=np.float64)
        waves = np.abs(np.sin(math.pi * np.fmod(length / self.period_s, 1.0)))
        return np.asarray(length + self.amplitude * self.period_s / math.pi * waves)


@dataclass(frozen=True, slots=True)
class Steps:
    """Factors that hold from one time to the next."""

    period_s: float
    starts_s: tuple[float, ...]  # ascending from 0
    factors: tuple[tuple[float, ...], ...]  # by step and class; no class has 0 in every step

    def course(self, weights: Sequence[float]) -> StepCourse:
        """Mean factor of the classes, so weighted.

        Examples
        --------
        >>> some = Steps(24.0, (0.0, 8.0, 9.0), ((1.0, 1.0), (2.0, 1.0), (2.0, 1.0)))
        >>> some.course([3, 1]).starts_s.tolist(), some.course([3, 1]).factors.tolist()
        ([0.0, 8.0], [1.0, 1.75])
        """
        table = np.array(self.factors)
        shares = np.array(weights, dtype=np.float64) / math.fsum(weights)
        # exact where the classes agree: nothing of a factor is lost in shares that sum to almost 1
        factors = table[:, 0] + (table - table[:, :1]) @ shares
        kept = np.append(True, np.diff(factors) != 0)
        return StepCourse(self.period_s, np.array(self.starts_s)[kept], factors[kept])

    def later(self, seconds: float) -> "Steps":
        """Shift them to be seen from so much later on.

        >>> Steps(24.0, (0.0, 8.0), ((1.0,), (2.0,))).later(6.0)
        Steps(period_s=24.0, starts_s=(0.0, 2.0, 18.0), factors=((1.0,), (2.0,), (1.0,)))
        """
        seconds %= self.period_s
        rows = zip(self.starts_s, self.factors, strict=True)
        steps = {(start - seconds) % self.period_s: row for start, row in rows}
        now = max(start for start in self.starts_s if start <= seconds)
        steps[0.0] = self.factors[self.starts_s.index(now)]
        return Steps(self.period_s, tuple(sorted(steps)), tuple(steps[start] for start in sorted(steps)))

    def mixes(self) -> tuple[tuple[float, ...], ...]:
        """Factors of the classes in proportion, where anybody arrives: each mix once; one where classes agree."""
        return tuple(dict.fromkeys(tuple(f / max(row) for f in row) for row in self.factors if max(row) > 0))


Course = StepCourse | Sinusoid
Schedule = Steps | Sinusoid
