"""Trials of what ends the collapse of a prefix cache: a limit of running requests together with a bound on waiting.

A burst leaves memory full of requests in flight, of which none finds anything. Fewer running requests leave room for
what the next ones ask for, and no queue outlasts it. Neither ends a collapse alone; where the replica has such a limit,
a bound on waiting is tried beside that.
"""

from collections.abc import Mapping
from typing import NamedTuple

from kvplan.analysis.cache_states import cached_replica
from kvplan.analysis.fleet import steady_replica
from kvplan.analysis.prefix_cache import PrefixCache, full_memory, prefix_cache
from kvplan.model import Plan, ServingModel
from kvplan.simulation.experiments.runner import Job, at_once
from kvplan.simulation.policies import POLICIES, engine_settings
from kvplan.simulation.policies.parameters import SHED_AFTER
from kvplan.simulation.policies.protocol import Scenario, Settings
from kvplan.study.warm_cache import burst_size, with_burst
from kvplan.study.warm_up import life_s

SEATS = ("max_num_seqs", "max_running_requests")  # what policies call it
_SEEDS = range(2)
_SEED = 80_000
_BURST = 3  # times as much as fills memory once
_OF_SEPARATRIX = 0.75  # running requests
_PATIENCE = 1 / 8  # of the time after which what nobody asks for is gone
_LIVES, _LAST = 8.0, 0.25  # length of a run in lives of sessions; the part at its end that counts
_GIVEN_UP = 0.01  # share of the arrivals that may still be


class Setting(NamedTuple):
    """A parameter of the engine's policy, and its value."""

    name: str
    value: float


class Gained(NamedTuple):
    """Settings, by how much more is served with them under a backlog, relative, and whether the offered rate is."""

    settings: tuple[Setting, ...]
    gain: float
    sustains: bool


class _End(NamedTuple):
    """The last part of a run."""

    warm: bool
    served: int


def protection(model: ServingModel, plan: Plan) -> Gained | None:
    """Try, from the collapsed state, whether limits end the collapse of a prefix cache at the offered rate (theory §8).

    Of a fleet one replica with its share is looked at. None where the cache cannot collapse or has no warm state, the
    engine has no such limits, or where a run came back without them, or did not with them.
    """
    model = steady_replica(model)
    if not (model.finds_prefixes and model.is_plain) or model.hit_curve:
        return None
    found, settings = prefix_cache(cached_replica(model)), engine_settings(model)
    seats = next((name for name in SEATS if name in POLICIES[settings.policy].parameters), None)
    warm, lost = found.warm, found.separatrix_in_flight
    if seats is None or not found.collapse_possible or warm is None or warm.characteristic_time_s is None:
        return None
    if lost is None and model.replica.max_num_seqs is None:
        return None
    chosen = [Setting(SHED_AFTER, float(f"{_PATIENCE * warm.characteristic_time_s:.2g}"))]
    if lost is not None:  # else the replica's own limit lies below
        chosen.insert(0, Setting(seats, max(1, int(_OF_SEPARATRIX * lost))))
    limits = {setting.name: (float(setting.value),) for setting in chosen}
    jobs = [(given, seed) for given in ({}, limits) for seed in _SEEDS]
    ends = at_once(lambda job: _end(model, plan, settings, found, *job), jobs)
    without, within = ends[: len(_SEEDS)], ends[len(_SEEDS) :]
    if any(end.warm for end in without) or not all(end.warm for end in within):
        return None
    gain = sum(end.served for end in within) / sum(end.served for end in without) - 1
    return Gained(tuple(chosen), gain, sustains=True)


def _end(
    model: ServingModel,
    plan: Plan,
    settings: Settings,
    found: PrefixCache,
    limits: Mapping[str, tuple[float, ...]],
    seed: int,
) -> _End:
    """Run from a burst to the end, which is warm if most of what a warm cache finds is found, by all who come."""
    assert found.warm is not None
    cached = cached_replica(model)
    gap = max((c.reuse.gap.mean_s for c in model.classes if c.reuse is not None), default=0.0)
    end_s = _LIVES * (life_s(model) + gap)
    requests = with_burst(model, end_s, _BURST * burst_size(cached), 0.0, _SEED + seed)
    scenario = Scenario(model, plan, requests, tuple(c.name for c in model.classes), seed)
    job = Job(Settings(settings.policy, {**settings.given, **limits}), scenario, end_s)
    run = job.run(lambda _: True, None, True)
    assert run.found is not None
    late = run.first_token_s >= (1 - _LAST) * end_s
    prompts, hits = requests.input_tokens[late].sum(), run.found.hit_tokens[late].sum()
    half = (float(full_memory(cached).hits[0]) + found.warm.hit_tokens) / 2
    came = run.arrival_s >= (1 - _LAST) * end_s
    given_up = 0 if run.shed is None else int((run.shed & came).sum())
    warm = bool(hits * cached.mean("prompt") > half * prompts and given_up <= _GIVEN_UP * came.sum())
    return _End(warm, int((run.finish_s >= (1 - _LAST) * end_s).sum()))
