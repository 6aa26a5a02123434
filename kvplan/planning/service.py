"""The service that is planned, as profiles: on a replica of a kind, and as a whole."""

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from kvplan.analysis.equilibrium import per_request
from kvplan.engine import EngineName, admission_before
from kvplan.errors import ProfileError, UsageError
from kvplan.ingest.trace.replay import replaying
from kvplan.model.fleet import Routing
from kvplan.planning.demand import Demand, Replay
from kvplan.planning.kinds import Kind, fits
from kvplan.planning.result import Refused, Request
from kvplan.planning.saved import TRAFFIC, Stated
from kvplan.planning.search import Candidate, Setting
from kvplan.profile.positions import KeyPath
from kvplan.profile.reading import Profile, from_tables
from kvplan.ranges import LEAST_RATE

_MANY_SEQUENCES = 1_024
# settings that may be given instead of searched, with the tables of a profile that have them
SETTINGS = {
    **dict.fromkeys(("max_num_batched_tokens", "max_num_seqs", "block_tokens", "prefix_caching"), "gpu"),
    **dict.fromkeys(("admission", "watermark", "max_model_len", "prefill_interval"), "engine"),
}


def replica_profile(option: Kind | Profile, request: Request) -> Profile | Refused:
    """Profile one replica of a kind; or say why it cannot be."""
    if isinstance(option, Profile):
        return _routed(_with_demand(option, request), request)
    if (why := fits(option)) is not None:
        return Refused(option.name, why)
    assert request.demand is not None
    try:
        profile = _of_kind(option, request)
        held = per_request(profile.model)
        many, replica = replace(option, max_num_seqs=_MANY_SEQUENCES), profile.model.replica
        holds = replica.memory_tokens * held.iterations / (held.held * replica.ranks)
        if holds > option.max_num_seqs and "max_num_seqs" not in request.settings and fits(many) is None:
            profile = _of_kind(many, request)
    except ProfileError as error:
        if "does not fit" in error.message:
            return Refused(option.name, "the longest request does not fit")
        if option.parallelism.data == 1:
            raise
        return Refused(option.name, error.message, unknown=True)  # as hit curves
    return _routed(profile, request)


def _routed(profile: Profile, request: Request) -> Profile:
    """Return a profile whose data-parallel ranks get turns as the service's router sends them.

    Ranks that are engines of their own are replicas.
    """
    if profile.model.replica.ranks == 1:
        if profile.tables["gpu"].get("data_parallel", 1) == 1:
            return profile
        tensor = profile.model.replica.parallelism.tensor
        alone = {"gpus": None, "data_parallel": None, "tensor_parallel": tensor}
        return profile.changed({("gpu", key): value for key, value in alone.items()} | {("fleet",): None})
    routing = request.router or Routing.SESSION
    return profile.changed({("fleet",): {"replicas": 1, "routing": str(routing)}})


def _of_kind(kind: Kind, request: Request) -> Profile:
    assert request.demand is not None
    name = f"{kind.shape.name} on {kind.parallelism.gpus} x {kind.gpu.name}"
    engine: dict[str, Any] = {} if kind.engine is EngineName.VLLM else {"name": str(kind.engine)}
    engine |= {"version": kind.version} if kind.version else {}
    if kind.engine is EngineName.VLLM and (older := admission_before(kind.version)):
        engine["admission"] = str(older)
    engine |= {} if kind.longest is None else {"max_model_len": kind.longest}
    tables = {"schema": 1, "name": name, "engine": engine, **kind.tables(), **request.demand.tables}
    sessions = tables.get("sessions", ())
    talks = any("users" in table or table["turns"] != 1 for table in sessions)  # else they are a class
    if sessions and kind.not_cached(talks=talks):
        tables["gpu"] = {**tables["gpu"], "prefix_caching": False}
    profile = from_tables({key: value for key, value in tables.items() if value}, name)
    return _with_origin(_with_all_turns(profile), request.demand)


def _with_all_turns(profile: Profile) -> Profile:
    """Return a profile whose conversations have as many turns/s as if max_model_len ended none."""
    sessions = profile.model.classes[0].sessions
    if sessions is None or sessions.users is not None or sessions.turns.mean == sessions.asked.mean:
        return profile
    return _with_traffic(profile, with_rates(profile.tables, sessions.asked.mean / sessions.turns.mean))


def _with_demand(profile: Profile, request: Request) -> Profile:
    """Return a profile with the traffic asked for, if any."""
    if request.demand is not None:
        return with_demand(profile, request.demand)
    if request.rate_rps is None:
        return profile
    return _with_traffic(profile, with_rates(profile.tables, request.rate_rps / profile.model.total_rate_rps))


def _with_traffic(profile: Profile, tables: Mapping[str, Any]) -> Profile:
    return profile.changed({(name,): tables.get(name) for name in TRAFFIC})


def with_demand(profile: Profile, demand: Demand | Replay | Stated) -> Profile:
    """Return a profile, which may lack traffic, with that of a demand; refuse a trace where classes have promises."""
    classes, kept = profile.tables.get("classes", ()), ("slo", "priority", "deadline")
    if isinstance(demand, Replay) and (lost := [key for key in kept if any(key in c for c in classes)]):
        has = f"{profile.source} has classes with {', '.join(lost)}"
        raise UsageError(f"--trace: its requests are of one class, and {has}")
    return _with_origin(_with_traffic(profile, demand.tables), demand)


def _with_origin(profile: Profile, demand: Demand | Replay | Stated) -> Profile:
    """Say where a profile's traffic comes from, and add the requests of a trace if those are the demand."""
    profile = profile.changed({("provenance", "workload"): demand.origin})
    if not isinstance(demand, Replay):
        return profile
    return replaying(profile, demand.recorded.within(profile.model.max_model_len))


def with_settings(profile: Profile, settings: Mapping[str, Any]) -> Profile:
    if not settings:
        return profile
    try:
        profile = profile.changed({(SETTINGS[key], key): value for key, value in settings.items()})
    except ProfileError as error:
        key = (error.key or "").rpartition(".")[2]
        named = key if key in settings else ", ".join(settings)  # it is refused beside another key
        raise UsageError(f"--settings {named}: {error.message}") from None
    tokens, seqs = (profile.tables["gpu"].get(key) for key in ("max_num_batched_tokens", "max_num_seqs"))
    if "max_num_batched_tokens" in settings and tokens is not None and seqs is not None and tokens < seqs:
        raise UsageError(
            f"--settings max_num_batched_tokens={tokens}: engines refuse less than max_num_seqs, here {seqs}"
        )
    return profile


def with_schedule(profile: Profile, request: Request) -> Profile:
    """Return a profile with the schedule asked for, not a trace's."""
    if request.load_s is None:
        return profile
    table = {key: value for key, value in profile.tables.get("workload", {}).items() if key != "trace"}
    profile = profile.changed({("workload",): {**table, **(request.schedule or {})} or None})
    if profile.model.schedule is None:
        raise UsageError(
            f"--schedule: {profile.name} has no [[workload.schedule]]; --schedule FILE gives one"
        )
    return profile


def with_rates(tables: Mapping[str, Any], factor: float) -> dict[str, Any]:
    """Scale all rates, or users, of traffic tables by a factor, as far as a profile allows."""

    def scaled(table: Mapping[str, Any]) -> dict[str, Any]:
        new = {
            "rate": lambda v: v and max(v * factor, LEAST_RATE),
            "backlog": lambda v: max(1, round(v * factor)),
            "users": lambda v: max(1, round(v * factor)),
        }
        return {key: new[key](value) if key in new else value for key, value in table.items()}

    kept = {name: tables[name] for name in TRAFFIC if name in tables}
    return {
        name: scaled(value) if name == "workload" else value if name == "prefix" else [*map(scaled, value)]
        for name, value in kept.items()
    }


def service_profile(profile: Profile, winner: Candidate, setting: Setting, request: Request) -> Profile:
    """Return the whole service's profile, with gate and objectives."""
    routing = request.router or (Routing.SESSION if winner.task.model.finds_prefixes else Routing.RANDOM)
    gpu, gate = profile.tables["gpu"], profile.tables.get("gate", {})
    demanded = [text for text in gate.get("require", ()) if text != "plan.holds"]
    changes: dict[KeyPath, object] = {
        ("fleet",): {"replicas": setting.replicas, "routing": str(routing)},
        ("plan", "slower"): request.slower,
        ("plan", "headroom"): request.headroom,
        ("plan", "spare"): request.spare or None,
        ("gate", "require"): [*demanded, "plan.holds"],
    }
    if request.recover_s is not None:
        changes["plan", "recover"] = "never" if math.isinf(request.recover_s) else f"{request.recover_s:g} s"
    if setting.batched_tokens is not None:
        changes["gpu", "max_num_batched_tokens"] = setting.batched_tokens
    if "memory_tokens" in gpu and "offload" not in gpu:
        changes["gpu", "kv_bytes_per_token"] = None  # only a link between replicas needs it
    if of_all := [slo for slo in request.slos if slo.of_all]:  # those of classes stand there
        changes["slo",] = None
        changes |= {("slo", *slo.key.split(".")): f"{slo.bound:g} s" for slo in of_all}
    if request.priced:
        power = request.power(winner.name)
        changes["cost", "gpu_hour"] = winner.price / winner.task.model.replica.gpus
        changes |= {} if power is None else {("cost", "power"): f"{power.load:g} W"}
    return replace(profile.changed(changes), source="plan.toml")
