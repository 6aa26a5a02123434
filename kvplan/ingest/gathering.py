"""One profile of all that files tell of a service, each part from the best source.

A part is measured, else of a profile among the files, else estimated from a model and a GPU, else the base's; else it
is absent.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import starmap
from pathlib import Path, PurePath
from typing import Any, NamedTuple

import tomli
from pydantic import ValidationError

from kvplan.engine import EngineName
from kvplan.errors import UsageError
from kvplan.ingest.engine_log import EngineLimits, NoCapacityError, read_engine_log
from kvplan.ingest.engines import WITH_DRAFTS, Setting, vllm
from kvplan.ingest.log_against_rest import (
    differences,
    log_part,
    notes_by_version,
    refuse_other_options,
    rejected,
    told_limits,
    told_version,
)
from kvplan.ingest.metrics import ServerMetrics, metrics_parts, read_metrics
from kvplan.ingest.model.config import read_model
from kvplan.ingest.model.engines import default_limits
from kvplan.ingest.model.estimate import ReplicaEstimate, estimate_replica
from kvplan.ingest.model.hardware import Gpu, find_gpu, gpus
from kvplan.ingest.model.roofline import Roofline, roofline
from kvplan.ingest.model.shape import ModelShape, with_adapters
from kvplan.ingest.model.text import estimate_part, roofline_part, together
from kvplan.ingest.profile_text import (
    TIMES,
    TRAFFIC_TABLES,
    Part,
    classes_part,
    composed,
    replica_part,
)
from kvplan.ingest.reader import FileKind
from kvplan.ingest.recognition import carries_times, kind_of
from kvplan.ingest.text_file import held, lines_of, reference_to
from kvplan.ingest.timing.collector import LeftOutError
from kvplan.ingest.timing.drafts import drafts_part, fit_drafts, read_drafts
from kvplan.ingest.timing.fit import Prior, fit_measured, of_measured
from kvplan.ingest.timing.reading import listed, read_groups
from kvplan.ingest.timing.samples import Measured, Samples, Sweep, settings_of
from kvplan.ingest.timing.text import accuracy, notes, timing_part
from kvplan.ingest.trace import fit as trace_fit
from kvplan.ingest.trace.text import hit_note, traffic_part
from kvplan.ingest.trace.traffic import measure
from kvplan.model import Knowledge, Origin, Parallelism, Replica, Timing
from kvplan.model.parallelism import ALONE
from kvplan.options import ImportOptions
from kvplan.profile import schema
from kvplan.profile.reading import Profile, parse_profile
from kvplan.profile.replica import Gpu as GpuTable
from kvplan.profile.writing import table_text
from kvplan.units import format_number, format_percent, format_rate, format_seconds, format_tokens

_ENGINES = {"vLLM": EngineName.VLLM, "SGLang": EngineName.SGLANG, "TensorRT-LLM": EngineName.TRTLLM}
_POOLED = (FileKind.LOG, FileKind.TIMING)

Files = Mapping[FileKind, Sequence[Path]]


@dataclass(kw_only=True)
class Asked(ImportOptions):
    """What is said beside the files; `reference` is how the profile refers to requests that are to be replayed."""

    reference: str | None = None


class Given(NamedTuple):
    """A table of the profile, and what it is from."""

    source: str
    kind: str
    table: str
    figures: str


class Finding(NamedTuple):
    """A table that was found, if one was, and what there is to say of it."""

    part: Part | None = None
    given: Given | None = None
    notes: Sequence[str] = ()


class Gathered(NamedTuple):
    """A profile, what gave what, and what there is to say of it."""

    profile: Profile
    given: tuple[Given, ...]
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
    with held([path for _, path in named]):
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
        return _Gathering(files, asked, own or base, () if own is None else tuple(own.tables)).gathered()
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

    @property
    def name(self) -> str:
        return f"{self.shape.name} on {together(self.gpu, self.parallelism)}"


@dataclass(frozen=True)
class _Gathering:
    """What is there to find tables in; those `settled` are not estimated, for `kept` is the service's own profile."""

    files: Files
    asked: Asked
    kept: Profile | None
    settled: tuple[str, ...]

    def gathered(self) -> Gathered:
        findings = [self.replica, self.timing, self._drafts(), self._engine()]
        if self._of(FileKind.LOG) and self.limits is None and self.timing.part is None:
            for note in self.timing.notes:
                raise UsageError(note)
            read_engine_log(self._of(FileKind.LOG)[0])  # which says what was looked for
        findings.append(self._traffic([finding.part for finding in findings if finding.part]))
        parts = [finding.part for finding in findings if finding.part]
        given = [finding.given for finding in findings if finding.given]
        if self.kept is not None:
            gone = {*(part.table for part in parts), "schema", "name", "provenance"}
            gone |= set(TRAFFIC_TABLES) if "classes" in gone else set()
            rest = ", ".join(f"[{name}]" for name in self.tables if name not in gone)
            given.append(Given(self.kept.source, "profile", "", f"kept: {rest}"))
        names = {some.table: some.source for some in given if some.kind != "option"}
        replica = names.get("gpu") or (names.get("timing") if self.kept is None else None)
        if replica is not None and not (self.estimate and replica == self.estimate.name):
            replica = f"replica of {replica}"
        profile = composed(
            self.kept,
            parts,
            source=str(next((path for several in self.files.values() for path in several), "--model")),
            replica=replica,
            traffic=names.get("classes"),
            name=self.asked.name,
        )
        notes = dict.fromkeys(note for finding in findings for note in finding.notes)
        return Gathered(profile, tuple(given), tuple(notes))

    @property
    def tables(self) -> Mapping[str, Any]:
        return {} if self.kept is None else self.kept.tables

    def _of(self, kind: FileKind) -> Sequence[Path]:
        return self.files.get(kind, ())

    @property
    def _only_requests(self) -> bool:
        """Whether --group can mean nothing but a model of the requests."""
        return self.files.keys() <= {FileKind.REQUESTS, FileKind.MODEL, FileKind.PROFILE}

    # ------------------------------------------------------------------------------------------ replica

    @cached_property
    def limits(self) -> EngineLimits | None:
        """What logs state; with layers of several kinds as the model or the base has them."""
        estimate = self.estimate
        like = _replica(self.tables)
        if estimate is not None and estimate.memory is not None and estimate.memory.is_mixed:
            part = estimate_part(estimate.memory, estimate.shape, estimate.gpu, None, limits={})
            like = _replica(tomli.loads(part.body))
        return self._stated(like and like.with_states(self.tables.get("speculative", {}).get("tokens", 0)))

    def _stated(self, like: Replica | None) -> EngineLimits | None:
        """Choose the least capacity of several logs, which must be alike otherwise."""
        stated = []
        for log in self._of(FileKind.LOG):
            with suppress(NoCapacityError):  # it may have statistics
                stated.append(read_engine_log(log, like, self.asked.group))
        if len({(s.engine, s.parallelism, s.max_num_seqs, s.max_num_batched_tokens) for s in stated}) > 1:
            names = ", ".join(some.source for some in stated)
            raise UsageError(f"{names}: logs of engines with different limits; a profile is of one replica")
        return min(stated, key=lambda some: some.memory_tokens, default=None)

    @cached_property
    def engine(self) -> EngineName | None:
        """The engine that is asked for, else that of the log, else the one that results name."""
        if (asked := self.asked.engine_named[0]) is not None:
            return asked
        if self.limits is not None:
            return _ENGINES.get(self.limits.engine)
        named = {some.deployment.engine for some in self._runs}
        fused = self.tables.get("gpu", {}).get("prefill", "fused") == "fused"  # others name no engine
        return EngineName(*named) if fused and len(named) == 1 and named <= set(EngineName) else None

    @cached_property
    def _runs(self) -> Sequence[Sweep]:
        """Loads in results, whatever can be fitted to them."""
        groups: Iterable[Sequence[Measured]] = ()
        if results := self._of(FileKind.TIMING):
            with suppress(UsageError):
                groups = read_groups(results, group=self.asked.group)
        return [some for group in groups for some in group if isinstance(some, Sweep)]

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
                raise UsageError(
                    "--gpu, --weights, --kv-dtype and --loras say how a model runs: --model M, or its config.json"
                )
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

    @cached_property
    def replica(self) -> Finding:
        """The table [gpu]: logged, exported, stated or estimated."""
        asked, kept, limits = self.asked, self.kept, self.limits
        metrics, estimate = self.metrics, self.estimate
        engine = self.engine or (None if limits else EngineName.VLLM)
        own = default_limits(engine, find_gpu(asked.gpu, **asked.gpu_figures)) if asked.gpu else {}
        own = {key: value for key, value in own.items() if key not in asked.limits}
        said: tuple[str, ...] = ()
        if limits is not None:
            refuse_other_options(limits, asked)
            blocks = {"block_tokens": vllm.BLOCK_TOKENS} if engine is EngineName.VLLM else {}
            part, said = log_part(limits, kept, blocks | own), limits.notes
            source, kind = PurePath(limits.source).name, f"{limits.engine}'s log"
        elif metrics is not None and metrics.memory_tokens is not None:
            part, said = metrics_parts(metrics, kept)[0], metrics.notes
            source, kind = PurePath(metrics.source).name, f"{metrics.engine}'s metrics"
        elif asked.capacity is not None:
            source, kind, origin = "--capacity", "option", Origin(Knowledge.STATED, "--capacity")
            stated = {"memory_tokens": asked.capacity}
            part = replica_part(kept, stated, ["memory_tokens: by --capacity."], origin)
        elif estimate is not None and estimate.memory is not None and "gpu" not in self.settled:
            part = estimate_part(estimate.memory, estimate.shape, estimate.gpu, kept, limits=own)
            source, kind, said = estimate.name, "estimate", estimate.memory.notes
        else:
            return Finding()
        before = tomli.loads(part.body)["gpu"]
        table = before | told_limits(asked, limits, {})
        if asked.ranks and GpuTable.model_validate(table).parallelism == ALONE:
            table |= Parallelism(**asked.ranks).keys
        if table != before:
            part = part._replace(body=table_text("gpu", table))
        if absent := [key for key in ("max_num_seqs", "max_num_batched_tokens") if key not in table]:
            unknown = f"{' and '.join(absent)}: not known, and so no limit"
            said += (f"{unknown}; write them into [gpu], or give --gpu",)
        figures = [f"{key} {format_tokens(value)}" for key, value in table.items() if type(value) is int]
        return Finding(part, Given(source, kind, "gpu", ", ".join(figures)), said)

    # ------------------------------------------------------------------------------------------- timing

    @cached_property
    def timing(self) -> Finding:
        """The table [timing]: fitted, to iterations before loads, or estimated."""
        measured, estimate = self._measured(), self.estimate
        if measured.part is not None:
            return measured
        if estimate is None or "timing" in self.settled:
            return self._of_another_service(measured)
        engine = self.engine or EngineName.VLLM
        part = roofline_part(estimate.speed, estimate.shape, estimate.gpu, estimate.parallelism, engine)
        low, high = map(format_number, estimate.speed.band)
        figures = f"{_constants(estimate.speed.timing)}; {low} to {high} times that"
        notes = (*measured.notes, *estimate.shape.notes, *estimate.speed.notes)
        return Finding(part, Given(estimate.name, "estimate", "timing", figures), notes)

    def _of_another_service(self, finding: Finding) -> Finding:
        """Demote the timing of a base whose service is not that of the log."""
        limits, kept = self.limits, self.kept
        if limits is None or kept is None or "timing" not in self.tables:
            return finding
        if not (contradicted := differences(limits, kept)):
            return finding
        said = "; ".join(contradicted)
        origin = Origin(Knowledge.ASSUMED, f"{said}; {kept.provenance.timing.source}".removesuffix("; "))
        about = (f"Kept from {kept.source}, though it is of another service: {said}.",)
        part = Part("timing", about, table_text("timing", self.tables["timing"]), origin)
        note = f"[timing] is assumed, for it is not of the service of the log: {said}"
        return finding._replace(part=part, notes=(*finding.notes, note))

    def _measured(self) -> Finding:
        results, logs = self._of(FileKind.TIMING), self._of(FileKind.LOG)
        whose = self.asked.group if self._only_requests else None
        timed = [path for path in self._of(FileKind.REQUESTS) if whose is None and carries_times(path)]
        if not (paths := [*results, *logs, *timed]):
            return Finding()
        estimated = self.replica.given is not None and self.replica.given.kind == "estimate"
        known = None if estimated else self._fitted_on
        try:
            groups = read_groups(
                paths,
                capacity_tokens=self.asked.capacity,
                assumed_tokens=None if known is None else known.memory_tokens,
                group=None if FileKind.METRICS in self.files and not results else self.asked.group,
                may_lack=[*logs, *timed],
                told=[self.limits.service] if logs and self.limits is not None else (),
            )
        except UsageError as error:
            if results or logs:
                raise
            return Finding(notes=[f"no timing: {error}"])  # requests are traffic all the same
        refusals: list[UsageError] = [] if groups else list(_left_out([*logs, *timed]))
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
        return Finding(notes=[f"no timing: {error}" for error in refusals])

    @property
    def _fitted_on(self) -> Replica | None:
        return _replica(self.tables if self.replica.part is None else tomli.loads(self.replica.part.body))

    def _fitted(self, measured: Sequence[Measured]) -> Finding:
        ranks = 1 if self._fitted_on is None else self._fitted_on.ranks
        if ranks > 1 and not all(isinstance(some, Samples) for some in measured):
            why = "they wait for each other; iterations in the engine's log are"
            raise UsageError(
                f"{measured[0].source}: times of {ranks} ranks together are not fitted, for {why}"
            )
        prior = of_measured(measured)
        if self.estimate is not None:
            prior = Prior(self.estimate.speed.timing, f"the estimate for {self.estimate.name}")
        elif self.kept is not None and "timing" in self.tables:
            table = schema.check({"schema": 1, "name": "law", "timing": self.tables["timing"]}).timing
            law = Timing(**{name: getattr(table, name) for name in Timing.__slots__})
            prior = Prior(law, self.kept.source)
        fit = fit_measured(
            measured,
            prior.timing,
            replica=self._fitted_on,
            capacity_tokens=self.asked.capacity,
            progress=self.asked.progress,
            announce=self.asked.announce,
        )
        own = [f"{some.source}: {note}" for some in measured for note in some.notes]
        said = [accuracy(fit), *own, *notes(fit, measured, prior)]
        if "speculative" in self.tables and not any(WITH_DRAFTS in note for note in own):
            said.append("what is measured is taken to be without the drafts of the base")
        sources = list(dict.fromkeys(some.source for some in measured))
        for source in sources:  # a note of several files is one
            said = list(dict.fromkeys(note.removeprefix(f"{source}: ") for note in said))
        name = PurePath(sources[0]).name + (f" and {len(sources) - 1} more" if len(sources) > 1 else "")
        kinds = ", ".join(dict.fromkeys(some.format for some in measured))
        given = Given(name, kinds, "timing", _constants(fit.timing))
        return Finding(timing_part(fit, measured, prior), given, said)

    # ------------------------------------------------------------------------- drafts, engine, traffic

    def _drafts(self) -> Finding:
        """Write the table [speculative]: fitted to runs, or with what an engine counted."""
        for path in self._of(FileKind.DRAFTS):
            fit = fit_drafts(read_drafts(path, self.asked.group))
            part = drafts_part(fit, lookahead=self.tables.get("speculative", {}).get("lookahead", True))
            errors = (
                f"{format_percent(fit.error)}, of runs not fitted to {format_percent(fit.held_out_error)}"
            )
            said = f"Mean error of the time between tokens {errors}"
            figures = f"{fit.drafts.tokens} tokens, {format_seconds(fit.drafts.draft_s)} a draft"
            return Finding(part, Given(path.name, "drafts", "speculative", figures), (said, *part.about[1:]))
        for counted in (self.limits, self.metrics):
            if counted is None or counted.drafts is None:
                continue
            source = PurePath(counted.source).name
            if (written := counted.drafts.part(self.kept, source)) is not None:
                return Finding(written, Given(source, "counters", "speculative", "tokens, accepted"))
            note = "accepted drafts go into a --base with [speculative], which has their cost"
            return Finding(notes=[note])
        return Finding()

    def _engine(self) -> Finding:
        """Write the table [engine], where it is another than the base's."""
        engine, before = self.engine, self.tables.get("engine", {})
        if engine is None and self.limits is not None:
            unknown = f"how {self.limits.engine} schedules is not known"
            return Finding(notes=[f"{unknown}: as vLLM does, unless --engine names another"])
        if engine is None and self.asked.max_model_len:
            engine = EngineName(before.get("name", EngineName.VLLM))
        same = engine == before.get("name", EngineName.VLLM)
        settings, said = settings_of([some for some in self._runs if some.deployment.engine == engine])
        version = told_version(engine, self.asked, self.limits, self.tables)
        told = {"version": version, "max_model_len": self.asked.max_model_len}
        table = {**(before if same else {}), "name": str(engine), **settings}
        table |= {key: value for key, value in told.items() if value}
        said += tuple(notes_by_version(self.limits, self.tables) if engine is EngineName.VLLM else ())
        if engine is None or (same and table == {"name": str(engine), **before}):
            return Finding(notes=said)
        whose = "whose log was read" if self.limits is not None else "whose runs were measured"
        about = (
            f"name: {'by --engine' if self.asked.engine else whose}." if self.engine else "By options.",
            *(f"{key}: of the runs measured." for key in settings),
            *(f"Note: {note}." for note in said),
        )
        part = Part("engine", about, table_text("engine", table), Origin(Knowledge.STATED))
        return Finding(part, notes=said)

    def _traffic(self, parts: Sequence[Part]) -> Finding:
        """Write the tables of classes, and say which requests the engine of the log rejects."""
        finding = self._requests(parts)
        most = self.asked.max_model_len or (None if self.limits is None else self.limits.max_model_len)
        body = {name: self.tables[name] for name in TRAFFIC_TABLES if name in self.tables}
        if finding.part is not None:
            body = tomli.loads(finding.part.body)
        if most is None or "classes" not in body:
            return finding
        before = body["classes"]
        said = rejected(body, most)
        if body["classes"] is not before:
            about, text = [f"{note}." for note in said], "\n\n".join(starmap(table_text, body.items()))
            part = finding.part or Part(
                "classes", (), "", self.kept.provenance.workload if self.kept else Origin()
            )
            finding = finding._replace(part=part._replace(about=(*part.about, *about), body=text))
        return finding._replace(notes=(*finding.notes, *said))

    def _requests(self, parts: Sequence[Part]) -> Finding:
        """Write the tables of classes: of requests, else of a server's histograms."""
        for path in self._of(FileKind.REQUESTS):
            few, chosen = self.asked.classes, self.asked.group if self._only_requests else None
            traffic = measure(path, self.asked.unit, chosen)
            reference = (
                None if self.asked.unit or chosen else self.asked.reference
            )  # read again it would lack them
            classes = trace_fit.binned(traffic) if few is None else trace_fit.compact(traffic, few)
            provisional = [*parts, classes_part(classes, (), Origin(Knowledge.MEASURED))]
            like = composed(self.kept, provisional, source=str(path), name="so far").known
            change = None if few is None else trace_fit.distortion(traffic, classes, like or trace_fit.SLOTS)
            part = traffic_part(traffic, classes, like, distortion=change, reference=reference)
            said = list(traffic.notes)
            if traffic.prefixes is not None:
                said.append(hit_note(traffic.prefixes, None if like is None else like.replica.memory_tokens))
            if change is not None:
                said.append(trace_fit.describe(change))
            if like is None and traffic.counts is not None:
                said.append(
                    "how arrivals cluster is told once [gpu] and [timing] are known; they are replayed"
                )
            means = format_tokens(traffic.mean_input), format_tokens(traffic.mean_decode)
            rate = f"{format_tokens(traffic.rows)} requests, {format_rate(traffic.rate_rps)}"
            figures = f"{rate}, {means[0]} tokens in, {means[1]} out"
            return Finding(part, Given(path.name, traffic.format, "classes", figures), said)
        metrics = self.metrics
        if metrics is None or not metrics.classes:
            return Finding()
        figures = f"{format_tokens(metrics.requests)} requests, {format_rate(metrics.rate_rps)}"
        given = Given(PurePath(metrics.source).name, f"{metrics.engine}'s metrics", "classes", figures)
        return Finding(metrics_parts(metrics, self.kept)[-1], given, metrics.notes)


def _replica(tables: Mapping[str, Any]) -> Replica | None:
    return GpuTable.model_validate(tables["gpu"]).replica if "gpu" in tables else None


def _constants(timing: Timing) -> str:
    names = [name for name in TIMES if getattr(timing, name) > 0]
    return ", ".join(f"{name} {format_seconds(getattr(timing, name))}" for name in names)


def _left_out(paths: Iterable[Path]) -> Iterator[UsageError]:
    """Yield why iterations in some files give no samples."""
    for path in paths:
        try:
            read_groups([path])
        except LeftOutError as error:
            yield error
        except UsageError:
            pass


def _candidates(groups: Iterable[Sequence[Measured]], path: Path) -> list[Sequence[Measured]]:
    """List what can be fitted to, the best first: iterations and loads that name no replica, then a named one."""
    named = {some[0].group: some for some in groups if some}
    unnamed = named.pop("", ())
    if len(named) > 1 and not unnamed:
        raise UsageError(f"{path}: {len(named)} replicas; choose one with --group: {listed(named)}")
    samples = [some for some in unnamed if isinstance(some, Samples)]
    sweeps = [some for some in unnamed if not isinstance(some, Samples)]
    return [some for some in (samples, sweeps, *(named.values() if len(named) == 1 else ())) if some]
