"""PrometheusRule (`monitoring.coreos.com/v1`): alerts on a service that leaves what was planned."""

from collections.abc import Iterator
from typing import Any

from kvplan.emit.service import Manifest, Noted, Service, Target, number
from kvplan.study.operations import Operations

_OVER = 1.1  # of the goodput
_LONGER = 1.5  # of the planned stay
_PREEMPTIONS, _AT_LEAST = 3, 10


def manifest(operations: Operations, service: Service) -> Manifest:
    """Write the alerts."""
    rules = [*_load(operations, service), *_collapse(operations, service), *_queues(operations, service)]
    return Manifest(
        (
            {
                "apiVersion": "monitoring.coreos.com/v1",
                "kind": "PrometheusRule",
                "metadata": service.metadata,
                "spec": {"groups": [{"name": f"kvplan-{service.name}", "interval": "15s", "rules": rules}]},
            },
        ),
        ("Alerts are on what was simulated at the goodput; docs/operate.md says what to do about each.",),
    )


def _load(operations: Operations, service: Service) -> Iterator[dict[str, Any]]:
    planned, replicas = operations.planned, service.replicas()
    goodput = operations.goodput_rps
    yield _alert(
        "KvplanLoadAboveGoodput",
        f"({service.arrivals('5m')}) / {replicas} > {number(_OVER * goodput)}",
        f"{_OVER:g} times the goodput of a replica, {number(goodput)} requests/s",
        "More requests arrive than replicas serve within the objectives.",
        "Add replicas; see why the autoscaler did not: its most replicas, GPUs that are not there, a slow start.",
        severity="critical",
        service=service,
    )
    running, waiting = (
        f"sum by (instance) (avg_over_time({service.series(metric)}[5m]))"
        for metric in (service.metrics.running, service.metrics.waiting)
    )
    yield _alert(
        "KvplanInFlightAbovePlan",
        f"{running} + {waiting} > {number(planned.in_flight_p99)}",
        "requests running and waiting at a replica at the goodput: 99th percentile over minutes",
        "A replica has more requests in flight than at the goodput: it falls behind, or the router prefers it.",
        "Compare it with other replicas. If all are alike, add replicas; if it is alone, look at the routing.",
        severity="warning",
        service=service,
    )
    finished = f"sum(rate({service.series(service.metrics.finished)}[5m]))"
    yield _alert(
        "KvplanRequestsStayLonger",
        f"({service.in_flight('5m')}) / {finished} > {number(_LONGER * planned.stay_s)}",
        f"{_LONGER:g} times the {number(planned.stay_s)} s that a request stays at the goodput, by Little's law",
        "Requests stay much longer than planned: lengths, the hit ratio or the speed of iterations have drifted.",
        "kvplan check PROFILE --metrics says which of them; import the service anew and plan again.",
        severity="warning",
        service=service,
        lasting="10m",
    )
    usual = planned.preemptions_per_s * 300
    yield _alert(
        "KvplanPreemptions",
        f"sum by (instance) (increase({service.series(service.metrics.preemptions)}[5m])) > "
        f"{number(max(_PREEMPTIONS * usual, usual + _AT_LEAST))}",
        f"in 5 min; {_PREEMPTIONS} times the {number(usual)} of the plan, and at least {_AT_LEAST} more",
        "The KV cache is too small for what runs: requests are thrown out and computed again.",
        "Limit running requests (kvplan emit --target vllm), or add replicas.",
        severity="warning",
        service=service,
    )


def _collapse(operations: Operations, service: Service) -> Iterator[dict[str, Any]]:
    planned = operations.planned
    if planned.hit_rate is None:
        return
    hits, looked_up = (
        f"sum by (instance) (rate({service.series(metric)}[1m]))"
        for metric in (service.metrics.hits, service.metrics.looked_up)
    )
    yield _alert(
        "KvplanPrefixCacheCollapse",
        f"{hits} / {looked_up} < {number(planned.hit_rate / 2)} "
        f"and {service.queued_for_each()} > {number(planned.waiting_p99)}",
        f"half the hit ratio of the plan, {number(planned.hit_rate)}; waiting requests: 99th percentile over minutes",
        "The prefix cache is lost: prompts are computed that were found before, and the queue keeps it so. KV cache "
        "usage does not show it.",
        "Take load off this replica until its queue is empty: cap requests in flight and give up those that wait "
        "(kvplan emit --target epp), or restart it. Replicas that are added do not bring its cache back.",
        severity="critical",
        service=service,
        lasting="90s",
    )


def _queues(operations: Operations, service: Service) -> Iterator[dict[str, Any]]:
    if operations.wait_s is None:
        return
    longest = operations.wait_s * operations.goodput_rps
    yield _alert(
        "KvplanQueueGrows",
        f"({service.queued()}) / {service.replicas()} > {number(longest)} and ({service.queue_growth('5m')}) > 0",
        f"requests that a replica serves within the longest wait of {number(operations.wait_s)} s at the goodput",
        "Whoever joins the queue now waits longer than the bound, and it grows.",
        "Shed load at the router (kvplan emit --target epp) and add replicas.",
        severity="critical",
        service=service,
        lasting="1m",
    )


def _alert(
    name: str,
    expression: str,
    why: str,
    meaning: str,
    remedy: str,
    *,
    severity: str,
    service: Service,
    lasting: str | None = None,
) -> dict[str, Any]:
    return {
        "alert": name,
        "expr": Noted(expression, why),
        **({"for": lasting} if lasting else {}),
        "labels": {"severity": severity, "service": service.name},
        "annotations": {
            "summary": meaning,
            "description": remedy,
            "runbook": f"docs/operate.md#{name.lower()}",
        },
    }


def _lacks(service: Service) -> str | None:
    if service.metrics.preemptions:
        return None
    return (
        f"alerts need counters of prefix cache look-ups and of preemptions, and {service.metrics.title} has none that "
        "all versions have; there is --engine vllm"
    )


TARGET = Target("PrometheusRule", manifest, _lacks)
