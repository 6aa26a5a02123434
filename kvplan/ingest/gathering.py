"""One profile of all that files tell of a service, each part from the best source.

A part is measured, else of a profile among the files, else estimated from a model and a GPU, else the base's; else it
is absent.
"""

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from io import BytesIO
from pathlib import Path, PurePath
from typing import Any, NamedTuple

from pydantic import ValidationError

from kvplan.engine import EngineName, admission_before
from kvplan.errors import UsageError
from kvplan.ingest.engine_log import EngineLimits, NoCapacityError, ReadLog, read_log
from kvplan.ingest.engines import WITH_DRAFTS, Setting, vllm
from kvplan.ingest.facts import (
    TRAFFIC_TABLES,
    Fact,
    Part,
    class_tables,
    completed,
    facts,
    merged,
    nested,
    surest,
)
from kvplan.ingest.log_against_rest import (
    differences,
    log_part,
    refuse_other_options,
    rejected,
    told_limits,
    told_version,
)
from kvplan.ingest.metrics import ServerMetrics, metrics_parts, read_metrics
from kvplan.ingest.model.config import read_model
from kvplan.ingest.model.estimate import ReplicaEstimate, default_limits, estimate_replica
from kvplan.ingest.model.hardware import Gpu, find_gpu, gpus
from kvplan.ingest.model.roofline import Roofline, request_overhead_s, roofline
from kvplan.ingest.model.shape import ModelShape, with_adapters
from kvplan.ingest.model.text import estimate_part, roofline_part, together
from kvplan.ingest.reader import FileKind
from kvplan.ingest.recognition import carries_times, kind_of
from kvplan.ingest.text_file import held, lines_of, reference_to
from kvplan.ingest.timing.against import compared
from kvplan.ingest.timing.drafts import drafts_part, fit_drafts, read_drafts
from kvplan.ingest.timing.fit import Prior, fit_measured, of_measured
from kvplan.ingest.timing.reading import KnownFiles, listed, read_groups
from kvplan.ingest.timing.samples import Measured, Samples, Sweep, found_in_cache, settings_of
from kvplan.ingest.timing.text import timing_part
from kvplan.ingest.trace import fit as trace_fit
from kvplan.ingest.trace.text import traffic_parts
from kvplan.ingest.trace.traffic import measure
from kvplan.model import Knowledge, Origin, Parallelism, Prefill, Replica, Timing
from kvplan.model.parallelism import ALONE
from kvplan.options import LIMITS, ImportOptions
from kvplan.profile import schema
from kvplan.profile.reading import Profile, load_profile, parse_profile
from kvplan.profile.replica import Gpu as GpuTable
from kvplan.units import parse_bytes

_ENGINES = {"vLLM": EngineName.VLLM, "SGLang": EngineName.SGLANG, "TensorRT-LLM": EngineName.TRTLLM}
_POOLED = (FileKind.LOG, FileKind.TIMING)

Files = Mapping[FileKind, Sequence[Path]]


@dataclass(kw_only=True)
class Asked(ImportOptions):
    """Options beside the files; `reference` is how the profile refers to requests that are to be replayed."""

    reference: str | None = None


class Gathered(NamedTuple):
    """A profile, the parts it is made of, and notes on it."""

    profile: Profile
    given: tuple[Part, ...]
    notes: tuple[str, ...]


def gather_files(
    named: Sequence[tuple[FileKind | None, Path]], asked: Asked, base: Profile | None, folder: Path = Path()
) -> Gathered:
    """Put together one profile of files of any kind; `folder` is where it will stand.

    Raises
    ------
    UsageError, ProfileError
        As `gather`; or a file is not recognised, or there is nothing to read.
    """
    if not named and asked.model is None and asked.capacity is None:
        raise UsageError("a FILE is wanted, or --model and --gpu where nothing is measured")
    others = [path for path in (asked.since,) if path is not None]
    with held([*(path for _, path in named), *others], parse_bytes(asked.max_size)):
        kinds: dict[FileKind, list[Path]] = {}
        for kind, path in named:
            kinds.setdefault(kind or kind_of(path), []).append(path)
        reference = next((reference_to(path, folder) for path in kinds.get(FileKind.REQUESTS, ())), None)
        return gather(kinds, replace(asked, reference=reference), base)


def gather(files: Files, asked: Asked, base: Profile | None = None) -> Gathered:
    """Put together one profile.

    Raises
    ------
    UsageError
        A file cannot be read or used, several of a kind cannot be pooled, or nothing was found.
    ProfileError
        The parts do not go together.
    """
    for kind, several in files.items():
        if len(several) > 1 and kind not in _POOLED:
            raise UsageError(f"{several[1]}: a second file of kind {kind}, beside {several[0]}; give one")
    own = None
    for path in files.get(FileKind.PROFILE, ()):
        with lines_of(path) as lines:
            own = parse_profile(lines.rest().encode(), str(path), path.parent)
    if own is not None and base is not None:
        raise UsageError(f"{own.source}: a profile beside --base; give one of them")
    try:
        return _Gathering(files, asked, own or base, () if own is None else tuple(own.tables), []).gathered()
    except ValidationError as error:  # of [gpu], which others rest on
        wrong = error.errors()[0]
        raise UsageError(": ".join((".".join(("gpu", *map(str, wrong["loc"]))), wrong["msg"]))) from None


class _Estimate(NamedTuple):
    """Of a model on GPUs; without `memory` where it does not fit, though it ran."""

    shape: ModelShape
    gpu: Gpu
    parallelism: Parallelism
    speed: Roofline
    memory: ReplicaEstimate | None

    def replica(self, base: Profile | None, limits: Mapping[str, int]) -> Part | None:
        memory = self.memory
        return None if memory is None else estimate_part(memory, self.shape, self.gpu, base, limits=limits)


@dataclass(frozen=True)
class _Gathering:
    """Sources of tables; those `settled` are not estimated, since `kept` is the service's own profile."""

    files: Files
    asked: Asked
    kept: Profile | None
    settled: tuple[str, ...]
    notes: list[str]  # on what gave no table

    def gathered(self) -> Gathered:
        if self.asked.repeated and self.asked.cached_share:
            raise UsageError("--repeated and --cached-share: one of them")
        if (self.asked.repeated or self.asked.cached_share) and not self._of(FileKind.TIMING):
            raise UsageError("--repeated and --cached-share go with results of load generators")
        candidates = self._model(), self.replica, self.timing, self._drafts(), self._engine()
        parts = [part for part in candidates if part]
        for log in () if self.limits or self.timing else self._of(FileKind.LOG):
            for note in self.notes:
                raise UsageError(note)
            self._logs[log].limits()  # which says what was looked for
        parts += self._traffic(parts)
        for path in self._of(FileKind.METRICS):
            if self.metrics is not None and not any(part.source == path.name for part in parts):
                self.notes.append(f"nothing is taken of {path.name}: {'; '.join(self.metrics.notes)}")
        source = str(next((path for several in self.files.values() for path in several), "--model"))
        profile = merged(self.kept, parts, source=source, name=self.asked.name)
        given = [part for part in parts if part.kind]
        if self.kept is not None:
            gone = {key.partition(".")[0] for part in parts for key in part.facts}
            gone |= {"schema", "name", "provenance", *(TRAFFIC_TABLES if "classes" in gone else ())}
            rest = ", ".join(f"[{name}]" for name in self.tables if name not in gone)
            given.append(Part("", {}, self.kept.source, "profile", f"kept: {rest}"))
        compared = [] if self.asked.against is None else self._compared(self.asked.against)
        notes = [*self._of_other_models(), *(note for part in parts for note in part.notes)]
        said = dict.fromkeys([*compared, *notes, *self.notes])
        return Gathered(profile, tuple(given), tuple(said))

    @property
    def tables(self) -> Mapping[str, Any]:
        return {} if self.kept is None else self.kept.tables

    def _of(self, kind: FileKind) -> Sequence[Path]:
        return self.files.get(kind, ())

    @property
    def _only_requests(self) -> bool:
        """Whether --group can only mean a model of the requests."""
        return self.files.keys() <= {FileKind.REQUESTS, FileKind.MODEL, FileKind.PROFILE}

    def _of_other_models(self) -> list[str]:
        """Name the results of models that are not the base's; a variant has its name within the other's."""
        kept = self.tables.get("model", {}).get("name", "")
        named = sorted({some.deployment.model for some in self._runs if some.deployment.model})
        short = {name: name.rpartition("/")[2].lower() for name in (kept, *named)}
        others = [name for name in named if short[name] not in short[kept] and short[kept] not in short[name]]
        return [f"times are those of {name}, and the profile is of {kept}" for name in others if kept]

    def _compared(self, path: Path) -> list[str]:
        """Compare loads with what a profile expects of them."""
        expecting = load_profile(str(path), stdin=BytesIO())
        if lacking := expecting.missing:
            raise UsageError(f"--against {path}: it has no {lacking[0]}")
        if not self._runs:
            raise UsageError("--against goes with results of load generators")
        return compared(self._runs, expecting, replace(expecting.model.replica, prefill=Prefill.FUSED))

    # ------------------------------------------------------------------------------------------ replica

    @cached_property
    def _logs(self) -> Mapping[Path, ReadLog]:
        return {path: read_log(path) for path in self._of(FileKind.LOG)}

    @cached_property
    def _known(self) -> KnownFiles:
        return KnownFiles({path: log.told for path, log in self._logs.items()})

    @cached_property
    def limits(self) -> EngineLimits | None:
        """Limits that logs state; layers of several kinds are the model's or the base's."""
        estimate = self.estimate
        like = _replica(self.tables.get("gpu"))
        if estimate and estimate.memory and estimate.memory.is_mixed and (part := estimate.replica(None, {})):
            like = _replica(part.values)
        return self._stated(like and like.with_states(self.tables.get("speculative", {}).get("tokens", 0)))

    def _stated(self, like: Replica | None) -> EngineLimits | None:
        """Choose the least capacity of several logs, which must be alike otherwise."""
        stated = []
        for log in self._logs.values():
            with suppress(NoCapacityError):  # it may have statistics
                stated.append(log.limits(like, self.asked.group))
        if len({(s.engine, s.parallelism, s.max_num_seqs, s.max_num_batched_tokens) for s in stated}) > 1:
            names = ", ".join(some.source for some in stated)
            raise UsageError(f"{names}: logs of engines with different limits; a profile is of one replica")
        return min(stated, key=lambda some: some.memory_tokens, default=None)

    @cached_property
    def engine(self) -> EngineName | None:
        """The engine that is asked for, else of the log, else of the base: clients name servers after themselves."""
        if (asked := self.asked.engine_named[0]) is not None:
            return asked
        if self.limits is not None:
            return _ENGINES.get(self.limits.engine)
        if (kept := self.tables.get("engine", {}).get("name")) is not None:
            return EngineName(kept)
        named = {some.deployment.engine for some in self._runs}
        fused = self.tables.get("gpu", {}).get("prefill", "fused") == "fused"  # others name no engine
        return EngineName(*named) if fused and len(named) == 1 and named <= set(EngineName) else None

    @cached_property
    def _runs(self) -> Sequence[Sweep]:
        """Loads in results, whatever can be fitted to them."""
        groups: Iterable[Sequence[Measured]] = ()
        if results := self._of(FileKind.TIMING):
            with suppress(UsageError):
                groups = self._found(read_groups(results, group=self.asked.group, before=self._known))
        return [some for group in groups for some in group if isinstance(some, Sweep)]

    def _found(self, groups: Iterable[Sequence[Measured]]) -> tuple[tuple[Measured, ...], ...]:
        """Count prompts as cached as far as options say."""
        asked = self.asked
        block = self.tables.get("gpu", {}).get("block_tokens", vllm.BLOCK_TOKENS)
        share = None if asked.repeated else asked.cached_share
        return tuple(tuple(found_in_cache(some, share, block) for some in group) for group in groups)

    @cached_property
    def metrics(self) -> ServerMetrics | None:
        asked = self.asked
        for path in self._of(FileKind.METRICS):
            model = None if self._of(FileKind.TIMING) else asked.group
            return read_metrics(path, asked.since, interval_s=asked.interval, model=model)
        if asked.since is not None or asked.interval is not None:
            raise UsageError("--since and --interval go with an answer of /metrics")
        return None

    @cached_property
    def estimate(self) -> _Estimate | None:
        asked, logs = self.asked, self._of(FileKind.LOG)
        if asked.gpu is None and any(asked.gpu_figures.values()):
            raise UsageError(
                "--gpu-memory, --gpu-bandwidth and --gpu-flops describe the GPU that --gpu names"
            )
        model: str | Path | None = next(iter(self._of(FileKind.MODEL)), asked.model)
        if model is None:
            if (asked.gpu and not logs) or asked.says_how:
                which = "--gpu, --weights, --kv-dtype and --loras say how a model runs"
                raise UsageError(f"{which}: --model M, or its config.json")
            return None
        if asked.model not in (None, model):
            raise UsageError(f"{model}: a model beside --model {asked.model}; give one of them")
        if asked.gpu is None:
            known = ", ".join(gpu.name for gpu in gpus())
            raise UsageError(f"--gpu is missing: which GPU? Known are {known}")
        gpu = find_gpu(asked.gpu, **asked.gpu_figures)
        shape = with_adapters(read_model(model), asked.loras, asked.lora_rank)
        shape = replace(shape, drafts=self.tables.get("speculative", {}).get("tokens", 0))
        stated = self._stated(None) if logs else None
        parallelism = replace((stated and stated.parallelism) or ALONE, **asked.ranks)
        kv_dtype = asked.kv_dtype
        if stated is not None:
            kept_in = stated.settings.get(Setting.KV_DTYPE, "auto")
            kv_dtype = "fp8" if kv_dtype == "auto" and kept_in.startswith("fp8") else kv_dtype
        how: dict[str, Any] = {"kv_dtype": kv_dtype, "weight_dtype": asked.weights}
        memory: ReplicaEstimate | None = None
        engine = asked.engine_named[0] or (_ENGINES.get(stated.engine) if stated else None)
        try:
            memory = estimate_replica(
                shape,
                gpu,
                engine=engine or EngineName.VLLM,
                version=told_version(engine, asked, stated, self.tables),
                limits=told_limits(asked, stated, self.tables.get("gpu", {})),
                utilization=asked.utilization,
                parallelism=parallelism,
                **how,
            )
        except UsageError:
            if not logs:
                raise
        speed = roofline(shape, gpu, parallelism=parallelism, engine=engine, **how)
        return _Estimate(shape, gpu, parallelism, speed, memory)

    def _model(self) -> Part | None:
        """Name the model, where options or a log tell it."""
        asked, estimate, limits = self.asked, self.estimate, self.limits
        if estimate is None:
            name = "" if limits is None else limits.settings.get(Setting.MODEL, "")
            return Part("model", facts("model", {"name": name}, Origin())) if name else None
        shape, gpu = estimate.shape, estimate.gpu
        config = None if shape.like else reference_to(Path(shape.source), asked.folder or Path())
        named = {
            "name": shape.name,
            "config": config,
            "weights": asked.weights or shape.weights,
            "gpu": gpu.name,
        }
        named["kv_dtype"] = None if asked.kv_dtype == "auto" else asked.kv_dtype
        said = {key: getattr(asked, key) for key in ("utilization", "loras", "lora_rank")}
        return Part("model", facts("model", named | said, Origin()))

    @cached_property
    def replica(self) -> Part | None:
        asked, limits, metrics, estimate = self.asked, self.limits, self.metrics, self.estimate
        engine = self.engine or (None if limits else EngineName.VLLM)
        own: dict[str, int] = {}
        if asked.gpu:
            gpu = find_gpu(asked.gpu, **asked.gpu_figures)
            own = default_limits(engine, gpu, told_version(engine, asked, limits, self.tables))
        candidates: list[Part | None] = []
        if limits is not None:
            refuse_other_options(limits, asked)
            blocks = {"block_tokens": vllm.BLOCK_TOKENS} if engine is EngineName.VLLM else {}
            if (
                limits.block_tokens is None
                and limits.layout is None
                and limits.memory_tokens % vllm.BLOCK_TOKENS
            ):
                blocks = {}
                self.notes.append(
                    f"{limits.source}: {limits.memory_tokens:,} tokens are no whole number of blocks of "
                    f"{vllm.BLOCK_TOKENS}: of layers of several kinds? Then --model and --gpu tell what requests take"
                )
            candidates.append(log_part(limits, self.kept, blocks | own))
        if metrics is not None and metrics.memory_tokens is not None:
            candidates.append(metrics_parts(metrics)["gpu"])
        if asked.capacity is not None:
            stated = Fact(asked.capacity, Origin(Knowledge.STATED, "--capacity"), "by --capacity")
            candidates.append(Part("gpu", {"gpu.memory_tokens": stated}, "--capacity", "option"))
        if estimate is not None and "gpu" not in self.settled:
            candidates.append(estimate.replica(self.kept, own))
        if (part := surest(candidates)) is None:
            return None
        part = completed(part, self.kept)
        unsaid = {key: n for key, n in own.items() if key not in part.values}
        default = facts(
            "gpu", unsaid, Origin(Knowledge.ESTIMATED, f"by default of {engine}"), f"defaults of {engine}"
        )
        part = part._replace(facts={**part.facts, **default})
        told: dict[str, int] = told_limits(asked, limits, {})
        if asked.ranks and GpuTable.model_validate(part.values).parallelism == ALONE:
            told |= Parallelism(**asked.ranks).keys
        by_options = {key: n for key, n in told.items() if part.values.get(key) != n}
        part = part._replace(facts={**part.facts, **facts("gpu", by_options, part.origin, "by options")})
        if absent := [key for key in LIMITS[:2] if key not in part.values]:
            options = " and ".join(f"--{key.replace('_', '-')}" for key in absent)
            unknown = f"{' and '.join(absent)}: not known, and so no limit; give {options}"
            part = part._replace(notes=(*part.notes, unknown))
        return part

    # ------------------------------------------------------------------------------------------- timing

    @cached_property
    def timing(self) -> Part | None:
        candidates, estimate = [self._measured(), self._of_another_service()], self.estimate
        if estimate is not None and "timing" not in self.settled:
            engine = self.engine or EngineName.VLLM
            on = estimate.shape, estimate.gpu, estimate.parallelism
            candidates.append(roofline_part(estimate.speed, *on, engine))
        return surest(candidates)

    def _of_another_service(self) -> Part | None:
        """Demote the timing of a base whose service is not that of the log."""
        limits, kept, table = self.limits, self.kept, self.tables.get("timing")
        if limits is None or kept is None or table is None or not (contradicted := differences(limits, kept)):
            return None
        said = "; ".join(contradicted)
        origin = Origin(Knowledge.ASSUMED, f"{said}; {kept.provenance.timing.source}".removesuffix("; "))
        about = f"kept from {kept.source}, though it is of another service"
        note = f"[timing] is assumed, for it is not of the service of the log: {said}"
        return Part("timing", facts("timing", table, origin, about), notes=(note,))

    def _measured(self) -> Part | None:
        results, logs = self._of(FileKind.TIMING), self._of(FileKind.LOG)
        whose = self.asked.group if self._only_requests else None
        timed = [path for path in self._of(FileKind.REQUESTS) if whose is None and carries_times(path)]
        if not (paths := [*results, *logs, *timed]):
            return None
        estimated = self.replica is not None and self.replica.kind == "estimate"
        known = None if estimated else self._fitted_on
        try:
            groups = self._found(
                read_groups(
                    paths,
                    capacity_tokens=self.asked.capacity,
                    assumed_tokens=None if known is None else known.memory_tokens,
                    group=None if FileKind.METRICS in self.files and not results else self.asked.group,
                    may_lack=[*logs, *timed],
                    before=self._known,
                    told=[self.limits.service] if logs and self.limits is not None else (),
                )
            )
        except UsageError as error:
            if results or logs:
                raise
            self.notes.append(f"no timing: {error}")  # requests are traffic all the same
            return None
        refusals = [] if groups else list(self._known.left_out.values())
        for measured in _candidates(groups, paths[0]):
            try:
                fitted = self._fitted(measured)
            except UsageError as error:
                refusals.append(error)
                continue
            used = {some.source for some in measured}
            idle = ", ".join(path.name for path in results if str(path) not in used)
            unused = [f"{idle}: not used beside iterations"] if idle else []
            return fitted._replace(notes=(*unused, *fitted.notes))
        if results and refusals:
            raise refusals[0]
        self.notes.extend(f"no timing: {error}" for error in refusals)
        return None

    @property
    def _fitted_on(self) -> Replica | None:
        return _replica(self.tables.get("gpu") if self.replica is None else self.replica.values)

    def _fitted(self, measured: Sequence[Measured]) -> Part:
        ranks = 1 if self._fitted_on is None else self._fitted_on.ranks
        if ranks > 1 and not all(isinstance(some, Samples) for some in measured):
            several = f"{measured[0].source}: times of {ranks} ranks together are not fitted"
            raise UsageError(f"{several}, for they wait for each other; iterations in the engine's log are")
        prior = of_measured(measured)
        if self.estimate is not None:
            on = together(self.estimate.gpu, self.estimate.parallelism)
            law, of = self.estimate.speed.timing, f"the estimate for {self.estimate.shape.name} on {on}"
            prior = Prior(law, of, request_overhead_s(law, self.engine or EngineName.VLLM))
        elif self.kept is not None and "timing" in self.tables:
            law_of = {name: self.tables[name] for name in ("gpu", "timing") if name in self.tables}
            table = schema.check({"schema": 1, "name": "law", **law_of}).timing
            law = Timing(**{name: getattr(table, name) for name in Timing.__slots__})
            prior = Prior(law, self.kept.source, table.request_overhead)
        fit = fit_measured(
            measured,
            prior.timing,
            request_overhead_s=prior.request_overhead_s,
            replica=self._fitted_on,
            capacity_tokens=self.asked.capacity,
            progress=self.asked.progress,
            announce=self.asked.announce,
        )
        part = timing_part(fit, measured, prior)
        if "speculative" in self.tables and not any(WITH_DRAFTS in note for note in part.notes):
            note = "what is measured is taken to be without the drafts of the base"
            part = part._replace(notes=(*part.notes, note))
        return part

    # ------------------------------------------------------------------------- drafts, engine, traffic

    def _drafts(self) -> Part | None:
        for path in self._of(FileKind.DRAFTS):
            return drafts_part(fit_drafts(read_drafts(path, self.asked.group)))
        for counted in (self.limits, self.metrics):
            if counted is not None and counted.drafts is not None:
                part = counted.drafts.part(self.kept, PurePath(counted.source).name)
                if part is None:
                    note = "accepted drafts go into a --base with [speculative], which has their cost"
                    self.notes.append(note)
                return part
        return None

    def _engine(self) -> Part | None:
        asked, limits, engine = self.asked, self.limits, self.engine
        before = {"name": str(EngineName.VLLM), **self.tables.get("engine", {})}
        if engine is None and limits is not None:
            unknown = f"how {limits.engine} schedules is not known"
            self.notes.append(f"{unknown}: as vLLM does, unless --engine names another")
            return None
        by = "options" if engine is None or asked.engine else "the log" if limits else "the runs measured"
        if engine is None and asked.max_model_len:
            engine = EngineName(before["name"])
        settings, notes = settings_of([some for some in self._runs if some.deployment.engine == engine])
        version = told_version(engine, asked, limits, self.tables)
        named = {"name": engine and str(engine), "version": version or None}
        told: dict[str, Any] = {**named, "max_model_len": asked.max_model_len}
        if engine is EngineName.VLLM and "admission" not in before and (older := admission_before(version)):
            told["admission"] = str(older)
            notes.append(
                f"vLLM {version} admits a prompt once its first chunk fits (before pull request 37307 of March 2026)"
            )
        said = facts("engine", told, Origin(), f"by {by}")
        said |= facts("engine", settings, Origin(), "of the runs measured")
        if engine is None or before == before | nested(said)["engine"]:
            self.notes.extend(notes)
            return None
        if engine != before["name"]:
            said |= {key: Fact(None) for key in (f"engine.{name}" for name in before) if key not in said}
        return Part("engine", said, notes=tuple(notes))

    def _traffic(self, parts: Sequence[Part]) -> list[Part]:
        """Make tables of classes; note which requests the log's engine rejects."""
        traffic = self._requests(parts)
        most = self.asked.max_model_len or (None if self.limits is None else self.limits.max_model_len)
        tables = {name: self.tables[name] for name in TRAFFIC_TABLES if name in self.tables}
        if traffic:
            tables = nested(traffic[0].facts)
        if most is None or "classes" not in tables:
            return traffic
        before, said = tables["classes"], rejected(tables, most, kept=self.asked.max_model_len is not None)
        if tables["classes"] is before:
            if not traffic:
                self.notes.extend(said)
                return traffic
            return [traffic[0]._replace(notes=(*said, *traffic[0].notes)), *traffic[1:]]
        known = self.kept.provenance.workload if self.kept else Origin()
        part, *others = traffic or [
            Part("classes", {name: Fact(table, known) for name, table in tables.items()})
        ]
        changed = part.facts["classes"]._replace(value=tables["classes"])
        return [part._replace(facts={**part.facts, "classes": changed}, notes=(*part.notes, *said)), *others]

    def _requests(self, parts: Sequence[Part]) -> list[Part]:
        for path in self._of(FileKind.REQUESTS):
            few, chosen = self.asked.classes, self.asked.group if self._only_requests else None
            traffic = measure(path, self.asked.unit, chosen)
            # read again it would lack them
            again = None if self.asked.unit or chosen else self.asked.reference
            classes = trace_fit.binned(traffic) if few is None else trace_fit.compact(traffic, few)
            provisional = Part("classes", {"classes": Fact(class_tables(classes))})
            like = merged(self.kept, [*parts, provisional], source=str(path), name="so far").known
            change = None if few is None else trace_fit.distortion(traffic, classes, like or trace_fit.SLOTS)
            return traffic_parts(traffic, classes, like, distortion=change, reference=again)
        if self.metrics is None or not self.metrics.classes:
            return []
        return [metrics_parts(self.metrics)["classes"]]


def _replica(table: Mapping[str, Any] | None) -> Replica | None:
    return None if table is None else GpuTable.model_validate(table).replica


def _candidates(groups: Iterable[Sequence[Measured]], path: Path) -> list[Sequence[Measured]]:
    """List what can be fitted to, the best first: iterations and loads that name no replica, then a named one."""
    named = {some[0].group: some for some in groups if some}
    unnamed = named.pop("", ())
    if len(named) > 1 and not unnamed:
        raise UsageError(f"{path}: {len(named)} replicas; choose one with --group: {listed(named)}")
    samples = [some for some in unnamed if isinstance(some, Samples)]
    sweeps = [some for some in unnamed if not isinstance(some, Samples)]
    return [some for some in (samples, sweeps, *(named.values() if len(named) == 1 else ())) if some]
