"""A plan: replicas, price, objectives, sizes beside it, alternatives, what to do next."""

import math
from collections.abc import Iterator, Sequence
from operator import attrgetter

from kvplan.ingest.model.shape import kv_bytes_per_token
from kvplan.model import Parallelism
from kvplan.model.provenance import Knowledge
from kvplan.planning.day import Day, Way
from kvplan.planning.host_memory import LINK, Tier
from kvplan.planning.kinds import Kind
from kvplan.planning.result import Alternative, Next, Objective, Plan, Refused, Size, Status
from kvplan.planning.search import Band
from kvplan.planning.split import Apart
from kvplan.planning.ways import Ways
from kvplan.report.blocks import context
from kvplan.report.figures import Figures
from kvplan.report.keys import SCREENS
from kvplan.report.ledger import Ledger
from kvplan.report.verdict import headroom_ends
from kvplan.report.wording import interval, sentence
from kvplan.show import page
from kvplan.show.charts import of_plan
from kvplan.show.plan_document import document, gpus, rows, start
from kvplan.show.view import View
from kvplan.study.objectives import State
from kvplan.study.trial import Missed, Recovers
from kvplan.units import ABSENT, format_number, format_percent, format_seconds, format_tokens

_MISSED = {"load": "overloaded, or within 1.5% of saturation", "queue": "the queue grows"}
_FELT = ("ttft_s", "itl_s")  # what users feel; other figures without a limit are told with --full
_NEXT = {"timing": "speed of one replica", "lengths": "lengths"}
_ALTERNATIVES = 3  # that are shown
_LONG_WAIT_S, _FEELS_SLOW_S = 10.0, 0.1  # p95 of TTFT and ITL, above which it is said where nobody limits it
_MUCH_REJECTED = 0.05  # of the requests, from which it is the first thing that is said
_MOST, _MOST_IMPOSSIBLE = 2, 12  # refused kinds that are named, beside a plan and where there is none


def view(plan: Plan, *, full: bool = False, kept: str | None = None) -> View:
    """Show a plan; `full`: with every alternative and kind that was refused; `kept`: the profile that was written."""
    screen = page.document([build(plan, full=full, kept=kept)])
    return View(lambda: document(plan), lambda _: screen, lambda: of_plan(plan), rows)


def build(plan: Plan, *, full: bool = False, kept: str | None = None) -> page.Section:
    """Build the screen; `kept` is the file that keeps the plan."""
    screens = {Status.IMPOSSIBLE: _impossible, Status.INTERRUPTED: _interrupted, Status.PLANNED: _planned}
    blocks = [*screens[plan.status](plan, full)]
    if plan.status is Status.PLANNED:
        notes = [note.replace("plan.toml", kept or "plan.toml") for note in _notes(plan, full)]
        if kept is None:
            notes.append("-o plan.toml keeps it: profile and gate, for check, analyze, emit and measure.")
        blocks.append(page.Bullets(tuple(notes)))
    return page.Section("plan", f"{_model(plan)}: {plan.demand}", tuple(blocks))


def _planned(plan: Plan, full: bool) -> Iterator[page.Block]:
    setting, task = plan.setting, plan.winner.task
    rejected = context(task.at(setting.replicas, setting.batched_tokens, slower=False)).rejected_share
    if rejected > _MUCH_REJECTED:
        yield page.Paragraph(
            f"max_model_len rejects {format_percent(rejected)} of the requests; what follows is of the others."
        )
    yield page.Paragraph(_headline(plan) + ("" if plan.band is None else _in_band(plan, plan.band)))
    yield _objectives(plan, full)
    for objective in plan.objectives:
        if objective.limit is not None and objective.cliff is not None:
            ends = " to ".join(map(format_seconds, objective.cliff))
            yield page.Paragraph(
                f"{_words(objective.key)} is on a cliff: a per cent of the values decides about {ends}."
            )
    if costs := "; ".join(_costs(plan)):
        yield page.Paragraph(f"{costs}.")
    if beside := " ".join(_beside(plan)):
        yield page.Paragraph(beside)
    yield _sizes(plan)
    if plan.request.spare:
        without = "load, latency and the simulated period" if plan.day else "load and latency"
        yield page.Paragraph(f"GPUs and costs have the spare in them; {without} do not count on it.")
    yield from _host_memory(plan)
    yield page.Paragraph(_routing(plan))
    if plan.apart is not None:
        yield page.Paragraph(_apart(plan.apart))
    if plan.day is not None:
        yield from _day(plan, plan.day)
    if plan.alternatives:
        yield _alternatives(plan, plan.alternatives if full else _few(plan.alternatives))
    yield _command(plan)
    yield page.Paragraph(_after_a_burst(plan, full))


def _interrupted(plan: Plan, full: bool) -> Iterator[page.Block]:
    sure = "by short runs, not confirmed" if plan.race.found is None else "confirmed by long runs"
    yield page.Paragraph(f"Interrupted. The best so far, {sure}:")
    yield page.Paragraph(_headline(plan))
    yield _command(plan)


def _impossible(plan: Plan, full: bool) -> Iterator[page.Block]:
    limits = ", ".join(f"{_words(s.key)} {format_seconds(s.bound)}" for s in plan.request.slos)
    yield page.Paragraph("Impossible at any number of replicas" + (f"; limits: {limits}." if limits else "."))
    columns: page.Columns[Refused] = {
        page.Column("kind"): lambda refused: refused.name,
        page.words("on an idle replica"): _why,
    }
    refused = sorted(plan.refused, key=lambda refused: not refused.least)
    yield page.tabulate(
        columns, refused, None if full else _MOST_IMPOSSIBLE, "and {} more kinds, with --full"
    )
    if ways := tuple(_would_do(plan.ways)):
        yield page.Paragraph("It would be possible, for a request that is alone:")
        yield page.Bullets(ways)


def _why(refused: Refused) -> str:
    """Say why a kind cannot: objectives that a request alone misses, or a model that does not fit."""
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
    each, total = winner.task.model.replica.gpus, gpus(plan, winner, setting)
    kind, known = plan.kind(winner.name), plan.request.model_table(winner.name) or {}
    gpu = known.get("gpu", "GPU")
    weights = f", {known['weights']} weights" if "weights" in known else ""
    if kind is not None and kind.parallelism != Parallelism(kind.parallelism.tensor):
        gpu += f" ({kind.parallelism})"
    spare, bought = plan.request.spare, plan.bought(setting.replicas)
    many = f"{setting.replicas:,}{f' + {spare:,} spare' if spare else ''}"
    replicas = f"{many} replica{'s' * (bought != 1)} x {each} {gpu}"
    text = f"{replicas} = {total:,} GPU{'s' * (total != 1)}{weights}"
    if plan.cost is None:
        return f"{text}."
    hour, every, out = map(_money, plan.cost)
    return f"{text}, {hour}/h: {every} per million tokens, {out} per million output tokens."


def _in_band(plan: Plan, band: Band) -> str:
    low, high = (None if n is None else f"{n:,}" for n in band.replicas)
    many = f"{low or ABSENT} to {high or 'no number of'} replicas"
    if low == high and low is not None:
        many = "as many" if low == f"{plan.by_short_runs:,}" else low
    measured = plan.winner.task.model.provenance.timing.basis is Knowledge.MEASURED
    known = "what was measured" if measured else "the estimate"
    if plan.by_short_runs != plan.setting.replicas:
        many = f"By short runs, bursts left out, {plan.by_short_runs:,} would do, and {many}"
    return f" {many[0].upper()}{many[1:]} if iterations take {band.low:.2f} to {band.high:.2f} times {known}."


def _words(key: str) -> str:
    return key.replace("_s.", " ")


def _slower(plan: Plan) -> str:
    """Name the slower timing at which objectives hold; in few letters, since rows have 80 columns."""
    if plan.request.headroom:
        return f"slower, {format_percent(plan.request.headroom, signed=True)}"
    return f"{format_percent(plan.request.slower)} slower"


def _objectives(plan: Plan, full: bool) -> page.Table:
    columns: page.Columns[Objective] = {
        page.Column(""): lambda o: _words(o.key),
        page.number("limit"): lambda o: "none" if o.limit is None else format_seconds(o.limit),
        page.number("mean"): lambda o: format_seconds(o.mean),
        page.number("expected"): lambda o: format_seconds(o.value),
        page.number("95 % interval"): lambda o: (
            ABSENT if o.low is None else interval(o.low, o.high, format_seconds)
        ),
        page.number("p99"): lambda o: format_seconds(o.p99),
        page.number(_slower(plan)): lambda o: format_seconds(o.slower),
    }
    return page.tabulate(
        columns,
        [o for o in plan.objectives if full or o.limit is not None or o.key.partition(".")[0] in _FELT],
    )


def _costs(plan: Plan) -> Iterator[str]:
    """Say the cost of each objective, and the saving by prompts at an interval."""
    each = plan.winner.task.model.replica.gpus
    for objective in plan.objectives:
        fewer = objective.replicas_without
        if fewer is not None and fewer < plan.setting.replicas:
            gpus = (plan.setting.replicas - fewer) * each
            without = f"{fewer:,} replica{'s' * (fewer != 1)} without it"
            if (tpot := objective.replicas_with_tpot) is not None:
                mean = _words(objective.key).replace("itl", "tpot", 1)
                without += f", {tpot:,} with {mean} ≤ {format_seconds(objective.limit)} instead"
            yield f"{_words(objective.key)} costs {gpus:,} GPU{'s' * (gpus != 1)} ({without})"
    if (spaced := plan.spaced) is not None:
        without = f"{spaced.replicas_without:,} replicas without"
        saved = (spaced.replicas_without - plan.setting.replicas) * each
        yield (
            f"prefill_interval = {spaced.interval} saves {saved:,} GPUs ({without}): all ranks compute prompts in one "
            f"of {spaced.interval} iterations, and fewer gaps see one"
        )


def _beside(plan: Plan) -> Iterator[str]:
    """Say what an API costs, and what GPUs draw."""
    api, kind, spare = plan.api, plan.kind(plan.winner.name), plan.headroom
    energy = plan.energy if plan.request.priced or kind is None else None
    if api is not None:
        yield f"An API at these prices: {_money(api.per_hour)}/h;"
        share = api.cheaper_from_rps / plan.mean_rps
        rate = f"{format_number(api.cheaper_from_rps)} requests/s, {format_percent(share)} of the demand."
        if share <= 1:
            yield f"these replicas cost less from {rate}"
        elif spare is None or share <= 1 + spare.ratio:
            yield f"it costs less up to {rate}"
        else:
            known = " are known to" if spare.at_least else ""
            yield f"it costs less at every rate that these replicas{known} serve."
        if plan.day is not None and (paid := api.autoscaled_per_hour) is not None:
            less = "less" if paid < api.per_hour else "no less"
            met = plan.day.ways["autoscaled"].within
            kept = "" if met is None else f", with {format_percent(met, 4)} of requests within the objectives"
            yield f"Autoscaled, without spare ones, the replicas cost {_money(paid)}/h: {less} than the API{kept}."
    if energy is not None:
        day, joules = format_number(energy.kwh_per_day), format_number(energy.joules_per_output_token)
        load, idle = (f"{format_number(watts / 1000)} kW" for watts in (energy.watts, energy.idle_watts))
        assumed = " (a fifth, assumed)" if energy.idle_assumed else ""
        yield (
            f"Power: {day} kWh a day, {joules} J an output token; {load} at load, {format_percent(energy.busy)} of "
            f"the time, else {idle} idle{assumed}."
        )
    elif plan.request.priced and kind is not None and kind.gpu.watts is None:
        yield f"Power: nobody says what {kind.gpu.name} draws."


def _sizes(plan: Plan) -> page.Table:
    each, price, chosen = plan.winner.task.model.replica.gpus, plan.winner.price, plan.setting.replicas
    columns: page.Columns[Size] = {
        page.number("replicas"): lambda size: f"{'* ' * (size.replicas == chosen)}{size.replicas:,}",
        page.number("GPUs"): lambda size: f"{plan.bought(size.replicas) * each:,}",
        **(
            {page.number("per hour"): lambda size: _money(plan.bought(size.replicas) * price)}
            if plan.request.priced
            else {}
        ),
        page.words(_slower(plan)): lambda size: _size(plan, size),
    }
    return page.tabulate(columns, plan.sizes)


def _host_memory(plan: Plan) -> Iterator[page.Block]:
    """Yield savings by tiers of host memory, by short runs."""
    if plan.request.offload is None:
        return
    columns: page.Columns[Tier] = {
        page.number("host memory, each"): lambda tier: (
            f"{format_number(tier.gib, 3)} GiB" if tier.gib else "none"
        ),
        page.number("replicas"): lambda tier: f"{tier.replicas:,}",
        page.number("hits"): lambda tier: format_percent(tier.hit_ratio),
        page.number("warm, each"): lambda tier: f"{format_number(tier.good_rps)}/s",
        page.number("guaranteed, each"): lambda tier: f"{format_number(tier.guaranteed_rps)}/s",
        **({page.number("per hour"): lambda tier: _money(tier.per_hour)} if plan.request.priced else {}),
    }
    yield page.tabulate(columns, plan.host_memory)
    if len(plan.host_memory) <= len(plan.request.offload):
        yield page.Paragraph("What has no row does not hold with four times as many replicas either.")
    elif len(plan.host_memory) == 1:
        yield page.Paragraph("No tier of up to 16 times the GPUs' KV memory saves a replica.")
    worth = attrgetter("per_hour" if plan.request.priced else "replicas", "gib")  # of equals the least memory
    best = min(plan.host_memory, key=worth, default=None)
    if best is not None and best.gib:
        yield page.Paragraph(_taken(plan, best))
    elif len(plan.host_memory) > 1:
        yield page.Paragraph(
            f"No tier {'is cheaper than none' if plan.request.priced else 'saves a replica'}."
        )


def _taken(plan: Plan, tier: Tier) -> str:
    """Say what a profile needs for a tier."""
    replica, kind = plan.winner.task.model.replica, plan.kind(plan.winner.name)
    said = f'For {tier.replicas:,} the profile takes [gpu.offload] memory = "{tier.gib:g} GiB"'
    if replica.offload is None:
        said += f' and bandwidth = "{LINK * replica.gpus / 1e9:g} GB/s"'
    if kind is not None:
        said += (
            f", with [gpu] kv_bytes_per_token = {kv_bytes_per_token(kind.shape, kv_dtype=kind.kv_dtype):.0f}"
        )
    return f"{said}."


def _size(plan: Plan, size: Size) -> str:
    if size.state is State.OPEN:
        return "not sure even after long runs"
    if size.state is not State.HOLDS:
        return "; ".join(_missed(size, key) for key in size.missed)
    said = "all met" if plan.request.slos else "the queue is steady"
    spare = plan.headroom
    if size.replicas != plan.setting.replicas or spare is None:
        return said
    if spare.ratio <= 0:
        return f"{said}; no room: {headroom_ends(spare)}"
    if spare.at_least:
        return f"{said}; room for at least {format_percent(spare.ratio)} more"
    return f"{said}; room for {format_percent(spare.ratio)} more, then {headroom_ends(spare)}"


def _missed(size: Size, key: str) -> str:
    if key in _MISSED:
        return _MISSED[key]
    if key == Missed.RECOVERY and size.recovery is not None:
        return f"met; {_not_recovered(size.recovery)}"
    decision = next(d for d in size.decided if d.key == key)
    if key.endswith(".mean") or decision.value is None:
        return f"misses {_words(key)}: {format_seconds(decision.value)}"
    share = format_percent(decision.share)
    return f"misses {_words(key)}: {share} above {format_seconds(decision.limit)}"


def _not_recovered(recovery: Recovers) -> str:
    """Say how a burst goes on."""
    drain = recovery.drain
    kind = "sessions" if drain.of_sessions else "requests"
    after = f"after a burst of {format_number(drain.burst_requests, 3)} {kind}"
    if all(map(math.isinf, drain.runs_s)):
        return f"{after} it stays collapsed"
    late = len(drain.runs_s) - drain.within(recovery.within_s)
    within = format_seconds(recovery.within_s)
    return f"{after} not normal within {within} (in {late} of {len(drain.runs_s)} runs)"


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


def _apart(apart: Apart) -> str:
    if apart.fleet is None:
        return f"Prefill and decode apart: {apart.why}."
    fleet, link = apart.fleet, "" if apart.transfer is None else f", KV over {apart.transfer} (assumed)"
    return f"Prefill and decode apart: {fleet.prefill:,} + {fleet.decode:,} = {fleet.size:,} replicas are enough{link}."


def _day(plan: Plan, day: Day) -> Iterator[page.Block]:
    """Yield replicas that come and go, against as many as the heaviest part needs."""
    most, least = (pick(day.hours, key=lambda hour: (hour.replicas, hour.demand_rps)) for pick in (max, min))
    yield page.Paragraph(
        f"Over {format_seconds(day.period_s)}: {least.replicas:,} to {most.replicas:,} replicas, the most from "
        f"{format_seconds(most.begin_s)} on. A replica serves {format_number(day.served_rps)} requests/s: add one "
        f"above {format_number(day.add_rps)} each, remove one where the others stay below "
        f"{format_number(day.remove_rps)}."
    )
    if day.reason:
        yield page.Paragraph(
            f"{format_number(day.gpu_hours)} GPU-hours by the hour, {format_number(day.fixed_gpu_hours)} fixed; "
            f"{day.reason}."
        )
        return
    each = plan.winner.price / day.gpus
    columns: page.Columns[tuple[str, Way]] = {
        page.Column("one simulated period"): lambda row: row[0],
        page.number("GPU-hours"): lambda row: format_number(row[1].gpu_hours),
        **({page.number("cost"): lambda row: _money(each * row[1].gpu_hours)} if plan.request.priced else {}),
        **(
            {page.number("kWh"): lambda row: format_number(plan.kwh(row[1].gpu_hours, row[1].busy_gpu_hours))}
            if plan.energy is not None
            else {}
        ),
        page.number("within"): lambda row: format_percent(row[1].within, 4),
        page.number("ttft p95"): lambda row: format_seconds(row[1].ttft_p95_s),
        page.number("most waiting"): lambda row: f"{row[1].waiting:,}",
    }
    yield page.tabulate(columns, day.ways.items())


def _alternatives(plan: Plan, shown: Sequence[Alternative]) -> page.Table:
    def cost(each: Alternative) -> str:
        paid = plan.bought(each.setting.replicas) * each.candidate.price
        best = plan.bought(plan.setting.replicas) * plan.winner.price
        more = f" {format_percent(paid / best - 1, 2, signed=True)}" if paid != best else ""
        return _money(paid) + more

    columns: page.Columns[Alternative] = {
        page.words("alternatives"): lambda each: f"{each.setting.replicas:,} x {each.candidate.name}",
        page.number("GPUs"): lambda each: f"{gpus(plan, each.candidate, each.setting):,}",
        **({page.number("per hour"): cost} if plan.request.priced else {}),
        page.number("token budget"): lambda each: format_tokens(each.setting.batched_tokens),
    }
    return page.tabulate(columns, shown)


def _command(plan: Plan) -> page.Figure:
    made = start(plan, plan.winner, plan.setting)
    return page.shell(made.words, made.arguments)


def _few(every: Sequence[Alternative]) -> list[Alternative]:
    """Choose the cheapest, and the cheapest with the model's own weights."""
    own = [each for each in every if each.candidate.own_weights]
    few = [*every[: _ALTERNATIVES - 1], *own[:1]]
    return few if every[_ALTERNATIVES - 1 :] and own and own[0] not in few[:-1] else [*every[:_ALTERNATIVES]]


def _after_a_burst(plan: Plan, full: bool) -> str:
    drain, said = plan.drain, ""
    if drain is not None and drain.burst_requests is not None:
        kind = "sessions" if drain.of_sessions else "requests"
        burst = f"{format_number(drain.burst_requests, 3)} {kind} a replica"
        said = f"After a burst of {burst}: {drain.reason}."
        if drain.seconds is not None:
            said = f"After a burst of {burst}: normal in {format_seconds(drain.seconds)}."
    if plan.recovery_rps is not None and (full or not said):
        rate = plan.recovery_rps * plan.setting.replicas
        times = rate / (plan.mean_rps if plan.worst is None else plan.winner.task.model.total_rate_rps)
        said += f" Any backlog is sure to drain up to {format_number(rate)} requests/s, {times:.2f} times the demand."
    return said.strip()


def _unlimited(plan: Plan) -> Iterator[str]:
    """Name what users feel and no objective limits."""
    for o in plan.objectives:
        if o.key.startswith("itl_s.p") and o.limit is not None and o.p99 is not None and o.p99 > o.limit:
            yield f"{_words(o.key)} holds because longer gaps are rarer: their p99 is {format_seconds(o.p99)}."
    limited = {slo.key.partition("_s.")[0] for slo in plan.request.slos}
    values = {o.key: o.value for o in plan.objectives}
    for time, slow_s in (("ttft", _LONG_WAIT_S), ("itl", _FEELS_SLOW_S)):
        p95 = values.get(f"{time}_s.p95")
        if time not in limited and p95 is not None and p95 > slow_s:
            yield f"No objective limits {time.upper()}, whose p95 is {format_seconds(p95)}."


def _notes(plan: Plan, full: bool) -> Iterator[str]:
    if plan.worst is not None:
        begin, end = map(format_seconds, plan.worst)
        rate = format_number(plan.winner.task.model.total_rate_rps)
        yield f"Rates vary: planned for {rate} requests/s, from {begin} to {end}; figures are those of the worst part."
        if any(o.state is State.MISSES for o in plan.objectives):
            yield "Rates vary within that part, too: it misses an objective; --headroom plans for more."
    setting, task = plan.setting, plan.winner.task
    ledger = Ledger(Figures(task.at(setting.replicas, setting.batched_tokens, slower=False), task.plan))
    if told := sentence(SCREENS["rows"]["Context"], ledger):
        hits = sentence(
            "[{?context.turns > 1}; {prefix_cache.hit_ratio} of prompts found in the prefix cache]", ledger
        )
        yield f"Context: {told}{hits or ''}."
    rate, tokens = map(format_number, plan.share)
    yield f"Each: {rate} requests/s a replica, {tokens} output tokens/s a GPU."
    if plan.first_come is not None:
        yield (
            f"Replicas by short runs, bursts left out: {plan.by_short_runs:,} by priority, {plan.first_come:,} first "
            "come first served."
        )
    yield from _backlogs(plan)
    yield from _versus(plan)
    yield from _unlimited(plan)
    yield from _known(plan)
    made = start(plan, plan.winner, plan.setting)
    yield from made.notes
    if made.in_file:
        yield "kvplan emit plan.toml writes its FILE."
    if plan.next is not None:
        low, high = plan.next.replicas
        most = "no number of" if high is None else f"{high:,}"
        what = f"{_NEXT[plan.next.input]} ({low:,} to {most} replicas)"
        yield f"Next: measure the {what}: {plan.next.command}{_first(plan.next)}"
    yield from _left_out(plan, full)


def _versus(plan: Plan) -> Iterator[str]:
    """Compare the replica with others on its GPUs."""
    if plan.versus:
        others = (
            f"{each.name} {format_number(each.memory, 3)} and {format_number(each.rate, 3)} times "
            f"({each.limit.replace('kv_memory', 'KV memory')})"
            for each in plan.versus
        )
        yield f"Of its KV memory and sustainable rate, others on its GPUs have: {'; '.join(others)}."


def _known(plan: Plan) -> Iterator[str]:
    """Say how inputs are known, what is not modelled, and stand-ins."""
    assumed = plan.winner.task.model.provenance.workload.source
    if plan.spread:
        sizes = ", ".join(f"{n:,} at cv {cv:g}" for cv, n in plan.spread)
        if plan.by_short_runs != plan.setting.replicas:
            sizes = f"by short runs, bursts left out, {plan.by_short_runs:,}; {sizes}"
        assumed += f": {sizes}"
    model = plan.winner.task.model
    known, memory = model.provenance, format_number(model.replica.memory_tokens, 6)
    kind = plan.kind(plan.winner.name)
    version = "" if kind is None else f" for {kind.memory.version}"
    yield (
        f"Known: speed {known.timing.basis}, KV memory ({memory} tokens) {known.gpu.basis}{version}, rates and "
        f"lengths {known.workload.basis}{f' ({assumed})' * bool(assumed)}."
    )
    talks = any(c.sessions is not None for c in model.classes)
    if kind is not None and model.has_common_prefixes and (why := kind.not_cached(talks=talks)):
        yield f"The prefix cache is off: {why}. Every prompt is computed whole."
    if kind is not None and kind.memory.layout.held != kind.memory.layout.layers:
        yield "Layers with windows or chunks hold every token in this version, whose cache is as with full attention."
    if kind is not None and kind.parallelism.untested:
        yield f"Times of {kind.parallelism} were compared with no measurement; pipeline bubbles are not modelled."
    taken = dict.fromkeys(o.gpu.assumed for o in plan.request.options if isinstance(o, Kind))
    yield from (f"{text}." for text in taken if text)
    if plan.request.unpriced:
        yield f"No price: {plan.request.unpriced}."


def _left_out(plan: Plan, full: bool) -> Iterator[str]:
    """Name what cannot serve the demand, and what costs much more."""
    dearer = ""
    if plan.race.dearer:
        kinds = "1 other kind takes" if plan.race.dearer == 1 else f"{plan.race.dearer} other kinds take"
        dearer = f"{kinds} 1.6 times the {'cost' if plan.request.priced else 'GPUs'} or more."
    if plan.refused:
        named = "; ".join(f"{r.name}: {_why(r)}" for r in plan.refused[: None if full else _MOST])
        more = len(plan.refused) - _MOST
        dearer = f"Cannot: {named}" + (f"; and {more} more. " if more > 0 and not full else ". ") + dearer
    own = plan.kind(plan.winner.name)
    alone = own is not None and {o.gpu for o in plan.request.options if isinstance(o, Kind)} == {own.gpu}
    if dearer and (full or not alone):  # of several GPUs none goes unnamed
        yield dearer.strip()


def _first(following: Next) -> str:
    """Say which runs come first, and what they would settle."""
    if (runs := following.first) is None:
        return ""
    sizes = " and ".join(f"{size:,}" for size in runs.concurrencies)
    first = f", first {sizes} at once ({runs.seconds / 60:.1f} min)"
    (least, most), (low, high) = following.replicas, runs.replicas
    if high is None or (most is not None and high - low >= most - least):
        return first
    left = high - low + 1  # which numbers they are is what the runs say
    return f"{first}, which would leave {'one number' if left == 1 else f'{left:,} numbers'} of replicas"


def _backlogs(plan: Plan) -> Iterator[str]:
    """Say how fast a client sends work with a deadline: a steady queue is done in time."""
    tables = () if plan.profile is None else plan.profile.tables.get("classes", ())
    backlogs = [table for table in tables if "backlog" in table]
    for table in backlogs:
        (which,) = (c for c in plan.winner.task.model.classes if c.name == table["name"])
        within, rate = format_seconds(table["backlog"] / which.rate_rps), format_number(which.rate_rps)
        alone = "; sent all at once they are done sooner, and the others wait longer" * (len(backlogs) == 1)
        yield (
            f"{which.name}: {table['backlog']:,} requests within {within} are {rate} requests/s, as "
            f"their client sends them evenly{alone}."
        )


def _money(amount: float) -> str:
    return f"${amount:,.2f}"
