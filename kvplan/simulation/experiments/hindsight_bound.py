"""Hindsight bounds on a study: no policy could have surpassed them on the same requests (FC 4)."""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from kvplan.analysis.hindsight import Instance, Metric, hindsight
from kvplan.errors import UsageError
from kvplan.model import Prefill, Replica, ServingModel, Timing
from kvplan.simulation.experiments.load import Load, generate
from kvplan.simulation.policies import POLICIES
from kvplan.simulation.requests import Requests

_TIE = 1e-9  # slots by which an arrival may count as earlier: rounding of the clock


def as_engines(policies: Sequence[str]) -> tuple[str, ...]:
    """Select the policies that count KV as engines do: a bound that is to hold for them too is looser."""
    return tuple(name for name in policies if POLICIES[name].engine)


class StudyBound(NamedTuple):
    """A bound on a figure of every policy, mean over the seeds; `proven` where it is the optimum for every seed."""

    figure: str  # in results: `throughput_rps`, `decode_tokens_per_s` from above, `e2e_s.mean` from below
    bound: float
    proven: bool
    gap: float | None  # largest relative difference to a schedule that was found; None where none was


def instance(requests: Requests, timing: Timing, replica: Replica, *, as_engine: bool = False) -> Instance:
    """Express requests in slots of d0; UsageError where iterations differ, or arrivals depend on completions.

    With `as_engine` KV is counted as engines do, the tokens computed so far, whatever the convention for prefill: a
    token less; and evictions lose no stages. So the bound holds for any policy.
    """
    if not timing.is_constant:
        raise UsageError("hindsight: iterations must be equally long, so [timing] may have no term but d0")
    if requests.clients is not None:
        raise UsageError(
            "hindsight: in a closed loop arrivals depend on the policy; nothing is known beforehand"
        )
    decode, inputs = requests.decode_tokens.astype(np.int64), requests.input_tokens.astype(np.int64)
    inline = replica.prefill is Prefill.INLINE and not as_engine
    return Instance(
        arrival=np.maximum(requests.arrival_s / timing.d0 - _TIE, 0.0),
        stages=decode + inline,
        first_weight=np.maximum(inputs, 1) if as_engine else inputs + (not inline),
        decode_tokens=decode,
        capacity=replica.memory_tokens,
        block_tokens=replica.block_tokens,
        evicted_go_on=as_engine,
    )


def study_bounds(
    model: ServingModel, load: Load, policies: Sequence[str], seeds: Sequence[int]
) -> tuple[StudyBound, ...]:
    """Bound the figures of a study: rates if it has a horizon, else the mean time end to end.

    Where all policies count KV by the stages of the profile's convention, the bound does too; else as engines do.
    """
    as_engine = bool(as_engines(policies))
    d0, horizon, overhead, slots = model.timing.d0, load.horizon_s, 0.0, None
    if horizon is None:
        wanted, overhead = [(Metric.LATENCY, "e2e_s.mean", d0)], model.request_overhead_s
    else:
        wanted = [
            (Metric.COMPLETED, "throughput_rps", 1 / horizon),
            (Metric.DECODE_TOKENS, "decode_tokens_per_s", 1 / horizon),
        ]
        slots = math.floor(horizon / d0 + _TIE)
    runs = [generate(model, load, seed) for seed in seeds]
    instances = [instance(run, model.timing, model.replica, as_engine=as_engine) for run in runs]
    figures = []
    for metric, figure, unit in wanted:
        bounds = [hindsight(each, metric, horizon=slots) for each in instances]
        gaps = [bound.gap for bound in bounds if bound.gap is not None]
        mean = math.fsum(bound.bound for bound in bounds) / len(bounds)
        gap = max(gaps) if len(gaps) == len(bounds) else None
        figures.append(StudyBound(figure, mean * unit + overhead, all(bound.proven for bound in bounds), gap))
    return tuple(figures)
