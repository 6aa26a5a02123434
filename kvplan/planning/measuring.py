"""The cheapest benchmark that settles a plan: a closed loop where the objective is expected to end, and there again.

On public sweeps no design does better than a run at the concurrency where the objective ends, a fit, and a run where
the fit has moved that to. How far iterations may be off is the error band of the timing, which `plan` has too. How a
run narrows that is foretold by the belief: by the shares of its times that are each constant's.
"""

import math
from collections.abc import Iterator
from dataclasses import replace
from functools import cached_property
from typing import NamedTuple

import numpy as np

from kvplan.analysis.equilibrium import iteration_time, sustainable_rate
from kvplan.analysis.fleet import one_replica
from kvplan.analysis.worst_window import planned_for
from kvplan.errors import UsageError
from kvplan.ingest.timing.belief import NOISE, ends, misfit, widths
from kvplan.ingest.timing.equations import Kind
from kvplan.ingest.timing.played import Law, foretold, play
from kvplan.ingest.timing.samples import Deployment, Point, Sweep
from kvplan.model import FloatArray, Knowledge, Prefill, Replica
from kvplan.model.fleet import Routing
from kvplan.options import MINUTES, Router
from kvplan.planning.search import Candidate, Setting
from kvplan.profile.reading import Profile
from kvplan.solve import boundary
from kvplan.study.goodput import at_rate
from kvplan.study.trial import Task

_WAVES, _FEWEST = 10, 20  # requests for each in flight, and at least
_ENOUGH = 2  # numbers of replicas that may be left
_NARROWER = 0.8  # times the interval before, that a run must come to
_CLOSE, _IDLE = 0.02, 0.01  # of the rate that is looked for; of what is sustainable
_MOST = 10_000
_CACHED = "only with prompts that a cache holds; a benchmark is of others"

Replicas = tuple[int, int | None]  # None: no number is enough
Ends = tuple[float, float]


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
    """Result of `kvplan measure`.

    Attributes
    ----------
    binding
        Limit of a replica's rate: an objective, or the sustainable rate.
    band
        Factors on the timing's iteration times, four times in five.
    rate_rps, interval_rps
        That rate as it is expected, and within which it is four times in five.
    replicas
        That are possible before any run.
    stopped
        Why no further run is proposed.
    """

    profile: Profile
    binding: str
    band: tuple[float, float]
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
    design = Design(profile)
    before = design.replicas(design.first_band)
    runs: list[Run] = []
    stopped = _enough(before) if design.is_measured or before[0] == before[1] else ""
    for concurrency in () if stopped else design.order(60 * minutes):
        load = design.loop(concurrency)
        used = math.fsum(run.seconds for run in runs)
        if runs and used + design.duration_s(load) > 60 * minutes:
            stopped = f"the {minutes:g} minutes are used up"
            break
        was = design.spread()
        design.expect(concurrency)
        now = design.spread()
        again = concurrency == runs[-1].concurrency if runs else design.is_measured and concurrency > 1
        if again and now > _NARROWER * was:
            stopped = "another run narrows the interval by less than a fifth"
            break
        times, left = design.times(concurrency), design.replicas(design.band())
        seen = times[Kind.TTFT], times[Kind.TPOT]
        size = load.inputs[0], load.outputs[0], load.requests or 0
        runs.append(
            Run(concurrency, *size, design.duration_s(load), *seen, left, design.interval(design.band()))
        )
        if concurrency > 1 and (stopped := _enough(left)):
            break
    stopped = stopped or "the next run is where these have moved the objective to"
    if math.fsum(run.seconds for run in runs) > 60 * minutes:
        stopped += f", and the first run takes more than the {minutes:g} minutes"
    return Measuring(
        profile,
        design.binding,
        design.first_band,
        design.kind.task.rate_rps,
        design.rate_rps,
        design.interval(design.first_band),
        before,
        tuple(runs),
        stopped,
    )


class First(NamedTuple):
    """The runs that are proposed first, the time they take, and the replicas that they leave possible."""

    concurrencies: tuple[int, ...]
    seconds: float
    replicas: Replicas


def first_runs(profile: Profile) -> First:
    """Foretell the runs up to the first where the objectives end; none where `measuring` proposes none.

    Raises
    ------
    UsageError
        Nothing can be settled, or replicas that are enough serve their share only with prompts that a cache holds.
    """
    if iteration_time(one_replica(planned_for(profile.model))) is None:
        raise UsageError(f"{profile.source}: {_CACHED}")
    design, sizes = Design(profile), list[int]()
    before, spread = design.replicas(design.first_band), design.first_spread
    for concurrency in () if design.is_measured and _enough(before) else design.order(60 * MINUTES):
        design.expect(concurrency)
        if design.is_measured and concurrency > 1 and design.spread() > _NARROWER * spread:
            break
        sizes.append(concurrency)
        spread = design.spread()
        if concurrency == design.at:
            break
    seconds = math.fsum(design.duration_s(design.loop(size)) for size in sizes)
    return First(tuple(sizes), seconds, design.replicas(design.band()))


def _enough(left: Replicas) -> str:
    """Say that no run settles more, so few numbers of replicas are left; empty where more are."""
    low, high = left
    if high is None or high - low >= _ENOUGH:
        return ""
    return (
        f"{low:,} to {high:,} replicas are left" if low < high else f"{low:,} is the one number that is left"
    )


class Design:
    """A replica, the rate at which its objectives end, and what is believed of its constants."""

    def __init__(self, profile: Profile) -> None:
        if why := lacks(profile):
            raise UsageError(f"{profile.source}: {why}")
        self.profile, plan, model = profile, profile.plan, profile.model
        routing = None if model.fleet is None else str(model.fleet.routing)
        router = Routing(routing) if routing in (Router.ROUND_ROBIN, Router.LEAST_REQUESTS) else None
        task = Task(planned_for(model), plan, plan.slower, plan.headroom, router=router)
        self.budget = model.replica.of_rank().max_num_batched_tokens
        self.kind = Candidate(profile.name, task, 1.0, self.budget)
        self.model = replace(task.model, fleet=None)
        self.names = [*self.parts(1)]
        self.precision: FloatArray = np.diag(widths(self.names) ** -2.0)
        self.seen: list[float] = []  # ln(concurrency) of runs
        measured = self.model.measured
        known = model.provenance.timing.basis
        self.is_measured = measured.sequences is not None and known != Knowledge.ASSUMED
        if measured.sequences is not None and self.is_measured:
            for sequences in dict.fromkeys(max(round(end), 1) for end in measured.sequences):
                self.expect(sequences)
        self.first_spread = self.spread()
        self.first_band = measured.band or ends(self.first_spread)

    # ------------------------------------------------------------------------------------------------- the rate

    def _task(self, times: float) -> Task:
        plan = self.profile.plan
        task = Task(self.model, plan, plan.slower, times=times)
        task.sustainable_rps(self.budget)  # of every rate that is looked at
        return task

    def _end(self, times: float) -> Ends:
        """Return rates around the end of a replica's objectives, whose iterations take `times` as long."""
        most, task = sustainable_rate(self.model)[1] / times, self._task(times)

        def ends(rate_rps: float) -> bool:
            return not task.at_rate(rate_rps).quick(1, self.budget).passes

        if ends(_IDLE * most):
            return 0.0, _IDLE * most
        return boundary(ends, _IDLE * most, most, close=_CLOSE, geometric=True)

    @cached_property
    def _ends(self) -> tuple[float, str]:
        """Rate of a replica at which its objectives end, and which of them."""
        low, high = self._end(1.0)
        missed = self._task(1.0).at_rate(high).quick(1, self.budget)
        worst = max(missed.decided, key=lambda decision: decision.excess, default=None)
        if low == 0:
            misses = "an objective" if worst is None else worst.key
            raise UsageError(
                f"{self.profile.source}: even an idle replica misses {misses}; no number of replicas is enough"
            )
        if math.isinf(missed.excess) or worst is None:
            return low, sustainable_rate(self.model)[0]
        return low, worst.key

    @property
    def rate_rps(self) -> float:
        return self._ends[0]

    @property
    def binding(self) -> str:
        return self._ends[1]

    # ------------------------------------------------------------------------------------------------- the runs

    @cached_property
    def at(self) -> int:
        """Requests in flight where the objectives end."""
        there = at_rate(self.model, self.rate_rps)
        if (tau := iteration_time(there)) is None:
            raise UsageError(
                f"{self.profile.source}: {self.rate_rps:.4g} requests/s are served where the objectives end, but "
                f"{_CACHED}"
            )
        stay_s = tau * there.mix.mean(there.mix.decode_tokens)
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
        return Point(
            line=1,
            inputs=(prompt, prompt),
            outputs=(answer, answer),
            concurrency=concurrency,
            requests=max(_WAVES * concurrency, _FEWEST),
        )

    @cached_property
    def _law(self) -> tuple[Law, Replica]:
        replica = replace(self.model.replica, prefill=Prefill.FUSED)
        return Law(self.model.timing, self.model.request_overhead_s), replica

    def _sweep(self, load: Point) -> Sweep:
        engine = "" if self.model.engine is None else str(self.model.engine.name)
        return Sweep("", "", Deployment(engine=engine), (load,))

    def times(self, concurrency: int) -> dict[Kind, float]:
        """Foretell a run."""
        return foretold([self._sweep(self.loop(concurrency))], *self._law)[0]

    def parts(self, concurrency: int) -> dict[str, FloatArray]:
        """Foretell what each constant adds to TTFT and TPOT of a run."""
        (timing, overhead_s), replica = self._law
        run = self._sweep(replace(self.loop(concurrency), ttft_s=1.0, tpot_s=1.0))
        rows = play([run], replica, knees=(timing.knee_tokens,), chosen=timing.chosen)
        return rows.parts(timing, overhead_s)

    def shares(self, concurrency: int) -> FloatArray:
        """Shares of TTFT and of TPOT that are each constant's."""
        parts = np.column_stack([*self.parts(concurrency).values()])
        return np.asarray(parts / np.maximum(parts.sum(axis=1, keepdims=True), 1e-300))

    def duration_s(self, load: Point) -> float:
        """Return the time of a run, with a wave to warm up."""
        requests = (load.requests or 0) + (load.concurrency or 1)
        return requests * self.times(load.concurrency or 1)[Kind.INTERVAL]

    def expect(self, concurrency: int) -> None:
        """Take a run as done: its times tell sums of the constants."""
        self.seen.append(math.log(concurrency))
        for share, kind in zip(self.shares(concurrency), (Kind.TTFT, Kind.TPOT), strict=True):
            self.precision = self.precision + np.outer(share, share) / NOISE[kind] ** 2

    def spread(self) -> float:
        """Return the standard deviation of the logarithm of iterations where the objectives end."""
        share = self.shares(self.at)[1]
        variance = float(share @ np.linalg.solve(self.precision, share))
        return math.hypot(math.sqrt(variance), misfit(self.seen, math.log(self.at)))

    def band(self) -> Ends:
        """Return the factors on iteration times, as narrow as runs have made them."""
        low, high = self.first_band
        middle, narrower = math.sqrt(low * high), self.spread() / self.first_spread
        return middle * (low / middle) ** narrower, middle * (high / middle) ** narrower

    def interval(self, band: Ends) -> Ends:
        """Bound a replica's rates: four in five lie between."""
        return self._end(band[1])[0], self._end(band[0])[0]

    def replicas(self, band: Ends) -> Replicas:
        """Replicas at the ends of a band, as `plan` has them."""
        needed = math.ceil(self.kind.task.rate_rps / self.rate_rps)
        low, high = self.kind.between(Setting(needed, self.budget), band).replicas
        return low or 1, high


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
