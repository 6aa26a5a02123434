"""A rate sweep with a prefix cache, and one without: the same traffic, on the same model and GPU."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from statistics import fmean

import numpy as np

from kvplan.analysis.cache_states import cached_replica
from kvplan.analysis.prefix_cache import prefix_cache
from kvplan.ingest.timing.equations import Kind
from kvplan.ingest.timing.played import Law
from kvplan.ingest.timing.samples import Point, Sweep
from kvplan.model import Replica, RequestClass, ServingModel
from kvplan.model.sessions import SharedPrompt
from kvplan.simulation.policies.protocol import Settings
from kvplan.simulation.sessions import with_shared_prompts
from scoreboard.hidden import Times, unmeasured
from scoreboard.rates import (
    FITTED,
    MODEL,
    STAGES,
    at_client,
    at_rate,
    fitted,
    measured_knee,
    read_stage,
    replica_of,
    requested_rps,
    stage_file,
    stage_rows,
)
from scoreboard.record import Configuration, Row, real_run

WITHOUT, WITH, _SEQUENCES = "vllm", "vllm+chunking_and_prefix_caching", 128
_SYSTEM = (SharedPrompt(128, 0.1),) * 10  # as the client was configured
_WHOLE = (SharedPrompt(192, 0.01),) * 100  # whole pages of prompts of 195 tokens or more
_CACHING = Settings("vllm", {"prefix_caching": (1.0,)})


def _played(
    rate_rps: float, like: Point, shared: tuple[SharedPrompt, ...], law: Law, replica: Replica
) -> Times:
    requests = with_shared_prompts(at_rate(rate_rps, like), [shared], np.random.default_rng(0))
    return at_client(requests, law, replica, _CACHING)


def closed_form_knee(like: Point, law: Law, replica: Replica) -> float:
    """Requests/s at which all sequences run, each prompt of the mean length and found, as all stay in the cache."""
    lengths = range(like.outputs[0], like.outputs[1] + 1)
    load = RequestClass("", round(fmean(like.inputs)), tuple(lengths), (1.0,) * len(lengths), 1.0, _WHOLE)
    cached = cached_replica(ServingModel((load,), law.timing, replica))
    return prefix_cache(cached).sustainable_rps.good


def _found(sweep: Sweep, tokens: int) -> Sweep:
    return replace(sweep, points=tuple(replace(point, cached_tokens=tokens) for point in sweep.points))


def _rows(folder: Path) -> list[Row]:
    of, replica = Configuration(WITH, "dense", MODEL, "vllm"), replica_of(_SEQUENCES)
    with_it, without = (
        [read_stage(folder, variant, number) for number in range(FITTED)] for variant in (WITH, WITHOUT)
    )
    by_whole, by_system = (
        fitted([*without, *(_found(stage, shared[0].tokens) for stage in with_it)], replica)
        for shared in (_WHOLE, _SYSTEM)
    )
    rate, like = requested_rps(folder, WITH, STAGES - 1), unmeasured(with_it[-1].points[0])
    times = _played(rate, like, _SYSTEM, by_system, replica)
    other = Row(
        of, "", "knee if system prompts", "1/s", 1 / times[Kind.INTERVAL], measured_knee(folder, WITH)
    )
    return [*_foretold(of, folder, by_whole, replica), _knee_without(of, folder, by_whole, replica), other]


def _knee_without(of: Configuration, folder: Path, law: Law, replica: Replica) -> Row:
    rate, (like,) = requested_rps(folder, WITHOUT, STAGES - 1), read_stage(folder, WITHOUT, STAGES - 1).points
    times = at_client(at_rate(rate, unmeasured(like)), law, replica, Settings("vllm", {}))
    return Row(of, "", "knee without", "1/s", 1 / times[Kind.INTERVAL], measured_knee(folder, WITHOUT))


def _foretold(of: Configuration, folder: Path, law: Law, replica: Replica) -> Iterator[Row]:
    points = [read_stage(folder, WITH, number).points[0] for number in range(FITTED, STAGES)]
    requested = [requested_rps(folder, WITH, number) for number in range(FITTED, STAGES)]
    measured, like = measured_knee(folder, WITH), unmeasured(points[-1])
    yield Row(of, "", "knee in closed form", "1/s", closed_form_knee(like, law, replica), measured)
    for point, rate in zip(points, requested, strict=True):
        times = _played(rate, unmeasured(point), _WHOLE, law, replica)
        yield from stage_rows(of, rate, times, point)
    yield Row(of, "", "knee", "1/s", 1 / times[Kind.INTERVAL], measured)


CACHED = real_run(
    "prefix-cache-h100",
    tuple(stage_file(variant, number) for variant in (WITHOUT, WITH) for number in range(STAGES)),
    _rows,
)
