"""The simulator beside the formulas: what `analyze --simulate` adds to a report."""

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from kvplan.model import Plan, ServingModel
from kvplan.report import Report, Status
from kvplan.simulation.metrics import PolicyResult
from kvplan.simulation.study import DEFAULT_REQUESTS, Arrivals, Load, Study, chosen, plain, study

TOLERANCE = 0.05  # fluid formulas and runs of ten thousand requests are not expected to agree better
_POLICIES = ("greedy", "rate-limited")
_LEAST_EVENTS = 20  # overflows from which their share is worth comparing


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


def beside(
    report: Report,
    model: ServingModel,
    plan: Plan,
    *,
    requests: int = DEFAULT_REQUESTS,
    progress: Callable[[float], None] | None = None,
    announce: Callable[[str], None] | None = None,
) -> dict[str, Any]:
    """Simulate the offered load, and a saturated replica; the report's `simulation` block.

    Poisson arrivals under greedy and rate-limited admission show the equilibrium, all requests at once the worst
    cycle and the rate cap.
    """
    policies = chosen(_POLICIES, [])
    offered, full = (
        study(model, plan, Load(kind, requests), policies, (0,), progress=progress, announce=announce)
        for kind in (Arrivals.POISSON, Arrivals.SATURATED)
    )
    return {
        "arrivals": {"kind": offered.load.kind.value, "requests": offered.requests, "horizon_s": None},
        "seeds": list(offered.seeds),
        "policies": [plain(result) for result in offered.results],
        "saturated": [plain(result) for result in full.results],
        "comparison": [row._asdict() for row in compare(report, offered, full)],
    }


def compare(report: Report, offered: Study, full: Study) -> Iterator[Compared]:
    """Figures that formulas and simulation both have."""
    greedy, capped = offered.results
    if report.verdict.status is not Status.OVERLOADED:
        state = report.equilibrium
        yield _compared("Mean KV tokens", state.kv_tokens, greedy, "kv_tokens.mean")
        yield _compared("Decode tokens/s", state.decode_tokens_per_s, greedy, "decode_tokens_per_s")
        run = offered.first[0]
        share = run.overflows / run.iterations if run.iterations else None
        chance = report.safety_buffer.overflow_probability_per_iteration
        enough = run.overflows >= _LEAST_EVENTS and chance is not None and share is not None
        yield Compared(
            "Overflow, per iteration",
            chance,
            share,
            None,
            abs(share - chance) <= 0.3 * chance
            if enough and share is not None and chance is not None
            else None,
        )
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
