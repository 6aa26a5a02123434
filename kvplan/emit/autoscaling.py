"""What KEDA and HPA are told alike: two targets, of which the larger wish counts, and how replicas come and go."""

from typing import Any, NamedTuple

from kvplan.emit.service import Noted, Service, number
from kvplan.study.operations import Operations

POLLING_S = 15
WINDOW = "1m"  # of both metrics
_LONGEST_S = 3600  # stabilization window that Kubernetes allows


class Wish(NamedTuple):
    """A metric of the whole service, and how much of it a replica is to have."""

    name: str
    query: str
    value: Noted


def wishes(operations: Operations, service: Service) -> tuple[Wish, Wish]:
    """Return the rate of arrivals, and requests in flight, which catches backlogs and lengths that grow."""
    divided = f"divided by 1 + the headroom of {operations.headroom:g}"
    rate = f"requests/s a replica: the goodput of {number(operations.goodput_rps)}, {divided}"
    held = (
        "requests running and waiting at a replica: their mean at the goodput, "
        f"{number(operations.planned.in_flight)}, {divided}"
    )
    return (
        Wish("arrivals", service.arrivals(WINDOW), Noted(number(operations.arrivals_rps), rate)),
        Wish("in-flight", service.in_flight(WINDOW), Noted(number(operations.in_flight), held)),
    )


def bounds(operations: Operations) -> tuple[Noted, Noted]:
    """Return the least and the most replicas."""
    least, most, _ = operations.replicas
    return (
        Noted(least, "for the trough of the load at the targets"),
        Noted(most, "1.5 times what the peak of the load needs at the targets"),
    )


def behavior(operations: Operations) -> dict[str, Any]:
    """Let all that are wanted come at once, and one a minute go."""
    window = min(round(operations.scale_down_s), _LONGEST_S)
    at_once = {
        "type": "Pods",
        "value": Noted(operations.replicas.most, "all at once"),
        "periodSeconds": POLLING_S,
    }
    return {
        "scaleUp": {"stabilizationWindowSeconds": 0, "policies": [at_once]},
        "scaleDown": {
            "stabilizationWindowSeconds": Noted(
                window,
                f"the longer of 300 s and the {number(operations.load_s)} s until a new replica serves",
            ),
            "policies": [{"type": "Pods", "value": 1, "periodSeconds": Noted(60, "one replica a minute")}],
        },
    }
