"""What people see of a search that simulates, while it lasts and when they end it."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING, Protocol, TypeVar

from kvplan.cli.common import say
from kvplan.units import format_number

if TYPE_CHECKING:
    from kvplan.decide.sizing import SoFar, Tell
    from kvplan.model import ServingModel

_Measured = TypeVar("_Measured")


class _Watch(Protocol):
    def __call__(
        self, label: str, measure: "Callable[[ServingModel], _Measured]", /
    ) -> "Callable[[ServingModel], _Measured]": ...


ALL_OF_TRACE = "--requests does not go with a profile whose trace is replayed, all of it"


def once(announce: Callable[[str, bool], None]) -> Callable[[str, bool], None]:
    """The same, silent after the first time: every run of every size would say it, in threads at that."""
    unsaid = [announce]

    def told(policy: str, kept: bool) -> None:
        with suppress(IndexError):  # taking from a list is atomic
            unsaid.pop()(policy, kept)

    return told


@contextmanager
def watching() -> "Iterator[_Watch]":
    """What is being simulated, on standard error if that is a terminal."""
    if sys.stderr is None or not sys.stderr.isatty():
        yield lambda label, measure: measure
        return
    from rich.console import Console
    from rich.text import Text

    with Console(stderr=True).status("") as line:

        def watch(
            label: str, measure: "Callable[[ServingModel], _Measured]"
        ) -> "Callable[[ServingModel], _Measured]":
            def told(model: "ServingModel") -> "_Measured":
                replicas = 1 if model.fleet is None else model.fleet.size
                rate = format_number(model.total_rate_rps / replicas)
                line.update(Text(f"{label}: simulating {rate} requests/s a replica"))
                return measure(model)

            return told

        yield watch


@contextmanager
def telling() -> "Iterator[Callable[[str], Tell]]":
    """Whoever interrupts the search hears what it has found."""
    known: dict[tuple[str, float], SoFar] = {}

    def told(label: str, found: "SoFar") -> None:
        known[label, found.demand_rps] = found

    try:
        yield lambda label: partial(told, label)
    except KeyboardInterrupt:
        from kvplan.layout.sizing import so_far

        for (label, _), found in known.items():
            say(f"note: interrupted; {label}: {so_far(found)}")
        raise
