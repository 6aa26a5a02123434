"""Replicas for a demand, for people and programs."""

from collections.abc import Iterator, Sequence

from kvplan.decide.autoscaling import Day
from kvplan.decide.fleet import Hour, Offer, Sizing, Way, Weighed
from kvplan.decide.routing import Routing
from kvplan.decide.sizing import (
    HYSTERESIS,
    MOST_REQUESTS,
    QUEUE,
    Probe,
    Size,
    SoFar,
    Thresholds,
)
from kvplan.layout import autoscaling
from kvplan.layout.elements import (
    Block,
    Bullets,
    Column,
    Paragraph,
    Section,
    Table,
    number,
    replicas,
    table,
    words,
)
from kvplan.study.judging import Trend
from kvplan.study.objectives import State
from kvplan.study.replicas import Kept
from kvplan.units import ABSENT, format_number, format_percent, format_seconds

_USUAL = ("ttft_s.p95", "tpot_s.mean", "e2e_s.p95")
_OF_SESSIONS = (
    "Whole sessions and users split, too: simulated is one replica with its part of them, all of whose turns come to "
    "it. Routed anywhere, what a session left is found with probability 1/replicas (estimated, not simulated)."
)
_AT_RANDOM = (
    "The demand splits evenly: every replica gets each request with the same probability (assumption). What a router "
    "does from moment to moment is not modelled; --routing does."
)
_OF_BOUND = (
    "Where waits are bounded, a replica full of requests comes back by itself (computed, theory §13). What bounds them "
    "is a gateway or client that gives up whoever waits longer, not the engine, and is not part of these runs."
)
_UNBOUNDED = 2  # ways to weigh a host tier: without and with it, whatever waits


def build(found: Sizing, *, compare: bool = False, day: Day | None = None) -> list[Section]:
    """For people: which profile, then a section for each, unless they are only compared; a `day` is of the one."""
    sections = [_compared(found)] if compare or len(found.offers) > 1 else []
    if not compare:
        sections += [_section(found, offer) for offer in found.offers]
    sections += [_host_tier(offer, offer.tier) for offer in found.offers if offer.tier is not None]
    if day is not None:
        sections.append(autoscaling.build(day, found.offers[0].name, found.slos))
    return [*sections, Section("notes", "Notes", (Bullets(notes(found)),))]


def _compared(found: Sizing) -> Section:
    """The profiles, the best first."""
    priced = found.offers[0].price is not None
    columns = (
        Column("Profile", wraps=True, least=12),
        number("Replicas"),
        number("GPUs"),
        *(number("Cost/h"), number("Cost/M out")) * priced,
        Column("Decides", wraps=True, least=12),
        number("Its figure"),
    )
    rows = (
        (
            offer.label,
            _count(offer.fleet.heaviest.replicas),
            format_number(offer.mean_gpus),
            *(_cost(offer.cost), format_number(offer.per_million_output_tokens)) * priced,
            _binding(offer.fleet.heaviest),
            _deciding(found, offer.fleet.heaviest),
        )
        for offer in found.ranked
    )
    best = found.best
    said = "No number of replicas of any of them is enough."
    if best is not None:
        several = any(offer.gpus > 1 for offer in found.offers)
        why = "cheapest" if best.price is not None else "fewest GPUs" if several else "fewest replicas"
        said = f"{best.label}: {replicas(best.fleet.heaviest.replicas or 0, best.gpus)}, the {why}."
    return Section("size", "Replicas for the demand", (Paragraph(said), table(columns, rows)))


def _host_tier(offer: Offer, tier: Weighed) -> Section:
    """What a host tier saves, and what it may cost."""
    priced = tier.ways[0].price is not None
    columns = (
        words("Host tier"),
        words("Waits"),
        number("Replicas"),
        number("GPUs"),
        *(number("Cost/h"),) * priced,
        number("May add to the price"),
    )
    rows = [
        (
            "yes" if way.has_tier else "no",
            "any" if way.longest_wait_s is None else f"up to {format_seconds(way.longest_wait_s)}",
            _count(way.fleet.heaviest.replicas),
            format_number(None if (mean := way.fleet.mean_replicas) is None else mean * offer.gpus),
            *(_cost(way.cost),) * priced,
            _worth(tier, way) if way.has_tier else ABSENT,
        )
        for way in tier.ways
    ]
    return Section(
        "host",
        f"Host tier or more GPUs: {offer.name}",
        (Paragraph(_saved(tier, offer.gpus)), table(columns, rows)),
    )


def _saved(tier: Weighed, gpus: int) -> str:
    alone, at_any, *bounded = tier.ways
    said = f"Whatever waits: {_needed(at_any, gpus)} with the host tier, {_needed(alone, gpus)} without it."
    for way in bounded:
        said += f" Where none waits longer than {format_seconds(way.longest_wait_s)}: {_needed(way, gpus)} with it."
    worths = [(worth, way) for way in tier.ways[1:] if (worth := tier.worth(way)) is not None]
    if not worths:
        return said
    most, best = max(worths, key=lambda one: one[0])
    if most <= 0:
        return f"{said} It saves no GPU."
    return f"{said} A replica and hour may then cost {_worth(tier, best)} more for it before more GPUs are cheaper."


def _needed(way: Way, gpus: int) -> str:
    count = way.fleet.heaviest.replicas
    return "no number of replicas is enough" if count is None else replicas(count, gpus)


def _worth(tier: Weighed, way: Way) -> str:
    money = tier.worth_per_hour(way)
    return format_percent(tier.worth(way)) if money is None else _cost(money)


def _deciding(found: Sizing, one: Size) -> str:
    """The figure, at the size that is enough, of the objective that binds; of the load where that does."""
    probe = None if one.replicas is None else one.probe(one.replicas)
    if probe is None:
        return ABSENT
    key = next((slo.key for slo in found.slos if slo.text == one.binding), None)
    return f"{format_percent(probe.load)} load" if key is None else _figure(probe.kept, key)


def _shown(found: Sizing) -> tuple[str, ...]:
    """Figures of every size that was tried: those with objectives, and the usual ones."""
    timed = (slo.key for slo in found.slos if "_s." in slo.key)
    return tuple(dict.fromkeys((*timed, *_USUAL)))


def _title(key: str) -> str:
    """A figure in words.

    >>> _title("ttft_s.p95")
    'TTFT p95'
    """
    time, _, figure = key.partition("_s.")
    return f"{time.upper()} {figure}"


def _section(found: Sizing, offer: Offer) -> Section:
    heaviest, hours = offer.fleet.heaviest, offer.fleet.hours
    blocks: list[Block] = [
        Paragraph(_answer(found, offer)),
        Paragraph(_evidence(heaviest)),
        _tried(heaviest, _shown(found)),
    ]
    blocks += [Paragraph(text) for text in _one_more(heaviest, offer.gpus, _shown(found))]
    if heaviest.routing is not None and (heaviest.replicas or 0) > 1:
        blocks += [
            Paragraph("Whether the turns of a session stay on a replica (computed, for each of them):"),
            _of_routing(heaviest.routing),
        ]
    if hours:
        blocks += [_over_time(hours)]
    if heaviest.thresholds is not None and heaviest.replicas is not None:
        blocks += [
            Paragraph(f"For an autoscaler, per replica{', in the heaviest part' if hours else ''}:"),
            _for_autoscaler(heaviest.thresholds, heaviest.replicas, found.headroom),
        ]
    return Section("size", f"Size: {offer.name}", tuple(blocks))


def _answer(found: Sizing, offer: Offer) -> str:
    fleet = offer.fleet
    one = fleet.heaviest
    demand = f"{format_number(one.demand_rps)} requests/s"
    if fleet.hours:
        demand = f"the heaviest part of the period, {demand},"
    extra = f" with {format_percent(found.headroom)} headroom" if found.headroom else ""
    if one.replicas is None:
        return f"No number of replicas meets it: {one.reason}."
    how = "" if one.router is None else f" by {one.router}"
    said = f"{replicas(one.replicas, offer.gpus)} for {demand}{extra}{how}; what binds: {_binding(one)}."
    if fleet.hours:
        said += f" Over the period {format_number(fleet.mean_replicas)} in the mean."
    if one.routing is not None and one.routing.sessions.collapse_possible:
        said += " Its prefix cache can still collapse: kvplan analyze says what prevents that."
    if offer.cost is not None:
        said += f" Cost: {_cost(offer.cost)} an hour."
    return said


def _evidence(one: Size) -> str:
    if one.users is not None:
        wanted, most = one.users
        said = f"One replica is sure to serve {most:,} users ({one.limit}): {wanted:,} users"
    else:
        said = f"One replica sustains {format_number(one.sustainable_rps)} requests/s ({one.limit}): "
        said += f"{format_number(one.needed_rps)} requests/s"
    said += f" take at least {replicas(one.closed_form)} (computed)."
    if one.replicas is None:
        return said
    said += f" Simulated with {one.replicas:,}: enough."
    below = one.probe(one.replicas - 1)
    if below is None:
        return said
    if below.missed:
        return f"{said} With {below.replicas:,}: not enough, {_missed(below)}."
    excess = format_percent(below.load - 1)
    if _is_warm(one, below):
        return (
            f"{said} With {below.replicas:,}: {excess} above the guaranteed rate, served until a burst comes."
        )
    return f"{said} With {below.replicas:,}: {excess} more than is sustainable, too little to be seen in these runs."


def so_far(found: SoFar) -> str:
    """What is known of a size whose search was interrupted.

    >>> so_far(SoFar(60.0, 4, ()))
    '60 requests/s: at least 4 replicas by the formulas; none simulated to its end'
    """
    few = [probe for probe in found.probes if not probe.enough]
    enough = min((probe.replicas for probe in found.probes if probe.enough), default=None)
    said = []
    if few:
        most = max(few, key=lambda probe: probe.replicas)
        said.append(f"not enough {most.replicas:,} ({_missed(most) or 'more than is sustainable'})")
    if enough is not None:
        said.append(f"enough {enough:,}")
    simulated = f"simulated: {', '.join(said)}" if said else "none simulated to its end"
    asked = f"at least {replicas(found.closed_form)} by the formulas"
    return f"{format_number(found.demand_rps)} requests/s: {asked}; {simulated}"


def _missed(probe: Probe) -> str:
    open_keys = {d.key for d in probe.kept.decided if d.state is State.OPEN}
    growing = probe.kept.trend is Trend.GROWING

    def said(what: str) -> str:
        if what == QUEUE:
            return "the queue grows" if growing else "the queue may grow"
        return f"{what} {'open' if what.split()[0] in open_keys else 'missed'}"

    return ", ".join(map(said, probe.missed))


def _unseen(probe: Probe) -> bool:
    """Whether the formulas refute a size and the simulation does not."""
    return probe.overloaded and not probe.missed


def _is_warm(one: Size, probe: Probe) -> bool:
    """Whether a size that the formulas refute is served as long as the prefix cache is warm."""
    return _unseen(probe) and one.routing is not None and probe.rate_rps <= one.routing.sessions.good_rps


def _verdict(one: Size, probe: Probe) -> str:
    if _is_warm(one, probe):
        return "not guaranteed"
    return "not refuted: runs too short" if _unseen(probe) else _missed(probe) or "enough"


def _tried(one: Size, shown: Sequence[str]) -> Table:
    columns = (
        number("Replicas"),
        number("Requests/s each"),
        number("Load"),
        *(number(_title(key)) for key in shown),
        words("Simulated"),
    )
    rows = [
        (
            f"{probe.replicas:,}",
            format_number(probe.rate_rps),
            format_percent(probe.load),
            *(_figure(probe.kept, key) for key in shown),
            _verdict(one, probe),
        )
        for probe in one.probes
    ]
    if one.idle is not None:
        rows.append(("idle", "0", "0%", *(_figure(one.idle, key) for key in shown), ABSENT))
    return table(columns, rows)


def _figure(kept: Kept, key: str) -> str:
    found = kept.figures.get(key)
    return ABSENT if found is None else format_seconds(found.value)


def _one_more(one: Size, gpus: int, shown: Sequence[str]) -> Iterator[str]:
    """What another replica would change."""
    if one.replicas is None:
        return
    here, more = one.probe(one.replicas), one.probe(one.replicas + 1)
    assert here is not None
    assert more is not None
    spare = [format_percent(p.replicas * one.sustainable_rps / one.demand_rps - 1) for p in (here, more)]
    said = [f"headroom from {spare[0]} to {spare[1]}"]
    said += [
        f"{_title(key)} from {_figure(here.kept, key)} to {_figure(more.kept, key)}"
        for key in shown
        if key in here.kept.figures and key in more.kept.figures
    ]
    what = "GPU" if gpus == 1 else f"replica ({gpus:,} GPUs)"
    yield f"One more {what} buys {', '.join(said)}."


def _of_routing(found: Routing) -> Table:
    columns = (
        words("Turns come"),
        number("Hit ratio"),
        number("Iteration"),
        number("Warm, up to"),
        words("Collapse"),
    )
    rows = [
        (
            name,
            format_percent(one.hit_ratio),
            format_seconds(one.iteration_time_s),
            f"{format_number(one.good_rps)}/s",
            "possible" if one.collapse_possible else "not possible",
        )
        for name, one in (("to one replica", found.sessions), ("to any", found.anywhere))
    ]
    return table(columns, rows)


def _over_time(hours: Sequence[Hour]) -> Table:
    columns = (
        number("From"),
        number("To"),
        number("Requests/s"),
        number("Replicas"),
        Column("Binds"),
    )
    rows = tuple(
        (
            format_seconds(hour.start_s, 4),
            format_seconds(hour.end_s, 4),
            "0" if hour.size is None else format_number(hour.size.demand_rps),
            _count(hour.replicas),
            ABSENT if hour.size is None else _binding(hour.size),
        )
        for hour in hours
    )
    return table(columns, rows)


def _for_autoscaler(found: Thresholds, replicas: int, headroom: float) -> Table:
    columns = (Column("Act when"), number("Value"), words("Source"))
    carried = (
        "the load confirmed by simulation" if found.confirmed else "the sustainable rate, WAIT-s eq. 3-6"
    )
    rows = (
        (
            "add: requests/s above",
            format_number(found.rate_rps),
            f"{carried}, over {format_number(1 + headroom)} for headroom",
        ),
        (
            "add: KV cache usage above",
            format_percent(found.kv_utilization),
            "equilibrium at that rate, WAIT-s eq. 3-6",
        ),
        (
            "add: requests without a first token above",
            format_number(found.waiting),
            "that rate × mean TTFT, simulated (Little's law)",
        ),
        (
            "take away: requests/s of all, over one replica less, below",
            format_number(found.down_rate_rps),
            f"{format_percent(HYSTERESIS)} of the rate above: between the two nothing is done",
        ),
        (
            f"take away, of these {replicas:,}: KV cache usage below",
            format_percent(found.down_kv_utilization),
            "equilibrium at that rate; of fewer replicas it is less",
        ),
    )
    return table(columns, rows)


def notes(found: Sizing) -> tuple[str, ...]:
    """What was assumed."""
    runs = " or ".join(f"{count:,}" for count in sorted(set(found.requests)))
    by_one = [offer for offer in found.offers if offer.fleet.heaviest.router is None]
    said = [
        *(_OF_SESSIONS,) * any(offer.has_sessions for offer in by_one),
        *(_AT_RANDOM,) * bool(by_one),
        *_routed(found),
        *_arrivals(found),
        f"Simulated: policy {found.policy}, rounds of {found.seeds} runs after a warm-up, at first of {runs} requests "
        "of one replica, then longer until every objective holds or misses; one that stays open counts as missed.",
        "More replicas are assumed never to make a figure worse; sizes that this skips were not simulated.",
        *(_OF_BOUND,)
        * any(offer.tier is not None and len(offer.tier.ways) > _UNBOUNDED for offer in found.offers),
    ]
    for offer in found.offers:
        of_it = f"{offer.label}: " if len(found.offers) > 1 else ""
        said += [f"{of_it}{note}" for note in offer.notes]
    said += _too_short(found)
    if any(offer.fleet.hours for offer in found.offers):
        said.append(
            "Parts of a period are sized as if each lasted; what one leaves waiting to the next is not replicas. "
            "kvplan simulate --horizon replays a period."
        )
    return tuple(said)


def _routed(found: Sizing) -> Iterator[str]:
    """Who sends requests where, of each profile whose fleet is simulated."""
    for offer, requests in zip(found.offers, found.requests, strict=True):
        one = offer.fleet.heaviest
        if one.router is not None:
            of_it = f"{offer.label}: " if len(found.offers) > 1 else ""
            yield (
                f"{of_it}Requests are routed by {one.router}: simulated are all replicas, of more than "
                f"{one.most_simulated} only {one.most_simulated}, with their part of the arrivals, and at most "
                f"{max(MOST_REQUESTS, requests):,} requests. The formulas are about a replica to which requests come "
                "at random."
            )


def _arrivals(found: Sizing) -> Iterator[str]:
    """How requests arrive, of each profile."""
    for offer in found.offers:
        of_it = f"{offer.label}: " if len(found.offers) > 1 else ""
        at_random, replicas = offer.fleet.heaviest.router is None, offer.fleet.heaviest.replicas
        if offer.arrivals.trace is not None:
            yield (
                f"{of_it}Arrivals and lengths are those of the profile's trace, faster or slower as the demand is; "
                "its schedule is left out."
                + " Of several replicas each gets its part of the trace at random, another one in each seed."
                * at_random
            )
        elif offer.arrivals.is_poisson:
            yield f"{of_it}Arrivals: Poisson, as the profile says."
        else:
            own = (
                ""
                if replicas is None or not at_random
                else f", {format_number(offer.arrivals.split(replicas).cv, 3)} at a replica"
            )
            yield f"{of_it}Arrivals: gamma, gaps of cv {format_number(offer.arrivals.cv, 3)} in all{own}."


def _too_short(found: Sizing) -> Iterator[str]:
    """Where runs did not see a queue grow that the formulas say grows."""
    for offer in found.offers:
        sizes = [offer.fleet.heaviest, *(hour.size for hour in offer.fleet.hours if hour.size is not None)]
        if any(_unseen(p) and not _is_warm(one, p) for one in sizes for p in one.probes):
            of_it = f"{offer.label}: " if len(found.offers) > 1 else ""
            yield (
                f"{of_it}Memory holds some {format_number(offer.held, 2)} requests: little more than is sustainable "
                "fills it too slowly for these runs to see, and the formulas alone refute such a size."
            )


def _cost(value: float | None) -> str:
    """Money: two decimals, more of what is less than a hundredth."""
    return f"{value:,.2f}" if value == 0 or (value or 0) >= 0.01 else format_number(value)


def _binding(one: Size) -> str:
    return ABSENT if one.replicas is None else "queue (simulated)" if one.binding == QUEUE else one.binding


def _count(replicas: int | None) -> str:
    return "none is enough" if replicas is None else f"{replicas:,}"
