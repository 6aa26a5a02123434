"""Random profiles of sessions whose verdicts are judged by a block-exact simulation: does `stable` drain after a burst?

    PYTHONPATH=tests python tests/session_campaign.py --profiles 300 --processes 2

A profile follows from its number. Beside the sessions that come anyway, so many begin at once that they fill memory
twice over. Where the verdict is `stable` the queue that they leave has to be gone in the end. Where a collapse is
possible the cap and the patience that the report names are tried on the same burst; how often they bring the warm
cache back is counted, and is no theorem.
"""

import argparse
import math
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from multiprocessing import get_context

import numpy as np

from kvplan.analysis.cache_states import cached_replica
from kvplan.analysis.equilibrium import sustainable_rate
from kvplan.model import Plan, Prompt, Replica, RequestClass, ServingModel, Timing
from kvplan.model.gaps import Exponential, Gap, Lognormal
from kvplan.model.lengths import Lengths
from kvplan.model.sessions import Sessions
from kvplan.report.assembly import Analyses
from kvplan.report.words import Status
from kvplan.simulation.experiments.load import Arrivals, Load, generate
from kvplan.simulation.experiments.runner import Job
from kvplan.simulation.outcome import Outcome
from kvplan.simulation.policies.protocol import Scenario, Settings
from kvplan.simulation.sessions import Burst
from kvplan.study.protection import protection

_MOST_TURNS = 300_000, 1_200_000  # of a run, and of one that is made again because its queue was not gone yet
_TIMES = 4  # what the burst should take to drain, if its rate is right
_SPARE = 0.02  # of the rate at least, where there is little left to drain with
_LATE = 0.8  # of a run, from where on it is judged
_WAITING = 0.05  # of those running, whom a queue that is gone may have in it
_NEAR = 0.05  # of the hit ratio, within which the warm cache is back


def profile(number: int) -> ServingModel:
    """The profile of a number."""
    rng = np.random.default_rng([number, 18])
    first, user, decode = (round(_log_uniform(rng, *ends)) for ends in ((200, 10_000), (50, 2000), (20, 400)))
    turns = _lengths(rng, round(_log_uniform(rng, 2, 20)), 40)
    think: Gap = (
        Exponential(_log_uniform(rng, 2, 60))
        if rng.random() < 0.5
        else Lognormal(_log_uniform(rng, 2, 60), rng.uniform(0.3, 1.5))
    )
    shared = round(_log_uniform(rng, 100, 4000)) if rng.random() < 0.5 else 0
    lengths = (_lengths(rng, mean, 4 * mean) for mean in (first, user, decode))
    law = Sessions(*lengths, turns, think, shared)
    block = int(rng.choice([1, 16]))
    one = RequestClass(
        name="agent",
        input_tokens=round(sum(share * tokens for share, tokens in law.prompts)),
        decode_tokens=tuple(law.decode.at_most(64).values.tolist()),
        decode_weights=tuple(law.decode.at_most(64).weights.tolist()),
        rate_rps=1.0,
        sessions=law,
        prompts=tuple(Prompt(round(tokens), share) for share, tokens in law.prompts),
    )
    memory = max(round(_log_uniform(rng, 60, 1500) * one.input_tokens), 2 * law.longest + 4 * block)
    d0 = _log_uniform(rng, 0.005, 0.04)
    full = ServingModel((one,), Timing(d0), Replica(memory, block))
    admitted = sustainable_rate(full)[1] * d0
    timing = Timing(
        d0,
        d1=d0 * _log_uniform(rng, 0.05, 3) / memory,
        d2=d0 * _log_uniform(rng, 0.1, 20) / (admitted * one.input_tokens),
        d3=d0 * _log_uniform(rng, 0.01, 0.5) / max(memory / one.input_tokens, 1),
    )
    model = replace(full, timing=timing)
    rate = rng.uniform(0.3, 1.15) * sustainable_rate(model)[1]
    return replace(model, classes=(replace(one, rate_rps=rate),))


def _lengths(rng: np.random.Generator, mean: int, most: int) -> Lengths:
    match rng.integers(3):
        case 0:
            return Lengths.of({max(mean, 1): 1.0})
        case 1:
            return Lengths.uniform(max(1, mean // 2), max(1, min(most, mean + mean // 2)))
        case _:
            return Lengths.uniform(1, max(1, 2 * mean - 1))


def _log_uniform(rng: np.random.Generator, low: float, high: float) -> float:
    return float(np.exp(rng.uniform(math.log(low), math.log(high))))


@dataclass(frozen=True)
class Judged:
    """A profile's verdict, and what became of a burst; `back` None where no cap was tried."""

    number: int
    status: Status
    streams: float
    drained: bool
    back: bool | None = None


def judge(number: int) -> Judged:
    """Simulate a burst on a profile, and where it can collapse, what the report names against it."""
    model = profile(number)
    found = Analyses(model, Plan())
    cache, status = found.prefix_cache, found.status
    assert cache is not None
    streams = cached_replica(model).replica.capacity_tokens / cached_replica(model).left
    law = model.classes[0].sessions
    assert law is not None
    extra = max(2, round(2 * streams))
    rate = model.total_rate_rps
    spare = max((found.recovery.rate_rps or 0.0) - rate, _SPARE * rate)
    for most in _MOST_TURNS:
        horizon = min(_TIMES * extra * law.turns.mean / spare, most / rate)
        horizon = max(horizon, 20 * law.turns.longest * law.think.mean_s)
        load = Load(Arrivals.POISSON, None, horizon, burst_sessions=Burst(extra))
        scenario = Scenario(model, Plan(), generate(model, load, number), ("agent",))
        drained = _drained(_run(scenario, {}, horizon))
        if drained or status is not Status.STABLE:
            break
    back = None
    if cache.collapse_possible and cache.hit_ratio is not None and status is Status.NEEDS_CAP:
        limits = protection(model, Plan())
        if limits is not None:
            given = {setting.name: (float(setting.value),) for setting in limits.settings}
            tried = _run(scenario, given, horizon)
            back = abs(_hit_ratio(scenario, tried) - cache.hit_ratio) < _NEAR
    return Judged(number, status, streams, drained, back)


def _run(scenario: Scenario, given: dict[str, tuple[float, ...]], horizon_s: float) -> Outcome:
    return Job(Settings("vllm", given), scenario, horizon_s).run(lambda _: True, None, True)


def _drained(run: Outcome) -> bool:
    series = run.series
    late = series.time_s > _LATE * series.time_s[-1]
    return bool(np.median(series.waiting[late]) <= max(1.0, _WAITING * np.median(series.running[late])))


def _hit_ratio(scenario: Scenario, run: Outcome) -> float:
    late = (run.arrival_s > _LATE * run.end_s) & ~np.isnan(run.first_token_s)
    assert run.found is not None
    return float(run.found.hit_tokens[late].sum() / max(scenario.requests.input_tokens[late].sum(), 1))


def main() -> None:
    """Judge profiles and print what was found, refuted verdicts one by one."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--profiles", type=int, default=300)
    parser.add_argument("--processes", type=int, default=2)
    given = parser.parse_args()
    counts: Counter[str] = Counter()
    with ProcessPoolExecutor(given.processes, get_context("spawn")) as pool:
        for one in pool.map(judge, range(given.first, given.first + given.profiles)):
            counts[f"{one.status}, burst {'drained' if one.drained else 'not drained'}"] += 1
            if one.back is not None:
                counts[f"cap and patience: {'warm again' if one.back else 'not warm again'}"] += 1
            if (one.status is Status.STABLE and not one.drained) or one.back is False:
                print(one, flush=True)
    for what, count in sorted(counts.items()):
        print(f"{count:5}  {what}")


if __name__ == "__main__":
    main()
