"""What replicas are made to say without runs: figures known for sure, and objectives decided by them."""

from collections.abc import Mapping, Sequence

from kvplan.model.slo import Slo
from kvplan.study.judging import Trend
from kvplan.study.objectives import Decision, State
from kvplan.study.replicas import Kept
from kvplan.study.sample import Estimate


def kept(steady: bool, figures: Mapping[str, float] | None = None, slos: Sequence[Slo] = ()) -> Kept:
    """Replicas whose queue is steady or grows, with these figures."""
    known = figures or {}
    decided = []
    for slo in slos:
        value = known[slo.key]
        state = State.HOLDS if steady and value <= slo.bound else State.MISSES
        decided.append(Decision(slo.key, slo.bound, state, value, value, value, value / slo.bound, 0.0, 1.0))
    estimates = {key: Estimate(value, value, value) for key, value in known.items()}
    return Kept(Trend.STEADY if steady else Trend.GROWING, tuple(decided), estimates)
