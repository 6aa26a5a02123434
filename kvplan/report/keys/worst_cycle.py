"""Keys of the `worst_cycle` block."""

from kvplan.report.keys import law_text
from kvplan.report.keys.evidence import Evidence
from kvplan.report.keys.record import Block, Kind, Record, class_name

_KINDS = ("homogeneous", "pulse", "simulated", "none")
_NO_CLOSED_FORM = "The class has several decode lengths and no closed form applies."
_X = "worst_cycle.throughput_per_iteration"
_N_STAR = "saturation.admissions_per_iteration"
_GCD = "stability.gcd"


def _kind(e: Evidence) -> object:
    return e.document["worst_cycle"]["kind"]


def _throughput_per_iteration(e: Evidence) -> str:
    match _kind(e):
        case "none":
            return e(_N_STAR)
        case "simulated":
            return ""
        case _:
            return _closed_form(e)


def _class_throughput_per_iteration(e: Evidence) -> str:
    return f"{e('M')} / {e('S_b')}" if e.entry["kind"] == "none" else _closed_form(e)


def _closed_form(e: Evidence) -> str:
    return f"{e('M')} / ({e('g')}·{e('W')})"


def _throughput_rps(e: Evidence) -> str:
    match _kind(e):
        case "none":
            return f"{e(_N_STAR)} / {e('saturation.iteration_time_s')}"
        case "simulated":
            return f"{e(_X)} / {e('tau_w')}"
        case _:
            return f"{e(_X)} / ({law_text.cycle_here(e)})"


def _class_throughput_rps(e: Evidence) -> str:
    completed = e.here("throughput_per_iteration")
    if e.entry["kind"] == "none":
        return f"{completed} / ({law_text.class_alone_here(e, completed)})"
    return f"{completed} / ({law_text.cycle_here(e)})"


def _evictions(e: Evidence) -> str:
    match _kind(e):
        case "none":
            return "0"
        case "simulated":
            return ""
        case _:
            return _evictions_of_pulse(e, e(_X, 9))


def _class_evictions(e: Evidence) -> str:
    return "0" if e.entry["kind"] == "none" else _evictions_of_pulse(e, e.here("throughput_per_iteration", 9))


def _evictions_of_pulse(e: Evidence, completed: str) -> str:
    return f"({e('M', 9)} − {e('K_old', 9)}) / ({e('g')}·{e('a', 9)}) − {completed}"


def _period(e: Evidence) -> str:
    return f"gcd({e('lengths')})" if _kind(e) in ("homogeneous", "pulse") else ""


WORST_CYCLE = Block(
    "worst_cycle",
    "What greedy admission keeps once it has collapsed.",
    (
        Record(
            "worst_cycle.kind",
            "How the cycle is known: homogeneous and pulse by a formula, simulated by iterating the fluid map, "
            "or none.",
            formula="homogeneous: all n_i equal; pulse: g > 1 and its polynomial is stable; none: no preemption "
            "possible, or the fluid map stops preempting, as assumed where 3·L·(1 − ρ) >= 1; simulated: the rest",
            here=lambda e: f"n_i: {e('lengths')}; g = {e(_GCD)}; ρ = {e('stability.spectral_radius', 12)}",
            source="SIC 3; pulse cycle new",
            kind=Kind.TEXT,
            allowed=_KINDS,
        ),
        Record(
            "worst_cycle.throughput_per_iteration",
            "Completions per iteration of a collapsed, backlogged replica.",
            formula="homogeneous, pulse: x = M/(g·ΣW_(g−1+jg)), for one length M/(n·w(n−1)); none: n*",
            here=_throughput_per_iteration,
            source="SIC eq. 25; pulse cycle new",
            symbol="x",
            unit="requests",
        ),
        Record(
            "worst_cycle.throughput_rps",
            "Completions per second of a collapsed replica that holds very many requests.",
            formula=law_text.CYCLE,
            here=_throughput_rps,
            source="new, from SIC eq. 25",
            unit="requests/s",
        ),
        Record(
            "worst_cycle.loss",
            "Share of completions per iteration that a collapsed replica loses.",
            formula="1 − x/n*",
            here=lambda e: f"1 − {e(_X, 9)} / {e(_N_STAR, 9)}",
            source="SIC 3: (d − 1)/(2(s + d)) for one length",
            most=1.0,
        ),
        Record(
            "worst_cycle.evictions_per_iteration",
            "Requests preempted per iteration on the cycle.",
            formula="e = (M − K_old)/(g·ā) − x, K_old held by earlier pulses when one is admitted; none: 0",
            here=_evictions,
            source="SIC 3; several classes new",
            symbol="e",
            unit="requests",
        ),
        Record(
            "worst_cycle.period",
            "Iterations after which the cycle repeats.",
            formula="g, the gcd of the iteration counts; simulated: as observed",
            here=_period,
            source="SIC 3; several classes new",
            unit="iterations",
            absent="There is no cycle, or the simulated one does not repeat within its budget.",
            whole=True,
        ),
        Record(
            "worst_cycle.danger_zone_rps",
            "Rates that look sustainable but at which a collapsed, backlogged replica does not recover.",
            formula="[verdict.recovers_up_to_rps, sustainable rate]",
            here=lambda e: f"[{e('verdict.recovers_up_to_rps')}, {e('load.sustainable_rps')}]",
            source="new",
            unit="requests/s",
            absent="The replica recovers at every sustainable rate, or the engine does not run what the profile has.",
            kind=Kind.PAIR,
        ),
        class_name("worst_cycle"),
        Record(
            "worst_cycle.classes[].kind",
            "How the cycle of the class is known, on a replica that serves nothing else.",
            formula="homogeneous: one decode length; pulse: g > 1 and its polynomial is stable; none: no preemption "
            "possible",
            source="SIC 3; pulse cycle new",
            absent=_NO_CLOSED_FORM,
            kind=Kind.TEXT,
            allowed=_KINDS,
        ),
        Record(
            "worst_cycle.classes[].throughput_per_iteration",
            "Completions per iteration of the class on a collapsed replica of its own.",
            formula="homogeneous, pulse: x = M/(g·ΣW_(g−1+jg)), for one length M/(n·w(n−1)); none: M/S",
            here=_class_throughput_per_iteration,
            source="SIC eq. 25; pulse cycle new",
            symbol="x",
            unit="requests",
            absent=_NO_CLOSED_FORM,
        ),
        Record(
            "worst_cycle.classes[].throughput_rps",
            "Completions per second of the class on a collapsed replica of its own.",
            formula=law_text.CLASS_CYCLE,
            here=_class_throughput_rps,
            source="new, from SIC eq. 25",
            unit="requests/s",
            absent=_NO_CLOSED_FORM,
        ),
        Record(
            "worst_cycle.classes[].loss",
            "Share of completions per iteration that the class loses on a collapsed replica of its own.",
            formula="1 − x/(M/S_i)",
            here=lambda e: f"1 − {e.here('throughput_per_iteration', 9)} / ({e('M', 9)} / {e('S_b', 9)})",
            source="SIC 3: (d − 1)/(2(s + d)) for one length",
            most=1.0,
            absent=_NO_CLOSED_FORM,
        ),
        Record(
            "worst_cycle.classes[].evictions_per_iteration",
            "Requests of the class preempted per iteration on that cycle.",
            formula="e = (M − K_old)/(g·a) − x, K_old held by earlier pulses when one is admitted; none: 0",
            here=_class_evictions,
            source="SIC 3; pulse cycle new",
            symbol="e",
            unit="requests",
            absent=_NO_CLOSED_FORM,
        ),
        Record(
            "worst_cycle.classes[].period",
            "Iterations after which that cycle repeats.",
            formula="g, the gcd of the iteration counts of the class",
            source="SIC 3; pulse cycle new",
            unit="iterations",
            absent="There is no cycle, or no closed form for it.",
            whole=True,
        ),
        Record(
            "worst_cycle.iterations",
            "Iterations for which the fluid map ran.",
            unit="iterations",
            absent="The cycle is known by a formula, or there is none.",
            whole=True,
            in_contract=False,
        ),
        Record(
            "worst_cycle.settled",
            "Whether the iterated map came to rest; true where the cycle is known by a formula, or there is none.",
            kind=Kind.TRUTH,
        ),
    ),
)
