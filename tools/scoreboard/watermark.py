"""The watermark experiment of vLLM's pull request 44594 foretold, from nothing but model, GPU and memory."""

from pathlib import Path
from statistics import fmean
from typing import NamedTuple

import numpy as np

from kvplan.ingest.timing.fit import of_deployment
from kvplan.ingest.timing.played import Law
from kvplan.ingest.timing.samples import Deployment
from kvplan.model import Prefill, Replica
from kvplan.simulation.policies.protocol import Settings
from kvplan.simulation.requests import Requests
from scoreboard.record import Configuration, Row, real_run
from scoreboard.replays import replayed


class Published(NamedTuple):
    """What is printed of a watermark: preemptions, and tokens generated per second."""

    preemptions: int
    tokens_per_s: float


PUBLISHED = {
    0.0: Published(1065, 11582),
    0.02: Published(400, 12134),
    0.05: Published(187, 12167),
    0.10: Published(168, 11835),
    0.15: Published(168, 11635),
}
_MODEL, _GPU = "Qwen2.5-7B", "GB200"
_REPLICA = Replica(
    299_584, 16, Prefill.FUSED, max_num_seqs=256, max_num_batched_tokens=8192, prefix_caching=False
)
_REQUESTS, _CLIENTS, _SEEDS = 450, 128, 4
_INPUT, _OUTPUT = (800, 1200), (4000, 6000)  # a fifth to either side of 1,000 and 5,000


def requests(seed: int) -> Requests:
    """Those of a run; 128 at once, each followed by another."""
    rng = np.random.default_rng(seed)
    inputs, outputs = (rng.integers(*ends, _REQUESTS, endpoint=True) for ends in (_INPUT, _OUTPUT))
    none = np.zeros(_REQUESTS, dtype=np.int64)
    return Requests(none.astype(np.float64), inputs, outputs, none, _CLIENTS)


def _foretold(law: Law, watermark: float) -> Published:
    settings = Settings("vllm", {"watermark": (watermark,)})
    found = []
    for seed in range(_SEEDS):
        some = requests(seed)
        outcome = replayed(some, law, _REPLICA, settings)
        found.append((outcome.evictions.sum(), some.decode_tokens.sum() / outcome.end_s))
    preemptions, tokens = (fmean(map(float, column)) for column in zip(*found, strict=True))
    return Published(round(preemptions), tokens)


def _rows(folder: Path) -> list[Row]:
    prior = of_deployment(Deployment(model=_MODEL, gpu=_GPU))
    assert prior is not None
    of = Configuration(f"{_GPU}, {_MODEL}", "dense", _MODEL, "vllm")
    found = {watermark: _foretold(Law(prior.timing), watermark) for watermark in PUBLISHED}
    rows = []
    for watermark, foretold in found.items():
        measured, load = PUBLISHED[watermark], f"watermark {watermark:g}"
        rows.append(Row(of, load, "preemptions", "", foretold.preemptions, measured.preemptions))
        rows.append(Row(of, load, "output tokens/s", "1/s", foretold.tokens_per_s, measured.tokens_per_s))
        if watermark > 0:
            gains = (
                one.tokens_per_s / off.tokens_per_s - 1
                for one, off in ((foretold, found[0]), (measured, PUBLISHED[0]))
            )
            rows.append(Row(of, load, "gain in tokens/s", "%", *gains))
    return rows


WATERMARK = real_run("vllm-watermark", (), _rows)
