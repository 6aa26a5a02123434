"""Runs of theory §13's example, block by block: prompts that are asked for again, behind a host tier."""

from typing import NamedTuple

import numpy as np
from cached_runs import run_cached

from kvplan.model import Replica, RequestClass, ServingModel, Timing
from kvplan.model.gaps import Exponential, Gap
from kvplan.model.replica import Offload
from kvplan.model.sessions import Reuse
from kvplan.simulation.outcome import Outcome
from kvplan.simulation.requests import Requests
from kvplan.simulation.sessions import heads, with_reuse

GPU_TOKENS = 400_000


def model(rate: float, tier: Offload | None, gap: Gap = Exponential(60.0)) -> ServingModel:  # noqa: B008
    """3,000 tokens in and 200 out, of which 2,992 are asked for again with probability 0.8."""
    one = RequestClass("a", 3000, (200,), (1.0,), rate, reuse=Reuse(3000, 0.8, gap))
    return ServingModel((one,), Timing(12e-3, 1e-7, 60e-6), Replica(GPU_TOKENS, 16, offload=tier))


class Served(NamedTuple):
    """Requests that arrived after a time: what was found of their prompts, and of it on the host; and rates since."""

    hit_ratio: float
    host_hit_ratio: float
    arrived_rps: float
    rate_rps: float
    waiting: float
    ttft_s: float
    outcome: Outcome


def serve(
    some: ServingModel, horizon_s: float, *, after_s: float, seed: int, burst: int = 0, **settings: float
) -> Served:
    """Serve them from an empty replica, with a burst of others at the start."""
    rng = np.random.default_rng(seed)
    first = heads(some)
    count = rng.poisson(first.total_rate_rps * horizon_s)
    arrival = np.concatenate([np.zeros(burst), np.sort(rng.random(count)) * horizon_s])
    none = np.zeros(arrival.size, dtype=np.int64)
    requests = with_reuse(
        Requests(arrival, none, none, none, more_later=True), some, rng, horizon_s=horizon_s
    )
    outcome, found = run_cached(requests, some.timing, some.replica, horizon_s, **settings)
    late = (outcome.arrival_s > after_s) & np.isfinite(outcome.first_token_s)
    tokens = max(int(requests.input_tokens[late].sum()), 1)
    loaded = np.zeros(late.size) if found.loaded_tokens is None else found.loaded_tokens
    records = outcome.series.time_s > after_s
    return Served(
        hit_ratio=float(found.hit_tokens[late].sum() / tokens),
        host_hit_ratio=float(loaded[late].sum() / tokens),
        arrived_rps=float(np.count_nonzero(outcome.arrival_s > after_s) / (horizon_s - after_s)),
        rate_rps=float(np.count_nonzero(outcome.finish_s > after_s) / (horizon_s - after_s)),
        waiting=float(outcome.series.waiting[records].mean()),
        ttft_s=float(np.mean((outcome.first_token_s - outcome.arrival_s)[late])) if late.any() else np.inf,
        outcome=outcome,
    )
