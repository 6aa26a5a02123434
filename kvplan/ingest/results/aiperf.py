"""AIPerf's ``profile_export_aiperf.json``, 0.2 to 0.13, and GenAI-Perf's before it: one run at one load.

Its inter-token latency is (E2E - TTFT) / (tokens - 1). The load stands in the configuration that the file repeats.
"""

from typing import Any

from kvplan.ingest.cells import Record
from kvplan.ingest.results import Load, at_rate, document, in_flight, spread
from kvplan.ingest.timing.collector import Collector
from kvplan.ingest.timing.samples import Deployment, Point, Range

_UNITS = {"ns": 1e-9, "us": 1e-6, "ms": 1e-3, "s": 1.0, "sec": 1.0}
_LOADS = ("input_config.loadgen", "input_config.perf_analyzer.stimulus")  # AIPerf's to 0.4, GenAI-Perf's
_PHASES = "input_config.phases"
_AT_RATE = ("poisson", "gamma", "constant")


def _recognises(record: Record) -> bool:
    keys = ("input_config", "request_latency", "request_throughput")
    return all(isinstance(record.at(key), dict) for key in keys)


def _add(record: Record, collector: Collector) -> None:
    if record.at("is_complete") is False or record.at("was_cancelled") is True:
        collector.skip("a run that was cut short", record.line)
        return
    requests, throughput = record.number("request_count.avg"), record.number("request_throughput.avg")
    if requests == 0 or throughput == 0:
        collector.skip("nothing was generated", record.line)
        return
    e2e = _time(record, "request_latency")
    load = _load(record, round(requests), e2e or 0.0, throughput)
    if load is None:
        collector.skip("arrivals that are no steady load", record.line)
        return
    point = Point(
        line=record.line,
        inputs=_lengths(record, "input_sequence_length"),
        outputs=_lengths(record, "output_sequence_length"),
        requests=round(requests),
        ttft_s=_time(record, "time_to_first_token"),
        tpot_s=_time(record, "inter_token_latency"),
        e2e_s=e2e,
        throughput_rps=throughput,
        **load,
    )
    collector.add_point(point, Deployment(model=_model(record)))


def _load(record: Record, requests: int, e2e: float, throughput: float) -> Load | None:
    """Tell the load; None where it is not steady."""
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
        if kind in _AT_RATE:
            rate = phase.optional("rate")
        if kind not in ("concurrency", *_AT_RATE) or phase.at("rate_series") is not None:
            return None
        if kind in _AT_RATE and rate is None:
            return None
    most = None if not concurrency else max(1, round(concurrency))
    if rate:
        return at_rate(rate, throughput, e2e, requests=requests, most=most, evenly=kind == "constant")
    return in_flight(throughput, e2e) if most is None else {"concurrency": most}


def _lengths(record: Record, metric: str) -> Range:
    return spread(record.number(f"{metric}.avg"), deviation=record.optional(f"{metric}.std"))


def _time(record: Record, metric: str) -> float | None:
    if record.at(f"{metric}.avg") is None:
        return None
    unit = record.text(f"{metric}.unit")
    if unit not in _UNITS:
        raise record.error(f"{metric}.unit", f"{unit!r}; must be one of {', '.join(_UNITS)}")
    return record.number({f"{metric}.avg": _UNITS[unit]})


def _model(record: Record) -> str:
    """Read the first that is named."""
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


READERS = (document("AIPerf", _recognises, _add),)
