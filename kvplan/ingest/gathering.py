"""One profile of all that files tell of a service, each part from the best source.

A part is measured, else estimated from a model and a GPU, else the base's; else it is absent.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import Any, NamedTuple

import tomli

from kvplan.engine import EngineName
from kvplan.errors import UsageError
from kvplan.ingest.drafts import drafts_part as observed_part
from kvplan.ingest.hits import ObservedHits
from kvplan.ingest.log import vllm
from kvplan.ingest.log.engine_log import EngineLimits, NoCapacityError, read_engine_log
from kvplan.ingest.log.text import log_part
from kvplan.ingest.metrics.server import ServerMetrics, read_metrics
from kvplan.ingest.metrics.text import metrics_parts
from kvplan.ingest.model.config import read_model
from kvplan.ingest.model.estimate import ReplicaEstimate, estimate_replica
from kvplan.ingest.model.hardware import Gpu, find_gpu, gpus, vllm_limits
from kvplan.ingest.model.roofline import Roofline, roofline
from kvplan.ingest.model.shape import ModelShape
from kvplan.ingest.model.text import estimate_part, roofline_part
from kvplan.ingest.profile_text import Part, classes_part, composed, replica_part, table_text
from kvplan.ingest.recognition import FileKind, carries_times
from kvplan.ingest.text_file import lines_of
from kvplan.ingest.timing import prior as priors
from kvplan.ingest.timing.drafts import drafts_part, fit_drafts, mean_error, read_drafts
from kvplan.ingest.timing.fit import fit_measured
from kvplan.ingest.timing.reading import Measured, listed, read_groups
from kvplan.ingest.timing.samples import Samples
from kvplan.ingest.timing.text import accuracy, notes, timing_part
from kvplan.ingest.trace import fit as trace_fit
from kvplan.ingest.trace.text import hit_note, traffic_part
from kvplan.ingest.trace.traffic import measure
from kvplan.model import Knowledge, Origin, Replica, Timing
from kvplan.profile import schema
from kvplan.profile.reading import Profile, parse_profile
from kvplan.simulation.experiments.runner import Announce, Progress
from kvplan.units import format_number, format_percent, format_rate, format_seconds, format_tokens

_ENGINES = {"vLLM": EngineName.VLLM, "SGLang": EngineName.SGLANG, "TensorRT-LLM": EngineName.TRTLLM}
_ALONE = (FileKind.REQUESTS, FileKind.METRICS, FileKind.MODEL, FileKind.PROFILE, FileKind.DRAFTS)

Files = Mapping[FileKind, Sequence[Path]]


@dataclass(frozen=True, kw_only=True)
class Asked:
    """What is said beside the files.

    Attributes
    ----------
    model, gpu
        What to estimate from where nothing is measured.
    capacity
        KV tokens, which logged usage is a share of.
    group
        The replica, or model, of files that tell of several.
    classes
        Of one decode length each, so many.
    reference
        How the profile refers to the requests where they are to be replayed; None: it can not.
    """

    model: str | None = None
    gpu: str | None = None
    engine: EngineName | None = None
    capacity: int | None = None
    tensor_parallel: int | None = None
    weights: str | None = None
    kv_dtype: str = "auto"
    utilization: float = 0.9
    group: str | None = None
    since: Path | None = None
    interval_s: float | None = None
    classes: int | None = None
    reference: str | None = None
    name: str | None = None
    progress: Progress | None = None
    announce: Announce | None = None


class Given(NamedTuple):
    """A table of the profile, and what it is from."""

    source: str
    kind: str
    table: str
    figures: str


class Finding(NamedTuple):
    """What some files gave."""

    parts: tuple[Part, ...] = ()
    given: tuple[Given, ...] = ()
    notes: tuple[str, ...] = ()


class Gathered(NamedTuple):
    """A profile, what gave what, and what there is to say of it."""

    profile: Profile
    given: tuple[Given, ...]
    notes: tuple[str, ...]
    hits: ObservedHits | None


class _Estimate(NamedTuple):
    """Of a model on GPUs; without `memory` where it does not fit, though it ran."""

    shape: ModelShape
    gpu: Gpu
    tensor_parallel: int
    speed: Roofline
    memory: ReplicaEstimate | None

    @property
    def name(self) -> str:
        several = f"{self.tensor_parallel} x " if self.tensor_parallel > 1 else ""
        return f"{self.shape.name} on {several}{self.gpu.name}"


def gather(files: Files, asked: Asked, base: Profile | None = None) -> Gathered:
    """Put together one profile; a profile among the files is better than an estimate, and `base` is not.

    Raises
    ------
    UsageError
        A file cannot be read or used, several of a kind cannot be pooled, or nothing was found.
    ProfileError
        The parts do not go together.
    """
    for kind in _ALONE:
        if len(several := files.get(kind, ())) > 1:
            raise UsageError(f"{several[1]}: a second file of kind {kind}, beside {several[0]}; give one")
    own = _own_profile(files.get(FileKind.PROFILE, ()))
    if own is not None and base is not None:
        raise UsageError(f"{own.source}: a profile beside --base; give one of them")
    kept = own or base
    tables = {} if kept is None else kept.tables
    limits, unstated = _limits(files.get(FileKind.LOG, ()), _replica(tables))
    metrics = _metrics(files, asked)
    estimate = _estimate(files, asked, limits)
    if (
        limits is not None
        and estimate is not None
        and estimate.memory is not None
        and estimate.memory.is_mixed
    ):
        part = estimate_part(estimate.memory, estimate.shape, estimate.gpu, None, limits={})
        limits, _ = _limits(files[FileKind.LOG], _replica(tomli.loads(part.body)))
    replica = _replica_found(limits, metrics, None if own and "gpu" in tables else estimate, kept, asked)
    table = tomli.loads(replica.parts[0].body) if replica.parts else tables
    stated = _replica(table) if limits or (metrics and metrics.memory_tokens) or not replica.parts else None
    timing = _timing_found(
        files, asked, kept, estimate, _replica(table), None if stated is None else stated.memory_tokens
    )
    if not timing.parts and estimate is not None and not (own and "timing" in tables):
        timing = _estimated_timing(estimate, timing)
    if unstated is not None and not timing.parts:
        raise unstated
    found = [
        replica,
        timing,
        _drafts_found(files, asked, kept, limits, metrics),
        _engine_found(asked, limits, tables),
    ]
    paths = [path for several in files.values() for path in several]
    source = str(paths[0]) if paths else asked.model or "kvplan import"
    parts = [part for one in found for part in one.parts]
    traffic = _traffic_found(files, asked, kept, parts, metrics, source)
    found.append(traffic)
    given = [one for finding in found for one in finding.given]
    written = {part.table for finding in found for part in finding.parts}
    if kept is not None:
        rest = [f"[{name}]" for name in tables if name not in (*written, "schema", "name", "provenance")]
        given.append(Given(kept.source, "profile", "", f"kept: {', '.join(rest)}"))
    names = {one.table: one.source for one in given if one.kind != "option"}
    replica_of = names.get("gpu") or (names.get("timing") if kept is None else None)
    profile = composed(
        kept,
        [*parts, *traffic.parts],
        source=source,
        replica=replica_of
        and (replica_of if estimate and replica_of == estimate.name else f"replica of {replica_of}"),
        traffic=names.get("classes"),
        name=asked.name,
    )
    hits = next((one.hits for one in (limits, metrics) if one is not None and one.hits is not None), None)
    said = tuple(dict.fromkeys(note for finding in found for note in finding.notes))
    return Gathered(profile, tuple(given), said, hits)


def _own_profile(paths: Sequence[Path]) -> Profile | None:
    for path in paths:
        with lines_of(path) as lines:
            text = lines.rest()
        return parse_profile(text.encode(), str(path), path.parent)
    return None


def _replica(tables: Mapping[str, Any]) -> Replica | None:
    """The replica of tables that have it."""
    return schema.Gpu.model_validate(tables["gpu"]).replica if "gpu" in tables else None


def _file(source: str | Path) -> str:
    return PurePath(source).name


# ---------------------------------------------------------------------------------------------- replica


def _limits(logs: Sequence[Path], like: Replica | None) -> tuple[EngineLimits | None, NoCapacityError | None]:
    """What logs of one replica state, the least capacity of several; and why there is none."""
    found, missing = [], None
    for log in logs:
        try:
            found.append(read_engine_log(log, like))
        except NoCapacityError as error:
            missing = error
    if not found:
        return None, missing
    kinds = {(one.engine, one.gpus, one.max_num_seqs, one.max_num_batched_tokens) for one in found}
    if len(kinds) > 1:
        names = ", ".join(one.source for one in found)
        raise UsageError(f"{names}: logs of engines with different limits; a profile is of one replica")
    return min(found, key=lambda one: one.memory_tokens), None


def _metrics(files: Files, asked: Asked) -> ServerMetrics | None:
    paths = files.get(FileKind.METRICS, ())
    if not paths:
        if asked.since is not None or asked.interval_s is not None:
            raise UsageError("--since and --interval go with an answer of /metrics")
        return None
    model = None if files.get(FileKind.TIMING) else asked.group
    return read_metrics(paths[0], asked.since, interval_s=asked.interval_s, model=model)


def _estimate(files: Files, asked: Asked, limits: EngineLimits | None) -> _Estimate | None:
    configs = files.get(FileKind.MODEL, ())
    if configs and asked.model is not None:
        raise UsageError(f"{configs[0]}: a model beside --model {asked.model}; give one of them")
    model = configs[0] if configs else asked.model
    if model is None:
        if (
            (asked.gpu is not None and limits is None)
            or asked.weights is not None
            or asked.kv_dtype != "auto"
        ):
            raise UsageError(
                "--gpu, --weights and --kv-dtype say how a model runs: --model M, or its config.json"
            )
        return None
    if asked.gpu is None:
        raise UsageError(f"--gpu is missing: which GPU? Known are {', '.join(one.name for one in gpus())}")
    shape, gpu = read_model(model), find_gpu(asked.gpu)
    tensor_parallel = asked.tensor_parallel or (limits and limits.gpus) or 1
    speed = roofline(
        shape, gpu, tensor_parallel=tensor_parallel, kv_dtype=asked.kv_dtype, weight_dtype=asked.weights
    )
    try:
        memory: ReplicaEstimate | None = estimate_replica(
            shape,
            gpu,
            utilization=asked.utilization,
            kv_dtype=asked.kv_dtype,
            tensor_parallel=tensor_parallel,
            weight_dtype=asked.weights,
        )
    except UsageError:
        if limits is None:
            raise
        memory = None
    return _Estimate(shape, gpu, tensor_parallel, speed, memory)


def _replica_found(
    limits: EngineLimits | None,
    metrics: ServerMetrics | None,
    estimate: _Estimate | None,
    kept: Profile | None,
    asked: Asked,
) -> Finding:
    """The table [gpu]: logged, exported, stated or estimated."""
    engine = asked.engine or _ENGINES.get(limits.engine if limits else "", EngineName.VLLM)
    own = vllm_limits(find_gpu(asked.gpu)) if asked.gpu and engine is EngineName.VLLM else {}
    blocks = {"block_tokens": vllm.BLOCK_TOKENS} if engine is EngineName.VLLM else {}
    if limits is not None:
        part, source, kind, said = (
            log_part(limits, kept, blocks | own),
            limits.source,
            f"{limits.engine}'s log",
            limits.notes,
        )
    elif metrics is not None and metrics.memory_tokens is not None:
        part, source, kind = metrics_parts(metrics, kept)[0], metrics.source, f"{metrics.engine}'s metrics"
        said = metrics.notes
    elif asked.capacity is not None:
        about = ("memory_tokens: stated by --capacity.",)
        part = replica_part(
            kept, {"memory_tokens": asked.capacity}, about, Origin(Knowledge.STATED, "--capacity")
        )
        source, kind, said = "--capacity", "option", ()
    elif estimate is not None and estimate.memory is not None:
        part = estimate_part(estimate.memory, estimate.shape, estimate.gpu, kept, limits=own)
        source, kind, said = estimate.name, "estimate", estimate.memory.notes
    else:
        return Finding()
    table = tomli.loads(part.body)["gpu"]
    if asked.tensor_parallel not in (None, 1) and "gpus" not in table:
        part = part._replace(body=part.body.replace("[gpu]\n", f"[gpu]\ngpus = {asked.tensor_parallel}\n", 1))
        table["gpus"] = asked.tensor_parallel
    absent = [key for key in ("max_num_seqs", "max_num_batched_tokens") if key not in table]
    if absent:
        more = f"{' and '.join(absent)}: not known, and so no limit; write what the engine has into [gpu]"
        said = (
            *said,
            more if asked.gpu or engine is not EngineName.VLLM else f"{more}, or --gpu takes its defaults",
        )
    figures = {
        key: value for key, value in table.items() if isinstance(value, int) and not isinstance(value, bool)
    }
    shown = ", ".join(f"{key} {format_tokens(value)}" for key, value in figures.items())
    return Finding(
        (part,), (Given(_file(source) if kind != "estimate" else source, kind, "gpu", shown),), said
    )


# ----------------------------------------------------------------------------------------------- timing


def _timing_found(
    files: Files,
    asked: Asked,
    kept: Profile | None,
    estimate: _Estimate | None,
    replica: Replica | None,
    stated_tokens: int | None,
) -> Finding:
    """The table [timing], fitted; of several that can be fitted to, iterations before loads."""
    results, logs = files.get(FileKind.TIMING, ()), files.get(FileKind.LOG, ())
    timed = [path for path in files.get(FileKind.REQUESTS, ()) if carries_times(path)]
    paths = [*results, *logs, *timed]
    if not paths:
        return Finding()
    groups = read_groups(
        paths,
        capacity_tokens=asked.capacity,
        assumed_tokens=stated_tokens,
        group=None if FileKind.METRICS in files and not results else asked.group,
        may_lack=[*logs, *timed],
    )
    refusals: list[UsageError] = []
    for measured in _candidates(groups, paths[0]):
        try:
            found = _fitted(measured, asked, kept, estimate, replica)
        except UsageError as error:
            refusals.append(error)
            continue
        used = {some.source for some in measured}
        idle = [_file(path) for path in results if str(path) not in used]
        more = (
            (f"{', '.join(idle)}: not used beside the iterations of {found.given[0].source}",) if idle else ()
        )
        return found._replace(notes=(*found.notes, *more))
    if results and refusals:
        raise refusals[0]
    return Finding(notes=tuple(f"no timing: {error}" for error in refusals))


def _candidates(groups: Iterable[Sequence[Measured]], path: Path) -> list[Sequence[Measured]]:
    """What can be fitted to, the best first: iterations that no replica is named of, then loads, then those named."""
    named = {some[0].group: some for some in groups if some}
    unnamed = named.pop("", ())
    samples = [some for some in unnamed if isinstance(some, Samples)]
    sweeps = [some for some in unnamed if not isinstance(some, Samples)]
    if len(named) > 1 and not unnamed:
        raise UsageError(f"{path}: {len(named)} replicas; choose one with --group: {listed(named)}")
    return [some for some in (samples, sweeps, *(named.values() if len(named) == 1 else ())) if some]


def _fitted(
    measured: Sequence[Measured],
    asked: Asked,
    kept: Profile | None,
    estimate: _Estimate | None,
    replica: Replica | None,
) -> Finding:
    law = None if kept is None or "timing" not in kept.tables else _law(kept.tables["timing"])
    prior = priors.NOTHING
    if estimate is not None:
        prior = priors.Prior(estimate.speed.timing, f"the estimate for {estimate.name}")
    elif kept is not None and law is not None:
        prior = priors.Prior(law, kept.source)
    elif (told := priors.of_measured(measured)) is not None:
        prior = told
    fit = fit_measured(
        measured,
        prior.timing,
        believed=prior is not priors.NOTHING,
        replica=replica,
        capacity_tokens=asked.capacity,
        progress=asked.progress,
        announce=asked.announce,
    )
    part = timing_part(fit, measured, prior)
    said = [accuracy(fit), *notes(fit, measured, prior)]
    if kept is not None and "speculative" in kept.tables:
        said.append("what is measured is taken to be without the drafts of the base")
    sources = list(dict.fromkeys(some.source for some in measured))
    for source in sources:  # a note of several files is one
        said = list(dict.fromkeys(note.removeprefix(f"{source}: ") for note in said))
    names = _file(sources[0]) + (f" and {len(sources) - 1} more" if len(sources) > 1 else "")
    kinds = ", ".join(dict.fromkeys(some.format for some in measured))
    return Finding((part,), (Given(names, kinds, "timing", _constants(fit.timing)),), tuple(said))


def _law(table: Mapping[str, Any]) -> Timing:
    checked = schema.check({"schema": 1, "name": "timing", "timing": table}).timing
    return Timing(**{name: getattr(checked, name) for name in Timing.__slots__})


def _constants(timing: Timing) -> str:
    names = [name for name in ("d0", "d1", "d2", "d3", "d4", "d5") if getattr(timing, name) > 0]
    return ", ".join(f"{name} {format_seconds(getattr(timing, name))}" for name in names)


def _estimated_timing(estimate: _Estimate, tried: Finding) -> Finding:
    part = roofline_part(estimate.speed, estimate.shape, estimate.gpu, estimate.tensor_parallel)
    low, high = map(format_number, estimate.speed.band)
    figures = f"{_constants(estimate.speed.timing)}; {low} to {high} times that"
    given = Given(estimate.name, "estimate", "timing", figures)
    return Finding((part,), (given,), (*tried.notes, *estimate.shape.notes, *estimate.speed.notes))


# --------------------------------------------------------------------------------- drafts, engine, traffic


def _drafts_found(
    files: Files,
    asked: Asked,
    kept: Profile | None,
    limits: EngineLimits | None,
    metrics: ServerMetrics | None,
) -> Finding:
    for path in files.get(FileKind.DRAFTS, ()):
        runs = read_drafts(path, asked.group)
        if runs is None:
            raise UsageError(f"{path}: runs with drafts come from a file, and not by a pipe")
        found = fit_drafts(runs)
        old = {} if kept is None else kept.tables.get("speculative", {})
        part = drafts_part(found, lookahead=old.get("lookahead", True))
        figures = f"{found.drafts.tokens} tokens, {format_seconds(found.drafts.draft_s)} a draft"
        errors = (
            format_percent(mean_error(found, foretold)) for foretold in (found.fitted_s, found.held_out_s)
        )
        said = f"Mean error of the time between tokens {', of runs not fitted to '.join(errors)}"
        return Finding(
            (part,), (Given(_file(path), "drafts", "speculative", figures),), (said, *part.about[1:])
        )
    counted = [one for one in (limits, metrics) if one is not None and one.drafts is not None]
    if not counted or counted[0].drafts is None:
        return Finding()
    source = _file(counted[0].source)
    written = observed_part(counted[0].drafts, kept, source)
    if written is None:
        return Finding(
            notes=("accepted drafts go into a --base with [speculative], which says what they cost",)
        )
    return Finding((written,), (Given(source, "counters", "speculative", "tokens, accepted"),))


def _engine_found(asked: Asked, limits: EngineLimits | None, tables: Mapping[str, Any]) -> Finding:
    """The table [engine], where it is another than the base's."""
    logged = None if limits is None else _ENGINES.get(limits.engine)
    engine = asked.engine or logged
    if engine is None or engine == tables.get("engine", {}).get("name", EngineName.VLLM):
        return Finding()
    about = (
        "name: by --engine."
        if asked.engine
        else f"name: whose log {_file(limits.source if limits else '')} is."
    )
    body = table_text("engine", {"name": str(engine)})
    return Finding((Part("engine", (about,), body, Origin(Knowledge.STATED)),))


def _traffic_found(
    files: Files,
    asked: Asked,
    kept: Profile | None,
    parts: Sequence[Part],
    metrics: ServerMetrics | None,
    source: str,
) -> Finding:
    """The tables of classes: of requests, else of a server's histograms."""
    for path in files.get(FileKind.REQUESTS, ()):
        traffic = measure(path)
        few = asked.classes
        classes = trace_fit.binned(traffic) if few is None else trace_fit.compact(traffic, few)
        provisional = classes_part(classes, (), Origin(Knowledge.MEASURED))
        like = composed(kept, [*parts, provisional], source=str(path), name="so far").known
        change = None if few is None else trace_fit.distortion(traffic, classes, like or trace_fit.SLOTS)
        part = traffic_part(traffic, classes, like, distortion=change, reference=asked.reference)
        said = list(traffic.notes)
        if traffic.prefixes is not None:
            said.append(hit_note(traffic.prefixes, None if like is None else like.replica.memory_tokens))
        if change is not None:
            said.append(trace_fit.describe(change))
        if like is None and traffic.counts is not None:
            said.append(
                "how arrivals cluster is told where [gpu] and [timing] are known; till then they are replayed"
            )
        lengths = f"{format_tokens(traffic.mean_input)} tokens in, {format_tokens(traffic.mean_decode)} out"
        figures = f"{format_tokens(traffic.rows)} requests, {format_rate(traffic.rate_rps)}, {lengths}"
        return Finding((part,), (Given(path.name, traffic.format, "classes", figures),), tuple(said))
    if metrics is None or not metrics.classes:
        return Finding()
    part = metrics_parts(metrics, kept)[-1]
    figures = f"{format_tokens(metrics.requests)} requests, {format_rate(metrics.rate_rps)}"
    given = Given(_file(metrics.source), f"{metrics.engine}'s metrics", "classes", figures)
    return Finding((part,), (given,), metrics.notes)
