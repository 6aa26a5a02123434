"""Metrics of a server: KV capacity, classes from the histograms of lengths, rates, preemptions.

Counters count from the start of the server. Two snapshots give the rate between them, one gives the mean rate since
the counters were created. Traffic of several data-parallel engines is summed, then shared equally: a profile is one
replica.
"""

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path, PurePath
from time import time
from typing import NamedTuple, TextIO, cast

import numpy as np

from kvplan.errors import ProfileError, UsageError, shown
from kvplan.ingest.cells import Record, is_json, json_records
from kvplan.ingest.engines import METRICS, Key, Labels, Snapshot
from kvplan.ingest.facts import Fact, Part, class_tables, facts
from kvplan.ingest.lengths import LengthHistogram, Lengths, independent_classes, lengths
from kvplan.ingest.observed import ObservedDrafts, of_prefix_cache
from kvplan.ingest.text_file import Lines, beginning, lines_of
from kvplan.ingest.trace.formats import epoch_unit
from kvplan.model import Knowledge, Origin, RequestClass
from kvplan.ranges import MAX_MEMORY_TOKENS, MAX_TOKENS
from kvplan.units import format_number, format_percent, format_rate, format_seconds, format_tokens
from kvplan.version import __version__

_OFF = 0.02  # by which two figures of one thing may differ without a word
# characters; the time that a label takes the library grows with the square of its length
_LONGEST_LINE = 100_000
_MISSING = 0.05  # of a range, by which the series of an engine may be shorter
_SHOWN = 60  # characters of a line in a message
_NAMED, _LONGEST_NAME = 8, 100  # models that a message names
_MODEL = ("model_name", "model")
_BEGINNING = 4096  # characters that tell text from JSON
_EXEMPLAR = re.compile(r" # \{.*")
_STARTED = "process_start_time_seconds"  # of the server, whatever its engine
_COUNTERS = ("_total", "_count", "_sum", "_bucket")
# those of vLLM as NVIDIA NIM exports them
_UNNAMED = re.compile(
    r"(request_(prompt|generation)_tokens|(request_(success|finish)|num_preemptions)_total)(_[a-z]+)?"
)


@dataclass(frozen=True, slots=True)
class ServerMetrics:
    """One replica and its traffic, from a snapshot of metrics; None for what is not exported.

    `notes` are what was assumed or left out, and what does not fit.
    """

    source: str
    engine: str
    models: tuple[str, ...]  # every one that the snapshot names, sorted
    sha256: str
    memory_tokens: int | None  # KV capacity of one engine
    block_tokens: int | None
    classes: tuple[RequestClass, ...]  # empty where no request finished, or without histograms of lengths
    # finished per second and engine, those of no length included; None: nothing finished
    rate_rps: float | None
    rate_from: str  # "two snapshots, 300 s apart"; empty without a rate
    requests: float  # finished by all engines, in the time of the rate
    preemptions: float | None  # in the same time
    mean_input: float | None  # tokens, by sum and count of the histograms
    mean_decode: float | None
    drafts: ObservedDrafts | None
    notes: tuple[str, ...]
    engines: int
    seconds: float | None  # of the rate; None: nothing tells, and `rate_from` says why
    hit_ratio: float | None  # by counters alone; 0 where none was looked up, as without a prefix cache
    decoding_s: float | None  # times between two tokens of a request, their sum and their mean
    itl_s: float | None
    itl_of_tokens: bool  # with drafts, too; else they are between two iterations


def read_metrics(
    path: Path,
    earlier: Path | None = None,
    *,
    interval_s: float | None = None,
    model: str | None = None,
    timed: bool = True,
) -> ServerMetrics:
    """Read a snapshot of metrics, or what happened between an earlier one and it.

    Parameters
    ----------
    earlier
        A snapshot of the same server from before; classes and rates are those of the time between.
    interval_s
        Seconds between the two; of a single one, seconds that its counters cover. Without it, snapshots with
        timestamps tell; a single one also by the time its counters were created, and when the file was modified.
    model
        The model wanted, where there are several.
    timed
        Whether the time that they cover must be known; else there may be no rate and no class.

    Raises
    ------
    UsageError
        The file cannot be read, holds no metrics of an engine or those of several models, or does not tell the time
        that its counters cover; or the counters are not those of one server, running from one snapshot to the
        other.
    ProfileError
        The text is malformed, with its line; or the values cannot be.
    """
    if interval_s is not None and not 0 < interval_s < math.inf:
        raise UsageError(f"interval: {interval_s:g} s; must be more than 0")
    first, late = _snapshots(path, model)
    early = first if earlier is None else _snapshots(earlier, model)[1]
    if early is not None and early.names is not late.names:
        raise UsageError(f"{early.source} is of {early.names.engine}, {late.source} of {late.names.engine}")
    if early is not None and early.models and late.models and not {*early.models} & {*late.models}:
        of = f"{early.source} is of the model {early.models[0]}, {late.source} of {late.models[0]}"
        raise UsageError(f"{of}; give two snapshots of one server")
    return _Reader(late, early).metrics(interval_s, timed=timed)


def metrics_parts(metrics: ServerMetrics) -> dict[str, Part]:
    """Make [gpu] if the metrics have the capacity, and classes if they have the lengths; by table."""
    where = f"{metrics.source} ({metrics.engine}, {', '.join(metrics.models) or 'no model named'})"
    name, kind = PurePath(metrics.source).name, f"{metrics.engine}'s metrics"
    origin, digest = Origin(Knowledge.MEASURED, name), f"sha256 {metrics.sha256}"
    parts = {}
    if metrics.memory_tokens is not None:
        stated = {"memory_tokens": metrics.memory_tokens, "block_tokens": metrics.block_tokens}
        told = facts("gpu", stated, origin, f"exported by {where}, as read by kvplan {__version__}")
        parts["gpu"] = Part("gpu", told, name, kind, about=(digest,))
    if metrics.classes:
        means = f"{format_tokens(metrics.mean_input)} tokens in, {format_tokens(metrics.mean_decode)} out"
        requests = f"{format_tokens(metrics.requests)} requests"
        about = [
            f"Classes and rates: {requests}, {metrics.rate_from}, counted by {where}, as read by kvplan {__version__}.",
            f"Lengths: {means}, on average.",
        ]
        if metrics.preemptions is not None:
            about.append(f"Preemptions in that time: {format_tokens(metrics.preemptions)}.")
        told = {"classes": Fact(class_tables(metrics.classes), origin)}
        figures = f"{requests}, {format_rate(metrics.rate_rps)}"
        parts["classes"] = Part("classes", told, name, kind, figures, (*about, digest))
    if not parts:
        raise UsageError(f"{metrics.source}: neither KV capacity nor finished requests; nothing to import")
    return {table: part._replace(notes=metrics.notes) for table, part in parts.items()}


# -- a snapshot -------------------------------------------------------------------------------------------------------


class _Series(NamedTuple):
    """A series of samples, by its first and its last one; times in seconds since 1970, None where they have none."""

    name: str
    labels: Labels
    first: tuple[float | None, float]
    last: tuple[float | None, float]


def _snapshots(path: Path, model: str | None) -> tuple[Snapshot | None, Snapshot]:
    """Read the metrics of one engine, of the model named where there are several; of a range how it began, too."""
    source = str(path)
    known = {names.prefix: names for names in METRICS}
    started: list[_Series] = []
    answered = is_json(beginning(path, _BEGINNING))
    with lines_of(path) if answered else lines_of(path, longest=_LONGEST_LINE) as lines:
        series = []
        for some in _of_answer(lines) if answered else _of_text(lines):
            name = _canonical(some.name)
            if name.partition(":")[0] in known:
                series.append(some._replace(name=name))
            elif name == _STARTED:
                started.append(some)
    prefixes = {some.name.partition(":")[0] for some in series}
    if len(prefixes) != 1:
        raise _not_of_one(
            source, [known[prefix].engine for prefix in sorted(prefixes)], empty=not lines.number
        )
    models = tuple(sorted({label for some in series for label in _models(some.labels)}))

    def snapshot(points: list[tuple[float | None, float]], time_s: float | None) -> Snapshot:
        samples: dict[str, list[tuple[Labels, float]]] = {}
        for some, (_, value) in zip(series, points, strict=True):
            samples.setdefault(some.name, []).append((some.labels, value))
        return Snapshot(
            source=source,
            sha256=lines.sha256,
            names=known[min(prefixes)],
            models=models,
            samples=_of_model(samples, models, model, source),
            time_s=time_s,
            modified_s=path.stat().st_mtime if path.is_file() else time(),
            started_s=min((some.last[1] for some in started if some.last[1] > 0), default=None),
        )

    times = sorted(at for some in series for at, _ in (some.first, some.last) if at is not None)
    late = snapshot([some.last for some in series], times[-1] if times else None)
    if not (answered and times and times[0] < times[-1]):
        return None, late
    begin, end = times[0], times[-1]
    whole = [
        (some.first[0] or begin) - begin + end - (some.last[0] or end) <= _MISSING * (end - begin)
        for some in series
        if some.name == f"{late.names.prompt}_count"
    ]
    if not all(whole):
        partial = f"{whole.count(False)} of {len(whole)} engines ran in a part of the range alone"
        late = replace(late, notes=(f"{partial}; the rates are means over all of it",))
    return snapshot([some.first for some in series], begin), late


def _of_text(lines: Lines) -> Iterator[_Series]:
    """Yield samples of Prometheus text and of OpenMetrics, whose times are seconds; those of exemplars are no sample's.

    The library takes all times for milliseconds.
    """
    from prometheus_client.parser import text_fd_to_metric_families

    plain = (line if line.startswith("#") else _EXEMPLAR.sub("", line) for line in lines)
    try:
        for family in text_fd_to_metric_families(cast(TextIO, plain)):
            for sample in family.samples:
                stamp = None if sample.timestamp is None else float(sample.timestamp) * 1e3
                at = None if stamp is None else stamp * (epoch_unit(stamp) or 1e-3)
                yield _Series(sample.name, sample.labels, *[(at, float(sample.value))] * 2)
    except UnicodeDecodeError:
        raise
    except (ValueError, IndexError):
        raise _malformed(lines.source, lines) from None


def _of_answer(lines: Lines) -> Iterator[_Series]:
    """Yield series of answers of Prometheus's HTTP API, instant or range vectors, one after the other."""
    first = next(line for line in lines if line.strip())
    for record in json_records(lines.source, lines.number, first, iter(lines)):
        if record.at("status") != "success":
            raise record.error("status", f"{record.text('status') or 'missing'}: {record.text('error')}")
        if record.at("data.resultType") not in ("vector", "matrix"):
            raise record.error(
                "data.resultType", f"{record.text('data.resultType')!r}; must be vector or matrix"
            )
        for part in record.parts("data.result"):
            labels = part.at("metric")
            if not isinstance(labels, dict) or not isinstance(labels.get("__name__"), str):
                message = (
                    "missing; ask for the counters and histograms themselves, not for rates or sums of them"
                )
                raise part.error("metric.__name__", message)
            points = _points(part)
            name, values = labels["__name__"], [value for _, value in points]
            if name.endswith(_COUNTERS) and any(late < early for early, late in pairwise(values)):
                raise part.error("values", f"{name} went down; was the server restarted in between?")
            text_labels = {key: str(value) for key, value in labels.items() if key != "__name__"}
            yield _Series(name, text_labels, points[0], points[-1])


def _points(part: Record) -> list[tuple[float | None, float]]:
    seen = part.at("values") if part.at("value") is None else [part.at("value")]
    try:
        points: list[tuple[float | None, float]] = [(float(at), float(value)) for at, value in seen]
    except (TypeError, ValueError):
        points = []
    if not points:
        raise part.error("value", f"{shown(seen)}; must be a time and a number, or values of them")
    return points


def _canonical(name: str) -> str:
    """Write a name as its engine does: some exporters turn colons into underscores, Ray adds a prefix.

    Examples
    --------
    >>> [_canonical(name) for name in ("ray_vllm_request_prompt_tokens_sum", "request_prompt_tokens_sum", "up")]
    ['vllm:request_prompt_tokens_sum', 'vllm:request_prompt_tokens_sum', 'up']
    """
    prefixes = "|".join(names.prefix for names in METRICS)
    # of older versions
    current = name.removeprefix("ray_").replace("nv_llm_http_service_", "dynamo_frontend_")
    name = re.sub(rf"^({prefixes})_", r"\1:", current)
    return f"vllm:{name}" if _UNNAMED.fullmatch(name) else name


def _malformed(source: str, lines: Lines) -> UsageError:
    seen = lines.last.strip()
    if seen.startswith("<") and lines.number < 4:
        what = "a web page, and no Prometheus metrics"
        return UsageError(f"{source}: {what}; those of a server are at /metrics")
    quoted = repr(seen if len(seen) <= _SHOWN else seen[:_SHOWN] + "…")
    return ProfileError(source, f"not Prometheus text: {quoted}; is the file cut off?", line=lines.number)


def _not_of_one(source: str, several: Sequence[str], *, empty: bool) -> UsageError:
    if several:
        return UsageError(f"{source}: metrics of {' and of '.join(several)}; give those of one server")
    engines = ", ".join(f"{of.engine} ({of.prefix}_…)" for of in METRICS)
    what = "empty" if empty else f"metrics of no engine; looked for those of {engines}"
    return UsageError(f"{source}: {what}; a server's metrics are at /metrics")


def _models(labels: Labels) -> list[str]:
    return [labels[name] for name in _MODEL if labels.get(name)][:1]


def _of_model(
    samples: dict[str, list[tuple[Labels, float]]], models: Sequence[str], model: str | None, source: str
) -> dict[str, list[tuple[Labels, float]]]:
    more = [f"{len(models) - _NAMED} more"] if len(models) > _NAMED else []
    listed = ", ".join([name[:_LONGEST_NAME] for name in models[:_NAMED]] + more)
    if model is None and len(models) > 1:
        raise UsageError(f"{source}: metrics of several models; name one of {listed}")
    if model is not None and model not in models:
        raise UsageError(f"{source}: no metrics of the model {model}; there are {listed or 'none'}")
    if model is None:
        return samples
    return {name: [s for s in group if _models(s[0]) in ([], [model])] for name, group in samples.items()}


# -- what it says -----------------------------------------------------------------------------------------------------


class _NoTimeError(UsageError):
    """Nothing tells the time that counters cover."""


class _Reader:
    """Reads what counters say since they began, or since an earlier snapshot; collects notes."""

    def __init__(self, late: Snapshot, early: Snapshot | None) -> None:
        self.late = late
        self.early = early
        self.names = late.names
        self.engines = late.engines()
        self.notes = list(late.notes)

    def metrics(self, interval_s: float | None, *, timed: bool) -> ServerMetrics:
        late, names = self.late, self.names
        self.refuse_restart()
        prompts, generations = self.histogram(names.prompt), self.histogram(names.generation)
        # The histogram counts those whose lengths it has.
        requests = generations.count if generations is not None else self.total(late.first(names.requests))
        try:
            seconds, rate_from = self.period(interval_s) if requests else (None, "")
        except _NoTimeError as unknown:
            if timed:
                raise
            seconds, rate_from = None, str(unknown)
        rate = requests / seconds / self.engines if seconds else None
        memory, block = self.capacity()
        self.note_hits()
        drafts = self.drafts()
        preemptions = late.first(names.preemptions)
        itl = late.first(f"{name}_sum" for name in names.itl)
        decoding, gaps = (
            (self.total(itl), self.total(itl.removesuffix("sum") + "count")) if itl else (0.0, 0.0)
        )
        return ServerMetrics(
            source=late.source,
            engine=names.engine,
            models=late.models,
            sha256=late.sha256,
            memory_tokens=memory,
            block_tokens=block,
            classes=self.classes(prompts, generations, rate),
            rate_rps=rate,
            rate_from=rate_from,
            requests=requests,
            preemptions=self.total(preemptions) if preemptions else None,
            mean_input=prompts.mean if prompts and prompts.count else None,
            mean_decode=generations.mean if generations and generations.count else None,
            drafts=drafts,
            notes=tuple(self.notes),
            engines=self.engines,
            seconds=seconds,
            hit_ratio=self.hit_ratio(),
            decoding_s=decoding if gaps else None,
            itl_s=decoding / gaps if gaps else None,
            itl_of_tokens=names.itl_of_tokens,
        )

    def increase(self, name: str) -> dict[Key, float]:
        late = self.late.series(name)
        if self.early is None:
            return late
        early = self.early.series(name)
        for key, before in early.items():
            if late.get(key, 0.0) < before:
                now = format_number(late[key]) if key in late else "nothing"
                raise UsageError(
                    f"{self.late.source}: {name} went down from {format_number(before)} in {self.early.source} to "
                    f"{now}; was the server restarted in between, or is that snapshot the later one?"
                )
        return {key: value - early.get(key, 0.0) for key, value in late.items()}

    def total(self, name: str | None) -> float:
        return math.fsum(self.increase(name).values()) if name else 0.0

    def created(self, snapshot: Snapshot) -> dict[tuple[str, Key], float]:
        """Tell when the counters of requests were created, seconds since 1970."""
        counters = (name.removesuffix("_total") for name in self.names.requests)
        return {
            (name, key): value
            for name in (self.names.prompt, self.names.generation, *counters)
            for key, value in snapshot.series(f"{name}_created").items()
            if value > 0
        }

    def refuse_restart(self) -> None:
        """Counters may have overtaken those of a server that ran before; the time they were created tells."""
        if self.early is None:
            return
        before = self.created(self.early)
        started = [math.inf if s.started_s is None else s.started_s for s in (self.early, self.late)]
        later = any(value > before.get(key, math.inf) + 1 for key, value in self.created(self.late).items())
        if later or started[0] + 1 < started[1] < math.inf:
            raise UsageError(
                f"{self.late.source}: its counters were created after those in {self.early.source}; the server was "
                "restarted in between"
            )
        if self.early.sha256 != self.late.sha256:
            self.notes.append(f"the earlier snapshot is {self.early.source}, sha256 {self.early.sha256}")

    def histogram(self, name: str) -> LengthHistogram | None:
        series: dict[Key, dict[float, float]] = {}
        for key, value in self.increase(f"{name}_bucket").items():
            edge = self.edge(name, dict(key).get("le", ""))
            series.setdefault(tuple(pair for pair in key if pair[0] != "le"), {})[edge] = value
        if not series:
            return None
        shared = set.intersection(*(set(buckets) for buckets in series.values()))
        edges = sorted(edge for edge in shared if edge <= MAX_TOKENS)
        cumulative = [math.fsum(buckets[edge] for buckets in series.values()) for edge in edges]
        for needed in (f"{name}_sum", f"{name}_count"):
            if needed not in self.late.samples:
                raise ProfileError(self.late.source, "missing; is the file cut off?", key=needed)
        count, total = self.total(f"{name}_count"), self.total(f"{name}_sum")
        counts = np.diff(np.array([0.0, *cumulative, count]))
        if counts.min() < 0:
            message = "counts fall from one bucket to the next"
            raise ProfileError(self.late.source, message, key=f"{name}_bucket")
        if total > count * MAX_TOKENS:
            message = f"{format_number(total)} tokens in {format_number(count)} requests cannot be"
            raise ProfileError(self.late.source, message, key=f"{name}_sum")
        return LengthHistogram(np.array(edges, dtype=np.float64), counts, total, count)

    def edge(self, name: str, text: str) -> float:
        try:
            edge = float(text)
        except ValueError:
            edge = math.nan
        if math.isnan(edge):
            raise ProfileError(self.late.source, f"le={shown(text)}; must be a number", key=f"{name}_bucket")
        return edge

    def note_hits(self) -> None:
        """Tell what the prefix cache found: by counters, else by a gauge of a moment."""
        observed = ""
        for hits, looked_up in self.names.hits:
            if hits in self.late.samples and (of := self.total(looked_up)) > 0:
                counted = self.total(hits)
                stated = f"{format_tokens(counted)} of {format_tokens(of)}, by {hits}"
                observed = of_prefix_cache(counted / of, stated)
                break
        else:
            name = self.late.first(self.names.hit_rates)
            rates = [rate for _, rate in self.late.samples.get(name or "", ()) if 0 <= rate <= 1]
            if rates:
                observed = of_prefix_cache(math.fsum(rates) / len(rates), f"by {name} at that moment")
        by_connector, asked = self.names.loaded or ("", "")
        if (loaded := self.total(by_connector)) > 0 and (of := self.total(asked)) > 0:
            share = f"{format_percent(loaded / of)} of the prompt tokens"
            of_asked = (
                f"{format_tokens(loaded)} of {format_tokens(of)} that it was asked for, by {by_connector}"
            )
            self.notes.append(f"a KV connector loaded {share} ({of_asked})")
        if observed:
            self.notes.append(f"{observed}; the classes take none of that into account")

    def hit_ratio(self) -> float | None:
        for counters in self.names.hits:
            if all(name in self.late.samples for name in counters):
                hits, looked_up = map(self.total, counters)
                return min(hits / looked_up, 1.0) if looked_up else 0.0
        return None

    def drafts(self) -> ObservedDrafts | None:
        if self.names.drafts is None:
            return None
        drafts, accepted = self.names.drafts
        counts = self.increase(accepted)
        if not counts or not (times := self.total(drafts)):
            return None
        by_position: dict[int, float] = {}
        for key, value in counts.items():
            text = dict(key).get("position", "")
            if re.fullmatch(r"\d{1,3}", text, re.ASCII) is None:
                message = f"position={text[:20]!r}; must be a whole number"
                raise ProfileError(self.late.source, message, key=accepted)
            by_position[int(text)] = by_position.get(int(text), 0.0) + value
        shares = [by_position[position] / times for position in sorted(by_position)]
        observed = ObservedDrafts.of_shares(shares, f"drafted {format_number(times)} times, by {drafts}")
        self.notes.append(observed.text)
        return observed

    def period(self, interval_s: float | None) -> tuple[float, str]:
        """Tell the seconds that the counts cover, and how that is known."""
        source = self.late.source
        if self.early is not None:
            seconds = self.between(self.early) if interval_s is None else interval_s
            return seconds, f"two snapshots, {format_number(seconds)} s apart"
        if interval_s is not None:
            return interval_s, f"counters that cover {format_number(interval_s)} s"
        created = min(self.created(self.late).values(), default=self.late.started_s)
        if created is None:
            raise _NoTimeError(
                f"{source}: does not tell when its counters were created, so that they give no rate; give an "
                "earlier snapshot and the seconds between the two, or the seconds that these counters cover"
            )
        now = self.late.time_s
        if now is None:
            now = self.late.modified_s
            self.notes.append("the snapshot is taken to be as old as the file, by its time of modification")
        if now <= created:
            raise UsageError(
                f"{source}: its counters were created {format_number(created - now)} s after the snapshot; "
                "give the seconds that they cover"
            )
        self.notes.append(
            f"the rate is the mean over {format_seconds(now - created)} since the counters were created, with all time "
            "in which nothing arrived; two snapshots tell the rate between them"
        )
        return now - created, f"since the counters were created, {format_number(now - created)} s"

    def between(self, early: Snapshot) -> float:
        if self.late.time_s is None or early.time_s is None:
            raise _NoTimeError(
                f"{self.late.source}: has no timestamps; give the seconds between the snapshots"
            )
        if self.late.time_s <= early.time_s:
            raise UsageError(f"{self.late.source}: its timestamps are not after those of {early.source}")
        return self.late.time_s - early.time_s

    def capacity(self) -> tuple[int | None, int | None]:
        """Tell KV capacity and block size of one engine, the smallest, tokens."""
        capacities, notes = self.names.capacities(self.late)
        self.notes += notes
        if not capacities:
            self.notes.append("the KV capacity is not exported")
            return None, None
        memory, block = min(capacities, key=lambda capacity: capacity.memory_tokens)
        if memory > MAX_MEMORY_TOKENS:
            raise ProfileError(self.late.source, f"a KV capacity of {memory:.3g} tokens is absurd")
        largest = max(capacity.memory_tokens for capacity in capacities)
        if largest != memory:
            amounts = f"from {format_tokens(memory)} to {format_tokens(largest)} tokens of KV"
            self.notes.append(f"the engines have {amounts}; the smallest counts")
        return memory, block

    def classes(
        self, prompts: LengthHistogram | None, generations: LengthHistogram | None, rate_rps: float | None
    ) -> tuple[RequestClass, ...]:
        if prompts is None or generations is None:
            self.notes.append(f"no histograms of lengths, so no classes; {self.names.without_histograms}")
            return ()
        if not rate_rps or not prompts.total or not generations.total:
            self.notes.append("no request finished with a prompt and a generation, so no classes")
            return ()
        if abs(prompts.count / generations.count - 1) > _OFF:
            counts = format_number(prompts.count), format_number(generations.count)
            self.notes.append(f"{counts[0]} prompts, but {counts[1]} generations")
        inputs, decode = lengths(prompts, "prompts"), lengths(generations, "generations")
        served = rate_rps * self.kept(inputs, "prompts") * self.kept(decode, "generations")
        self.notes += [
            *inputs.notes,
            *decode.notes,
            "the lengths of a prompt and of its generation are taken as independent: histograms do not tell how they "
            "go together",
        ]
        if self.engines > 1:
            self.notes.append(
                f"traffic of {self.engines} data-parallel engines; the rates are those of one, an equal part"
            )
        return independent_classes(inputs, decode, served)

    def kept(self, some: Lengths, what: str) -> float:
        empty = some.empty / (some.empty + some.weight.sum())
        if empty:
            self.notes.append(f"{format_percent(empty, 2)} of the {what} have no tokens and are left out")
        return 1 - float(empty)
