"""inference-perf's reports of a stage, ``stage_N_lifecycle_metrics.json``: one run at one load.

Its time per output token counts chunks without a token (of its 0.1 and 0.2, half of all), so TPOT is taken from E2E
and TTFT. Its loads of type "constant" have gaps that are exponentially distributed too.
"""

from kvplan.ingest.timing.collector import Collector
from kvplan.ingest.timing.format import Document, DocumentFormat
from kvplan.ingest.timing.load import Load, at_rate, spread
from kvplan.ingest.timing.sweep import Deployment, Point, Range

_NOTE = (
    "inference-perf's time per output token counts empty chunks; TPOT is (E2E - TTFT) / (output tokens - 1)"
)
_LATENCY = "successes.latency"
_RATE = "load_summary.requested_rate"


def _recognises(document: Document) -> bool:
    return all(isinstance(document.at(key), dict) for key in ("load_summary", "successes", "failures"))


def _add(document: Document, collector: Collector) -> None:
    if document.at(_LATENCY) is None:
        raise document.error(
            _LATENCY, "missing: what the server measured; give what the client did (…lifecycle…json)"
        )
    requests = document.number("successes.count")
    if requests == 0:
        collector.skip("nothing was generated", document.line)
        return
    e2e = document.number(f"{_LATENCY}.request_latency.mean")
    ttft = document.optional(f"{_LATENCY}.time_to_first_token.mean")
    output = document.number("successes.output_len.mean")
    throughput = document.number("successes.throughput.requests_per_sec")
    point = Point(
        line=document.line,
        inputs=_lengths(document, "prompt_len"),
        outputs=_lengths(document, "output_len"),
        requests=round(requests),
        ttft_s=ttft,
        tpot_s=tpot(e2e, ttft, output),
        e2e_s=e2e,
        throughput_rps=throughput,
        **_load(document, round(requests), e2e, throughput)._asdict(),
    )
    collector.note(_NOTE)
    collector.add_point(FORMAT.name, point, Deployment())


def tpot(e2e: float, ttft: float | None, output: float) -> float | None:
    """Time between tokens, seconds; None of answers of one token, or where TTFT is not known.

    Examples
    --------
    >>> tpot(1.5, 0.5, 101), tpot(1.5, None, 101)
    (0.01, None)
    """
    return None if ttft is None or output <= 1 or e2e <= ttft else (e2e - ttft) / (output - 1)


def _load(document: Document, requests: int, e2e: float, throughput: float) -> Load:
    if document.at("load_summary.concurrency") is not None:
        return Load(concurrency=document.whole("load_summary.concurrency"))
    if document.at(_RATE) is None:
        raise document.error(_RATE, "missing: several stages in one; give the reports of the stages")
    requested, achieved = document.number(_RATE), document.optional("load_summary.achieved_rate")
    if requested == 0:
        raise document.error(_RATE, "0; must be above 0")
    return at_rate(requested, throughput, e2e, requests=requests, sent_rps=achieved or None)


def _lengths(document: Document, what: str) -> Range:
    """Evenly spread as the middle half is."""
    low, high = (document.optional(f"successes.{what}.p{percent}") for percent in (25, 75))
    half = 0.0 if low is None or high is None else high - low
    return spread(document.number(f"successes.{what}.mean"), half)


FORMAT = DocumentFormat("inference-perf", _recognises, _add)
