"""A study: policies side by side on the same arrivals, some seeds each, and what they add up to."""

import math
import os
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from dataclasses import fields, is_dataclass, replace
from enum import StrEnum
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from kvplan.analysis.equilibrium import saturation
from kvplan.errors import UsageError
from kvplan.model import Plan, ServingModel
from kvplan.simulation import engine
from kvplan.simulation.metrics import PolicyResult, policy_result
from kvplan.simulation.outcome import Ending, Outcome
from kvplan.simulation.policies import POLICIES
from kvplan.simulation.policies.protocol import Policy, Scenario, Settings
from kvplan.simulation.requests import Requests, burst, closed, poisson, renewal, saturated

MAX_REQUESTS = 10**8
DEFAULT_REQUESTS = 10_000
DEFAULT_CV = 3.0
DEFAULT_CLIENTS = 128
DEFAULT_BURST = (1.5, 0.5, 60.0, 60.0)  # keeps the mean rate
_LOOK_S = 0.2  # between two reports of progress


class Arrivals(StrEnum):
    """How requests arrive."""

    POISSON = "poisson"
    GAMMA = "gamma"
    BURST = "burst"
    SATURATED = "saturated"
    CLOSED = "closed"


class Load(NamedTuple):
    """The requests of a study.

    Attributes
    ----------
    kind : Arrivals
    requests : int or None
        How many; None: as many as come before the horizon.
    horizon_s : float or None
        Where the clock stops, seconds.
    cv : float
        Coefficient of variation of gamma gaps.
    concurrency : int
        Clients of a closed loop.
    burst : tuple of float
        Factors of the rates while on and off, and the seconds of each.
    trace : Requests or None
        Recorded requests instead of all that.
    """

    kind: Arrivals = Arrivals.POISSON
    requests: int | None = DEFAULT_REQUESTS
    horizon_s: float | None = None
    cv: float = DEFAULT_CV
    concurrency: int = DEFAULT_CLIENTS
    burst: tuple[float, float, float, float] = DEFAULT_BURST
    trace: Requests | None = None


class Study(NamedTuple):
    """What a study found.

    Attributes
    ----------
    load : Load
    requests : int
        In a run of the first seed.
    seeds : tuple of int
        Those that the figures are of: all of them unless interrupted.
    results : tuple of PolicyResult
    first : tuple of Outcome
        Of the first seed, one for each policy.
    missing : tuple of str
        Policies that had not begun when the study was interrupted.
    interrupted : bool
    scheduled : bool or None
        Whether arrivals follow the schedule of the profile; None where it has none.
    """

    load: Load
    requests: int
    seeds: tuple[int, ...]
    results: tuple[PolicyResult, ...]
    first: tuple[Outcome, ...]
    missing: tuple[str, ...]
    interrupted: bool
    scheduled: bool | None = None

    @property
    def cut_short(self) -> tuple[str, ...]:
        """Policies whose figures are of a run that was not ended."""
        pairs = zip(self.results, self.first, strict=True)
        return tuple(result.policy for result, run in pairs if run.ending is Ending.INTERRUPTED)


def generate(model: ServingModel, load: Load, seed: int) -> Requests:
    """The requests of one seed; the same for every policy.

    Examples
    --------
    >>> from kvplan.model import Replica, RequestClass, Timing
    >>> model = ServingModel((RequestClass("a", 9, (5,), (1.0,), 2.0),), Timing(0.01), Replica(500))
    >>> generate(model, Load(requests=3), 0).decode_tokens.tolist()
    [5, 5, 5]
    """
    if load.trace is not None:
        return load.trace
    found = _generated(model, load, np.random.default_rng(seed))
    cut = load.horizon_s is not None and found.arrival_s.size != load.requests
    return replace(found, more_later=cut and _follows_rates(load))


def _follows_rates(load: Load) -> bool:
    """Whether the rates of the model say when requests arrive."""
    return load.trace is None and load.kind not in (Arrivals.SATURATED, Arrivals.CLOSED)


def _generated(model: ServingModel, load: Load, rng: np.random.Generator) -> Requests:
    size, horizon = load.requests, load.horizon_s
    expected = _expected(model, load)
    if expected > MAX_REQUESTS:
        raise UsageError(f"some {expected:.3g} requests until the horizon; {MAX_REQUESTS:,} is the most")
    if load.kind in (Arrivals.SATURATED, Arrivals.CLOSED) and size is None:
        size = math.ceil(expected) + load.concurrency + 1000
    match load.kind:
        case Arrivals.POISSON:
            return poisson(model, rng, requests=size, horizon_s=horizon)
        case Arrivals.GAMMA:
            return renewal(model, rng, cv=load.cv, requests=size, horizon_s=horizon)
        case Arrivals.BURST:
            high, low, on_s, off_s = load.burst
            return burst(
                model, rng, high=high, low=low, on_s=on_s, off_s=off_s, requests=size, horizon_s=horizon
            )
        case Arrivals.SATURATED:
            assert size is not None
            return saturated(model, requests=size)
        case Arrivals.CLOSED:
            assert size is not None
            return closed(model, rng, clients=load.concurrency, requests=size)


def _expected(model: ServingModel, load: Load) -> float:
    """How many requests there will be, about; of those that are always there, more than can be served."""
    if load.requests is not None or load.horizon_s is None:
        return float(load.requests or 0)
    if load.kind in (Arrivals.SATURATED, Arrivals.CLOSED):
        return 3 * saturation(model).throughput_rps * load.horizon_s
    high, low, on_s, off_s = load.burst
    factor = (high * on_s + low * off_s) / (on_s + off_s) if load.kind is Arrivals.BURST else 1.0
    seconds = load.horizon_s
    if model.schedule is not None:  # at the rates as they stand
        seconds = float(model.schedule.course([c.rate_rps for c in model.classes]).integral(seconds))
    return factor * model.total_rate_rps * seconds


def chosen(names: Sequence[str], settings: Sequence[str]) -> dict[str, Settings]:
    """Policies by name with their settings, checked.

    Parameters
    ----------
    names : sequence of str
    settings : sequence of str
        Such as ``vllm.watermark=0.05`` or ``wait.thresholds=4,4``.

    Examples
    --------
    >>> chosen(["vllm"], ["vllm.watermark=0.05"])["vllm"].given
    {'watermark': (0.05,)}
    """
    given: dict[str, dict[str, tuple[float, ...]]] = {}
    for name in names:
        if name not in POLICIES:
            raise UsageError(f"--policy {name!r} does not exist; the policies are {', '.join(POLICIES)}")
        if name in given:
            raise UsageError(f"--policy {name!r} is there twice")
        given[name] = {}
    if not given:
        raise UsageError(f"--policy: at least one of {', '.join(POLICIES)}")
    for text in settings:
        place, equals, value = text.partition("=")
        policy, _, key = place.partition(".")
        if not equals or not key:
            raise UsageError(f"--set {text!r}: POLICY.PARAMETER=VALUE is wanted, such as vllm.watermark=0.05")
        if policy not in given:
            raise UsageError(f"--set {text!r}: {policy!r} is not among the policies: {', '.join(given)}")
        known = POLICIES[policy].parameters
        if key not in known:
            what = f"has {', '.join(known)}" if known else "has no parameters"
            raise UsageError(f"--set {text!r}: {policy} {what}")
        if key in given[policy]:
            raise UsageError(f"--set {text!r}: {place} is set twice")
        words = POLICIES[policy].words.get(key)
        given[policy][key] = _numbers(text, value) if words is None else _word(text, value, words)
    return {name: Settings(name, found) for name, found in given.items()}


def _word(text: str, value: str, words: tuple[str, ...]) -> tuple[float, ...]:
    if value not in words:
        raise UsageError(f"--set {text!r}: {' or '.join(words)} is wanted")
    return (float(words.index(value)),)


def _numbers(text: str, value: str) -> tuple[float, ...]:
    try:
        numbers = tuple(float(part) for part in value.split(","))
    except ValueError:
        numbers = (math.nan,)
    if not all(map(math.isfinite, numbers)):
        raise UsageError(f"--set {text!r}: a number is wanted, or several with commas")
    return numbers


def study(
    model: ServingModel,
    plan: Plan,
    load: Load,
    policies: Mapping[str, Settings],
    seeds: Sequence[int],
    *,
    progress: Callable[[float], None] | None = None,
    announce: Callable[[str, bool], None] | None = None,
    compile: bool | None = None,
    threads: int | None = None,
) -> Study:
    """Run every policy on every seed, on all cores, and sum up.

    Parameters
    ----------
    model : ServingModel
    plan : Plan
    load : Load
    policies : mapping of str to Settings
        From `chosen`.
    seeds : sequence of int
        A trace has chance in nothing and is run once.
    progress : function, optional
        Told now and then what part is done.
    announce : function, optional
        Told before a loop is compiled: the policy, and whether later processes find it on disk.
    compile : bool, optional
        Run compiled loops from the beginning, or never; see `kvplan.simulation.engine.run`.
    threads : int, optional
        How many runs go on at once; as many as there are cores if None.

    Returns
    -------
    Study
        After Ctrl-C: of what was done until then.
    """
    seeds = tuple(seeds[:1] if load.trace is not None else seeds)
    names = ("trace",) if load.trace is not None else tuple(c.name for c in model.classes)
    scenarios = [Scenario(model, plan, generate(model, load, seed), names) for seed in seeds]
    if scenarios[0].requests.arrival_s.size == 0:
        raise UsageError("no request arrives before the horizon; a longer one is wanted")
    jobs = [
        Job(name, POLICIES[name], settings, scenario, load.horizon_s)
        for name, settings in policies.items()
        for scenario in scenarios
    ]
    for job in jobs[:: len(scenarios)]:
        job.prepare()  # refuses what cannot be run before anything is
    outcomes, interrupted = run_all(jobs, progress, announce, compile=compile, threads=threads)
    runs = {name: outcomes[i * len(seeds) : (i + 1) * len(seeds)] for i, name in enumerate(policies)}
    kept = _comparable(runs) if interrupted else list(range(len(seeds)))
    shown = {name: [found for i in kept if (found := mine[i]) is not None] for name, mine in runs.items()}
    shown = {name: mine for name, mine in shown.items() if mine}
    if not shown:
        raise KeyboardInterrupt
    return Study(
        load=load,
        requests=scenarios[0].requests.arrival_s.size,
        seeds=tuple(seeds[i] for i in kept),
        results=tuple(
            policy_result(
                name,
                jobs[list(policies).index(name) * len(seeds)].prepare()[1],
                [(scenarios[i].requests, found) for i, found in zip(kept, mine, strict=True)],
                names,
                horizon_s=load.horizon_s,
                saturated=load.trace is None and load.kind is Arrivals.SATURATED,
            )
            for name, mine in shown.items()
        ),
        first=tuple(mine[0] for mine in shown.values()),
        missing=tuple(name for name in policies if name not in shown),
        interrupted=interrupted,
        scheduled=None if model.schedule is None else _follows_rates(load),
    )


def _comparable(runs: Mapping[str, Sequence[Outcome | None]]) -> list[int]:
    """Of an interrupted study: the seeds that every policy has run to the end, else the first as far as it went."""
    whole = [
        index
        for index, of_seed in enumerate(zip(*runs.values(), strict=True))
        if all(found is not None and found.ending is not Ending.INTERRUPTED for found in of_seed)
    ]
    return whole or [0]


class Job(NamedTuple):
    """A run to be made: a policy, set in some way, on some requests."""

    name: str
    policy: Policy
    settings: Settings
    scenario: Scenario
    horizon_s: float | None

    def prepare(self) -> tuple[Any, dict[str, object]]:
        """What the engine needs, and the parameters as they will be run; refuses what cannot be run."""
        return self.policy.prepare(self.scenario, self.settings)

    def run(
        self,
        watch: Callable[[int], bool],
        announce: Callable[[bool], None] | None,
        compile: bool | None = None,
    ) -> Outcome:
        """Make it."""
        setup, _ = self.prepare()
        model = self.scenario.model
        return engine.run(
            self.policy.form_batch,
            self.scenario.requests,
            model.timing,
            model.replica,
            setup,
            horizon_s=self.horizon_s,
            compile=compile,
            watch=watch,
            announce=announce,
        )


def run_all(
    jobs: Sequence[Job],
    progress: Callable[[float], None] | None,
    announce: Callable[[str, bool], None] | None,
    *,
    compile: bool | None = None,
    threads: int | None = None,
) -> tuple[list[Outcome | None], bool]:
    """Run them on all cores, or in so many threads.

    Returns
    -------
    list of Outcome or None
        In the order of the jobs; None for those that had not begun when interrupted.
    bool
        Whether somebody pressed Ctrl-C.
    """
    stop, done = threading.Event(), [0] * len(jobs)
    total = sum(job.scenario.requests.arrival_s.size for job in jobs)

    def work(index: int) -> Outcome | None:
        if stop.is_set():
            return None

        def watch(completed: int) -> bool:
            done[index] = completed
            return not stop.is_set()

        name = jobs[index].name
        told = partial(announce, name) if announce is not None else None
        return jobs[index].run(watch, told, compile)

    with ThreadPoolExecutor(min(len(jobs), threads or os.cpu_count() or 1)) as pool:
        futures = [pool.submit(work, index) for index in range(len(jobs))]
        pending = set(futures)
        try:
            while pending:
                ended, pending = wait(pending, _LOOK_S, FIRST_COMPLETED)
                if any(future.exception() for future in ended):
                    stop.set()
                if progress is not None:
                    progress(max(sum(done) / total, 1 - len(pending) / len(futures)))
        except KeyboardInterrupt:
            stop.set()
        return [future.result() for future in futures], stop.is_set()


def to_document(found: Study, *, name: str, sha256: str, version: str) -> dict[str, Any]:
    """The JSON document of a study (schema_version 1 of simulation output)."""
    return {
        "schema_version": 1,
        "kvplan_version": version,
        "profile": {"name": name, "sha256": sha256},
        "arrivals": {
            "kind": "trace" if found.load.trace is not None else found.load.kind.value,
            "requests": found.requests,
            "horizon_s": found.load.horizon_s,
            **({} if found.scheduled is None else {"scheduled": found.scheduled}),
        },
        "seeds": list(found.seeds),
        **({"interrupted": True} if found.interrupted else {}),
        "policies": [plain(result) for result in found.results],
    }


def plain(value: Any) -> Any:
    """Results as JSON has them: whole counts whole."""
    if is_dataclass(value):
        return {field.name: plain(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, tuple | list):
        return [plain(item) for item in value]
    if isinstance(value, float) and value.is_integer() and abs(value) < 2**53:
        return int(value)
    return str(value) if isinstance(value, StrEnum) else value
