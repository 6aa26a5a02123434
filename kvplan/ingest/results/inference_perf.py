"""inference-perf's reports of a stage, ``stage_N_lifecycle_metrics.json``: one run at one load.

Its time per output token counts chunks without a token (of its 0.1 and 0.2, half of all), so TPOT is taken from E2E
and TTFT. Its loads of type "constant" have gaps that are exponentially distributed too.
"""

from kvplan.ingest.cells import Record
from kvplan.ingest.results import Load, at_rate, document, spread, tpot
from kvplan.ingest.timing.collector import Collector
from kvplan.ingest.timing.samples import Deployment, Point, Range

_NOTE = (
    "inference-perf's time per output token counts empty chunks; TPOT is (E2E - TTFT) / (output tokens - 1)"
)
_LATENCY = "successes.latency"
_RATE = "load_summary.requested_rate"


def _recognises(record: Record) -> bool:
    return all(isinstance(record.at(key), dict) for key in ("load_summary", "successes", "failures"))


def _add(record: Record, collector: Collector) -> None:
    if record.at(_LATENCY) is None:
        message = "missing: what the server measured; give what the client did (…lifecycle…json)"
        raise record.error(_LATENCY, message)
    requests = record.number("successes.count")
    if requests == 0:
        collector.skip("nothing was generated", record.line)
        return
    e2e = record.number(f"{_LATENCY}.request_latency.mean")
    ttft = record.optional(f"{_LATENCY}.time_to_first_token.mean")
    output = record.number("successes.output_len.mean")
    throughput = record.number("successes.throughput.requests_per_sec")
    point = Point(
        line=record.line,
        inputs=_lengths(record, "prompt_len"),
        outputs=_lengths(record, "output_len"),
        requests=round(requests),
        ttft_s=ttft,
        tpot_s=tpot(e2e, ttft, output),
        e2e_s=e2e,
        throughput_rps=throughput,
        **_load(record, round(requests), e2e, throughput),
    )
    collector.note(_NOTE)
    collector.add_point(point, Deployment())


def _load(record: Record, requests: int, e2e: float, throughput: float) -> Load:
    if record.at("load_summary.concurrency") is not None:
        return {"concurrency": record.whole("load_summary.concurrency")}
    if record.at(_RATE) is None:
        raise record.error(_RATE, "missing: several stages in one; give the reports of the stages")
    requested, achieved = record.positive(_RATE), record.optional("load_summary.achieved_rate")
    return at_rate(requested, throughput, e2e, requests=requests, sent_rps=achieved or None)


def _lengths(record: Record, what: str) -> Range:
    """Spread lengths evenly, as the middle half is."""
    low, high = (record.optional(f"successes.{what}.p{percent}") for percent in (25, 75))
    half = 0.0 if low is None or high is None else high - low
    return spread(record.number(f"successes.{what}.mean"), half)


READERS = (document("inference-perf", _recognises, _add),)
