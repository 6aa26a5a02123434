"""Completions that a shell offers for a half-typed word. Nothing is imported before it is needed."""

from collections.abc import Callable, Iterable

Completer = Callable[[str], list[str]]


def _beginning(names: Iterable[str], incomplete: str) -> list[str]:
    return sorted(name for name in names if name.startswith(incomplete))


def listed(complete: Completer) -> Completer:
    """Complete the last word of a list with commas.

    >>> listed(policies)("greedy,sara")
    ['greedy,sarathi']
    """

    def complete_last(incomplete: str) -> list[str]:
        before, comma, last = incomplete.rpartition(",")
        return [f"{before}{comma}{name}" for name in complete(last)]

    return complete_last


def profiles(incomplete: str) -> list[str]:
    from kvplan.profile.reading import shipped_profiles

    return _beginning(shipped_profiles(), incomplete)


def experiments(incomplete: str) -> list[str]:
    from kvplan.reproduction.experiment import shipped_experiments

    return _beginning(shipped_experiments(), incomplete)


def policies(incomplete: str) -> list[str]:
    from kvplan.simulation.policies import POLICIES

    return _beginning(POLICIES, incomplete)


def parameters(incomplete: str) -> list[str]:
    """Complete a parameter of a policy, up to where its value begins."""
    from kvplan.simulation.policies import POLICIES

    return _beginning(
        (f"{name}.{key}=" for name in POLICIES for key in POLICIES[name].parameters), incomplete
    )


def models(incomplete: str) -> list[str]:
    """Complete a model, with its owner or without."""
    from kvplan.ingest.model.config import models

    return _beginning({name for names in models().values() for name in names}, incomplete)


def gpus(incomplete: str) -> list[str]:
    """Complete a GPU in one word: the catalogue does not tell a blank from a hyphen."""
    from kvplan.ingest.model import hardware

    return _beginning((gpu.name.replace(" ", "-") for gpu in hardware.gpus()), incomplete)


def engines(incomplete: str) -> list[str]:
    from kvplan.engine import EngineName

    return _beginning(EngineName, incomplete)


def benchmarks(incomplete: str) -> list[str]:
    """Return load generators whose commands are known."""
    from kvplan.emit.benchmarks import tools

    return _beginning(tools(), incomplete)


def keys_to_explain(incomplete: str) -> list[str]:
    from kvplan.report.keys import BLOCKS, CONTRACT

    return _beginning({*BLOCKS, *CONTRACT}, incomplete)


def keys_to_require(incomplete: str) -> list[str]:
    """Complete a key, of lists the first entry, as a requirement writes it."""
    from kvplan.report.keys import gateable

    return _beginning((key.replace("[]", "[0]") for key in gateable()), incomplete)


def columns(incomplete: str) -> list[str]:
    from kvplan.report.keys import gateable

    return _beginning(gateable(), incomplete)


def sections(incomplete: str) -> list[str]:
    from kvplan.report.keys import SCREENS

    return _beginning(SCREENS["sections"], incomplete)
