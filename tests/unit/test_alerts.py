"""Alerts and queries on made-up series of two replicas, by promtool; numbers of the plan are those of `operated`."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import promtool
from every import every
from operated import CHAT, OPERATIONS, documents, queries

BEHIND_ROUTER = replace(CHAT, pool="pool", router_counts=True)
STEPS, END_S = 100, 1500  # of 15 s
ALL = {
    "KvplanLoadAboveGoodput",
    "KvplanInFlightAbovePlan",
    "KvplanRequestsStayLonger",
    "KvplanPreemptions",
    "KvplanPrefixCacheCollapse",
    "KvplanQueueGrows",
}


def grows(each_step: float, start: float = 0.0) -> str:
    return f"{start}+{each_step}x{STEPS}"


# at the goodput: 2.4 requests/s arrive at each replica, 36 in 15 s, and stay 10 s; 4 of 5 prompt tokens are found
CALM = {
    "vllm:num_requests_running": grows(0, 23),
    "vllm:num_requests_waiting": grows(0, 1),
    "vllm:request_success_total": grows(36),
    "vllm:prefix_cache_hits_total": grows(8000),
    "vllm:prefix_cache_queries_total": grows(10_000),
    "vllm:num_preemptions_total": grows(1.5),
}


def series(changed: Mapping[str, str], both: bool) -> dict[str, str]:
    """Two replicas, one or both changed."""
    return {
        f'{metric}{{job="vllm",instance="{name}"}}': values
        for name, own in (("a", {**CALM, **changed}), ("b", {**CALM, **changed} if both else CALM))
        for metric, values in own.items()
    }


CASES: list[tuple[set[str], dict[str, str]]] = [
    (set(), {}),
    (set(), {"vllm:request_success_total": grows(36 * 1.08)}),
    ({"KvplanLoadAboveGoodput"}, {"vllm:request_success_total": grows(36 * 1.15)}),
    # 2 finish in a second, and in 15 s 12 more are there than before: 2.8 arrive
    (
        {"KvplanLoadAboveGoodput", "KvplanInFlightAbovePlan", "KvplanRequestsStayLonger"},
        {"vllm:request_success_total": grows(30), "vllm:num_requests_running": grows(12, 20)},
    ),
    (
        {"KvplanInFlightAbovePlan", "KvplanRequestsStayLonger"},
        {"vllm:num_requests_running": grows(0, 38)},
    ),
    (set(), {"vllm:num_requests_running": grows(0, 32)}),
    ({"KvplanRequestsStayLonger"}, {"vllm:request_success_total": grows(22)}),  # 24 / (22 / 15) = 16.4 s
    ({"KvplanPreemptions"}, {"vllm:num_preemptions_total": grows(4.6)}),  # of 30 in five minutes, 92
    (set(), {"vllm:num_preemptions_total": grows(4.4)}),
    (
        {"KvplanPrefixCacheCollapse"},
        {"vllm:prefix_cache_hits_total": grows(3900), "vllm:num_requests_waiting": grows(0, 2)},
    ),
    (set(), {"vllm:prefix_cache_hits_total": grows(4100), "vllm:num_requests_waiting": grows(0, 2)}),
    (set(), {"vllm:prefix_cache_hits_total": grows(0)}),
    # 2 s · 2.4 requests/s = 4.8
    (
        {"KvplanQueueGrows"},
        {"vllm:num_requests_waiting": grows(0.05, 4.9), "vllm:num_requests_running": grows(0, 20)},
    ),
    (set(), {"vllm:num_requests_waiting": grows(0, 6), "vllm:num_requests_running": grows(0, 20)}),
]


def test_an_alert_fires_beyond_its_threshold_and_not_before(tmp_path: Path) -> None:
    (rule,) = documents("prometheus", OPERATIONS, CHAT)
    alerts = 'count by (alertname) (ALERTS{alertstate="firing"})'
    of_each = {"KvplanInFlightAbovePlan", "KvplanPreemptions", "KvplanPrefixCacheCollapse"}
    cases = []
    for fires, changed in CASES:
        expected = {f'{{alertname="{name}"}}': 2.0 if name in of_each else 1.0 for name in fires}
        cases.append(promtool.Case(series(changed, both=True), {alerts: expected}, END_S))
    promtool.expect(cases, tmp_path, groups=rule["spec"]["groups"])


@every("name", sorted(ALL))
def test_an_alert_says_what_it_means_and_where_to_read_on(name: str) -> None:
    (rule,) = documents("prometheus", OPERATIONS, CHAT)
    (alert,) = [each for group in rule["spec"]["groups"] for each in group["rules"] if each["alert"] == name]
    page = (Path(__file__).resolve().parents[2] / "docs" / "operate.md").read_text("utf-8")
    assert f"\n### {name}\n" in page
    assert alert["annotations"]["runbook"] == f"docs/operate.md#{name.lower()}"
    assert all(len(alert["annotations"][key]) > 30 for key in ("summary", "description"))


def test_one_replica_is_told_from_another(tmp_path: Path) -> None:
    (rule,) = documents("prometheus", OPERATIONS, CHAT)
    lost = {"vllm:prefix_cache_hits_total": grows(0), "vllm:num_requests_waiting": grows(0, 3)}
    expected = {'count by (instance) (ALERTS{alertstate="firing"})': {'{instance="a"}': 1.0}}
    case = promtool.Case(series(lost, both=False), expected, END_S)
    promtool.expect([case], tmp_path, groups=rule["spec"]["groups"])


def test_a_collapse_is_seen_where_the_router_holds_the_queue(tmp_path: Path) -> None:
    """The engines have nobody waiting; the router holds 3 for 2 replicas, 1.5 for each, or 1 for each."""
    (rule,) = documents("prometheus", OPERATIONS, BEHIND_ROUTER)
    lost = {"vllm:prefix_cache_hits_total": grows(0), "vllm:num_requests_waiting": grows(0, 0)}
    queue = 'llm_d_epp_flow_control_queue_size{namespace="llm",inference_pool="pool"}'
    alerts = 'count by (alertname) (ALERTS{alertname=~".*Collapse",alertstate="firing"})'
    promtool.expect(
        [
            promtool.Case(series(lost, both=True) | {queue: grows(0, held)}, {alerts: firing}, END_S)
            for held, firing in ((3, {'{alertname="KvplanPrefixCacheCollapse"}': 2.0}), (2, {}))
        ],
        tmp_path,
        groups=rule["spec"]["groups"],
    )


def test_arrivals_are_what_finishes_and_what_is_added(tmp_path: Path) -> None:
    """At two replicas 2 · 30 finish in 15 s, 2 · 3 begin and 2 · 1.5 queue beside those before: 4.6 a second."""
    changed = {
        "vllm:request_success_total": grows(30),
        "vllm:num_requests_running": grows(3, 10),
        "vllm:num_requests_waiting": grows(1.5, 2),
    }
    arrivals, _ = queries("keda", OPERATIONS, CHAT)
    expected = {f"round({arrivals}, 1e-6)": {"{}": 4.6}}
    promtool.expect([promtool.Case(series(changed, both=True), expected, 600)], tmp_path)


def test_the_router_counts_what_it_holds(tmp_path: Path) -> None:
    arrivals, in_flight = queries("keda", OPERATIONS, BEHIND_ROUTER)
    of_router = {
        'llm_d_epp_request_total{namespace="llm",service="pool-epp",fairness_id="x"}': grows(75),
        'llm_d_epp_request_total{namespace="llm",service="pool-epp",fairness_id="y"}': grows(15),
        'llm_d_epp_request_total{namespace="llm",service="other-epp"}': grows(1000),
        'llm_d_epp_flow_control_queue_size{namespace="llm",inference_pool="pool"}': grows(0, 7),
    }
    both = series({}, both=True)
    held = promtool.Case(both | of_router, {arrivals: {"{}": 6.0}, in_flight: {"{}": 55.0}}, 600)
    before_any_queued = promtool.Case(both, {in_flight: {"{}": 48.0}}, 600)
    promtool.expect([held, before_any_queued], tmp_path)
