"""Lengths by a predictor: policies that need one go by it, requests have their true lengths."""

from dataclasses import replace

import numpy as np

from kvplan.model import sum_by
from kvplan.simulation.policies.protocol import Scenario
from kvplan.simulation.requests import Requests


def predicts(scenario: Scenario) -> bool:
    """Tell whether lengths are predicted; those of a trace are not."""
    classes = scenario.model.classes
    return scenario.names == tuple(c.name for c in classes) and any(c.accuracy is not None for c in classes)


def predicted(scenario: Scenario) -> Requests:
    """Return the requests as policies see them, with predicted class and decode length.

    A prediction is right with the accuracy of its class, always if no class has one; else it is another class and
    decode length of the traffic, in proportion to rates, or of the classes that its own is taken for. No prediction
    exceeds the memory.
    """
    requests, model = scenario.requests, scenario.model
    if not predicts(scenario):
        return requests
    mix, chance = model.mix, np.random.default_rng((scenario.seed, 1)).random((2, requests.arrival_s.size))
    pairs, row = np.unique(np.stack([mix.class_index, mix.decode_tokens]), axis=1, return_inverse=True)
    rate, names = sum_by(row.ravel(), mix.rate_rps), [c.name for c in model.classes]
    kind, decode = requests.class_index.copy(), requests.decode_tokens.copy()
    for place, c in enumerate(model.classes):
        of, weight = np.flatnonzero(requests.class_index == place), rate
        if c.taken_for:
            share = dict.fromkeys(names, 0.0) | dict(c.taken_for)
            weight = rate / model.class_rates_rps[pairs[0]] * np.array([*share.values()])[pairs[0]]
        ends = np.cumsum(weight)
        own = (pairs[0] == place) & (pairs[1] == requests.decode_tokens[of, None])
        mine, before = own @ weight, np.where(own.any(axis=1), own @ (ends - weight), np.inf)
        spot = chance[1][of] * (ends[-1] - mine)
        other = np.searchsorted(ends, np.where(spot < before, spot, spot + mine), side="right")
        kind[of], decode[of] = pairs[:, np.minimum(other, np.searchsorted(ends, ends[-1]))]
    accuracy = np.array([1.0 if c.accuracy is None else c.accuracy for c in model.classes])
    fits = requests.input_tokens + decode + 1 <= model.replica.capacity_tokens
    wrong = (chance[0] >= accuracy[requests.class_index]) & fits
    return replace(
        requests,
        class_index=np.where(wrong, kind, requests.class_index),
        decode_tokens=np.where(wrong, decode, requests.decode_tokens),
    )
