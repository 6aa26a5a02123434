"""Look around the winner of a search: sizes, room, costs at other speeds and lengths, routers, the day."""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from kvplan.analysis.equilibrium import sustainable_rate
from kvplan.analysis.fleet import one_replica
from kvplan.analysis.worst_window import heaviest, parts, planned_for
from kvplan.errors import ProfileError, UsageError
from kvplan.ingest.model.shape import kv_bytes_per_token
from kvplan.model import Plan as ServicePlan
from kvplan.model import Scheduling, ServingModel
from kvplan.model.fleet import Routing
from kvplan.model.provenance import Knowledge
from kvplan.model.slo import Slo
from kvplan.planning.day import Day, day
from kvplan.planning.demand import Demand
from kvplan.planning.kinds import Kind
from kvplan.planning.measuring import first_runs, lacks
from kvplan.planning.result import Alternative, Next, Objective, Request, Size, Versus
from kvplan.planning.search import Band, Candidate, Found, Race, Setting, neighbours
from kvplan.planning.split import Apart, apart
from kvplan.profile.reading import Profile
from kvplan.study.objectives import State
from kvplan.study.operating_point import Latency
from kvplan.study.replicas import MOST_SIMULATED

_SHOWN = tuple(f"{time}.p95" for time in ("ttft_s", "itl_s", "e2e_s"))  # beside the objectives
_CVS = (0.4, 1.2)  # of lengths that nobody states
_ALTERNATIVES = 4
_BUDGET_S = 1.0  # counted work of a router; what it leaves open takes one more
_MEASURE, _IMPORT = "kvplan measure plan.toml", "kvplan import RESULT.json --base plan.toml"


def band(race: Race, winner: Candidate, setting: Setting) -> Band | None:
    """Return replicas at the ends of the error band, of the race or anew."""
    return race.bands[winner] if winner in race.bands else winner.band(setting)


def alternatives(race: Race, winner: Candidate) -> Iterator[Alternative]:
    """Yield the cheapest of the rest, and the cheapest with the model's own weights."""
    others = sorted(
        (c for c in race.sizes if c is not winner),
        key=lambda c: (c.cost(race.sizes[c]), race.sizes[c].replicas),
    )
    own = [c for c in others[_ALTERNATIVES:] if c.own_weights]
    if winner.own_weights or any(c.own_weights for c in others[:_ALTERNATIVES]):
        own = []
    for candidate in [*others[:_ALTERNATIVES], *own[:1]]:
        yield Alternative(candidate, race.sizes[candidate])


def versus(
    kind_of: Callable[[str], Kind | None], winner: Candidate, others: Iterable[Candidate]
) -> Iterator[Versus]:
    """Compare other ways to share as many GPUs of the winner's kind; its limit comes first."""

    def sustained(candidate: Candidate) -> tuple[str, float]:
        model = candidate.task.at(1, candidate.engine_tokens, slower=False)
        return sustainable_rate(one_replica(model))

    def shared(kind: Kind | None) -> tuple[object, ...] | None:
        return None if kind is None else (kind.gpu, kind.weights, kind.parallelism.gpus)

    kind = kind_of(winner.name)
    memory, (_, rate) = winner.task.model.replica.memory_tokens, sustained(winner)
    for other in others:
        if kind is not None and other is not winner and shared(kind_of(other.name)) == shared(kind):
            limit, other_rate = sustained(other)
            more = other.task.model.replica.memory_tokens / memory
            yield Versus(other.name, more, other_rate / rate, limit)


def what_next(
    service: Profile, replicas: int, band: Band | None, spread: Sequence[tuple[float, int]]
) -> Next | None:
    """Return what to measure: speed that is estimated, or lengths that are assumed; None where neither matters.

    `replicas`, `band` and `spread` are all by short runs.
    """
    ways: list[Next] = []
    if band is not None and service.model.provenance.timing.basis != Knowledge.MEASURED:
        ways += filter(None, [_speed(service, (band.replicas[0] or 1, band.replicas[1]))])
    if spread:
        sizes = [replicas, *(n for _, n in spread)]
        ways.append(Next("lengths", (min(sizes), max(sizes)), "kvplan plan --trace requests.csv"))
    ways = [way for way in ways if way.replicas[0] != way.replicas[1]]
    return max(ways, key=lambda way: (way.replicas[1] or math.inf) - way.replicas[0], default=None)


def _speed(service: Profile, ends: tuple[int, int | None]) -> Next | None:
    """Return what measures the speed: `measure` where it proposes runs, else results; None where it is settled."""
    if ends[0] == ends[1]:
        return None
    try:
        first = None if lacks(service) else first_runs(service)
    except UsageError:
        first = None
    if first is None:
        return Next("timing", ends, _IMPORT)
    return Next("timing", ends, _MEASURE, first) if first.concurrencies else None


def split_of(profile: Profile, winner: Candidate, setting: Setting, request: Request) -> Apart:
    """Plan prefill and decode apart; prompts may be as long as the engine has them: no answer waits."""
    kinds = (o for o in request.options if isinstance(o, Kind) and o.name == winner.name)
    bytes_of = [kv_bytes_per_token(kind.shape, kv_dtype=kind.kv_dtype) for kind in kinds]
    tokens = setting.batched_tokens
    if winner.fixed_tokens is None and tokens is not None:
        tokens = max(tokens, winner.engine_tokens or 0)
    return apart(profile, winner.task, setting._replace(batched_tokens=tokens), next(iter(bytes_of), None))


def day_of(
    model: ServingModel, plan: ServicePlan, winner: Candidate, setting: Setting, request: Request
) -> Day | None:
    """Plan the period of the schedule, if asked for."""
    return None if request.load_s is None else day(model, plan, winner.task, setting, request.load_s)


def demand_over_time(model: ServingModel) -> tuple[float, tuple[float, float] | None]:
    """Return the mean demand, and the planned part of a schedule."""
    if model.schedule is None or model.arrivals.trace is not None:
        return model.total_rate_rps, None
    every = parts(model)
    mean = math.fsum(part.total_rate_rps for part in every if part is not None) / len(every)
    place, width = heaviest(model)[0], model.schedule.period_s / len(every)
    return mean, (place * width, (place + 1) * width)


def objectives(
    slos: Sequence[Slo],
    latency: Latency,
    size: Found,
    without: Mapping[str, int],
    tpot: Mapping[str, int],
    *,
    varies: bool,
) -> list[Objective]:
    """Figures of the service; of a schedule those of its worst part."""
    limits = {slo.key: slo.bound for slo in slos}
    assert size.judged.slower is not None
    slower = {d.key: d.value for d in size.judged.slower.decided}  # those of classes, too
    slower |= {key: figure.value for key, figure in size.judged.slower.figures.items()}
    own = {} if size.judged.expected is None else {d.key: d for d in size.judged.expected.decided}
    states = {d.key: d.state for d in size.judged.slower.decided}
    cliffs = {cliff.key: (cliff.low_s, cliff.high_s) for cliff in latency.cliffs}
    rows = []
    for key in dict.fromkeys((*limits, *_SHOWN)):
        value = value_of(latency, key, varies=varies)
        low, high = (None, None) if varies else latency.ci95.get(key, (None, None))
        if value is None and size.judged.expected is not None and key in size.judged.expected.figures:
            value, (low, high) = (of := size.judged.expected.figures[key]).value, of.interval
        if low is None and not varies and key in own:  # of a class, by shorter runs
            low, high = own[key].low, own[key].high
            if value is not None and not (low or 0.0) <= value <= (high or math.inf):  # which contradict it
                low = high = None
        state = states.get(key, State.HOLDS)
        if varies and key in limits and (value is None or value > limits[key]):
            state = State.MISSES
        rows.append(
            Objective(
                key,
                limits.get(key),
                value,
                low,
                high,
                slower.get(key),
                state,
                cliffs.get(key),
                without.get(key),
                tpot.get(key),
                *(value_of(latency, _of_same_time(key, figure), varies=varies) for figure in ("mean", "p99")),
            )
        )
    return rows


def _of_same_time(key: str, figure: str) -> str:
    """Return the key of another figure of the same time, and class.

    >>> _of_same_time("itl_s.p90 of chat", "mean")
    'itl_s.mean of chat'
    """
    of, sep, name = key.partition(" of ")
    return f"{of.partition('.')[0]}.{figure}{sep}{name}"


def value_of(latency: Latency, key: str, *, varies: bool = False) -> float | None:
    """Return a figure by the key of its objective; `varies`: of the worst part, which has none of classes."""
    of, _, name = key.partition(" of ")
    time, _, figure = of.partition(".")
    own = next((each for each in latency.classes if each.name == name), None)
    there = (None if varies else own) if name else (latency.worst_part if varies else latency)
    return None if there is None else getattr(getattr(there, time), figure)


def by_short_runs(winner: Candidate, setting: Setting) -> int:
    """Return the replicas that are enough by short runs: not the plan's where long runs or bursts decide."""
    return winner.near(setting.replicas) or setting.replicas


def _a_burst_decides(winner: Candidate, setting: Setting) -> bool:
    """Tell whether fewer replicas meet the objectives but do not recover: a burst hits one, behind any router."""
    return any(s.replicas < setting.replicas and j.met is State.HOLDS for s, j in winner.long.items())


def without_each(winner: Candidate, setting: Setting, least: int) -> dict[str, int]:
    """Return, by objective, the replicas needed without it, by short runs.

    Where only a burst refuses fewer replicas, no objective costs any. `least` are those by short runs with all.
    """
    keys = [slo.key for slo in winner.task.plan.slos]
    fewer = dict.fromkeys(keys, setting.replicas)
    if _a_burst_decides(winner, setting):
        return fewer
    for key in keys:
        replicas = winner.without(setting, {key}).near(setting.replicas)
        if replicas is not None and replicas < least:
            fewer[key] = replicas
    return fewer


def with_tpot(winner: Candidate, setting: Setting, without: Mapping[str, int]) -> dict[str, int]:
    """Return, by objective on ITL that costs replicas, the fewer that do with its limit on TPOT, by short runs."""
    plan, replicas = winner.task.plan, {}
    for slo in plan.slos:
        if slo.key.startswith("itl_s.") and without[slo.key] < setting.replicas:
            mean = replace(slo, key=slo.key.replace("itl_s", "tpot_s", 1))
            slos = tuple(mean if each is slo else each for each in plan.slos)
            other = replace(winner, task=replace(winner.task, plan=replace(plan, slos=slos)))
            if (least := other.fewest(setting.replicas - 1)) is not None:
                replicas[slo.key] = least.replicas
    return replicas


def first_come(winner: Candidate, setting: Setting) -> int | None:
    """Return the replicas needed by first come first served, by short runs.

    None where priorities are not used, or no number is enough.
    """
    model = winner.task.model
    if model.engine is None or not model.by_priority:
        return None
    other = replace(model, engine=replace(model.engine, scheduling=Scheduling.FCFS))
    return winner.varied(setting, replace(winner.task, model=other)).near(setting.replicas)


def varies(model: ServingModel, latency: Latency) -> bool:
    """Tell whether figures are those of the worst part of a schedule."""
    return demand_over_time(model)[1] is not None and latency.worst_part is not None


def sizes(winner: Candidate, size: Found) -> list[Size]:
    """List the planned size, one replica less and one more."""
    every = [size, *neighbours(winner, size.setting)]
    listed = []
    for near in sorted(every, key=lambda f: f.setting.replicas):
        kept = [k for k in (near.judged.slower, near.judged.expected) if k is not None]
        decided = kept[0].decided if kept else ()
        judged = near.judged
        listed.append(Size(*near.setting, judged.state, judged.met, judged.missed, decided, judged.recovery))
    return listed


def spread(
    profile: Profile, winner: Candidate, setting: Setting, request: Request
) -> list[tuple[float, int]]:
    """List replicas by cv of lengths, less and more, where nobody states it."""
    if not isinstance(request.demand, Demand) or not request.demand.assumes_spread:
        return []
    by_cv = []
    for cv in _CVS:
        tables = request.demand.with_cv(cv).tables
        try:
            model = profile.changed({(name,): table for name, table in tables.items()}).model
        except ProfileError:  # the longest request does not fit, or is longer than any may be
            continue
        other = winner.varied(setting, replace(winner.task, model=planned_for(model)))
        if (replicas := other.near(setting.replicas)) is not None:
            by_cv.append((cv, replicas))
    return by_cv


def routers(winner: Candidate, setting: Setting) -> list[tuple[str, int]]:
    """List the replicas that other routers take, if the whole fleet can be simulated.

    Long runs decide where the planned size is near a limit, between it and one more.
    """
    if winner.task.model.finds_prefixes or winner.task.router or setting.replicas > MOST_SIMULATED:
        return []
    by_router = []
    for routing in (Routing.ROUND_ROBIN, Routing.LEAST_REQUESTS):
        task = replace(winner.task, router=routing)
        look = task.quick(*setting)
        enough = look.passes
        if look.is_near:
            enough = task.keeps(*setting, slower=True, budget_s=_BUDGET_S).state is State.HOLDS
        if not enough:
            by_router.append((str(routing), setting.replicas + 1))
            continue
        step, replicas = int(not _a_burst_decides(winner, setting)), setting.replicas
        while step:
            if replicas > step and task.quick(replicas - step, setting.batched_tokens).passes:
                replicas, step = replicas - step, 2 * step
            else:
                step //= 2
        by_router.append((str(routing), replicas))
    return by_router
