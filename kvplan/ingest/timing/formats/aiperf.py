"""AIPerf's ``profile_export_aiperf.json``, 0.2 to 0.13, and GenAI-Perf's before it: one run at one load.

Its inter-token latency is (E2E - TTFT) / (tokens - 1). The load stands in the configuration that the file repeats.
"""

from typing import Any

from kvplan.ingest.timing.collector import Collector
from kvplan.ingest.timing.format import Document, DocumentFormat
from kvplan.ingest.timing.load import Load, at_rate, half_width, in_flight, spread
from kvplan.ingest.timing.sweep import Deployment, Point, Range

_UNITS = {"ns": 1e-9, "us": 1e-6, "ms": 1e-3, "s": 1.0, "sec": 1.0}
_LOADS = ("input_config.loadgen", "input_config.perf_analyzer.stimulus")  # AIPerf's to 0.4, GenAI-Perf's
_AT_RATE = ("poisson", "gamma", "constant")


def _recognises(document: Document) -> bool:
    return all(
        isinstance(document.at(key), dict)
        for key in ("input_config", "request_latency", "request_throughput")
    )


def _add(document: Document, collector: Collector) -> None:
    if document.at("is_complete") is False or document.at("was_cancelled") is True:
        collector.skip("a run that was cut short", document.line)
        return
    requests, throughput = document.number("request_count.avg"), document.number("request_throughput.avg")
    if requests == 0 or throughput == 0:
        collector.skip("nothing was generated", document.line)
        return
    e2e = _time(document, "request_latency")
    load = _load(document, round(requests), e2e or 0.0, throughput)
    if load is None:
        collector.skip("arrivals that are no steady load", document.line)
        return
    point = Point(
        line=document.line,
        inputs=_lengths(document, "input_sequence_length"),
        outputs=_lengths(document, "output_sequence_length"),
        requests=round(requests),
        ttft_s=_time(document, "time_to_first_token"),
        tpot_s=_time(document, "inter_token_latency"),
        e2e_s=e2e,
        throughput_rps=throughput,
        **load._asdict(),
    )
    collector.add_point(FORMAT.name, point, Deployment(model=_model(document)))


def _load(document: Document, requests: int, e2e: float, throughput: float) -> Load | None:
    """The load; None where it is not steady."""
    concurrency = rate = kind = None
    for within in _LOADS:
        concurrency = concurrency or document.optional(f"{within}.concurrency")
        rate = rate or document.optional(f"{within}.request_rate")
        kind = kind or document.text(f"{within}.request_rate_mode")
    if document.at("input_config.phases") is not None:
        phases = list(document.parts("input_config.phases"))
        measured = [phase for phase in phases if phase.at("exclude_from_results") is not True]
        if len(measured) != 1:
            raise document.error("input_config.phases", f"{len(measured)} phases are measured; must be one")
        kind, concurrency = measured[0].text("type"), measured[0].optional("concurrency")
        if kind in _AT_RATE:
            rate = measured[0].optional("rate")
        elif kind != "concurrency":
            return None
        if (kind in _AT_RATE and rate is None) or measured[0].at("rate_series") is not None:
            return None
    most = None if not concurrency else max(1, round(concurrency))
    if rate:
        return at_rate(rate, throughput, e2e, requests=requests, most=most, evenly=kind == "constant")
    return in_flight(throughput, e2e) if most is None else Load(concurrency=most)


def _lengths(document: Document, metric: str) -> Range:
    deviation = document.optional(f"{metric}.std")
    return spread(document.number(f"{metric}.avg"), half_width(deviation or 0.0))


def _time(document: Document, metric: str) -> float | None:
    if document.at(f"{metric}.avg") is None:
        return None
    unit = document.text(f"{metric}.unit")
    if unit not in _UNITS:
        raise document.error(f"{metric}.unit", f"{unit!r}; must be one of {', '.join(_UNITS)}")
    return document.number(f"{metric}.avg", _UNITS[unit])


def _model(document: Document) -> str:
    """The first that is named."""
    several: Any = document.at("input_config.models.items")
    named = [one.get("name") for one in several if isinstance(one, dict)] if isinstance(several, list) else []
    for path in ("input_config.endpoint.model_names", "input_config.model_names"):
        listed = document.at(path)
        named += listed if isinstance(listed, list) else []
    return next((name for name in named if isinstance(name, str)), "")


FORMAT = DocumentFormat("AIPerf", _recognises, _add)
