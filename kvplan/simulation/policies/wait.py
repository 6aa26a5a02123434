"""WAIT: a class runs when enough of its requests wait (WAIT-s Algorithm 1)."""

import numpy as np

from kvplan.analysis import wait as thresholds
from kvplan.errors import UsageError
from kvplan.model import sum_by
from kvplan.simulation.actions import admit_in_order, advance, batch_is_empty, evict_until_it_fits
from kvplan.simulation.followups import more_to_come
from kvplan.simulation.initial_state import Setup
from kvplan.simulation.policies.protocol import Policy, Scenario, Settings, one_queue
from kvplan.simulation.predictions import predicted
from kvplan.simulation.state import Group, List, State, kernel


@kernel
def form_batch(s: State) -> None:
    """Run classes with their threshold in the queue, which take as many; others pause, KV kept.

    When nothing runs and nothing else is to come, all classes run with what there is.
    """
    for kind in range(s.group.shape[0]):
        if s.list[kind, List.LENGTH] >= s.knobs[kind]:
            advance(s, kind)
    make_room_and_admit(s)
    if batch_is_empty(s) and not more_to_come(s):
        for kind in range(s.group.shape[0]):
            advance(s, kind)
        make_room_and_admit(s)


@kernel
def make_room_and_admit(s: State) -> None:
    """Evict what does not fit; if nothing had to go, take each running class's share, until one does not fit."""
    if evict_until_it_fits(s):
        return
    for kind in range(s.group.shape[0]):
        if s.group[kind, Group.RUNS] and not admit_in_order(s, kind, kind, int(s.knobs[kind])):
            return


def prepare(scenario: Scenario, settings: Settings) -> tuple[Setup, dict[str, object]]:
    """Take the smallest whole thresholds of the plan, unless they are set or follow from a batch limit (WAIT §6)."""
    found = _thresholds(scenario, settings)
    setup = one_queue(scenario.requests)
    return setup._replace(
        queue_of=predicted(scenario).class_index,
        queues=len(found),
        until=np.repeat(setup.until, len(found)),
        knobs=np.array(found, dtype=np.float64),
    ), {"thresholds": list(found)}


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
    found = thresholds.wait(model).thresholds
    if found is None:
        raise UsageError("wait: no thresholds keep up with this load; --set wait.thresholds=... gives some")
    return found


POLICY = Policy(
    name="wait",
    summary="a class runs once its threshold of requests waits (WAIT-s Algorithm 1)",
    prepare=prepare,
    form_batch=form_batch,
    parameters={
        "thresholds": "one for each class, with commas; the smallest that keep up",
        "batch_limit": "B: thresholds of B·λ_i/Σλ_j(d_j + 1) instead (WAIT 6)",
    },
    gathers=True,
)
