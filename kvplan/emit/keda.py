"""KEDA: a ScaledObject with two triggers (`config/crd/bases/keda.sh_scaledobjects.yaml`, Prometheus scaler)."""

from typing import Any

from kvplan.emit import autoscaling
from kvplan.emit.service import Manifest, Noted, Service, Target, grace_note
from kvplan.study.operations import Operations

_FAILURES = 4


def manifest(operations: Operations, service: Service) -> Manifest:
    """Write a ScaledObject."""
    least, most = autoscaling.bounds(operations)
    fallback = {
        "failureThreshold": Noted(
            _FAILURES, f"polls without metrics, {_FAILURES * autoscaling.POLLING_S} s; then"
        ),
        "replicas": Noted(operations.replicas.fallback, "what the peak of the load needs at the targets"),
    }
    spec = {
        "scaleTargetRef": {"name": Noted(service.name, "the Deployment")},
        "pollingInterval": Noted(autoscaling.POLLING_S, "seconds, as simulated"),
        "minReplicaCount": least,
        "maxReplicaCount": most,
        "fallback": fallback,
        "advanced": {"horizontalPodAutoscalerConfig": {"behavior": autoscaling.behavior(operations)}},
        "triggers": [_trigger(wish, service) for wish in autoscaling.wishes(operations, service)],
    }
    return Manifest(
        (
            {
                "apiVersion": "keda.sh/v1alpha1",
                "kind": "ScaledObject",
                "metadata": service.metadata,
                "spec": spec,
            },
        ),
        (
            "KEDA takes the larger wish of the two triggers.",
            "A service without any traffic yet has no series: it has the replicas of the fallback until it does.",
            grace_note(operations),
        ),
    )


def _trigger(wish: autoscaling.Wish, service: Service) -> dict[str, Any]:
    return {
        "type": "prometheus",
        "name": wish.name,
        "metricType": Noted("AverageValue", "of all replicas together, divided by their number"),
        "metadata": {
            "serverAddress": service.prometheus,
            "query": wish.query,
            "threshold": wish.value,
            "ignoreNullValues": Noted("false", "by default no data would be read as no load"),
        },
    }


TARGET = Target("KEDA ScaledObject", manifest)
