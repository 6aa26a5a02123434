"""A measured episode of llm-d's latency rule, simulated, and what is derived for the same load.

llm-d, guide "SLO-Aware Autoscaling with KEDA and Predicted Latency", July 2026: Qwen3-32B, TP2 on H100, TTFT within 3 s
and TPOT within 100 ms, 3 to 8 replicas that load for 100 s. Measured: 95.8 % within both at 5.93 replicas in the mean,
85.6 % while its predictor was cold; all of them with 8 replicas.

The timing is that of `kvplan plan Qwen3-32B --gpu H100 --tp 2 --weights bf16`, an estimate, times 1.16: as in the guide
three replicas then come to the threshold at 4 requests/s. This number alone was fitted.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest

from kvplan.profile.reading import parse_profile
from kvplan.simulation.fleet.scaling import Control, HorizontalPodAutoscaler, LatencyRule, Metric, Watch
from kvplan.study.fleet_day import FleetDay
from kvplan.study.operations import derive, service_of
from kvplan.study.trial import stretched

LEAST, MOST, LOAD_S, SCRAPE_S = 3, 8, 100.0, 5.0
STEPS = {0: 0.2, 330: 0.4, 690: 0.6, 1050: 0.8, 1410: 1.0, 1770: 0.4, 2130: 0.1}
PERIOD_S = 2430
PROFILE = f"""
schema = 1
name = "Qwen3-32B on 2 x H100 SXM"
gpu = {{ memory_tokens = 330_256, block_tokens = 16, gpus = 2, max_num_seqs = 256, max_num_batched_tokens = 8192 }}
fleet = {{ replicas = 8, routing = "least-requests" }}
slo = {{ ttft_s.p95 = "3 s", tpot_s.p95 = "0.1 s" }}

[timing]
d0 = "13.88 ms"
d1 = "0.04603 us"
d2 = "6.554 us"
d3 = "9.454 us"
d5 = "48.67 us"
d6 = "2.119 ns"
knee_tokens = 231
request_overhead = "22.83 ms"

[[classes]]
name = "requests"
input = {{ lognormal = {{ mean = 4000, cv = 0.1 }} }}
decode = {{ lognormal = {{ mean = 1000, cv = 0.1 }} }}
rate = 10.0

[workload]
period = "{PERIOD_S} s"
schedule = [{", ".join(f'{{ at = "{at} s", factor = {factor} }}' for at, factor in STEPS.items())}]
"""


@cache
def episode() -> FleetDay:
    given = parse_profile(PROFILE.encode(), "qwen.toml", Path())
    return service_of(replace(given.model, timing=stretched(given.model.timing, 1.16)), given.plan)


class Seen(NamedTuple):
    """Means over ten episodes."""

    within: float
    replicas: float


def seen(control: Callable[[], Control], first: int = LEAST) -> Seen:
    day = episode()
    runs = [day.run(day.scenario(seed), control(), first, MOST, LOAD_S) for seed in range(10)]
    replicas = np.mean([run.gpu_hours for run in runs]) / 2 * 3600 / PERIOD_S
    return Seen(float(np.mean([run.within for run in runs])), float(replicas))


@cache
def by_the_rule() -> Seen:
    return seen(partial(LatencyRule, episode().limits, LEAST, MOST, SCRAPE_S))


def test_the_rule_keeps_what_was_measured_at_as_many_replicas() -> None:
    """Between a cold predictor and a warm one; half a replica more or less."""
    assert seen(Watch, MOST).within > 0.999
    assert 0.856 <= by_the_rule().within <= 0.958
    assert by_the_rule().replicas == pytest.approx(5.93, abs=0.5)


@pytest.mark.nightly
def test_what_is_derived_keeps_more_at_no_more_replicas() -> None:
    found = derive(episode(), headroom=0.4, load_s=LOAD_S, scrape_s=SCRAPE_S)
    assert found is not None
    triggers = {Metric.ARRIVALS: found.arrivals_rps, Metric.IN_FLIGHT: found.in_flight}
    control = partial(HorizontalPodAutoscaler, triggers, LEAST, MOST, found.scale_down_s, SCRAPE_S)
    derived = seen(control)
    assert derived.within >= 0.99 - 0.002  # ten episodes are that sure
    assert derived.replicas <= by_the_rule().replicas
