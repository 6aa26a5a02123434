"""Runs that others published, read and played: open loads whose prompts recur or are new, and saturated ones."""

import csv
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

import numpy as np

from kvplan.engine import EngineName
from kvplan.ingest.model.config import read_model
from kvplan.ingest.model.estimate import estimate_replica
from kvplan.ingest.model.hardware import find_gpu
from kvplan.ingest.timing.played import Law
from kvplan.model import Parallelism, Plan, Prefill, Replica, RequestClass, ServingModel
from kvplan.simulation.experiments.runner import Job, run_to_the_end
from kvplan.simulation.outcome import Outcome
from kvplan.simulation.policies.protocol import Scenario, Settings
from kvplan.simulation.requests import Prefixes, Requests
from scoreboard.deployed import Configuration, Deployed

TRAINING, RESIDENCY, KEPT = (
    f"runs/{name}.csv" for name in ("source1_training", "source2_residency", "source3_sim_to_real")
)
_ALL_STAGES = "-1"
_BLOCK = 16
_REQUESTS = 3000  # of an open load; of a saturated one as many as were sent, or so many
_MANY = 5000
_TENTHS = 10  # of which the first and the last do not count
_CLIENTS = 256  # requests in flight of source 2
_PATIENCE_S, _TOOK_S = (
    300.0,
    1500.0,
)  # after which source 1's client gives up; how long it took with its drain
_PROMPTS, _SPREAD = 100, 0.02  # that are sent again and again; their lengths, where not stated


class Times(NamedTuple):
    """Means over requests, seconds, without what is outside the engine, and what was done per second."""

    ttft: float
    tpot: float
    e2e: float
    done_per_s: float


@dataclass(frozen=True, eq=False)
class Run:
    """A row: the load at each of its stages, and what a client measured."""

    deployed: Deployed
    source: str
    row: dict[str, str]
    stages: tuple[tuple[float, Requests], ...]  # with the weight of each
    replica: Replica
    measured: Times

    @property
    def configuration(self) -> Configuration:
        """What was measured."""
        return self.deployed.configuration

    @property
    def is_saturated(self) -> bool:
        """The queue grows, or the client has as many in flight as it may."""
        return self.row.get("saturated") == "yes"

    @property
    def gives_up(self) -> bool:
        """The queue grows until its client gives requests up."""
        return self.is_saturated and self.source == TRAINING

    @property
    def is_close_to_its_knee(self) -> bool:
        """More than three quarters of the sequences run that may, by Little's law: TTFT is chance there."""
        rate = float(self.row["rate_offered"].split("/")[-1])
        return self.is_saturated or rate * self.measured.e2e > 0.75 * (self.replica.max_num_seqs or 0)

    def at(self, law: Law) -> list[Job]:
        """Play the stages by a law."""
        nobody = RequestClass("", 1, (1,), (1.0,), 0.0)
        model = ServingModel((nobody,), law.timing, self.replica, request_overhead_s=law.request_overhead_s)
        return [Job(Settings("vllm", {}), Scenario(model, Plan(), some, ("",))) for _, some in self.stages]

    def seen(self, outcomes: Sequence[Outcome]) -> Times:
        """What the client would have measured."""
        each = [self._of_stage(some, out) for (_, some), out in zip(self.stages, outcomes, strict=True)]
        weights = [weight for weight, _ in self.stages]
        return Times(*np.average(each, axis=0, weights=weights).tolist())

    def _of_stage(self, requests: Requests, run: Outcome) -> Times:
        size = run.e2e_s.size
        kept = np.arange(size) // (size // _TENTHS) % (_TENTHS - 1) > 0
        ends = np.sort(run.finish_s)
        first, last = size // _TENTHS, size - size // _TENTHS
        done = (last - first) / (ends[last] - ends[first])
        if self.gives_up:
            kept = run.e2e_s <= _PATIENCE_S
            done = kept.sum() / _TOOK_S
        ttft, e2e = run.ttft_s[kept], run.e2e_s[kept]
        later = requests.decode_tokens[kept] - 1
        return Times(ttft.mean(), ((e2e - ttft) / later).mean(), e2e.mean(), done)


def played(runs: Iterable[tuple[Run, Law]]) -> list[Times]:
    """Play each run by a law."""
    runs = list(runs)
    jobs = [run.at(law) for run, law in runs]
    outcomes = iter(run_to_the_end([[job] for some in jobs for job in some], compile=True))
    return [run.seen([next(outcomes)[0] for _ in some]) for (run, _), some in zip(runs, jobs, strict=True)]


@lru_cache(maxsize=1)
def read_runs(folder: Path) -> tuple[Run, ...]:
    """All rows of the sources that a folder has; of source 3 those of all stages together."""
    found = []
    for source in (TRAINING, RESIDENCY, KEPT):
        if not (folder / source).exists():
            continue
        with (folder / source).open(newline="") as file:
            rows = list(csv.DictReader(file))
        found += [_run(row, source) for row in rows if source != KEPT or row["stage"] == _ALL_STAGES]
    return tuple(found)


def _run(row: dict[str, str], source: str) -> Run:
    shape, gpu, ranks = read_model(row["model"]), find_gpu(row["gpu"]), Parallelism(int(row["tp"]))
    of = Configuration(shape.like or shape.name, gpu.name, "vllm", "bf16", str(ranks))
    told = row.get("kv_tokens")
    replica = Replica(
        int(float(told)) if told else estimate_replica(shape, gpu, parallelism=ranks).memory_tokens,
        _BLOCK,
        Prefill.FUSED,
        max_num_seqs=int(row["max_num_seqs"]),
        max_num_batched_tokens=int(row["max_num_batched_tokens"]),
        prefix_caching=source != RESIDENCY,
    )
    later = int(row["output_asked"]) - 1
    rates = [float(rate) for rate in row["rate_offered"].split("/")]
    if source == KEPT:
        ttft, e2e = (float(row[f"meas_{name}_mean"]) / 1e3 for name in ("ttft", "e2e"))
        measured = Times(ttft, (e2e - ttft) / later, e2e, float(np.average(rates, weights=rates)))
    else:
        times = (float(row[f"{name}_mean_ms"]) / 1e3 for name in ("ttft", "tpot", "e2e"))
        measured = Times(*times, float(row["done_per_s"]))
    stages = tuple((rate, _load(row, source, rate)) for rate in rates)
    return Run(
        Deployed(of, shape, gpu, ranks, EngineName.VLLM, "auto"), source, row, stages, replica, measured
    )


def _load(row: dict[str, str], source: str, rate_rps: float) -> Requests:
    rng, saturated = np.random.default_rng(1), row.get("saturated") == "yes"
    in_flight = saturated and source == RESIDENCY
    size = _MANY if in_flight else int(row["sent"]) if saturated else _REQUESTS
    mean = float(row["prompt_mean"])
    low, high = (
        float(row.get(f"prompt_{end}") or mean * (1 + sign * _SPREAD))
        for end, sign in (("min", -1), ("max", 1))
    )
    if source == RESIDENCY:
        inputs, prefixes = rng.integers(int(low), int(high), size, endpoint=True), None
    else:
        prompts = rng.integers(int(low), int(high), _PROMPTS, endpoint=True)
        prompts += round(mean - prompts.mean())
        which = rng.integers(0, _PROMPTS, size)
        inputs, prefixes = prompts[which], _recurring(prompts, which)
    arrival = np.cumsum(rng.standard_exponential(size))
    arrival *= size / rate_rps / arrival[-1]
    decode, kind = np.full(size, int(row["output_asked"])), np.zeros(size, dtype=np.int64)
    load = Requests(arrival, inputs, decode, kind, prefixes=prefixes)
    return replace(load, arrival_s=np.zeros(size), clients=_CLIENTS) if in_flight else load


def _recurring(prompts: np.ndarray, which: np.ndarray) -> Prefixes:
    """Each request goes on where one of the prompts ends, in whole blocks, of which at least a token is computed."""
    ends = (prompts - 1) // _BLOCK * _BLOCK
    return Prefixes(
        stream=prompts.size + np.arange(which.size),
        parent=np.concatenate([np.full(prompts.size, -1), which]),
        end_tokens=np.concatenate([ends, np.zeros(which.size, dtype=np.int64)]),
    )
