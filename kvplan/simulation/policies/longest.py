"""Longest outputs, as clients declare them: what policies may know that read no decode length."""

import numpy as np

from kvplan.errors import UsageError
from kvplan.model import IntArray
from kvplan.simulation.policies.protocol import Scenario, Settings

MAX_NEW = {"max_new": "longest output of each class, with commas; its longest decode length"}


def longest_outputs(scenario: Scenario, settings: Settings) -> tuple[int, ...]:
    """Tokens that a request of each class may generate at most, as its client has declared.

    Raises
    ------
    UsageError
        Not one number for each class, or a request that generates more.
    """
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
    """Longest decode length among the requests of each class, 0 where it has none."""
    longest = np.zeros(classes, dtype=np.int64)
    np.maximum.at(longest, class_index, decode_tokens)
    return longest
