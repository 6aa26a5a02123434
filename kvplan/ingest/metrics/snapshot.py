"""A snapshot of Prometheus metrics, as series of one engine and one model; and what an engine calls its metrics."""

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from time import time
from typing import NamedTuple, TextIO, cast

from kvplan.errors import ProfileError, UsageError
from kvplan.ingest.text_file import Lines, lines_of

# characters; the time that a label takes the library grows with the square of its length
_LONGEST_LINE = 100_000
_SHOWN = 60  # characters of a line in a message
_MODEL = ("model_name", "model")
_REPLICA = ("engine", "dp_rank", "instance", "pod")  # tell engines apart which serve requests of their own
_RANK = ("tp_rank", "pp_rank", "moe_ep_rank", "ep_rank", "pid")  # parts of one engine, which all say the same

Labels = Mapping[str, str]
Key = tuple[tuple[str, str], ...]

_NAMED, _LONGEST_NAME = 8, 100  # models that a message names


class KvCapacity(NamedTuple):
    """Of one engine, tokens; None where the size of blocks is not exported."""

    memory_tokens: int
    block_tokens: int | None


@dataclass(frozen=True, slots=True)
class EngineMetrics:
    """What an engine calls its metrics, after a common prefix and a colon; the first that is there counts.

    `hits` are counters of prompt tokens that the prefix cache found and of those looked up, `hit_rates` gauges of what
    it finds; `drafts` are counters of iterations with drafts and of those accepted at each position. `capacity` names
    the metric, and `capacities` reads it for each engine, with notes; `without_histograms` says why a server may not
    export lengths.
    """

    engine: str
    prefix: str
    prompt: str
    generation: str
    requests: tuple[str, ...]
    preemptions: tuple[str, ...]
    hits: tuple[tuple[str, str], ...]
    hit_rates: tuple[str, ...]
    drafts: tuple[str, str] | None
    capacity: str
    capacities: "Callable[[Snapshot], tuple[list[KvCapacity], list[str]]]"
    without_histograms: str


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Samples by name, of one model; time by their timestamps, seconds since 1970."""

    source: str
    sha256: str
    names: EngineMetrics
    models: tuple[str, ...]
    samples: Mapping[str, list[tuple[Labels, float]]]
    time_s: float | None
    modified_s: float

    def series(self, name: str) -> dict[Key, float]:
        """Values by their labels; those that only differ in the rank which says it are one."""
        found: dict[Key, float] = {}
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
        of = self.names
        names = (f"{of.prompt}_count", f"{of.generation}_count", *of.requests, of.capacity)
        return max(1, *(len({_replica(labels) for labels, _ in self.samples.get(n, ())}) for n in names))


def _replica(labels: Labels) -> Key:
    return tuple((name, labels[name]) for name in _REPLICA if name in labels)


def read_snapshot(path: Path, engines: Sequence[EngineMetrics], model: str | None) -> Snapshot:
    """The metrics of one of these engines; where there are several models, of the one named.

    Raises
    ------
    UsageError
        The file cannot be read, holds metrics of none or several of the engines, or not of that model.
    ProfileError
        The text is malformed, with its line.
    """
    from prometheus_client.parser import text_fd_to_metric_families

    source = str(path)
    known = {names.prefix: names for names in engines}
    underscored = re.compile(f"^({'|'.join(known)})_")  # what takes no colons makes underscores
    samples: dict[str, list[tuple[Labels, float]]] = {}
    times: list[float] = []
    with lines_of(path, longest=_LONGEST_LINE) as lines:
        try:
            for family in text_fd_to_metric_families(cast(TextIO, lines)):
                for sample in family.samples:
                    name = underscored.sub(r"\1:", sample.name)
                    if name.partition(":")[0] in known:
                        samples.setdefault(name, []).append((sample.labels, float(sample.value)))
                        if sample.timestamp is not None:
                            times.append(float(sample.timestamp))
        except UnicodeDecodeError:
            raise
        except (ValueError, IndexError):
            raise _malformed(source, lines) from None
    found = {name.partition(":")[0] for name in samples}
    if len(found) != 1:
        raise _not_of_one(source, engines, several=bool(found), empty=not lines.number)
    models = sorted({label for group in samples.values() for labels, _ in group for label in _models(labels)})
    return Snapshot(
        source=source,
        sha256=lines.sha256,
        names=known[found.pop()],
        models=tuple(models),
        samples=_of_model(samples, models, model, source),
        time_s=max(times, default=None),
        modified_s=path.stat().st_mtime if path.is_file() else time(),
    )


def _malformed(source: str, lines: Lines) -> UsageError:
    seen = lines.last.strip()
    if seen.startswith("<") and lines.number < 4:
        return UsageError(
            f"{source}: a web page, and no Prometheus metrics; those of a server are at /metrics"
        )
    shown = repr(seen if len(seen) <= _SHOWN else seen[:_SHOWN] + "…")
    return ProfileError(source, f"not Prometheus text: {shown}; is the file cut off?", line=lines.number)


def _not_of_one(source: str, engines: Sequence[EngineMetrics], *, several: bool, empty: bool) -> UsageError:
    names = [of.engine for of in engines]
    if several:
        return UsageError(f"{source}: metrics of {' and of '.join(names)}; give those of one server")
    prefixes = " or ".join(f"{of.prefix}:" for of in engines)
    what = "empty" if empty else f"metrics of neither {' nor '.join(names)}: no name begins with {prefixes}"
    return UsageError(f"{source}: {what}; a server's metrics are at /metrics")


def _models(labels: Labels) -> list[str]:
    return [labels[name] for name in _MODEL if labels.get(name)][:1]


def _some(models: Sequence[str]) -> str:
    """The first models, names cut short."""
    more = (f"{len(models) - _NAMED} more",) if len(models) > _NAMED else ()
    return ", ".join((*(name[:_LONGEST_NAME] for name in models[:_NAMED]), *more))


def _of_model(
    samples: dict[str, list[tuple[Labels, float]]], models: list[str], model: str | None, source: str
) -> dict[str, list[tuple[Labels, float]]]:
    """The samples of one model, and those that name none."""
    if model is None and len(models) > 1:
        raise UsageError(f"{source}: metrics of several models; name one of {_some(models)}")
    if model is not None and model not in models:
        raise UsageError(f"{source}: no metrics of the model {model}; there are {_some(models) or 'none'}")
    if model is None:
        return samples
    return {name: [s for s in group if _models(s[0]) in ([], [model])] for name, group in samples.items()}


def whole_label(text: str | None) -> int | None:
    """A positive whole number of a label; None for "None" and whatever else."""
    return int(text) if text and re.fullmatch(r"[1-9]\d{0,17}", text) else None
