"""Plan → settings of vLLM, SGLang and TensorRT-LLM: candidates from the report, and which of them gain anything.

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

from kvplan.analysis.equilibrium import saturation
from kvplan.analysis.overflow import safety_buffer
from kvplan.decide.gate import Requirement
from kvplan.decide.settings_gate import SettingsGate
from kvplan.errors import UsageError
from kvplan.model import Plan, ServingModel
from kvplan.report.assembly import Report, Status, requests_in_memory
from kvplan.simulation.experiments.paired import Gains, Measured, Variant, advantage, gains
from kvplan.simulation.policies.sglang import FORESIGHT, ratios
from kvplan.units import format_number, format_seconds, format_tokens

LEAST_GAIN = 0.005  # that the 95 % interval of a gain must reach: less is not worth a setting
_LARGEST_LOSS = (
    0.001  # from which an interval below 0 counts: when the last requests happen to end moves less
)
_LEAST_ADDITION = 0.001  # to what is set already
_STEPS = (2, 4)  # times the iteration of a full replica that one with as much prefill as allowed may take
_SHARES = {1: "one", 2: "half a", 4: "a quarter of a", 8: "an eighth of a"}  # standard deviation of KV usage
_SUGGESTED = 0.3  # of --schedule-conservativeness
_LEAST_REQUESTS, _MOST_REQUESTS = 2_000, 20_000
_TURNS = 10  # so many times what memory holds, the requests of a run
_LEAST_TURNS = (
    8  # in shorter runs filling and draining the memory move throughput by more than a setting does
)
_ANY_DELTA, _ANY_HORIZON_S = 0.01, 3600.0  # the spread does not depend on them


class Engine(StrEnum):
    """Engines that settings can be written for."""

    VLLM = "vllm"
    SGLANG = "sglang"
    TRTLLM = "trtllm"


class Kind(StrEnum):
    """What a setting limits; its name in the JSON."""

    RUNNING = "running_requests"
    WATERMARK = "watermark"
    TOKENS = "batched_tokens"
    SCHEDULER = "scheduler"
    CONSERVATIVENESS = "conservativeness"


class Candidate(NamedTuple):
    """A setting that might gain.

    Attributes
    ----------
    kind : Kind
    flag, value : str
        As the engine wants them.
    block : str
        Key of the report that it follows from.
    why : str
        How.
    variant : Variant
        What is simulated: a policy, and what is set of it.
    """

    kind: Kind
    flag: str
    value: str
    block: str
    why: str
    variant: Variant


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
    """A candidate after simulation.

    Attributes
    ----------
    candidate : Candidate
    gains : Gains or None
        None where a run could not be ended.
    verdict : Verdict
    headroom : float or None
        `load.headroom` of the profile with it; None where no profile has such a setting.
    broken : str
        What of the gate it breaks; empty where nothing.
    """

    candidate: Candidate
    gains: Gains | None
    verdict: Verdict
    headroom: float | None = None
    broken: str = ""


class Mention(NamedTuple):
    """A setting that is not simulated, with a value where one follows from the plan."""

    flag: str
    value: str | None
    why: str


class Advice(NamedTuple):
    """Settings for an engine.

    Attributes
    ----------
    engine : Engine
    policy : str
        Simulated with the engine's defaults.
    headroom : float or None
        `load.headroom` of the profile as it is.
    tried : tuple of Tried
        All candidates, in the order of the report's blocks; those to set are `EMITTED`.
    together : Gains or None
        Of all emitted settings at once, if there are several.
    mentions : tuple of Mention
    notes : tuple of str
    """

    engine: Engine
    policy: str
    headroom: float | None
    tried: tuple[Tried, ...]
    together: Gains | None
    mentions: tuple[Mention, ...]
    notes: tuple[str, ...]

    @property
    def emitted(self) -> tuple[Tried, ...]:
        """What to set, most useful first."""
        found = [one for one in self.tried if one.verdict is Verdict.EMITTED]
        return tuple(sorted(found, key=_score_of, reverse=True))


Measure = Callable[[Sequence[Variant]], Sequence[Measured | None]]

_POLICY = {Engine.VLLM: "vllm", Engine.SGLANG: "sglang", Engine.TRTLLM: "trtllm-no-evict"}
_PARAMETER = {
    (Engine.VLLM, Kind.RUNNING): "max_num_seqs",
    (Engine.VLLM, Kind.WATERMARK): "watermark",
    (Engine.VLLM, Kind.TOKENS): "max_num_batched_tokens",
    (Engine.SGLANG, Kind.RUNNING): "max_running_requests",
    (Engine.SGLANG, Kind.CONSERVATIVENESS): "conservativeness",
    (Engine.TRTLLM, Kind.RUNNING): "max_num_seqs",
    (Engine.TRTLLM, Kind.TOKENS): "max_num_batched_tokens",
}
_LIMIT = {Kind.RUNNING: "max_num_seqs", Kind.TOKENS: "max_num_batched_tokens"}  # in `[gpu]` of a profile
_FLAG = {
    (Engine.VLLM, Kind.RUNNING): "--max-num-active-seqs",
    (Engine.VLLM, Kind.WATERMARK): "--watermark",
    (Engine.VLLM, Kind.TOKENS): "--max-num-batched-tokens",
    (Engine.SGLANG, Kind.RUNNING): "--max-running-requests",
    (Engine.SGLANG, Kind.CONSERVATIVENESS): "--schedule-conservativeness",
    (Engine.TRTLLM, Kind.RUNNING): "max_batch_size",
    (Engine.TRTLLM, Kind.TOKENS): "max_num_tokens",
    (Engine.TRTLLM, Kind.SCHEDULER): "capacity_scheduler_policy",
}
_TRTLLM = "For trtllm-serve --config (--extra_llm_api_options before November 2025)."
_VERSION = {
    "--max-num-active-seqs": "vLLM 0.31.0 and later (pull request 56758).",
    "--max-num-seqs": "Sizes buffers and CUDA graphs too; from vLLM 0.31.0 on --max-num-active-seqs does not.",
    "--watermark": "Merged into vLLM in June 2026 (pull request 44594), off by default: check your version.",
    "--max-num-batched-tokens": "vLLM refuses less than max_num_seqs.",
    "--max-num-queued-reqs": "In vLLM 0.29.0 (pull request 49445, July 2026); beyond it clients get HTTP 503.",
    "--max-running-requests": "SGLang 0.1.17 and later; 0.1.16 does not have it.",
    "--schedule-conservativeness": "In SGLang 0.1.12, where it was first looked for, and in its documentation since.",
    "--mem-fraction-static": "In SGLang 0.1.12, where it was first looked for, and in its documentation since.",
    "max_batch_size": f"In the LLM API since TensorRT-LLM 0.16.0. {_TRTLLM}",
    "max_num_tokens": f"In the LLM API since TensorRT-LLM 0.16.0. {_TRTLLM}",
    "capacity_scheduler_policy": "Documented for TensorRT-LLM 1.3 and 1.4; GUARANTEED_NO_EVICT is the "
    f"default. {_TRTLLM}",
}


def limits(chosen: Sequence[Candidate]) -> dict[str, int]:
    """What of these settings goes back into `[gpu]` of a profile.

    >>> cap = Candidate(Kind.RUNNING, "--max-num-seqs", "9", "", "", Variant("vllm", (("max_num_seqs", 9.0),)))
    >>> limits([cap, cap._replace(kind=Kind.WATERMARK, value="0.01")])
    {'max_num_seqs': 9}
    """
    return {_LIMIT[c.kind]: int(c.value) for c in chosen if c.kind in _LIMIT}


def version_note(flag: str) -> str:
    """Since when a setting exists, as far as that was verified.

    >>> version_note("--max-num-active-seqs")
    'vLLM 0.31.0 and later (pull request 56758).'
    """
    return _VERSION[flag]


def default_requests(model: ServingModel) -> int:
    """Requests of a run: so many that memory is filled several times over.

    Examples
    --------
    >>> from kvplan.model import Replica, RequestClass, Timing
    >>> default_requests(ServingModel((RequestClass("a", 10, (9,), (1.0,), 1.0),), Timing(1.0), Replica(9000)))
    6000
    """
    wanted = math.ceil(_TURNS * requests_in_memory(model))
    return min(max(wanted, _LEAST_REQUESTS), _MOST_REQUESTS)


# --------------------------------------------------------------------------------------------------- candidates


def candidates(engine: Engine, report: Report, model: ServingModel) -> tuple[Candidate, ...]:
    """Settings that follow from a report, each value once; those that would change nothing are left out.

    Examples
    --------
    >>> from kvplan.model import Replica, RequestClass, Timing
    >>> from kvplan.report.assembly import analyze
    >>> model = ServingModel((RequestClass("a", 15, (10,), (1.0,), 1.0),), Timing(1.0), Replica(1025))
    >>> for c in candidates(Engine.SGLANG, analyze(model, name="", sha256=""), model):
    ...     print(c.flag, c.value, c.block)
    --max-running-requests 41 rate_cap.engine_max_num_seqs
    --max-running-requests 50 saturation.admissions_per_iteration
    --max-running-requests 46 safety_buffer.kv_std_tokens
    --schedule-conservativeness 0.3 saturation.admissions_per_iteration
    --schedule-conservativeness 1.43 safety_buffer.kv_std_tokens
    --schedule-conservativeness 0.75 safety_buffer.kv_std_tokens
    """
    kinds = [kind for maker, kind in _FLAG if maker is engine]
    found = [c for kind in kinds for c in _MAKERS[kind](engine, report, model)]
    first = {(c.flag, c.value): c for c in reversed(found)}
    return tuple(c for c in found if first[c.flag, c.value] is c)


def _running(engine: Engine, report: Report, model: ServingModel) -> Iterator[Candidate]:
    limit, memory = model.replica.max_num_seqs, model.replica.memory_tokens
    held, spread = requests_in_memory(model), _spread(report, model)
    flag = _cap_flag(engine, model)
    longest = max(c.max_tokens for c in model.classes)
    rules = [
        (
            float(report.rate_cap.engine_max_num_seqs),
            "rate_cap.engine_max_num_seqs",
            f"so many fit even at their longest ({format_tokens(longest)} tokens): nothing is ever evicted",
        ),
        (held, "saturation.admissions_per_iteration", "so many fit on average: n* times the mean stay"),
    ]
    if spread is not None:
        rules.append(
            (
                held * (1 - spread / memory),
                "safety_buffer.kv_std_tokens",
                f"so many fit on average beside one standard deviation of usage ({format_tokens(spread)} tokens)",
            )
        )
    for number, block, why in rules:
        cap = math.floor(number)
        if cap >= 1 and (limit is None or cap < limit):
            yield _candidate(Kind.RUNNING, engine, flag, cap, str(cap), block, why)


def _cap_flag(engine: Engine, model: ServingModel) -> str:
    if engine is Engine.VLLM and model.replica.max_num_seqs is None:
        return "--max-num-seqs"
    return _FLAG[engine, Kind.RUNNING]


def _cap_within_the_gate(
    engine: Engine, judged: Sequence[Tried], gate: SettingsGate, model: ServingModel
) -> Iterator[Candidate]:
    """The smallest cap that breaks nothing, where smaller ones would gain and are refused for what they break."""
    name = _LIMIT[Kind.RUNNING]
    caps = {int(one.candidate.value): one for one in judged if one.candidate.kind is Kind.RUNNING}
    broken = [cap for cap, one in caps.items() if one.verdict is Verdict.BREAKS]
    most = int(min(math.ceil(requests_in_memory(model)), (model.replica.max_num_seqs or math.inf) - 1))
    if not broken or max(broken) >= most or gate.broken({name: most}):
        return
    cap = gate.least(name, max(broken), most)
    what = gate.broken({name: max(broken)})
    if cap not in caps and what is not None:
        why = f"the smallest that breaks nothing of the gate ({what.text})"
        yield _candidate(Kind.RUNNING, engine, _cap_flag(engine, model), cap, str(cap), what.key, why)


def _spread(report: Report, model: ServingModel) -> float | None:
    """Standard deviation of KV usage, tokens; of a load that cannot be sustained, at the rate that can."""
    if report.verdict.status is not Status.OVERLOADED:
        return report.safety_buffer.kv_std_tokens
    share = report.load.sustainable_rps / report.load.offered_rps
    classes = tuple(replace(c, rate_rps=c.rate_rps * share) for c in model.classes)
    at_capacity = replace(model, classes=classes)
    return safety_buffer(at_capacity, delta=_ANY_DELTA, horizon_s=_ANY_HORIZON_S).kv_std_tokens


def _watermark(engine: Engine, report: Report, model: ServingModel) -> Iterator[Candidate]:
    buffer, memory, spread = report.safety_buffer, model.replica.memory_tokens, _spread(report, model)
    rules = []
    if buffer.watermark_fraction is not None:
        why = "what keeps an overflow within the horizon as rare as the plan wants, above the mean usage"
        rules.append((buffer.watermark_fraction, "safety_buffer.watermark_fraction", why))
    if spread is not None:
        for share, part in _SHARES.items():
            tokens = format_tokens(spread / share)
            why = f"{part} standard deviation of usage, {tokens} tokens, as a share of the memory"
            rules.append((spread / share / memory, "safety_buffer.kv_std_tokens", why))
    for number, block, why in rules:
        share_of_blocks = (
            math.ceil(number * 1000) / 1000
        )  # as it is written, so that this is what is simulated
        if 0 < share_of_blocks < 1:
            flag, text = _FLAG[engine, Kind.WATERMARK], f"{share_of_blocks:.3f}".rstrip("0")
            yield _candidate(Kind.WATERMARK, engine, flag, share_of_blocks, text, block, why)


def _tokens(engine: Engine, report: Report, model: ServingModel) -> Iterator[Candidate]:
    replica, full = model.replica, report.saturation.iteration_time_s
    if model.timing.d2 <= 0:
        return  # prefill takes no time: no reason to cut it up
    held = requests_in_memory(model)
    least = replica.max_num_seqs or math.ceil(held)
    for step in _STEPS:
        tokens = max(math.floor((step - 1) * full / model.timing.d2 + held), least)
        why = (
            f"an iteration full of prefill takes {step} times one of a full replica ({format_seconds(full)})"
        )
        if tokens != replica.max_num_batched_tokens:
            flag = _FLAG[engine, Kind.TOKENS]
            yield _candidate(
                Kind.TOKENS, engine, flag, tokens, str(tokens), "saturation.iteration_time_s", why
            )


def _conservativeness(engine: Engine, report: Report, model: ServingModel) -> Iterator[Candidate]:
    """SGLang's default is 1. Less admits more; more than what makes all output to come count changes nothing."""
    first, least, _ = ratios(1.0)
    rules = [
        (
            _SUGGESTED,
            "saturation.admissions_per_iteration",
            "less room kept for output to come, so more run: SGLang's documentation suggests it where memory stays "
            "unused while requests wait",
        )
    ]
    spread, to_come = _spread(report, model), _longest_to_come(model)
    if spread is not None and to_come > 0:
        for share, part in list(_SHARES.items())[:-1]:
            why = (
                f"in the long run {part} standard deviation of usage, {format_tokens(spread / share)} tokens, is kept "
                "free for output to come of a full replica"
            )
            rules.append((spread / share / (least * to_come), "safety_buffer.kv_std_tokens", why))
    for number, block, why in rules:
        value = min(math.ceil(round(number * 100, 6)), math.ceil(100 / first)) / 100
        if value != 1:
            flag = _FLAG[engine, Kind.CONSERVATIVENESS]
            yield _candidate(Kind.CONSERVATIVENESS, engine, flag, value, f"{value:g}", block, why)


def _longest_to_come(model: ServingModel) -> float:
    """Tokens that all requests in a full memory may still generate, as far as SGLang counts them."""

    def up_to(tokens: int) -> int:
        """Σ min(x, 4096) for x = 1 … tokens."""
        counted = min(tokens, FORESIGHT)
        return counted * (counted + 1) // 2 + (tokens - counted) * FORESIGHT

    mix = model.mix
    longest = [model.classes[i].decode_tokens[-1] for i in mix.class_index]
    stays = [up_to(m - 1) - up_to(m - int(d)) for m, d in zip(longest, mix.decode_tokens, strict=True)]
    return saturation(model).admissions_per_iteration * float(mix.share @ stays)


def _scheduler(engine: Engine, report: Report, model: ServingModel) -> Iterator[Candidate]:
    why = "requests are admitted without room for their longest output, and paused when memory runs out"
    flag = _FLAG[engine, Kind.SCHEDULER]
    yield Candidate(Kind.SCHEDULER, flag, "MAX_UTILIZATION", "worst_cycle.loss", why, Variant("vllm"))


_MAKERS: dict[Kind, Callable[[Engine, Report, ServingModel], Iterator[Candidate]]] = {
    Kind.RUNNING: _running,
    Kind.WATERMARK: _watermark,
    Kind.TOKENS: _tokens,
    Kind.SCHEDULER: _scheduler,
    Kind.CONSERVATIVENESS: _conservativeness,
}


def _candidate(
    kind: Kind, engine: Engine, flag: str, number: float, text: str, block: str, why: str
) -> Candidate:
    variant = Variant(_POLICY[engine], ((_PARAMETER[engine, kind], float(number)),))
    return Candidate(kind, flag, text, block, why, variant)


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


def _judged(candidate: Candidate, found: Gains | None, gate: SettingsGate, *, short: bool) -> Tried:
    """What becomes of a candidate as long as no other is looked at."""
    mine = limits([candidate])
    headroom = gate.headroom(mine) if mine else None
    if found is None:
        return Tried(candidate, None, Verdict.UNENDED, headroom)
    if not gains_something(found):
        verdict = Verdict.LOSES if loses_something(found) else Verdict.NO_GAIN
        return Tried(candidate, found, verdict, headroom)
    if what := gate.broken(mine):
        return Tried(candidate, found, Verdict.BREAKS, headroom, what.text)
    return Tried(candidate, found, Verdict.SHORT if short else Verdict.EMITTED, headroom)


def _best_of_each(
    tried: Sequence[Tried], results: Sequence[Measured | None], model: ServingModel
) -> tuple[Tried, ...]:
    """Of the settings to emit one value of each kind: the smallest change that cannot be told apart from the best."""
    good = [i for i, one in enumerate(tried) if one.verdict is Verdict.EMITTED]
    verdicts: dict[int, Verdict] = {}
    for kind in {tried[i].candidate.kind for i in good}:
        mine = [i for i in good if tried[i].candidate.kind is kind]
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


def _change(candidate: Candidate, model: ServingModel) -> float:
    """How much of a change a value is against what is there without it, to be compared within a kind."""
    [(_, number)] = candidate.variant.parameters or [("", 0.0)]
    match candidate.kind:
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


def together(policy: str, chosen: Sequence[Candidate]) -> Variant:
    """Several settings at once.

    >>> one = Candidate(Kind.RUNNING, "", "", "", "", Variant("vllm", (("max_num_seqs", 9.0),)))
    >>> two = Candidate(Kind.WATERMARK, "", "", "", "", Variant("vllm", (("watermark", 0.1),)))
    >>> together("vllm", [one, two])
    Variant(policy='vllm', parameters=(('max_num_seqs', 9.0), ('watermark', 0.1)))
    """
    policies = [c.variant.policy for c in chosen if c.variant.policy != policy]
    return Variant(
        policies[0] if policies else policy, tuple(p for c in chosen for p in c.variant.parameters)
    )


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

    Parameters
    ----------
    engine : Engine
    report : Report
        Of the model.
    model : ServingModel
    plan : Plan
    requests : int
        In each run that `measure` makes.
    measure : function
        From variants to what was measured of each, None where a run could not be ended.
    required : sequence of Requirement
        What the profile demands of itself; whatever it says, the verdict must not get worse.

    Raises
    ------
    UsageError
        With the engine's defaults some request never fits.

    Examples
    --------
    >>> from kvplan.model import Replica, RequestClass, Timing
    >>> from kvplan.report.assembly import analyze
    >>> model = ServingModel((RequestClass("a", 15, (10,), (1.0,), 1.0),), Timing(1.0), Replica(1025))
    >>> same = Measured((1.0, 1.0), (1.0, 1.0), (1.0, 1.0), 0)
    >>> report = analyze(model, name="", sha256="")
    >>> advise(Engine.VLLM, report, model, Plan(), requests=99, measure=lambda tried: [same] * len(tried)).emitted
    ()
    """
    policy = _POLICY[engine]
    gate = SettingsGate(model, plan, required, report.profile, report.stability)
    found = candidates(engine, report, model)
    without, *results = measure([Variant(policy), *(c.variant for c in found)])
    if without is None:
        raise UsageError(
            f"--engine {engine}: with its defaults a request never fits in the blocks that it may use, even alone"
        )
    short = requests < _LEAST_TURNS * requests_in_memory(model)

    def judged(candidate: Candidate, result: Measured | None) -> Tried:
        return _judged(candidate, None if result is None else gains(without, result), gate, short=short)

    all_judged = [judged(c, result) for c, result in zip(found, results, strict=True)]
    for candidate in _cap_within_the_gate(engine, all_judged, gate, model):
        results += measure([candidate.variant])
        all_judged.append(judged(candidate, results[-1]))
    tried = _best_of_each(all_judged, results, model)
    chosen, all_at_once = _adding_up(policy, tried, without, measure, gate)
    tried = tuple(
        one._replace(verdict=Verdict.NO_USE) if one.verdict is Verdict.EMITTED and one not in chosen else one
        for one in tried
    )
    return Advice(
        engine=engine,
        policy=policy,
        headroom=gate.headroom({}),
        tried=tried,
        together=all_at_once,
        mentions=_mentions(engine, report, model, plan, chosen),
        notes=tuple(_notes(engine, report, model, without, requests)),
    )


def _adding_up(
    policy: str, tried: Sequence[Tried], without: Measured, measure: Measure, gate: SettingsGate
) -> tuple[list[Tried], Gains | None]:
    """The most useful setting, those that add to it, and what they gain together if they are several."""
    ranked = sorted((one for one in tried if one.verdict is Verdict.EMITTED), key=_score_of, reverse=True)
    chosen, all_at_once = ranked[:1], None
    for one in ranked[1:]:
        if gate.broken(limits([other.candidate for other in (*chosen, one)])):
            continue
        [result] = measure([together(policy, [other.candidate for other in (*chosen, one)])])
        more = None if result is None else gains(without, result)
        so_far = _score_of(chosen[0]) if all_at_once is None else score(all_at_once)
        if more is not None and gains_something(more) and score(more) > so_far + _LEAST_ADDITION:
            chosen, all_at_once = [*chosen, one], more
    return chosen, all_at_once


def _mentions(
    engine: Engine, report: Report, model: ServingModel, plan: Plan, chosen: Sequence[Tried]
) -> tuple[Mention, ...]:
    if engine is Engine.SGLANG:
        tokens = format_tokens(model.replica.memory_tokens)
        return (
            Mention(
                "--mem-fraction-static",
                None,
                "does not follow from tokens alone, it needs weights and activations; raise it until the engine "
                f"logs the {tokens} KV tokens of the profile, or correct the profile",
            ),
        )
    if engine is Engine.VLLM and report.verdict.status is Status.OVERLOADED:
        return (_queue_limit(report, model, plan, chosen),)
    return ()


def _queue_limit(report: Report, model: ServingModel, plan: Plan, chosen: Sequence[Tried]) -> Mention:
    """Little's law: who waits as long as the horizon at the sustainable rate has so many before him."""
    caps = [int(one.candidate.value) for one in chosen if one.candidate.kind is Kind.RUNNING]
    running = min([*caps, model.replica.max_num_seqs or math.inf, math.ceil(requests_in_memory(model))])
    rate = report.load.sustainable_rps
    number = math.ceil(running + rate * plan.horizon_s)
    return Mention(
        "--max-num-queued-reqs",
        str(number),
        f"the load is more than can be sustained and the queue would grow without end: {running:,.0f} running and "
        f"{format_number(rate)} requests/s for the plan's horizon of {format_seconds(plan.horizon_s)}. So nobody "
        "waits longer than that; it is the place for a shorter wait. Refusals are not simulated",
    )


def _notes(
    engine: Engine,
    report: Report,
    model: ServingModel,
    without: Measured,
    requests: int,
) -> Iterator[str]:
    if engine is Engine.SGLANG:
        yield (
            "SGLang's scheduler is simulated without its prefix cache, and keeps room for the longest output that "
            "clients ask for, here the longest decode length of their class."
        )
    if engine is Engine.TRTLLM:
        yield (
            "GUARANTEED_NO_EVICT reserves the longest output that clients ask for, here the longest decode length of "
            "their class. For MAX_UTILIZATION vLLM's scheduler stands in: it pauses the last admitted, and computes "
            "it again."
        )
    elif without.evictions == 0:
        yield (
            "With the engine's defaults nobody was evicted in any run: there is nothing that a cap or a watermark "
            "could prevent."
        )
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
