"""Reports of load generators: what each calls the figures of a run at one load.

- AIPerf's ``profile_export_aiperf.json``, 0.2 to 0.13, and GenAI-Perf's before it. Its inter-token latency is (E2E -
  TTFT) / (tokens - 1). The load stands in the configuration that the file repeats; their CSV states none.
- GuideLLM's ``benchmarks.json``, 0.3 to 0.8, several in a file. Its time per output token counts the first one too;
  `inter_token_latency_ms` is (last - first token) / (tokens - 1).
- llm-d's benchmark report, 0.1 and 0.2, in YAML or JSON: what a load generator measured of a stack.
- inference-perf's ``stage_N_lifecycle_metrics.json``. Its time per output token counts chunks without a token (of its
  0.1 and 0.2, half of all). Its loads of type "constant" have gaps that are exponentially distributed too. Lengths of
  answers are of their text, counted anew; the config.yaml beside its reports has what was asked for.
"""

import math
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from kvplan.errors import UsageError
from kvplan.ingest.cells import Names, Record, names, number_of
from kvplan.ingest.results import Load, add_load, at_rate, document, in_flight, spread, tpot
from kvplan.ingest.text_file import beginning
from kvplan.ingest.timing.collector import Collector
from kvplan.ingest.timing.samples import Deployment, Point, Range

_UNITS = {"ns": 1e-9, "us": 1e-6, "ms": 1e-3, "s": 1.0, "sec": 1.0}
_AT_RATE = ("poisson", "gamma", "constant")
_NO_LOAD = "arrivals that are no steady load"


class Run(NamedTuple):
    """A run as its report has it."""

    requests: int
    throughput_rps: float
    e2e_s: float
    ttft_s: float | None
    tpot_s: float | None
    inputs: Range
    outputs: Range


class Generator(NamedTuple):
    """Reports of one load generator; `load` is None where a run has no steady load.

    `unusable` says why a run is left out; `note` is of how times were measured.
    """

    name: str
    recognises: Callable[[Record], bool]
    run: Callable[[Record], Run]
    load: Callable[[Record, Run], Load | None]
    requests: Names
    model: Callable[[Record], str] = lambda record: ""
    parts: Callable[[Record], Iterable[Record]] = lambda record: [record]
    unusable: Callable[[Record], str] = lambda record: ""
    note: str = ""
    habits: Callable[[Record], Iterable[str]] = lambda record: ()

    def read(self, report: Record, collector: Collector) -> None:
        """Add the runs of a report."""
        for record in self.parts(report):
            if reason := self.unusable(record):
                collector.skip(reason, record.line)
            elif record.number(self.requests) == 0:
                collector.skip("nothing was generated", record.line)
            elif (load := self.load(record, run := self.run(record))) is None:
                collector.skip(_NO_LOAD, record.line)
            else:
                if self.note:
                    collector.note(self.note)
                for habit in self.habits(record):
                    collector.note(habit)
                point = Point(line=record.line, **run._asdict(), **load)
                add_load(record, point, Deployment(model=self.model(record)), collector)


def _seconds(record: Record, value: str, unit: str) -> float | None:
    """Read a time whose unit stands beside it, perhaps per token; None where it is not there."""
    if record.at(value) is None:
        return None
    named = record.text(unit).removesuffix("/token")
    if named not in _UNITS:
        raise record.error(unit, f"{named!r}; must be one of {', '.join(_UNITS)}")
    return record.number({value: _UNITS[named]})


def _objects(*keys: str) -> Callable[[Record], bool]:
    return lambda record: all(isinstance(record.at(key), dict) for key in keys)


# -- AIPerf and GenAI-Perf --------------------------------------------------------------------------------------------

_LOADS = ("input_config.loadgen", "input_config.perf_analyzer.stimulus")  # AIPerf's to 0.4, GenAI-Perf's
_PHASES = "input_config.phases"


def _aiperf(record: Record) -> Run:
    def time(metric: str) -> float | None:
        return _seconds(record, f"{metric}.avg", f"{metric}.unit")

    def lengths(metric: str) -> Range:
        return spread(record.number(f"{metric}.avg"), deviation=record.optional(f"{metric}.std"))

    return Run(
        round(record.number("request_count.avg")),
        record.number("request_throughput.avg"),
        time("request_latency") or 0.0,
        time("time_to_first_token"),
        time("inter_token_latency"),
        lengths("input_sequence_length"),
        lengths("output_sequence_length"),
    )


def _aiperf_load(record: Record, run: Run) -> Load | None:
    concurrency = rate = kind = None
    for within in _LOADS:
        concurrency = concurrency or record.optional(f"{within}.concurrency")
        rate = rate or record.optional(f"{within}.request_rate")
        kind = kind or record.text(f"{within}.request_rate_mode")
    if record.at(_PHASES) is not None:
        phases = [phase for phase in record.parts(_PHASES) if phase.at("exclude_from_results") is not True]
        if len(phases) != 1:
            raise record.error(_PHASES, f"{len(phases)} phases are measured; must be one")
        (phase,) = phases
        kind, concurrency = phase.text("type"), phase.optional("concurrency")
        rate = phase.optional("rate") if kind in _AT_RATE else rate
        steady = kind == "concurrency" or (kind in _AT_RATE and rate is not None)
        if not steady or phase.at("rate_series") is not None:
            return None
    most = None if not concurrency else max(1, round(concurrency))
    if rate:
        return _at_rate(run, rate, most, evenly=kind == "constant")
    return in_flight(run.throughput_rps, run.e2e_s) if most is None else {"concurrency": most}


def _at_rate(run: Run, rate: float, most: int | None = None, **more: Any) -> Load:
    return at_rate(rate, run.throughput_rps, run.e2e_s, requests=run.requests, most=most, **more)


def _aiperf_model(record: Record) -> str:
    several: Any = record.at("input_config.models.items")
    named = (
        [model.get("name") for model in several if isinstance(model, dict)]
        if isinstance(several, list)
        else []
    )
    for path in ("input_config.endpoint.model_names", "input_config.model_names"):
        listed = record.at(path)
        named += listed if isinstance(listed, list) else []
    return next((name for name in named if isinstance(name, str)), "")


# -- GuideLLM ---------------------------------------------------------------------------------------------------------


def _is_guidellm(record: Record) -> bool:
    runs = record.at("benchmarks")
    return isinstance(runs, list) and all(
        isinstance(run, dict) and isinstance(run.get("metrics"), dict) for run in runs
    )


def _guidellm(record: Record) -> Run:
    def mean(metric: str, value: str = "mean") -> str:
        return f"metrics.{metric}.successful.{value}"

    def time(metric: str) -> float | None:
        """Read a mean; None of nothing, as where answers were not streamed."""
        counted = record.optional(mean(metric, "count"))
        return None if counted == 0 else record.optional({mean(metric): 1e-3})

    def lengths(metric: str) -> Range:
        return spread(record.number(mean(metric)), deviation=record.optional(mean(metric, "std_dev")))

    return Run(
        round(record.number(_GUIDELLM_REQUESTS)),
        record.number(mean("requests_per_second")),
        record.number(mean("request_latency")),
        time("time_to_first_token_ms"),
        time("inter_token_latency_ms"),
        lengths("prompt_token_count"),
        lengths("output_token_count"),
    )


def _guidellm_load(record: Record, run: Run) -> Load | None:
    strategy = f"{'args' if record.at('config') is None else 'config'}.strategy"
    kind = record.text(f"{strategy}.type_")
    limited = record.at(f"{strategy}.max_concurrency") is not None
    most = record.whole(f"{strategy}.max_concurrency") if limited else None
    if kind == "synchronous":
        return {"concurrency": 1}
    if kind == "concurrent":
        return {"concurrency": record.whole(f"{strategy}.streams")}
    if kind == "throughput":
        return in_flight(run.throughput_rps, run.e2e_s, most)
    if kind in ("constant", "poisson"):
        return _at_rate(run, record.positive(f"{strategy}.rate"), most, evenly=kind == "constant")
    return None


_GUIDELLM_REQUESTS = names("metrics.request_totals.successful request_totals.successful")  # the second of 0.3

# -- inference-perf ---------------------------------------------------------------------------------------------------

_LONGEST_CONFIG = 100_000
_OUTPUT = re.compile(r"\boutput_len: *(\d+)|\boutput_distribution:(?:\s+\w+:[^\n]*)*?\s+mean: *(\d+)")
_NO_END = re.compile(r"\bignore_eos: *true\b")
_PROMPTS = "num_unique_system_prompts", "num_users_per_system_prompt"
_LATENCY, _RATE = "successes.latency", "load_summary.requested_rate"


def _inference_perf(record: Record) -> Run:
    if record.at(_LATENCY) is None:
        raise record.error(
            _LATENCY, "missing: what the server measured; give what the client did (…lifecycle…json)"
        )

    def lengths(what: str) -> Range:
        """Spread lengths evenly, as the middle half is."""
        low, high = (record.optional(f"successes.{what}.p{percent}") for percent in (25, 75))
        half = 0.0 if low is None or high is None else high - low
        return spread(record.number(f"successes.{what}.mean"), half)

    e2e = record.number(f"{_LATENCY}.request_latency.mean")
    ttft = record.optional(f"{_LATENCY}.time_to_first_token.mean")
    outputs = lengths("output_len")
    asked = _asked(_config(record))
    if asked:
        outputs = asked, asked
    return Run(
        round(record.number("successes.count")),
        record.number("successes.throughput.requests_per_sec"),
        e2e,
        ttft,
        tpot(e2e, ttft, asked or record.number("successes.output_len.mean")),
        lengths("prompt_len"),
        outputs,
    )


def _config(record: Record) -> str:
    """Read the config.yaml beside a report, or in the folder above; empty without one."""
    folder = Path(record.source).parent
    for path in (folder / "config.yaml", folder.parent / "config.yaml"):
        if path.is_file():
            with suppress(UsageError):
                return beginning(path, _LONGEST_CONFIG)
    return ""


def _asked(config: str) -> int | None:
    """Tokens that each answer had, whatever its text is counted to be: those asked for, where no answer ends before."""
    asked = _OUTPUT.search(config)
    return round(float(asked[1] or asked[2])) if asked and _NO_END.search(config) else None


def _habits(record: Record) -> Iterator[str]:
    """Yield notes on a run's configuration."""
    config = _config(record)
    if asked := _asked(config):
        counted = record.number("successes.output_len.mean")
        yield f"inference-perf counts tokens of answers anew ({counted:.1f}); with ignore_eos all {asked} came"
    several = [int(match[1]) for key in _PROMPTS if (match := re.search(rf"\b{key}: *(\d+)", config))]
    if (prompts := math.prod(several)) and several and prompts < record.number("successes.count"):
        yield f"its {prompts:,} prompts recur, and a prefix cache finds them whole: --repeated, if the engine had one"


def _inference_perf_load(record: Record, run: Run) -> Load:
    if record.at("load_summary.concurrency") is not None:
        return {"concurrency": record.whole("load_summary.concurrency")}
    if record.at(_RATE) is None:
        raise record.error(_RATE, "missing: several stages in one; give the reports of the stages")
    return _at_rate(
        run, record.positive(_RATE), sent_rps=record.optional("load_summary.achieved_rate") or None
    )


# -- llm-d's benchmark report -----------------------------------------------------------------------------------------

_REPORTED = ("results.request_performance.aggregate", "metrics")  # of 0.2, of 0.1


def _reported(record: Record) -> str:
    """Tell where the figures of a report stand; empty where they do not."""
    there = (path for path in _REPORTED if record.at(f"{path}.latency") and record.at(f"{path}.requests"))
    return next(there, "")


def _llmd(record: Record) -> Run:
    here = _reported(record)
    counted, measured = f"{here}.requests", f"{here}.latency"
    ttft, between, e2e = (
        _seconds(record, f"{measured}.{metric}.mean", f"{measured}.{metric}.units")
        for metric in ("time_to_first_token", "time_per_output_token", "request_latency")
    )
    inputs, outputs = (
        spread(record.number(f"{path}.mean"), deviation=record.optional(f"{path}.stddev"))
        for path in (f"{counted}.input_length", f"{counted}.output_length")
    )
    output = record.number(f"{counted}.output_length.mean")
    if e2e is None:
        e2e = (ttft or 0.0) + (between or 0.0) * max(output - 1, 0.0)
    failed = record.optional(f"{counted}.failures") or 0.0
    rate = names(f"{here}.throughput.request_rate.mean {here}.throughput.requests_per_sec")
    return Run(
        max(0, round(record.number(f"{counted}.total") - failed)),
        record.number(rate),
        e2e,
        ttft,
        tpot(e2e, ttft, output) or between,
        inputs,
        outputs,
    )


def _llmd_load(record: Record, run: Run) -> Load:
    load = Record(record.source, record.line, record.at("scenario.load") or {})
    stages, stage = _listed(load.at("args.load.stages")), load.at("metadata.stage")
    asked = stages[int(stage) if stage in range(len(stages)) else 0].get("rate") if stages else None
    rate = _bounded(load.at("standardized.rate_qps"), load.at("args.request_rate"), asked)
    most = _bounded(load.at("standardized.concurrency"), load.at("args.max_concurrency"))
    clients = None if most is None else max(1, round(most))
    if rate is not None:
        return _at_rate(run, rate, clients)
    return in_flight(run.throughput_rps, run.e2e_s) if clients is None else {"concurrency": clients}


def _bounded(*seen: Any) -> float | None:
    """Read the first load that is there and has a bound; None where none has."""
    known = (number for value in seen if (number := number_of(value)) is not None)
    return next((number for number in known if 0 < number < math.inf), None)


def _listed(seen: Any) -> list[dict[str, Any]]:
    return [entry for entry in seen if isinstance(entry, dict)] if isinstance(seen, list) else []


def _llmd_engines(record: Record) -> list[Record]:
    stack = (Record(record.source, record.line, part) for part in _listed(record.at("scenario.stack")))
    return [part for part in stack if part.text("standardized.kind") == "inference_engine"]


def _llmd_replicas(record: Record) -> str:
    """Say why a run is not of one replica."""
    hosts = record.at("scenario.host.type")
    replicas = sum(part.optional("standardized.replicas") or 1 for part in _llmd_engines(record))
    replicas = replicas or (len(hosts) if isinstance(hosts, list | dict) else 1)
    return f"a run of {replicas:g} replicas together" if replicas > 1 else ""


_DERIVED = "TPOT is (E2E - TTFT) / (output tokens - 1)"
_GENERATORS = (
    Generator(
        "AIPerf",
        _objects("input_config", "request_latency", "request_throughput"),
        _aiperf,
        _aiperf_load,
        names("request_count.avg"),
        model=_aiperf_model,
        unusable=lambda record: (
            "a run that was cut short"
            if record.at("is_complete") is False or record.at("was_cancelled") is True
            else ""
        ),
    ),
    Generator(
        "GuideLLM",
        _is_guidellm,
        _guidellm,
        _guidellm_load,
        _GUIDELLM_REQUESTS,
        model=lambda record: record.text("config.backend.model") or record.text("worker.backend_model"),
        parts=lambda report: report.parts("benchmarks"),
    ),
    Generator(
        "inference-perf",
        _objects("load_summary", "successes", "failures"),
        _inference_perf,
        _inference_perf_load,
        names("successes.count"),
        habits=_habits,
        note=f"inference-perf's time per output token counts empty chunks; {_DERIVED}",
    ),
    Generator(
        "llm-d benchmark report",
        lambda record: bool(_reported(record)),
        _llmd,
        _llmd_load,
        names(" ".join(f"{path}.requests.total" for path in _REPORTED)),
        model=lambda record: next(
            (part.text("standardized.model.name") for part in _llmd_engines(record)),
            record.text("scenario.model.name"),
        ),
        unusable=_llmd_replicas,
        note=f"llm-d benchmark report: {_DERIVED}",
    ),
)

READERS = tuple(document(generator.name, generator.recognises, generator.read) for generator in _GENERATORS)
