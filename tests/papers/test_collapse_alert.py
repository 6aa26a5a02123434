"""The alert on collapsed prefix caches, by Prometheus on series of simulated replicas: agents, and bursts of sessions.

Bursts of about 140 sessions are at the separatrix: some of them collapse, some do not, and some do so after a while.
"""

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import promtool
import pytest
from operated import CHAT, OPERATIONS, PLANNED, documents
from shipped import profile
from tiers import at_night

from kvplan.model.slo import parse_slo
from kvplan.simulation.experiments.load import Load
from kvplan.simulation.experiments.options import chosen
from kvplan.simulation.experiments.study import study
from kvplan.simulation.sessions import Burst
from kvplan.study.operations import Planned, derive, service_of

BURST_S, END_S = 1800, 5400
TTFT_S = 2.0
SIZES = [60, 80, 90, 100, 110, 120, 130, 140, 150, 160, 180, 300, 600]
WITHIN_S = 300
AT_ONCE = 25  # replicas: promtool loads 10,000 samples at most
STEPS = np.arange(promtool.STEP_S, END_S + 1, promtool.STEP_S)


class Replica(NamedTuple):
    """What Prometheus sees of a run, a sample each step, and what became of it."""

    running: list[int]
    waiting: list[int]
    hits: list[int]
    looked_up: list[int]
    finished: list[int]
    late: float  # share of those that came after the burst
    collapsed: bool  # nothing was found any more at the end, while requests queued
    begin_s: int  # since when the queue has not been empty, at the earliest the burst


@cache
def replica(sessions: int, seed: int) -> Replica:
    agents = profile("agents-collapse")
    load = Load(requests=None, horizon_s=float(END_S), burst_sessions=Burst(sessions, BURST_S))
    policies = chosen(["vllm"], (), [])
    ((requests, run),) = study(agents.model, agents.plan, load, policies, range(seed, seed + 1)).runs[0]
    assert run.found is not None
    record = np.searchsorted(run.series.time_s, STEPS, side="right") - 1
    waiting = run.series.waiting[record]
    order = np.argsort(run.first_token_s)  # those that never came to it are last
    seen = np.searchsorted(run.first_token_s[order], STEPS, side="right")
    hits, looked_up = (
        np.concatenate([[0], np.cumsum(tokens[order])])[seen]
        for tokens in (run.found.hit_tokens, requests.input_tokens)
    )
    after = (run.arrival_s > BURST_S) & (run.arrival_s < END_S - TTFT_S)
    minute = int(60 / promtool.STEP_S)
    found = (hits[-1] - hits[-10 * minute]) / (looked_up[-1] - looked_up[-10 * minute])
    return Replica(
        run.series.running[record].tolist(),
        waiting.tolist(),
        hits.tolist(),
        looked_up.tolist(),
        np.searchsorted(np.sort(run.finish_s), STEPS, side="right").tolist(),
        late=float(np.mean(~(run.first_token_s - run.arrival_s <= TTFT_S)[after])),
        collapsed=bool(found < 0.1 and waiting[-1] > 50),
        begin_s=max(int(STEPS[waiting == 0][-1]), BURST_S),
    )


def steady() -> Planned:
    """What the profile's own rate shows without a burst."""
    calm = replica(0, 99)
    minutes = np.reshape(calm.waiting, (-1, 4)).mean(axis=1)
    rate = (calm.hits[-1] - calm.hits[60]) / (calm.looked_up[-1] - calm.looked_up[60])
    return PLANNED._replace(hit_rate=rate, waiting_p99=float(np.quantile(minutes, 0.99)))


def at_goodput() -> Planned:
    agents = profile("agents-collapse").with_slos([parse_slo("ttft-p95=2s")])
    operations = derive(service_of(agents.model, agents.plan), headroom=0.0)
    assert operations is not None
    return operations.planned


def series_of(replicas: dict[str, Replica]) -> dict[str, Any]:
    columns = {
        "vllm:num_requests_running": "running",
        "vllm:num_requests_waiting": "waiting",
        "vllm:prefix_cache_hits_total": "hits",
        "vllm:prefix_cache_queries_total": "looked_up",
        "vllm:request_success_total": "finished",
    }
    series: dict[str, Any] = {
        f'{metric}{{job="vllm",instance="{name}"}}': getattr(each, column)
        for name, each in replicas.items()
        for metric, column in columns.items()
    }
    return series | {
        f'begin_s{{instance="{name}"}}': f"{each.begin_s}x{STEPS.size}" for name, each in replicas.items()
    }


@pytest.mark.parametrize("case", [(steady, 2), *at_night((steady, 25), (at_goodput, 25))])
def test_it_fires_in_every_collapse_and_in_no_recovery(
    case: tuple[Callable[[], Planned], int], tmp_path: Path
) -> None:
    """Within five minutes from when the queue is no longer empty; recoveries are those with hardly a late request."""
    planned, seeds = case
    replicas = {f"{size}-{seed}": replica(size, seed) for size in SIZES for seed in range(seeds)}
    collapses = {name for name, each in replicas.items() if each.collapsed}
    recoveries = {name for name, each in replicas.items() if not each.collapsed and each.late < 0.01}
    assert min(len(collapses), len(recoveries)) >= 10
    near = [
        {name for name in some if 110 <= int(name.partition("-")[0]) <= 180}
        for some in (collapses, recoveries)
    ]
    assert min(map(len, near)) >= 3
    (rule,) = documents("prometheus", OPERATIONS._replace(planned=planned()), CHAT)
    fires = 'ALERTS{alertname="KvplanPrefixCacheCollapse",alertstate="firing"}'
    first = f"min by (instance) (min_over_time(timestamp({fires})[{END_S}s:{promtool.STEP_S}s]))"
    judged = sorted(collapses | recoveries)
    for begin in range(0, len(judged), AT_ONCE):
        some = judged[begin : begin + AT_ONCE]
        in_time = {f'{{instance="{name}"}}': 1.0 for name in some if name in collapses}
        case = promtool.Case(
            series_of({name: replicas[name] for name in some}),
            {f"{first} - on (instance) begin_s <= bool {WITHIN_S}": in_time},
            END_S,
        )
        promtool.expect([case], tmp_path, groups=rule["spec"]["groups"])
