"""The simulator beside the formulas: what `analyze --simulate` adds to a report."""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from kvplan.analysis.cold_cache import with_cold_cache
from kvplan.analysis.equilibrium import per_request, saturation
from kvplan.model import Plan, ServingModel
from kvplan.report.assembly import SIMULATED_OVERFLOW, Report
from kvplan.report.words import Status
from kvplan.simulation.experiments.load import DEFAULT_REQUESTS, Arrivals, Load
from kvplan.simulation.experiments.options import chosen, with_sessions
from kvplan.simulation.experiments.study import Study, plain, study
from kvplan.simulation.intervals import over_runs
from kvplan.simulation.outcome import Outcome
from kvplan.simulation.requests import Requests
from kvplan.simulation.steady import Steady, steady

TOLERANCE = 0.03  # of the formula: what is no more than that off agrees with it
TAIL_FACTOR = 1.5  # of a probability far out in the tail
SEEDS = 10
_POLICIES = ("greedy", "rate-limited")
_CACHING = ("vllm",)  # where requests have something in common, at the offered rates
_STAYS = 6  # times what a full memory serves in the longest stay
_MOST_REQUESTS = 200_000
_ROOM = 10  # times the memory: nothing is held back
_LEAST_EVENTS = 200  # iterations above memory, which come in clumps, from which their share can be compared


class Compared(NamedTuple):
    """A figure by formula and by simulation.

    `simulated` and its 95 % confidence interval are over seeds, of the steady part of each run; without chance there is
    one run and no interval. `agrees` is True where the whole interval is within 3 % of the formula, for the tail of KV
    within a factor of 1.5; False where all of it is further off; None where the runs cannot tell.
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
        Arrivals at the offered rates, greedy and rate-limited; vLLM's scheduler with its prefix cache where requests
        have something in common. The other runs are then of a cache that finds only what is always in use.
    full
        As many requests all at once, greedy and rate-limited.
    roomy
        At the offered rates, greedy, with more memory than it needs.
    """

    offered: Study
    full: Study
    roomy: Study


def simulate(
    model: ServingModel,
    plan: Plan,
    *,
    requests: int | None = None,
    progress: Callable[[float], None] | None = None,
    announce: Callable[[str, bool], None] | None = None,
) -> Runs:
    """Simulate the offered load, and a saturated replica.

    Arrivals as the model has them, under greedy and rate-limited admission, show the equilibrium, all requests at once
    the worst cycle and the rate cap, and ten times the memory how far usage spreads. Rates are those that the formulas
    are for, without a schedule.

    Parameters
    ----------
    requests
        In each run; 10,000 if None, or as many as leave a steady part of a saturated run.
    """
    compile = True if requests is None else None  # so many runs of so many requests repay it
    model = replace(model, schedule=None)
    cold = with_cold_cache(model)
    if requests is None:
        stays = saturation(cold).admissions_per_iteration * int(cold.mix.stages.max())
        requests = min(max(DEFAULT_REQUESTS, math.ceil(_STAYS * stays)), _MOST_REQUESTS)
    room = _ROOM * cold.replica.memory_tokens
    roomy = replace(cold, replica=replace(cold.replica, memory_tokens=room, max_num_seqs=None))
    offered, full, spread = (
        study(
            on,
            plan,
            with_sessions(Load(kind, requests), on),
            chosen(names, []),
            range(SEEDS),
            progress=progress,
            announce=announce,
            compile=compile,
        )
        for on, kind, names in (
            (model, None, _CACHING if model.finds_prefixes else _POLICIES),
            (cold, Arrivals.SATURATED, _POLICIES),
            (roomy, None, _POLICIES[:1]),
        )
    )
    return Runs(offered, full, spread)


def figures(report: Report, runs: Runs, model: ServingModel) -> dict[str, Any]:
    """The report's `simulation` block."""
    offered, full, _ = runs
    return {
        "arrivals": {"kind": offered.load.name, "requests": offered.requests, "horizon_s": None},
        "seeds": list(offered.seeds),
        "policies": [plain(result) for result in offered.results],
        "saturated": [plain(result) for result in full.results],
        "comparison": [row._asdict() for row in compare(report, runs, model)],
    }


def compare(report: Report, runs: Runs, model: ServingModel) -> Iterator[Compared]:
    """Figures that formulas and simulation both have."""
    cold = with_cold_cache(model)
    stay = int(model.mix.stages.max())
    overloaded = report.verdict.status is Status.OVERLOADED
    offered = [_steady(mine, stay, saturated=overloaded) for mine in runs.offered.runs]
    worst, held = (_steady(mine, stay, saturated=True) for mine in runs.full.runs)
    if not overloaded:
        state, found = report.equilibrium, report.prefix_cache
        yield _compared("Mean KV tokens", state.kv_tokens, offered[0], "kv_tokens")
        yield _compared("Decode tokens/s", state.decode_tokens_per_s, offered[0], "decode_tokens_per_s")
        if found is not None and found.hit_ratio is not None:
            rates = [_hit_rate(*run) for run in runs.offered.runs[0]]
            yield _row("Hit ratio", found.hit_ratio, rates, 1 + TOLERANCE)
        (roomy,) = runs.roomy.runs
        chance = report.safety_buffer.overflow_probability_per_iteration
        yield _overflow(chance, [run for _, run in roomy], cold.replica.memory_tokens)
    elif not model.finds_prefixes:
        yield _compared("Requests/s, capped", report.load.sustainable_rps, offered[1], "throughput_rps")
    most = _most_per_iteration(cold)
    cycle = min(report.worst_cycle.throughput_per_iteration, most)
    cap = min(report.rate_cap.per_iteration, most)
    yield _compared("Greedy, saturated, requests an iteration", cycle, worst, "throughput_per_iteration")
    yield _compared("Capped, saturated, requests an iteration", cap, held, "throughput_per_iteration")


def _most_per_iteration(model: ServingModel) -> float:
    """Requests that can be done in an iteration with max_num_seqs running (Little's law); infinite without a limit."""
    limit = model.replica.max_num_seqs
    return math.inf if limit is None else limit / per_request(model).iterations


def _steady(runs: Sequence[tuple[Requests, Outcome]], stay: int, *, saturated: bool) -> list[Steady | None]:
    return [steady(*run, saturated=saturated, longest_stay=stay) for run in runs]


def _hit_rate(requests: Requests, run: Outcome) -> float:
    """Hits of the prompt tokens that arrived in the second half of a run, once the cache is warm."""
    late = (run.arrival_s > run.end_s / 2) & ~np.isnan(run.first_token_s)
    hits = run.found.hit_tokens[late].sum() if run.found is not None else 0
    return float(hits / max(requests.input_tokens[late].sum(), 1))


def _overflow(chance: float | None, runs: Sequence[Outcome], memory_tokens: int) -> Compared:
    """Share of iterations in which usage would exceed memory, if nothing were held back."""
    least = memory_tokens // runs[0].bin_tokens + 1
    above = [int(run.kv_histogram[least:].sum()) for run in runs]
    shares = [found / max(run.iterations, 1) for found, run in zip(above, runs, strict=True)]
    row = _row(SIMULATED_OVERFLOW, chance, shares, TAIL_FACTOR)
    return row if sum(above) >= _LEAST_EVENTS else row._replace(agrees=None)


def _compared(figure: str, formula: float | None, runs: Sequence[Steady | None], key: str) -> Compared:
    known = [getattr(run, key) for run in runs if run is not None]
    if len(known) < len(runs):
        return Compared(figure, formula, None, None, None)
    return _row(figure, formula, known, 1 + TOLERANCE)


def _row(figure: str, formula: float | None, values: Sequence[float], factor: float) -> Compared:
    mean, interval = math.fsum(values) / len(values), over_runs(values)
    agrees = None if formula is None else agreement(*(interval or (mean, mean)), formula, factor)
    return Compared(figure, formula, mean, interval, agrees)


def agreement(low: float, high: float, formula: float, factor: float) -> bool | None:
    """Whether all that simulations leave open is near a formula, or none of it; None where they cannot tell.

    Near is up to `factor` times the formula, and down to a part of it, one in `factor`.

    Examples
    --------
    >>> [agreement(low, high, 100.0, 1.03) for low, high in ((98, 102), (91, 96), (90, 110), (99, 104))]
    [True, False, None, None]
    """
    least, most = formula / factor, formula * factor
    if least <= low and high <= most:
        return True
    return False if high < least or low > most else None
