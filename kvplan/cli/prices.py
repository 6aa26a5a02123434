"""Prices of replicas: what `--price` gives to profiles by the names that they go by."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from kvplan.errors import UsageError, did_you_mean

if TYPE_CHECKING:
    from kvplan.profile.reading import Profile

_EVERY = "gpu"  # the name under which a price is that of a GPU of any


def labels_of(profiles: "Sequence[Profile]") -> list[str]:
    """What a price is given to: the stem of each file, or the name of a shipped profile."""
    labels = [Path(one.source).name.removesuffix(".toml") for one in profiles]
    for label in labels:
        if labels.count(label) > 1:
            raise UsageError(f"two profiles are called {label!r}; each must have a name of its own")
    return labels


def prices_of(
    given: Sequence[str], gpus: Mapping[str, int], stated: Mapping[str, float | None]
) -> dict[str, float]:
    """The price of a replica of each profile, which has so many GPUs; empty where none is given.

    What is not given is as the profiles have `stated` it, for a GPU.
    """
    found: dict[str, float] = {}
    for text in given:
        name, equals, value = (part.strip() for part in text.partition("="))
        shown = f"--price {text[:80]!r}"
        if not equals or not name:
            raise UsageError(f"{shown}: NAME=PRICE is wanted, such as gpu=2.50")
        if name not in gpus and name != _EVERY:
            names = [*gpus, _EVERY]
            raise UsageError(
                f"{shown}: no profile has that name; {did_you_mean(name, names, 'the names are')}"
            )
        if name in found:
            raise UsageError(f"{shown}: {name} has a price already")
        try:
            number = float(value)
        except ValueError:
            number = math.nan
        if not 0 <= number <= 1e9:
            raise UsageError(f"{shown}: a number from 0 to 1e9 is wanted, the price of an hour")
        found[name] = number
    every = found.get(_EVERY)
    prices: dict[str, float | None] = {}
    for label, count in gpus.items():
        one = stated[label] if every is None else every
        prices[label] = found.get(label, None if one is None else one * count)
    without = [label for label, price in prices.items() if price is None]
    if without and len(without) < len(prices):
        raise UsageError(
            f"--price: none for {without[0]}; give every profile one, or all the same for a GPU by gpu=PRICE"
        )
    return {label: price for label, price in prices.items() if price is not None}


def price_of_gpus(price: Sequence[str], label: str, profile: "Profile") -> float | None:
    """What the GPUs of a replica cost an hour, whatever the price of the replica; None where nothing says it."""
    of_any = [text for text in price if text.partition("=")[0].strip() == _EVERY]
    return prices_of(of_any, {label: profile.model.replica.gpus}, {label: profile.plan.gpu_hour}).get(label)
