"""Prefill and decode on replicas of their own: fewer of them than replicas that do both."""

import math
from dataclasses import replace
from typing import Any, NamedTuple

from kvplan.analysis.fleet import between_tokens_s
from kvplan.analysis.split import served, sides
from kvplan.errors import ProfileError
from kvplan.model.fleet import Fleet
from kvplan.planning.search import Setting
from kvplan.profile.reading import Profile
from kvplan.simulation.policies import POLICIES, engine_settings
from kvplan.study.objectives import State
from kvplan.study.trial import Task

TRANSFER = "50 GB/s"  # of KV from side to side, where [fleet] does not say
MOST_APART = 64  # replicas that are simulated, all of them
_CEILING = 1.6  # times what the formulas ask for, beyond which nothing is tried
_TRIED = 3  # splits of a number of replicas, by formula the best


class Apart(NamedTuple):
    """The fleet with prefill and decode apart, or why there is none; `transfer` where it is assumed."""

    fleet: Fleet | None
    why: str = ""
    transfer: str | None = None


def apart(profile: Profile, task: Task, setting: Setting, kv_bytes: int | None = None) -> Apart:
    """Find the fewest replicas, fewer than the setting has, that meet the objectives with prefill and decode apart.

    `profile` is one of a replica, whose [fleet] may say how fast KV is transferred; `kv_bytes` are those of a token,
    where the profile does not say.
    """
    assumed = None if "transfer" in profile.tables.get("fleet", {}) else TRANSFER
    fleet = _one_of_each(profile, task, assumed, kv_bytes)
    if isinstance(fleet, str):
        return Apart(None, fleet)
    what = POLICIES[engine_settings(task.model).policy].lacks(replace(task.model, fleet=fleet))
    if what is not None:
        return Apart(None, f"{what} is not simulated for this engine")
    fewest = fewest_apart(replace(task, apart=fleet), setting.replicas - 1, setting.batched_tokens)
    return Apart(fewest, "" if fewest else "no split of fewer replicas is enough", assumed)


def _one_of_each(profile: Profile, task: Task, transfer: str | None, kv_bytes: int | None) -> Fleet | str:
    """Make a replica of either side, with the profile's link; or say why not."""
    gpu, own = profile.tables["gpu"], profile.tables.get("fleet", {})
    table: dict[str, Any] = {"prefill": 1, "decode": 1}
    table["transfer"] = own.get("transfer", transfer)
    if "kv" not in gpu and "kv_bytes_per_token" not in gpu:
        if kv_bytes is None:
            return "[gpu] kv_bytes_per_token of the profile says how much KV goes from side to side; it is missing"
        gpu = {**gpu, "kv_bytes_per_token": kv_bytes}
    if task.router is not None:
        table["routing"] = str(task.router)
    try:
        model = profile.changed({("gpu",): gpu, ("fleet",): table}).model
    except ProfileError as error:
        return error.message
    return model.fleet or "no fleet"


def fewest_apart(task: Task, most: int, batched_tokens: int | None) -> Fleet | None:
    """Find the least split, of at most `most` replicas, that long runs confirm, beginning at the formulas'."""
    assert task.apart is not None
    halves = sides(task.at(1, batched_tokens, slower=True), task.apart)
    limit = between_tokens_s(task.plan.limits) or math.inf
    prefill_rps, decode_rps = served(halves.prefill).rate_rps, served(halves.decode, limit).rate_rps
    if not prefill_rps or not decode_rps:
        return None
    least = math.ceil(task.rate_rps / prefill_rps) + math.ceil(task.rate_rps / decode_rps)
    for size in range(least, min(most, MOST_APART, math.ceil(_CEILING * least)) + 1):
        for prefill in sorted(range(1, size), key=lambda p: -min(p * prefill_rps, (size - p) * decode_rps))[
            :_TRIED
        ]:
            fleet = replace(task.apart, prefill=prefill, decode=size - prefill)
            split = replace(task, apart=fleet)
            if (
                split.quick(size, batched_tokens).passes
                and split.judge(size, batched_tokens).state is State.HOLDS
            ):
                return fleet
    return None
