"""What operates a service, as YAML: by the schemas of its readers, and with the numbers that were derived."""

import math
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import promtool
import pytest
import yaml
from every import check_every, every
from operated import (
    CHAT,
    OPERATIONS,
    PLANNED,
    TARGETS,
    check_schema,
    check_written,
    documents,
    generated,
    queries,
    written,
)
from tiers import is_night

from kvplan.emit.service import METRICS, lack, service
from kvplan.engine import EngineName
from kvplan.errors import UsageError
from kvplan.model.fleet import Routing
from kvplan.options import CountedBy, EmitOptions, Target
from kvplan.profile.reading import parse_profile
from kvplan.study.operations import derive, service_of

BEHIND_ROUTER = replace(CHAT, pool="pool", router_counts=True)
SGLANG = replace(CHAT, metrics=METRICS[EngineName.SGLANG], namespace=None)


def comments(text: str) -> dict[str, str]:
    """What stands beside a line with a value, or right above it, by its key; the last one of each."""
    found, above = {}, ""
    for line in text.splitlines():
        bare = line.strip()
        if bare.startswith("#"):
            above += bare.lstrip("# ") + " "
            continue
        value, _, beside = bare.partition("  # ")
        found[value.lstrip("- ").partition(":")[0]] = above + beside
        above = ""
    return found


@every("target", TARGETS)
def test_whatever_is_derived_is_written_as_its_reader_expects(target: str) -> None:
    many, few = (60, 5) if is_night() else (8, 2)  # the schemas of Kubernetes take their time
    check_every(range(many), lambda seed: check_written(target, generated(seed), CHAT))
    check_every(range(60, 60 + few), lambda seed: check_written(target, generated(seed), BEHIND_ROUTER))


def _profile(seed: int) -> str:
    """Write a service: requests, some that come again, or conversations; on a small or a large replica."""
    rng = np.random.default_rng(seed)
    prompt, answer = int(rng.integers(50, 4000)), int(rng.integers(5, 400))
    rate = float(np.exp(rng.uniform(np.log(0.3), np.log(6.0))))
    gap = '{ law = "exponential", mean = "30 s" }'
    reuse = f", reuse = {{ tokens = 0.8, share = 0.7, gap = {gap} }}" if seed % 3 == 1 else ""
    lengths = f"input = {prompt}, decode = {{ geometric = {answer} }}"
    traffic = f"classes = [{{ name = 'a', {lengths}, rate = {rate!r}{reuse} }}]"
    if seed % 3 == 2:
        turns = "user = 100, decode = { uniform = [5, 100] }, turns = { geometric = 5 }"
        traffic = (
            f"sessions = [{{ name = 's', rate = {rate / 5!r}, first = {prompt}, {turns}, think = {gap} }}]"
        )
    return f"""
        schema = 1
        name = "made up"
        gpu = {{ memory_tokens = {int(rng.integers(60_000, 600_000))}, block_tokens = 16, max_num_seqs = 256 }}
        timing = {{ d0 = "{rng.uniform(5, 30):.3g} ms", d1 = "0.05 us", d2 = "{rng.uniform(5, 60):.3g} us" }}
        {traffic}
        slo = {{ ttft_s.p95 = "{rng.uniform(1, 8):.3g} s" }}
    """


@pytest.mark.nightly
def test_generated_profiles_are_derived_and_written() -> None:
    """Some have no rate that meets their objectives."""
    derived = []

    def check(seed: int) -> None:
        given = parse_profile(_profile(seed).encode(), "made-up.toml", Path())
        operations = derive(service_of(given.model, given.plan), headroom=0.1)
        if operations is not None:
            derived.append(seed)
            check_every(TARGETS, lambda target: check_written(target, operations, CHAT))

    check_every(range(60), check)
    assert len(derived) >= 50


def test_sglang_is_scaled_too() -> None:
    check_every(["keda", "hpa"], lambda target: check_written(target, OPERATIONS, SGLANG))


@every(
    ("kind", "break_it"),
    [
        ("keda", lambda it: it["spec"].update(minReplicas=1)),
        ("keda", lambda it: it["spec"]["triggers"][0]["metadata"].update(threshold=2.5)),
        ("keda", lambda it: it["spec"]["triggers"][0]["metadata"].update(metricName="x")),
        ("prometheus", lambda it: it["spec"]["groups"][0]["rules"][0].update(annotation={})),
        ("prometheus", lambda it: it["spec"]["groups"][0].update(interval="15 s")),
        ("epp", lambda it: it["flowControl"].update(defaultRequestTtl="2s")),
        ("epp", lambda it: it["flowControl"].update(defaultRequestTTL="2")),
        ("epp", lambda it: it["plugins"][1]["parameters"].update(maxConcurrency="54")),
    ],
)
def test_the_schemas_refuse_what_their_readers_do(kind: str, break_it: Any) -> None:
    (document,) = documents(kind, OPERATIONS, CHAT)
    name = document["kind"]
    check_schema(name, document)
    break_it(document)
    with pytest.raises(jsonschema.ValidationError):
        check_schema(name, document)


def test_prometheus_reads_all_queries_and_alerts(tmp_path: Path) -> None:
    for some in (CHAT, BEHIND_ROUTER, SGLANG):
        targets = [each for each in ("keda", "hpa", "latency") if lack(Target(each), some) is None]
        asked = [query for target in targets for query in queries(target, OPERATIONS, some)]
        promtool.check_queries(asked, tmp_path)
    for some in (CHAT, BEHIND_ROUTER):
        (rule,) = documents("prometheus", OPERATIONS, some)
        promtool.check(rule["spec"]["groups"], tmp_path)


def test_keda_adds_a_replica_at_the_targets() -> None:
    (document,) = documents("keda", OPERATIONS, CHAT)
    spec = document["spec"]
    assert [trigger["metadata"]["threshold"] for trigger in spec["triggers"]] == ["2.182", "21.36"]
    assert {trigger["metricType"] for trigger in spec["triggers"]} == {"AverageValue"}
    assert {trigger["metadata"]["ignoreNullValues"] for trigger in spec["triggers"]} == {"false"}
    assert (spec["minReplicaCount"], spec["maxReplicaCount"]) == (2, 18)
    assert spec["fallback"] == {"failureThreshold": 4, "replicas": 12}
    behavior = spec["advanced"]["horizontalPodAutoscalerConfig"]["behavior"]
    assert behavior["scaleDown"]["stabilizationWindowSeconds"] == 300
    assert behavior["scaleDown"]["policies"] == [{"type": "Pods", "value": 1, "periodSeconds": 60}]
    assert behavior["scaleUp"]["stabilizationWindowSeconds"] == 0
    slow = OPERATIONS._replace(load_s=9000.0, scale_down_s=9000.0)
    (document,) = documents("keda", slow, CHAT)
    behavior = document["spec"]["advanced"]["horizontalPodAutoscalerConfig"]["behavior"]
    assert behavior["scaleDown"]["stabilizationWindowSeconds"] == 3600  # Kubernetes has no longer one


def test_the_latency_rule_adds_what_lacks_and_takes_what_is_too_much() -> None:
    """KEDA's formula in Python, which has the same operators but for the ternary; by hand as in llm-d's guide."""
    spec = documents("latency", OPERATIONS, CHAT)[0]["spec"]
    modifiers = spec["advanced"]["scalingModifiers"]
    assert (modifiers["target"], modifiers["metricType"]) == ("1", "AverageValue")
    assert [trigger["name"] for trigger in spec["triggers"]] == ["saturation", "replicas", "ready"]
    up, down, else_ = re.fullmatch(
        r"saturation > 0.55 \? (.+) : saturation < 0.4 \? (.+) : (.+)", modifiers["formula"]
    ).groups()
    loaded = "(ready > 0 && ready < replicas ? ready / replicas : 1)"
    up = up.replace(loaded, "(ready / replicas if 0 < ready < replicas else 1)")
    functions = {"ceil": math.ceil, "floor": math.floor}
    for expression, saturation, replicas, ready, wanted in (
        (up, 1.0, 3, 3, 6),
        (up, 1.0, 6, 4, 8),
        (up, 1.0, 3, 0, 6),
        (down, 0.2, 8, 8, 4),
        (else_, 0.5, 5, 5, 5),
    ):
        names = {"saturation": saturation, "replicas": replicas, "ready": ready}
        assert eval(expression, functions, names) == wanted


def test_latency_is_measured_against_its_limits(tmp_path: Path) -> None:
    """All between .5 and 1 s: the 90th percentile is .95 s of 2 s; that of TPOT is 47.5 of 50 ms; nobody: 0."""
    labels, router = 'job="vllm"', 'namespace="llm",service="pool-epp"'
    ttft = {"0.5": "0+0x40", "1": "0+15x40", "+Inf": "0+15x40"}
    tpot = {"0.025": "0+0x40", "0.05": "0+15x40", "+Inf": "0+15x40"}
    engines = {
        f'vllm:{name}_seconds_bucket{{{labels},le="{le}"}}': values
        for name, buckets in (("time_to_first_token", ttft), ("request_time_per_output_token", tpot))
        for le, values in buckets.items()
    }
    picker = {
        f'llm_d_epp_request_{name}_seconds_bucket{{{router},le="{le}"}}': values
        for name in ("ttft", "predicted_ttft")
        for le, values in (ttft if name == "ttft" else {"0.5": "0+0x40", "+Inf": "0+0x40"}).items()
    }
    cases = []
    for some, series, limits, ratio in (
        (CHAT, engines, {"ttft_s": 2.0, "tpot_s": 0.05}, 0.95),
        (CHAT, engines, {"ttft_s": 2.0}, 0.475),
        (CHAT, engines, {"ttft_s": 0.1}, 2),
        (CHAT, {}, {"ttft_s": 2.0}, 0),
        (BEHIND_ROUTER, picker, {"ttft_s": 2.0}, 0.475),  # nothing is predicted
    ):
        query = some.latency_queries(limits)["saturation"]
        cases.append(promtool.Case(series, {f"round({query}, 0.001)": {"{}": ratio}}, 600))
    promtool.expect(cases, tmp_path)


def test_hpa_has_the_targets_and_asks_what_keda_asks() -> None:
    autoscaler, _ = documents("hpa", OPERATIONS, CHAT)
    targets = [metric["external"]["target"] for metric in autoscaler["spec"]["metrics"]]
    assert targets == [
        {"type": "AverageValue", "averageValue": "2.182"},
        {"type": "AverageValue", "averageValue": "21.36"},
    ]
    assert set(queries("keda", OPERATIONS, CHAT)) < set(queries("hpa", OPERATIONS, CHAT))


def test_the_router_holds_what_replicas_may_not_have() -> None:
    (document,) = documents("epp", OPERATIONS, CHAT)
    detector = document["plugins"][1]["parameters"]
    assert (detector["maxConcurrency"], detector["headroom"]) == (54, 0)
    bounds = document["flowControl"]
    assert float(bounds["defaultRequestTTL"].removesuffix("s")) == 2
    assert bounds["noEndpointRequestTTL"] == "120s"
    assert bounds["maxRequests"] == str(round(18 * (2.0 * 2.4 + 54)))
    assert document["featureGates"] == ["flowControl"]
    text = written("epp", OPERATIONS._replace(wait_s=None), CHAT)
    bounds = yaml.safe_load(text)["flowControl"]
    assert set(bounds) == {"saturationDetector", "noEndpointRequestTTL"}
    assert "60 s by default" in comments(text)["flowControl"]


def test_thresholds_leave_room_for_the_targets() -> None:
    (document,) = documents("wva", OPERATIONS, CHAT)
    assert yaml.safe_load(document["data"]["default"]) == {
        "model_id": "ibm/granite-13b",
        "namespace": "llm",
        "kvCacheThreshold": 0.43,
        "queueLengthThreshold": 3,
        "kvSpareTrigger": 0.21,
        "queueSpareTrigger": 2.5,
    }
    assert document["metadata"] == {"name": "wva-saturation-scaling-config", "namespace": "llm"}
    assert "deprecated upstream" in written("wva", OPERATIONS, CHAT)


@every("target", TARGETS)
def test_every_number_has_its_reason(target: str) -> None:
    text = written(target, OPERATIONS, CHAT)
    said = comments(text)
    without = {  # counted in seconds beside a number that is explained, or plain
        "weight",
        "periodSeconds",
        "stabilizationWindowSeconds",
        "value",
        "for",
        "interval",
    }
    numbers = {
        line.strip().lstrip("- ").partition(":")[0]
        for line in text.splitlines()
        if line.partition(": ")[2].strip("'")[:1].isdigit() and not line.strip().startswith("#")
    }
    assert numbers - without <= {key for key, why in said.items() if why}


def test_a_name_stays_in_its_comment() -> None:
    assert written("keda", OPERATIONS, CHAT).startswith(
        "# KEDA ScaledObject for: a 'chat' # --- x: y\n# kvplan "
    )


@every(
    "value",
    [
        "no",
        "1e3",
        "0x1F",
        "2026-01-01",
        "a: b",
        "# a",
        "it's",
        "NaN",
        "a\x85b\u2028c",
        '"',
        "\\",
        "~",
        " a ",
        "a\nb: c",
        "<&>",
        "{{ 1 }}",
    ],
)
def test_a_text_is_read_as_that_text(value: str) -> None:
    (document,) = documents("wva", OPERATIONS, replace(CHAT, model=value))
    assert yaml.safe_load(document["data"]["default"])["model_id"] == value


def test_a_headroom_that_was_searched_says_what_it_reaches() -> None:
    searched = written("epp", OPERATIONS._replace(worst_within=0.996), CHAT)
    assert (
        "# Headroom: 0.1, 99.6% within the objectives in the worst of the simulated days, 99.5% wanted; "
        in searched
    )


def test_a_day_that_misses_its_aim_is_a_warning_on_the_first_line() -> None:
    """A fleet that is idle keeps 97 %."""
    missed = OPERATIONS._replace(worst_within=0.962, aim=0.965)
    for target in TARGETS:
        assert written(target, missed, CHAT).startswith("# WARNING: 96.20% of the requests")
        assert "WARNING" not in written(target, missed._replace(worst_within=0.965), CHAT)


def test_rates_are_of_four_scrapes_at_least(tmp_path: Path) -> None:
    """Two samples a minute are seen in no minute; a request a second arrives, five stay."""
    series: dict[str, str] = {}
    for name, values in (
        ("vllm:request_success_total", "0+60x20"),
        ("vllm:num_requests_running", "5+0x20"),
        ("vllm:num_requests_waiting", "0+0x20"),
    ):
        series[f'{name}{{job="vllm"}}'] = values
    for scrape_s, found in ((15.0, {}), (60.0, {"{}": 1.0})):
        query = replace(CHAT, scrape_s=scrape_s).arrivals(replace(CHAT, scrape_s=scrape_s).window(60))
        promtool.expect([promtool.Case(series, {f"round({query}, 0.001)": found}, 630, 60)], tmp_path)
    assert "a scrape every 1 min (--scrape)" in written("keda", OPERATIONS._replace(scrape_s=60.0), CHAT)


def test_the_router_that_is_assumed_is_said() -> None:
    session = OPERATIONS._replace(routing=Routing.SESSION)
    assert "# Router: least-requests, as configured below" in written("epp", OPERATIONS, CHAT)
    assert "# Router: session, assumed of turns" in written("epp", session, CHAT)
    assert "# Router: session, assumed: with another" in written("keda", session, CHAT)


def test_alerts_without_something_to_fire_on_are_left_out() -> None:
    def names(**changed: Any) -> set[str]:
        (rule,) = documents("prometheus", OPERATIONS._replace(**changed), CHAT)
        return {alert["alert"] for group in rule["spec"]["groups"] for alert in group["rules"]}

    every_one = names()
    assert len(every_one) == 6
    assert every_one - names(wait_s=None) == {"KvplanQueueGrows"}
    assert every_one - names(planned=PLANNED._replace(hit_rate=None)) == {"KvplanPrefixCacheCollapse"}


@every(
    ("asked", "words"),
    [
        ({"name": "Chat"}, "--name 'Chat': a DNS label is wanted"),
        ({"name": "chat-"}, "a DNS label"),
        ({"name": "a" * 64}, "a DNS label"),
        ({"name": "chat\n"}, "a DNS label"),
        ({"namespace": "a.b"}, "--namespace 'a.b': a DNS label"),
        ({"pool": "a b"}, "--pool 'a b': a DNS label"),
        ({"selector": "job=vllm"}, "--selector 'job=vllm': matchers are wanted"),
        ({"selector": 'job="a"} or up{a="b"'}, "matchers are wanted"),
        ({"prometheus": "prometheus:9090"}, "--prometheus 'prometheus:9090': a URL is wanted"),
        ({"arrivals": CountedBy.EPP}, "--arrivals epp: which InferencePool is unknown; add --pool NAME"),
        (
            {"engine": EngineName.TRTLLM},
            "--engine trtllm: its metrics are not known; those of vllm and sglang are",
        ),
    ],
)
def test_a_service_that_cannot_be_is_refused(asked: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError) as error:
        service(EmitOptions(**asked), asked.get("engine", EngineName.VLLM))
    assert words in str(error.value)
    assert "\n" not in str(error.value)


def test_what_a_target_lacks_is_said() -> None:
    assert "add --model NAME" in (lack(Target.WVA, replace(CHAT, model=None)) or "")
    assert "SGLang has no histograms" in (lack(Target.LATENCY, SGLANG) or "")
    assert "SGLang has none" in (lack(Target.PROMETHEUS, SGLANG) or "")
    assert all(lack(target, CHAT) is None for target in TARGETS)


@every(
    ("grace_s", "words"),
    [(41.2, "Seconds: 42,"), (30.01, "Seconds: 31,"), (30.0, "30 s, is enough"), (0.3, "30 s, is enough")],
)
def test_pods_are_never_told_to_end_sooner_than_by_default(grace_s: float, words: str) -> None:
    for target in ("keda", "hpa"):
        text = written(target, OPERATIONS._replace(grace_s=grace_s), CHAT)
        assert words in text
        assert ("cuts off" in text) == (grace_s > 30)
