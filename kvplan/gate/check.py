"""Profiles against demands: requirements, and drift from an earlier report.

A profile passes, fails, or cannot be judged. One thing that cannot be judged is enough for the latter: then nothing
about the profile is called passed.
"""

import json
import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import partial
from typing import Any, NamedTuple, TypeAlias, TypeVar

from kvplan.errors import ExitCode, ProfileError, UsageError
from kvplan.gate.judgement import Judgement, Subject, holds, is_costly, judge, value_of
from kvplan.gate.remedy import Remedy, remedies
from kvplan.gate.requirement import Key, Requirement, parse, parse_key, parse_number
from kvplan.options import CheckOptions
from kvplan.profile.reading import Profile, read_file
from kvplan.report.assembly import SCHEMA_VERSION, Analyses, ProfileIdentity
from kvplan.report.inputs import assumed, band_notes, doubts
from kvplan.report.keys import Kind, Record
from kvplan.simulation.experiments.runner import Progress

_T = TypeVar("_T")
# Where a profile makes a demand, empty where another does; and its result
_Demand = tuple[tuple[str | int, ...], Callable[[Subject], "Result"]]
_MEASURED_BY = {"gpu": "LOG", "timing": "RESULT...", "workload": "REQUESTS"}


class Outcome(StrEnum):
    """Verdict on a profile."""

    PASSED = "passed"
    FAILED = "failed"
    UNUSABLE = "unusable"


class Origin(StrEnum):
    """Source of a demand."""

    PROFILE = "profile"
    OPTION = "option"
    BASELINE = "baseline"
    METRICS = "metrics"


@dataclass(frozen=True, slots=True)
class Tolerance:
    """Drift of a key from a baseline that is tolerated, up or down, as a share of the value there."""

    key: Key
    share: float


@dataclass(frozen=True, slots=True)
class Baseline:
    """An earlier report, and the keys compared with it."""

    source: str
    document: Mapping[str, Any]
    tolerances: tuple[Tolerance, ...]

    @property
    def name(self) -> object:
        """The name of the profile that it reports on."""
        profile = self.document.get("profile")
        return profile.get("name") if isinstance(profile, dict) else None


Demands: TypeAlias = tuple[Sequence[Requirement], Baseline | None]  # beside what profiles require themselves


@dataclass(frozen=True, slots=True)
class Result:
    """One demand as written, and a profile's result; a drift, where there is no requirement.

    `line` is where the profile makes the demand; or else of the value to change first, where it fails. `tried` tells
    whether remedies were looked for.
    """

    origin: Origin
    line: int | None
    text: str
    key: Key
    bound: str
    wanted: float | str | bool
    requirement: Requirement | None
    judgement: Judgement
    remedies: tuple[Remedy, ...] = ()
    tried: bool = False

    def same(self, other: "Result") -> bool:
        """Tell whether both demand the same, however it is written."""
        mine, theirs = self.requirement, other.requirement
        if mine is None or theirs is None:
            return self.text == other.text
        return (mine.key.path, mine.symbol, mine.wanted) == (theirs.key.path, theirs.symbol, theirs.wanted)


@dataclass(frozen=True, slots=True)
class Problem:
    """Reason why something cannot be judged, and its line in the file."""

    message: str
    line: int | None = None


class Checked(NamedTuple):
    """A profile, judged.

    `source` is what messages call it, `file` None for standard input and shipped profiles, name and hash None where it
    cannot be read. There are no results where anything cannot be judged; `remedies` are those of everything at once,
    where several requirements fail, and `notes` say what the inputs are worth.
    """

    source: str
    file: str | None
    name: str | None
    sha256: str | None
    results: tuple[Result, ...]
    problems: tuple[Problem, ...]
    remedies: tuple[Remedy, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def outcome(self) -> Outcome:
        """Unusable, if anything is; else failed, if anything is."""
        if self.problems:
            return Outcome.UNUSABLE
        return Outcome.PASSED if all(r.judgement.passed for r in self.results) else Outcome.FAILED


def worst(checked: Sequence[Checked]) -> Outcome:
    """Return the outcome of all together: unusable outweighs failed; unusable where there is none."""
    outcomes = {each.outcome for each in checked} or {Outcome.UNUSABLE}
    return next(o for o in (Outcome.UNUSABLE, Outcome.FAILED, Outcome.PASSED) if o in outcomes)


def exit_code(checked: Sequence[Checked]) -> ExitCode:
    """Return 2 if any profile cannot be judged, else 1 if any fails, else 0."""
    codes = {Outcome.UNUSABLE: ExitCode.USAGE, Outcome.FAILED: ExitCode.GATE_FAILED}
    return codes.get(worst(checked), ExitCode.DONE)


def unusable(file: str | None, error: ProfileError) -> Checked:
    """Return the result for a profile that cannot be read."""
    problems = (Problem(str(refusal), getattr(refusal, "line", None)) for refusal in (error, *error.others))
    return Checked(error.source, file, None, None, (), tuple(problems))


def check(
    profile: Profile,
    file: str | None,
    required: Sequence[Requirement],
    baseline: Baseline | None = None,
    *,
    accepted: Collection[str] = (),
    alone: bool = True,
    changes: bool = True,
    progress: Progress | None = None,
) -> Checked:
    """Judge a profile by its own requirements, by others, and by an earlier report.

    Parts that are assumed are refused, except those that the profile or `accepted` names. `alone`: no other profile is
    compared with the same baseline, so that the name there need not be this one's. `changes` that would pass are looked
    for where something fails; `progress` is told how far runs are that take seconds.

    Examples
    --------
    >>> from io import BytesIO
    >>> from kvplan.profile.reading import load_profile
    >>> profile = load_profile("tool-calls-h100", stdin=BytesIO())
    >>> check(profile, None, [parse("load.load_factor_max >= 1.2")], accepted=["workload"]).outcome
    <Outcome.PASSED: 'passed'>
    >>> check(profile, None, [parse("load.load_factor_max >= 1.2")]).outcome
    <Outcome.UNUSABLE: 'unusable'>
    """
    identity = {"profile": ProfileIdentity(profile.name, profile.sha256)}
    subject = Subject(Analyses(profile.model, profile.plan, identity, progress=progress), tries=True)
    results: list[Result] = []
    problems = list(_refused(profile, {*profile.accepted, *accepted}))

    def judge_all(demands: Iterable[_Demand]) -> None:
        for place, result_of in demands:
            try:
                result = result_of(subject)
            except UsageError as error:
                problems.append(_problem(profile, error, place))
            else:
                results.extend([] if any(map(result.same, results)) else [result])

    judge_all(_own(profile))
    judge_all(((), partial(_required, requirement, Origin.OPTION, None)) for requirement in required)
    if baseline is not None and not alone and baseline.name != profile.name:
        about = f"{baseline.source} is a report on {baseline.name!r}, not on {profile.name!r}"
        error = UsageError(f"{about}; check this profile with a baseline of its own")
        problems.append(_problem(profile, error))
    elif baseline is not None:
        judge_all(((), partial(_drift, tolerance, baseline)) for tolerance in baseline.tolerances)
    if not results and not problems:
        missing = "[gate] require is empty, and no --require or --tolerance is given"
        problems.append(_problem(profile, UsageError(f"nothing is required of it: {missing}")))
    if problems:
        return Checked(profile.source, file, profile.name, profile.sha256, (), tuple(problems))
    answered, together = _with_remedies(profile, subject, results) if changes else (tuple(results), ())
    notes = (*_notes(profile, subject), *_missed(subject.analyses, results))
    return Checked(profile.source, file, profile.name, profile.sha256, answered, (), together, notes)


def _refused(profile: Profile, accepted: Collection[str]) -> Iterator[Problem]:
    """Refuse parts that are assumed, with the way out; nothing where all are accepted."""
    parts = [name for name in assumed(profile.model) if name not in accepted]
    if not parts:
        return
    sources = dict.fromkeys(getattr(profile.model.provenance, name).source for name in parts)
    known = "; ".join(source for source in sources if source)
    *others, last = parts
    named = f"{', '.join(others)} and {last} are" if others else f"{last} is"
    measured = ", ".join(f"{name}: kvplan import {_MEASURED_BY[name]}" for name in parts)
    accept = " ".join(f"--accept {name}" for name in parts)
    refusal = profile.error(
        f"{named} assumed{f' ({known})' if known else ''}, and no gate passes on that; measure ({measured}), state in "
        f"[provenance] what is known better, or accept it as it is: [gate] accept = {json.dumps(parts)}, or {accept}",
        *("provenance", parts[0]),
    )
    yield Problem(str(refusal), refusal.line)


def _notes(profile: Profile, subject: Subject) -> Iterator[str]:
    analyses = subject.analyses
    yield from doubts(analyses.model)
    if profile.model.measured.band is not None:
        yield from band_notes(analyses.model, analyses.load, analyses.drains_up_to_rps)


def _missed(analyses: Analyses, results: Sequence[Result]) -> Iterator[str]:
    """Name objectives that are missed for sure at the offered rate, where no requirement is about latencies."""
    if any(result.key.path[0] in ("goodput", "latency") for result in results):
        return
    for slo in analyses.objectives:
        latency = analyses.latency
        time, _, figure = slo.key.partition(".")
        value = None if not slo.of_all else getattr(getattr(latency, time), figure)
        if value is None or slo.holds(value):
            continue
        least, _ = latency.ci95.get(slo.key, (value, None))
        if not slo.holds(least):
            yield (
                f"{slo.key} of [slo] is missed: it is {slo.written(value)} at the offered rate. To gate that: "
                f"latency.{slo.text}."
            )


def _problem(profile: Profile, error: UsageError, place: tuple[str | int, ...] = ()) -> Problem:
    if not place:
        return Problem(f"{profile.source}: {error}")
    refusal = profile.error(str(error), *place)
    return Problem(str(refusal), refusal.line)


def _own(profile: Profile) -> Iterator[_Demand]:
    for i, text in enumerate(profile.requirements):
        place = ("gate", "require", i)
        yield place, partial(_required, text, Origin.PROFILE, profile.line(*place))


def _required(demand: Requirement | str, origin: Origin, line: int | None, subject: Subject) -> Result:
    requirement = parse(demand) if isinstance(demand, str) else demand
    judgement = judge(requirement, subject)
    bound = f"{requirement.symbol} {requirement.bound}"
    return Result(
        origin, line, requirement.text, requirement.key, bound, requirement.wanted, requirement, judgement
    )


def _with_remedies(
    profile: Profile, subject: Subject, results: Sequence[Result]
) -> tuple[tuple[Result, ...], tuple[Remedy, ...]]:
    """Add the remedies of each result, and return those of all at once where several fail.

    No change is tried on a warm prefix cache, nor for goodput: requirements on these have no remedies, and do not
    limit those of others.
    """
    demanded = [r.requirement for r in results if r.requirement is not None]
    known = [requirement for requirement in demanded if not is_costly(requirement.key)]
    met = [requirement for requirement in known if holds(requirement, subject)]
    failed = [requirement for requirement in known if requirement not in met]
    answered = tuple(
        _located(profile, replace(r, remedies=remedies(profile, subject, [r.requirement, *met]), tried=True))
        if r.requirement in known and not r.judgement.passed
        else r
        for r in results
    )
    at_once = len(failed) > 1 and all(holds(r, subject) for r in demanded if r not in known)
    return answered, remedies(profile, subject, known) if at_once else ()


def _located(profile: Profile, result: Result) -> Result:
    """Add the line of the value to change first, where nothing in the profile demands it."""
    changes = [change for remedy in result.remedies for change in remedy.changes]
    if result.line is not None or not changes:
        return result
    return replace(result, line=profile.line(*changes[0].path))


# ------------------------------------------------------------------------------------------------ baseline


_DRIFT = Key("the tolerated drift", (), Record("", ""))


def demands(asked: CheckOptions) -> Demands:
    """Read requirements beside those of profiles, and an earlier report with how far a profile may drift from it."""
    required = [_read("--require", parse, text) for text in asked.require]
    if asked.baseline is None and asked.tolerance:
        raise UsageError("--tolerance says how far a report may drift from --baseline, which is not given")
    if asked.baseline is None:
        return required, None
    if not asked.tolerance:
        raise UsageError("--baseline is compared with nothing: say what may drift with --tolerance KEY=SHARE")
    tolerated = tuple(_read("--tolerance", read_tolerance, text) for text in asked.tolerance)
    data, source = read_file(str(asked.baseline))
    return required, Baseline(source, read_report(data, source), tolerated)


def _read(option: str, reader: Callable[[str], _T], text: str) -> _T:
    try:
        return reader(text)
    except UsageError as error:
        raise UsageError(f"{option}: {error}") from None


def read_tolerance(text: str) -> Tolerance:
    """Read a drift that is tolerated, ``KEY=2%``.

    >>> tolerance = read_tolerance("load.sustainable_rps=2%")
    >>> tolerance.key.path, tolerance.share
    (('load', 'sustainable_rps'), 0.02)
    """
    name, equals, share = text.rpartition("=")
    if not equals:
        raise UsageError(f"must be KEY=SHARE, such as load.sustainable_rps=2%, not {text[:80]!r}")
    key = parse_key(name.strip())
    if key.kind is not Kind.NUMBER:
        raise UsageError(f"{key.text} is {key.kind} and cannot drift; demand it with --require")
    tolerated = parse_number(_DRIFT, share.strip())
    if tolerated < 0:
        raise UsageError(f"{key.text}: the tolerated drift cannot be negative, as {share.strip()!r} is")
    if tolerated > 1:
        meant = "" if share.strip().endswith("%") else f"; did you mean {share.strip()}%?"
        raise UsageError(
            f"{key.text}: within {share.strip()} of the baseline no fall can fail; at most 100%{meant}"
        )
    return Tolerance(key, tolerated)


def read_report(data: bytes, source: str) -> dict[str, Any]:
    """Read a report that ``kvplan analyze --format json`` has written.

    >>> read_report(b'{"schema_version": 2, "load": {"headroom": 0.5}}', "old.json")["load"]
    {'headroom': 0.5}
    """
    try:
        document = json.loads(data, parse_constant=_refuse_constant, object_pairs_hook=_once_each)
    except (ValueError, RecursionError) as error:
        what = "nested too deeply" if isinstance(error, RecursionError) else error
        raise UsageError(f"{source}: not JSON: {what}") from None
    if not isinstance(document, dict) or "schema_version" not in document:
        raise UsageError(
            f"{source}: not a report of `kvplan analyze --format json`: it has no schema_version"
        )
    version = document["schema_version"]
    if type(version) is not int or version != SCHEMA_VERSION:
        raise UsageError(f"{source}: schema_version must be {SCHEMA_VERSION}, not {str(version)[:60]!r}")
    return document


def _once_each(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    table = dict(pairs)
    if len(table) < len(pairs):
        twice = next(key for i, (key, _) in enumerate(pairs) if key in dict(pairs[:i]))
        raise ValueError(f"the key {twice[:60]!r} stands in it twice")
    return table


def _refuse_constant(constant: str) -> float:
    raise ValueError(f"{constant} is not a number of JSON")


def _drift(tolerance: Tolerance, baseline: Baseline, subject: Subject) -> Result:
    key = tolerance.key
    try:
        then = value_of(key, baseline.document.__getitem__)
    except KeyError:
        raise UsageError(f"{baseline.source}: {key.text} is not in this report") from None
    except UsageError as error:
        raise UsageError(f"{baseline.source}: {error}") from None
    now = subject.value(key)
    assert not isinstance(then, bool | str)
    assert not isinstance(now, bool | str)
    allowed = tolerance.share * abs(then)
    margin = allowed - abs(now - then)
    doubt = subject.doubt(key) or _old_doubt(key, baseline)
    passed = math.isfinite(margin) and margin >= 0 and not doubt
    share = f"{tolerance.share:.6%}".rstrip("0%").rstrip(".") + "%"
    text = f"{key.text} within {share} of the baseline"
    judgement = Judgement(now, margin, passed, doubt)
    return Result(Origin.BASELINE, None, text, key, f"± {share}", then, None, judgement)


def _old_doubt(key: Key, baseline: Baseline) -> str:
    local = baseline.document.get("stability")
    uncertain = key.path[0] == "stability" and not (
        isinstance(local, dict) and local.get("certified") is True
    )
    return "stability was uncertified in the baseline" if uncertain else ""
