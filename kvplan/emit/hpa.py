"""HorizontalPodAutoscaler (`autoscaling/v2`) on external metrics, and the rules of prometheus-adapter for them."""

from typing import Any

from kvplan.emit import autoscaling
from kvplan.emit.service import Embedded, Manifest, Service, Target, grace_note
from kvplan.study.operations import Operations


def manifest(operations: Operations, service: Service) -> Manifest:
    """Write an autoscaler and a ConfigMap of rules."""
    least, most = autoscaling.bounds(operations)
    targets = autoscaling.wishes(operations, service)
    autoscaler = {
        "apiVersion": "autoscaling/v2",
        "kind": "HorizontalPodAutoscaler",
        "metadata": service.metadata,
        "spec": {
            "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": service.name},
            "minReplicas": least,
            "maxReplicas": most,
            "metrics": [_metric(wish, service) for wish in targets],
            "behavior": autoscaling.behavior(operations),
        },
    }
    rules = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": service.metadata | {"name": f"{service.name}-adapter-rules"},
        "data": {"config.yaml": Embedded({"externalRules": [_rule(each, service) for each in targets]})},
    }
    return Manifest(
        (autoscaler, rules),
        (
            "HPA takes the larger wish of the two metrics.",
            "The metrics exist once prometheus-adapter has the rules of the second document: add its externalRules "
            "to the adapter's configuration (rules.external of its chart).",
            "A service without any traffic yet has no series: until it does, its number of replicas stays as it is.",
            grace_note(operations),
        ),
    )


def _metric(wish: autoscaling.Wish, service: Service) -> dict[str, Any]:
    return {
        "type": "External",
        "external": {
            "metric": {"name": _name(wish, service)},
            "target": {"type": "AverageValue", "averageValue": wish.value},
        },
    }


def _rule(wish: autoscaling.Wish, service: Service) -> dict[str, Any]:
    return {
        "seriesQuery": service.series(service.metrics.running),
        "resources": {"namespaced": False},
        "name": {"as": _name(wish, service)},
        "metricsQuery": wish.query,
    }


def _name(wish: autoscaling.Wish, service: Service) -> str:
    return f"kvplan_{service.name}_{wish.name}".replace("-", "_")


TARGET = Target("HorizontalPodAutoscaler and rules of prometheus-adapter", manifest)
