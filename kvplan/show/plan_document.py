"""The JSON document of a plan."""

from collections.abc import Sequence
from dataclasses import asdict, replace

from kvplan.emit import engine
from kvplan.emit.settings import flags_of_profile
from kvplan.emit.start import Start, started
from kvplan.planning.day import Day, Way
from kvplan.planning.result import Cost, Plan, Size, Status
from kvplan.planning.search import Candidate, Setting
from kvplan.profile.reading import Profile
from kvplan.show.view import Json, fields, header

_OF_A_KIND = ("name", "replicas", "gpus", "gpu", "parallelism", "weights", "engine", "cost")


def rows(written: Json) -> Sequence[Json]:
    """Return the kind of replica that was chosen and each alternative; of what is impossible the kinds refused."""
    plan = written["plan"]
    if plan["status"] == Status.IMPOSSIBLE:
        refused: list[Json] = plan["refused"]
        return refused
    return [{key: each[key] for key in _OF_A_KIND} for each in (plan, *plan.get("alternatives", ()))]


def document(plan: Plan) -> Json:
    """Return the JSON: `plan` of the contract."""
    written: Json = {"status": plan.status, "demand": plan.demand}
    if plan.status is Status.IMPOSSIBLE:
        limits = [{"key": key, "limit": limit} for key, limit in plan.ways.limits]
        written["possible"] = {**plan.ways._asdict(), "limits": limits}
    else:
        written |= _replicas(plan, plan.winner, plan.setting)
    if plan.status is Status.PLANNED:
        written |= _around(plan)
    written["refused"] = [
        {
            **_kind(plan, each.name),
            "why": each.why,
            "least": [fields(decision, "key", "value", "limit") for decision in each.least] or None,
        }
        for each in plan.refused
    ]
    written["simulations"] = plan.race.simulations
    return header() | {"schema_version": 2, "plan": written}


def _replicas(plan: Plan, candidate: Candidate, setting: Setting) -> Json:
    """Return so many replicas of a kind, their engine and cost."""
    replica, cost = candidate.task.model.replica, plan.cost_of(candidate, setting)
    return {
        **_kind(plan, candidate.name),
        "replicas": setting.replicas,
        "spare": plan.request.spare,
        "gpus": plan.bought(setting.replicas) * replica.gpus,
        "engine": {
            "name": plan.request.engine,
            "max_num_batched_tokens": setting.batched_tokens,
            "max_num_seqs": replica.of_rank().max_num_seqs,
            "command": start(plan, candidate, setting).command,
        },
        "cost": dict.fromkeys(Cost._fields) if cost is None else cost._asdict(),
    }


def _kind(plan: Plan, name: str) -> Json:
    """Return a kind of replica, or a profile's replica."""
    kind = plan.kind(name)
    if kind is None:
        return {"name": name, "gpu": None, "parallelism": None, "weights": None}
    shared = asdict(kind.parallelism)
    return {"name": name, "gpu": kind.gpu.name, "parallelism": shared, "weights": kind.weights}


def _around(plan: Plan) -> Json:
    """Return what is known beside the number of replicas."""
    assert plan.profile is not None
    drain, fleet = plan.drain, None if plan.apart is None else plan.apart.fleet
    known, fleet_rps = plan.profile.model.provenance, plan.recovery_rps
    return {
        "objectives": [objective._asdict() for objective in plan.objectives],
        "sizes": [
            fields(size, "replicas", "state", "missed", "met")
            | _recovery(size)
            | {"engine": {"max_num_batched_tokens": size.batched_tokens}}
            for size in plan.sizes
        ],
        "share": plan.share._asdict(),
        "headroom": plan.headroom and plan.headroom._asdict(),
        "api": plan.api and plan.api._asdict(),
        "energy": plan.energy and plan.energy._asdict(),
        "routers": {name.replace("-", "_"): replicas for name, replicas in plan.routers},
        "first_come_first_served": plan.first_come,
        "prefill_interval": plan.spaced and fields(plan.spaced, "interval", "replicas_without"),
        "host_memory": [tier._asdict() for tier in plan.host_memory],
        "split": fleet and fields(fleet, "prefill", "decode"),
        "day": plan.day and _day_document(plan, plan.day),
        "band": _band(plan),
        "by_short_runs": plan.by_short_runs,
        "spread": [{"cv": cv, "replicas": replicas} for cv, replicas in plan.spread],
        "burst": drain
        and {
            "requests": drain.burst_requests,
            "drain_s": drain.seconds,
            **fields(drain, "low", "high", "preempted"),
        },
        "recovers": plan.verdict,
        "recovers_up_to_rps": None if fleet_rps is None else fleet_rps * plan.setting.replicas,
        "alternatives": [_replicas(plan, each.candidate, each.setting) for each in plan.alternatives],
        "inputs": {name: getattr(known, name).basis for name in ("gpu", "timing", "workload")},
        "next": plan.next and plan.next._asdict() | {"first": plan.next.first and plan.next.first._asdict()},
        "profile": {"sha256": plan.profile.sha256},
    }


def _recovery(size: Size) -> Json:
    """Say whether a burst is over in time, and the median time; None where nobody asked."""
    recovery = size.recovery
    return {
        "recovers": recovery and recovery.state,
        "recovery_s": recovery and recovery.drain.seconds,
    }


def _band(plan: Plan) -> Json | None:
    if (band := plan.band) is None:
        return None
    prices = [
        None if n is None or not plan.request.priced else plan.bought(n) * plan.winner.price
        for n in band.replicas
    ]
    return {**band._asdict(), "per_hour": prices}


def _day_document(plan: Plan, day: Day) -> Json:
    def kwh(way: Way) -> float | None:
        return None if plan.energy is None else plan.kwh(way.gpu_hours, way.busy_gpu_hours)

    return {
        **fields(day, "period_s", "load_s", "served_rps", "add_rps", "remove_rps"),
        **fields(day, "gpu_hours", "fixed_gpu_hours"),
        "hours": [hour._asdict() for hour in day.hours],
        "simulated": {name: way._asdict() | {"kwh": kwh(way)} for name, way in day.ways.items()} or None,
        "reason": day.reason or None,
    }


def start(plan: Plan, candidate: Candidate, setting: Setting) -> Start:
    """Return the start of a replica's engine."""
    task, option = candidate.task, plan.request.option(candidate.name)
    model = replace(task.model, replica=task.model.replica.with_budget(setting.batched_tokens))
    folder = option.folder if isinstance(option, Profile) else plan.request.folder
    record = engine(plan.request.engine)
    return started(
        record, flags_of_profile(record, model), model, plan.request.model_table(candidate.name), folder
    )


def gpus(plan: Plan, candidate: Candidate, setting: Setting) -> int:
    return plan.bought(setting.replicas) * candidate.task.model.replica.gpus
