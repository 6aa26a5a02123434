"""Rate sweeps foretold: knees and saturated stages from stages below, and TTFT where next to nothing runs."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean

import numpy as np
from sampled import read_samples

from kvplan.ingest.model.config import read_model
from kvplan.ingest.model.estimate import estimate_replica
from kvplan.ingest.model.hardware import find_gpu
from kvplan.ingest.timing.equations import Kind
from kvplan.ingest.timing.fit import fit_measured, of_deployment
from kvplan.ingest.timing.played import Law, foretold, mean_times, requests_of
from kvplan.ingest.timing.samples import Deployment, Point, Sweep
from kvplan.model import Prefill, Replica
from kvplan.simulation.policies.protocol import Settings
from kvplan.simulation.requests import Requests
from scoreboard.hidden import Times, unmeasured
from scoreboard.record import Configuration, Row, real_run
from scoreboard.replays import replayed

FOLDER = "inference-perf"
_VARIANTS = {
    "vllm": 128,
    "vllm+batch_size": 192,
    "vllm+chunking_and_prefix_caching": 128,
}  # and their max_num_seqs
MODEL, _GPU, _VERSION = "Llama-3.1-8B", "H100 SXM", "0.11.0"
STAGES = 7
FITTED, _LOW = 4, 2  # stages that are fitted, and those of a low load among them
SECONDS = 60  # of a stage
CLIENTS = 440  # requests that the client has in flight at most: 44 workers of 10
_KEPT_UP = 0.97  # of what was requested: below the knee


def stage_file(variant: str, number: int) -> str:
    """Of the client's report, in the folder of data."""
    return f"{FOLDER}/{variant}/stage_{number}_lifecycle.json"


def read_stage(folder: Path, variant: str, number: int) -> Sweep:
    """What the client measured, one point."""
    (found,) = read_samples(folder / stage_file(variant, number))
    assert isinstance(found, Sweep)
    return found


def requested_rps(folder: Path, variant: str, number: int) -> float:
    """What the client was told to send: the load, not a measurement."""
    report = json.loads((folder / stage_file(variant, number)).read_text("utf-8"))
    return float(report["load_summary"]["requested_rate"])


def replica_of(sequences: int) -> Replica:
    """The replica with so many sequences at most; its KV capacity is estimated."""
    limits = {"max_num_seqs": sequences, "max_num_batched_tokens": 8192}
    known = estimate_replica(read_model(MODEL), find_gpu(_GPU), version=_VERSION, limits=limits)
    return Replica(known.memory_tokens, 16, Prefill.FUSED, **limits)


def fitted(known: Sequence[Sweep], replica: Replica) -> Law:
    """What is fitted to some stages."""
    prior = of_deployment(Deployment(model=MODEL, gpu=_GPU))
    assert prior is not None
    return fit_measured(known, prior.timing, replica=replica).law


def _alone(point: Point, known: Sweep) -> Sweep:
    return Sweep("", known.format, known.deployment, (unmeasured(point),))


def at_rate(rate_rps: float, like: Point) -> Requests:
    """What comes in a stage: the client holds back what would be more than it has in flight at most."""
    size = round(rate_rps * SECONDS)
    load = Point(line=1, inputs=like.inputs, outputs=like.outputs, rate_rps=rate_rps, requests=size)
    return requests_of(load)


def at_client(requests: Requests, law: Law, replica: Replica, settings: Settings) -> Times:
    """Mean times of a run for the client, which sends a request when it is to come, or else as another is answered."""
    assert replica.max_num_seqs is not None
    held_back = replace(requests, most_waiting=CLIENTS - replica.max_num_seqs)
    run = replayed(held_back, law, replica, settings)
    sent_s = run.arrival_s - law.request_overhead_s
    sent_s[CLIENTS:] = np.maximum(sent_s[CLIENTS:], np.sort(run.finish_s)[:-CLIENTS])
    return mean_times(requests, replace(run, arrival_s=sent_s, request_overhead_s=0.0))


def measured_knee(folder: Path, variant: str) -> float:
    """Requests/s served beyond the knee, on average."""
    beyond = []
    for number in range(FITTED, STAGES):
        (point,) = read_stage(folder, variant, number).points
        served = point.throughput_rps
        if served is not None and served < _KEPT_UP * requested_rps(folder, variant, number):
            beyond.append(served)
    return fmean(beyond)


def _rows(folder: Path, variant: str, sequences: int) -> Iterator[Row]:
    of, replica = Configuration(variant, "dense", MODEL, "vllm"), replica_of(sequences)
    known = [read_stage(folder, variant, number) for number in range(FITTED)]
    for low in range(_LOW):
        others = [sweep for number, sweep in enumerate(known) if number != low]
        yield from _low_load(of, known[low], fitted(others, replica), replica)
    law, like = fitted(known, replica), known[-1].points[0]
    stages = [read_stage(folder, variant, number).points[0] for number in range(FITTED, STAGES)]
    requested = [requested_rps(folder, variant, number) for number in range(FITTED, STAGES)]

    played = [at_client(at_rate(rate, like), law, replica, Settings("vllm", {})) for rate in requested]
    served = [1 / times[Kind.INTERVAL] for times in played]
    knee = fmean(rps for rps, rate in zip(served, requested, strict=True) if rps < _KEPT_UP * rate)
    yield Row(of, "", "knee", "1/s", knee, measured_knee(folder, variant))
    for point, rate, times in zip(stages, requested, played, strict=True):
        yield from stage_rows(of, rate, times, point)


def stage_rows(of: Configuration, rate_rps: float, times: Times, point: Point) -> Iterator[Row]:
    """What is foretold of a stage, beside what was measured."""
    load = f"{rate_rps:.0f} requests/s"
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


def _all_rows(folder: Path) -> list[Row]:
    return [row for variant, sequences in _VARIANTS.items() for row in _rows(folder, variant, sequences)]


RATES = real_run(
    "rates-h100",
    tuple(stage_file(variant, number) for variant in _VARIANTS for number in range(STAGES)),
    _all_rows,
)
