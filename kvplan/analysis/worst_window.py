"""Rates that vary over time: most arrivals in any window as long as an iteration, and what a peak does.

WAIT and Nested WAIT keep up if no window of an iteration's length, wherever it lies in the schedule, brings as many
requests as a threshold takes (WAIT 7.1; WAIT-s B.1, eq. 10). Windows are those of `kvplan.model.schedule`.
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from kvplan.analysis.equilibrium import sustainable_rate
from kvplan.model import FloatArray, ServingModel

if TYPE_CHECKING:  # profiles without a schedule do without it
    from kvplan.model.schedule import Course

PARTS = 24  # of a period


class Windows(NamedTuple):
    """Streams of requests whose rates vary; arrays of shape (n_streams,)."""

    rate_rps: FloatArray  # that the factors of `courses` multiply
    courses: tuple["Course", ...]

    @property
    def mean_rps(self) -> FloatArray:
        """Rates in the mean over a period; the worst window of any length holds at least as much."""
        return np.asarray(self.rate_rps * [course.mean for course in self.courses])

    @property
    def peak_rps(self) -> FloatArray:
        return np.asarray(self.rate_rps * [course.peak for course in self.courses])

    @property
    def ramp_rps(self) -> FloatArray:
        """Rates that worst windows of at most `ramp_s` have at least, and all but exactly."""
        return np.asarray(self.rate_rps * [course.ramp[0] for course in self.courses])

    @property
    def ramp_s(self) -> float:
        """The length up to which `ramp_rps` holds, seconds."""
        return min(course.ramp[1] for course in self.courses)

    @property
    def vary(self) -> bool:
        return any(course.least < course.peak for course in self.courses)

    @property
    def period_s(self) -> float:
        """Time after which they repeat, seconds."""
        return self.courses[0].period_s

    def most_in(self, length_s: float) -> FloatArray:
        """Most arrivals of each stream in a window of this length, sup_t ∫_t^(t+L) λ_i (WAIT 7.1; WAIT-s eq. 10)."""
        return np.asarray(self.rate_rps * [float(course.most_in(length_s)) for course in self.courses])

    def most_of_one(self, length_s: FloatArray) -> FloatArray:
        """Most arrivals of the first stream in windows of several lengths, of any shape."""
        return np.asarray(self.rate_rps[0] * self.courses[0].most_in(length_s))


def class_windows(model: ServingModel) -> Windows | None:
    """Take the classes of a model for one stream each; None where its rates do not vary."""
    if model.schedule is None:
        return None
    of_one = np.eye(len(model.classes)).tolist()
    courses = tuple(model.schedule.course(weights) for weights in of_one)
    return Windows(np.array([c.rate_rps for c in model.classes]), courses)


def total_windows(model: ServingModel) -> Windows | None:
    """Take all classes of a model together for one stream; None where its rates do not vary."""
    if model.schedule is None:
        return None
    return Windows(np.array([model.total_rate_rps]), (model.schedule.course(_rates(model)),))


def mixes(model: ServingModel) -> list[ServingModel]:
    """Return the model at constant rates for every mix of its schedule; none if the mix does not vary."""
    every_mix = () if model.schedule is None else model.schedule.mixes()
    return [at_factors(model, factors) for factors in every_mix] if len(every_mix) > 1 else []


def at_factors(model: ServingModel, factors: Sequence[float]) -> ServingModel:
    """Return the model with constant rates: times a factor for each class."""
    return at_rates(model, [c.rate_rps * f for c, f in zip(model.classes, factors, strict=True)])


def at_rates(model: ServingModel, rate_rps: Iterable[float]) -> ServingModel:
    """Return the model at constant rates of classes, requests/s."""
    classes = zip(model.classes, rate_rps, strict=True)
    return replace(
        model, classes=tuple(replace(c, rate_rps=float(rate)) for c, rate in classes), schedule=None
    )


def parts(model: ServingModel) -> list[ServingModel | None]:
    """Return the parts of a schedule's period at their mean rates; None where nobody arrives."""
    schedule = model.schedule
    assert schedule is not None
    edges = np.linspace(0.0, schedule.period_s, PARTS + 1)
    courses = [schedule.course(row) for row in np.eye(len(model.classes)).tolist()]
    means = [np.diff(course.integral(edges)) / (schedule.period_s / PARTS) for course in courses]
    return [_part(model, factors) for factors in np.round(means, 9).T.tolist()]


def _part(model: ServingModel, factors: Sequence[float]) -> ServingModel | None:
    some = at_factors(model, factors)
    classes = tuple(c for c in some.classes if c.rate_rps > 0)
    return replace(some, classes=classes) if classes else None


def heaviest(model: ServingModel) -> tuple[int, ServingModel]:
    """Return the part of a period with the most load, by its number from 0, and what arrives then."""
    loads = [(load_of(part), -i, part) for i, part in enumerate(parts(model)) if part is not None]
    _, place, part = max(loads, key=lambda each: each[:2])
    return -place, part


def planned_for(model: ServingModel) -> ServingModel:
    """Return the model of the heaviest part of a schedule; a trace varies by itself."""
    return model if model.schedule is None or model.arrivals.trace is not None else heaviest(model)[1]


def load_of(part: ServingModel) -> float:
    """Return what is offered over what a replica sustains."""
    return part.total_rate_rps / sustainable_rate(replace(part, fleet=None))[1]


def _rates(model: ServingModel) -> list[float]:
    return [c.rate_rps for c in model.classes]


class Peak(NamedTuple):
    """Offered load over a period of the schedule."""

    least_rps: float
    mean_rps: float
    most_rps: float
    offered_rps: float  # when the load is heaviest against what is sustainable for the mix of that time
    sustainable_rps: float
    overloaded_s: float  # of each period in which more is offered than is sustainable
    period_s: float
    course: "Course"  # of the total rate
    same_mix: bool  # only the total varies


def peak(model: ServingModel) -> Peak | None:
    """Say what a schedule offers, and for how long that is too much (new); None where rates do not vary."""
    schedule, total = model.schedule, model.total_rate_rps
    if schedule is None:
        return None
    from kvplan.model.schedule import Steps

    course = schedule.course(_rates(model))
    offered, sustainable = total * course.peak, sustainable_rate(model)[1]
    overloaded = course.time_above(sustainable / total)
    same = len(schedule.mixes()) <= 1
    if isinstance(schedule, Steps) and not same:
        lasts = np.diff(schedule.starts_s, append=schedule.period_s).tolist()
        steps = []
        for factors, seconds in zip(schedule.factors, lasts, strict=True):
            if any(factors):
                step = at_factors(model, factors)
                step = replace(step, classes=tuple(c for c in step.classes if c.rate_rps > 0))
                steps.append((step.total_rate_rps, sustainable_rate(step)[1], seconds))
        overloaded = sum(seconds for rate, limit, seconds in steps if rate > limit)
        offered, sustainable, _ = max(steps, key=lambda step: step[0] / step[1])
    return Peak(
        least_rps=total * course.least,
        mean_rps=total * course.mean,
        most_rps=total * course.peak,
        offered_rps=offered,
        sustainable_rps=sustainable,
        overloaded_s=overloaded,
        period_s=schedule.period_s,
        course=course,
        same_mix=same,
    )
