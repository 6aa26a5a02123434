"""Engine settings: candidates worked out by hand, and what is made of gains that are given, not simulated."""

import math
import shlex
from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest
from every import every
from strategies import mix_model

from kvplan.decide.requirement import parse
from kvplan.decide.settings_gate import SettingsGate
from kvplan.engines import EngineName, engine
from kvplan.engines.advice import Advice, Verdict, advise, default_requests
from kvplan.engines.base import Engine, Kind
from kvplan.engines.candidates import Candidate, candidates, limits
from kvplan.errors import UsageError
from kvplan.formats import json as json_format
from kvplan.layout import settings
from kvplan.model import Plan, ServingModel, Timing
from kvplan.report.assembly import ProfileIdentity, Report, analyze
from kvplan.simulation.experiments.paired import Bench, Gain, Measured, Variant, gains, paired
from kvplan.simulation.policies import POLICIES

VLLM, SGLANG, TRTLLM = (engine(name) for name in ("vllm", "sglang", "trtllm"))
# A request holds 16 … 25 tokens, 205 in all over ten iterations: 5 admissions an iteration fill the memory.
ONE = mix_model((15, 10, 0.1), memory=1025, prefill="fused", timing=Timing(1.0, d2=0.125))
BASE = Measured((10.0, 10.0), (1.0, 1.0), (4.0, 4.0), 7)

Fake = Callable[[Sequence[Variant]], list[Measured | None]]


def report_of(model: ServingModel) -> Report:
    return analyze(model, name="one", sha256="")


def found(engine: Engine, model: ServingModel) -> list[tuple[str, str, str]]:
    return [(c.setting.flag, c.value, c.block) for c in candidates(engine, report_of(model), model)]


def limited(model: ServingModel, **limits: int) -> ServingModel:
    return replace(model, replica=replace(model.replica, **limits))


def measured(rps: float, e2e_s: float = 4.0, spread: float = 0.0) -> Measured:
    """Two seeds that differ by `spread` from their mean."""
    return Measured((rps - spread, rps + spread), (1.0, 1.0), (e2e_s, e2e_s), 0)


def given(results: dict[tuple[tuple[str, float], ...], Measured | None], other: Measured = BASE) -> Fake:
    """In place of simulations: what was measured, by parameters; `other` for all else."""

    def fake(variants: Sequence[Variant]) -> list[Measured | None]:
        return [results.get(tuple(sorted(v.parameters)), other) for v in variants]

    return fake


def advice(
    fake: Fake,
    engine: Engine = VLLM,
    model: ServingModel = ONE,
    *,
    requests: int = 500,
    required: Sequence[str] = (),
) -> Advice:
    demands = [parse(text) for text in required]
    return advise(engine, report_of(model), model, Plan(), requests=requests, measure=fake, required=demands)


def verdicts(one: Advice, flag: str) -> dict[str, Verdict]:
    return {t.candidate.value: t.verdict for t in one.tried if t.candidate.setting.flag == flag}


def emitted(one: Advice) -> list[tuple[str, str]]:
    return [(t.candidate.setting.flag, t.candidate.value) for t in one.emitted]


# -- candidates -------------------------------------------------------------------------------------------------


def test_caps_follow_from_the_longest_the_mean_and_the_spread() -> None:
    """1025/25 = 41; 5·10 = 50.

    Without feedback usage is compound Poisson: a variance of Σ(λτ·w²), with Poisson(0.1·τ) requests at each stage.
    """
    model = replace(ONE, timing=Timing(1.0))
    variance = 0.1 * sum(w**2 for w in range(16, 26))
    within = math.floor(50 * (1 - math.sqrt(variance) / 1025))
    assert [one for one in found(SGLANG, model) if one[0] == "--max-running-requests"] == [
        ("--max-running-requests", "41", "rate_cap.engine_max_num_seqs"),
        ("--max-running-requests", "50", "saturation.admissions_per_iteration"),
        ("--max-running-requests", str(within), "safety_buffer.kv_std_tokens"),
    ]


def test_caps_that_do_not_bind_are_left_out() -> None:
    def caps(limit: int) -> list[str]:
        all_found = found(SGLANG, limited(ONE, max_num_seqs=limit))
        return [value for flag, value, _ in all_found if flag == "--max-running-requests"]

    assert "41" in caps(50)
    assert "50" not in caps(50)
    assert caps(41) == []


def test_sglang_keeps_parts_of_the_spread_free_in_the_long_run() -> None:
    """5 requests at each stage; after k tokens 10 - k may come: 5·45 in all, of which 0.7·0.14 times the setting count.

    A spread of √428.5 tokens is 0.9388 of that, half of it 0.469, a quarter 0.235; rounded up as they are written.
    """
    model = replace(ONE, timing=Timing(1.0))
    tried = [
        c for c in candidates(SGLANG, report_of(model), model) if c.setting.kind is Kind.CONSERVATIVENESS
    ]
    assert [(c.setting.flag, c.value) for c in tried] == [
        ("--schedule-conservativeness", value) for value in ("0.3", "0.94", "0.47", "0.24")
    ]
    assert [c.variant for c in tried] == [
        Variant("sglang", (("conservativeness", float(c.value)),)) for c in tried
    ]


def test_more_conservative_than_all_output_to_come_is_not_tried() -> None:
    """1/0.7 keeps all of it at first. With two tokens of output next to nothing is to come: no part is small enough."""
    model = mix_model((500, 2, 0.1), memory=10_040, prefill="fused")
    values = [value for flag, value, _ in found(SGLANG, model) if "conservativeness" in flag]
    assert values == ["0.3", "1.43"]


def test_sglang_counts_4096_tokens_to_come_of_each() -> None:
    """Before its last token comes, after the first, one of 6000 has 5999 … 1 to come, of these 4096 count at most."""
    model = mix_model((10, 6000, 0.001), memory=200_000, prefill="fused", timing=Timing(1.0))
    report = report_of(model)
    spread = report.safety_buffer.kv_std_tokens
    assert spread is not None
    to_come = report.saturation.admissions_per_iteration * sum(min(x, 4096) for x in range(1, 6000))
    wanted = math.ceil(spread / (0.7 * 0.14 * to_come) * 100) / 100
    values = [float(v) for flag, v, b in found(SGLANG, model) if "conservativeness" in flag]
    assert values[1] == wanted


def test_watermarks_are_parts_of_the_spread_rounded_up_as_they_are_written() -> None:
    model = replace(ONE, timing=Timing(1.0))
    share = math.sqrt(0.1 * sum(w**2 for w in range(16, 26))) / 1025
    marks = [(value, block) for flag, value, block in found(VLLM, model) if flag == "--watermark"]
    wanted = [math.ceil(share / part * 1000) / 1000 for part in (1, 2, 4, 8)]
    assert [float(value) for value, block in marks if block.endswith("kv_std_tokens")] == wanted
    for c in candidates(VLLM, report_of(model), model):
        if c.setting.kind is Kind.WATERMARK:
            assert c.variant.parameters == (("watermark", float(c.value)),)


def test_batched_tokens_keep_an_iteration_within_twice_and_four_times_a_full_one() -> None:
    """τ(M) = 1 + 0.125·5·15 = 10.375, the time of 83 tokens of prefill; 50 requests decode beside them."""
    tokens = [value for flag, value, _ in found(VLLM, ONE) if flag == "--max-num-batched-tokens"]
    assert tokens == [str(83 + 50), str(3 * 83 + 50)]
    limits = limited(ONE, max_num_seqs=200, max_num_batched_tokens=299)
    assert [v for flag, v, _ in found(VLLM, limits) if flag == "--max-num-batched-tokens"] == ["200"]


def test_free_prefill_is_not_cut_up() -> None:
    model = replace(ONE, timing=Timing(1.0))
    assert not [flag for flag, *_ in found(VLLM, model) if flag == "--max-num-batched-tokens"]


def test_a_cap_is_an_active_one_where_the_profile_already_has_a_limit() -> None:
    assert found(VLLM, ONE)[0][0] == "--max-num-seqs"
    assert found(VLLM, limited(ONE, max_num_seqs=99))[0][0] == "--max-num-active-seqs"


def test_tensorrt_llm_may_give_up_its_guarantee() -> None:
    last = candidates(TRTLLM, report_of(ONE), ONE)[-1]
    assert (last.setting.flag, last.value) == ("capacity_scheduler_policy", "MAX_UTILIZATION")
    assert last.variant == Variant("trtllm-max-utilization")


def test_the_spread_of_an_overloaded_replica_is_that_at_its_capacity() -> None:
    """Offered ten times what memory sustains: 5 an iteration of a second, stages of Poisson(5) each."""
    model = mix_model((15, 10, 50.0), memory=1025, prefill="fused", timing=Timing(1.0))
    share = math.sqrt(5 * sum(w**2 for w in range(16, 26))) / 1025
    marks = [float(value) for flag, value, _ in found(VLLM, model) if flag == "--watermark"]
    assert marks == [math.ceil(share / part * 1000) / 1000 for part in (1, 2, 4, 8)]


def test_runs_fill_the_memory_ten_times_within_bounds() -> None:
    assert default_requests(ONE) == 2_000  # 10·50 are fewer
    assert default_requests(mix_model((15, 10, 0.1), memory=10_250, prefill="fused")) == 5_000
    assert default_requests(mix_model((15, 10, 0.1), memory=10**7, prefill="fused")) == 20_000


# -- judgement --------------------------------------------------------------------------------------------------


def test_nothing_is_emitted_where_nothing_gains() -> None:
    one = advice(given({}))
    assert one.emitted == ()
    assert {t.verdict for t in one.tried} == {Verdict.NO_GAIN}
    assert one.together is None


def test_the_best_value_of_a_setting_is_emitted() -> None:
    fake = given({(("max_num_seqs", 41.0),): measured(10.4), (("max_num_seqs", 50.0),): measured(10.7)})
    one = advice(fake)
    assert emitted(one) == [("--max-num-seqs", "50")]
    (best,) = one.emitted
    assert best.gains is not None
    assert best.gains.saturated_throughput.mean == pytest.approx(0.07)
    assert [t.verdict for t in one.tried if t.candidate.value == "41"] == [Verdict.SURPASSED]


@every(
    ("result", "verdict"),
    [
        (measured(10.04), Verdict.NO_GAIN),  # 0.4 %
        (measured(10.06), Verdict.EMITTED),  # 0.6 %
        (measured(10.06, spread=0.01), Verdict.NO_GAIN),  # 0.6 % ± 1.3 %
        (measured(10.5, e2e_s=4.1), Verdict.LOSES),  # 5 % more, 2.5 % later
        (measured(9.9, e2e_s=3.0), Verdict.LOSES),  # sooner, but less in all
        (measured(9.995, e2e_s=3.0), Verdict.NO_GAIN),  # the same with next to no loss: still never less
        (measured(10.0, e2e_s=3.9), Verdict.EMITTED),
        (None, Verdict.UNENDED),
    ],
)
def test_a_gain_has_to_be_sure_and_no_measure_may_lose(result: Measured | None, verdict: Verdict) -> None:
    one = advice(given({(("max_num_seqs", 41.0),): result}))
    assert one.tried[0].verdict is verdict


# 4 requests/s are offered, of τ = 1 s: memory sustains 5, and a cap of m running for ten iterations m/10.
GATED = mix_model((15, 10, 4.0), memory=1025, prefill="fused", timing=Timing(1.0))


def caps_gain(variants: Sequence[Variant]) -> list[Measured | None]:
    """The smaller a cap, the more it gains; nothing else gains."""
    return [measured(20 - dict(v.parameters).get("max_num_seqs", 100) / 10) for v in variants]


def test_a_cap_that_breaks_the_gate_gives_way_to_the_smallest_that_does_not() -> None:
    """Headroom of a cap m is m/10/4 - 1: 20 % at 48, and 17.5 % at 47."""
    one = advice(caps_gain, model=GATED, required=["load.headroom >= 19%"])
    assert emitted(one) == [("--max-num-seqs", "48")]
    broken = {t.candidate.value: t.broken for t in one.tried if t.verdict is Verdict.BREAKS}
    assert broken["41"] == "load.headroom >= 19%"
    assert all(int(value) < 48 for value in broken)
    assert one.headroom == pytest.approx(0.25)
    assert one.emitted[0].headroom == pytest.approx(0.2)


def test_a_requirement_that_was_not_met_before_stops_nothing() -> None:
    one = advice(caps_gain, model=GATED, required=["load.headroom >= 30%"])
    assert emitted(one) == [("--max-num-seqs", "41")]
    assert one.emitted[0].headroom == pytest.approx(0.025)


def test_without_a_gate_the_verdict_must_not_get_worse() -> None:
    """4.2 requests/s are more than 41 running for ten seconds allow, and 42 have none of the half per cent to spare."""
    model = mix_model((15, 10, 4.2), memory=1025, prefill="fused", timing=Timing(1.0))
    one = advice(caps_gain, model=model)
    assert verdicts(one, "--max-num-seqs")["41"] is Verdict.BREAKS
    assert 42 * 0.995 < 42 < 43 * 0.995
    assert emitted(one) == [("--max-num-seqs", "43")]
    assert [t.broken for t in one.tried if t.candidate.value == "41"] == [
        f"verdict.status stays {report_of(model).verdict.status}"
    ]


def test_settings_that_break_the_gate_only_together_are_not_both_set() -> None:
    """41 running leave 2.5 %. 15 + 10 tokens a request: 105 an iteration allow 4.2 a second, 5 %."""
    kinds = [
        next(Candidate(s, value, "", "", Variant("vllm")) for s in VLLM.settings if s.kind is kind)
        for kind, value in ((Kind.RUNNING, "41"), (Kind.TOKENS, "105"))
    ]
    assert limits(kinds) == {"max_num_seqs": 41, "max_num_batched_tokens": 105}
    gate = SettingsGate(GATED, Plan(), [parse("verdict.binding != max_num_seqs")])
    assert gate.broken(limits(kinds)) == ("verdict.binding", "verdict.binding != max_num_seqs")
    assert gate.broken(limits(kinds[1:])) is None


def test_nothing_is_recommended_from_runs_too_short_to_tell() -> None:
    """Memory holds 50 at once; eight times as many are 400."""
    fake = given({(("max_num_seqs", 41.0),): measured(10.4)})
    short, enough = (advice(fake, requests=n) for n in (399, 400))
    assert short.emitted == ()
    assert verdicts(short, "--max-num-seqs")["41"] is Verdict.SHORT
    assert any("Take 500 with --requests" in note for note in short.notes)
    assert emitted(enough) == [("--max-num-seqs", "41")]
    assert "runs too short to tell" in settings.text(short, "one", "kvplan 0", 399, [0, 1])


@pytest.mark.parametrize(
    ("other", "value", "verdict"),
    [
        (measured(10.5, spread=0.02), "50", Verdict.NO_BETTER),  # 1 % ± 2.5 % more: may be nothing
        (measured(10.408), "50", Verdict.NO_BETTER),  # sure, but 0.08 % is not worth it
        (measured(10.5), "41", Verdict.EMITTED),
    ],
)
def test_of_caps_that_cannot_be_told_apart_the_larger_is_set(
    other: Measured, value: str, verdict: Verdict
) -> None:
    one = advice(given({(("max_num_seqs", 41.0),): other, (("max_num_seqs", 50.0),): measured(10.4)}))
    assert emitted(one) == [("--max-num-seqs", value)]
    assert verdicts(one, "--max-num-seqs")["41"] is verdict


def test_of_watermarks_that_cannot_be_told_apart_the_smaller_is_set() -> None:
    marks = sorted(float(v) for flag, v, _ in found(VLLM, ONE) if flag == "--watermark")
    results = {(("watermark", mark),): measured(10.4 + i * 1e-4) for i, mark in enumerate(marks)}
    one = advice(given(results))
    assert [float(value) for _, value in emitted(one)] == marks[:1]
    said = set(verdicts(one, "--watermark").values())
    assert said == {Verdict.EMITTED, Verdict.NO_BETTER}


def test_settings_that_add_up_are_emitted_together() -> None:
    cap, tokens = ("max_num_seqs", 41.0), ("max_num_batched_tokens", 133.0)
    one = advice(given({(cap,): measured(10.3), (tokens,): measured(10.5), (tokens, cap): measured(10.8)}))
    assert emitted(one) == [("--max-num-batched-tokens", "133"), ("--max-num-seqs", "41")]
    assert one.together is not None
    assert one.together.saturated_throughput.mean == pytest.approx(0.08)


@pytest.mark.parametrize("both", [10.4, 10.5, 10.505])
def test_a_setting_that_adds_nothing_to_a_better_one_is_dropped(both: float) -> None:
    cap, tokens = ("max_num_seqs", 41.0), ("max_num_batched_tokens", 133.0)
    one = advice(given({(cap,): measured(10.3), (tokens,): measured(10.5), (tokens, cap): measured(both)}))
    assert emitted(one) == [("--max-num-batched-tokens", "133")]
    assert one.together is None
    assert [t.verdict for t in one.tried if t.candidate.value == "41"] == [Verdict.NO_USE]


def test_an_engine_that_can_serve_nothing_by_default_is_refused() -> None:
    with pytest.raises(UsageError, match="--engine vllm: with its defaults a request never fits"):
        advice(lambda variants: [None] * len(variants))


def test_an_overloaded_engine_gets_a_bound_on_its_queue_by_little() -> None:
    """Memory sustains 5 requests/s and holds 50: 50 + 5·3600, or as many running as the cap allows."""
    model = mix_model((15, 10, 50.0), memory=1025, prefill="fused", timing=Timing(1.0))
    (mention,) = advice(given({}), model=model).mentions
    assert (mention.flag, mention.value) == ("--max-num-queued-reqs", "18050")
    capped = advice(given({(("max_num_seqs", 41.0),): measured(11)}), model=model)
    assert capped.mentions[0].value == "18041"
    assert advice(given({})).mentions == ()


def test_what_is_no_result_of_the_engine_is_said() -> None:
    assert any("keeps room for the longest output" in note for note in advice(given({}), SGLANG).notes)
    assert advice(given({}), SGLANG).engine.policy == "sglang"
    assert any("MAX_UTILIZATION" in note for note in advice(given({}), TRTLLM).notes)
    never = advice(given({}, other=replace_evictions(BASE, 0)))
    assert any("nobody was preempted" in note for note in never.notes)
    assert not any("nobody was preempted" in note for note in advice(given({})).notes)


def replace_evictions(one: Measured, evictions: int) -> Measured:
    return one._replace(evictions=evictions)


# -- paired differences -----------------------------------------------------------------------------------------


def test_an_interval_of_paired_differences_is_students() -> None:
    """1 %, 2 %, 6 %: mean 3 %, s = √7 %, t₂ = 4.3027; ± 6.573 %."""
    low, high = 0.03 - 0.065725, 0.03 + 0.065725
    assert paired([0.01, 0.02, 0.06]) == pytest.approx(Gain(0.03, low, high), abs=1e-5)


def test_what_is_common_to_both_cancels_out() -> None:
    """Seeds differ tenfold, the gain does not."""
    without = Measured((1.0, 10.0), (1.0, 10.0), (5.0, 50.0), 0)
    with_it = Measured((1.1, 11.0), (1.0, 10.0), (4.0, 40.0), 0)
    one = gains(without, with_it)
    assert one.saturated_throughput == pytest.approx(Gain(0.1, 0.1, 0.1))
    assert one.offered_e2e == pytest.approx(Gain(0.2, 0.2, 0.2))
    assert one.offered_throughput == Gain(0.0, 0.0, 0.0)


@pytest.mark.parametrize("policy", ["vllm", "sglang", "trtllm-no-evict"])
def test_runs_shared_with_the_defaults_are_those_that_would_come_out_the_same(policy: str) -> None:
    """The same figures as from each variant alone, where nothing can be shared."""
    model = mix_model((15, 10, 0.2), (30, 40, 0.1), memory=1025, timing=Timing(1.0))
    cap = "max_running_requests" if policy == "sglang" else "max_num_seqs"
    tried = [
        Variant(policy),
        *(Variant(policy, ((cap, float(most)),)) for most in (2, 9, 99)),
    ]
    if policy == "vllm":
        tried += [Variant(policy, (("watermark", mark),)) for mark in (0.01, 0.5, 0.9)]
    together = Bench(model, Plan(), requests=100, seeds=[0, 1]).measure(tried)
    alone = [Bench(model, Plan(), requests=100, seeds=[0, 1]).measure([one])[0] for one in tried]
    assert together == alone
    assert len({one.offered_e2e_s for one in together if one is not None}) > 1  # some limits do bind


def test_requests_that_never_fit_leave_no_figures() -> None:
    model = mix_model((15, 10, 0.1), memory=24, prefill="fused")
    assert Bench(model, Plan(), requests=5, seeds=[0, 1]).measure([Variant("trtllm-no-evict")]) == [None]


# -- as text ----------------------------------------------------------------------------------------------------

NASTY = "x\n--trust-remote-code $(touch /tmp/x) `id` \x1b[31m\u2028!! 'q' \"q\" # <script>|"


@pytest.mark.parametrize("engine", [VLLM, SGLANG])
def test_a_shell_reads_the_settings_and_nothing_else(engine: Engine) -> None:
    cap = "max_running_requests" if engine is SGLANG else "max_num_seqs"
    one = advice(given({((cap, 41.0),): measured(11)}), engine)
    text = settings.text(one, NASTY, "kvplan 0", 500, [0, 1])
    (setting,) = one.emitted
    assert shlex.split(text, comments=True) == [setting.candidate.setting.flag, "41"]
    assert all(line.startswith(("#", setting.candidate.setting.flag)) for line in text.splitlines())
    assert not set('`$!\x1b\u2028<>|"\\') & set(text)
    assert "'q'" in text


def test_yaml_of_tensorrt_llm_has_the_scheduler_in_its_place() -> None:
    """Without comments it is two lines, the second indented below the first."""

    def fake(variants: Sequence[Variant]) -> list[Measured | None]:
        return [measured(11) if v == Variant("trtllm-max-utilization") else BASE for v in variants]

    text = settings.text(advice(fake, TRTLLM), NASTY, "kvplan 0", 500, [0, 1])
    code = [line.partition("#")[0].rstrip() for line in text.splitlines()]
    assert [line for line in code if line] == [
        "scheduler_config:",
        "  capacity_scheduler_policy: MAX_UTILIZATION",
    ]


@pytest.mark.parametrize("width", [40, 80, 100])
def test_comments_keep_to_the_width_and_a_candidate_to_its_line(width: int) -> None:
    fake = given({(("max_num_seqs", 41.0),): measured(10.4), (("max_num_seqs", 50.0),): measured(10.7)})
    text = settings.text(advice(fake), "A & B * 'C'", "kvplan 0", 500, [0, 1], width=width)
    assert max(map(len, text.splitlines())) <= width
    assert "A & B * 'C'" in text
    if width >= 80:
        (row,) = [line for line in text.splitlines() if line.startswith("#   --max-num-seqs 41 ")]
        assert row.split(maxsplit=5) == ["#", "--max-num-seqs", "41", "+4%", "0%", "another value gains more"]


def test_requirements_are_shown_without_signs_of_a_shell() -> None:
    text = settings.text(
        advice(caps_gain, model=GATED, required=["load.headroom >= 19%"]), "one", "kvplan 0", 500, [0, 1]
    )
    assert "breaks the gate: load.headroom ≥" in text
    assert "load.headroom 25% to 20%" in text
    assert ">" not in text


def test_without_a_setting_everything_is_a_comment() -> None:
    text = settings.text(advice(given({})), "one", "kvplan 0", 500, [0, 1])
    assert "# Nothing to set: leave the engine's defaults." in text
    assert shlex.split(text, comments=True) == []


def test_json_has_what_is_needed_to_set_and_to_simulate_it() -> None:
    one = advice(given({(("max_num_seqs", 41.0),): measured(11)}), model=limited(ONE, max_num_seqs=99))
    document = json_format.emit(one, ProfileIdentity("n", "5e6f"), 500, [0, 1])
    assert list(document) == [
        "schema_version",
        "kvplan_version",
        "profile",
        "engine",
        "simulated",
        "planned",
        "settings",
        "together",
        "left_out",
        "not_simulated",
        "notes",
    ]
    (setting,) = document["settings"]
    assert setting["flag"] == "--max-num-active-seqs"
    assert setting["value"] == "41"
    assert setting["profile_key"] == "gpu.max_num_seqs"
    assert setting["parameters"] == {"max_num_seqs": 41.0}
    assert setting["gains"]["saturated_throughput"] == {
        "mean": pytest.approx(0.1),
        "ci95": None,  # it did not vary
    }
    assert setting["headroom"] == {
        "before": analyze(limited(ONE, max_num_seqs=99), name="", sha256="").load.headroom,
        "after": analyze(limited(ONE, max_num_seqs=41), name="", sha256="").load.headroom,
    }
    assert len(document["left_out"]) == len(one.tried) - 1


# -- records ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", EngineName)
def test_what_a_record_names_is_there(name: EngineName) -> None:
    """Policies that simulate it and parameters that they have; one setting of a kind; when each came is said."""
    one = engine(name)
    assert one.name == name
    assert one.policy in POLICIES
    for setting in one.settings:
        assert setting.since.endswith(".")
        policy = POLICIES[setting.policy or one.policy]
        assert setting.policy or setting.parameter in policy.parameters
    for model in (ONE, limited(ONE, max_num_seqs=99)):
        kinds = [setting.kind for setting in one.settings_for(model)]
        assert len(set(kinds)) == len(kinds)
