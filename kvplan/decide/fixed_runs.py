"""Fleets simulated by runs of a length that somebody chose, for searches among many of them."""

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from kvplan.errors import UsageError
from kvplan.model import Plan, ServingModel
from kvplan.model.slo import KEYS, Slo

if TYPE_CHECKING:
    from kvplan.simulation.metrics import PolicyResult

QUEUE = "queue"  # what is missed where the simulated queue grows


class Estimate(NamedTuple):
    """A simulated figure and its 95 % interval; the interval is the figure itself where there is none."""

    mean: float
    low: float
    high: float


class Measured(NamedTuple):
    """A fleet, simulated: whether its queue stays, and the figures of `KEYS` that it has."""

    steady: bool
    figures: Mapping[str, Estimate]


Measure = Callable[[ServingModel], Measured]


def missed(measured: Measured, slos: Sequence[Slo]) -> tuple[str, ...]:
    """What does not hold in simulation: `QUEUE`, texts of objectives."""
    queue = () if measured.steady else (QUEUE,)
    return (*queue, *(slo.text for slo in slos if not slo.holds(_estimate(measured, slo).high)))


def _estimate(measured: Measured, slo: Slo) -> Estimate:
    if slo.key not in measured.figures:
        raise UsageError(f"--slo {slo.text!r}: no simulated request has that figure, so it cannot be judged")
    return measured.figures[slo.key]


def simulated(
    plan: Plan,
    policy: str,
    *,
    requests: int,
    seeds: Sequence[int],
    announce: Callable[[str, bool], None] | None = None,
    compile: bool | None = None,
) -> Measure:
    """A policy with its defaults on the arrivals of the model, the same seeds for every fleet.

    `requests` are those of one run of the whole fleet; of a trace all come.

    Raises
    ------
    UsageError
        The policy does not exist, or has requests wait for others.

    Examples
    --------
    >>> from kvplan.model import Replica, RequestClass, Timing
    >>> model = ServingModel((RequestClass("a", 5, (2,), (1.0,), 0.01),), Timing(1.0), Replica(60))
    >>> found = simulated(Plan(), "vllm", requests=20, seeds=[0, 1])(model)
    >>> found.steady, found.figures["tpot_s.mean"].mean
    (True, 1.0)
    """
    from kvplan.simulation.experiments.load import Load
    from kvplan.simulation.experiments.options import chosen
    from kvplan.simulation.experiments.study import study
    from kvplan.simulation.metrics import RunStatus
    from kvplan.simulation.policies import POLICIES

    settings = chosen([policy], [])
    if POLICIES[policy].gathers:
        raise UsageError(
            f"--policy {policy}: has requests wait for others, so that more replicas can be slower"
        )

    def measure(model: ServingModel) -> Measured:
        found = study(
            model, plan, Load(requests=requests), settings, seeds, announce=announce, compile=compile
        )
        if found.interrupted:
            raise KeyboardInterrupt
        result = found.results[0]
        return Measured(result.status is RunStatus.STEADY, figures_of(result))

    return measure


def figures_of(result: "PolicyResult") -> dict[str, Estimate]:
    """Those of `KEYS` that a simulation has."""
    figures = {}
    for key in KEYS:
        block, _, name = key.partition(".")
        value = getattr(result, block)
        value = getattr(value, name) if name else value
        if value is not None:
            low, high = result.ci95[key] or (value, value)
            figures[key] = Estimate(value, low, high)
    return figures
