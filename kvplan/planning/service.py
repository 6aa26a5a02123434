"""The service that is planned, as profiles: on a replica of a kind, and as a whole."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from kvplan.analysis.equilibrium import per_request
from kvplan.engine import EngineName
from kvplan.errors import ProfileError, UsageError
from kvplan.ingest.trace.replay import replaying
from kvplan.model.fleet import Routing
from kvplan.planning.demand import Demand, Replay
from kvplan.planning.kinds import Kind, fits
from kvplan.planning.result import Refused, Request
from kvplan.planning.search import Candidate, Setting
from kvplan.planning.writing import TRAFFIC, written
from kvplan.profile.reading import Profile, parse_profile
from kvplan.ranges import LEAST_RATE

_MANY_SEQUENCES = 1_024
# settings that may be given instead of searched, with the tables of a profile that have them
SETTINGS = {
    **dict.fromkeys(("max_num_batched_tokens", "max_num_seqs", "block_tokens", "prefix_caching"), "gpu"),
    **dict.fromkeys(("admission", "watermark", "max_model_len"), "engine"),
}


def replica_profile(option: Kind | Profile, request: Request) -> Profile | Refused:
    """The service on one replica of a kind; why it cannot be."""
    if isinstance(option, Profile):
        return _with_demand(option, request)
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
        return Refused(option.name, error.message)  # as what requests have in common
    return profile


def _of_kind(kind: Kind, request: Request) -> Profile:
    assert request.demand is not None
    name = f"{kind.shape.name} on {kind.parallelism.gpus} x {kind.gpu.name}"
    engine = "" if kind.engine is EngineName.VLLM else f'name = "{kind.engine}"\n'
    engine += kind.version and f'version = "{kind.version}"\n'
    head = f'schema = 1\nname = "{name}"' + (engine and f"\n\n[engine]\n{engine}")
    text = f"{head}\n\n{kind.toml()}\n\n{request.demand.toml}\n"
    return _replayed(parse_profile(text.encode(), name), request.demand)


def _with_demand(profile: Profile, request: Request) -> Profile:
    """A profile with the traffic that was asked for, where it was."""
    if request.demand is not None:
        return with_demand(profile, request.demand)
    if request.rate_rps is None:
        return profile
    changes = with_rates(profile.tables, request.rate_rps / profile.model.total_rate_rps)
    return _changed(profile, changes, profile.source)


def with_demand(profile: Profile, demand: Demand | Replay) -> Profile:
    """Return a profile, which may lack traffic, with that of a demand."""
    try:
        return _replayed(_changed(profile, demand.tables, profile.source), demand)
    except ProfileError as error:  # of lines that are in no file
        raise ProfileError(profile.source, error.message, key=error.key) from None


def _replayed(profile: Profile, demand: Demand | Replay) -> Profile:
    """A profile with the requests of a trace, where those are the demand."""
    if not isinstance(demand, Replay):
        return profile
    origin = {
        **profile.tables.get("provenance", {}),
        "workload": {"basis": "measured", "source": demand.source},
    }
    return replaying(_changed(profile, {"provenance": origin}, profile.source), demand.recorded)


def _changed(profile: Profile, changes: Mapping[str, Any], source: str) -> Profile:
    """A profile with other tables, and the trace that was read for it, if it still has one."""
    found = parse_profile(written(profile.tables, changes).encode(), source)
    known = profile.known
    if known is None or known.arrivals.trace is None or "trace" not in found.tables.get("workload", {}):
        return found
    return replace(found, known=replace(found.model, arrivals=known.arrivals))


def with_settings(profile: Profile, settings: Mapping[str, Any]) -> Profile:
    changes = {
        table: {
            **profile.tables.get(table, {}),
            **{k: v for k, v in settings.items() if SETTINGS[k] == table},
        }
        for table in {SETTINGS[key] for key in settings}
    }
    if not changes:
        return profile
    try:
        profile = _changed(profile, changes, profile.source)
    except ProfileError as error:
        raise UsageError(f"--settings {(error.key or '').rpartition('.')[2]}: {error.message}") from None
    tokens, seqs = (profile.tables["gpu"].get(key) for key in ("max_num_batched_tokens", "max_num_seqs"))
    if "max_num_batched_tokens" in settings and tokens is not None and seqs is not None and tokens < seqs:
        raise UsageError(
            f"--settings max_num_batched_tokens={tokens}: engines refuse less than max_num_seqs, here {seqs}"
        )
    return profile


def with_schedule(profile: Profile, request: Request) -> Profile:
    """A profile whose rates vary as was asked for, and not as a trace does."""
    if request.load_s is None:
        return profile
    table = {key: value for key, value in profile.tables.get("workload", {}).items() if key != "trace"}
    profile = _changed(profile, {"workload": {**table, **(request.schedule or {})}}, profile.source)
    if profile.model.schedule is None:
        raise UsageError(
            f"--schedule: {profile.name} has no [[workload.schedule]]; --schedule FILE gives one"
        )
    return profile


def with_rates(tables: Mapping[str, Any], factor: float) -> dict[str, Any]:
    """Traffic tables with all rates times a factor, as far as a profile can say them; of users as many more."""

    def scaled(table: Mapping[str, Any]) -> dict[str, Any]:
        new = {
            "rate": lambda v: v and max(v * factor, LEAST_RATE),
            "users": lambda v: max(1, round(v * factor)),
        }
        return {key: new[key](value) if key in new else value for key, value in table.items()}

    kept = {name: tables[name] for name in TRAFFIC if name in tables}
    return {
        name: scaled(value) if name == "workload" else value if name == "prefix" else [*map(scaled, value)]
        for name, value in kept.items()
    }


def service_profile(profile: Profile, winner: Candidate, setting: Setting, request: Request) -> Profile:
    """The profile of the whole service, with gate and objectives."""
    routing = request.router or (Routing.SESSION if winner.task.model.finds_prefixes else Routing.RANDOM)
    changes: dict[str, Any] = {"gpu": {**profile.tables["gpu"]}}
    if setting.batched_tokens is not None:
        changes["gpu"]["max_num_batched_tokens"] = setting.batched_tokens
    changes["fleet"] = {"replicas": setting.replicas, "routing": str(routing)}
    if "memory_tokens" in changes["gpu"] and "offload" not in changes["gpu"]:
        changes["gpu"].pop("kv_bytes_per_token", None)  # only a link between replicas needs it
    if request.slos:
        slos: dict[str, dict[str, str]] = {}
        for slo in request.slos:
            time, _, figure = slo.key.partition(".")
            slos.setdefault(time, {})[figure] = f"{slo.bound:g} s"
        changes["slo"] = slos
    if request.priced:
        changes["cost"] = {"gpu_hour": winner.price / winner.task.model.replica.gpus}
    changes["plan"] = {
        **profile.tables.get("plan", {}),
        "slower": request.slower,
        "headroom": request.headroom,
    }
    gate = profile.tables.get("gate", {})
    demanded = [text for text in gate.get("require", ()) if text != "plan.holds"]
    changes["gate"] = {**gate, "require": [*demanded, "plan.holds"]}
    return _changed(profile, changes, "plan.toml")
