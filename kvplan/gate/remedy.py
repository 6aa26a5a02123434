"""Smallest single change after which a requirement holds: of traffic, memory, replicas, or engine limits.

Each is found by inverting the report: its formulas are evaluated at larger and larger changes until all holds, and the
last step is narrowed down to the least that passes. It is then rounded to the passing side, as one would write it into
the profile, and the profile so changed is judged anew. A change that breaks a requirement met before is no remedy.
"""

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import ROUND_CEILING, ROUND_FLOOR, ROUND_HALF_EVEN, Decimal
from enum import StrEnum
from fractions import Fraction
from functools import cached_property
from itertools import product
from typing import Any

from kvplan.analysis.cached_equilibrium import users_of, with_part_of_users, with_rates_of_users
from kvplan.analysis.concurrency import engine_max_num_seqs
from kvplan.analysis.equilibrium import load, load_times
from kvplan.analysis.records import Load
from kvplan.analysis.stability import Stability, stability
from kvplan.analysis.worst_cycle import CycleKind
from kvplan.errors import UsageError
from kvplan.gate.judgement import Subject, holds
from kvplan.gate.requirement import Requirement
from kvplan.model import ServingModel, as_written
from kvplan.profile.positions import KeyPath, written
from kvplan.profile.reading import Profile
from kvplan.report.assembly import Analyses
from kvplan.report.blocks import good_rps
from kvplan.solve import boundary, first_of_steps, least_whole
from kvplan.units import BYTE_UNITS

MAX_FACTOR = 1000.0  # a thousandth of the traffic, or a thousand times the memory, is no remedy
_DIGITS = 4
_ALL_DIGITS = 17  # that a float can tell apart
_GROWTH = 4.0  # of the steps of a search
_FIRST_STEP = MAX_FACTOR / _GROWTH**11
_PRECISION = 1e-5

Passes = Callable[[Subject], bool]


class Lever(StrEnum):
    """Quantity that a remedy changes."""

    RATE = "rate"
    MEMORY = "memory"
    REPLICAS = "replicas"
    MAX_NUM_SEQS = "max_num_seqs"
    MAX_NUM_BATCHED_TOKENS = "max_num_batched_tokens"


@dataclass(frozen=True, slots=True)
class Change:
    """A value of the profile before and after; `path` leads to its key."""

    path: KeyPath
    before: float | int | str
    after: float | int | str

    @property
    def key(self) -> str:
        """The key as people write it."""
        return written(self.path)


@dataclass(frozen=True, slots=True)
class Remedy:
    """One change after which all wanted requirements hold.

    Attributes
    ----------
    amount
        Total rate of a replica, requests/s; or memory, tokens; or replicas; or the engine's limit.
    relative
        Size of the change: \\|after/before - 1\\| of rate, memory, replicas, or limit.
    changes
        The same in the profile of one replica.
    """

    lever: Lever
    amount: float
    relative: float
    changes: tuple[Change, ...]


def remedies(profile: Profile, subject: Subject, wanted: Sequence[Requirement]) -> tuple[Remedy, ...]:
    """Return the changes after which all that is wanted holds of a profile with this report, smallest change first.

    At most one for each lever.

    Examples
    --------
    >>> from io import BytesIO
    >>> from kvplan.gate.requirement import parse
    >>> from kvplan.profile.reading import load_profile
    >>> profile = load_profile("tool-calls-h100", stdin=BytesIO())
    >>> subject = Subject(Analyses(profile.model, profile.plan))
    >>> first, *_ = remedies(profile, subject, [parse("load.load_factor_max >= 1.25")])
    >>> first.lever, first.amount, first.changes[0].key
    (<Lever.RATE: 'rate'>, 43.89, 'classes[0].rate')
    """

    def passes(changed: Subject) -> bool:
        return all(holds(requirement, changed) for requirement in wanted)

    if any(requirement.key.path[0] == "verdict" for requirement in wanted):
        _ = subject.analyses.recovery  # once, for all rates
    return tuple(sorted(_Search(profile, subject, passes).remedies(), key=lambda remedy: remedy.relative))


# --------------------------------------------------------------------------------------------- inverting


def _least(passes: Callable[[float], bool]) -> float | None:
    """Return the least relative change that passes: the first step that does, narrowed down towards the one before.

    >>> _least(lambda x: x >= 0.3), _least(lambda x: False)  # doctest: +ELLIPSIS
    (0.3000..., None)
    """
    step = first_of_steps(passes, _FIRST_STEP, _GROWTH, MAX_FACTOR)
    if step is None:
        return None
    before = 0.0 if step == _FIRST_STEP else step / _GROWTH
    _, factor = boundary(lambda factor: passes(factor - 1), 1 + before, 1 + step, close=_PRECISION)
    return factor - 1


def _with_rate(subject: Subject, factor: float) -> Subject:
    analyses = subject.analyses
    changed = with_rates_of_users(with_part_of_users(analyses.model, factor))
    if users_of(analyses.model):
        return _with_model(subject, changed)
    shared: dict[str, object] = {"load": load_times(analyses.load, factor)}
    if analyses.model.finds_prefixes:  # what is always in use depends on rates
        good = analyses.prefix_cache and analyses.prefix_cache.sustainable_rps.good
        return _with_model(subject, changed, shared | ({} if good is None else {"_good_rps": good}))
    # the rate is no part of what a saturated replica does
    return _with_model(
        subject, changed, shared | _known(subject, "stability", "saturation", "worst_cycle", "recovery")
    )


def _with_model(subject: Subject, model: ServingModel, known: Mapping[str, object] | None = None) -> Subject:
    return Subject(
        _Searched(model, subject.analyses.plan, {"profile": subject.analyses.profile, **(known or {})})
    )


def _known(subject: Subject, *names: str) -> dict[str, object]:
    """Return the parts of a subject's analyses computed so far."""
    return {name: subject.analyses.__dict__[name] for name in names if name in subject.analyses.__dict__}


class _Searched(Analyses):
    """Analyses without parts that no requirement needs: sensitivities, stability advice, a warm cache's latency."""

    @cached_property
    def load(self) -> Load:
        return load(self.model, sensitive=False)

    @cached_property
    def stability(self) -> Stability:
        return stability(self.cold, advised=False)

    @cached_property
    def overloaded(self) -> bool:
        if not self.model.finds_prefixes or users_of(self.model):
            return super().overloaded
        # what a warm cache serves is no less than what is guaranteed
        return self.load.offered_rps > self.load.sustainable_rps and self.load.offered_rps > self._good_rps

    @cached_property
    def _good_rps(self) -> float:
        return good_rps(self.model)


# ---------------------------------------------------------------------------------- writing into a profile


@dataclass(frozen=True)
class _Search:
    """Search for the smallest change that passes, lever by lever."""

    profile: Profile
    subject: Subject
    passes: Passes

    def remedies(self) -> Iterator[Remedy]:
        """Yield a remedy for each lever that has one."""
        excess = _least(lambda x: self.passes(_with_rate(self.subject, 1 / (1 + x))))
        levers = [self._rate(excess), self._replicas(excess)] if excess else []
        levers += [self._memory(), *map(self._limit, (Lever.MAX_NUM_SEQS, Lever.MAX_NUM_BATCHED_TOKENS))]
        yield from filter(None, levers)

    def _rate(self, excess: float) -> Remedy | None:
        before = self.profile.model.total_rate_rps
        # The nearest decimal first: the inverse is known to a few digits, and may be a round number.
        for digits, rounding in (
            (_DIGITS, ROUND_HALF_EVEN),
            (_DIGITS, ROUND_FLOOR),
            (2 * _DIGITS, ROUND_FLOOR),
        ):
            changes = self._rates(1 / Fraction(1 + excess), digits, rounding)
            if (model := self._verified(changes)) is not None:
                after = model.total_rate_rps
                return Remedy(Lever.RATE, after, 1 - after / before, changes)
        return None

    def _replicas(self, excess: float) -> Remedy | None:
        if self.profile.model.fleet is not None:  # which says already how many there are
            return None
        least = max(2, math.ceil((1 + excess) * (1 - _PRECISION)))
        for replicas, digits in product((least, least + 1), (_DIGITS, 2 * _DIGITS, _ALL_DIGITS)):
            # rounded up: the replicas together serve all of it
            changes = self._rates(Fraction(1, replicas), digits, ROUND_CEILING, whole=math.ceil)
            if self._verified(changes) is not None:
                return Remedy(Lever.REPLICAS, replicas, replicas - 1.0, changes)
        return None

    def _memory(self) -> Remedy | None:
        replica = self.subject.analyses.model.replica
        before = replica.memory_tokens // replica.ranks

        def with_more(more: float) -> ServingModel | None:
            return self._verified(self._memory_of(before * (1 + more)))

        more = _least(lambda more: with_more(more) is not None)
        model = None if more is None else with_more(more)
        if more is None or model is None:
            return None
        after = model.replica.memory_tokens // model.replica.ranks
        return Remedy(Lever.MEMORY, after, after / before - 1, self._memory_of(before * (1 + more)))

    def _limit(self, lever: Lever) -> Remedy | None:
        """Raise the engine's limit that binds; or lower its requests at once until no preemption is possible.

        As all that is written into a profile here, of a data-parallel rank.
        """
        model, replica = self.subject.analyses.model, self.subject.analyses.model.replica.of_rank()
        before: int | None = getattr(replica, lever)
        if before is None:
            return None

        def is_enough(limit: float) -> bool:
            return self._verified((Change(("gpu", lever.value), before, int(limit)),)) is not None

        limit: int | None = None
        most = None
        if lever == self.subject.analyses.binding:
            most = first_of_steps(is_enough, 2.0 * before, 2.0, MAX_FACTOR * before)
        if most is not None:
            limit = least_whole(is_enough, int(most) // 2, int(most))
        elif lever is Lever.MAX_NUM_SEQS:
            fewer = engine_max_num_seqs(model) // model.replica.ranks
            change = Change(("gpu", lever.value), before, fewer)
            if 0 < fewer < before and self._verified((change,), overloads=False) is not None:
                limit = fewer
        if limit is None:
            return None
        return Remedy(lever, limit, abs(limit / before - 1), (Change(("gpu", lever.value), before, limit),))

    def _rates(
        self,
        factor: Fraction,
        digits: int,
        rounding: str,
        whole: Callable[[Fraction | Decimal], int] = math.floor,
    ) -> tuple[Change, ...]:
        """Change each key of a rate by a factor, and round it; users are made whole.

        Where a cycle was simulated the factor is rounded instead: in proportion, rates do not need another.
        """

        def amount(path: KeyPath, value: Fraction | Decimal) -> float | int:
            return max(1, whole(value)) if path[-1] == "users" else float(value)

        tables, analyses = self.profile.tables, self.subject.analyses
        keys: list[tuple[KeyPath, Any]] = [
            ((kind, i, key), table[key])
            for kind, key in (("classes", "rate"), ("sessions", "rate"), ("sessions", "users"))
            for i, table in enumerate(tables.get(kind, ()))
            if key in table
        ]
        if "rate" in tables.get("workload", {}):
            keys = [(("workload", "rate"), tables["workload"]["rate"]), *keys]
        asked = {"recovery", "worst_cycle"} & analyses.__dict__.keys()
        if asked and analyses.worst_cycle.kind is CycleKind.SIMULATED and len(keys) > 1:
            common = Fraction(_rounded(factor, digits, rounding))
            return tuple(
                Change(path, before, amount(path, as_written(before) * common)) for path, before in keys
            )
        return tuple(
            Change(path, before, amount(path, _rounded(as_written(before) * factor, digits, rounding)))
            for path, before in keys
        )

    def _memory_of(self, tokens: float) -> tuple[Change, ...]:
        """Write memory for so many tokens as the profile does: whole blocks, or bytes with their unit."""
        gpu = self.profile.tables["gpu"]
        block = self.subject.analyses.model.replica.block_tokens
        if "memory_tokens" in gpu:
            key = "memory_tokens"
            step = block * max(1, int(10 ** (math.floor(math.log10(tokens)) + 1 - _DIGITS)) // block)
            after: int | str = math.ceil(tokens / step) * step
        elif "kv_blocks" in gpu:
            key, after = "kv_blocks", math.ceil(tokens / block)
        else:
            key, unit = "memory", re.sub(r"[^A-Za-z]*([eE][+-]?\d+)?", "", gpu["memory"], count=1).strip()
            least = math.ceil(tokens / block) * block * gpu["kv_bytes_per_token"]
            after = f"{_rounded(Fraction(least) / BYTE_UNITS[unit], _DIGITS, ROUND_CEILING):f} {unit}"
        return (Change(("gpu", key), gpu[key], after),)

    def _verified(self, changes: Sequence[Change], *, overloads: bool = True) -> ServingModel | None:
        """Return the changed profile's model, if allowed and passing, and if it `overloads` or keeps up as before.

        Of the report only stability is taken over, which is of rates alone: if it is proved, or they are as they were.
        Shares of rates that were rounded differ in the last digit, far below what such a proof leaves.
        """
        try:
            model = self.profile.changed({change.path: change.after for change in changes}).model
        except UsageError:
            return None
        analyses = self.subject.analyses
        local = analyses.__dict__.get("stability")
        same_rates = all(change.path[0] == "gpu" for change in changes)
        holds = local is not None and (local.certified or same_rates) and not model.finds_prefixes
        known = {"stability": local} if holds else {}
        changed = _with_model(self.subject, model, known)
        if not overloads and changed.analyses.overloaded and not analyses.overloaded:
            return None
        return model if self.passes(changed) else None


def _rounded(value: Fraction, digits: int, rounding: str) -> Decimal:
    """Round to so many significant digits.

    >>> _rounded(Fraction("43.8959"), 4, ROUND_FLOOR), _rounded(Fraction(1234567), 4, ROUND_CEILING)
    (Decimal('43.89'), Decimal('1.235E+6'))
    """
    exact = Decimal(value.numerator) / Decimal(value.denominator)
    return exact.quantize(Decimal(1).scaleb(exact.adjusted() + 1 - digits), rounding=rounding)
