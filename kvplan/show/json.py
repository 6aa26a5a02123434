"""JSON: the text, and the document of every command but `analyze`, whose report is the contract itself.

Documents are plain dicts, lists, strings, finite numbers and None: the same bytes for the same profile.
"""

import json
import math
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, TypeAlias

from kvplan.show.commands import json_without_commands
from kvplan.version import __version__

if TYPE_CHECKING:
    from kvplan.emit.settings import EngineSettings
    from kvplan.gate import check as checking
    from kvplan.gate import diff as differing
    from kvplan.gate.remedy import Remedy
    from kvplan.planning.day import Day
    from kvplan.planning.mixing import Comparison
    from kvplan.planning.result import Plan as Planned
    from kvplan.planning.search import Band, Candidate, Setting
    from kvplan.profile.reading import Profile
    from kvplan.report.assembly import ProfileIdentity, Report
    from kvplan.reproduction.judge import Reproduction
    from kvplan.simulation.experiments.hindsight_bound import StudyBound
    from kvplan.simulation.experiments.study import Study
    from kvplan.study.operating_point import OperatingPoint

    Owner: TypeAlias = Profile | ProfileIdentity

Document = dict[str, Any]

_SCHEMA_VERSION = 1


def render(document: Document) -> str:
    """JSON text of a document, keys in its order.

    Raises
    ------
    ValueError
        A number is not finite; documents have null instead.

    Examples
    --------
    >>> print(render({"schema_version": 1, "loss": None, "name": "Übung"}), end="")
    {
      "schema_version": 1,
      "loss": null,
      "name": "Übung"
    }
    """
    text = json.dumps(document, ensure_ascii=False, allow_nan=False, indent=2)
    return json_without_commands(text) + "\n"


def _document(profile: "Owner | None" = None) -> Document:
    """What every document begins with."""
    begin: Document = {"schema_version": _SCHEMA_VERSION, "kvplan_version": __version__}
    if profile is not None:
        begin["profile"] = {"name": profile.name, "sha256": profile.sha256}
    return begin


def _fields(value: object, *names: str) -> Document:
    """The fields of a result that the document has as they are."""
    return {name: getattr(value, name) for name in names}


def _mean(mean: float, low: float, high: float) -> Document:
    ends = [low, high if high < math.inf else None]
    return {"mean": mean, "ci95": ends if low < high else None}


# ------------------------------------------------------------------------------------------------ simulate


def simulate(found: "Study", profile: "Owner", bounds: "Sequence[StudyBound]" = ()) -> Document:
    """Policies side by side; `bounds` is what no policy can surpass."""
    from kvplan.show.simulation import notes
    from kvplan.simulation.experiments.study import plain

    arrivals: Document = {
        "kind": found.load.name,
        "requests": found.requests,
        "horizon_s": found.load.horizon_s,
    }
    if found.scheduled is not None:
        arrivals["scheduled"] = found.scheduled
    if arrivals["kind"] == "gamma":
        arrivals["cv"] = found.load.cv
    if found.load.trace is not None:
        arrivals["stretch"] = found.load.stretch
    document = {**_document(profile), "arrivals": arrivals, "seeds": list(found.seeds)}
    if found.interrupted:
        document["interrupted"] = True
    document["policies"] = [plain(result) for result in found.results]
    document["notes"] = list(notes(found))
    if bounds:
        document["hindsight"] = {one.figure: _fields(one, "bound", "proven", "gap") for one in bounds}
    return document


def operating_point(point: "OperatingPoint", profile: "Owner") -> Document:
    """A profile at its own rates, as one policy is written; `runs` were made in all."""
    from kvplan.report.assembly import plain

    latency = plain(point.latency)
    intervals = {key: list(interval) for key, _, interval in point.figures() if interval is not None}
    return {
        **_document(profile),
        "arrivals": {"kind": point.arrivals, "requests": point.requests, "horizon_s": None},
        "runs": point.runs,
        "policies": [
            {
                "policy": point.policy,
                "parameters": dict(point.parameters),
                "throughput_rps": point.served and point.served.value,
                "iteration_time_s": point.iteration_s and point.iteration_s.value,
                **latency,
                "ci95": intervals,
            }
        ],
    }


# --------------------------------------------------------------------------------------------- check, diff


def check(checked: "Sequence[checking.Checked]") -> Document:
    """The profiles in order, all requirements of each."""
    from kvplan.gate.check import worst

    return {
        **_document(),
        "outcome": worst(checked),
        "profiles": [
            {
                **_fields(one, "name", "source", "sha256", "outcome"),
                "problems": [asdict(problem) for problem in one.problems],
                "requirements": [_requirement(result) for result in one.results],
                "mends": [_remedy(remedy) for remedy in one.remedies],
                "notes": list(one.notes),
            }
            for one in checked
        ],
    }


def _requirement(result: "checking.Result") -> Document:
    judgement = result.judgement
    return {
        "requirement": result.text,
        **_fields(result, "origin", "line"),
        "key": result.key.text,
        "operator": None if result.requirement is None else result.requirement.symbol,
        "wanted": result.wanted,
        **_fields(judgement, "got", "margin", "passed"),
        "doubt": judgement.doubt or None,
        "mends": [_remedy(remedy) for remedy in result.remedies],
    }


def _remedy(remedy: "Remedy") -> Document:
    return {
        **_fields(remedy, "lever", "amount"),
        "relative_change": remedy.relative,
        "changes": [_fields(change, "key", "before", "after") for change in remedy.changes],
    }


def diff(found: "differing.Comparison") -> Document:
    """Every key that differs, of the profiles and of the reports."""
    return {
        **_document(),
        "before": _side(found.before),
        "after": _side(found.after),
        "inputs": None if found.inputs is None else list(map(_change, found.inputs)),
        "changes": list(map(_change, found.changes)),
    }


def _side(side: "differing.Side") -> Document:
    profile = side.document.get("profile")
    sha256 = profile.get("sha256") if isinstance(profile, dict) else None
    return {"name": side.name, "source": side.source, "sha256": sha256}


def _change(change: "differing.Change") -> Document:
    return {**_fields(change, "key", "before", "after"), "relative_change": change.relative}


# ---------------------------------------------------------------------------------------------------- emit


def emit(found: "EngineSettings", report: "Report") -> Document:
    """Settings of an engine, and what the report says of it without those that are advised."""
    from kvplan.report.assembly import plain

    return {
        **_document(report.profile),
        "engine": found.engine.name,
        **{key: plain(getattr(report, key), key) for key in ("verdict", "latency", "advice")},
        "settings": [flag._asdict() for flag in found.flags],
        "others": [[flag._asdict() for flag in flags] for flags in found.others],
        "notes": list(found.notes),
    }


# ---------------------------------------------------------------------------------------------------- plan


def plan(found: "Planned") -> Document:
    """Replicas for a demand: `plan` of the contract."""
    from kvplan.planning.result import Status

    document: Document = {"status": found.status, "demand": found.demand}
    if found.status is Status.IMPOSSIBLE:
        limits = [{"key": key, "limit": limit} for key, limit in found.ways.limits]
        document["possible"] = {**found.ways._asdict(), "limits": limits}
    else:
        document |= _replicas(found, found.winner, found.setting)
    if found.status is Status.PLANNED:
        document |= _around(found)
    document["refused"] = [
        {
            **_kind(found, one.name),
            "why": one.why,
            "least": [_fields(d, "key", "value", "limit") for d in one.least] or None,
        }
        for one in found.refused
    ]
    document["simulations"] = found.race.simulations
    return _document() | {"schema_version": 2, "plan": document}


def _replicas(found: "Planned", candidate: "Candidate", setting: "Setting") -> Document:
    """So many replicas of a kind, their engine and what they cost."""
    from kvplan.planning.result import Cost
    from kvplan.show.plan import command

    replica, cost = candidate.task.model.replica, found.cost_of(candidate, setting)
    return {
        **_kind(found, candidate.name),
        "replicas": setting.replicas,
        "gpus": setting.replicas * replica.gpus,
        "engine": {
            "name": found.request.engine,
            "max_num_batched_tokens": setting.batched_tokens,
            "max_num_seqs": replica.max_num_seqs,
            "command": command(found, candidate, setting),
        },
        "cost": dict.fromkeys(Cost._fields) if cost is None else cost._asdict(),
    }


def _kind(found: "Planned", name: str) -> Document:
    """A kind of replica; of a profile what it says of one."""
    kind = found.kind(name)
    if kind is None:
        return {"name": name, "gpu": None, "parallelism": None, "weights": None}
    shared = dict.fromkeys(("data", "expert", "pipeline", "context"), 1)
    parallelism = {"tensor": kind.tensor_parallel, **shared}
    return {"name": name, "gpu": kind.gpu.name, "parallelism": parallelism, "weights": kind.weights}


def _around(found: "Planned") -> Document:
    """What is known beside how many replicas it takes."""
    assert found.profile is not None
    drain, fleet = found.drain, None if found.apart is None else found.apart.fleet
    origin = found.profile.model.provenance
    return {
        "objectives": [one._asdict() for one in found.objectives],
        "sizes": [
            {
                **_fields(one, "replicas", "state", "missed"),
                "engine": {"max_num_batched_tokens": one.batched_tokens},
            }
            for one in found.sizes
        ],
        "room": found.room,
        "routers": {name.replace("-", "_"): replicas for name, replicas in found.routers},
        "split": None if fleet is None else _fields(fleet, "prefill", "decode"),
        "day": None if found.day is None else _day(found.day),
        "band": _band(found, found.winner, found.band),
        "spread": [{"cv": cv, "replicas": replicas} for cv, replicas in found.spread],
        "burst": None
        if drain is None
        else {
            "requests": drain.burst_requests,
            "drain_s": drain.seconds,
            **_fields(drain, "low", "high", "preempted"),
        },
        "recovers": found.verdict,
        "recovers_up_to_rps": None
        if found.recovers_up_to_rps is None
        else found.recovers_up_to_rps * found.setting.replicas,
        "alternatives": [
            {
                **_replicas(found, one.candidate, one.setting),
                "band": _band(found, one.candidate, one.band),
            }
            for one in found.alternatives
        ],
        "inputs": {name: getattr(origin, name).basis for name in ("gpu", "timing", "workload")},
        "next": None if found.next is None else found.next._asdict(),
        "profile": {"sha256": found.profile.sha256},
    }


def _band(found: "Planned", candidate: "Candidate", band: "Band | None") -> Document | None:
    if band is None:
        return None
    prices = [None if n is None or not found.request.priced else n * candidate.price for n in band.replicas]
    return {**band._asdict(), "per_hour": prices}


def _day(day: "Day") -> Document:
    return {
        **_fields(day, "period_s", "load_s", "served_rps", "add_rps", "remove_rps"),
        **_fields(day, "gpu_hours", "fixed_gpu_hours"),
        "hours": [hour._asdict() for hour in day.hours],
        "simulated": {name: way._asdict() for name, way in day.ways.items()} or None,
        "reason": day.reason or None,
    }


# ----------------------------------------------------------------------------------------------------- mix


def mix(found: "Comparison", profile: "Owner") -> Document:
    """Placements of classes on replicas."""
    from kvplan.report.assembly import plain
    from kvplan.show.mixing import notes

    return {
        **_document(profile),
        **_fields(found, "replicas", "parts", "left_out"),
        "search": _fields(found.search, "ways", "measured", "complete"),
        "placements": [{"name": name, **plain(one)} for name, one in found.placements.items()],
        "sources": {
            "served_rps": {"source": "new: saturated runs, as recovers_up_to_rps", "basis": "simulated"},
            "latency": {"source": "new: runs at the offered rate, as latency", "basis": "simulated"},
            "groups": {"source": "traffic splits evenly over a group's replicas", "basis": "assumption"},
        },
        "notes": list(notes(found)),
    }


# ----------------------------------------------------------------------------------------------- reproduce


def reproduce(found: "Sequence[Reproduction]") -> Document:
    """Experiments, what papers print, and what kvplan gets."""
    return {**_document(), "experiments": [_experiment(one) for one in found]}


def _experiment(found: "Reproduction") -> Document:
    experiment = found.experiment
    return {
        **_fields(experiment, "name", "source", "title", "claim"),
        "assumed": experiment.assumed or None,
        "verdict": found.verdict,
        "workloads": experiment.workloads,
        "runs": [{**asdict(run), "chosen": found.chosen.get(run.name)} for run in experiment.runs],
        "figures": [
            {
                "what": one.figure.what,
                "relative": bool(one.figure.over),
                **_fields(one.figure, "printed", "derived", "at_least", "at_most"),
                "value": None if one.measured is None else one.measured.value,
                "ci95": None
                if one.measured is None or one.measured.low == one.measured.high
                else [one.measured.low, one.measured.high],
                "verdict": one.verdict,
                "recorded": one.figure.verdict,
                "reason": one.figure.reason or None,
            }
            for one in found.compared
        ],
    }
