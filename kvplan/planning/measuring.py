"""The cheapest benchmark that settles a plan: a closed loop where the objective is expected to end, and there again.

On public sweeps no design does better than a run at the concurrency where the objective ends, a fit, and a run where
the fit has moved that to. What a run tells is foretold by the belief: the slopes of its times in the constants, each of
which is off by a factor of its own. The rate at which the objective ends is followed to first order in the factors.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cached_property
from typing import NamedTuple

import numpy as np

from kvplan.analysis.equilibrium import iteration_time, sustainable_rate
from kvplan.analysis.worst_window import planned_for
from kvplan.errors import UsageError
from kvplan.ingest.timing.belief import NOISE, OVERHEAD_SPREAD, SPREAD
from kvplan.ingest.timing.equations import Kind
from kvplan.ingest.timing.played import Law, foretold
from kvplan.ingest.timing.samples import Deployment, Point, Sweep
from kvplan.model import FloatArray, Knowledge, Prefill, ServingModel
from kvplan.profile.reading import Profile
from kvplan.solve import boundary
from kvplan.study.goodput import at_rate
from kvplan.study.trial import Quick, Task

MISFIT = 0.116  # of ln(rate), that no constants of the law mend
_FADES = math.log(4)  # distance in ln(concurrency) over which a run's misfit is another's by half and more
_TEN = 1.2816  # standard deviations to the quantile .1 of a normal distribution
_STEP = 0.05  # of ln(constant), to see what a rate does
_WAVES, _FEWEST = 10, 20  # requests for each in flight, and at least
_ENOUGH = 2  # numbers of replicas that may be left
_NARROWER = 0.8  # times the interval before, that a run must come to
_CLOSE, _IDLE = 0.02, 0.01  # of the rate that is looked for; of what is sustainable
_STEEP = 0.2  # of ln(iteration time) by ln(rate), at least: below, the objective is hardly one of load
_MOST = 10_000
_CONSTANTS = ("d0", "d1", "d2", "d3", "d4", "d5", "d6", "experts")

Replicas = tuple[int, int]


class Run(NamedTuple):
    """A closed loop of equal requests, what is expected of it, and the replicas that are left possible after it."""

    concurrency: int
    input: int
    output: int
    prompts: int
    seconds: float
    ttft_s: float
    tpot_s: float
    replicas: Replicas
    rate_rps: tuple[float, float]  # of a replica, where the objectives end


class Measuring(NamedTuple):
    """What `kvplan measure` says.

    Attributes
    ----------
    binding
        What ends the rate of a replica: an objective, or the limit of what is sustainable.
    rate_rps, interval_rps
        That rate as it is expected, and within which it is four times in five.
    replicas
        That are possible before any run.
    stopped
        Why no further run is proposed.
    """

    profile: Profile
    binding: str
    demand_rps: float
    rate_rps: float
    interval_rps: tuple[float, float]
    replicas: Replicas
    runs: tuple[Run, ...]
    stopped: str

    @property
    def seconds(self) -> float:
        """Time of all runs."""
        return math.fsum(run.seconds for run in self.runs)


def measuring(profile: Profile, minutes: float) -> Measuring:
    """Propose the runs that settle how many replicas a profile's objectives take.

    Raises
    ------
    UsageError
        The profile has no traffic, timing or objective, or nothing that a run would settle.
    """
    if not 0 < minutes < math.inf:
        raise UsageError(f"--minutes {minutes:g}: more than 0")
    design = _Design(profile)
    before = design.replicas(design.spread())
    if before[0] == before[1]:
        number = f"{before[0]:,} {'replica' if before[0] == 1 else 'replicas'}"
        raise UsageError(
            f"{profile.source}: nothing to settle: {number}, wherever the speed is in its interval"
        )
    runs: list[Run] = []
    stopped = ""
    for concurrency in design.order(60 * minutes):
        load = design.loop(concurrency)
        used = math.fsum(run.seconds for run in runs)
        if runs and used + design.duration_s(load) > 60 * minutes:
            stopped = f"the {minutes:g} minutes are used up"
            break
        was = design.spread()
        design.expect(concurrency)
        now = design.spread()
        if runs and concurrency == runs[-1].concurrency and now > _NARROWER * was:
            stopped = "another run narrows the interval by less than a fifth"
            break
        times, left = design.times(concurrency), design.replicas(now)
        seen = times[Kind.TTFT], times[Kind.TPOT]
        size = load.inputs[0], load.outputs[0], load.requests or 0
        runs.append(Run(concurrency, *size, design.duration_s(load), *seen, left, design.interval(now)))
        if concurrency > 1 and left[1] - left[0] < _ENOUGH:
            stopped = "at most two numbers are left" if left[0] < left[1] else "one number is left"
            break
    return Measuring(
        profile,
        design.binding,
        design.demand_rps,
        design.rate_rps,
        design.interval(design.first_spread),
        before,
        tuple(runs),
        stopped or "the next run is where these have moved the objective to",
    )


class _Design:
    """A replica, the rate at which its objectives end, and what is believed of its constants."""

    def __init__(self, profile: Profile) -> None:
        if why := lacks(profile):
            raise UsageError(f"{profile.source}: {why}")
        self.profile = profile
        self.model = replace(planned_for(profile.model), fleet=None)
        self.demand_rps = self.model.total_rate_rps * (1 + profile.plan.headroom)
        timing = self.model.timing
        self.names = [name for name in _CONSTANTS if getattr(timing, name) > 0]
        self.names += ["request_overhead"] if self.model.request_overhead_s > 0 else []
        spread = [OVERHEAD_SPREAD if name == "request_overhead" else SPREAD for name in self.names]
        self.precision: FloatArray = np.diag(np.array(spread) ** -2.0)
        self.seen: list[float] = []  # ln(concurrency) of runs
        measured = self.model.measured
        if measured.sequences is not None and self.profile.model.provenance.timing.basis != Knowledge.ASSUMED:
            for sequences in dict.fromkeys(max(round(end), 1) for end in measured.sequences):
                self.expect(sequences)
        self.first_spread = self.spread()

    # ------------------------------------------------------------------------------------------------- the rate

    @cached_property
    def _ends(self) -> tuple[float, str]:
        """The rate of a replica at which its objectives end, and which of them."""
        budget = self.model.replica.of_rank().max_num_batched_tokens

        def looked(rate_rps: float) -> Quick:
            return Task(at_rate(self.model, rate_rps), self.profile.plan, self.profile.plan.slower).quick(
                1, budget
            )

        limit, most = sustainable_rate(self.model)
        low = _IDLE * most
        if not (idle := looked(low)).passes:
            worst = max(idle.decided, key=lambda decision: decision.excess, default=None)
            misses = "an objective" if worst is None else worst.key
            raise UsageError(
                f"{self.profile.source}: even an idle replica misses {misses}; no number of replicas is enough"
            )
        low, high = boundary(lambda rate: not looked(rate).passes, low, most, close=_CLOSE, geometric=True)
        missed = looked(high)
        if math.isinf(missed.excess) or not missed.decided:
            return low, limit
        return low, max(missed.decided, key=lambda decision: decision.excess).key

    @property
    def rate_rps(self) -> float:
        return self._ends[0]

    @property
    def binding(self) -> str:
        return self._ends[1]

    @cached_property
    def slopes(self) -> FloatArray:
        """By how much the logarithm of the rate changes with that of each constant."""
        at_end = at_rate(self.model, self.rate_rps)
        if self.binding.partition(".")[0] not in ("itl_s", "tpot_s", "e2e_s"):
            return self._changes(at_end, lambda model: math.log(sustainable_rate(model)[1]))
        # the rate is that at which iterations take as long as they do where the objective ends
        faster = self._log_time(at_rate(self.model, self.rate_rps * math.exp(-_STEP)))
        in_rate = max((self._log_time(at_end) - faster) / _STEP, _STEEP)
        return -self._changes(at_end, self._log_time) / in_rate

    def _log_time(self, model: ServingModel) -> float:
        if (tau := iteration_time(model)) is None:
            raise UsageError(
                f"{self.profile.source}: no equilibrium at {model.total_rate_rps:.4g} requests/s"
            )
        return math.log(tau)

    def _changes(self, model: ServingModel, figure: Callable[[ServingModel], float]) -> FloatArray:
        """Differences below the constants as they are, where a state surely exists."""
        less = math.exp(-_STEP)

        def changed(name: str) -> ServingModel:
            if name == "request_overhead":
                return model
            return replace(model, timing=replace(model.timing, **{name: getattr(model.timing, name) * less}))

        here = figure(model)
        return np.array([(here - figure(changed(name))) / _STEP for name in self.names])

    # ------------------------------------------------------------------------------------------------- the runs

    @cached_property
    def at(self) -> int:
        """Requests in flight where the objectives end."""
        there = at_rate(self.model, self.rate_rps)
        stay_s = math.exp(self._log_time(there)) * there.mix.mean(there.mix.decode_tokens)
        return int(max(min(round(self.rate_rps * stay_s), there.replica.max_num_seqs or _MOST), 1))

    def order(self, within_s: float) -> Iterator[int]:
        """Concurrencies of the runs: the lowest where there is time for both, and twice where the objective ends."""
        both = sum(self.duration_s(self.loop(size)) for size in (1, self.at))
        if self.at > 1 and 0.0 not in self.seen and both <= within_s:
            yield 1
        yield self.at
        yield self.at

    def loop(self, concurrency: int) -> Point:
        """Equal requests of the mean lengths; ten for each in flight hold the standard error below 3 %."""
        mix = self.model.mix
        prompt, answer = (max(round(mix.mean(each)), 1) for each in (mix.input_tokens, mix.decode_tokens))
        prompts = max(_WAVES * concurrency, _FEWEST)
        return Point(
            line=1,
            inputs=(prompt, prompt),
            outputs=(answer, answer),
            concurrency=concurrency,
            requests=prompts,
        )

    def times(self, concurrency: int, name: str = "") -> dict[Kind, float]:
        """Foretell a run; with a name, where that constant is twice as large."""
        timing, overhead = self.model.timing, self.model.request_overhead_s
        if name == "request_overhead":
            overhead *= 2
        elif name:
            timing = replace(timing, **{name: 2 * getattr(timing, name)})
        engine = "" if self.model.engine is None else str(self.model.engine.name)
        sweep = Sweep("", "", Deployment(engine=engine), (self.loop(concurrency),))
        return foretold([sweep], Law(timing, overhead), replace(self.model.replica, prefill=Prefill.FUSED))[0]

    def duration_s(self, load: Point) -> float:
        """How long a run takes, with a wave to warm up."""
        requests = (load.requests or 0) + (load.concurrency or 1)
        return requests * self.times(load.concurrency or 1)[Kind.INTERVAL]

    def expect(self, concurrency: int) -> None:
        """Take a run as done: its times tell sums of the constants."""
        here, apart = self.times(concurrency), [self.times(concurrency, name) for name in self.names]
        self.seen.append(math.log(concurrency))
        for kind, noise in NOISE.items():
            if here[kind] > 0:
                share = np.array([more[kind] / here[kind] - 1 for more in apart])
                self.precision = self.precision + np.outer(share, share) / noise**2

    def spread(self) -> float:
        """Return the standard deviation of the logarithm of the rate."""
        variance = float(self.slopes @ np.linalg.solve(self.precision, self.slopes))
        alike = max((math.exp(-abs(math.log(self.at) - seen) / _FADES) for seen in self.seen), default=0.0)
        return math.sqrt(variance + MISFIT**2 * (1 - alike**2))

    def interval(self, spread: float) -> tuple[float, float]:
        """Rates between which four in five lie."""
        return self.rate_rps * math.exp(-_TEN * spread), self.rate_rps * math.exp(_TEN * spread)

    def replicas(self, spread: float) -> Replicas:
        """Replicas at the ends of the interval."""
        low, high = self.interval(spread)
        return math.ceil(self.demand_rps / high - 1e-9), math.ceil(self.demand_rps / low - 1e-9)


def lacks(profile: Profile) -> str:
    """Say why nothing can be settled; empty where something may be."""
    model, known = profile.model, profile.model.provenance.timing
    split = model.fleet is not None and model.fleet.is_split
    if not profile.plan.slos:
        return "no objective to settle; give one, such as --slo tpot-mean=40ms"
    if known.basis == Knowledge.MEASURED:
        return f"nothing to settle: the speed is measured ({known.source})"
    if model.replica.ranks > 1 or split or model.replica.prefill is not Prefill.FUSED:
        return "times of several ranks together, or of prefill apart, are not fitted to loads"
    return ""
