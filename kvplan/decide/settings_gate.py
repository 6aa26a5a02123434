"""A profile with settings put back into it: what of its gate they break, and what headroom they leave."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from kvplan.analysis.equilibrium import load
from kvplan.analysis.stability import Stability
from kvplan.decide.gate import Subject, holds
from kvplan.decide.requirement import Requirement
from kvplan.model import Plan, ServingModel
from kvplan.report.assembly import Analyses, ProfileIdentity
from kvplan.report.words import Status

_WORSE = (Status.STABLE, Status.NEEDS_CAP, Status.OVERLOADED)  # each than those before it


class Broken(NamedTuple):
    """What settings break: a key of the report, and what is no longer so."""

    key: str
    text: str


class SettingsGate:
    """What a profile demands of itself, to be asked about limits that are put into its `[gpu]`.

    No limit changes `stability`; it is computed unless it is known.

    Examples
    --------
    >>> from kvplan.analysis.stability import Stability
    >>> from kvplan.decide.requirement import parse
    >>> from kvplan.model import Replica, RequestClass, Timing
    >>> model = ServingModel((RequestClass("a", 15, (10,), (1.0,), 4.0),), Timing(1.0), Replica(1025))
    >>> gate = SettingsGate(model, Plan(), [parse("load.headroom >= 0.2")])
    >>> gate.headroom({}), round(gate.headroom({"max_num_seqs": 41}), 3)
    (0.25, 0.025)
    >>> gate.broken({"max_num_seqs": 41})
    Broken(key='load.headroom', text='load.headroom >= 0.2')
    >>> gate.broken({"max_num_seqs": 49}) is None
    True
    """

    def __init__(
        self,
        model: ServingModel,
        plan: Plan,
        required: Sequence[Requirement] = (),
        identity: ProfileIdentity | None = None,
        stability: Stability | None = None,
    ) -> None:
        self._model, self._plan = model, plan
        self._known = {} if stability is None else {"stability": stability}
        self._identity = identity or ProfileIdentity("", "")
        self._subjects: dict[tuple[tuple[str, int], ...], Subject] = {}
        before = self._subject({})
        self._met = [one for one in required if holds(one, before)]

    def broken(self, limits: Mapping[str, int]) -> Broken | None:
        """The first thing that is worse with these limits: a requirement no longer met, else the verdict."""
        if not limits:
            return None
        subject = self._subject(limits)
        for one in self._met:
            if not holds(one, subject):
                return Broken(one.key.text, one.text)
        before, after = (self._subject(x).analyses.verdict.status for x in ({}, limits))
        if _WORSE.index(after) > _WORSE.index(before):
            return Broken("verdict.status", f"verdict.status stays {before}")
        return None

    def headroom(self, limits: Mapping[str, int]) -> float | None:
        """`load.headroom` with these limits."""
        return load(self._subject(limits).analyses.model, sensitive=False).headroom

    def least(self, name: str, low: int, high: int) -> int:
        """The smallest limit that breaks nothing, above `low`, which breaks something, up to `high`, which does not."""
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if self.broken({name: middle}) else (low, middle)
        return high

    def _subject(self, limits: Mapping[str, int]) -> Subject:
        key = tuple(sorted(limits.items()))
        if key not in self._subjects:
            changes: dict[str, Any] = dict(limits)
            model = replace(self._model, replica=replace(self._model.replica, **changes))
            self._subjects[key] = Subject(self._identity, Analyses(model, self._plan, self._known))
        return self._subjects[key]
