"""A service beside its plan: what is allowed, how long a window must be, and windows of simulated services."""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from io import BytesIO
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from every import every
from served import SGLANG, VLLM, Counts, Names, Service, longer_inputs, longer_outputs, slower

from kvplan.analysis.fleet import one_replica
from kvplan.errors import UsageError
from kvplan.gate import drift as drifting
from kvplan.gate.check import Outcome
from kvplan.gate.drift import Compared, Drift, Verdict, compare, most_rps
from kvplan.ingest.metrics import ServerMetrics, read_metrics
from kvplan.model import ServingModel
from kvplan.model.slo import parse_slo
from kvplan.profile.reading import Profile, load_profile, parse_profile
from kvplan.report.figures import Figures
from kvplan.study.goodput import at_rate
from kvplan.study.windows import warm_up_s

CHAT = """schema = 1
name = "chat"
gpu = { memory_tokens = 100_000 }
timing = { d0 = "10 ms", d1 = "0.1 us", d2 = "50 us" }
[[classes]]
name = "short"
input = { 100 = 0.5, 300 = 0.5 }
decode = { 50 = 0.5, 150 = 0.5 }
rate = 3.0
[[classes]]
name = "long"
input = 1000
decode = 100
rate = 1.0
"""
# 4 requests/s of 400 tokens in and 100 out: 99 gaps of τ each make 396 τ that decode, with some 450 tokens each,
# and iterations compute 1,600 τ of prompts: τ = 10 ms + 0.1 us·450·396 τ + 50 us·1600 τ.
ITL_S = 0.01 / (1 - 1e-7 * 450 * 396 - 5e-5 * 1600)


def profile(text: str = CHAT) -> Profile:
    return parse_profile(text.encode(), "chat.toml")


def shipped(name: str, *slos: str) -> Profile:
    return load_profile(name, stdin=BytesIO()).with_slos(map(parse_slo, slos))


def counted(
    requests: float = 1000.0, seconds: float | None = 250.0, itl_s: float = ITL_S, **other: object
) -> ServerMetrics:
    """Metrics of a service as the profile above plans it: 400 tokens in, 100 out on average."""
    decoding = requests * 99 * itl_s
    values: dict[str, object] = {
        **{"source": "now.prom", "engine": "vLLM", "models": ("m",), "sha256": "", "memory_tokens": None},
        **{"block_tokens": None, "classes": (), "rate_rps": None, "rate_from": "", "requests": requests},
        **{"preemptions": 0.0, "mean_input": 400.0, "mean_decode": 100.0, "drafts": None},
        **{"notes": (), "engines": 1, "seconds": seconds, "hit_ratio": None, "decoding_s": decoding},
        **{"itl_s": itl_s, "itl_of_tokens": False},
    }
    return ServerMetrics(**(values | other))  # type: ignore[arg-type]


def figures(drift: Drift) -> dict[str, Compared]:
    return {figure.key: figure for figure in drift.figures}


def outside(drift: Drift) -> set[str]:
    return {figure.key for figure in drift.figures if figure.verdict is Verdict.OUTSIDE}


def test_a_page_without_lengths_and_times_is_no_comparison() -> None:
    bare = replace(counted(40_000, 10_000.0), mean_input=None, mean_decode=None, itl_s=None)
    drift = compare(profile(), bare)
    assert figures(drift)["rate_rps"].verdict is Verdict.INSIDE
    assert drift.outcome is Outcome.UNUSABLE


# -- lengths: by hand. Prompts of 100, 300 and 1,000 with 3/8, 3/8, 1/4: mean 400, variance 123,750 - 0 by definition:
# 3/8·300² + 3/8·100² + 1/4·600² = 127,500. Answers of 50, 150, 100: mean 100, variance 6/8·50² = 1,875.


def test_lengths_are_allowed_three_standard_errors_or_five_per_cent() -> None:
    few, many = (figures(compare(profile(), counted(n, n / 4))) for n in (400, 40_000))
    cv_in, cv_out = math.sqrt(127_500) / 400, math.sqrt(1875) / 100
    for key, mean, cv in (("input_tokens", 400, cv_in), ("output_tokens", 100, cv_out)):
        width = 3 * cv / math.sqrt(400)
        assert (few[key].low, few[key].high) == pytest.approx((mean * (1 - width), mean * (1 + width)))
        assert (many[key].low, many[key].high) == pytest.approx((mean * 0.95, mean * 1.05))
        assert few[key].planned == pytest.approx(mean)


def test_a_window_is_long_enough_where_most_drifts_of_a_fifth_would_show() -> None:
    """Normal means of n answers, 20 % longer: 95 % of them beyond three standard errors."""
    needed = figures(compare(profile(), counted()))["input_tokens"].needed
    cv = math.sqrt(127_500) / 400
    assert needed == pytest.approx(620 * cv**2, rel=0.01)
    drifted = np.random.default_rng(1).normal(1.2, 1.2 * cv / math.sqrt(needed), 20_000)
    assert np.mean(drifted > 1 + 3 * cv / math.sqrt(needed)) == pytest.approx(0.95, abs=0.01)


def test_prompts_of_sessions_scatter_as_drawn_sessions_do() -> None:
    text = CHAT.split("[[classes]]")[0] + (
        '[[sessions]]\nname = "agent"\nrate = 0.5\nshared = 50\nfirst = { uniform = [100, 300] }\n'
        "user = { uniform = [20, 60] }\ndecode = { uniform = [10, 90] }\nturns = { uniform = [1, 9] }\n"
        'think = { law = "exponential", mean = "5 s" }\n'
    )
    figure = figures(compare(profile(text), counted(2000, 800)))["input_tokens"]
    rng, means = np.random.default_rng(2), []
    for _ in range(150):
        sums = np.zeros(2)
        for turns in rng.integers(1, 10, 200):
            added = rng.integers(20, 61, turns) + rng.integers(10, 91, turns)
            prompts = 50 + rng.integers(100, 301) + np.concatenate([[0], np.cumsum(added[:-1])])
            sums += prompts.sum(), turns
        means.append(sums[0] / sums[1])
    assert figure.planned == pytest.approx(np.mean(means), rel=0.005)
    cv = np.std(means) / np.mean(means) * math.sqrt(200 * 5)  # 200 sessions of 5 turns
    assert figure.needed == pytest.approx(620 * cv**2, rel=0.25)


# -- verdicts


def test_a_service_as_planned_is_inside() -> None:
    drift = compare(profile(), counted())
    assert drift.outcome is Outcome.PASSED
    assert drift.rate_rps == 4.0
    assert figures(drift)["rate_rps"].planned == 4.0


@every(
    ("key", "change"),
    [
        ("output_tokens", {"mean_decode": 120.0}),
        ("input_tokens", {"mean_input": 320.0}),
        ("itl_at_batch_s", {"itl_s": ITL_S * 1.5}),
        ("itl_s", {"itl_s": ITL_S * 0.7}),
        ("preemptions", {"preemptions": 11.0}),
        ("rate_rps", {"seconds": 20.0}),
    ],
)
def test_a_figure_that_has_drifted_is_outside(key: str, change: dict[str, float]) -> None:
    drift = compare(profile(), counted(**{"itl_s": ITL_S} | change))  # type: ignore[arg-type]
    assert key in outside(drift)
    assert drift.outcome is Outcome.FAILED


def test_ten_preemptions_more_are_no_drift() -> None:
    assert not outside(compare(profile(), counted(preemptions=10.0)))


def test_the_error_band_of_the_timing_widens_what_is_allowed() -> None:
    banded = CHAT.replace('d2 = "50 us" }', 'd2 = "50 us", measured = { band = [0.6, 1.6] } }')
    assert not outside(compare(profile(banded), counted(itl_s=ITL_S * 1.5)))


def test_too_few_requests_leave_all_open() -> None:
    drift = compare(profile(), counted(99.0, 25.0, mean_decode=200.0))
    assert {figure.verdict for figure in drift.figures} == {Verdict.OPEN}
    assert drift.outcome is Outcome.UNUSABLE


def test_a_short_window_is_open_but_for_what_is_outside() -> None:
    drift = compare(profile(), counted(300.0, 75.0))
    assert drift.is_short
    assert drift.outcome is Outcome.UNUSABLE
    assert drift.needed_s == pytest.approx((drift.needed + 3 * math.sqrt(drift.needed)) / 4.0)
    assert compare(profile(), counted(300.0, 75.0, mean_decode=200.0)).outcome is Outcome.FAILED


def test_without_a_time_there_is_no_rate_and_no_time_between_tokens() -> None:
    drift = compare(profile(), counted(seconds=None))
    open_ = {figure.key for figure in drift.figures if figure.verdict is Verdict.OPEN}
    assert open_ == {"itl_s", "itl_at_batch_s", "rate_rps"}
    assert drift.outcome is Outcome.PASSED


def test_figures_are_those_of_one_of_several_replicas() -> None:
    fleet = profile(
        CHAT.replace("rate = 3.0", "rate = 9.0").replace("rate = 1.0", "rate = 3.0")
        + "[fleet]\nreplicas = 3\n"
    )
    one, three = compare(profile(), counted()), compare(fleet, counted(3000.0, engines=3))
    assert three.rate_rps == one.rate_rps == 4.0
    limits = [figures(drift)["rate_rps"].high or 0.0 for drift in (one, three)]
    chances = [1 + 3 / math.sqrt(n) for n in (1000, 3000)]
    assert limits[0] / chances[0] == pytest.approx(limits[1] / chances[1])


def test_a_collapsed_prefix_cache_is_outside() -> None:
    service = shipped("shared-prompt")
    for ratio, verdict in ((0.71, Verdict.INSIDE), (0.69, Verdict.OUTSIDE)):  # 0.8 is planned
        metrics = counted(5000, 400, 0.02, mean_input=1000.0, mean_decode=200.0, hit_ratio=ratio)
        assert figures(compare(service, metrics))["hit_ratio"].verdict is verdict


def test_what_cannot_be_compared_is_refused() -> None:
    with pytest.raises(UsageError, match="no request ended"):
        compare(profile(), counted(0.0))
    with pytest.raises(UsageError, match="prefill and decode apart"):
        compare(shipped("prefill-decode"), counted())
    with pytest.raises(UsageError, match=r"counters of vLLM; \[engine\] of .* is sglang"):
        compare(profile(CHAT + '\n[engine]\nname = "sglang"\n'), counted())


# -- simulated services


def windows(
    service: Profile, names: Names, folder: Path, share: float, count: int
) -> Callable[..., Iterator[Drift]]:
    """Return what compares windows of the length that is asked for, of the profile at a share of its goodput."""
    steady = replace(service.model, schedule=None)
    most = most_rps(Figures(steady, service.plan))
    model = at_rate(steady, share * most)
    expected = counted(1e6, 1e6 / model.total_rate_rps, itl_s=1.0, hit_ratio=0.0)
    first = compare(service, expected)
    assert first.needed_s is not None
    length, begin = first.needed_s, 1.5 * warm_up_s(one_replica(model))

    def seen(
        change: Callable[[ServingModel], ServingModel] = lambda model: model, lost_hits: float = 0.0
    ) -> Iterator[Drift]:
        run = Service(change(model), begin + (count + 0.3) * length, seed=5)
        files: list[Path] = []
        for i in range(count + 1):
            at = begin + i * length
            counts: Counts = run.counts(at)
            counts = replace(counts, hits=counts.hits - lost_hits * counts.looked_up)
            files.append(folder / f"{i}.prom")
            files[-1].write_text(counts.text(names, at), encoding="utf-8")
        for then, now in pairwise(files):
            yield compare(service, read_metrics(now, then))

    return seen


def found(drifts: Iterator[Drift]) -> list[bool]:
    return [drift.outcome is Outcome.FAILED for drift in drifts]


def changes(service: Profile) -> Iterator[tuple[str, dict[str, object]]]:
    if all(c.sessions is None for c in service.model.classes):
        yield "outputs", {"change": lambda model: longer_outputs(model, 1.2)}
        yield "inputs", {"change": lambda model: longer_inputs(model, 1.3)}
    yield "iterations", {"change": lambda model: slower(model, 1.2)}
    if service.model.finds_prefixes:
        yield "hits", {"lost_hits": 0.15}


def test_windows_of_a_service_as_planned_and_of_one_that_has_drifted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    service = profile()
    most = most_rps(Figures(service.model, service.plan))
    monkeypatch.setattr(drifting, "most_rps", lambda steady: most)
    seen = windows(service, VLLM, tmp_path, 0.6, 4)
    assert not any(found(seen()))
    for name, change in changes(service):
        assert all(found(seen(**change))), name


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("name", "slos", "names", "count"),
    [
        ("llama-3.1-8b-rtx4090", ["ttft_s.p95 <= 2 s"], VLLM, 100),
        ("reasoning-h100", ["ttft_s.p95 <= 10 s", "tpot_s.p95 <= 50 ms"], VLLM, 100),
        ("shared-prompt", ["ttft_s.p95 <= 2 s"], SGLANG, 100),
        ("agents-collapse", ["ttft_s.p95 <= 2 s"], SGLANG, 60),
    ],
)
def test_few_windows_alarm_falsely_and_nearly_all_drifts_are_found(
    name: str, slos: Sequence[str], names: Names, count: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    service = shipped(name, *slos)
    most = most_rps(Figures(service.model, service.plan))
    monkeypatch.setattr(drifting, "most_rps", lambda steady: most)
    seen = windows(service, names, tmp_path, 0.8, count)
    assert np.mean(found(seen())) <= 0.03
    for drift, change in changes(service):
        assert np.mean(found(seen(**change))) >= 0.95, drift
