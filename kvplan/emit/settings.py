"""A profile as settings of an engine: those that it states, and those that were tried on it and gain."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from kvplan.analysis.equilibrium import sustainable_rate
from kvplan.analysis.fleet import one_replica
from kvplan.emit.base import Engine, Flag, version_of
from kvplan.emit.start import Start, started
from kvplan.engine import numbers
from kvplan.errors import UsageError
from kvplan.model import Admission, EngineName, Plan, Prefill, ServingModel
from kvplan.model import Engine as Served
from kvplan.report.assembly import Analyses
from kvplan.report.verdict import advice_actions, effect, requests_in_memory
from kvplan.report.words import Status
from kvplan.simulation.policies import POLICIES, engine_settings
from kvplan.simulation.policies.protocol import SEATS, SEQUENCES, SHED_AFTER, TOKENS
from kvplan.simulation.policies.sglang import RECEIVE_EVERY_STEPS as RECEIVE_EVERY
from kvplan.study.advice import ADMISSION, GATEWAY, WATERMARK, Advice
from kvplan.units import format_number, format_seconds


class EngineSettings(NamedTuple):
    """Settings for an engine.

    `start` has the settings, those of `advice` in the place of the profile's; None where nothing gains.
    `others` are the rest of the report's advice, to be set instead.
    """

    engine: Engine
    start: Start
    advice: Advice | None
    others: tuple[tuple[Flag, ...], ...]
    notes: tuple[str, ...]
    version: str = ""


def for_engine(engine: Engine, model: ServingModel) -> ServingModel:
    """Return the model as this engine serves it, without what its policy does not have.

    A UsageError where no engine computes prompts as the profile says, or its policy lacks what the profile has.
    """
    if model.replica.prefill is not Prefill.FUSED:
        raise UsageError(
            f'engines compute prompts with prefill = "fused", and the profile says "{model.replica.prefill}"'
        )
    served = model.engine or Served()
    if served.name != engine.name:
        served = Served(EngineName(engine.name), max_model_len=served.max_model_len)
    model = replace(model, engine=served)
    if not engine.finds_prefixes:
        replica = replace(model.replica, prefix_caching=False, offload=None)
        model = replace(model, replica=replica, hit_curve=())
    policy = POLICIES[engine_settings(model).policy]
    if not policy.host_tier:
        model = replace(model, replica=replace(model.replica, offload=None))
    what = policy.lacks(model)
    if what is None and model.replica.layout is not None and model.finds_prefixes and policy.name != "vllm":
        what = "a prefix cache of layers of several kinds"
    if what is not None:
        raise UsageError(
            f"--target {engine.name}: its scheduler is not simulated beside {what}; that of vllm is"
        )
    return model


def engine_settings_of(
    engine: Engine,
    report: Analyses,
    model: ServingModel,
    plan: Plan,
    table: Mapping[str, Any] | None = None,
    folder: Path = Path(),
) -> EngineSettings:
    """Write a profile as settings of an engine; the report is one of the model as the engine serves it (`for_engine`).

    `table` is `[model]` of the profile, which stands in `folder`.

    Examples
    --------
    >>> from kvplan.emit import engine
    >>> from kvplan.model import Replica, RequestClass, Timing
    >>> replica = Replica(1025, max_num_seqs=64)
    >>> model = ServingModel((RequestClass("a", 15, (10,), (1.0,), 1.0),), Timing(1.0), replica)
    >>> report = Analyses(for_engine(engine("vllm"), model), Plan())
    >>> [(f.flag, f.value) for f in engine_settings_of(engine("vllm"), report, model, Plan()).start.flags]
    [('--max-num-seqs', '64')]
    """
    recovers = report.verdict.status is Status.STABLE
    # what recovers is started as it was planned; what could be set beside that is told
    best = None if recovers or not report.advice else report.advice[0]
    rest = report.advice if best is None else report.advice[1:]
    flags = {flag.flag: flag for flag in flags_of_profile(engine, model)}
    if best is not None:
        if engine.first_chunk is not None and ADMISSION in {setting.name for setting in best.settings}:
            flags.pop(engine.first_chunk.flag, None)
        flags |= {flag.flag: flag for flag in _of_advice(engine, best, model, recovers=recovers)}
    if report.verdict.status is Status.OVERLOADED:
        flags = {flag.flag: flag for flag in _queue_bound(engine, report, model, plan)} | flags
    return EngineSettings(
        engine=engine,
        start=started(engine, flags.values(), model, table, folder),
        advice=best,
        others=tuple(
            filter(None, (tuple(_of_advice(engine, each, model, recovers=recovers)) for each in rest))
        ),
        notes=tuple(_notes(engine, report, model)),
        version=version_of(engine, model),
    )


def flags_of_profile(engine: Engine, model: ServingModel) -> Iterator[Flag]:
    """Write the engine's settings of a profile."""
    replica, why = model.replica, "the profile's"
    yield from engine.parallel(replica.parallelism)
    told = replica if engine.limits_all_ranks else replica.of_rank()
    limits = {**dict.fromkeys(SEATS, told.max_num_seqs), TOKENS: told.max_num_batched_tokens}
    limits["max_model_len"] = model.engine and model.engine.max_model_len
    for name, value in limits.items():
        if value is not None and name in engine.spellings:
            yield Flag(engine.spellings[name], str(value), why)
    if model.engine is not None and model.engine.name == engine.name:
        if model.engine.watermark and WATERMARK in engine.spellings:
            yield Flag(engine.spellings[WATERMARK], format_number(model.engine.watermark), why)
        if model.engine.prefill_interval > 1:
            # SGLang counts the iterations between
            interval = model.engine.prefill_interval - (engine.name == EngineName.SGLANG)
            yield Flag(engine.spellings["prefill_interval"], str(interval), why)
        chunk = engine.first_chunk if model.engine.admission is Admission.FIRST_CHUNK else None
        # versions that lack the flag admit in no other way
        if chunk is not None and engine.flags[chunk.flag].is_in(version_of(engine, model)):
            yield chunk
        if model.engine.receive_every_steps > 1 and RECEIVE_EVERY in engine.spellings:
            yield Flag(engine.spellings[RECEIVE_EVERY], str(model.engine.receive_every_steps), why)
        if engine.batch_wait is not None:
            yield from engine.batch_wait(model.engine, replica)
    if priorities_of(engine, model):
        yield from engine.by_priority
    yield from _kv_cache(engine, model)
    if replica.offload is not None and engine.host_tier is not None:
        yield from engine.host_tier(replica.offload, replica)
    if model.drafts is not None and engine.drafts is not None:
        yield engine.drafts(model.drafts.tokens)


def priorities_of(engine: Engine, model: ServingModel) -> dict[str, int]:
    """Return the `priority` that clients of each class send; empty where all go alike, or the engine has none."""
    every = sorted({c.priority for c in model.classes})
    if len(every) == 1 or not engine.by_priority:
        return {}
    if engine.priority_step == 1:
        return {c.name: c.priority for c in model.classes}
    return {c.name: every.index(c.priority) * engine.priority_step for c in model.classes}


def _kv_cache(engine: Engine, model: ServingModel) -> Iterator[Flag]:
    """Set the prefix cache and what layers hold where defaults are another, or change from version to version."""
    replica, on = model.replica, engine.cache_on
    by_default = on is None or engine.flags[on.flag].is_default_in(version_of(engine, model))
    states = replica.layout is not None and any(layers.is_state for layers in replica.layout.layers)
    flag = on if replica.prefix_caching else engine.cache_off
    if flag is not None and (replica.prefix_caching != by_default or (states and on is not None)):
        yield flag
    of_layers = () if replica.layout is None else engine.layers(replica.layout)
    yield from (flag for flag in of_layers if engine.flags[flag.flag].is_in(version_of(engine, model)))


def _of_advice(engine: Engine, advice: Advice, model: ServingModel, *, recovers: bool) -> Iterator[Flag]:
    """Write settings tried together; a bound on waiting becomes one on the queue, where there is one."""
    ranks = model.replica.ranks
    values = {s.name: s.value * ranks if s.name in SEATS else s.value for s in advice.settings}
    why = effect(advice, recovers=recovers)
    for name, value in values.items():
        if name in engine.spellings:
            value = value / ranks if name in SEATS and not engine.limits_all_ranks else value
            yield Flag(engine.spellings[name], f"{value:g}" if name == WATERMARK else f"{value:.0f}", why)
    patience_s, queue = values.get(SHED_AFTER), engine.queue
    if patience_s is None or queue is None:
        return
    cap = int(next((values[name] for name in SEATS if name in values), model.replica.max_num_seqs or 0))
    served_rps = _served_rps(cap, model)
    waiting = max(1, int(served_rps * patience_s))
    beside = f" beside {cap} running" * queue.counts_running
    yield Flag(
        queue.flag,
        str(waiting + cap * queue.counts_running),
        f"with the limit of running requests, and both are needed: {waiting}{beside} are served within "
        f"{format_seconds(patience_s, 2)} at {format_number(served_rps)} requests/s, all that an empty cache leaves",
    )


def _served_rps(cap: int, model: ServingModel) -> float:
    """Return the rate of so many running requests where the cache finds only what is in use."""
    alone = one_replica(model)
    return sustainable_rate(replace(alone, replica=replace(alone.replica, max_num_seqs=cap)))[1]


def _queue_bound(engine: Engine, report: Analyses, model: ServingModel, plan: Plan) -> Iterator[Flag]:
    """Bound the queue by Little's law: as many as the sustainable rate serves within the horizon."""
    if engine.queue is None:
        return
    alone = one_replica(model)
    running = min(alone.replica.max_num_seqs or 1 << 62, round(requests_in_memory(alone)))
    waiting = round(report.load.sustainable_rps * plan.horizon_s)
    yield Flag(
        engine.queue.flag,
        str(waiting + running * engine.queue.counts_running),
        "not simulated: the load is more than can be sustained, and the queue would grow without end; so nobody waits "
        f"longer than the plan's horizon of {format_seconds(plan.horizon_s)}. It is the place for a shorter wait",
    )


def order_notes(engine: Engine, model: ServingModel) -> Iterator[str]:
    """Say what clients send for their requests to go first, and which part of the planned order is not written."""
    if priorities := priorities_of(engine, model):
        each = ", ".join(f"{number} ({name})" for name, number in priorities.items())
        yield f"Clients send the field priority beside model in the body of a request: {each}."
        if engine.name != EngineName.VLLM:
            yield "Figures are first come first served: priorities are simulated as vLLM has them."
    elif len({c.priority for c in model.classes}) > 1:
        yield f"Priorities of classes are not written for {engine.title}, and figures are without them."
    served = model.engine
    if served is not None and served.name != engine.name and served.prefill_interval > 1:
        yield f"prefill_interval is another engine's: it is not written for {engine.title}, and figures are without it."


def _notes(engine: Engine, report: Analyses, model: ServingModel) -> Iterator[str]:
    if engine.note:
        yield engine.note
    for advice in () if report.verdict.status is Status.STABLE else report.advice[:1]:
        patience_s = next((s.value for s in advice.settings if s.name == SHED_AFTER), None)
        if patience_s is not None:
            where = f"{engine.title} has no bound on its queue" if engine.queue is None else "Better still"
            yield f"{where}: have a gateway give up requests that wait longer than {format_seconds(patience_s)}."
        if ADMISSION in {setting.name for setting in advice.settings}:
            said = effect(advice, recovers=report.verdict.status is Status.STABLE)
            yield f"Admission of whole prompts, as vLLM does since March 2026 unless told not to: {said}"
        if GATEWAY in {setting.name for setting in advice.settings}:
            yield from advice_actions((advice,), recovers=report.verdict.status is Status.STABLE)
    yield from order_notes(engine, model)
    replica = model.replica
    if replica.offload is not None:
        if engine.host_tier is None:
            yield f"The host tier of the profile is not written for {engine.title}."
        elif not [*engine.host_tier(replica.offload, replica)]:
            yield f"{engine.title} wants more host memory than the KV cache of the GPU has: the host tier is left out."
        if not POLICIES[engine_settings(for_engine(engine, model)).policy].host_tier:
            yield "Figures are without the host tier."
    if model.finds_prefixes and not engine.finds_prefixes:
        yield "Figures are without a prefix cache, which the engine has."
    limits = {SEQUENCES: replica.max_num_seqs, TOKENS: replica.max_num_batched_tokens}
    absent = [key for key, value in limits.items() if value is None]
    if absent:
        yield f"The profile has no {' and no '.join(absent)}: the engine has a default of its own."


def alternatives(settings: EngineSettings) -> Iterator[str]:
    """Yield other advice of the report that could be set instead, a line each."""
    for flags in settings.others:
        since = {
            settings.engine.flags[f.flag].since
            for f in flags
            if not settings.engine.flags[f.flag].is_in(settings.version)
        }
        needs = f" (needs {settings.engine.title} {max(since, key=numbers)})" if since else ""
        yield f"Or {' '.join(f.words for f in flags)}{needs}: {flags[0].why}"
