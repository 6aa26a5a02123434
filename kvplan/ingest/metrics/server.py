"""What a server's metrics say: KV capacity, classes from the histograms of lengths, rates, preemptions.

Counters count from the start of the server. Two snapshots give the rate between them, one gives the mean rate since
the counters were created. Traffic of several data-parallel engines is summed, then shared equally: a profile is one
replica.
"""

import math
import re
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from kvplan.errors import ProfileError, UsageError, shown
from kvplan.ingest.drafts import ObservedDrafts, drafts_text, observed
from kvplan.ingest.hits import ObservedHits, hits_text
from kvplan.ingest.metrics import sglang, vllm
from kvplan.ingest.metrics.histogram import LengthHistogram, Lengths, independent_classes, lengths
from kvplan.ingest.metrics.snapshot import Key, Snapshot, read_snapshot
from kvplan.model import RequestClass
from kvplan.ranges import MAX_MEMORY_TOKENS, MAX_TOKENS
from kvplan.units import format_number, format_percent, format_seconds, format_tokens

ENGINES = (vllm.METRICS, sglang.METRICS)
_OFF = 0.02  # by which two figures of one thing may differ without a word


@dataclass(frozen=True, slots=True)
class ServerMetrics:
    """What a snapshot of metrics says about one replica and its traffic.

    Attributes
    ----------
    models
        Every model the snapshot names, sorted.
    memory_tokens, block_tokens
        KV capacity of one engine, and its blocks, tokens. None: not exported.
    classes
        Empty where no request finished or there are no histograms of lengths.
    rate_rps
        Finished requests per second and engine; those of no length included. None: nothing finished.
    rate_from
        "two snapshots, 300 s apart"; empty without a rate.
    requests
        Finished requests of all engines, in the time of the rate.
    preemptions
        In the same time. None: not exported.
    mean_input, mean_decode
        Tokens, by sum and count of the histograms.
    hits
        Of the prefix cache. None: not exported, or nothing was looked up.
    drafts
        Accepted ones. None: not exported, or there were none.
    notes
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
    hits: ObservedHits | None
    drafts: ObservedDrafts | None
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
    earlier
        A snapshot of the same server from before; classes and rates are those of the time between.
    interval_s
        Seconds between the two; of a single one, seconds that its counters cover. Without it, snapshots with
        timestamps tell; a single one also by the time its counters were created.
    now_s
        When a single snapshot was taken, seconds since 1970. Without it, by its timestamps, else as the file was
        last modified.
    model
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
    late = read_snapshot(path, ENGINES, model)
    early = None if earlier is None else read_snapshot(earlier, ENGINES, model)
    if early is not None and early.names is not late.names:
        raise UsageError(f"{early.source} is of {early.names.engine}, {late.source} of {late.names.engine}")
    return _Reader(late, early).metrics(interval_s, now_s)


class _Reader:
    """What counters say since they began, or since an earlier snapshot; collects notes."""

    def __init__(self, late: Snapshot, early: Snapshot | None) -> None:
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
        hits, drafts = self.hits(), self.drafts()
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
            hits=hits,
            drafts=drafts,
            notes=tuple(self.notes),
        )

    def increase(self, name: str) -> dict[Key, float]:
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

    def created(self, snapshot: Snapshot) -> dict[tuple[str, Key], float]:
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
        series: dict[Key, dict[float, float]] = {}
        for key, value in self.increase(f"{name}_bucket").items():
            edge = self.edge(name, dict(key).get("le", ""))
            series.setdefault(tuple(pair for pair in key if pair[0] != "le"), {})[edge] = value
        if not series:
            return None
        edges = sorted(set.intersection(*(set(buckets) for buckets in series.values())) - {math.inf})
        edges = [edge for edge in edges if edge <= MAX_TOKENS]
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

    def requests(self, generations: LengthHistogram | None) -> float:
        """Finished requests; the histogram counts those whose lengths it has."""
        if generations is not None:
            return generations.count
        name = self.late.first(self.names.requests)
        return self.total(name) if name else 0.0

    def hits(self) -> ObservedHits | None:
        """What the prefix cache found: by counters, else by a gauge of a moment."""
        found = None
        for hits, looked_up in self.names.hits:
            if hits in self.late.samples and (of := self.total(looked_up)) > 0:
                counted = self.total(hits)
                ratio = min(counted / of, 1.0)
                found = ObservedHits(ratio, f"{format_tokens(counted)} of {format_tokens(of)}, by {hits}")
                break
        else:
            name = self.late.first(self.names.hit_rates)
            rates = [rate for _, rate in self.late.samples.get(name or "", ()) if 0 <= rate <= 1]
            if rates:
                found = ObservedHits(math.fsum(rates) / len(rates), f"by {name} at that moment")
        if found is not None:
            self.notes.append(f"{hits_text(found)}; the classes take none of that into account")
        return found

    def drafts(self) -> ObservedDrafts | None:
        """What was accepted of drafts, by position."""
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
        found = observed(shares, f"drafted {format_number(times)} times, by {drafts}")
        self.notes.append(drafts_text(found))
        return found

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

    def between(self, early: Snapshot) -> float:
        if self.late.time_s is None or early.time_s is None:
            raise UsageError(f"{self.late.source}: has no timestamps; give the seconds between the snapshots")
        if self.late.time_s <= early.time_s:
            raise UsageError(f"{self.late.source}: its timestamps are not after those of {early.source}")
        return self.late.time_s - early.time_s

    def capacity(self) -> tuple[int | None, int | None]:
        """KV capacity and block size of one engine, the smallest, tokens."""
        found, notes = self.names.capacities(self.late)
        self.notes += notes
        if not found:
            self.notes.append("the KV capacity is not exported")
            return None, None
        memory, block = min(found, key=lambda capacity: capacity.memory_tokens)
        if memory > MAX_MEMORY_TOKENS:
            raise ProfileError(self.late.source, f"a KV capacity of {memory:.3g} tokens is absurd")
        largest = max(capacity.memory_tokens for capacity in found)
        if largest != memory:
            self.notes.append(
                f"the engines have from {format_tokens(memory)} to {format_tokens(largest)} tokens of KV; the smallest "
                "counts"
            )
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
