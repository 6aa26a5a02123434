"""Parameters that policies share: bounds on the requests of an engine, and longest outputs as clients declare them.

The most running requests and the token budget of an iteration are limits of `[gpu]`, too.
"""

import math

import numpy as np

from kvplan.errors import UsageError
from kvplan.model import IntArray
from kvplan.simulation.initial_state import Setup
from kvplan.simulation.policies.protocol import (
    SEQUENCES,
    SHED_AFTER,
    TOKENS,
    Scenario,
    Settings,
    as_engines_count,
)

UNLIMITED = 1 << 50
MOST_RUNNING = {SEQUENCES: "most requests running; the profile's"}
LIMITS = {**MOST_RUNNING, TOKENS: "token budget of an iteration; the profile's"}
_MOST_PARTS = 10_000  # of a prompt, an iteration each; ten million tokens in parts of a thousand, say
PATIENCE = {SHED_AFTER: "seconds of waiting after which a request that has never run is given up; never"}


def within_limits(
    scenario: Scenario, settings: Settings, *more_knobs: float, seats_name: str = SEQUENCES
) -> tuple[Setup, dict[str, object]]:
    """Prepare an engine's queue within its limits, the token budget the first of its knobs; and return the limits.

    Absent limits do not bind.
    """
    seats, tokens = most_running(scenario, settings, seats_name), token_budget(scenario, settings)
    patience_s = patience(scenario, settings)
    setup = as_engines_count(scenario.requests)._replace(
        knobs=np.array([tokens or UNLIMITED, *more_knobs], dtype=np.float64),
        seats=seats,
        shed_after_s=patience_s,
    )
    known_s = None if patience_s == math.inf else patience_s
    return setup, {SHED_AFTER: known_s, seats_name: seats, TOKENS: tokens}


def most_running(scenario: Scenario, settings: Settings, name: str = SEQUENCES) -> int | None:
    """Return the most requests that hold memory at once, which engines name differently; None: as many as fit."""
    return _limit(settings, name, scenario.model.replica.max_num_seqs)


def token_budget(scenario: Scenario, settings: Settings) -> int | None:
    """Return the most tokens that an iteration computes; None: as many as there are."""
    budget = _limit(settings, TOKENS, scenario.model.replica.max_num_batched_tokens)
    longest = int(scenario.requests.input_tokens.max(initial=0))
    if budget is not None and longest > _MOST_PARTS * budget:
        raise UsageError(
            f"{settings.policy}.{TOKENS} = {budget:,}: a prompt has {longest:,} tokens, and more than {_MOST_PARTS:,} "
            "times the budget is not simulated"
        )
    return budget


def patience(scenario: Scenario, settings: Settings) -> float:
    """Return the longest wait of a request that has never run, seconds; infinite: to the end."""
    seconds = settings.number(SHED_AFTER, math.inf)
    if seconds < 0:
        raise UsageError(f"{settings.policy}.{SHED_AFTER} = {seconds:g}: seconds, 0 or more")
    if seconds < math.inf and scenario.looks_up:
        raise UsageError(
            f"{settings.policy}.{SHED_AFTER}: not modelled beside drafts or layers of several kinds"
        )
    return seconds


def whole_number(settings: Settings, name: str, of_profile: int, least: int) -> int:
    """Read a whole number; the profile's unless set."""
    value = settings.number(name, of_profile)
    if value < least or value != int(value):
        raise UsageError(f"{settings.policy}.{name} = {value:g}: a whole number, {least} or more")
    return int(value)


def _limit(settings: Settings, name: str, of_profile: int | None) -> int | None:
    limit = settings.number(name, of_profile or UNLIMITED)
    if limit < 1 or limit != int(limit):
        raise UsageError(f"{settings.policy}.{name} = {limit:g}: a whole number above 0")
    return None if limit == UNLIMITED else int(limit)


MAX_NEW = {"max_new": "longest output of each class, with commas; its longest decode length"}


def longest_outputs(scenario: Scenario, settings: Settings) -> tuple[int, ...]:
    """Return the tokens that a request of each class may generate at most, as its client has declared."""
    requests, size = scenario.requests, len(scenario.names)
    seen = longest_by_class(requests.class_index, requests.decode_tokens, size)
    given = settings.counts("max_new", size, "one for each class")
    if given is None:
        declared = {c.name: c.decode_tokens[-1] for c in scenario.model.classes}  # a trace is none of them
        return tuple(
            max(declared.get(name, 1), longest)
            for name, longest in zip(scenario.names, seen.tolist(), strict=True)
        )
    for allowed, longest, name in zip(given, seen.tolist(), scenario.names, strict=True):
        if longest > allowed:
            raise UsageError(
                f"{settings.policy}.max_new = {allowed}: requests of {name} generate up to {longest} tokens"
            )
    return given


def longest_by_class(class_index: IntArray, decode_tokens: IntArray, classes: int) -> IntArray:
    """Find the longest decode length among the requests of each class, 0 where it has none."""
    longest = np.zeros(classes, dtype=np.int64)
    np.maximum.at(longest, class_index, decode_tokens)
    return longest
