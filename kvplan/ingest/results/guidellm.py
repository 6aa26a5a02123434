"""GuideLLM's ``benchmarks.json``, 0.3 to 0.8: a report of benchmarks, each at one load.

Its time per output token counts the first one too; `inter_token_latency_ms` is (last - first token) / (tokens - 1).
"""

from kvplan.ingest.cells import Record
from kvplan.ingest.results import Load, at_rate, document, in_flight, spread
from kvplan.ingest.timing.collector import Collector
from kvplan.ingest.timing.samples import Deployment, Point, Range


def _recognises(record: Record) -> bool:
    benchmarks = record.at("benchmarks")
    return isinstance(benchmarks, list) and all(
        isinstance(one, dict) and isinstance(one.get("metrics"), dict) for one in benchmarks
    )


def _add(report: Record, collector: Collector) -> None:
    for benchmark in report.parts("benchmarks"):
        _add_benchmark(benchmark, collector)


def _add_benchmark(benchmark: Record, collector: Collector) -> None:
    older = benchmark.at("request_totals") is not None  # 0.3
    requests = round(benchmark.number(f"{'' if older else 'metrics.'}request_totals.successful"))
    if requests == 0:
        collector.skip("nothing was generated", benchmark.line)
        return
    e2e = benchmark.number(_path("request_latency"))
    throughput = benchmark.number(_path("requests_per_second"))
    load = _load(benchmark, requests, e2e, throughput)
    if load is None:
        collector.skip("arrivals that are no steady load", benchmark.line)
        return
    point = Point(
        line=benchmark.line,
        inputs=_lengths(benchmark, "prompt_token_count"),
        outputs=_lengths(benchmark, "output_token_count"),
        requests=requests,
        ttft_s=_time(benchmark, "time_to_first_token_ms"),
        tpot_s=_time(benchmark, "inter_token_latency_ms"),
        e2e_s=e2e,
        throughput_rps=throughput,
        **load,
    )
    model = benchmark.text("config.backend.model") or benchmark.text("worker.backend_model")
    collector.add_point(point, Deployment(model=model))


def _path(metric: str, value: str = "mean") -> str:
    return f"metrics.{metric}.successful.{value}"


def _load(benchmark: Record, requests: int, e2e: float, throughput: float) -> Load | None:
    """Tell the load; None where it is not steady."""
    strategy = f"{'args' if benchmark.at('config') is None else 'config'}.strategy"
    kind = benchmark.text(f"{strategy}.type_")
    limited = benchmark.at(f"{strategy}.max_concurrency") is not None
    most = benchmark.whole(f"{strategy}.max_concurrency") if limited else None
    if kind == "synchronous":
        return {"concurrency": 1}
    if kind == "concurrent":
        return {"concurrency": benchmark.whole(f"{strategy}.streams")}
    if kind == "throughput":
        return in_flight(throughput, e2e, most)
    if kind in ("constant", "poisson"):
        rate = benchmark.positive(f"{strategy}.rate")
        return at_rate(rate, throughput, e2e, requests=requests, most=most, evenly=kind == "constant")
    return None


def _lengths(benchmark: Record, metric: str) -> Range:
    return spread(benchmark.number(_path(metric)), deviation=benchmark.optional(_path(metric, "std_dev")))


def _time(benchmark: Record, metric: str) -> float | None:
    """Read a mean; None of nothing, as where answers were not streamed."""
    counted = benchmark.optional(_path(metric, "count"))
    return None if counted == 0 else benchmark.optional({_path(metric): 1e-3})


READERS = (document("GuideLLM", _recognises, _add),)
