"""`kvplan plan`: the screen, the document, the profile that it writes, and what it refuses."""

import json
import re
import tomllib
from io import BytesIO
from pathlib import Path

import command
import documents
import numpy as np
import pytest
from command import Run
from command import run as run_command

from kvplan.cli.common import seldom
from kvplan.planning.plan import plan
from kvplan.planning.result import Request
from kvplan.profile.reading import load_profile
from kvplan.report.assembly import Analyses
from kvplan.show.charts import of_plan
from kvplan.study.operating_point import Latency
from kvplan.study.trial import Task

COMMAND = ["plan"]
DEMAND = ("Llama-3.1-8B", "--gpu", "H100", "--tp", "1", "--weights", "fp8", "--rate", "60", "--in", "500:0")
SHORT = (*DEMAND, "--out", "20:0", "--slo", "ttft-p95=300ms", "--gpu-hour", "3")


@pytest.fixture(scope="module")
def planned(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path]:
    """The screen, and the file that was written beside it."""
    path = tmp_path_factory.mktemp("plan") / "plan.toml"
    done = command.run("plan", *SHORT, "-o", path)
    assert done.returncode == 0
    assert all(line.startswith("planning: ") for line in done.stderr.splitlines())  # where it takes long
    return done.stdout, path


def test_the_screen_says_how_many_at_what_price_and_why(planned: tuple[str, Path]) -> None:
    text = " ".join(planned[0].replace("\\\n", "").split())
    assert "1 replica x 1 H100 SXM = 1 GPU, fp8 weights, $3.00/h" in text
    assert "ttft p95 300 ms" in text
    assert "* 1 1 $3.00 all met" in text
    assert "vllm serve meta-llama/Llama-3.1-8B --quantization fp8 --gpu-memory-utilization 0.92 " in text
    assert " --max-model-len 131072 " in text
    assert "Each: 60 requests/s a replica, 1,200 output tokens/s a GPU." in text
    lines = planned[0].splitlines()
    assert len(lines) <= 40
    assert max(map(len, lines)) <= 80


def test_spare_replicas_are_paid_and_nothing_counts_on_them(
    run: Run, planned: tuple[str, Path], tmp_path: Path
) -> None:
    kept = tmp_path / "spare.toml"
    code, text, _ = run(str(planned[1]), "--spare", "2", "-o", str(kept))
    words = " ".join(text.split())
    assert code == 0
    assert "1 + 2 spare replicas x 1 H100 SXM = 3 GPUs, fp8 weights, $9.00/h" in words
    assert "* 1 3 $9.00 all met" in words
    assert (
        words.partition("ttft p95 300 ms")[2][:60]
        == " ".join(planned[0].split()).partition("ttft p95 300 ms")[2][:60]
    )
    assert "Cost 9/h a replica" in " ".join(command.run("analyze", kept).stdout.split())
    old, new = (tomllib.loads(path.read_text("utf-8")) for path in (planned[1], kept))
    assert new.pop("plan") == {**old.pop("plan"), "spare": 2}
    assert new == old


def test_a_long_search_says_where_it_is_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    clock = iter((0.0, 4.9, 5.1, 5.1, 9.0, 12.0, 12.0))
    monkeypatch.setattr("time.monotonic", lambda: next(clock))
    progress = seldom(said.append, 5.0)
    for what in ("1 of 4", "2 of 4", "3 of 4", "4 of 4"):
        progress(what)
    assert said == ["2 of 4", "4 of 4"]


def test_the_screen_says_that_times_of_stages_were_compared_with_nothing(
    run: Run, planned: tuple[str, Path]
) -> None:
    said = "Times of TP1 PP2 were compared with no measurement; pipeline bubbles are not modelled."
    code, text, _ = run(*SHORT, "--pp", "2", "--headroom", "0")
    assert code == 0
    assert said in " ".join(text.split())
    assert "pipeline" not in planned[0]


def test_the_document_and_the_written_profile_agree_with_analyze(run: Run, planned: tuple[str, Path]) -> None:
    code, text, _ = run(*SHORT, "--format", "json")
    document = documents.read("plan", text)
    found, report = (
        document["plan"],
        json.loads(command.run("analyze", planned[1], "--format", "json").stdout),
    )
    assert (code, document["schema_version"], found["status"], found["replicas"]) == (0, 2, "planned", 1)
    [ttft] = [one for one in found["objectives"] if one["key"] == "ttft_s.p95"]
    assert ttft["value"] == report["latency"]["ttft_s"]["p95"]
    assert [ttft["low"], ttft["high"]] == report["latency"]["ci95"]["ttft_s.p95"]
    assert found["recovers"] == report["verdict"]["status"]
    assert found["burst"]["drain_s"] == report["verdict"]["drain"]["seconds"]
    assert found["profile"]["sha256"] == report["profile"]["sha256"]
    assert found["cost"]["per_hour"] == report["cost"]["per_hour"] == 3.0
    assert found["share"] == pytest.approx({"replica_rps": 60, "gpu_output_tokens_per_s": 60 * 20})
    assert found["headroom"] == report["headroom"]
    [size] = [size for size in found["sizes"] if size["replicas"] == 1]
    assert (size["met"], size["recovers"]) == ("holds", "holds")
    assert size["recovery_s"] == report["verdict"]["drain"]["seconds"]
    assert report["inputs"] == {"gpu": "estimated", "timing": "estimated", "workload": "stated"}


def latency(file: Path) -> Latency:
    """What a report says of a profile's latencies."""
    profile = load_profile(str(file), stdin=BytesIO())
    return Analyses(profile.model, profile.plan).latency


SLOTS = """\
schema = 1
name = "one at a time, {gpus} GPUs"
gpu = {{ memory_tokens = 1_000, gpus = {gpus}, prefill = "disaggregated" }}
timing = {{ d0 = "50 ms" }}
classes = [{{ name = "a", input = 990, decode = 10, rate = 14.4 }}]
"""


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("prices", "gpus", "cost"),
    [
        (["--gpu-hour", "2.5"], [32, 64], 80.0),
        (["--gpu-hour", "2.5", "--replica-hour", "large=3"], [64, 32], 24.0),
        (["--replica-hour", "small=1,large=3"], [32, 64], 8.0),
        ([], [32, 64], None),
    ],
)
def test_profiles_are_ranked_by_what_they_cost(
    run: Run, tmp_path: Path, prices: list[str], gpus: list[int], cost: float | None
) -> None:
    """Ten iterations of 52.5 ms, one request at a time: 1.9 a second, so that 14.4 take 8 replicas."""
    files = [tmp_path / "large.toml", tmp_path / "small.toml"]
    for file, each in zip(files, (8, 4), strict=True):
        file.write_text(SLOTS.format(gpus=each))
    code, text, _ = run(*map(str, files), *prices, "--format", "json")
    found = documents.read("plan", text)["plan"]
    assert (code, found["replicas"], found["cost"]["per_hour"]) == (0, 8, cost)
    assert [found["gpus"], found["alternatives"][0]["gpus"]] == gpus


RANKS = """\
schema = 1
name = "eight ranks"
gpu = { memory_tokens = 600_000, data_parallel = 8, expert_parallel = 8, max_num_batched_tokens = 8192 }
timing = { d0 = "30 ms", d2 = "0.2 ms" }
classes = [{ name = "a", input = 1000, decode = 200, rate = 24 }]
slo = { itl_s.p50 = "100 ms" }
"""


@pytest.mark.nightly
def test_prompts_at_an_interval_save_a_replica_and_are_kept(run: Run, tmp_path: Path) -> None:
    """What a public change measured, a median ITL of 275 ms without and 32 ms with an interval of 2: tests of ranks."""
    file, kept = tmp_path / "ranks.toml", tmp_path / "kept.toml"
    file.write_text(RANKS)
    code, screen, _ = run(str(file), "-o", str(kept))
    assert code == 0
    assert "1 replica x 8 GPU = 8 GPUs" in screen
    assert "prefill_interval = 2 saves 8 GPUs (2 replicas without): all ranks" in " ".join(screen.split())
    assert load_profile(str(kept), stdin=BytesIO()).tables["engine"] == {"prefill_interval": 2}
    code, text, _ = run(str(kept), "--format", "json")  # it is given now
    found = documents.read("plan", text)["plan"]
    assert (code, found["replicas"], found["prefill_interval"]) == (0, 1, None)
    assert found["engine"]["command"].endswith(" --prefill-schedule-interval 2")
    code, text, _ = run(str(file), "--settings", "prefill_interval=1", "--format", "json")
    found = documents.read("plan", text)["plan"]
    assert (code, found["replicas"], found["prefill_interval"]) == (0, 2, None)


DAY = """\
schema = 1
name = "day"
gpu = { memory_tokens = 60_000, block_tokens = 16, max_num_batched_tokens = 2048 }
timing = { d0 = "14.5 ms", d1 = "0.25 us", d2 = "85 us" }
classes = [{ name = "chat", input = 800, decode = { 60 = 1, 240 = 1 }, rate = 10 }]
slo = { ttft_s.p95 = "1 s" }
cost = { gpu_hour = 2, power = "500 W" }
workload = { period = "1 h", schedule = [{ at = "10 min", factor = 2 }, { at = "20 min", factor = 0.3 }] }
"""


def test_a_day_is_planned_with_replicas_that_come_and_go(run: Run, tmp_path: Path) -> None:
    """Of 24 parts of 2.5 min four have 20 requests/s, the others 3; the mean is 5.83."""
    file = tmp_path / "day.toml"
    file.write_text(DAY)
    asked = ("--schedule", "own", "--load-time", "30 s", "--api-price", "in=1,out=2")
    code, text, _ = run(str(file), *asked, "--format", "json")
    found = documents.read("plan", text)["plan"]
    day, most = found["day"], found["replicas"]
    assert (code, [round(hour["demand_rps"], 6) for hour in day["hours"]]) == (
        0,
        [3] * 4 + [20] * 4 + [3] * 16,
    )
    assert 20 / most <= day["served_rps"] < 20 / (most - 1)
    assert [hour["replicas"] for hour in day["hours"]] == [1] * 4 + [most] * 4 + [1] * 16
    assert day["gpu_hours"] == pytest.approx((20 + 4 * most) / 24)
    assert day["remove_rps"] == pytest.approx(0.8 * day["served_rps"])
    ways = day["simulated"]
    assert ways["fixed"]["gpu_hours"] == day["fixed_gpu_hours"] == pytest.approx(most)
    assert day["gpu_hours"] < ways["scheduled"]["gpu_hours"] < ways["fixed"]["gpu_hours"]
    assert ways["scheduled"]["within"] > ways["autoscaled"]["within"] > 0.5
    output_tokens = 3600 * 140 / 24 * 150
    assert found["cost"]["per_million_output_tokens"] == pytest.approx(2 * most / output_tokens * 1e6)
    # a request of 800 and 150 tokens is $0.0011 at the API; 21,000 an hour
    autoscaled = 2 * ways["autoscaled"]["gpu_hours"]
    api = {"per_hour": 23.1, "cheaper_from_rps": 2 * most / 3.96, "autoscaled_per_hour": autoscaled}
    assert found["api"] == pytest.approx(api)
    assert (found["energy"]["watts"], found["energy"]["idle_watts"]) == (500 * most, 100 * most)
    assert found["energy"]["idle_assumed"]  # a fifth
    busy = [way["busy_gpu_hours"] for way in ways.values()]
    assert max(busy[:2]) < 0.6 * busy[2]  # the same requests in larger batches take less time in all
    for way in ways.values():
        idle = way["gpu_hours"] - way["busy_gpu_hours"]
        assert way["kwh"] == pytest.approx(0.5 * way["busy_gpu_hours"] + 0.1 * idle)


@pytest.mark.nightly
def test_energy_is_that_of_the_time_as_run(run: Run, tmp_path: Path) -> None:
    """A request is ten iterations of 50 ms, alone: one a second keep 4 GPUs busy for half of the time.

    They draw 4·(500 + 100)/2 = 1,200 W, 28.8 kWh a day, for ten tokens a second. No price is needed.
    """
    file = tmp_path / "slots.toml"
    power = 'cost = { power = "500 W", idle_power = "100 W" }'
    file.write_text(SLOTS.format(gpus=4).replace("14.4", "1") + power)
    found = documents.read("plan", run(str(file), "--format", "json")[1])["plan"]
    energy = found["energy"]
    assert (found["replicas"], found["cost"]["per_hour"], energy["idle_assumed"]) == (1, None, False)
    assert (energy["watts"], energy["idle_watts"]) == (2000, 400)
    assert energy["busy"] == pytest.approx(0.5, rel=0.03)
    assert energy["kwh_per_day"] == pytest.approx(0.024 * (400 + 1600 * energy["busy"]))
    assert energy["joules_per_output_token"] == pytest.approx(energy["kwh_per_day"] / 24 * 1000 / 10)
    assert "kWh a day" in run(str(file))[1]


def test_a_plan_for_a_day_is_one_for_its_worst_part(run: Run, tmp_path: Path) -> None:
    file, plan = tmp_path / "day.toml", tmp_path / "plan.toml"
    file.write_text(DAY)
    objectives = json.loads(run(str(file), "--format", "json")[1])["plan"]["objectives"]
    code, text, _ = run(str(file), "-o", str(plan))
    said = " ".join(text.split())
    assert code == 0
    assert "planned for 20 requests/s, from 10 min to 12.5 min; figures are those of the worst part" in said
    worst = latency(plan).worst_part
    [ttft] = [one for one in objectives if one["key"] == "ttft_s.p95"]
    assert ttft["value"] == worst.ttft_s.p95
    assert command.run("check", plan, "--require", "plan.holds").returncode == 0


def test_the_plot_has_the_plan_on_the_steps_of_its_kind(tmp_path: Path) -> None:
    file = tmp_path / "small.toml"
    file.write_text(SLOTS.format(gpus=4))
    profile = load_profile(str(file), stdin=BytesIO())
    drawn, *latencies = of_plan(plan(Request([profile], None, (), prices={profile.source: 10.0})))
    steps, dot = drawn.lines
    assert (dot.x.tolist(), dot.y.tolist(), drawn.y.label) == ([14.4], [80.0], "cost per hour")
    assert np.interp([1.8, 3.6, 14.39, 14.41], steps.x, steps.y) == pytest.approx([10, 20, 80, 80], abs=10)
    assert drawn.right[1] == 10.0
    assert [chart.title for chart in latencies] == ["TTFT against load", "ITL against load"]


def test_the_page_of_a_plan_has_its_screen_its_day_and_its_plots(run: Run, tmp_path: Path) -> None:
    file, page = tmp_path / "small.toml", tmp_path / "plan.html"
    hours = 'period = "2 h"\nschedule = [{ at = "0 h", factor = 0.5 }, { at = "1 h", factor = 1.0 }]\n'
    (tmp_path / "day.toml").write_text(f"[workload]\n{hours}")
    file.write_text(SLOTS.format(gpus=4))
    given = ("--schedule", str(tmp_path / "day.toml"), "--format", "html", "-o", str(page))
    assert run(str(file), *given, "--plot", str(tmp_path / "plan.svg"))[0] == 0
    assert "Replicas and cost against demand" in (tmp_path / "plan.svg").read_text()
    text = page.read_text()
    titles = ["Replicas and cost against demand", "The day", "TTFT against load", "ITL against load"]
    assert re.findall("<figcaption><b>(.*?)</b>", text) == titles
    assert "one simulated period" in text


def test_settings_that_are_given_are_not_searched(run: Run) -> None:
    given = ("--settings", "max_num_batched_tokens=1024", "--settings", "admission=first-chunk")
    code, text, _ = run(*SHORT, *given, "--format", "json")
    engine = json.loads(text)["plan"]["engine"]
    assert (code, engine["max_num_batched_tokens"]) == (0, 1024)
    assert "--no-scheduler-reserve-full-isl" in engine["command"]


def test_limits_and_versions_that_are_given_are_kept(
    run: Run, planned: tuple[str, Path], tmp_path: Path
) -> None:
    limits = ("--max-num-seqs", "32", "--max-num-batched-tokens", "1024", "--max-model-len", "4096")
    file = tmp_path / "plan.toml"
    code, text, _ = run(*SHORT, "--engine", "vllm==0.15.1", *limits, "-o", str(file))
    command = " ".join(text.replace("\\", " ").split())
    assert code == 0
    assert "estimated for vLLM 0.15.1, rates" in command
    assert "--max-num-seqs 32 --max-num-batched-tokens 1024 --max-model-len 4096" in command
    tables = load_profile(str(file), stdin=BytesIO()).tables
    assert tables["engine"] == {"version": "0.15.1", "max_model_len": 4096, "admission": "first-chunk"}
    assert (tables["gpu"]["max_num_seqs"], tables["gpu"]["max_num_batched_tokens"]) == (32, 1024)
    assert "estimated for vLLM 0.33 (the newest known; others hold" in " ".join(planned[0].split())


def test_objectives_are_added_to_those_of_a_profile(run: Run, tmp_path: Path) -> None:
    """An objective on the same figure takes its place."""
    file = tmp_path / "small.toml"
    file.write_text(f'{SLOTS.format(gpus=4)}slo = {{ ttft_s.p95 = "9 s" }}\n')
    slos = ("--slo", "ttft-p95=5s", "--slo", "e2e-p95=1min")
    code, text, _ = run(str(file), *slos, "--format", "json")
    limits = {one["key"]: one["limit"] for one in json.loads(text)["plan"]["objectives"]}
    assert code == 0
    assert limits == {"ttft_s.p95": 5.0, "e2e_s.p95": 60.0, "itl_s.p95": None}


def test_a_trace_is_planned_for_and_replayed_by_the_profile_that_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """600 requests of 400 tokens in and 100 out, one every 100 ms; at 20/s twice as fast."""
    rows = (f"{i / 10:.1f},400,100" for i in range(600))
    (tmp_path / "requests.csv").write_text("\n".join(("time,input_tokens,output_tokens", *rows, "")))
    demand = ("--trace", "requests.csv", "--rate", "20", "--slo", "ttft-p95=1s", "-o", "out/plan.toml")
    (tmp_path / "out").mkdir()
    monkeypatch.chdir(tmp_path)
    done = command.run("plan", "Llama-3.1-8B", "--gpu", "L40S", "--tp", "1", *demand)
    assert (done.returncode, done.stderr) == (0, "")
    assert "20 requests/s, 400 tokens in, 100 out" in done.stdout
    profile = load_profile(str(tmp_path / "out" / "plan.toml"), stdin=BytesIO())
    assert profile.trace.samefile(tmp_path / "requests.csv")
    assert profile.model.provenance.workload.basis == "measured"
    assert command.run("check", "out/plan.toml").returncode == 0


def test_an_interrupted_search_says_the_best_so_far_and_ends_as_interrupts_do(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Task, "judge", interrupted)
    asked = (*SHORT, "--headroom", "1%")  # which nobody else asks, whose answer would be known
    code, text, _ = run(*asked)
    assert code == 130
    assert "Interrupted. The best so far, by short runs, not confirmed" in " ".join(text.split())
    assert "1 replica x 1 H100 SXM" in text
    assert documents.read("plan", run(*asked, "--format", "json")[1])["plan"]["status"] == "interrupted"


def test_what_no_replica_can_do_is_said_with_exit_1(run: Run, tmp_path: Path) -> None:
    """The first token takes an iteration of 50 ms."""
    file = tmp_path / "small.toml"
    file.write_text(SLOTS.format(gpus=4))
    code, text, _ = run(str(file), "--slo", "ttft-p95=9ms")
    assert code == 1
    assert "Impossible at any number of replicas" in text
    assert "one at a time, 4 GPUs" in text


def test_a_prompt_that_fits_nowhere_is_told_of_the_gpu_that_was_asked_for(run: Run) -> None:
    """Beside the weights an H100 has no room for it; a B200 would have, and max_model_len refuses it there."""
    asked = ("--tp", "1", "--gpu", "H100", "--rate", "2", "--in", "500", "--out", "200")
    code, text, said = run("gpt-oss-120b", *asked, "--system-prompt", "140k")
    assert (code, "B200" in text + said) == (1, False)
    assert "the longest request does not fit" in text


def test_a_model_alone_is_told_all_that_is_missing(run: Run) -> None:
    code, text, messages = run("Llama-3.1-70B")
    assert (code, text) == (2, "")
    demand, gpus = messages.splitlines()
    assert demand.startswith("error: a demand is missing: --rate or --users, with --in and --out; or --trace")
    assert gpus.startswith("error: --gpu is missing: which GPUs? Known are RTX 3090")


def test_a_profile_without_traffic_is_told_three_ways_to_it(tmp_path: Path) -> None:
    path = tmp_path / "no-traffic.toml"
    path.write_text('schema = 1\nname = "x"\n[gpu]\nmemory_tokens = 9000\n[timing]\nd0 = "10 ms"\n')
    ways = "kvplan import REQUESTS reads them, kvplan plan takes --rate, --in and --out, or write them"
    for name in ("plan", "analyze", "check", "simulate", "emit"):
        done = run_command(name, str(path))
        assert (done.returncode, done.stderr) == (2, f"error: {path}: no [[classes]]: {ways}\n")


@pytest.mark.nightly
def test_a_system_prompt_beside_windows_is_planned_for(run: Run) -> None:
    """3,000 tokens that all prompts begin with: found, they are held once, and few replicas are enough."""
    asked = ("--gpu", "H100", "--tp", "1", "--rate", "10", "--in", "500", "--out", "300", "--format", "json")
    with_prompt, without = (
        json.loads(run("gpt-oss-120b", *asked, "--system-prompt", tokens)[1])["plan"]
        for tokens in ("3000", "0")
    )
    longer = json.loads(run("gpt-oss-120b", *asked[:7], "3500", *asked[8:])[1])["plan"]
    assert without["replicas"] <= with_prompt["replicas"] < longer["replicas"]
