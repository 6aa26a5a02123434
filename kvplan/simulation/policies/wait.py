"""WAIT: a class runs when enough of its requests wait (WAIT-s Algorithm 1)."""

import math

import numpy as np

from kvplan.analysis import wait as thresholds
from kvplan.analysis.worst_window import at_rates
from kvplan.errors import UsageError
from kvplan.model import FloatArray, IntArray, ServingModel, sum_by
from kvplan.simulation.actions import admit_in_order, advance, batch_is_empty, evict_until_it_fits
from kvplan.simulation.followups import more_to_come
from kvplan.simulation.initial_state import Setup
from kvplan.simulation.policies.protocol import RESOLVE, Policy, Scenario, Settings, one_queue
from kvplan.simulation.predictions import predicted
from kvplan.simulation.state import Clock, Group, List, State, kernel

_MOST_WINDOWS = 2_000  # each is solved in a millisecond
_SURE = 2.0  # standard deviations of a count of arrivals that thresholds keep up with


@kernel
def form_batch(s: State) -> None:
    """Run classes with their threshold in the queue, which take as many; others pause, KV kept.

    When nothing runs and nothing else is to come, all classes run with those there.
    """
    follow_rates(s)
    for kind in range(s.group.shape[0]):
        if s.list[kind, List.LENGTH] >= s.knobs[kind]:
            advance(s, kind)
    make_room_and_admit(s)
    if batch_is_empty(s) and not more_to_come(s):
        for kind in range(s.group.shape[0]):
            advance(s, kind)
        make_room_and_admit(s)


@kernel
def follow_rates(s: State) -> None:
    """Take the thresholds of the window under way: behind those in force stand its length and a row for each."""
    kinds = s.group.shape[0]
    if s.knobs.shape[0] == kinds:
        return
    window = math.floor(s.clock[Clock.NOW] / s.knobs[kinds])
    row = kinds + 1 + kinds * min(window, (s.knobs.shape[0] - 1) // kinds - 2)
    for kind in range(kinds):
        s.knobs[kind] = s.knobs[row + kind]


@kernel
def make_room_and_admit(s: State) -> None:
    """Evict until all fit; if nobody had to go, admit each running class's share, until one does not fit."""
    if evict_until_it_fits(s):
        return
    for kind in range(s.group.shape[0]):
        if s.group[kind, Group.RUNS] and not admit_in_order(s, kind, kind, int(s.knobs[kind])):
            return


def prepare(scenario: Scenario, settings: Settings) -> tuple[Setup, dict[str, object]]:
    """Take the smallest whole thresholds of the plan, unless they are set or follow from a batch limit (WAIT §6)."""
    whole = _thresholds(scenario, settings)
    setup, queue_of = one_queue(scenario.requests), predicted(scenario).class_index
    knobs, window_s = np.array(whole, dtype=np.float64), settings.numbers(RESOLVE)
    if window_s is not None:
        knobs = np.append(knobs, _resolved(scenario, queue_of, knobs, settings.number(RESOLVE, 0)))
    return setup._replace(
        queue_of=queue_of,
        queues=len(whole),
        until=np.repeat(setup.until, len(whole)),
        knobs=knobs,
    ), {"thresholds": list(whole), **({} if window_s is None else {RESOLVE: window_s[0]})}


def _resolved(scenario: Scenario, queue_of: IntArray, first: FloatArray, window_s: float) -> FloatArray:
    """Return a window's length and thresholds for each, solved for the arrivals in the one before (WAIT 8.1).

    They keep up with as many as may come by chance, and with a rise as large as the last one. Where none do that fit,
    they are the largest that memory holds.
    """
    arrival_s, model = scenario.requests.arrival_s, scenario.model
    if not scenario.requests.is_open:
        raise UsageError("wait.resolve: arrivals that follow from answers are not known beforehand")
    if not (window_s > 0 and arrival_s.max(initial=0.0) < _MOST_WINDOWS * window_s):
        most = f"and at most {_MOST_WINDOWS:,} windows in a run"
        raise UsageError(f"wait.resolve = {window_s:g}: above 0 s, {most}")
    if first.size != len(model.classes):
        raise UsageError("wait.resolve: a trace is one class; its thresholds are not solved")
    window = (arrival_s // window_s).astype(np.int64)
    count = np.zeros((int(window.max(initial=0)) + 1, first.size))
    np.add.at(count, (window, queue_of), 1)
    likely = count + np.maximum(np.diff(count, axis=0, prepend=count[:1]), 0)
    likely = np.maximum(likely + _SURE * np.sqrt(likely), 1)
    rows = [_keeping_up(at_rates(model, each / window_s)) for each in likely[:-1]]
    return np.concatenate([[window_s], first, *rows])


def _keeping_up(model: ServingModel) -> FloatArray:
    means, memory_tokens = thresholds.class_means(model), model.replica.capacity_tokens
    smallest = thresholds.smallest_thresholds(means)
    if smallest is not None and smallest[0] @ means.held <= memory_tokens:
        return smallest[0]
    return np.array(thresholds.largest_held(means, memory_tokens).whole, dtype=np.float64)


def _thresholds(scenario: Scenario, settings: Settings) -> tuple[int, ...]:
    size, model = len(scenario.names), scenario.model
    given = settings.counts("thresholds", size, "one for each class")
    limit = settings.numbers("batch_limit")
    if given is not None and limit is not None:
        raise UsageError("wait.thresholds and wait.batch_limit are set both; one of them decides")
    if given is not None:
        return given
    if size != len(model.classes):
        raise UsageError(
            f"wait: a trace is one class, the profile's thresholds are for {len(model.classes)}; "
            "--set wait.thresholds=N gives one"
        )
    if limit is not None:
        if settings.number("batch_limit", 0) <= 0:
            raise UsageError(
                f"wait.batch_limit = {settings.number('batch_limit', 0):g}: a number above 0 is wanted"
            )
        mix = model.mix
        by_class = sum_by(mix.class_index, mix.rate_rps * (mix.decode_tokens + 1.0))
        rates = np.array([c.rate_rps for c in model.classes])
        share = settings.number("batch_limit", 0) * rates / by_class.sum()
        return tuple(max(1, int(n)) for n in share)
    planned = thresholds.wait(model).thresholds
    if planned is None:
        raise UsageError("wait: no thresholds keep up with this load; --set wait.thresholds=... gives some")
    return planned


POLICY = Policy(
    name="wait",
    summary="a class runs once its threshold of requests waits (WAIT-s Algorithm 1)",
    prepare=prepare,
    form_batch=form_batch,
    parameters={
        "thresholds": "one for each class, with commas; the smallest that keep up",
        "batch_limit": "B: thresholds of B·λ_i/Σλ_j(d_j + 1) instead (WAIT 6)",
        RESOLVE: "thresholds are solved anew for the rates of such windows, a time; never (WAIT 8.1)",
    },
    gathers=True,
)
