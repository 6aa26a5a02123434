"""The plan of a service: the cheapest replicas that meet its objectives, and what the number of them hangs on."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import cache
from typing import Any, NamedTuple

from kvplan.analysis.equilibrium import per_request
from kvplan.errors import ProfileError, UsageError
from kvplan.executors import SERIAL, Engine
from kvplan.ingest.model.shape import kv_bytes_per_token
from kvplan.ingest.trace.replay import replaying
from kvplan.model import Plan as ServicePlan
from kvplan.model import ServingModel
from kvplan.model.fleet import Routing
from kvplan.model.provenance import Knowledge
from kvplan.model.slo import Slo
from kvplan.planning.day import Day, day, heaviest, parts, planned_for
from kvplan.planning.demand import Demand, Replay
from kvplan.planning.kinds import Kind, fits
from kvplan.planning.search import Band, Candidate, Found, Race, Setting, neighbours, race
from kvplan.planning.split import Apart, apart
from kvplan.planning.trial import Missed, Quick, Task
from kvplan.planning.ways import Ways, ways
from kvplan.planning.writing import TRAFFIC, written
from kvplan.profile.reading import Profile, parse_profile
from kvplan.profile.schema import MOST_REPLICAS
from kvplan.ranges import LEAST_RATE
from kvplan.report.assembly import Analyses
from kvplan.solve import least_whole
from kvplan.study.drain import Drain
from kvplan.study.objectives import Decision, State
from kvplan.study.operating_point import Latency
from kvplan.study.replicas import MOST_SIMULATED

_SHOWN = ("ttft_s.p95", "itl_s.p95", "e2e_s.p95")  # beside the objectives
_CVS = (0.4, 1.2)  # of lengths that nobody states
_ALTERNATIVES = 4
_ROOM = 0.01  # step of the demand
_MOST_ROOM = 0.5
_MANY_SEQUENCES = 1_024
_HOUR_S = 3600.0
_MEASURE = "kvplan import RESULT.json --base plan.toml"  # of a load generator on one replica
# settings that may be given instead of searched, with the tables of a profile that have them
SETTINGS = {
    **dict.fromkeys(("max_num_batched_tokens", "max_num_seqs", "block_tokens", "prefix_caching"), "gpu"),
    **dict.fromkeys(("admission", "watermark"), "engine"),
}


class Status(StrEnum):
    """What came of it."""

    PLANNED = "planned"
    IMPOSSIBLE = "impossible"
    INTERRUPTED = "interrupted"


class Objective(NamedTuple):
    """A figure of the fleet, and its limit where it has one; times in seconds.

    Attributes
    ----------
    value, low, high
        Expected, and its 95 % interval.
    slower
        With iterations slower.
    cliff
        Between what times the figure moves for a per cent of the requests.
    """

    key: str
    limit: float | None
    value: float | None
    low: float | None
    high: float | None
    slower: float | None
    state: State
    cliff: tuple[float, float] | None


class Size(NamedTuple):
    """A number of replicas, with its best token budget; `missed` are keys of objectives, "load" or "queue"."""

    replicas: int
    batched_tokens: int | None
    state: State
    missed: tuple[str, ...]
    decided: tuple[Decision, ...]


class Alternative(NamedTuple):
    """Another kind of replica, by short runs."""

    candidate: Candidate
    setting: Setting
    band: Band | None


class Refused(NamedTuple):
    """A kind that cannot do it at any number, and why; where it holds the model, what a request sees that is alone."""

    name: str
    why: str
    least: tuple[Decision, ...] = ()


class Cost(NamedTuple):
    """Of an hour, of a million tokens in and out, and of a million out."""

    per_hour: float
    per_million_tokens: float
    per_million_output_tokens: float


class Next(NamedTuple):
    """The input on which the number of replicas depends most, from how many to how many, and what measures it."""

    input: str
    replicas: tuple[int, int | None]
    command: str


class Plan(NamedTuple):
    """What `kvplan plan` says.

    Attributes
    ----------
    race
        The search.
    refused
        Kinds that cannot serve the model, or meet the objectives.
    profile
        The service as planned, which `-o` writes; None where it is impossible.
    room
        Share by which the demand may grow at this size, up to half; `room_ends`: the key of what is missed beyond it.
    spread
        Replicas by cv of lengths that are assumed; empty where they are stated.
    apart
        Prefill and decode on replicas of their own, where that was asked for.
    day
        The period of the schedule, where that was asked for.
    mean_rps
        The demand, of a schedule its mean.
    worst
        From when to when in the period of a schedule the demand is that which is planned for, seconds.
    next
        What to measure; None where the number of replicas depends on nothing that is estimated or assumed.
    """

    status: Status
    demand: str
    request: "Request"
    race: Race
    refused: tuple[Refused, ...]
    profile: Profile | None = None
    objectives: tuple[Objective, ...] = ()
    sizes: tuple[Size, ...] = ()
    room: float | None = None
    room_ends: str = ""
    band: Band | None = None
    spread: tuple[tuple[float, int], ...] = ()
    alternatives: tuple[Alternative, ...] = ()
    routers: tuple[tuple[str, int], ...] = ()
    drain: Drain | None = None
    latency: Latency | None = None
    verdict: str = ""
    recovers_up_to_rps: float | None = None
    apart: Apart | None = None
    day: Day | None = None
    mean_rps: float = 0.0
    worst: tuple[float, float] | None = None
    ways: Ways = Ways()
    next: Next | None = None

    @property
    def winner(self) -> Candidate:
        """The kind of replica that was chosen."""
        assert self.race.winner is not None
        return self.race.winner

    @property
    def setting(self) -> Setting:
        """How many of them, and the token budget; by short runs where the search was interrupted."""
        return self.race.sizes[self.winner] if self.race.found is None else self.race.found.setting

    def kind(self, name: str) -> Kind | None:
        """The kind of replica that is called so; None: it is a profile."""
        kinds = (option for option in self.request.options if isinstance(option, Kind))
        return next((kind for kind in kinds if kind.name == name), None)

    @property
    def cost(self) -> Cost | None:
        """What all replicas cost; None where prices are not known."""
        return self.cost_of(self.winner, self.setting)

    def cost_of(self, candidate: Candidate, setting: Setting) -> Cost | None:
        """What so many replicas of a kind cost; None where prices are not known."""
        if not self.request.priced:
            return None
        hour, mix = candidate.cost(setting), candidate.task.model.mix
        out = self.mean_rps * mix.mean(mix.decode_tokens) * _HOUR_S / 1e6
        every = out + self.mean_rps * mix.mean(mix.input_tokens) * _HOUR_S / 1e6
        return Cost(hour, hour / every, hour / out)


@dataclass(frozen=True)
class Request:
    """What is asked of the search.

    Attributes
    ----------
    options
        Kinds, or profiles, that may serve it.
    demand
        Of kinds; profiles have their own unless it is given.
    rate_rps
        In the place of the rates of profiles.
    schedule
        Table [workload] with a period and a schedule.
    load_s
        From the start of a replica until it serves; None: the period of the schedule is not planned.
    split
        Whether prefill and decode apart are looked at.
    settings
        Of the engine, by key, that are given and not searched.
    prices
        Of replicas, by the names of kinds and the sources of profiles.
    """

    options: Sequence[Kind | Profile]
    demand: Demand | Replay | None
    slos: tuple[Slo, ...]
    rate_rps: float | None = None
    slower: float = 0.05
    headroom: float = 0.0
    engine: str = "vllm"
    settings: Mapping[str, Any] = field(default_factory=dict)
    schedule: Mapping[str, Any] | None = None
    load_s: float | None = None
    split: bool = False
    prices: Mapping[str, float] | None = None
    router: Routing | None = None

    @property
    def priced(self) -> bool:
        """Whether cost is money, and not GPUs."""
        return self.prices is not None


def plan(request: Request, tell: Callable[[str], None] = lambda _: None, *, engine: Engine = SERIAL) -> Plan:
    """Find the cheapest replicas that meet the objectives, and look around them.

    Raises
    ------
    UsageError, ProfileError
        A profile lacks traffic, or cannot serve it.
    """
    candidates, refused = [], []
    profiles: dict[Candidate, Profile] = {}
    for option in request.options:
        profile = _profile(option, request)
        if isinstance(profile, Profile):
            profile = _with_schedule(_with_settings(profile, request.settings), request)
        if isinstance(profile, Refused):
            refused.append(profile)
            continue
        candidate = _candidate(option, profile, request)
        profiles[candidate] = profile
        candidates.append(candidate)
    named = all(isinstance(option, Profile) for option in request.options)
    possible = [c for c in candidates if c.bound <= MOST_REPLICAS]
    found = race(possible, tell, full=named, engine=engine)
    if candidates and _is_too_much(found, len(candidates)):
        least = min(candidates, key=lambda c: c.bound)
        raise UsageError(
            f"the demand takes {max(least.bound, MOST_REPLICAS + 1):,} replicas or more, of {least.name}, and a plan "
            f"has at most {MOST_REPLICAS:,}; is the rate as meant? If it is, plan a part of it"
        )
    refused += [Refused(c.name, "misses an objective while idle", c.idle_look.decided) for c in found.refused]
    demand = _in_words(next(iter(profiles.values())), request) if profiles else ""
    try:
        return _around(found, profiles, refused, demand, request, tell)
    except KeyboardInterrupt:
        if found.winner is None:
            raise
        return _interrupted(found, profiles, refused, demand, request)


def _is_too_much(found: Race, candidates: int) -> bool:
    """Whether only so many replicas would do as no plan has."""
    if found.found is not None:
        return found.found.setting.replicas > MOST_REPLICAS
    return found.winner is None and len(found.refused) < candidates


def _around(
    found: Race,
    profiles: Mapping[Candidate, Profile],
    refused: Sequence[Refused],
    demand: str,
    request: Request,
    tell: Callable[[str], None],
) -> Plan:
    """What is beside the winner: sizes, costs, alternatives; what would make a demand possible that has none."""
    if found.winner is None:
        tell("what would make it possible")
        return Plan(
            Status.IMPOSSIBLE, demand, request, found, tuple(refused), ways=_ways(found.refused, request)
        )
    winner, size = found.winner, found.found
    if size is None:
        return _interrupted(found, profiles, refused, demand, request)
    tell("around the plan")
    service = _service(profiles[winner], winner, size.setting, request)
    analyses = Analyses(service.model, service.plan)
    latency, verdict = analyses.latency, analyses.verdict
    band, spread = (
        _band(found, winner, size.setting),
        _spread(profiles[winner], winner, size.setting, request),
    )
    return Plan(
        Status.PLANNED,
        demand,
        request,
        found,
        tuple(refused),
        service,
        tuple(_objectives(request.slos, latency, size, varies=_varies(service.model, latency))),
        tuple(_sizes(winner, size)),
        *_room(winner, size.setting),
        band,
        tuple(spread),
        tuple(_alternatives(found, winner)),
        tuple(_routers(winner, size.setting)),
        verdict.drain,
        latency,
        verdict.status,
        verdict.recovers_up_to_rps,
        _apart(profiles[winner], winner, size.setting, request) if request.split else None,
        _day(profiles[winner].model, service.plan, winner, size.setting, request),
        *_when(profiles[winner].model),
        next=_next(service.model, size.setting.replicas, band, spread),
    )


def _interrupted(
    found: Race,
    profiles: Mapping[Candidate, Profile],
    refused: Sequence[Refused],
    demand: str,
    request: Request,
) -> Plan:
    assert found.winner is not None
    mean_rps, worst = _when(profiles[found.winner].model)
    return Plan(Status.INTERRUPTED, demand, request, found, tuple(refused), mean_rps=mean_rps, worst=worst)


def _band(found: Race, candidate: Candidate, setting: Setting) -> Band | None:
    return found.bands[candidate] if candidate in found.bands else candidate.band(setting)


def _alternatives(found: Race, winner: Candidate) -> Iterator[Alternative]:
    """The cheapest of the rest, and the cheapest with the weights of the model's own."""
    others = sorted(
        (c for c in found.sizes if c is not winner),
        key=lambda c: (c.cost(found.sizes[c]), found.sizes[c].replicas),
    )
    own = [c for c in others[_ALTERNATIVES:] if c.own_weights]
    if winner.own_weights or any(c.own_weights for c in others[:_ALTERNATIVES]):
        own = []
    for candidate in [*others[:_ALTERNATIVES], *own[:1]]:
        setting = found.sizes[candidate]
        yield Alternative(candidate, setting, _band(found, candidate, setting))


def _next(
    model: ServingModel, replicas: int, band: Band | None, spread: Sequence[tuple[float, int]]
) -> Next | None:
    """What to measure: speed that is estimated, or lengths that are assumed; None where neither matters."""
    ways = []
    if band is not None and model.provenance.timing.basis != Knowledge.MEASURED:
        ways.append(Next("timing", (band.replicas[0] or 1, band.replicas[1]), _MEASURE))
    if spread:
        sizes = [replicas, *(n for _, n in spread)]
        ways.append(Next("lengths", (min(sizes), max(sizes)), "kvplan plan --trace requests.csv"))
    ways = [way for way in ways if way.replicas[0] != way.replicas[1]]
    return max(ways, key=lambda way: (way.replicas[1] or math.inf) - way.replicas[0], default=None)


def _apart(profile: Profile, winner: Candidate, setting: Setting, request: Request) -> Apart:
    """Prefill and decode apart; prompts that hold up no answers may be as long as the engine has them."""
    kinds = (o for o in request.options if isinstance(o, Kind) and o.name == winner.name)
    bytes_of = [kv_bytes_per_token(kind.shape, kv_dtype=kind.kv_dtype) for kind in kinds]
    tokens = setting.batched_tokens
    if winner.fixed_tokens is None and tokens is not None:
        tokens = max(tokens, winner.engine_tokens or 0)
    return apart(profile, winner.task, setting._replace(batched_tokens=tokens), next(iter(bytes_of), None))


def _day(
    model: ServingModel, plan: ServicePlan, winner: Candidate, setting: Setting, request: Request
) -> Day | None:
    return None if request.load_s is None else day(model, plan, winner.task, setting, request.load_s)


def _when(model: ServingModel) -> tuple[float, tuple[float, float] | None]:
    """The mean demand, and the part of a schedule that is planned for."""
    if model.schedule is None or model.arrivals.trace is not None:
        return model.total_rate_rps, None
    every = parts(model)
    mean = math.fsum(part.total_rate_rps for part in every if part is not None) / len(every)
    place, width = heaviest(model)[0], model.schedule.period_s / len(every)
    return mean, (place * width, (place + 1) * width)


def _profile(option: Kind | Profile, request: Request) -> Profile | Refused:
    """The service on one replica of a kind; why it cannot be."""
    if isinstance(option, Profile):
        return _with_demand(option, request)
    if (why := fits(option)) is not None:
        return Refused(option.name, why)
    assert request.demand is not None
    try:
        profile = _of_kind(option, request)
        held = per_request(profile.model)
        if profile.model.replica.memory_tokens * held.iterations > 256 * held.held:
            profile = _of_kind(option, request, max_num_seqs=_MANY_SEQUENCES)
    except ProfileError as error:
        if "does not fit" not in error.message:
            raise
        return Refused(option.name, "the longest request does not fit")
    return profile


def _of_kind(kind: Kind, request: Request, **limits: int) -> Profile:
    assert request.demand is not None
    name = f"{kind.shape.name} on {kind.tensor_parallel} x {kind.gpu.name}"
    engine = "" if request.engine == "vllm" else f'\n\n[engine]\nname = "{request.engine}"'
    text = f'schema = 1\nname = "{name}"\n\n{kind.toml(**limits)}{engine}\n\n{request.demand.toml}\n'
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


def _with_settings(profile: Profile, settings: Mapping[str, Any]) -> Profile:
    changes = {
        table: {
            **profile.tables.get(table, {}),
            **{k: v for k, v in settings.items() if SETTINGS[k] == table},
        }
        for table in {SETTINGS[key] for key in settings}
    }
    try:
        return _changed(profile, changes, profile.source) if changes else profile
    except ProfileError as error:
        raise UsageError(f"--settings {(error.key or '').rpartition('.')[2]}: {error.message}") from None


def _with_schedule(profile: Profile, request: Request) -> Profile:
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


def _candidate(option: Kind | Profile, profile: Profile, request: Request) -> Candidate:
    model = profile.model
    slos = request.slos
    task = Task(
        planned_for(model),
        replace(profile.plan, slos=slos),
        request.slower,
        request.headroom,
        router=request.router,
    )
    price = (
        float(model.replica.gpus) if request.prices is None else request.prices.get(_key(option), math.nan)
    )
    fixed = request.settings.get("max_num_batched_tokens")
    if isinstance(option, Kind):
        return Candidate(
            option.name, task, price, option.batched_tokens, fixed, own_weights=option.own_weights
        )
    return Candidate(profile.name, task, price, model.replica.max_num_batched_tokens, fixed)


def _key(option: Kind | Profile) -> str:
    """Under which its price is known."""
    return option.name if isinstance(option, Kind) else option.source


def _service(profile: Profile, winner: Candidate, setting: Setting, request: Request) -> Profile:
    """The profile of the whole service, with gate and objectives."""
    routing = request.router or (Routing.SESSION if winner.task.model.finds_prefixes else Routing.RANDOM)
    changes: dict[str, Any] = {"gpu": {**profile.tables["gpu"]}}
    if setting.batched_tokens is not None:
        changes["gpu"]["max_num_batched_tokens"] = setting.batched_tokens
    changes["fleet"] = {"replicas": setting.replicas, "routing": str(routing)}
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


def _objectives(slos: Sequence[Slo], latency: Latency, size: Found, *, varies: bool) -> list[Objective]:
    """Figures of the service; of a schedule those of its worst part."""
    limits = {slo.key: slo.bound for slo in slos}
    assert size.judged.slower is not None
    slower = {key: figure.value for key, figure in size.judged.slower.figures.items()}
    states = {d.key: d.state for d in size.judged.slower.decided}
    cliffs = {cliff.key: (cliff.low_s, cliff.high_s) for cliff in latency.cliffs}
    rows = []
    for key in dict.fromkeys((*limits, *_SHOWN)):
        time, _, figure = key.partition(".")
        value = getattr(getattr(latency.worst_part if varies else latency, time), figure)
        low, high = (None, None) if varies else latency.ci95.get(key, (None, None))
        if value is None and size.judged.expected is not None and key in size.judged.expected.figures:
            value, (low, high) = (of := size.judged.expected.figures[key]).value, of.interval
        state = states.get(key, State.HOLDS)
        if varies and key in limits and (value is None or value > limits[key]):
            state = State.MISSES
        rows.append(
            Objective(key, limits.get(key), value, low, high, slower.get(key), state, cliffs.get(key))
        )
    return rows


def _varies(model: ServingModel, latency: Latency) -> bool:
    return _when(model)[1] is not None and latency.worst_part is not None


def _sizes(winner: Candidate, size: Found) -> list[Size]:
    every = [size, *neighbours(winner, size.setting.replicas)]
    found = []
    for one in sorted(every, key=lambda f: f.setting.replicas):
        kept = [k for k in (one.judged.slower, one.judged.expected) if k is not None]
        decided = kept[0].decided if kept else ()
        found.append(Size(*one.setting, one.judged.state, one.judged.missed, decided))
    return found


def _room(winner: Candidate, setting: Setting) -> tuple[float, str]:
    """Share by which the demand may grow, by short runs, and the key of what it misses then."""

    @cache
    def look(steps: int) -> Quick:
        task = replace(winner.task, headroom=(1 + winner.task.headroom) * (1 + _ROOM * steps) - 1)
        return task.quick(*setting)

    most = round(_MOST_ROOM / _ROOM)
    steps = most - least_whole(lambda less: look(most - less).passes, -1, most)
    missed = max(look(steps + 1).decided, key=lambda d: d.share / d.allowed, default=None)
    return steps * _ROOM, Missed.LOAD if missed is None else missed.key


def _spread(
    profile: Profile, winner: Candidate, setting: Setting, request: Request
) -> list[tuple[float, int]]:
    """Replicas with lengths that vary less, and more, where nobody states how much they do."""
    if not isinstance(request.demand, Demand) or not request.demand.assumes_spread:
        return []
    found = []
    for cv in _CVS:
        tables = {**request.demand.with_cv(cv).tables, "workload": profile.tables.get("workload")}
        model = parse_profile(written(profile.tables, tables).encode(), profile.source).model
        other = winner.varied(setting, replace(winner.task, model=planned_for(model)))
        if (replicas := other.near(setting.replicas)) is not None:
            found.append((cv, replicas))
    return found


def _routers(winner: Candidate, setting: Setting) -> list[tuple[str, int]]:
    """Replicas behind routers that look, of fleets that are simulated whole."""
    if winner.task.model.finds_prefixes or winner.task.router or setting.replicas > MOST_SIMULATED:
        return []
    found = []
    for routing in (Routing.ROUND_ROBIN, Routing.LEAST_REQUESTS):
        task = replace(winner.task, router=routing)
        step, replicas = 1, setting.replicas
        while step:
            if replicas > step and task.quick(replicas - step, setting.batched_tokens).passes:
                replicas, step = replicas - step, 2 * step
            else:
                step //= 2
        found.append((str(routing), replicas))
    return found


def _ways(refused: Sequence[Candidate], request: Request) -> Ways:
    """What would make it possible."""
    given, demand = [option for option in request.options if isinstance(option, Kind)], request.demand

    def candidate_of(kind: Kind, asked: Request = request) -> Candidate | None:
        profile = _profile(kind, asked)
        return None if isinstance(profile, Refused) else _candidate(kind, profile, asked)

    def shorter(candidate: Candidate, share: float) -> Candidate | None:
        assert isinstance(demand, Demand)
        kind = next(kind for kind in given if kind.name == candidate.name)
        return candidate_of(kind, replace(request, demand=demand.with_prompts(share)))

    tokens = demand.prompt.mean if given and isinstance(demand, Demand) else None
    return ways(refused, tokens, shorter, given, candidate_of)


def _in_words(profile: Profile, request: Request) -> str:
    model: ServingModel = profile.model
    total = model.total_rate_rps
    mix = model.mix
    prompt, answer = mix.mean(mix.input_tokens), mix.mean(mix.decode_tokens)
    asked = f"{total:,.4g} requests/s"
    if request.demand is not None and request.demand.users is not None:
        asked = f"{request.demand.users:,} users"
    return f"{asked}, {prompt:,.0f} tokens in, {answer:,.0f} out (means)"
