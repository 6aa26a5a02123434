"""What a set of classes does on replicas of its own: stability, worst state and rates (theory §2, §3).

Proportions alone decide stability, so a pool is that of one replica; whether several keep up is a matter of
`kvplan.analysis.placement`.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from kvplan.analysis.equilibrium import per_request, sustainable_rate
from kvplan.analysis.stability import is_quick, model_spectrum
from kvplan.analysis.worst_cycle import CycleKind, cycle_throughput_rps, mixed_cycle
from kvplan.model import ServingModel


class Pool(NamedTuple):
    """A set of classes on one replica that serves nothing else.

    Attributes
    ----------
    gcd
        Of the iteration counts.
    stable, certified
        As in the report.
    kind
        How the worst cycle is known.
    settled
        Whether the fluid map came to rest; None where it was not needed.
    worst_rps, sustainable_rps
        Requests/s of one replica in the worst cycle, and at most.
    offered_rps
        Requests/s of all the classes together.
    decode_tokens
        Mean decode length of a request.
    """

    gcd: int
    spectral_radius: float
    stable: bool
    certified: bool
    kind: CycleKind
    settled: bool | None
    worst_rps: float
    sustainable_rps: float
    offered_rps: float
    decode_tokens: float

    @property
    def need(self) -> float:
        """Replicas that would just do, not rounded."""
        return self.offered_rps / self.sustainable_rps

    @property
    def loss(self) -> float:
        """Share of the sustainable requests/s that is lost in the worst cycle."""
        return 1 - self.worst_rps / self.sustainable_rps


def pool(model: ServingModel, max_steps: int | None = None, *, radius: bool = True) -> Pool:
    """Stability and worst cycle of a model's classes together on one of its replicas.

    Parameters
    ----------
    max_steps
        Of the fluid map from each collapsed state; what they cut short is not settled. None: about a second.
    radius
        As for `kvplan.analysis.stability.spectrum`.

    References
    ----------
    SIC eq. 9, 10; worst cycles as in `kvplan.analysis.worst_cycle`.

    Examples
    --------
    SIC 5.2: lengths 20 and 21 are stable together, and neither is alone.

    >>> from kvplan.model import Prefill, Replica, RequestClass, Timing
    >>> two = tuple(RequestClass(str(d), 2000, (d,), (1.0,), 1.0) for d in (20, 21))
    >>> model = ServingModel(two, Timing(0.01), Replica(1_000_000, prefill=Prefill.DISAGGREGATED))
    >>> alone = [pool(replace(model, classes=(c,))) for c in two]
    >>> [(p.gcd, p.stable, round(p.loss, 6)) for p in (*alone, pool(model))]
    [(20, False, 0.004703), (21, False, 0.004948), (1, True, 0.0)]
    """
    stages, found = model.mix.stages, model_spectrum(model, radius=radius)
    quick = found.stable and found.certified and is_quick(model)
    kind, cycle = mixed_cycle(model, stable=quick, max_steps=max_steps)
    sustainable = sustainable_rate(model)[1]
    worst = sustainable if cycle is None else cycle_throughput_rps(model, cycle)
    return Pool(
        gcd=int(np.gcd.reduce(stages)),
        spectral_radius=found.radius,
        stable=found.stable,
        certified=found.certified,
        kind=kind,
        settled=None if cycle is None or cycle.iterations is None else cycle.settled,
        worst_rps=min(worst, sustainable),
        sustainable_rps=sustainable,
        offered_rps=model.total_rate_rps,
        decode_tokens=per_request(model).decode_tokens,
    )


def subset(model: ServingModel, classes: Sequence[int], replicas: int = 1) -> ServingModel:
    """What one of so many replicas sees that serve these classes alone."""
    kept = [model.classes[i] for i in classes]
    rest = sum(c.rate_rps for c in kept) / model.total_rate_rps
    if replicas > 1:
        kept = [replace(c, rate_rps=c.rate_rps / replicas) for c in kept]
    if model.arrivals.is_poisson:
        return replace(model, classes=tuple(kept))
    return replace(model, classes=tuple(kept), arrivals=model.arrivals.split(replicas / rest))
