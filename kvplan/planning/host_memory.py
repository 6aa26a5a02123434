"""How much host memory behind the prefix cache saves replicas, against what it costs (theory §13)."""

import math
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import NamedTuple

from kvplan.analysis.cache_states import cached_replica
from kvplan.analysis.prefix_cache import prefix_cache
from kvplan.engine import EngineName
from kvplan.errors import UsageError
from kvplan.ingest.model.shape import kv_bytes_per_token
from kvplan.model.replica import Offload
from kvplan.planning.kinds import Kind
from kvplan.planning.search import Candidate, Setting
from kvplan.profile.reading import Profile
from kvplan.solve import boundary
from kvplan.study.objectives import State

GIB = 1 << 30
LINK = 25e9  # bytes/s from host to a GPU, PCIe 4.0 x16 as it is measured; where the profile says none
_LEAST, _MOST = 1 / 8, 16.0  # times the KV memory of the GPUs, between which a tier is looked for
_CLOSE = 0.1  # relative, of its size


class Tier(NamedTuple):
    """A replica with so much host memory, 0: none; how many of them hold; rates and hits are of a warm cache."""

    gib: float
    replicas: int
    hit_ratio: float | None
    good_rps: float
    guaranteed_rps: float
    per_hour: float


def check(profile: Profile) -> None:
    """Refuse a host tier where it is not modelled, or finds nothing."""
    model, engine = profile.model, profile.model.engine
    why = None
    if model.replica.layout is not None or model.drafts is not None or model.replica.ranks > 1:
        why = "layers of several kinds, drafts or data-parallel ranks"
    elif engine is not None and engine.name is not EngineName.VLLM:
        why = "engines other than vLLM"
    elif engine is not None and engine.scheduling != "fcfs":
        why = "priorities"
    if why is not None:
        raise UsageError(f"--offload: not modelled beside {why}")
    if not model.finds_prefixes:
        raise UsageError("--offload: requests have nothing in common that a prefix cache could find")


def token_bytes(profile: Profile, kind: Kind | None) -> int:
    """Return what a token takes of host memory."""
    token = profile.tables["gpu"].get("kv_bytes_per_token")
    if kind is not None:
        token = kv_bytes_per_token(kind.shape, kv_dtype=kind.kv_dtype)
    if token is None:
        raise UsageError("--offload: needs [gpu] kv_bytes_per_token, what a token takes of host memory")
    return int(token)


def tiers(
    token: int, winner: Candidate, setting: Setting, sizes: tuple[float, ...], memory_hour: float
) -> Iterator[Tier]:
    """Yield what no tier takes, then tiers of so many GiB a replica; without sizes the least that save replicas.

    Of those the first saves one replica, the second as many as any tier does. `token` are the bytes of one.
    """
    replica = winner.task.model.replica
    said = replica.offload or Offload(0, token / (LINK * replica.gpus))

    def with_host(gib: float) -> Candidate:
        memory = round(gib * GIB)
        tier = replace(said, memory_tokens=memory // token, memory_bytes=memory) if memory else None
        model = replace(winner.task.model, replica=replace(replica, offload=tier))
        return replace(winner, task=replace(winner.task, model=model))

    def holds(gib: float, replicas: int) -> bool:
        judged = with_host(gib).task.judge_briefly(replicas, setting.batched_tokens)
        return judged.state is State.HOLDS

    def fewest(gib: float) -> int:
        replicas = setting.replicas
        while replicas > 1 and holds(gib, replicas - 1):
            replicas -= 1
        return replicas

    def tier(gib: float, replicas: int) -> Tier:
        candidate = with_host(gib)
        found = prefix_cache(
            cached_replica(candidate.task.at(replicas, setting.batched_tokens, slower=False))
        )
        hits = None if found.warm is None else found.warm.hit_ratio
        price = replicas * (winner.price + gib * memory_hour)
        return Tier(gib, replicas, hits, found.sustainable_rps.good, found.sustainable_rps.guaranteed, price)

    yield tier(0.0, setting.replicas)
    if sizes:
        yield from (tier(gib, fewest(gib)) for gib in sizes)
        return
    least, most = (share * replica.memory_tokens * token / GIB for share in (_LEAST, _MOST))
    for replicas in sorted({setting.replicas - 1, fewest(most)} - {0, setting.replicas}, reverse=True):
        if not holds(most, replicas):
            continue
        gib = least
        if not holds(least, replicas):
            keeps = partial(holds, replicas=replicas)
            _, gib = boundary(keeps, least, most, close=_CLOSE, geometric=True)
        yield tier(_rounded_up(gib), replicas)


def _rounded_up(gib: float) -> float:
    """Round up to two digits."""
    unit = 10.0 ** (math.floor(math.log10(gib)) - 1)
    return float(f"{math.ceil(gib / unit - 1e-9) * unit:.2g}")
