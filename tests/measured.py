"""What takes seconds to say of a model, found once in a session: hundreds of tests ask for reports of the same few."""

import os
import pickle
from collections import OrderedDict
from collections.abc import Callable, Hashable, Mapping
from dataclasses import replace
from functools import wraps
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from kvplan.model import Plan, ServingModel
from kvplan.planning import plan as planning
from kvplan.report import figures
from kvplan.report.assembly import Analyses, ProfileIdentity, Report, report_of
from kvplan.show import charts
from kvplan.study import lasting, operating_point
from kvplan.study.drain import Drain
from kvplan.study.headroom import Size
from kvplan.study.operating_point import OperatingPoint

FOUND = ("advice", "drain", "goodput", "operating_point", "recovery", "worst_cycle")
KEPT = 60  # answers to each question in a process
SHARED = Path(os.environ["KVPLAN_TESTS_SHARE"])
PLAN = Plan()


def once(find: Callable[..., Any]) -> Callable[..., Any]:
    """Find what follows from the arguments alone the first time that it is asked for.

    The last answers are remembered, and all are kept for the other processes of the session.
    """
    answers: OrderedDict[Hashable, Any] = OrderedDict()

    @wraps(find)
    def remembered(*given: Any, **named: Any) -> Any:
        question = _hashable((given, tuple(named.items()), lasting._MOST_REQUESTS))
        if question not in answers:
            answers[question] = _shared(find, question, lambda: find(*given, **named))
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


def _shared(find: Callable[..., Any], question: Hashable, answer: Callable[[], Any]) -> Any:
    """The answer that another process kept, else one that is kept for others, where a text says what was asked."""
    words = repr(question)
    if " at 0x" in words:  # an object is in it that has no words
        return answer()
    name = sha256(f"{find.__module__}.{find.__name__}{words}".encode()).hexdigest()
    kept = SHARED / f"{name}.answer"
    if kept.exists():
        return pickle.loads(kept.read_bytes())
    found = answer()
    whole = kept.with_suffix(f".{os.getpid()}")
    whole.write_bytes(pickle.dumps(found))
    whole.replace(kept)
    return found


def _of_request(find: Callable[..., Any]) -> Callable[..., Any]:
    """A search whose answer follows from the request, which is told apart by its words."""
    answers: dict[str, Any] = {}

    @wraps(find)
    def remembered(request: planning.Request, *how: Any, **named: Any) -> Any:
        words = f"{request!r} {lasting._MOST_REQUESTS}"
        if words not in answers:
            answers[words] = _shared(find, words, lambda: find(request, *how, **named))
        return answers[words]

    return remembered


def _of_size(find: Callable[..., Any]) -> Callable[..., Any]:
    """A search whose answer follows from the size alone, and not from what was found of it before."""

    @wraps(find)
    def remembered(size: Size, own: Callable[[], Any]) -> Any:
        question = (replace(size.task), *size[1:])
        return _shared(find, question, lambda: find(size, own))

    return remembered


UNDRAINED = Drain(None, None, None, None, "no burst is looked at")


def brief(model: ServingModel, plan: Plan = PLAN) -> Analyses:
    """Analyses without a burst, headroom and advice, which take most of the time, for who looks at other blocks."""
    return Analyses(model, plan, {"advice": (), "drain": UNDRAINED, "headroom": None})


def brief_report(model: ServingModel, plan: Plan = PLAN, name: str = "a model") -> Report:
    """The report of `brief`."""
    analyses = brief(model, plan)
    analyses.profile = ProfileIdentity(name, "5e6f" * 16)
    return report_of(analyses)


def leave_out_runs(patch: pytest.MonkeyPatch) -> None:
    """Make all reports as `brief` does; none of them is shared."""
    patch.setattr(figures, "advice", lambda *_: ())
    patch.setattr(figures, "drain", lambda *_: UNDRAINED)
    patch.setattr(figures, "headroom", lambda *_: None)
    patch.setattr(planning, "plan", getattr(planning.plan, "__wrapped__", planning.plan))


DAYS = {"_MOST_REQUESTS": lasting._MOST_REQUESTS, "_MOST_WORK_S": lasting._MOST_WORK_S}


def remember() -> None:
    """From here on, reports and plans that are made in this process share what is the same in them.

    That a rate lasts is seen in a thirtieth of a day, but where a test asks for the fixture `days`.
    """
    for name, most in DAYS.items():
        setattr(lasting, name, type(most)(most / 30))
    for name in FOUND:
        setattr(figures, name, once(getattr(figures, name)))
    figures.headroom = _of_size(figures.headroom)
    operating_point.operating_point = figures.operating_point
    charts.load_curve = once(charts.load_curve)
    planning.plan = _of_request(planning.plan)
