"""Plan of a service: the cheapest replicas that meet its objectives, and what their number depends on."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from kvplan.analysis.cached_equilibrium import users_of
from kvplan.analysis.worst_window import planned_for
from kvplan.errors import ProfileError, UsageError
from kvplan.executors import SERIAL, Engine
from kvplan.model import ServingModel
from kvplan.planning import around
from kvplan.planning.demand import Demand
from kvplan.planning.host_memory import HostMemory, Tier, check, token_bytes
from kvplan.planning.intervals import spaced
from kvplan.planning.kinds import Kind
from kvplan.planning.result import Plan, Refused, Request, Status
from kvplan.planning.search import BUDGETS, FEW_BUDGETS, Candidate, Race, race
from kvplan.planning.service import replica_profile, service_profile, with_schedule, with_settings
from kvplan.planning.ways import Ways, ways
from kvplan.profile.positions import KeyPath
from kvplan.profile.reading import Profile
from kvplan.ranges import MOST_REPLICAS
from kvplan.report.assembly import Analyses
from kvplan.study.headroom import Size, headroom
from kvplan.study.trial import Task
from kvplan.units import format_number


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
        profile = replica_profile(option, request)
        if isinstance(profile, Profile):
            profile = with_schedule(with_settings(profile, request.settings), request)
        if isinstance(profile, Refused):
            refused.append(profile)
            continue
        if request.offload is not None:
            check(profile)
            token_bytes(profile, option if isinstance(option, Kind) else None, request.offload)
        candidate = _candidate(option, profile, request)
        profiles[candidate] = profile
        candidates.append(candidate)
    named = all(isinstance(option, Profile) for option in request.options)
    possible = [c for c in candidates if c.bound <= MOST_REPLICAS]
    raced = race(possible, tell, full=named, engine=engine)
    if candidates and _is_too_much(raced, len(candidates)):
        least = min(candidates, key=lambda c: c.bound)
        raise UsageError(
            f"the demand takes {max(least.bound, MOST_REPLICAS + 1):,} replicas or more, of {least.name}, and a plan "
            f"has at most {MOST_REPLICAS:,}; is the rate as meant? If it is, plan a part of it"
        )
    if raced.winner is None and (unknown := [each for each in refused if each.unknown]):
        raise UsageError(f"{unknown[0].name}: this demand is {unknown[0].why}")
    refused += [Refused(c.name, "misses an objective while idle", c.idle_look.decided) for c in raced.refused]
    # in the words of the winner: the context of another kind may cut what it serves whole
    worded = [profiles[raced.winner]] if raced.winner else [*profiles.values()]
    demand = _in_words(worded[0]) if worded else ""
    try:
        at_intervals = None if "prefill_interval" in request.settings else spaced(raced, tell)
        if at_intervals is not None:
            pace: dict[KeyPath, object] = {("engine", "prefill_interval"): at_intervals.interval}
            profiles[at_intervals.kind] = profiles.pop(at_intervals.without).changed(pace)
            raced = at_intervals.of(raced)
        return _around(raced, profiles, refused, demand, request, tell)._replace(spaced=at_intervals)
    except KeyboardInterrupt:
        if raced.winner is None:
            raise
        return _interrupted(raced, profiles, refused, demand, request)


def _is_too_much(raced: Race, candidates: int) -> bool:
    """Tell whether more replicas are needed than a plan may have."""
    if raced.found is not None:
        return raced.found.setting.replicas > MOST_REPLICAS
    return raced.winner is None and len(raced.refused) < candidates


def _around(
    raced: Race,
    profiles: Mapping[Candidate, Profile],
    refused: Sequence[Refused],
    demand: str,
    request: Request,
    tell: Callable[[str], None],
) -> Plan:
    """Look around the winner: sizes, costs, alternatives; or for ways out of an impossible demand."""
    if raced.winner is None:
        tell("what would make it possible")
        return Plan(
            Status.IMPOSSIBLE, demand, request, raced, tuple(refused), ways=_ways(raced.refused, request)
        )
    winner, size = raced.winner, raced.found
    if size is None:
        return _interrupted(raced, profiles, refused, demand, request)
    tell("around the plan")
    service = service_profile(profiles[winner], winner, size.setting, request)
    analyses = Analyses(service.model, service.plan)
    latency, verdict = analyses.latency, analyses.verdict
    profile, setting = profiles[winner], size.setting
    band, spread = around.band(raced, winner, setting), around.spread(profile, winner, setting, request)
    short = around.by_short_runs(winner, setting)
    spare = headroom(Size(winner.task, *setting), lambda: size.judged)
    varies = around.varies(service.model, latency)
    mean_rps, worst = around.demand_over_time(service.model)
    tiers: tuple[Tier, ...] = ()
    curve: tuple[Tier, ...] = ()
    if request.offload is not None:
        token = token_bytes(profile, request.kind(winner.name))
        host = HostMemory(token, winner, setting, request.memory_hour, request.spare)
        tiers = tuple(host.tiers(request.offload))
        curve = tuple(host.along(tiers)) if len(tiers) > 1 else ()
    return Plan(
        Status.PLANNED,
        demand,
        request,
        raced,
        tuple(refused),
        profile=service,
        objectives=tuple(
            around.objectives(
                request.slos,
                latency,
                size,
                without := around.without_each(winner, setting, short),
                around.with_tpot(winner, setting, without),
                varies=varies,
            )
        ),
        sizes=tuple(around.sizes(winner, size)),
        headroom=spare,
        band=band,
        by_short_runs=short,
        spread=tuple(spread),
        alternatives=tuple(around.alternatives(raced, winner)),
        versus=tuple(around.versus(request.kind, winner, profiles)),
        routers=tuple(around.routers(winner, setting)),
        first_come=around.first_come(winner, setting),
        host_memory=tiers,
        host_curve=curve,
        drain=verdict.drain,
        latency=latency,
        verdict=verdict.status,
        recovery_rps=analyses.recovery.rate_rps,
        apart=around.split_of(profile, winner, setting, request) if request.split else None,
        day=around.day_of(profile.model, service.plan, winner, setting, request),
        mean_rps=mean_rps,
        busy=analyses.operating_point.busy,
        worst=worst,
        next=around.what_next(service, short, band, spread),
    )


def _interrupted(
    raced: Race,
    profiles: Mapping[Candidate, Profile],
    refused: Sequence[Refused],
    demand: str,
    request: Request,
) -> Plan:
    assert raced.winner is not None
    mean_rps, worst = around.demand_over_time(profiles[raced.winner].model)
    return Plan(Status.INTERRUPTED, demand, request, raced, tuple(refused), mean_rps=mean_rps, worst=worst)


def _candidate(option: Kind | Profile, profile: Profile, request: Request) -> Candidate:
    model = profile.model
    slos = request.slos
    task = Task(
        planned_for(model),
        replace(profile.plan, slos=slos, recover_s=request.recover_s or profile.plan.recover_s),
        request.slower,
        request.headroom,
        router=request.router,
    )
    price = (
        float(model.replica.gpus) if request.prices is None else request.prices.get(_key(option), math.nan)
    )
    fixed = request.settings.get("max_num_batched_tokens")
    listed = FEW_BUDGETS if model.finds_prefixes else BUDGETS
    if isinstance(option, Kind):
        return Candidate(option.name, task, price, option.batched_tokens, fixed, listed, option.own_weights)
    engine_tokens = model.replica.of_rank().max_num_batched_tokens
    return Candidate(profile.name, task, price, engine_tokens, fixed, listed)


def _key(option: Kind | Profile) -> str:
    """Return the key of its price."""
    return option.name if isinstance(option, Kind) else option.source


def _ways(refused: Sequence[Candidate], request: Request) -> Ways:
    """Find ways to make the demand possible."""
    given, demand = [option for option in request.options if isinstance(option, Kind)], request.demand

    def candidate_of(kind: Kind, asked: Request = request) -> Candidate | None:
        try:
            profile = replica_profile(kind, asked)
        except ProfileError:  # of the demand, and not of what was asked about
            return None
        return None if isinstance(profile, Refused) else _candidate(kind, profile, asked)

    def shorter(candidate: Candidate, share: float) -> Candidate | None:
        assert isinstance(demand, Demand)
        kind = next(kind for kind in given if kind.name == candidate.name)
        return candidate_of(kind, replace(request, demand=demand.with_prompts(share)))

    tokens = demand.prompt.mean if given and isinstance(demand, Demand) else None
    return ways(refused, tokens, shorter, given, candidate_of)


def _in_words(profile: Profile) -> str:
    model: ServingModel = profile.model
    total = model.total_rate_rps
    mix = model.mix
    prompt, answer = mix.mean(mix.input_tokens), mix.mean(mix.decode_tokens)
    asked = f"{format_number(total)} requests/s"
    if all(c.sessions is not None and c.sessions.users for c in model.classes):
        asked = f"{users_of(model):,} users"
    return f"{asked}, {prompt:,.0f} tokens in, {answer:,.0f} out (means)"
