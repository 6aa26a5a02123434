"""Many cases in one test, which reports all that fail and not the first alone."""

from collections.abc import Callable, Iterable, Mapping
from typing import TypeVar

Case = TypeVar("Case")


def check_every(cases: Mapping[str, Case] | Iterable[Case], check: Callable[[Case], object]) -> None:
    """Call `check` with each case; fail once, with the name of every case that failed and its message.

    Cases of an iterable are named by their text. There must be at least one case.
    """
    named = list(cases.items() if isinstance(cases, Mapping) else ((str(case), case) for case in cases))
    failures = []
    for name, case in named:
        try:
            check(case)
        except Exception as failure:
            failures.append(f"{name}: {type(failure).__name__}: {failure}")
    assert named, "no cases"
    assert not failures, "\n".join([f"{len(failures)} of {len(named)} cases fail", *failures])
