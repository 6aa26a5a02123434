"""A service as its cluster knows it, and queries (PromQL) of its engines' and router's metrics."""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from kvplan.engine import EngineName
from kvplan.errors import UsageError, shown
from kvplan.options import CountedBy, EmitOptions, Target
from kvplan.simulation.fleet.scaling import SCRAPE_S, LatencyRule, window_s

_DNS_LABEL = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")
_MATCHER = r'[a-zA-Z_]\w* *(?:=~|!~|!=|=) *"(?:[^"\\\n]|\\[^\n])*"'
_SELECTOR = re.compile(rf"{_MATCHER}( *, *{_MATCHER})*", re.ASCII)
_FORGETS_S = 300.0
_URL = re.compile(r"https?://[^\s\"'<>]+")


class Metrics(NamedTuple):
    """Names of an engine's gauges and counters; empty where no name holds for all versions."""

    title: str
    running: str
    waiting: str
    finished: str
    hits: str = ""
    looked_up: str = ""
    preemptions: str = ""
    ttft: str = ""
    tpot: str = ""


METRICS = {
    EngineName.VLLM: Metrics(
        "vLLM",
        "vllm:num_requests_running",
        "vllm:num_requests_waiting",
        "vllm:request_success_total",
        "vllm:prefix_cache_hits_total",
        "vllm:prefix_cache_queries_total",
        "vllm:num_preemptions_total",
        "vllm:time_to_first_token_seconds",
        "vllm:request_time_per_output_token_seconds",
    ),
    EngineName.SGLANG: Metrics(
        "SGLang", "sglang:num_running_reqs", "sglang:num_queue_reqs", "sglang:num_requests_total"
    ),
}


@dataclass(frozen=True, kw_only=True)
class Service:
    """Names of a service in its cluster.

    Attributes
    ----------
    name
        Of the Deployment that serves, and of what is written for it.
    selector
        Matchers of its replicas' series in Prometheus.
    pool
        InferencePool of the router in front of it; None without one.
    router_counts
        Whether arrivals are counted by the router, which sees them before they queue.
    prometheus
        Address of the server that answers queries.
    scrape_s
        Between two looks of Prometheus at a replica.
    model
        As clients ask for it.
    """

    name: str
    metrics: Metrics
    namespace: str | None = None
    selector: str
    pool: str | None = None
    router_counts: bool = False
    prometheus: str
    scrape_s: float = SCRAPE_S
    model: str | None = None

    def __post_init__(self) -> None:
        labels = {"--name": self.name, "--namespace": self.namespace, "--pool": self.pool}
        for option, label in labels.items():
            if label is not None and not _DNS_LABEL.fullmatch(label):
                raise UsageError(
                    f"{option} {shown(label)}: a DNS label is wanted: at most 63 of a-z, 0-9 and '-', no '-' at an end"
                )
        if not _SELECTOR.fullmatch(self.selector):
            raise UsageError(
                f'--selector {shown(self.selector)}: matchers are wanted, such as namespace="llm",model_name="chat"'
            )
        if not _URL.fullmatch(self.prometheus):
            raise UsageError(
                f"--prometheus {shown(self.prometheus)}: a URL is wanted, such as http://prometheus.monitoring:9090"
            )
        if not 0 < self.scrape_s < _FORGETS_S:
            raise UsageError(
                f"--scrape {self.scrape_s:g}s: less than 5 min is wanted, after which Prometheus takes a series as gone"
            )
        if self.router_counts and self.pool is None:
            raise UsageError("--arrivals epp: which InferencePool is unknown; add --pool NAME")

    def window(self, least_s: int) -> str:
        """Return a window of a rate, in which there are four scrapes.

        >>> [service(EmitOptions(scrape=each), EngineName.VLLM).window(60) for each in (None, "20.5s", "60s")]
        ['1m', '82s', '4m']
        """
        seconds = math.ceil(window_s(self.scrape_s, least_s))
        return f"{seconds}s" if seconds % 60 else f"{seconds // 60}m"

    def arrivals(self, window: str) -> str:
        """Query requests/s that arrive at all replicas: those that finish, and the growth of those there."""
        if self.router_counts:
            requests = self._named("llm_d_epp_request_total", f'service="{self.pool}-epp"')
            return f"sum(rate({requests}[{window}]))"
        finished = f"sum(rate({self.series(self.metrics.finished)}[{window}]))"
        return f"{finished} + {self._of_both('deriv', window)}"

    def in_flight(self, window: str) -> str:
        """Query requests on all replicas, running and waiting, and those that the router holds."""
        return f"{self._of_both('avg_over_time', window)}{self._held('avg_over_time', window)}"

    def latency_queries(self, limits: Mapping[str, float]) -> dict[str, str]:
        """Return the queries of llm-d's latency rule: latency over its limits, smoothed; replicas, and those ready."""
        ratios = []
        for key, of_engine, of_router in (
            ("ttft_s", self.metrics.ttft, "ttft"),
            ("tpot_s", self.metrics.tpot, "streaming_tpot"),
        ):
            histograms = [self.series(f"{of_engine}_bucket")]
            if self.router_counts:
                matcher, names = f'service="{self.pool}-epp"', (f"predicted_{key[:-2]}", of_router)
                histograms = [
                    self._named(f"llm_d_epp_request_{name}_seconds_bucket", matcher) for name in names
                ]
            if key in limits:
                quantile = " >= 0 or ".join(map(self._quantile, histograms))
                ratios.append(f'label_replace(({quantile}) / {limits[key]:.6g}, "of", "{key}", "", "")')
        ratio = f"clamp_max(max({' or '.join(ratios)}) >= 0 or vector(0), {LatencyRule.CLAMP:g})"
        deployment = f'deployment="{self.name}"'
        return {
            "saturation": f"avg_over_time(({ratio})[{LatencyRule.SMOOTH_S:g}s:15s])",
            "replicas": f"sum({self._named('kube_deployment_spec_replicas', deployment)})",
            "ready": f"sum({self._named('kube_deployment_status_replicas_ready', deployment)})",
        }

    def queued(self) -> str:
        """Query all waiting requests."""
        return f"sum({self.series(self.metrics.waiting)}){self._held()}"

    def queued_for_each(self) -> str:
        """Query requests that wait at each replica, with its part of the router's."""
        waiting = f"sum by (instance) ({self.series(self.metrics.waiting)})"
        held = self._held().removeprefix(" + ")
        return waiting + (f" + scalar({held}) / scalar({self.replicas()})" if held else "")

    def queue_growth(self, window: str) -> str:
        """Query the growth of the queues, requests/s."""
        waiting = self.series(self.metrics.waiting)
        return f"sum(deriv({waiting}[{window}])){self._held('deriv', window)}"

    def replicas(self) -> str:
        """Query live replicas."""
        return f"count(count by (instance) ({self.series(self.metrics.running)}))"

    def series(self, metric: str) -> str:
        """Select a metric of the replicas."""
        return f"{metric}{{{self.selector}}}"

    def _of_both(self, function: str, window: str) -> str:
        gauges = (self.metrics.running, self.metrics.waiting)
        return " + ".join(f"sum({function}({self.series(gauge)}[{window}]))" for gauge in gauges)

    def _held(self, function: str = "", window: str = "") -> str:
        """Add the router's requests; it has no series until one queues."""
        if self.pool is None:
            return ""
        held = self._named("llm_d_epp_flow_control_queue_size", f'inference_pool="{self.pool}"')
        over = f"{function}({held}[{window}])" if function else held
        return f" + (sum({over}) or vector(0))"

    def _quantile(self, histogram: str) -> str:
        rates = f"rate({histogram}[{self.window(60)}])"
        return f"histogram_quantile({LatencyRule.QUANTILE:g}, sum by (le) ({rates}))"

    def _named(self, metric: str, matcher: str) -> str:
        namespace = f'namespace="{self.namespace}",' if self.namespace else ""
        return f"{metric}{{{namespace}{matcher}}}"


def service(asked: EmitOptions, engine: EngineName) -> Service:
    """Name a service as the options do, and by what is usual where they do not.

    Pods of a Deployment have its name in theirs, which the Prometheus operator puts on their series as `pod`.

    Raises
    ------
    UsageError
        An option cannot be what it names, or no metrics of the engine are known.

    Examples
    --------
    >>> service(EmitOptions(namespace="llm"), EngineName.SGLANG).selector
    'namespace="llm",pod=~"sglang-[a-z0-9]+-[a-z0-9]{5}"'
    """
    if engine not in METRICS:
        raise UsageError(
            f"--engine {engine}: its metrics are not known; those of {' and '.join(METRICS)} are"
        )
    name = asked.name or engine.value
    of_pods = (
        f'namespace="{asked.namespace}",' * bool(asked.namespace) + f'pod=~"{name}-[a-z0-9]+-[a-z0-9]{{5}}"'
    )
    return Service(
        name=name,
        metrics=METRICS[engine],
        namespace=asked.namespace,
        selector=asked.selector or of_pods,
        pool=asked.pool,
        router_counts=asked.arrivals is CountedBy.EPP,
        prometheus=asked.prometheus or "http://prometheus-operated.monitoring:9090",
        scrape_s=asked.scrape or SCRAPE_S,
        model=asked.model,
    )


def lack(target: Target, service: Service) -> str | None:
    """Say what a target needs that the service lacks."""
    if target is Target.WVA and not service.model:
        return "thresholds are a model's; add --model NAME, as clients ask for it"
    if target is Target.PROMETHEUS and not service.metrics.preemptions:
        return (
            f"alerts need counters of prefix cache look-ups and of preemptions, and {service.metrics.title} has none "
            "that all versions have; there is --engine vllm"
        )
    if target is Target.LATENCY and not (service.metrics.ttft or service.router_counts):
        return f"{service.metrics.title} has no histograms that all versions have; add --arrivals epp"
    return None
