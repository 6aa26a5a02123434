"""Figures that services are operated by, made up, and what is written of them."""

import json
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema
import kubernetes_validate
import numpy as np
import yaml

from kvplan.emit.service import METRICS, Service, lack
from kvplan.engine import EngineName
from kvplan.model import Plan
from kvplan.model.fleet import Routing
from kvplan.model.slo import parse_slo
from kvplan.options import Target
from kvplan.show import manifest
from kvplan.study.operations import Operations, Planned, Replicas

TARGETS = [target for target in Target if target.value not in list(EngineName)]
CHAT = Service(
    name="chat",
    metrics=METRICS[EngineName.VLLM],
    namespace="llm",
    selector='job="vllm"',
    prometheus="https://prometheus.example:9090",
    model="ibm/granite-13b",
)
PLAN = Plan(slos=(parse_slo("ttft-p95=2s"),))
PLANNED = Planned(
    running_p99=36.0,
    waiting_p99=1.4,
    in_flight=23.5,
    in_flight_p99=38.2,
    stay_s=10.0,
    preemptions_per_s=0.1,
    kv_usage=0.22,
    kv_usage_p99=0.43,
    queue_at_target=0.5,
    queue_p99=3.0,
    hit_rate=0.8,
)
OPERATIONS = Operations(
    good_rps=2.4,
    peak_replicas=8,
    headroom=0.1,
    arrivals_rps=2.4 / 1.1,
    in_flight=23.5 / 1.1,
    replicas=Replicas(2, 18, 12),
    scale_down_s=300.0,
    grace_s=41.2,
    router_cap=54,
    cap_why="1.5 times the 99th percentile of running",
    wait_s=2.0,
    wait_why="the objective on TTFT",
    load_s=120.0,
    planned=PLANNED,
    limits={"ttft_s": 2.0, "tpot_s": 0.05},
    routing=Routing.LEAST_REQUESTS,
    scrape_s=15.0,
    aim=0.995,
)


def generated(seed: int) -> Operations:
    """Draw figures, as far apart as those of profiles can be."""
    rng = np.random.default_rng(seed)

    def some(low: float, high: float) -> float:
        return float(np.exp(rng.uniform(np.log(low), np.log(high))))

    least = int(some(1, 300))
    most = least + int(some(1, 1000))
    kv_usage_p99, in_flight = float(rng.uniform(0.001, 1)), some(0.01, 5000)
    headroom, goodput = float(rng.choice([-0.3, -0.2, -0.1, 0, 0.1, 0.25, 0.5])), some(0.01, 1000)
    queue_p99 = float(rng.choice([0.0, some(0.1, 500)]))
    planned = Planned(
        running_p99=in_flight * 1.5,
        waiting_p99=queue_p99 / 2,
        in_flight=in_flight,
        in_flight_p99=in_flight * 1.6,
        stay_s=some(0.01, 5000),
        preemptions_per_s=float(rng.choice([0.0, some(1e-6, 10)])),
        kv_usage=kv_usage_p99 * float(rng.uniform(0, 1.1)),
        kv_usage_p99=kv_usage_p99,
        queue_at_target=queue_p99 * float(rng.uniform(0, 1.1)),
        queue_p99=queue_p99,
        hit_rate=None if rng.random() < 0.5 else float(rng.uniform(0.001, 1)),
    )
    load_s = some(1, 7200)
    return Operations(
        good_rps=goodput,
        peak_replicas=least,
        headroom=headroom,
        arrivals_rps=goodput / (1 + headroom),
        in_flight=in_flight / (1 + headroom),
        replicas=Replicas(least, most, (least + most) // 2),
        scale_down_s=max(300.0, load_s),
        grace_s=some(0.1, 20_000),
        router_cap=int(some(1, 5000)),
        cap_why="3/4 of the separatrix: 'why' # of it",
        wait_s=None if rng.random() < 0.3 else some(0.001, 3600),
        wait_why="the objective on TTFT",
        load_s=load_s,
        planned=planned,
        limits={"ttft_s": some(0.001, 3600)},
        routing=Routing.SESSION if rng.random() < 0.3 else Routing.LEAST_REQUESTS,
        scrape_s=some(0.5, 290),
        aim=0.995,
    )


def written(target: str, operations: Operations, service: Service) -> str:
    """Write a target as `kvplan emit` does."""
    asked = Target(target)
    assert lack(asked, service) is None
    return manifest.text(asked, operations, service, PLAN, name="a 'chat' # \n--- x: y", sha256="5e6f" * 16)


def documents(target: str, operations: Operations, service: Service) -> list[Any]:
    """Read again what was written."""
    return list(yaml.load_all(written(target, operations, service), yaml.CSafeLoader))


@cache
def _schemas() -> dict[str, Any]:
    schemas: dict[str, Any] = json.loads(Path(__file__).with_name("kubernetes.json").read_text("utf-8"))
    return schemas


def check_schema(kind: str, document: Any) -> None:
    jsonschema.Draft202012Validator({**_schemas(), "$ref": f"#/{kind}"}).validate(document)


def check_kubernetes(document: Any) -> None:
    kubernetes_validate.validate(document, "1.30", strict=True)


def queries(target: str, operations: Operations, service: Service) -> list[str]:
    """What a target asks Prometheus for, beside the expressions of alerts."""
    first, *more = documents(target, operations, service)
    if target in ("keda", "latency"):
        return [trigger["metadata"]["query"] for trigger in first["spec"]["triggers"]]
    rules = yaml.safe_load(more[0]["data"]["config.yaml"])["externalRules"]
    return [rule[key] for rule in rules for key in ("seriesQuery", "metricsQuery")]


def check_written(target: str, operations: Operations, service: Service) -> None:
    """Validate all documents of a target, those inside others, and what schemas do not say."""
    first, *more = documents(target, operations, service)
    match target:
        case "keda" | "latency":
            check_schema("ScaledObject", first)
            spec = first["spec"]
            assert 1 <= spec["minReplicaCount"] <= spec["fallback"]["replicas"] <= spec["maxReplicaCount"]
            assert all(float(trigger["metadata"]["threshold"]) > 0 for trigger in spec["triggers"])
        case "hpa":
            check_kubernetes(first)
            (rules,) = more
            check_kubernetes(rules)
            config = yaml.safe_load(rules["data"]["config.yaml"])
            check_schema("AdapterRules", config)
            made = [rule["name"]["as"] for rule in config["externalRules"]]
            assert made == [metric["external"]["metric"]["name"] for metric in first["spec"]["metrics"]]
            assert 1 <= first["spec"]["minReplicas"] <= first["spec"]["maxReplicas"]
        case "epp":
            check_schema("EndpointPickerConfig", first)
            plugins = {plugin.get("name", plugin["type"]) for plugin in first["plugins"]}
            referred = {each["pluginRef"] for row in first["schedulingProfiles"] for each in row["plugins"]}
            assert referred | {first["flowControl"]["saturationDetector"]["pluginRef"]} <= plugins
        case "wva":
            check_kubernetes(first)
            assert set("".join(first["data"])) <= set("abcdefghijklmnopqrstuvwxyz0123456789-_.")
            thresholds = yaml.safe_load(first["data"]["default"])
            check_schema("SaturationScalingConfig", thresholds)
            assert thresholds["kvCacheThreshold"] >= thresholds["kvSpareTrigger"]
            assert thresholds["queueLengthThreshold"] >= max(thresholds["queueSpareTrigger"], 1)
        case "prometheus":
            check_schema("PrometheusRule", first)
    assert target == "hpa" or not more
