"""Prefill and decode on replicas of their own: whether fewer of them do than replicas that do both."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any, NamedTuple

from kvplan.analysis.split import served, sides
from kvplan.errors import ProfileError
from kvplan.model.fleet import Fleet
from kvplan.planning.search import Setting
from kvplan.planning.trial import Task
from kvplan.planning.writing import written
from kvplan.profile.reading import Profile, parse_profile
from kvplan.simulation.policies import POLICIES
from kvplan.simulation.policies.of_engine import engine_settings
from kvplan.study.objectives import State

TRANSFER = "50 GB/s"  # of KV from side to side, where [fleet] does not say
MOST_APART = 64  # replicas that are simulated, all of them
_TRIED = 3  # splits of a number of replicas, by formula the best


class Apart(NamedTuple):
    """What came of looking for a split: the fleet, or why there is none; `transfer` where it is assumed."""

    fleet: Fleet | None
    why: str = ""
    transfer: str | None = None


def apart(profile: Profile, task: Task, setting: Setting, kv_bytes: int | None = None) -> Apart:
    """Find the fewest replicas, fewer than the setting has, that meet the objectives with prefill and decode apart.

    Parameters
    ----------
    profile
        Of a replica; its [fleet] may say how fast KV is transferred.
    kv_bytes
        Of a token, where the profile does not say.
    """
    assumed = None if "transfer" in profile.tables.get("fleet", {}) else TRANSFER
    fleet = _one_of_each(profile, task, assumed, kv_bytes)
    if isinstance(fleet, str):
        return Apart(None, fleet)
    what = POLICIES[engine_settings(task.model).policy].lacks(replace(task.model, fleet=fleet))
    if what is not None:
        return Apart(None, f"{what} is not simulated for this engine")
    if setting.replicas > MOST_APART + 1:
        return Apart(None, f"splits of more than {MOST_APART} replicas are not simulated")
    found = fewest_apart(replace(task, apart=fleet), setting.replicas - 1, setting.batched_tokens)
    return Apart(found, "" if found else "no split of fewer replicas meets them", assumed)


def _one_of_each(profile: Profile, task: Task, transfer: str | None, kv_bytes: int | None) -> Fleet | str:
    """A replica of either side, as the profile has its link; why there can be none."""
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
        model = parse_profile(written(profile.tables, {"gpu": gpu, "fleet": table}).encode(), "split").model
    except ProfileError as error:
        return error.message
    return model.fleet or "no fleet"


def fewest_apart(task: Task, most: int, batched_tokens: int | None) -> Fleet | None:
    """The least split of at most so many replicas that long runs confirm: short ones go down, long ones up again."""
    passing: list[Fleet] = []
    for size in range(most, 1, -1):
        found = next(
            (
                f
                for f in _splits(task, size, batched_tokens)
                if _with(task, f).quick(size, batched_tokens).passes
            ),
            None,
        )
        if found is None:
            break
        passing.append(found)
    for fleet in reversed(passing):
        if _with(task, fleet).judge(fleet.size, batched_tokens).state is State.HOLDS:
            return fleet
    return None


def _with(task: Task, fleet: Fleet) -> Task:
    return replace(task, apart=fleet)


def _splits(task: Task, size: int, batched_tokens: int | None) -> Iterator[Fleet]:
    """Splits of so many replicas, that first which serves most by formula."""
    assert task.apart is not None
    found = sides(task.at(size, batched_tokens, slower=True), task.apart)
    prefill_rps, decode_rps = served(found.prefill).rate_rps, served(found.decode).rate_rps
    every = sorted(range(1, size), key=lambda p: -min(p * prefill_rps, (size - p) * decode_rps))
    for prefill in every[:_TRIED]:
        yield replace(task.apart, prefill=prefill, decode=size - prefill)
