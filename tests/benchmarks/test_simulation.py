"""How fast the simulator is, as ratios measured side by side. Run with `pytest tests/benchmarks -s -n 0`."""

import os
import statistics
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import pytest
from measure import Used, peak_mib, ratio, seconds, used
from plain_vllm import Request, serve

from kvplan.compiling import native
from kvplan.model import Plan, Prefill, Replica, RequestClass, ServingModel, Timing
from kvplan.model.gaps import Lognormal
from kvplan.model.lengths import Lengths
from kvplan.model.sessions import Sessions
from kvplan.profile.reading import load_profile
from kvplan.simulation import engine
from kvplan.simulation.experiments import study
from kvplan.simulation.experiments.load import Load
from kvplan.simulation.experiments.options import chosen
from kvplan.simulation.outcome import Outcome
from kvplan.simulation.policies import POLICIES
from kvplan.simulation.policies.protocol import Scenario, Settings
from kvplan.simulation.requests import Requests, interleaved, poisson
from kvplan.simulation.sessions import stream_of_sessions

TIMING = Timing(0.0145, d1=2.5e-7, d2=8.5e-5)
BENCH = ServingModel(
    (RequestClass("a", 512, (128,), (1.0,), 5.0),),
    TIMING,
    Replica(64_000, block_tokens=16, max_num_seqs=256, max_num_batched_tokens=2048, prefix_caching=False),
)


GIVEN = {"flow": {"budgets": (1.0,)}}  # a request that stays 128 iterations leaves no room for one in each


def run(model: ServingModel, policy: str, requests: Requests) -> Outcome:
    settings = Settings(policy, GIVEN.get(policy, {}))
    setup, _ = POLICIES[policy].prepare(Scenario(model, Plan(), requests, ("a",)), settings)
    return engine.run(POLICIES[policy].form_batch, requests, model.timing, model.replica, setup, compile=True)


def test_the_warm_kernel_is_140_times_faster_than_a_plain_loop() -> None:
    requests = interleaved(BENCH, requests=2000)

    def plain() -> tuple[float, int, int]:
        alike = [Request(512, 128) for _ in range(2000)]
        return serve(alike, 4000, 16, 256, 2048, TIMING.d0, TIMING.d1, TIMING.d2)

    kernel = run(BENCH, "vllm", requests)
    makespan, preempted, iterations = plain()
    assert kernel.end_s == pytest.approx(makespan, rel=1e-9)
    assert (int(kernel.evictions.sum()), kernel.iterations) == (preempted, iterations)
    assert (
        ratio(lambda: run(BENCH, "vllm", requests), plain, 9, "2,000 requests, kernel against loop")
        <= 1 / 140
    )


LONG = ServingModel(
    (RequestClass("a", 300, tuple(range(10, 1000, 3)), (1.0,) * 330, 9.0),),
    Timing(0.01, d1=2.5e-7, d2=2e-5),
    Replica(60_000, block_tokens=16),
)
FLOW = ServingModel(
    tuple(RequestClass(f"{d} tokens", 10, (d,), (1.0,), 5.0) for d in (20, 40, 60)),
    Timing(1.0),
    Replica(16_492, prefill=Prefill.DISAGGREGATED),
)


# the model, and an alpha with which those who begin together do not overflow together for ever
@pytest.mark.parametrize(
    ("model", "alpha"), [(FLOW, 0.7), (LONG, 0.3)], ids=["FC 4.1", "330 lengths up to 997"]
)
@pytest.mark.parametrize(
    ("policy", "given", "bound"),
    [
        ("flow", {"budgets": (4.0,)}, 3),
        ("flow-unknown", {}, 3),
        ("alpha-protection", {}, 3),
        ("a-min", {}, 3),
        ("mc", {}, 10),
        ("mc", {"assume": (1.0,)}, 10),
        ("mc-sf", {}, 10),
    ],
)
def test_a_request_event_costs_little_more_than_under_greedy(
    model: ServingModel, alpha: float, policy: str, given: dict[str, tuple[float, ...]], bound: float
) -> None:
    """Events: arrivals, admissions, evictions, completions. More arrives than is served: the queues are long."""
    requests = poisson(model, np.random.default_rng(1), requests=100_000, horizon_s=None)
    names = tuple(c.name for c in model.classes)
    given = {key: value * len(names) if key == "budgets" else value for key, value in given.items()}
    if policy == "alpha-protection":
        given = {"alpha": (alpha,)}

    def served(name: str, given: dict[str, tuple[float, ...]]) -> Outcome:
        setup, _ = POLICIES[name].prepare(Scenario(model, Plan(), requests, names), Settings(name, given))
        form_batch = POLICIES[name].form_batch
        return engine.run(form_batch, requests, model.timing, model.replica, setup, compile=True)

    events = []
    for outcome in (served(policy, given), served("greedy", {})):  # and all is compiled
        done, evictions = np.isfinite(outcome.finish_s).sum(), outcome.evictions.sum()
        events.append(int(requests.arrival_s.size + 2 * done + 2 * evictions))
    label = f"{policy} {given}, {events[0]:,} events, against greedy, {events[1]:,}"
    whole = ratio(lambda: served(policy, given), lambda: served("greedy", {}), 5, label)
    print(f"of one event: {whole * events[1] / events[0]:.3g}")
    assert whole * events[1] / events[0] <= bound


@pytest.mark.parametrize("policy", ["greedy", "vllm"])
def test_ten_million_requests_hold_60_bytes_each(policy: str) -> None:
    """Arrivals, what becomes of each request, and all that the exact percentiles take; in the command, start to end."""

    def peak(requests: int) -> float:
        simulated = ["simulate", "--policy", policy, "--requests", str(requests), "--format", "csv"]
        return peak_mib([sys.executable, "-P", "-m", "kvplan", *simulated])

    many, few = peak(10**7), peak(10**6)
    each = (many - few) * 2**20 / (10**7 - 10**6)
    print(f"\n{policy}: 10⁶ requests {few:.0f} MiB at most, 10⁷ {many:.0f} MiB: {each:.1f} bytes each")
    assert few < 260
    assert each <= 60


@pytest.mark.parametrize("policy", ["greedy", "vllm"])
def test_a_million_requests_take_at_most_one_and_a_half_times_their_kernel(
    policy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From drawing them to the report's figures, of the default profile; figures alone less than the kernel."""
    profile = load_profile("llama-3.1-8b-rtx4090", stdin=None)
    in_kernel, in_figures = [], []

    def noted(times: list[float], work: Callable[..., Any]) -> Callable[..., Any]:
        def call(*given: Any, **named: Any) -> Any:
            began = perf_counter()
            result = work(*given, **named)
            times.append(perf_counter() - began)
            return result

        return call

    def simulated() -> None:
        load, settings = Load(requests=10**6), chosen([policy], [])
        study.study(profile.model, profile.plan, load, settings, [1], compile=True, threads=1)

    simulated()
    monkeypatch.setattr(native.Loop, "__call__", noted(in_kernel, native.Loop.__call__))
    monkeypatch.setattr(study, "policy_result", noted(in_figures, study.policy_result))
    found = []
    for _ in range(7):
        in_kernel.clear()
        whole = seconds(simulated)
        found.append((whole / sum(in_kernel), in_figures[-1] / sum(in_kernel), sum(in_kernel)))
    of_kernel, figures, kernel = map(statistics.median, zip(*found, strict=True))
    print(
        f"\n{policy}: kernel {kernel * 1e3:.0f} ms, all {of_kernel:.2f} times that, figures {figures:.2f} times"
    )
    assert of_kernel <= 1.5
    assert figures < 1


def test_a_first_run_costs_little_more_than_later_ones_and_both_little_more_than_a_start(
    tmp_path: Path,
) -> None:
    """The start is that of Python with the libraries that every command needs, numbers included."""
    command = [sys.executable, "-P", "-m", "kvplan", "simulate", "tool-calls-h100", "--policy", "greedy"]
    command += ["--requests", "20000", "--format", "csv"]
    installed = os.environ | {"PYTHONDONTWRITEBYTECODE": ""}
    folders = iter(tmp_path / str(i) for i in range(100))

    def launch(folder: Path) -> None:
        environment = installed | {"KVPLAN_CACHE_DIR": str(folder)}
        subprocess.run(command, check=True, capture_output=True, env=environment)

    def start(code: str) -> None:
        subprocess.run([sys.executable, "-c", code], check=True, env=installed)

    warm = tmp_path / "warm"
    launch(warm)
    for what, work, bound in (("cold", lambda: launch(next(folders)), 15), ("warm", lambda: launch(warm), 5)):
        ratio(work, lambda: start("pass"), 5, f"simulate, {what}, against a plain Python start")
        label = f"simulate, {what}, against the start of its libraries"
        assert ratio(work, lambda: start("import numpy, typer, pydantic"), 5, label) <= bound


AGENTS = Sessions(
    first=Lengths.uniform(4000, 12_000),
    user=Lengths.uniform(300, 1500),
    decode=Lengths.uniform(40, 200),
    turns=Lengths.uniform(8, 24),
    think=Lognormal(10.0, 1.0),
)


def test_a_million_turns_with_a_prefix_cache_take_less_than_three_times_as_many_strangers() -> None:
    """The strangers arrive at the same times, where the replica has time for all of them."""
    served = ServingModel(
        BENCH.classes, Timing(0.015, d1=5e-9, d2=1e-6, d3=1e-6), Replica(4_000_000, block_tokens=16)
    )
    turns = stream_of_sessions(
        [AGENTS], [0.834], np.random.default_rng(1), requests=1_000_000, horizon_s=None
    )

    def simulated(requests: Requests, caching: float) -> Outcome:
        settings = Settings("vllm", {"prefix_caching": (caching,)})
        setup, _ = POLICIES["vllm"].prepare(Scenario(served, Plan(), requests, ("a",)), settings)
        form_batch = POLICIES["vllm"].form_batch
        return engine.run(form_batch, requests, served.timing, served.replica, setup, compile=True)

    warm = simulated(turns, 1.0)
    assert warm.found.hit_tokens.sum() > 0.8 * turns.input_tokens.sum()
    order = np.argsort(warm.arrival_s)
    strangers = Requests(
        warm.arrival_s[order], turns.input_tokens[order], turns.decode_tokens[order], turns.class_index[order]
    )
    simulated(strangers, 0.0)
    label = "a million turns of sessions against strangers"
    assert ratio(lambda: simulated(turns, 1.0), lambda: simulated(strangers, 0.0), 3, label) < 3


def test_a_fleet_of_64_takes_at_most_one_and_a_half_times_as_long_as_one_replica() -> None:
    """A million requests at the same load for each replica, by the command from start to end; below a gigabyte."""
    chat = 'classes = [{{ name = "a", input = 1155, decode = {{ 100 = 1, 211 = 2, 400 = 1 }}, rate = {rate} }}]\n'
    head = 'schema = 1\nname = "a"\ntiming = { d0 = "14.5 ms", d1 = "0.25 us", d2 = "85 us" }\n'
    gpu = "[gpu]\nmemory_tokens = 41_408\nblock_tokens = 16\nmax_num_batched_tokens = 2048\n"
    profiles = [
        head + chat.format(rate=2) + gpu,
        head + chat.format(rate=128) + gpu + "[fleet]\nreplicas = 64\n",
    ]

    def simulated(profile: str) -> Used:
        arguments = ["simulate", "-", "--policy", "vllm", "--requests", "1000000", "--format", "csv"]
        found = used([sys.executable, "-P", "-m", "kvplan", *arguments], input=profile)
        assert (found.code, found.err) == (0, "")
        return found

    for profile in profiles:  # compiled, and kept
        simulated(profile)
    rounds = [[simulated(profile) for profile in profiles] for _ in range(5)]
    relative = statistics.median(fleet.seconds / one.seconds for one, fleet in rounds)
    mib = max(fleet.mib for _, fleet in rounds)
    print(f"\n64 replicas against one: {relative:.2f} times as long, {mib:.0f} MiB")
    assert relative <= 1.5
    assert mib < 1000
