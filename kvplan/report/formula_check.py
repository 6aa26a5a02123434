"""The simulator beside the formulas: what `analyze --simulate` adds to a report."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, NamedTuple

from kvplan.model import Plan, ServingModel
from kvplan.report.assembly import SIMULATED_OVERFLOW, Report
from kvplan.report.words import Status
from kvplan.simulation.experiments.load import DEFAULT_REQUESTS, Arrivals, Load
from kvplan.simulation.experiments.options import chosen
from kvplan.simulation.experiments.study import Study, plain, study
from kvplan.simulation.metrics import PolicyResult
from kvplan.simulation.outcome import Outcome

TOLERANCE = 0.05  # fluid formulas and runs of ten thousand requests are not expected to agree better
_POLICIES = ("greedy", "rate-limited")
_ROOM = 10  # times the memory: nothing is held back
_LEAST_EVENTS = (
    200  # iterations above memory, which come in clumps, from which their share is worth comparing
)
_TAIL_TOLERANCE = 0.5


class Compared(NamedTuple):
    """A figure by formula and by simulation.

    `agrees` is False where the formula is outside the confidence interval and off by more than 5 %; None where the
    run cannot tell.
    """

    figure: str
    formula: float | None
    simulated: float | None
    ci95: tuple[float, float] | None
    agrees: bool | None


class Runs(NamedTuple):
    """The runs behind the figures.

    Attributes
    ----------
    offered
        Poisson arrivals at the offered rates, greedy and rate-limited.
    full
        As many requests all at once, the same policies.
    roomy
        As `offered`, greedy, with more memory than it needs.
    """

    offered: Study
    full: Study
    roomy: Outcome


def simulate(
    model: ServingModel,
    plan: Plan,
    *,
    requests: int = DEFAULT_REQUESTS,
    progress: Callable[[float], None] | None = None,
    announce: Callable[[str, bool], None] | None = None,
) -> Runs:
    """Simulate the offered load, and a saturated replica.

    Poisson arrivals under greedy and rate-limited admission show the equilibrium, all requests at once the worst
    cycle and the rate cap, and ten times the memory how far usage spreads. Rates are those that the formulas are
    for, without a schedule.
    """
    model = replace(model, schedule=None)
    room = _ROOM * model.replica.memory_tokens
    roomy = replace(model, replica=replace(model.replica, memory_tokens=room))
    offered, full, spread = (
        study(on, plan, Load(kind, requests), chosen(names, []), (0,), progress=progress, announce=announce)
        for on, kind, names in (
            (model, Arrivals.POISSON, _POLICIES),
            (model, Arrivals.SATURATED, _POLICIES),
            (roomy, Arrivals.POISSON, _POLICIES[:1]),
        )
    )
    return Runs(offered, full, spread.first[0])


def figures(report: Report, runs: Runs, memory_tokens: int) -> dict[str, Any]:
    """The report's `simulation` block."""
    offered, full, roomy = runs
    return {
        "arrivals": {"kind": offered.load.kind.value, "requests": offered.requests, "horizon_s": None},
        "seeds": list(offered.seeds),
        "policies": [plain(result) for result in offered.results],
        "saturated": [plain(result) for result in full.results],
        "comparison": [row._asdict() for row in compare(report, offered, full, roomy, memory_tokens)],
    }


def compare(
    report: Report, offered: Study, full: Study, roomy: Outcome, memory_tokens: int
) -> Iterator[Compared]:
    """Figures that formulas and simulation both have; `roomy` ran with more memory than it needed."""
    greedy, capped = offered.results
    if report.verdict.status is not Status.OVERLOADED:
        state = report.equilibrium
        yield _compared("Mean KV tokens", state.kv_tokens, greedy, "kv_tokens.mean")
        yield _compared("Decode tokens/s", state.decode_tokens_per_s, greedy, "decode_tokens_per_s")
        yield _overflow(report.safety_buffer.overflow_probability_per_iteration, roomy, memory_tokens)
    else:
        yield _compared("Requests/s, capped", report.load.sustainable_rps, capped, "throughput_rps")
    cycle, cap = report.worst_cycle, report.rate_cap
    worst, held = full.results
    yield _compared(
        "Greedy, saturated, requests an iteration",
        cycle.throughput_per_iteration,
        worst,
        "throughput_per_iteration",
    )
    yield _compared(
        "Capped, saturated, requests an iteration", cap.per_iteration, held, "throughput_per_iteration"
    )


def _overflow(chance: float | None, roomy: Outcome, memory_tokens: int) -> Compared:
    """Share of iterations in which usage would exceed memory, if nothing were held back."""
    least = memory_tokens // roomy.bin_tokens + 1
    above = int(roomy.kv_histogram[least:].sum())
    share = above / max(roomy.iterations, 1)
    enough = chance is not None and above >= _LEAST_EVENTS
    near = chance is not None and abs(share - chance) <= _TAIL_TOLERANCE * chance
    return Compared(SIMULATED_OVERFLOW, chance, share, None, near if enough else None)


def _compared(figure: str, formula: float | None, result: PolicyResult, key: str) -> Compared:
    value: Any = result
    for part in key.split("."):
        value = getattr(value, part)
    interval = result.ci95.get(key)
    agrees = None
    if formula is not None and value is not None:
        inside = interval is not None and interval[0] <= formula <= interval[1]
        agrees = inside or abs(value - formula) <= TOLERANCE * abs(formula)
    return Compared(figure, formula, value, interval, agrees)
