"""Values that might gain: they follow from blocks of the report, and those that would change nothing are left out."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

from kvplan.analysis.cold_cache import with_cold_cache
from kvplan.analysis.overflow import safety_buffer
from kvplan.engines.base import LIMITS, Engine, Kind, Setting, Value
from kvplan.engines.collapse import protecting_cap
from kvplan.model import ServingModel
from kvplan.report.assembly import Report
from kvplan.report.verdict import requests_in_memory
from kvplan.report.words import Status
from kvplan.simulation.experiments.paired import Variant
from kvplan.units import format_seconds, format_tokens

SHARES = {
    1: "one",
    2: "half a",
    4: "a quarter of a",
    8: "an eighth of a",
}  # standard deviation of KV cache usage
_STEPS = (2, 4)  # times the iteration of a full replica that one with as much prefill as allowed may take
_ANY_DELTA, _ANY_HORIZON_S = 0.01, 3600.0  # the spread does not depend on them


class Candidate(NamedTuple):
    """A setting with a value that might gain, and what is simulated for it; the rest as in `Value`."""

    setting: Setting
    value: str
    block: str
    why: str
    variant: Variant


def candidates(engine: Engine, report: Report, model: ServingModel) -> tuple[Candidate, ...]:
    """Settings that follow from a report, each value once; those that would change nothing are left out.

    No caps on running requests where the prefix cache needs one of its own.

    Examples
    --------
    >>> from kvplan.engines import engine
    >>> from kvplan.model import Replica, RequestClass, Timing
    >>> from kvplan.report.assembly import analyze
    >>> model = ServingModel((RequestClass("a", 15, (10,), (1.0,), 1.0),), Timing(1.0), Replica(1025))
    >>> for c in candidates(engine("sglang"), analyze(model, name="", sha256=""), model):
    ...     print(c.setting.flag, c.value, c.block)
    --max-running-requests 41 rate_cap.engine_max_num_seqs
    --max-running-requests 50 saturation.admissions_per_iteration
    --max-running-requests 46 safety_buffer.kv_std_tokens
    --schedule-conservativeness 0.3 saturation.admissions_per_iteration
    --schedule-conservativeness 1.43 safety_buffer.kv_std_tokens
    --schedule-conservativeness 0.75 safety_buffer.kv_std_tokens
    """
    found = [
        candidate(engine, setting, value)
        for setting in engine.settings_for(model)
        if setting.kind is not Kind.RUNNING or protecting_cap(report) is None
        for value in setting.values(report, model)
    ]
    first = {(c.setting.flag, c.value): c for c in reversed(found)}
    return tuple(c for c in found if first[c.setting.flag, c.value] is c)


def candidate(engine: Engine, setting: Setting, value: Value) -> Candidate:
    """A value of a setting, and what simulates it."""
    parameters = () if value.number is None else ((setting.parameter, float(value.number)),)
    variant = Variant(setting.policy or engine.policy, parameters)
    return Candidate(setting, value.text, value.block, value.why, variant)


def limits(chosen: Sequence[Candidate]) -> dict[str, int]:
    """What of these settings goes back into `[gpu]` of a profile.

    >>> from kvplan.engines import engine
    >>> cap, watermark, _ = engine("vllm").settings[1:]
    >>> limits([Candidate(s, "9", "", "", Variant("vllm")) for s in (cap, watermark)])
    {'max_num_seqs': 9}
    """
    return {LIMITS[c.setting.kind]: int(c.value) for c in chosen if c.setting.kind in LIMITS}


def running(report: Report, model: ServingModel) -> Iterator[Value]:
    """Caps on running requests: as many as fit at their longest, on average, or with room for their spread."""
    limit = model.replica.max_num_seqs
    held, spread = requests_in_memory(model), kv_spread(report, model)
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
                math.floor(held * (1 - spread / model.replica.memory_tokens)),
                "safety_buffer.kv_std_tokens",
                f"so many fit on average beside one standard deviation of usage ({format_tokens(spread)} tokens)",
            )
        )
    for number, block, why in rules:
        cap = math.floor(number)
        if cap >= 1 and (limit is None or cap < limit):
            yield Value(str(cap), block, why, cap)


def watermark(report: Report, model: ServingModel) -> Iterator[Value]:
    """Shares of the blocks that are kept free at admission."""
    buffer, memory, spread = report.safety_buffer, model.replica.memory_tokens, kv_spread(report, model)
    rules = []
    if buffer.watermark_fraction is not None:
        why = "what keeps an overflow within the horizon as rare as the plan wants, above the mean usage"
        rules.append((buffer.watermark_fraction, "safety_buffer.watermark_fraction", why))
    if spread is not None:
        for share, part in SHARES.items():
            tokens = format_tokens(spread / share)
            why = f"{part} standard deviation of usage, {tokens} tokens, as a share of the memory"
            rules.append((spread / share / memory, "safety_buffer.kv_std_tokens", why))
    for number, block, why in rules:
        share_of_blocks = (
            math.ceil(number * 1000) / 1000
        )  # as it is written, so that this is what is simulated
        if 0 < share_of_blocks < 1:
            yield Value(f"{share_of_blocks:.3f}".rstrip("0"), block, why, share_of_blocks)


def batched_tokens(report: Report, model: ServingModel) -> Iterator[Value]:
    """Token budgets that keep an iteration full of prefill near one of a full replica."""
    replica, full = model.replica, report.saturation.iteration_time_s
    token_s = model.timing.work(0.0, 1.0, 0.0)
    if token_s <= 0:
        return  # prefill takes no time: no reason to cut it up
    held = requests_in_memory(model)
    least = replica.max_num_seqs or math.ceil(held)
    for step in _STEPS:
        tokens = max(math.floor((step - 1) * full / token_s + held), least)
        why = (
            f"an iteration full of prefill takes {step} times one of a full replica ({format_seconds(full)})"
        )
        # Beyond the memory it would bind nobody.
        if tokens != replica.max_num_batched_tokens and tokens <= replica.memory_tokens:
            yield Value(str(tokens), "saturation.iteration_time_s", why, tokens)


def kv_spread(report: Report, model: ServingModel) -> float | None:
    """Standard deviation of KV cache usage, tokens; of a load that cannot be sustained, at the rate that can."""
    if report.verdict.status is not Status.OVERLOADED:
        return report.safety_buffer.kv_std_tokens
    share = report.load.sustainable_rps / report.load.offered_rps
    classes = tuple(replace(c, rate_rps=c.rate_rps * share) for c in model.classes)
    at_capacity = with_cold_cache(replace(model, classes=classes))
    return safety_buffer(at_capacity, delta=_ANY_DELTA, horizon_s=_ANY_HORIZON_S).kv_std_tokens
