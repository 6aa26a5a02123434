"""Runs that others published, foretold without any measurement, beside what other tools said of the same points."""

from collections.abc import Iterator
from functools import partial
from pathlib import Path

from kvplan.ingest.timing.equations import Kind
from kvplan.ingest.timing.played import foretold
from kvplan.ingest.timing.samples import Deployment, Point, Sweep
from scoreboard.deployed import deployed
from scoreboard.record import Configuration, Row, real_run
from scoreboard.recorded import KEPT, RESIDENCY, TRAINING, Run, Times, played
from scoreboard.sweeps import FILE, SETTINGS
from scoreboard.unmeasured import Known, read

OTHERS = (
    "blis-evolved",
    "blis-roofline",
    "vidur",
    "llmservingsim",
    "aiconfigurator-estimate",
    "llm-optimizer-estimate",
)
# Of a public thread: 32,768 tokens in, 77 out, of which memory holds one at a time; requests/s and TPOT.
_LONG = Deployment(model="Qwen3-32B", gpu="H100 PCIe", engine="vllm", weight_dtype="bf16")
_LONG_POINT = Point(
    line=1, inputs=(32768, 32768), outputs=(77, 77), concurrency=1, max_num_batched_tokens=8192
)
_LONG_RPS, _LONG_TPOT_S = 0.086, 0.0434
_NAMES = {TRAINING: "prompts recur", RESIDENCY: "prompts are new", KEPT: "kept apart"}


def _rows(folder: Path) -> list[Row]:
    known = read(folder)
    learnt = [known.without_model(run.configuration.model) for run in known.runs]
    laws = [one.law(run.deployed) for one, run in zip(learnt, known.runs, strict=True)]
    found = played(zip(known.runs, laws, strict=True))
    rows = [row for run, times in zip(known.runs, found, strict=True) for row in _rows_of(run, times)]
    return rows + list(_long_prompts(known))


def _rows_of(run: Run, times: Times) -> Iterator[Row]:
    row, kind = run.row, "MoE" if run.deployed.shape.counts.experts else "dense"
    load = f"{row['prompt_mean'][:6]} in, {row['output_asked']} out, {row['rate_offered'][:5]} requests/s"
    of = partial(Configuration, f"{row['run']} {load}", model=run.configuration.model, engine="vllm")
    if run.is_saturated:
        yield Row(of("saturated"), load, "requests/s", "1/s", times.done_per_s, run.measured.done_per_s)
        if not run.gives_up:
            yield Row(of("saturated"), load, "knee", "1/s", times.done_per_s, run.measured.done_per_s)
        return
    for group in ("open", f"open {kind}", _NAMES[run.source]):
        mine = of(group)
        for quantity in ("ttft", "tpot", "e2e"):
            both = getattr(times, quantity), getattr(run.measured, quantity)
            yield Row(mine, load, quantity.upper(), "s", *both)
    yield Row(of("open"), load, "served", "1/s", times.done_per_s, run.measured.done_per_s)
    for tool in OTHERS:
        for quantity in ("ttft", "e2e") if run.source == KEPT else ():
            if said := row.get(f"{tool}_{quantity}_mean"):
                seconds = getattr(run.measured, quantity)
                yield Row(of(tool), load, quantity.upper(), "s", float(said) / 1e3, seconds)


def _long_prompts(known: Known) -> Iterator[Row]:
    of = deployed(_LONG)
    (times,) = foretold([Sweep("", "", _LONG, (_LONG_POINT,))], known.without_model(of.shape.like).law(of))
    mine, load = (
        Configuration(_LONG.name, "long prompts", of.shape.like, "vllm"),
        "32768 in, 77 out, one at a time",
    )
    yield Row(mine, load, "requests/s", "1/s", 1 / times[Kind.INTERVAL], _LONG_RPS)
    yield Row(mine, load, "TPOT", "s", times[Kind.TPOT], _LONG_TPOT_S)


PUBLISHED = real_run("runs", (TRAINING, RESIDENCY, KEPT, FILE, SETTINGS), _rows)
