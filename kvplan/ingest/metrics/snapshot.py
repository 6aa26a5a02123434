"""Prometheus metrics of vLLM or SGLang: KV capacity, classes from the histograms of lengths, rates, preemptions.

=============  ==========================================  ==================================================
what           vLLM                                        SGLang
=============  ==========================================  ==================================================
capacity       labels of ``vllm:cache_config_info``        ``sglang:max_total_num_tokens``, ``…page_size``
prompts        ``vllm:request_prompt_tokens``              ``sglang:prompt_tokens_histogram``
generations    ``vllm:request_generation_tokens``          ``sglang:generation_tokens_histogram``
requests       ``vllm:request_success_total``              ``sglang:num_requests_total``
preemptions    ``vllm:num_preemptions_total``              ``sglang:num_retracted_requests_total``
=============  ==========================================  ==================================================

Counters count from the start of the server. Two snapshots give the rate between them, one gives the mean rate since
the counters were created. Traffic of several data-parallel engines is summed, then shared equally: a profile is one
replica.
"""

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO, cast

import numpy as np

from kvplan.errors import ProfileError, UsageError
from kvplan.ingest.lengths import MAX_INPUT_TOKENS
from kvplan.ingest.metrics.histogram import LengthHistogram, Lengths, independent_classes, lengths
from kvplan.ingest.text_file import Lines, lines_of
from kvplan.model import RequestClass
from kvplan.units import format_number, format_percent, format_seconds, format_tokens

__all__ = ["LengthHistogram", "ServerMetrics", "read_metrics"]

_SHOWN = 60  # characters of a line in a message
_OFF = 0.02  # by which two figures of one thing may differ without a word
_ABSURD = 10**12  # tokens of KV
_MODEL = ("model_name", "model")
_REPLICA = (
    "engine",
    "dp_rank",
    "instance",
    "pod",
)  # labels that tell engines apart which serve requests of their own
_RANK = (
    "tp_rank",
    "pp_rank",
    "moe_ep_rank",
    "ep_rank",
    "pid",
)  # and parts of one engine, which all say the same

Labels = Mapping[str, str]
_Key = tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class _Names:
    """What an engine calls its metrics; the first that is there counts."""

    engine: str
    prompt: str
    generation: str
    requests: tuple[str, ...]
    preemptions: tuple[str, ...]
    without_histograms: str


_ENGINES = {
    "vllm": _Names(
        "vLLM",
        "vllm:request_prompt_tokens",
        "vllm:request_generation_tokens",
        ("vllm:request_success_total",),
        ("vllm:num_preemptions_total",),
        "vLLM exports them unless it runs with --disable-log-stats",
    ),
    "sglang": _Names(
        "SGLang",
        "sglang:prompt_tokens_histogram",
        "sglang:generation_tokens_histogram",
        ("sglang:num_requests_total",),
        ("sglang:num_retracted_requests_total", "sglang:num_retracted_reqs_total"),
        "SGLang exports them with --enable-metrics and, in older versions, --collect-tokens-histogram",
    ),
}


@dataclass(frozen=True, slots=True)
class ServerMetrics:
    """What a snapshot of metrics says about one replica and its traffic.

    Attributes
    ----------
    source : str
        The file.
    engine : str
        "vLLM" or "SGLang".
    models : tuple of str
        Every model the snapshot names, sorted.
    sha256 : str
        Of the file.
    memory_tokens, block_tokens : int or None
        KV capacity of one engine, and its blocks, tokens. None: not exported.
    classes : tuple of RequestClass
        Empty where no request finished or there are no histograms of lengths.
    rate_rps : float or None
        Finished requests per second and engine; those of no length included. None: nothing finished.
    rate_from : str
        "two snapshots, 300 s apart"; empty without a rate.
    requests : float
        Finished requests of all engines, in the time of the rate.
    preemptions : float or None
        In the same time. None: not exported.
    mean_input, mean_decode : float or None
        Tokens, by sum and count of the histograms.
    notes : tuple of str
        What was assumed or left out, and what does not fit.
    """

    source: str
    engine: str
    models: tuple[str, ...]
    sha256: str
    memory_tokens: int | None
    block_tokens: int | None
    classes: tuple[RequestClass, ...]
    rate_rps: float | None
    rate_from: str
    requests: float
    preemptions: float | None
    mean_input: float | None
    mean_decode: float | None
    notes: tuple[str, ...]


def read_metrics(
    path: Path,
    earlier: Path | None = None,
    *,
    interval_s: float | None = None,
    now_s: float | None = None,
    model: str | None = None,
) -> ServerMetrics:
    """Read a snapshot of metrics, or what happened between an earlier one and it.

    Parameters
    ----------
    path : Path
        May be compressed.
    earlier : Path, optional
        A snapshot of the same server from before; classes and rates are those of the time between.
    interval_s : float, optional
        Seconds between the two; of a single one, seconds that its counters cover. Without it, snapshots with
        timestamps tell; a single one also by the time its counters were created.
    now_s : float, optional
        When a single snapshot was taken, seconds since 1970. Without it, by its timestamps, else as the file was
        last modified.
    model : str, optional
        The model wanted, where there are several.

    Raises
    ------
    UsageError
        The file cannot be read, holds no metrics of either engine or those of several models, or does not tell the
        time that its counters cover; or the counters are not those of one server, running from one snapshot to the
        other.
    ProfileError
        The text is malformed, with its line; or the values cannot be.

    Examples
    --------
    >>> from tempfile import TemporaryDirectory
    >>> def histogram(name, total):
    ...     return f'{name}_bucket{{le="100"}} 8\\n{name}_sum {total}\\n{name}_count 8\\n'
    >>> with TemporaryDirectory() as folder:
    ...     path = Path(folder, "metrics.txt")
    ...     text = histogram("vllm:request_prompt_tokens", 480) + histogram("vllm:request_generation_tokens", 80)
    ...     _ = path.write_text(text)
    ...     found = read_metrics(path, interval_s=4.0)
    >>> found.rate_rps, found.mean_input, found.mean_decode, found.rate_from
    (2.0, 60.0, 10.0, 'counters that cover 4 s')
    """
    for name, seconds in (("interval", interval_s), ("time of the snapshot", now_s)):
        if seconds is not None and not 0 < seconds < math.inf:
            raise UsageError(f"{name}: {seconds:g} s; must be more than 0")
    late = _snapshot(path, model)
    early = None if earlier is None else _snapshot(earlier, model)
    if early is not None and early.names is not late.names:
        raise UsageError(f"{early.source} is of {early.names.engine}, {late.source} of {late.names.engine}")
    return _Reader(late, early).metrics(interval_s, now_s)


# -- a snapshot as series ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Snapshot:
    """Samples by name, of one model; time by their timestamps, seconds since 1970."""

    source: str
    sha256: str
    names: _Names
    models: tuple[str, ...]
    samples: Mapping[str, list[tuple[Labels, float]]]
    time_s: float | None
    modified_s: float

    def series(self, name: str) -> dict[_Key, float]:
        """Values by their labels; those that only differ in the rank which says it are one."""
        found: dict[_Key, float] = {}
        for labels, value in self.samples.get(name, ()):
            if not 0 <= value < math.inf:
                raise ProfileError(self.source, f"{value:g}; must be a number, at least 0", key=name)
            key = tuple(sorted((k, v) for k, v in labels.items() if k not in _RANK))
            found[key] = max(found.get(key, 0.0), value)
        return found

    def first(self, names: Iterable[str]) -> str | None:
        return next((name for name in names if name in self.samples), None)

    def engines(self) -> int:
        """Engines with requests of their own, at least 1."""
        names = (f"{self.names.prompt}_count", f"{self.names.generation}_count", *self.names.requests)
        capacity = ("vllm:cache_config_info", "sglang:max_total_num_tokens")
        return (
            max(len({_replica(labels) for labels, _ in self.samples.get(n, ())}) for n in (*names, *capacity))
            or 1
        )


def _replica(labels: Labels) -> _Key:
    return tuple((name, labels[name]) for name in _REPLICA if name in labels)


def _snapshot(path: Path, model: str | None) -> _Snapshot:
    from prometheus_client.parser import text_fd_to_metric_families

    source = str(path)
    samples: dict[str, list[tuple[Labels, float]]] = {}
    times: list[float] = []
    with lines_of(path) as lines:
        try:
            for family in text_fd_to_metric_families(cast(TextIO, lines)):
                for sample in family.samples:
                    name = re.sub(
                        "^(vllm|sglang)_", r"\1:", sample.name
                    )  # what takes no colons makes underscores
                    if name.partition(":")[0] in _ENGINES:
                        samples.setdefault(name, []).append((sample.labels, float(sample.value)))
                        if sample.timestamp is not None:
                            times.append(float(sample.timestamp))
        except UnicodeDecodeError:
            raise
        except (ValueError, IndexError):
            raise _malformed(source, lines) from None
    names = _engine(samples, source, lines.number)
    models = sorted({label for group in samples.values() for labels, _ in group for label in _models(labels)})
    return _Snapshot(
        source=source,
        sha256=lines.sha256,
        names=names,
        models=tuple(models),
        samples=_of_model(samples, models, model, source),
        time_s=max(times, default=None),
        modified_s=path.stat().st_mtime,
    )


def _malformed(source: str, lines: Lines) -> UsageError:
    seen = lines.last.strip()
    if seen.startswith("<") and lines.number < 4:
        return UsageError(
            f"{source}: a web page, and no Prometheus metrics; those of a server are at /metrics"
        )
    shown = repr(seen if len(seen) <= _SHOWN else seen[:_SHOWN] + "…")
    return ProfileError(source, f"not Prometheus text: {shown}; is the file cut off?", line=lines.number)


def _engine(samples: Mapping[str, object], source: str, lines: int) -> _Names:
    found = {name.partition(":")[0] for name in samples}
    if len(found) == 1:
        return _ENGINES[found.pop()]
    if found:
        raise UsageError(f"{source}: metrics of vLLM and of SGLang; give those of one server")
    what = "metrics of neither vLLM nor SGLang: no name begins with vllm: or sglang:" if lines else "empty"
    raise UsageError(f"{source}: {what}; a server's metrics are at /metrics")


def _models(labels: Labels) -> list[str]:
    return [labels[name] for name in _MODEL if labels.get(name)][:1]


def _of_model(
    samples: dict[str, list[tuple[Labels, float]]], models: list[str], model: str | None, source: str
) -> dict[str, list[tuple[Labels, float]]]:
    """The samples of one model, and those that name none."""
    if model is None and len(models) > 1:
        raise UsageError(f"{source}: metrics of several models; name one of {', '.join(models)}")
    if model is not None and model not in models:
        raise UsageError(
            f"{source}: no metrics of the model {model}; there are {', '.join(models) or 'none'}"
        )
    if model is None:
        return samples
    return {name: [s for s in group if _models(s[0]) in ([], [model])] for name, group in samples.items()}


# -- from series to a replica and its traffic -------------------------------------------------------------------------


class _Reader:
    """What counters say since they began, or since an earlier snapshot; collects notes."""

    def __init__(self, late: _Snapshot, early: _Snapshot | None) -> None:
        self.late = late
        self.early = early
        self.names = late.names
        self.engines = late.engines()
        self.notes: list[str] = []

    def metrics(self, interval_s: float | None, now_s: float | None) -> ServerMetrics:
        late, names = self.late, self.names
        self.same_server()
        prompts, generations = self.histogram(names.prompt), self.histogram(names.generation)
        requests = self.requests(generations)
        seconds, rate_from = self.period(interval_s, now_s) if requests else (math.inf, "")
        rate = requests / seconds / self.engines if requests else None
        memory, block = self.capacity()
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
            preemptions=self.total(name) if (name := late.first(names.preemptions)) else None,
            mean_input=prompts.mean if prompts and prompts.count else None,
            mean_decode=generations.mean if generations and generations.count else None,
            notes=tuple(self.notes),
        )

    def increase(self, name: str) -> dict[_Key, float]:
        """By how much each series grew."""
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

    def total(self, name: str) -> float:
        return math.fsum(self.increase(name).values())

    def created(self, snapshot: _Snapshot) -> dict[tuple[str, _Key], float]:
        """When the counters of requests were created, seconds since 1970."""
        names = (
            self.names.prompt,
            self.names.generation,
            *(n.removesuffix("_total") for n in self.names.requests),
        )
        return {
            (name, key): value
            for name in names
            for key, value in snapshot.series(f"{name}_created").items()
            if value > 0
        }

    def same_server(self) -> None:
        """Counters may have overtaken those of a server that ran before; the time they were created tells."""
        if self.early is None:
            return
        before = self.created(self.early)
        if any(value > before.get(key, math.inf) + 1 for key, value in self.created(self.late).items()):
            raise UsageError(
                f"{self.late.source}: its counters were created after those in {self.early.source}; the server was "
                "restarted in between"
            )
        self.notes.append(f"the earlier snapshot is {self.early.source}, sha256 {self.early.sha256}")

    def histogram(self, name: str) -> LengthHistogram | None:
        """Of all engines together; None where there is none."""
        series: dict[_Key, dict[float, float]] = {}
        for key, value in self.increase(f"{name}_bucket").items():
            edge = self.edge(name, dict(key).get("le", ""))
            series.setdefault(tuple(pair for pair in key if pair[0] != "le"), {})[edge] = value
        if not series:
            return None
        edges = sorted(set.intersection(*(set(buckets) for buckets in series.values())) - {math.inf})
        edges = [edge for edge in edges if edge <= MAX_INPUT_TOKENS]
        cumulative = [math.fsum(buckets[edge] for buckets in series.values()) for edge in edges]
        for needed in ("_sum", "_count"):
            if f"{name}{needed}" not in self.late.samples:
                raise ProfileError(self.late.source, "missing; is the file cut off?", key=f"{name}{needed}")
        count, total = self.total(f"{name}_count"), self.total(f"{name}_sum")
        counts = np.diff(np.array([0.0, *cumulative, count]))
        if counts.min() < 0:
            raise ProfileError(
                self.late.source, "counts fall from one bucket to the next", key=f"{name}_bucket"
            )
        if total > count * MAX_INPUT_TOKENS:
            message = f"{format_number(total)} tokens in {format_number(count)} requests cannot be"
            raise ProfileError(self.late.source, message, key=f"{name}_sum")
        return LengthHistogram(np.array(edges, dtype=np.float64), counts, total, count)

    def edge(self, name: str, text: str) -> float:
        try:
            edge = float(text)
        except ValueError:
            edge = math.nan
        if math.isnan(edge):
            raise ProfileError(self.late.source, f"le={text!r}; must be a number", key=f"{name}_bucket")
        return edge

    def requests(self, generations: LengthHistogram | None) -> float:
        """Finished requests; the histogram counts those whose lengths it has."""
        if generations is not None:
            return generations.count
        name = self.late.first(self.names.requests)
        return self.total(name) if name else 0.0

    def period(self, interval_s: float | None, now_s: float | None) -> tuple[float, str]:
        """Seconds that the counts cover, and how that is known."""
        if self.early is not None:
            seconds = self.between(self.early) if interval_s is None else interval_s
            return seconds, f"two snapshots, {format_number(seconds)} s apart"
        if interval_s is not None:
            return interval_s, f"counters that cover {format_number(interval_s)} s"
        created = min(self.created(self.late).values(), default=None)
        if created is None:
            raise UsageError(
                f"{self.late.source}: does not tell when its counters were created, so that they give no rate; give an "
                "earlier snapshot and the seconds between the two, or the seconds that these counters cover"
            )
        now = now_s or self.late.time_s
        if now is None:
            now = self.late.modified_s
            self.notes.append("the snapshot is taken to be as old as the file, by its time of modification")
        if now <= created:
            raise UsageError(
                f"{self.late.source}: its counters were created {format_number(created - now)} s after the snapshot; "
                "give the time at which it was taken"
            )
        self.notes.append(
            f"the rate is the mean over {format_seconds(now - created)} since the counters were created, with all time "
            "in which nothing arrived; two snapshots tell the rate between them"
        )
        return now - created, f"since the counters were created, {format_number(now - created)} s"

    def between(self, early: _Snapshot) -> float:
        if self.late.time_s is None or early.time_s is None:
            raise UsageError(f"{self.late.source}: has no timestamps; give the seconds between the snapshots")
        if self.late.time_s <= early.time_s:
            raise UsageError(f"{self.late.source}: its timestamps are not after those of {early.source}")
        return self.late.time_s - early.time_s

    def capacity(self) -> tuple[int | None, int | None]:
        """KV capacity and block size of one engine, the smallest, tokens."""
        found = self.vllm_capacities() if self.names.engine == "vLLM" else self.sglang_capacities()
        if not found:
            self.notes.append("the KV capacity is not exported")
            return None, None
        memory, block = min(found, key=lambda pair: pair[0])
        if memory > _ABSURD:
            raise ProfileError(self.late.source, f"a KV capacity of {memory:.3g} tokens is absurd")
        largest = max(tokens for tokens, _ in found)
        if largest != memory:
            self.notes.append(
                f"the engines have from {format_tokens(memory)} to {format_tokens(largest)} tokens of KV; the smallest "
                "counts"
            )
        return memory, block

    def vllm_capacities(self) -> list[tuple[int, int | None]]:
        found = []
        for labels, _ in self.late.samples.get("vllm:cache_config_info", ()):
            block, blocks = _count(labels.get("block_size")), _count(labels.get("num_gpu_blocks"))
            product = block * blocks if block and blocks else None
            # Layers that hold less than the whole context share blocks; then only the engine knows what they make.
            stated = _count(labels.get("kv_cache_size_tokens"))
            if stated and product and abs(stated / product - 1) > _OFF:
                self.notes.append(
                    f"the engine states {format_tokens(stated)} tokens of KV, its {blocks:,} blocks of {block} make "
                    f"{format_tokens(product)}; what it states counts"
                )
            if tokens := stated or product:
                found.append((tokens, block))
        return found

    def sglang_capacities(self) -> list[tuple[int, int | None]]:
        pages = self.late.series("sglang:page_size").values()
        page = _count(f"{max(pages, default=0):.0f}")
        stated = self.late.samples.get("sglang:max_total_num_tokens", ())
        return [(int(value), page) for _, value in stated if 1 <= value < math.inf]

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
            self.notes.append(
                f"{format_number(prompts.count)} prompts, but {format_number(generations.count)} generations"
            )
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

    def kept(self, found: Lengths, what: str) -> float:
        """The share that has tokens."""
        empty = found.empty / (found.empty + found.weight.sum())
        if empty:
            self.notes.append(f"{format_percent(empty, 2)} of the {what} have no tokens and are left out")
        return 1 - float(empty)


def _count(text: str | None) -> int | None:
    """A positive whole number of a label; None for "None" and whatever else."""
    return int(text) if text and re.fullmatch(r"[1-9]\d{0,17}", text) else None
