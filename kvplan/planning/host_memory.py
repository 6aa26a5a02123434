"""Replicas that host memory behind the prefix cache saves, against its cost (theory §13)."""

import math
from collections.abc import Iterator, Sequence
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
from kvplan.profile.replica import Gpu
from kvplan.solve import boundary
from kvplan.study.objectives import State
from kvplan.units import format_bytes

GIB = 1 << 30
LINK = 25e9  # bytes/s from host to a GPU, PCIe 4.0 x16 as it is measured; where the profile says none
_LEAST, _MOST = 1 / 8, 16.0  # times the KV memory of the GPUs, between which a tier is looked for
_CLOSE = 0.1  # relative, of its size
_TIMES = 4  # the replicas of the plan, up to which a smaller tier than its own is tried
_POINTS, _BEYOND = 32, 1.5  # of a chart, and up to how many times the largest tier


class Tier(NamedTuple):
    """Host memory of a replica, 0: none; how many replicas hold; rates and hits are of a warm cache."""

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


def token_bytes(profile: Profile, kind: Kind | None, sizes: Sequence[float] = ()) -> int:
    """Return what a token takes of host memory; refuse sizes, GiB, that hold no block of them."""
    token = Gpu.model_validate(profile.tables["gpu"]).token_bytes
    if kind is not None:
        token = kv_bytes_per_token(kind.shape, kv_dtype=kind.kv_dtype)
    if token is None:
        raise UsageError(
            "--offload: needs [gpu] kv_bytes_per_token, what a token takes of host memory, and memory in bytes, or "
            "[gpu.offload], beside it"
        )
    block = token * profile.model.replica.block_tokens
    if small := [gib for gib in sizes if round(gib * GIB) < block]:
        raise UsageError(f"--offload {small[0] * GIB:.0f}B: must hold a block, {format_bytes(block)}")
    return token


class HostMemory(NamedTuple):
    """Replicas of a plan with host memory behind them; `token` are the bytes of one; `spare` ones are priced, too."""

    token: int
    winner: Candidate
    setting: Setting
    memory_hour: float
    spare: int = 0

    def tiers(self, sizes: tuple[float, ...]) -> Iterator[Tier]:
        """Yield replicas without a tier, then with so many GiB; without sizes the least that save replicas.

        What does not hold with `_TIMES` as many replicas is left out.

        Of those the first saves one replica, the second as many as any tier does.
        """
        bare = self.setting.replicas if self.winner.task.model.replica.offload is None else self._fewest(0.0)
        for gib, replicas in ((0.0, bare), *((gib, self._fewest(gib)) for gib in sizes)):
            if replicas is not None:
                yield self._tier(gib, replicas)
        if sizes or bare is None:
            return
        memory = self.winner.task.model.replica.memory_tokens * self.token / GIB
        least, most = _LEAST * memory, _MOST * memory
        save = {bare - 1, self._fewest(most) or bare} - {0, bare}
        for replicas in sorted(save, reverse=True):
            if not self._holds(most, replicas):
                continue
            gib = least
            if not self._holds(least, replicas):
                keeps = partial(self._holds, replicas=replicas)
                _, gib = boundary(keeps, least, most, close=_CLOSE, geometric=True)
            yield self._tier(_rounded_up(gib), replicas)

    def along(self, tiers: Sequence[Tier]) -> Iterator[Tier]:
        """Yield formulas' figures of tiers up to beyond the largest; the replicas are those of the tiers."""
        most = _BEYOND * max(tier.gib for tier in tiers)
        for gib in (most * i / _POINTS for i in range(_POINTS + 1)):
            if held := [tier.replicas for tier in tiers if tier.gib <= gib]:
                yield self._tier(gib, min(held))

    def _with(self, gib: float) -> Candidate:
        replica, memory = self.winner.task.model.replica, round(gib * GIB)
        said = replica.offload or Offload(0, self.token / (LINK * replica.gpus))
        tier = replace(said, memory_tokens=memory // self.token, memory_bytes=memory) if memory else None
        model = replace(self.winner.task.model, replica=replace(replica, offload=tier))
        return replace(self.winner, task=replace(self.winner.task, model=model))

    def _holds(self, gib: float, replicas: int) -> bool:
        judged = self._with(gib).task.judge_briefly(replicas, self.setting.batched_tokens)
        return judged.state is State.HOLDS

    def _fewest(self, gib: float) -> int | None:
        """Count down from the replicas of the plan; up where those have a host tier of their own, which counts there.

        None where even several times as many do not hold.
        """
        replicas = planned = self.setting.replicas
        while replicas > 1 and self._holds(gib, replicas - 1):
            replicas -= 1
        if replicas < planned or self.winner.task.model.replica.offload is None:
            return replicas
        more = range(planned, _TIMES * planned + 1)
        return next((n for n in more if self._holds(gib, n)), None)

    def _tier(self, gib: float, replicas: int) -> Tier:
        task = self._with(gib).task
        cache = prefix_cache(cached_replica(task.at(replicas, self.setting.batched_tokens, slower=False)))
        hits, rates = None if cache.warm is None else cache.warm.hit_ratio, cache.sustainable_rps
        price = (replicas + self.spare) * (self.winner.price + gib * self.memory_hour)
        return Tier(gib, replicas, hits, rates.good, rates.guaranteed, price)


def _rounded_up(gib: float) -> float:
    """Round up to two digits."""
    unit = 10.0 ** (math.floor(math.log10(gib)) - 1)
    return float(f"{math.ceil(gib / unit - 1e-9) * unit:.2g}")
