"""Runs: the requests of a load and a seed, a policy on them, an outcome; many at once, on all cores."""

import os
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from itertools import islice
from typing import Any, NamedTuple, TypeVar

from kvplan.errors import UsageError
from kvplan.model import Plan, ServingModel
from kvplan.simulation import engine
from kvplan.simulation.experiments.load import Load, generate
from kvplan.simulation.fleet import run as fleet
from kvplan.simulation.fleet.run import ReplicaGroup, groups
from kvplan.simulation.fleet.scaling import Pods
from kvplan.simulation.initial_state import NotBegunError, Setup, Spans
from kvplan.simulation.outcome import Outcome
from kvplan.simulation.policies import POLICIES
from kvplan.simulation.policies.protocol import Policy, Scenario, Settings

Progress = Callable[[float], None]  # told now and then what part is done
Announce = Callable[[str, bool], None]  # told before a policy's loop is compiled; whether it is kept on disk
_Given = TypeVar("_Given")
_Found = TypeVar("_Found")
_LOOK_S = 0.2  # between two reports of progress


class Job(NamedTuple):
    """A run to be made: a policy, set in some way, on some requests."""

    settings: Settings
    scenario: Scenario
    horizon_s: float | None = None
    spans: Spans | None = None  # of time, in which sums are kept apart
    # when replicas of a fleet take requests, where it is not always
    open_s: Sequence[tuple[float, float]] = ()
    pods: Pods | None = None  # of a fleet whose replicas come and go as a control says: of one run

    @property
    def policy(self) -> Policy:
        """Record of the policy."""
        return POLICIES[self.settings.policy]

    def parameters(self) -> dict[str, object]:
        """Return the policy's parameters as they will be run; refuse what cannot be run."""
        if self.scenario.model.fleet is not None:
            return self._groups()[1]
        return self.prepare()[1]

    def _groups(self) -> tuple[list[ReplicaGroup], dict[str, object]]:
        self._check()
        replicas, parameters = groups(self.policy, self.scenario, self.settings)
        if self.open_s:
            replicas = [replicas[0]._replace(replicas=len(self.open_s), open_s=self.open_s)]
        if self.pods is not None:
            replicas = [replicas[0]._replace(replicas=self.pods.sites, pods=self.pods)]
        return replicas, parameters

    def prepare(self) -> tuple[Setup, dict[str, object]]:
        """Return the engine's setup of one replica, and the parameters; refuse what cannot be run."""
        self._check()
        return self.policy.set_up(self.scenario, self.settings)

    def _check(self) -> None:
        model = self.scenario.model
        if (what := self.policy.lacks(model)) is not None:
            able = ", ".join(sorted(name for name, policy in POLICIES.items() if policy.lacks(model) is None))
            raise UsageError(f"policy {self.policy.name}: not modelled beside {what}; there are {able}")

    def run(
        self,
        watch: Callable[[int], bool] | None = None,
        announce: Callable[[bool], None] | None = None,
        compile: bool | None = True,
    ) -> Outcome:
        """Make it; the arguments are those of `kvplan.simulation.engine.run`."""
        scenario, model = self.scenario, self.scenario.model
        common: dict[str, Any] = {
            "request_overhead_s": model.request_overhead_s,
            "horizon_s": self.horizon_s,
            "spans": self.spans,
            "compile": compile,
            "watch": watch,
            "announce": announce,
        }
        form_batch, requests = self.policy.form_batch, scenario.requests
        if model.fleet is not None:
            seconds = model.fleet.transfer_s(1)
            return fleet.run(
                form_batch,
                requests,
                self._groups()[0],
                model.fleet.routing,
                seed=scenario.seed,
                seconds_per_token=seconds,
                **common,
            )
        return engine.run(form_batch, requests, model.timing, model.replica, self.prepare()[0], **common)


def _whole(_: Job, outcome: Outcome) -> Outcome:
    return outcome


def scenarios(
    model: ServingModel, plan: Plan, load: Load, seeds: Sequence[int], *, threads: int | None = None
) -> list[Scenario]:
    """Draw the requests of a load by each seed; the same for every policy. `threads` as for `run_rows`."""
    load = load.on(model)
    names = ("trace",) if load.trace is not None else tuple(c.name for c in model.classes)
    drawn = at_once(lambda seed: generate(model, load, seed), seeds, threads)
    return [Scenario(model, plan, requests, names, seed) for seed, requests in zip(seeds, drawn, strict=True)]


def at_once(
    work: Callable[[_Given], _Found], of: Sequence[_Given], threads: int | None = None
) -> list[_Found]:
    """Do the work on each item, in so many threads, or on all cores: for work that is mostly numpy's."""
    threads = min(len(of), threads or os.cpu_count() or 1)
    if threads <= 1:
        return [work(each) for each in of]
    pool = ThreadPoolExecutor(threads)
    try:
        return list(pool.map(work, of))
    except KeyboardInterrupt:
        engine.interrupted.set()
        raise
    finally:
        pool.shutdown()
        if threading.current_thread() is threading.main_thread():
            engine.interrupted.clear()


def run_rows(
    rows: Sequence[Sequence[Job]],
    progress: Progress | None = None,
    announce: Announce | None = None,
    *,
    compile: bool | None = None,
    threads: int | None = None,
    kept: Callable[[Job, Outcome], Any] = _whole,
) -> tuple[list[list[Any]], bool]:
    """Run rows of jobs on all cores, or in so many threads; return, too, whether Ctrl-C was pressed.

    What is `kept` of outcomes is in the order of the jobs; None for those that had not begun then. One thread is the
    caller's: progress is not reported, and Ctrl-C goes through.
    """
    jobs = [job for row in rows for job in row]
    stop, done = threading.Event(), [0] * len(jobs)
    total = sum(job.scenario.requests.arrival_s.size for job in jobs)
    told = set[str]()  # of each policy once: several of its runs come to be compiled at the same time

    def work(index: int) -> Any:
        if stop.is_set():
            return None

        def watch(completed: int) -> bool:
            done[index] = completed
            return not stop.is_set()

        def tell(kept: bool) -> None:
            name = jobs[index].policy.name
            if announce is not None and name not in told:
                told.add(name)
                announce(name, kept)

        try:
            return kept(jobs[index], jobs[index].run(watch, tell if announce is not None else None, compile))
        except NotBegunError:
            return None

    if threads == 1:  # a pool would take longer than a short run
        outcomes = iter([work(index) for index in range(len(jobs))])
        return [list(islice(outcomes, len(row))) for row in rows], False
    with ThreadPoolExecutor(max(1, min(len(jobs), threads or os.cpu_count() or 1))) as pool:
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
        outcomes = iter([future.result() for future in futures])
    return [list(islice(outcomes, len(row))) for row in rows], stop.is_set()


def run_to_the_end(
    rows: Sequence[Sequence[Job]],
    progress: Progress | None = None,
    announce: Announce | None = None,
    *,
    compile: bool | None = None,
    kept: Callable[[Job, Outcome], Any] = _whole,
) -> list[list[Any]]:
    """Run rows of jobs as `run_rows` does, for comparisons that are worth nothing by half: Ctrl-C goes through."""
    results, interrupted = run_rows(rows, progress, announce, compile=compile, kept=kept)
    if interrupted:
        raise KeyboardInterrupt
    return results
