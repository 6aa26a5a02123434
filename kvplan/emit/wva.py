"""Workload Variant Autoscaler of llm-d: thresholds of its saturation analyzer (the percentage-based one, V1)."""

from kvplan.emit.service import Embedded, Manifest, Noted, Service, Target, number
from kvplan.study.operations import Operations


def manifest(operations: Operations, service: Service) -> Manifest:
    """Write the ConfigMap of the thresholds."""
    planned = operations.planned
    queue_p99 = max(planned.queue_p99, 1.0)
    at_least = "" if planned.queue_p99 >= 1 else ", at least 1"
    minutes = "99th percentile over minutes at the goodput"
    less = "that minus the mean at the targets"
    thresholds = {
        "model_id": service.model,
        **({"namespace": service.namespace} if service.namespace else {}),
        "kvCacheThreshold": Noted(min(planned.kv_usage_p99, 1.0), f"largest KV cache usage: {minutes}"),
        "queueLengthThreshold": Noted(queue_p99, f"longest queue: {minutes}{at_least}"),
        "kvSpareTrigger": Noted(
            max(min(planned.kv_usage_p99, 1.0) - planned.kv_usage, 0.0), f"{less}, {number(planned.kv_usage)}"
        ),
        "queueSpareTrigger": Noted(
            max(queue_p99 - planned.queue_at_target, 0.0), f"{less}, {number(planned.queue_at_target)}"
        ),
    }
    config_map = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": service.metadata | {"name": "wva-saturation-scaling-config"},
        "data": {"default": Embedded(thresholds)},
    }
    return Manifest(
        (config_map,),
        (
            "This analyzer is deprecated upstream, where V2 is the default since 0.9.0; without a list of `analyzers` "
            "it is the one that runs. Thresholds of KV cache usage and queue fit one load: prefer --target keda.",
            f"The controller's own key for a model, {service.model}#NAMESPACE, is one that Kubernetes refuses in a "
            "ConfigMap (letters, digits, '-', '_' and '.'): `default` in the namespace of the model takes its place. "
            "All four thresholds are given: one left out would be 0.",
        ),
    )


def _lacks(service: Service) -> str | None:
    return None if service.model else "thresholds are a model's; add --model NAME, as clients ask for it"


TARGET = Target("Thresholds of the Workload Variant Autoscaler", manifest, _lacks)
