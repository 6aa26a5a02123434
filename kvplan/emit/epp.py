"""The endpoint picker (EPP) of llm-d-router: its configuration with a cap of requests in flight and flow control.

Keys are those of `apix/config/v1alpha1/endpointpickerconfig_types.go`; it refuses others.
"""

from math import ceil
from typing import Any

from kvplan.emit.service import Manifest, Noted, Service, Target
from kvplan.study.operations import Operations

_DETECTOR, _PRODUCER, _SCORER = "concurrency-detector", "inflight-load-producer", "active-request-scorer"
_PICKER = "max-score-picker"


def manifest(operations: Operations, service: Service) -> Manifest:
    """Write an EndpointPickerConfig."""
    detector = {
        "concurrencyMode": "requests",
        "maxConcurrency": Noted(
            operations.router_cap, f"requests in flight at a replica: {operations.cap_why}"
        ),
        "headroom": Noted(0, "no replica has more than the cap, which the mean of the pool is held to"),
    }
    return Manifest(
        (
            {
                "apiVersion": "llm-d.ai/v1alpha1",
                "kind": "EndpointPickerConfig",
                "featureGates": ["flowControl"],
                "plugins": [
                    {"type": Noted(_PRODUCER, "counts for the two below")},
                    {"type": _DETECTOR, "parameters": detector},
                    {"type": Noted(_SCORER, "least requests")},
                    {"type": _PICKER},
                ],
                "schedulingProfiles": [
                    {
                        "name": "default",
                        "plugins": [{"pluginRef": _SCORER, "weight": 1}, {"pluginRef": _PICKER}],
                    }
                ],
                "flowControl": _flow_control(operations),
            },
        ),
        (
            "Scorers are the least that works: add those of your routing, such as prefix-cache-scorer; what matters "
            "here are concurrency-detector and flowControl.",
            "It is the file of --config-file, which the picker reads when it starts.",
        ),
    )


def _flow_control(operations: Operations) -> Noted:
    """Bounds of waiting; what nothing bounds is left out, and said."""
    bounds: dict[str, Any] = {"saturationDetector": {"pluginRef": _DETECTOR}}
    wait_s, most = operations.wait_s, operations.most_queued
    if wait_s is not None:
        bounds["defaultRequestTTL"] = Noted(
            f"{max(wait_s, 0.001):.3f}s", f"longest wait: {operations.wait_why}"
        )
    bounds["noEndpointRequestTTL"] = Noted(
        f"{ceil(max(operations.load_s, wait_s or 0, 1))}s",
        "while no replica serves: until the first one has loaded; after the default of 60 s all would be lost",
    )
    if most is not None:
        why = "of all replicas: what arrives at the goodput within the longest wait, and the caps"
        bounds["maxRequests"] = Noted(str(most), why)
    unbounded = (
        "no defaultRequestTTL and no maxRequests: nothing says how long a request may wait; 60 s by default"
    )
    return Noted(bounds, unbounded if wait_s is None else "")


TARGET = Target("Endpoint picker (EPP) of llm-d-router", manifest)
