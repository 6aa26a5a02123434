"""What a fleet is operated by: targets of its autoscaler, bounds of its router, thresholds of its alerts.

All figures are of one replica unless they say otherwise, means over time, at the goodput of a fleet behind its router.
"""

from typing import NamedTuple


class Replicas(NamedTuple):
    """How many replicas an autoscaler may ask for, and what it falls back to where it sees no metrics."""

    least: int  # for the trough of the period at the target
    most: int  # 1.5 times what its peak needs at the target
    fallback: int  # what its peak needs at the target


class Planned(NamedTuple):
    """What gauges and counters show of a replica at the goodput, quantiles over minutes; None where it has none."""

    running_p99: float  # requests
    waiting_p99: float
    in_flight: float  # mean of running and waiting requests
    in_flight_p99: float
    stay_s: float  # mean time of a request from its arrival to its end
    preemptions_per_s: float
    kv_usage: float  # share of the memory, mean at the target
    kv_usage_p99: float  # largest in a minute
    queue_at_target: float  # waiting requests, mean at the target
    queue_p99: float  # largest in a minute
    hit_rate: float | None  # of the prefix cache


class Operations(NamedTuple):
    """Targets, bounds and thresholds, and what they were derived from."""

    goodput_rps: float  # λ*
    peak_replicas: int  # of the fleet that λ* was found with
    headroom: float  # h
    arrivals_rps: float  # target: λ*/(1 + h)
    in_flight: float  # target: requests running and waiting at λ*, over 1 + h
    replicas: Replicas
    scale_down_s: float  # how long fewer must be wanted before one goes
    grace_s: float  # 99.9th percentile of the time of a request, end to end
    router_cap: int  # most requests in flight at a replica
    cap_why: str  # what the cap is derived from
    wait_s: float | None  # how long a request may wait; None where nothing says
    wait_why: str
    load_s: float  # from the start of a replica until it serves
    planned: Planned

    @property
    def most_queued(self) -> int | None:
        """Requests that a router may hold: those that wait at most `wait_s`, and what replicas have in flight."""
        if self.wait_s is None:
            return None
        return round((self.wait_s * self.goodput_rps + self.router_cap) * self.replicas.most)
