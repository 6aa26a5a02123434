"""What takes seconds to say of a model, found once in a process: hundreds of tests ask for reports of the same few."""

from collections import OrderedDict
from collections.abc import Callable, Hashable, Mapping
from functools import wraps
from typing import Any

from kvplan.report import assembly
from kvplan.study import operating_point
from kvplan.study.operating_point import OperatingPoint

FOUND = ("advice", "drain", "goodput", "operating_point", "recovery", "worst_cycle")
KEPT = 60  # answers to each question


def once(find: Callable[..., Any]) -> Callable[..., Any]:
    """Find what follows from the arguments alone the first time that it is asked for, and remember the last answers."""
    answers: OrderedDict[Hashable, Any] = OrderedDict()

    @wraps(find)
    def remembered(*given: Any) -> Any:
        question = _hashable(given)
        if question not in answers:
            answers[question] = find(*given)
        answers.move_to_end(question)
        if len(answers) > KEPT:
            answers.popitem(last=False)
        return answers[question]

    return remembered


def _hashable(value: Any) -> Hashable:
    if isinstance(value, OperatingPoint):
        return None  # it follows from the model that is given beside it
    if isinstance(value, tuple):
        return tuple(map(_hashable, value))
    if isinstance(value, Mapping):
        return tuple(value.items())
    return value  # type: ignore[no-any-return]


def remember() -> None:
    """From here on, reports that are made in this process share what is the same in them."""
    for name in FOUND:
        setattr(assembly, name, once(getattr(assembly, name)))
    operating_point.operating_point = assembly.operating_point
