"""Plan → settings of an engine: which candidates gain anything.

Every candidate comes from a block of the report and is tried before it is recommended: the engine's policy is
simulated with and without it on the same requests (`kvplan.simulation.experiments.paired`). A cap does not always
help. Where prefill is cheap, preempting now and then costs less than the requests that a cap holds back; where it is
dear, or lengths are fixed, the cap wins. What goes back into the profile must not break its gate
(`kvplan.decide.settings_gate`).

Nothing here runs a simulation: `advise` is given a function that does.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from enum import StrEnum
from typing import NamedTuple

from kvplan.decide.requirement import Requirement
from kvplan.decide.settings_gate import Broken, SettingsGate
from kvplan.engines.base import LIMITS, Engine, Kind, Mention, Planned, Value
from kvplan.engines.candidates import Candidate, candidate, candidates, limits
from kvplan.engines.collapse import cache_notes, planned, protecting_cap
from kvplan.errors import UsageError
from kvplan.model import Plan, ServingModel
from kvplan.report.assembly import Report
from kvplan.report.verdict import requests_in_memory
from kvplan.report.words import Status
from kvplan.simulation.experiments.paired import Gains, Measured, Variant, advantage, gains
from kvplan.simulation.policies import POLICIES
from kvplan.units import format_number

LEAST_GAIN = 0.005  # that the 95 % interval of a gain must reach: less is not worth a setting
# an interval below 0 counts from there: when the last requests happen to end moves less
_LARGEST_LOSS = 0.001
_LEAST_ADDITION = 0.001  # to what is set already
_LEAST_REQUESTS, _MOST_REQUESTS = 2_000, 20_000
_SESSIONS = 3  # times the longest, one run
_TURNS = 10  # so many times what memory holds, the requests of a run
# in shorter runs filling and draining the memory move throughput by more than a setting does
_LEAST_TURNS = 8


class Verdict(StrEnum):
    """What became of a candidate."""

    EMITTED = "emitted"
    SURPASSED = "another value gains more"
    NO_BETTER = "gains no more than a smaller change"
    BREAKS = "breaks the gate"
    SHORT = "runs too short to tell"
    NO_USE = "adds nothing to the others"
    NO_GAIN = "gains nothing"
    LOSES = "loses"
    UNENDED = "could not be run to the end"


class Tried(NamedTuple):
    """A candidate after simulation."""

    candidate: Candidate
    gains: Gains | None  # None where a run could not be ended
    verdict: Verdict
    headroom: float | None = None  # `load.headroom` with it; None where no profile has such a setting
    broken: str = ""  # what of the gate it breaks


class Advice(NamedTuple):
    """Settings for an engine."""

    engine: Engine
    headroom: float | None  # `load.headroom` of the profile as it is
    tried: tuple[
        Tried, ...
    ]  # all candidates, in the order of the report's blocks; those to set are `EMITTED`
    together: Gains | None  # of all emitted settings at once, if there are several
    mentions: tuple[Mention, ...]
    notes: tuple[str, ...]
    planned: tuple[Planned, ...] = ()  # set without being tried

    @property
    def emitted(self) -> tuple[Tried, ...]:
        """What to set, most useful first."""
        found = [one for one in self.tried if one.verdict is Verdict.EMITTED]
        return tuple(sorted(found, key=_score_of, reverse=True))


Measure = Callable[[Sequence[Variant]], Sequence[Measured | None]]


def default_requests(model: ServingModel) -> int:
    """Requests of a run: so many that memory is filled several times over, and that many sessions begin and end.

    Examples
    --------
    >>> from kvplan.model import Replica, RequestClass, Timing
    >>> default_requests(ServingModel((RequestClass("a", 10, (9,), (1.0,), 1.0),), Timing(1.0), Replica(9000)))
    6000
    """
    wanted = math.ceil(_TURNS * requests_in_memory(model))
    longest = (c.sessions.turns.longest * c.sessions.think.mean_s for c in model.classes if c.sessions)
    wanted = max(wanted, math.ceil(_SESSIONS * max(longest, default=0.0) * model.total_rate_rps))
    return min(max(wanted, _LEAST_REQUESTS), _MOST_REQUESTS)


def _cap_within_the_gate(
    engine: Engine, judged: Sequence[Tried], gate: SettingsGate, model: ServingModel
) -> Iterator[Candidate]:
    """The smallest cap that breaks nothing, where smaller ones would gain and are refused for what they break."""
    name = LIMITS[Kind.RUNNING]
    caps = {int(one.candidate.value): one for one in judged if one.candidate.setting.kind is Kind.RUNNING}
    broken = [cap for cap, one in caps.items() if one.verdict is Verdict.BREAKS]
    most = int(min(math.ceil(requests_in_memory(model)), (model.replica.max_num_seqs or math.inf) - 1))
    if not broken or max(broken) >= most or gate.broken({name: most}):
        return
    cap = gate.least(name, max(broken), most)
    what = gate.broken({name: max(broken)})
    if cap not in caps and what is not None:
        why = f"the smallest that breaks nothing of the gate ({what.text})"
        setting = caps[max(broken)].candidate.setting
        yield candidate(engine, setting, Value(str(cap), what.key, why, cap))


# ---------------------------------------------------------------------------------------------------- judgement


def gains_something(found: Gains) -> bool:
    """Whether one of the two measures surely gains at least 0.5 %, and nothing surely loses.

    Saturated throughput must not lose even on average: the replica must never serve less for it.

    Examples
    --------
    >>> from kvplan.simulation.experiments.paired import Gain
    >>> even, more, less = Gain(0.0, -0.01, 0.01), Gain(0.02, 0.005, 0.035), Gain(-0.02, -0.03, -0.01)
    >>> gains_something(Gains(more, even, even)), gains_something(Gains(more, less, even))
    (True, False)
    >>> gains_something(Gains(Gain(0.02, 0.0049, 0.04), even, even))
    False
    """
    best = max(found.saturated_throughput.low, found.offered_e2e.low)
    return best >= LEAST_GAIN and found.saturated_throughput.mean >= 0 and not loses_something(found)


def loses_something(found: Gains) -> bool:
    """Whether a measure is surely worse, by more than the chance of when the last requests end.

    Examples
    --------
    >>> from kvplan.simulation.experiments.paired import Gain
    >>> even, less = Gain(0.0, 0.0, 0.0), Gain(-0.02, -0.03, -0.01)
    >>> loses_something(Gains(even, less, even)), loses_something(Gains(even, even, even))
    (True, False)
    """
    return any(gain.high < -_LARGEST_LOSS for gain in found)


def score(found: Gains) -> float:
    """By what candidates are compared: both gains together."""
    return found.saturated_throughput.mean + found.offered_e2e.mean


def _score_of(one: Tried) -> float:
    return -math.inf if one.gains is None else score(one.gains)


def _judged(one: Candidate, found: Gains | None, gate: SettingsGate, *, short: bool) -> Tried:
    """What becomes of a candidate as long as no other is looked at."""
    mine = limits([one])
    headroom = gate.headroom(mine) if mine else None
    if found is None:
        return Tried(one, None, Verdict.UNENDED, headroom)
    if not gains_something(found):
        verdict = Verdict.LOSES if loses_something(found) else Verdict.NO_GAIN
        return Tried(one, found, verdict, headroom)
    if what := gate.broken(mine):
        return Tried(one, found, Verdict.BREAKS, headroom, what.text)
    return Tried(one, found, Verdict.SHORT if short else Verdict.EMITTED, headroom)


def _best_of_each(
    tried: Sequence[Tried], results: Sequence[Measured | None], model: ServingModel
) -> tuple[Tried, ...]:
    """Of the settings to emit one value of each kind: the smallest change that cannot be told apart from the best."""
    good = [i for i, one in enumerate(tried) if one.verdict is Verdict.EMITTED]
    verdicts: dict[int, Verdict] = {}
    for kind in {tried[i].candidate.setting.kind for i in good}:
        mine = [i for i in good if tried[i].candidate.setting.kind is kind]
        best = max(mine, key=lambda i: _score_of(tried[i]))
        level = [i for i in mine if not _is_better(results[best], results[i])]
        least = min(level, key=lambda i: _change(tried[i].candidate, model))
        verdicts |= dict.fromkeys(mine, Verdict.SURPASSED)
        verdicts |= dict.fromkeys(level, Verdict.NO_BETTER)
        verdicts[least] = Verdict.EMITTED
    return tuple(one._replace(verdict=verdicts.get(i, one.verdict)) for i, one in enumerate(tried))


def _is_better(one: Measured | None, other: Measured | None) -> bool:
    """Whether the first surely gains more than the second, and enough more."""
    return one is not None and other is not None and advantage(other, one).low > _LEAST_ADDITION


def _change(one: Candidate, model: ServingModel) -> float:
    """How much of a change a value is against what is there without it, to be compared within a kind."""
    [(_, number)] = one.variant.parameters or [("", 0.0)]
    match one.setting.kind:
        case Kind.RUNNING:
            return -number
        case Kind.TOKENS if model.replica.max_num_batched_tokens is not None:
            return abs(math.log(number / model.replica.max_num_batched_tokens))
        case Kind.TOKENS:
            return -number
        case Kind.CONSERVATIVENESS:
            return abs(math.log(number))  # 1 is the default
        case _:
            return number


def together(policy: str, variants: Sequence[Variant]) -> Variant:
    """Several settings at once.

    >>> one, two = Variant("vllm", (("max_num_seqs", 9.0),)), Variant("vllm", (("watermark", 0.1),))
    >>> together("vllm", [one, two])
    Variant(policy='vllm', parameters=(('max_num_seqs', 9.0), ('watermark', 0.1)))
    """
    policies = [v.policy for v in variants if v.policy != policy]
    return Variant(policies[0] if policies else policy, tuple(p for v in variants for p in v.parameters))


# ------------------------------------------------------------------------------------------------------- advice


def advise(
    engine: Engine,
    report: Report,
    model: ServingModel,
    plan: Plan,
    *,
    requests: int,
    measure: Measure,
    required: Sequence[Requirement] = (),
) -> Advice:
    """Try every candidate and keep what gains.

    Of several values of a setting the best is kept, or a smaller change that cannot be told apart from it. A value
    that breaks the gate is left out, and so is all that was found in runs too short to tell. Kept settings are then
    simulated together, the most useful first: another one stays only if it adds to those before it.

    `measure` makes runs of so many `requests` and gives None where one could not be ended. Besides what is `required`,
    the verdict must not get worse.

    Raises
    ------
    UsageError
        With the engine's defaults some request never fits, or the model has what the engine's policy does not model.

    Examples
    --------
    >>> from kvplan.engines.vllm import ENGINE
    >>> from kvplan.model import Replica, RequestClass, Timing
    >>> from kvplan.report.assembly import analyze
    >>> model = ServingModel((RequestClass("a", 15, (10,), (1.0,), 1.0),), Timing(1.0), Replica(1025))
    >>> same = Measured((1.0, 1.0), (1.0, 1.0), (1.0, 1.0), 0)
    >>> report = analyze(model, name="", sha256="")
    >>> advise(ENGINE, report, model, Plan(), requests=99, measure=lambda tried: [same] * len(tried)).emitted
    ()
    """
    if (what := POLICIES[engine.policy].lacks(model)) is not None:
        raise UsageError(
            f"--engine {engine.name}: its scheduler is not simulated beside {what}; that of vllm is"
        )
    cap = protecting_cap(report)
    before = SettingsGate(model, plan, required, report.profile, report.stability)
    gate, measure, broken = before, _with_cap(engine, cap, measure), None
    if cap is not None:
        name = LIMITS[Kind.RUNNING]
        limited = replace(model, replica=replace(model.replica, max_num_seqs=cap))
        gate, broken = (
            SettingsGate(limited, plan, required, report.profile, report.stability),
            before.broken({name: cap}),
        )
    found = candidates(engine, report, model)
    without, *results = measure([Variant(engine.policy), *(c.variant for c in found)])
    if without is None:
        raise UsageError(
            f"--engine {engine.name}: with its defaults a request never fits in the blocks that it may use, even alone"
        )
    short = requests < _LEAST_TURNS * requests_in_memory(model)

    def judged(one: Candidate, result: Measured | None) -> Tried:
        return _judged(one, None if result is None else gains(without, result), gate, short=short)

    all_judged = [judged(c, result) for c, result in zip(found, results, strict=True)]
    for larger in _cap_within_the_gate(engine, all_judged, gate, model):
        results += measure([larger.variant])
        all_judged.append(judged(larger, results[-1]))
    tried = _best_of_each(all_judged, results, model)
    chosen, all_at_once = _adding_up(engine.policy, tried, without, measure, gate)
    tried = tuple(
        one._replace(verdict=Verdict.NO_USE) if one.verdict is Verdict.EMITTED and one not in chosen else one
        for one in tried
    )
    cap_set = (
        cap
        if cap is not None
        else limits([one.candidate for one in chosen]).get(LIMITS[Kind.RUNNING], math.inf)
    )
    number = 0 if model.drafts is None else model.drafts.tokens
    drafts = (engine.drafts(number),) if number and engine.drafts is not None else ()
    return Advice(
        engine=engine,
        headroom=gate.headroom({}),
        tried=tried,
        together=all_at_once,
        mentions=engine.mentions(report, model, plan, cap_set),
        notes=(*_of_cap(cap, broken), *_notes(engine, report, model, without, requests)),
        planned=(*drafts, *planned(engine, report, model)),
    )


def _with_cap(engine: Engine, cap: int | None, measure: Measure) -> Measure:
    """Runs with as many running requests as keep the prefix cache."""
    if cap is None:
        return measure
    [name] = {setting.parameter for setting in engine.settings if setting.kind is Kind.RUNNING}

    def capped(variants: Sequence[Variant]) -> Sequence[Measured | None]:
        own = ((name, float(cap)),)
        return measure([Variant(v.policy, (*own, *v.parameters)) for v in variants])

    return capped


def _of_cap(cap: int | None, broken: Broken | None) -> Iterator[str]:
    if cap is not None and broken is not None:
        yield (
            f"In the profile, a limit of {cap} running requests breaks {broken.text}: without it the cache can "
            "collapse, and more memory or replicas are the way out."
        )


def _adding_up(
    policy: str, tried: Sequence[Tried], without: Measured, measure: Measure, gate: SettingsGate
) -> tuple[list[Tried], Gains | None]:
    """The most useful setting, those that add to it, and what they gain together if they are several."""
    ranked = sorted((one for one in tried if one.verdict is Verdict.EMITTED), key=_score_of, reverse=True)
    chosen, all_at_once = ranked[:1], None
    for one in ranked[1:]:
        both = [other.candidate for other in (*chosen, one)]
        if gate.broken(limits(both)):
            continue
        [result] = measure([together(policy, [other.variant for other in both])])
        more = None if result is None else gains(without, result)
        so_far = _score_of(chosen[0]) if all_at_once is None else score(all_at_once)
        if more is not None and gains_something(more) and score(more) > so_far + _LEAST_ADDITION:
            chosen, all_at_once = [*chosen, one], more
    return chosen, all_at_once


def _notes(
    engine: Engine,
    report: Report,
    model: ServingModel,
    without: Measured,
    requests: int,
) -> Iterator[str]:
    if engine.note:
        yield engine.note
    yield from cache_notes(engine, report, model)
    if POLICIES[engine.policy].evicts and without.evictions == 0:
        yield (
            "With the engine's defaults nobody was preempted in any run: there is nothing that a cap or a watermark "
            "could prevent."
        )
    if not model.arrivals.is_poisson:
        kind = "cluster" if model.arrivals.trace is None else "are those of its trace"
        yield f"Requests at the offered rate {kind}, as the profile says."
    if report.verdict.status is Status.OVERLOADED:
        yield (
            "The offered load is more than can be sustained: its queue grows as long as the run lasts, and so does "
            "the mean time end to end."
        )
    held = requests_in_memory(model)
    if requests < _LEAST_TURNS * held:
        yield (
            f"Memory holds some {format_number(held, 2)} requests: runs of {format_number(requests)} are mostly "
            f"filling and draining, and nothing is recommended from fewer than {_LEAST_TURNS} times as many. Take "
            f"{format_number(math.ceil(_TURNS * held))} with --requests."
        )
    if model.mix.share.size == 1:
        yield "All requests are alike: saturated runs have no chance in them, and their intervals no width."
    if model.replica.max_num_batched_tokens is None:
        yield (
            "The profile has no max_num_batched_tokens, so prompts are computed whole; engines have a limit of "
            "their own. Put it into the profile for figures that hold for it."
        )
