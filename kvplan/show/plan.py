"""The screen of `kvplan plan`: replicas, price, objectives, sizes beside it, alternatives, what to do next."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

from kvplan.emit import engine
from kvplan.emit.settings import flags_of_profile
from kvplan.model.provenance import Knowledge
from kvplan.planning.around import MOST_ROOM
from kvplan.planning.day import Day
from kvplan.planning.kinds import Kind
from kvplan.planning.result import Alternative, Plan, Refused, Size, Status
from kvplan.planning.search import Band, Candidate, Setting
from kvplan.planning.split import Apart
from kvplan.planning.ways import Ways
from kvplan.show.elements import Block, Bullets, Column, Figure, Paragraph, Section, number, table, words
from kvplan.study.objectives import State
from kvplan.units import ABSENT, format_number, format_percent, format_seconds

_MISSED = {"load": "overloaded: more than is sustainable", "queue": "the queue grows"}
_NEXT = {"timing": "speed, with vllm bench serve on one replica", "lengths": "lengths"}
_WIDTH = 73  # of a command, before a flag and a backslash
_ALTERNATIVES = 3  # that are shown
_LONG_WAIT_S, _FEELS_SLOW_S = 10.0, 0.1  # p95 of TTFT and ITL, above which it is said where nobody limits it
_MOST, _MOST_IMPOSSIBLE = 2, 12  # refused kinds that are named, beside a plan and where there is none


def build(plan: Plan, *, full: bool = False, kept: bool = False) -> Section:
    """Build the screen; `full`: with every alternative and kind that was refused; `kept`: a profile was written."""
    title = f"{_model(plan)}: {plan.demand}"
    screens = {Status.IMPOSSIBLE: _impossible, Status.INTERRUPTED: _interrupted, Status.PLANNED: _planned}
    blocks = [*screens[plan.status](plan, full)]
    if plan.status is Status.PLANNED:
        keep = "Kept" if kept else "-o plan.toml keeps it"
        blocks.append(
            Bullets((*_notes(plan, full), f"{keep}: profile and gate, for check, analyze and emit."))
        )
    return Section("plan", title, tuple(blocks))


def _planned(plan: Plan, full: bool) -> Iterator[Block]:
    band = ""
    if plan.band is not None:
        measured = plan.winner.task.model.provenance.timing.basis is Knowledge.MEASURED
        said = "what was measured" if measured else "the estimate"
        band = f" {_in_band(plan.band)} if iterations take {_times(plan.band)} times {said}."
    yield Paragraph(_headline(plan) + band)
    slower = f"{format_percent(plan.request.slower)} slower"
    if plan.request.headroom:
        slower += f", {format_percent(plan.request.headroom, signed=True)}"
    columns = (Column(""), number("limit"), number("expected"), number("95 % interval"), number(slower))
    rows = [
        (
            _words(o.key),
            "none" if o.limit is None else format_seconds(o.limit),
            format_seconds(o.value),
            _interval(o.low, o.high),
            format_seconds(o.slower),
        )
        for o in plan.objectives
    ]
    yield table(columns, rows)
    for o in plan.objectives:
        if o.limit is not None and o.cliff is not None:
            ends = " to ".join(map(format_seconds, o.cliff))
            yield Paragraph(f"{_words(o.key)} is on a cliff: a per cent of the values decides about {ends}.")
    costs = [number("per hour")] if plan.request.priced else []
    yield table(
        (number("replicas"), number("GPUs"), *costs, words("")), (_size(plan, size) for size in plan.sizes)
    )
    yield Paragraph(_routing(plan))
    if plan.apart is not None:
        yield Paragraph(_apart(plan, plan.apart))
    if plan.day is not None:
        yield from _day(plan, plan.day)
    if plan.alternatives:
        shown = plan.alternatives if full else _few(plan.alternatives)
        others = (
            words("alternatives"),
            number("GPUs"),
            *costs,
            number("if slower or faster"),
            number("token budget"),
        )
        yield table(others, (_alternative(plan, one) for one in shown))
    yield _shell(command(plan, plan.winner, plan.setting))
    yield Paragraph(_after_a_burst(plan))


def _interrupted(plan: Plan, full: bool) -> Iterator[Block]:
    sure = "by short runs, not confirmed" if plan.race.found is None else "confirmed by long runs"
    yield Paragraph(f"Interrupted. The best so far, {sure}:")
    yield Paragraph(_headline(plan))
    yield _shell(command(plan, plan.winner, plan.setting))


def _impossible(plan: Plan, full: bool) -> Iterator[Block]:
    limits = ", ".join(f"{_words(s.key)} {format_seconds(s.bound)}" for s in plan.request.slos)
    yield Paragraph("Impossible at any number of replicas" + (f"; limits: {limits}." if limits else "."))
    rows = ((r.name, _why(r)) for r in sorted(plan.refused, key=lambda r: not r.least))
    most = None if full else _MOST_IMPOSSIBLE
    yield table((Column("kind"), words("on an idle replica")), rows, most, "and {} more kinds, with --full")
    found = tuple(_would_do(plan.ways))
    if found:
        yield Paragraph("It would be possible, for a request that is alone:")
        yield Bullets(found)


def _why(refused: Refused) -> str:
    """Why a kind cannot: what a request misses that is alone, or that the model does not fit."""
    figures = (
        f"{_words(d.key)} {format_seconds(d.value)}{' missed' * (d.share > d.allowed)}" for d in refused.least
    )
    return "; ".join(figures) or refused.why


def _would_do(ways: Ways) -> Iterator[str]:
    if ways.limits:
        limits = " and ".join(f"{_words(key)} {format_seconds(limit)}" for key, limit in ways.limits)
        yield f"with {limits}, on {ways.kind}"
    if ways.prompt_tokens is not None:
        yield f"with prompts of {ways.prompt_tokens:,.0f} tokens, on {ways.kind}"
    if ways.others:
        yield f"on {' or '.join(ways.others)}"


def _model(plan: Plan) -> str:
    first = plan.request.options[0]
    if plan.race.winner is not None and not isinstance(first, Kind):
        return plan.winner.name
    return first.shape.name.rpartition("/")[2] if isinstance(first, Kind) else first.name


def _headline(plan: Plan) -> str:
    setting, winner = plan.setting, plan.winner
    each, total = winner.task.model.replica.gpus, _gpus(winner, setting)
    kind = plan.kind(winner.name)
    gpu = "GPU" if kind is None else kind.gpu.name
    weights = "" if kind is None else f", {kind.weights} weights"
    replicas = f"{setting.replicas:,} replica{'s' * (setting.replicas != 1)} x {each} {gpu}"
    text = f"{replicas} = {total:,} GPU{'s' * (total != 1)}{weights}"
    if plan.cost is None:
        return f"{text}."
    hour, every, out = map(_money, plan.cost)
    return f"{text}, {hour}/h: {every} per million tokens, {out} per million output tokens."


def _in_band(band: Band) -> str:
    low, high = band.replicas
    if low == high and low is not None:
        return "As many"
    return f"{ABSENT if low is None else f'{low:,}'} to {'no number of' if high is None else f'{high:,}'} replicas"


def _times(band: Band) -> str:
    return f"{band.low:.2f} to {band.high:.2f}"


def _interval(low: float | None, high: float | None) -> str:
    if low is None:
        return ABSENT
    return f"{format_seconds(low)} to {'more' if high is None else format_seconds(high)}"


def _words(key: str) -> str:
    return key.replace("_s.", " ")


def _size(plan: Plan, size: Size) -> tuple[str, ...]:
    chosen = size.replicas == plan.setting.replicas
    setting = Setting(size.replicas, size.batched_tokens)
    if size.state is State.HOLDS:
        said = "all met" if plan.request.slos else "the queue is steady"
        if chosen and plan.room is not None:
            ends = _MISSED.get(plan.room_ends) or f"{_words(plan.room_ends)} is too near its limit"
            at_least = "at least " * (plan.room >= MOST_ROOM)
            said += (
                f"; room for {at_least}{format_percent(plan.room)} more"
                if plan.room
                else f"; no room: {ends}"
            )
    elif size.state is State.OPEN:
        said = "not sure even after long runs"
    else:
        said = "; ".join(_missed(size, key) for key in size.missed)
    cost = [_money(size.replicas * plan.winner.price)] if plan.request.priced else []
    return f"{'* ' * chosen}{size.replicas:,}", f"{_gpus(plan.winner, setting):,}", *cost, said


def _missed(size: Size, key: str) -> str:
    if key in _MISSED:
        return _MISSED[key]
    decision = next(d for d in size.decided if d.key == key)
    if key.endswith(".mean") or decision.value is None:
        return f"misses {_words(key)}: {format_seconds(decision.value)}"
    share = format_percent(decision.share)
    return f"misses {_words(key)}: {share} above {format_seconds(decision.limit)}"


def _routing(plan: Plan) -> str:
    if any(c.sessions is not None and c.sessions.turns.mean > 1 for c in plan.winner.task.model.classes):
        return "Behind a router that keeps a conversation on its replica."
    more = [name for name, replicas in plan.routers if replicas > plan.setting.replicas]
    if more:
        return f"Behind a router that picks replicas at random; {' and '.join(more)} may take one more here."
    fewer = {replicas for _, replicas in plan.routers if replicas < plan.setting.replicas}
    if plan.request.router is not None:
        return f"Behind a {plan.request.router} router."
    if not fewer:
        return "Any router will do."
    names = " or ".join(name for name, replicas in plan.routers if replicas == min(fewer))
    return f"Any router will do; behind {names} {min(fewer):,} may be enough."


def _apart(plan: Plan, found: Apart) -> str:
    if found.fleet is None:
        return f"Prefill and decode apart: {found.why}."
    fleet, link = found.fleet, "" if found.transfer is None else f", KV over {found.transfer} (assumed)"
    return f"Prefill and decode apart: {fleet.prefill:,} + {fleet.decode:,} = {fleet.size:,} replicas are enough{link}."


def _day(plan: Plan, day: Day) -> Iterator[Block]:
    """Replicas that come and go, against as many as the heaviest part needs."""
    most, least = (pick(day.hours, key=lambda hour: (hour.replicas, hour.demand_rps)) for pick in (max, min))
    yield Paragraph(
        f"Over {format_seconds(day.period_s)}: {least.replicas:,} to {most.replicas:,} replicas, the most from "
        f"{format_seconds(most.begin_s)} on. A replica serves {format_number(day.served_rps)} requests/s: add one "
        f"above {format_number(day.add_rps)} each, remove one where the others stay below "
        f"{format_number(day.remove_rps)}."
    )
    if day.reason:
        yield Paragraph(
            f"{format_number(day.gpu_hours)} GPU-hours by the hour, {format_number(day.fixed_gpu_hours)} fixed; "
            f"{day.reason}."
        )
        return
    each = plan.winner.price / day.gpus
    priced = plan.request.priced
    columns = (
        Column("one simulated period"), number("GPU-hours"), *[number("cost")] * priced, number("within"),
        number("ttft p95"), number("most waiting"),
    )  # fmt: skip
    rows = [
        (
            name,
            format_number(way.gpu_hours),
            *[_money(each * way.gpu_hours)] * priced,
            ABSENT if way.within is None else format_percent(way.within, 4),
            format_seconds(way.ttft_p95_s),
            f"{way.waiting:,}",
        )
        for name, way in day.ways.items()
    ]
    yield table(columns, rows)


def _alternative(plan: Plan, one: Alternative) -> tuple[str, ...]:
    cost, best = one.candidate.cost(one.setting), plan.winner.cost(plan.setting)
    more = f" {format_percent(cost / best - 1, 2, signed=True)}" if cost != best else ""
    band = [] if one.band is None else one.band.replicas
    return (
        f"{one.setting.replicas:,} x {one.candidate.name}",
        f"{_gpus(one.candidate, one.setting):,}",
        *([_money(cost) + more] if plan.request.priced else []),
        " to ".join("never" if n is None else _cost(plan, n * one.candidate.price) for n in band) or ABSENT,
        ABSENT if one.setting.batched_tokens is None else f"{one.setting.batched_tokens:,}",
    )


def command(plan: Plan, candidate: Candidate, setting: Setting) -> str:
    """Return what starts the engine of a replica."""
    kind, replica = plan.kind(candidate.name), candidate.task.model.replica
    if plan.request.engine != "vllm":
        return f"kvplan emit plan.toml writes the settings of {plan.request.engine}."
    served = replace(
        candidate.task.model, replica=replace(replica, max_num_batched_tokens=setting.batched_tokens)
    )
    words = ["vllm serve", "MODEL" if kind is None else kind.shape.name]
    if kind is not None and not kind.own_weights and kind.weights == "fp8":
        words.append("--quantization fp8")
    if kind is not None and kind.kv_dtype != "auto":
        words.append(f"--kv-cache-dtype {kind.kv_dtype}")
    words += [f"{flag.flag} {flag.value or ''}".strip() for flag in flags_of_profile(engine("vllm"), served)]
    return " ".join(words)


def _few(every: Sequence[Alternative]) -> list[Alternative]:
    """The cheapest, and the cheapest with the weights of the model's own."""
    own = [one for one in every if one.candidate.own_weights]
    few = [*every[: _ALTERNATIVES - 1], *own[:1]]
    return few if every[_ALTERNATIVES - 1 :] and own and own[0] not in few[:-1] else [*every[:_ALTERNATIVES]]


def _shell(text: str) -> Figure:
    """A command in lines that a shell takes as one."""
    begin, *flags = text.split(" --")
    lines = [begin]
    for flag in flags:
        if len(lines[-1]) + len(flag) > _WIDTH:
            lines.append("  --" + flag)
        else:
            lines[-1] += " --" + flag
    return Figure(" \\\n".join(lines))


def _after_a_burst(plan: Plan) -> str:
    drain, said = plan.drain, ""
    if drain is not None and drain.burst_requests is not None:
        burst = f"{format_number(drain.burst_requests, 3)} requests a replica"
        said = f"After a burst of {burst}: {drain.reason}."
        if drain.seconds is not None:
            said = f"After a burst of {burst}: normal in {format_seconds(drain.seconds)}."
    if plan.recovers_up_to_rps is not None:
        rate = plan.recovers_up_to_rps * plan.setting.replicas
        times = rate / (plan.mean_rps if plan.worst is None else plan.winner.task.model.total_rate_rps)
        said += f" Recovers by itself up to {format_number(rate)} requests/s ({times:.2f} times the demand)."
    return said.strip()


def _notes(plan: Plan, full: bool) -> Iterator[str]:
    if plan.worst is not None:
        begin, end = map(format_seconds, plan.worst)
        rate = format_number(plan.winner.task.model.total_rate_rps)
        yield f"Rates vary: planned for {rate} requests/s, from {begin} to {end}; figures are those of the worst part."
        if any(o.state is State.MISSES for o in plan.objectives):
            yield "Rates vary within that part, too: it misses an objective; --headroom plans for more."
    limited = {slo.key for slo in plan.request.slos}
    values = {o.key: o.value for o in plan.objectives}
    for key, name, slow_s in (("ttft_s.p95", "TTFT", _LONG_WAIT_S), ("itl_s.p95", "ITL", _FEELS_SLOW_S)):
        p95 = values.get(key)
        if not any(one.startswith(key[:5]) for one in limited) and p95 is not None and p95 > slow_s:
            yield f"No objective limits {name}, whose p95 is {format_seconds(p95)}."
    assumed = ""
    if plan.spread:
        sizes = ", ".join(f"{n:,} at cv {cv:g}" for cv, n in plan.spread)
        assumed = f"; spread of lengths assumed: log-normal, cv 0.95 ({sizes})"
    model = plan.winner.task.model
    known, memory = model.provenance, format_number(model.replica.memory_tokens, 6)
    yield (
        f"Known: speed {known.timing.basis}, KV memory ({memory} tokens) {known.gpu.basis}, rates and lengths "
        f"{known.workload.basis}{assumed}."
    )
    if plan.next is not None:
        low, high = plan.next.replicas
        most = "no number of" if high is None else f"{high:,}"
        yield f"Next: measure the {_NEXT[plan.next.input]} ({low:,} to {most} replicas): {plan.next.command}"
    dearer = ""
    if plan.race.dearer:
        kinds = "1 other kind takes" if plan.race.dearer == 1 else f"{plan.race.dearer} other kinds take"
        dearer = f"{kinds} 1.6 times the {'cost' if plan.request.priced else 'GPUs'} or more."
    if plan.refused:
        named = "; ".join(f"{r.name}: {_why(r)}" for r in plan.refused[: None if full else _MOST])
        more = len(plan.refused) - _MOST
        dearer = f"Cannot: {named}" + (f"; and {more} more. " if more > 0 and not full else ". ") + dearer
    if dearer:
        yield dearer.strip()


def _gpus(candidate: Candidate, setting: Setting) -> int:
    return setting.replicas * candidate.task.model.replica.gpus


def _cost(plan: Plan, amount: float) -> str:
    return _money(amount) if plan.request.priced else format_number(amount)


def _money(amount: float) -> str:
    return f"${amount:,.2f}"
