"""Many cases in one test, which reports all that fail and not the first alone."""

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import wraps
from typing import Any, TypeVar

Case = TypeVar("Case")


def check_every(cases: Mapping[str, Case] | Iterable[Case], check: Callable[[Case], object]) -> None:
    """Call `check` with each case; fail once, with the name of every case that failed and its message.

    Cases of an iterable are named by their text. There must be at least one case.
    """
    named = list(cases.items() if isinstance(cases, Mapping) else ((None, case) for case in cases))
    failures = []
    for name, case in named:
        try:
            check(case)
        except Exception as failure:
            failures.append(f"{name or _shown(case)}: {type(failure).__name__}: {failure}")
    assert named, "no cases"
    assert not failures, "\n".join([f"{len(failures)} of {len(named)} cases fail", *failures])


def _shown(case: object) -> str:
    try:
        return repr(case)[:300]
    except ValueError:  # an integer of too many digits
        return "a case"


def every(
    names: str | Sequence[str], cases: Iterable[Any]
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Loop a test over quick cases, which are written as those of `pytest.mark.parametrize`.

    Fixtures are made once for all cases, but each has a folder of its own in `tmp_path`.
    """
    arguments = [name.strip() for name in names.split(",")] if isinstance(names, str) else list(names)
    values = [(case,) if len(arguments) == 1 else tuple(case) for case in cases]

    def loop_over(test: Callable[..., None]) -> Callable[..., None]:
        @wraps(test)
        def looped(**fixtures: Any) -> None:
            def check(case: tuple[Any, ...]) -> None:
                given = dict(zip(arguments, case, strict=True)) | fixtures
                if "tmp_path" in fixtures:
                    given["tmp_path"] = fixtures["tmp_path"] / str(len(list(fixtures["tmp_path"].iterdir())))
                    given["tmp_path"].mkdir()
                test(**given)

            check_every(values, check)

        signature = inspect.signature(test)
        rest = [parameter for name, parameter in signature.parameters.items() if name not in arguments]
        looped.__signature__ = signature.replace(parameters=rest)  # type: ignore[attr-defined]
        return looped

    return loop_over
