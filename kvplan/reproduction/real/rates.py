"""Rate sweeps foretold: knees and saturated stages from stages below, and TTFT where next to nothing runs."""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import fmean

from kvplan.ingest.model.config import read_model
from kvplan.ingest.model.estimate import estimate_replica
from kvplan.ingest.model.hardware import find_gpu
from kvplan.ingest.timing.equations import Kind
from kvplan.ingest.timing.fit import fit_measured
from kvplan.ingest.timing.played import Law, foretold
from kvplan.ingest.timing.prior import of_deployment
from kvplan.ingest.timing.reading import read_samples
from kvplan.ingest.timing.sweep import Deployment, Point, Sweep
from kvplan.model import Prefill, Replica
from kvplan.reproduction.real.hidden import Times, unmeasured
from kvplan.reproduction.real.record import Bound, Configuration, Off, Over, Part, RealRun, Row

FOLDER = "inference-perf"
_VARIANTS = {
    "vllm": 128,
    "vllm+batch_size": 192,
    "vllm+chunking_and_prefix_caching": 128,
}  # and their max_num_seqs
_MODEL, _GPU = "Llama-3.1-8B", "H100 SXM"
_FITTED, _LOW, _STAGES = 4, 2, 7  # stages that are fitted, those of a low load among them, and all
_SECONDS = 60  # of a stage
_CLIENTS = 440  # requests that the client has in flight at most: 44 workers of 10
_KEPT_UP = 0.97  # of what was requested: below the knee


def _stage(variant: str, number: int) -> str:
    return f"{FOLDER}/{variant}/stage_{number}_lifecycle.json"


def _read(folder: Path, variant: str, number: int) -> Sweep:
    (found,) = read_samples(folder / _stage(variant, number))
    assert isinstance(found, Sweep)
    return found


def _requested_rps(folder: Path, variant: str, number: int) -> float:
    """What the client was told to send: the load, not a measurement."""
    report = json.loads((folder / _stage(variant, number)).read_text("utf-8"))
    return float(report["load_summary"]["requested_rate"])


def _replica(sequences: int) -> Replica:
    memory = estimate_replica(read_model(_MODEL), find_gpu(_GPU)).memory_tokens
    return Replica(memory, 16, Prefill.FUSED, max_num_seqs=sequences, max_num_batched_tokens=8192)


def _fitted(known: Sequence[Sweep], replica: Replica) -> Law:
    prior = of_deployment(Deployment(model=_MODEL, gpu=_GPU))
    assert prior is not None
    return fit_measured(known, prior.timing, replica=replica).law


def _alone(point: Point, known: Sweep) -> Sweep:
    return Sweep("", known.format, known.deployment, (unmeasured(point),))


def _saturated(like: Point, rate_rps: float, known: Sweep, law: Law, replica: Replica) -> tuple[bool, Times]:
    """Whether a rate is beyond what the client's requests in flight can get, and the times of what it then is."""
    size = round(rate_rps * _SECONDS)
    load = Point(line=1, inputs=like.inputs, outputs=like.outputs, concurrency=_CLIENTS, requests=size)
    (loop,) = foretold([_alone(load, known)], law, replica)
    if 1 / loop[Kind.INTERVAL] < rate_rps:
        return True, loop
    arriving = Point(line=1, inputs=like.inputs, outputs=like.outputs, rate_rps=rate_rps, requests=size)
    return False, foretold([_alone(arriving, known)], law, replica)[0]


def _rows(folder: Path, variant: str, sequences: int) -> Iterator[Row]:
    of, replica = Configuration(variant, "dense", _MODEL, "vllm"), _replica(sequences)
    known = [_read(folder, variant, number) for number in range(_FITTED)]
    for low in range(_LOW):
        others = [sweep for number, sweep in enumerate(known) if number != low]
        yield from _low_load(of, known[low], _fitted(others, replica), replica)
    law, like = _fitted(known, replica), known[-1].points[0]
    saturated = [
        _saturated(like, _requested_rps(folder, variant, number), known[-1], law, replica)
        for number in range(_FITTED, _STAGES)
    ]
    stages = [_read(folder, variant, number).points[0] for number in range(_FITTED, _STAGES)]
    requested = [_requested_rps(folder, variant, number) for number in range(_FITTED, _STAGES)]
    beyond = [
        point.throughput_rps
        for point, rate in zip(stages, requested, strict=True)
        if point.throughput_rps is not None and point.throughput_rps < _KEPT_UP * rate
    ]
    knee = fmean(1 / times[Kind.INTERVAL] for is_beyond, times in saturated if is_beyond)
    yield Row(of, "", "knee", "1/s", knee, fmean(beyond))
    for point, rate, (_, times) in zip(stages, requested, saturated, strict=True):
        load = f"{rate:.0f} requests/s"
        assert point.e2e_s is not None
        assert point.tpot_s is not None
        yield Row(of, load, "E2E", "s", times[Kind.E2E], point.e2e_s)
        yield Row(of, load, "TPOT", "s", times[Kind.TPOT], point.tpot_s)


def _low_load(of: Configuration, hidden: Sweep, law: Law, replica: Replica) -> Iterator[Row]:
    (point,) = hidden.points
    (times,) = foretold([_alone(point, hidden)], law, replica)
    assert point.ttft_s is not None
    yield Row(
        of, f"{point.rate_rps:.3g} requests/s", "TTFT at a low load", "s", times[Kind.TTFT], point.ttft_s
    )


def _all_rows(folder: Path, told: Part) -> list[Row]:
    found: list[Row] = []
    for number, (variant, sequences) in enumerate(_VARIANTS.items(), 1):
        found += _rows(folder, variant, sequences)
        told(number / len(_VARIANTS))
    return found


RATES = RealRun(
    name="rates-h100",
    title="Knees of three rate sweeps on an H100",
    source="kubernetes-sigs/inference-perf at 7de5ef2e, demos/kubecon-na-2025: Llama-3.1-8B under vLLM 0.11",
    licence="Apache-2.0",
    protocol=(
        "Stages 0 to 3 of seven are fitted; what stages 4 to 6 serve is foretold from the rate that was "
        "asked for and the 440 requests that the client has in flight at most. Beyond the knee less than "
        "97% of the rate was served. TTFT at a low load, stages 0 and 1, is foretold from the other three "
        "of stages 0 to 3. KV capacity is estimated; it does not bind."
    ),
    files=tuple(_stage(variant, number) for variant in _VARIANTS for number in range(_STAGES)),
    bounds=(
        Bound(quantity="knee", over=Over.WORST, must=0.03, recorded=0.019),
        Bound(quantity="TTFT at a low load", over=Over.WORST, off=Off.SECONDS, must=0.003, recorded=0.0095),
        Bound(quantity="E2E", over=Over.MEDIAN, recorded=0.02),
        Bound(quantity="TPOT", over=Over.MEDIAN, recorded=0.04),
    ),
    rows=_all_rows,
)
