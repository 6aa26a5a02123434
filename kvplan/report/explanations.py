"""What every key of the report means: the table behind `kvplan explain`.

Templates are filled by `kvplan.report.explain`. ``{name}`` is an input (`SYMBOLS`) or a dotted key of the report,
``{.field}`` a field of the same entry of a list, ``{<.field}`` of the entry before, ``{@name}`` an input of that entry
(`ENTRY_SYMBOLS`), ``{name:9}`` asks for nine digits, and ``⟨list: term⟩`` is the sum of a term over a list. Where the
formula depends on a case, templates are given by case and `case` names what decides.

This module imports nothing heavy: completion reads it.
"""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Explanation:
    """One key of the report.

    Attributes
    ----------
    key : str
        As the contract writes it; entries of lists as ``[]``.
    meaning : str
        One sentence.
    formula : str
        With the symbols of the papers; empty where there is nothing to compute.
    here : str, mapping of str to str, or None
        Template of the right-hand side with a profile's numbers; by case. None where no formula leads to the number.
    source : str
        Paper key and equation, or ``new``.
    symbol : str
        By which formulas call the number.
    unit : str
    absent : str
        Why the value can be null.
    case : str
        What `here` is chosen by.
    basis : str
        How the number is known, where that is not what the report says of its block.
    """

    key: str
    meaning: str
    formula: str = ""
    here: str | Mapping[str, str] | None = None
    source: str = ""
    symbol: str = ""
    unit: str = ""
    absent: str = ""
    case: str = ""
    basis: str = ""


BLOCKS: Mapping[str, str] = {
    "schema_version": "Version of the report's keys.",
    "kvplan_version": "Version of kvplan.",
    "profile": "Which profile the report is about.",
    "verdict": "The answer in a word, and the limit that binds.",
    "load": "What is offered against what can be sustained.",
    "equilibrium": "The eviction-free steady state at the offered load.",
    "saturation": "The eviction-free state that exactly fills memory.",
    "worst_cycle": "What greedy admission keeps once it has collapsed.",
    "stability": "Whether greedy admission finds back to the equilibrium by itself.",
    "rate_cap": "Admission limits that prevent evictions.",
    "wait": "WAIT: admission thresholds where decode lengths are known.",
    "nested_wait": "Nested WAIT: thresholds and memory where decode lengths are unknown.",
    "safety_buffer": "How likely KV usage exceeds memory, and the buffer against it.",
    "simulation": "The simulator's figures beside the formulas.",
    "sources": "Where the numbers of each block come from.",
    "notes": "What was assumed or not modelled.",
}

ABSENT_BLOCKS: Mapping[str, str] = {
    "simulation": "Only a simulation can fill this block, and none was asked for.",
    "": "This version of kvplan does not compute the block.",
}

SYMBOLS: Mapping[str, tuple[str, str]] = {
    "M": ("M", "KV tokens that memory holds"),
    "A": ("A", "KV token-iterations of memory demanded per second, Σλ·S̄"),
    "d0": ("d0", "fixed time of an iteration, s"),
    "d1": ("d1", "time per KV token, s"),
    "d2": ("d2", "time per prefill token, s"),
    "d3": ("d3", "time per sequence, s"),
    "rate": ("Σλ", "arrivals of all classes, requests/s"),
    "S": ("S̄", "mean footprint of a request, KV token-iterations, as time counts it"),
    "S_b": ("S̄", "mean footprint of a request, KV token-iterations, half-filled pages included"),
    "s": ("s̄", "mean prefill work of a fresh request, tokens; 0 where prefill is disaggregated"),
    "input": ("s̄", "mean input of a request, tokens"),
    "n": ("n̄", "mean iterations that a request stays"),
    "a": ("ā", "mean KV tokens held at the first stage, half-filled pages included"),
    "c": ("c̄", "mean time that a request adds to iterations in all, s: d1·S̄ + d2·s̄ + d3·n̄"),
    "t": ("t̄", "mean tokens computed for a request"),
    "d": ("d̄", "mean decode length, tokens"),
    "B_max": ("max_num_seqs", "requests that the engine runs at once"),
    "T_b": ("max_num_batched_tokens", "tokens that the engine computes in an iteration"),
    "L": ("L", "iterations of the longest request"),
    "blocks": ("⌊M/b⌋", "pages of memory"),
    "longest_blocks": ("⌈max(s+d)/b⌉", "pages of the longest request"),
    "half": ("(b−1)/2", "tokens by which pages exceed what a request uses, on average"),
    "B_w": ("B", "mean requests in flight on the cycle"),
    "prefilled": (
        "x + e",
        "prompts computed per iteration of the cycle; e alone where prefill is disaggregated",
    ),
    "tau_w": ("τ_w", "mean iteration time of the cycle, s"),
    "p": ("p", "share of the shorter decode length"),
    "shift": ("", "1 where prefill is inline, else 0"),
    "after_memory": ("", "sustainable rate with a tenth more memory, requests/s"),
    "after_d0": ("", "sustainable rate with d0 a tenth longer, requests/s"),
    "after_d1": ("", "sustainable rate with d1 a tenth longer, requests/s"),
    "delta": ("δ", "accepted probability of any overflow within the horizon"),
    "horizon": ("T", "horizon, s"),
    "N": ("N", "iterations within the horizon, ⌈T/ΔT⌉"),
    "boundaries": ("m − 1", "boundaries between segments"),
    "dt_nested": ("ΔT", "iteration time with every segment filled, s"),
    "smooth_tail": ("", "P(K > M) by the saddlepoint, with feedback"),
    "exact_tail": ("", "P(K > M) by the exact law at constant iteration time"),
    "horizon_iterations": ("T", "iterations within the horizon, at least one"),
    "budget_mean": ("", "mean KV tokens under the budgets"),
    "largest_budget": ("A", "largest budget"),
    "longest_side": ("C", "longest input or decode length, tokens"),
    "lengths": ("n_i", "iterations by class and decode length"),
    "limits": ("", "largest total rate under each limit, requests/s"),
}

ENTRY_SYMBOLS: Mapping[str, tuple[str, str]] = {
    "rate": ("λ_i", "arrivals of the class, requests/s"),
    "share": ("p_i", "share of the class in the total rate"),
    "arrivals": ("λ_i·τ*", "mean arrivals of the class per iteration"),
    "n": ("n̄_i", "mean iterations that a request of the class stays"),
    "S_b": ("S_i", "mean footprint of the class, KV token-iterations, half-filled pages included"),
    "a": ("a_i", "KV tokens held at the first stage, half-filled pages included"),
    "c": ("c_i", "time that a request of the class adds to iterations in all, s: d1·S + d2·s + d3·n"),
    "input": ("s_i", "input of the class, tokens"),
    "B_w": ("B_i", "mean requests in flight on the cycle of the class"),
    "prefilled": (
        "x + e",
        "prompts computed per iteration of the cycle; e alone where prefill is disaggregated",
    ),
    "queue": ("E[W]", "mean number waiting when an iteration starts, those it admits included"),
    "tokens": ("", "KV tokens of the segment's stages per unit of its threshold"),
    "w": ("w_k", "KV tokens of a request that waits at the segment's start; 0 for the first"),
    "excess": ("c_k − n_k", "requests by which the queue exceeds the threshold"),
}

_FLUID = "WAIT-s eq. 3-6"
_LIMITS = "WAIT-s eq. 3-6, WAIT Prop. 1, 2; engine limits and pages new"
_NO_EQUILIBRIUM = "Λ >= 1: the work alone takes longer than the time between arrivals, no equilibrium exists."
_NO_SEGMENTS = "Λ >= 1: no thresholds keep up with arrivals, so there are no segments."
_NO_CLOSED_FORM = "The class has several decode lengths and no closed form applies."
_X = "{worst_cycle.throughput_per_iteration}"
_MEMORY_FACTOR = "{M} / ({A}·{d0} + {M}·{load.work_rate})"
_CYCLE_TIME = "({d0} + {d1}·({M} − {half}·{B_w}) + {d2}·{prefilled}·{input} + {d3}·{B_w})"
_CLASS_TIME = "({d0} + {d1}·({M} − {half}·{@B_w}) + {d2}·{@prefilled}·{@input} + {d3}·{@B_w})"

EXPLANATIONS: tuple[Explanation, ...] = (
    Explanation("schema_version", "Version of the contract; programs should check it."),
    Explanation("kvplan_version", "Version of kvplan that wrote the report."),
    Explanation("profile.name", "Name that the profile gives itself.", basis="assumption"),
    Explanation("profile.sha256", "SHA-256 of the profile's bytes: the same profile gives the same report."),
    # ------------------------------------------------------------------------------------------- verdict
    Explanation(
        "verdict.status",
        "Whether the load fits, and whether greedy admission recovers by itself.",
        "overloaded: offered > sustainable; stable: otherwise, and ρ < 1 (certified) or offered <= worst-cycle rate; "
        "needs_cap: the rest",
        {
            "overloaded": "offered {load.offered_rps} > {load.sustainable_rps} sustainable",
            "stable": "offered {load.offered_rps} ≤ {load.sustainable_rps} sustainable; ρ = "
            "{stability.spectral_radius:12}, certified {stability.certified}; worst cycle {worst_cycle.throughput_rps}",
            "needs_cap": "worst cycle {worst_cycle.throughput_rps} < offered {load.offered_rps} ≤ "
            "{load.sustainable_rps} sustainable; ρ = {stability.spectral_radius:12}, certified {stability.certified}",
        },
        "WAIT Prop. 1, 2; SIC eq. 10; the combination is new",
        case="verdict.status",
    ),
    Explanation(
        "verdict.binding",
        "The limit that is met first as the load grows.",
        "the smallest of the limits' rates; memory is called compute where M·Λ > A·d0",
        "{limits}",
        "WAIT-s eq. 3-6; engine limits new",
    ),
    Explanation("verdict.summary", "The verdict in one sentence with its numbers."),
    # ---------------------------------------------------------------------------------------------- load
    Explanation(
        "load.offered_rps", "Arrivals of all classes together.", "Σλ", "{rate}", "the profile", "Σλ", "requests/s",
        basis="assumption",
    ),
    Explanation(
        "load.work_rate",
        "Seconds of work demanded per second; from 1 on, no policy is stable at any memory.",
        "Λ = Σ λ_i·(d1·S_i + d2·s_i + d3·n_i) = Σλ·(d1·S̄ + d2·s̄ + d3·n̄)",
        "{rate}·({d1}·{S} + {d2}·{s} + {d3}·{n})",
        "WAIT-s eq. 3, WAIT Prop. 1; d2 and d3 new",
        "Λ",
    ),
    Explanation(
        "load.load_factor_max",
        "Factor by which every rate can grow before the first limit is met.",
        "α = smallest of M/(A·d0 + M·Λ), B_max/(d0·Σλ·n̄ + B_max·Λ), T_b/(d0·Σλ·t̄ + T_b·Λ)",
        {
            "kv_memory": _MEMORY_FACTOR,
            "compute": _MEMORY_FACTOR,
            "max_num_seqs": "{B_max} / ({d0}·{rate}·{n} + {B_max}·{load.work_rate})",
            "max_num_batched_tokens": "{T_b} / ({d0}·{rate}·{t} + {T_b}·{load.work_rate})",
        },
        _LIMITS,
        "α",
        absent="The offered load is so small that the factor exceeds what a float holds.",
        case="verdict.binding",
    ),
    Explanation(
        "load.headroom",
        "How much the load can grow, as a fraction of itself; negative where it is too large already.",
        "α − 1",
        "{load.load_factor_max:9} − 1",
        _LIMITS,
        absent="The offered load is so small that the factor exceeds what a float holds.",
    ),
    Explanation(
        "load.sustainable_rps",
        "Largest total rate that some policy can serve.",
        "α·Σλ",
        "{load.load_factor_max}·{rate}",
        _LIMITS,
        "α·Σλ",
        "requests/s",
    ),
    Explanation(
        "load.sustainable_decode_tokens_per_s",
        "Decode tokens per second at the sustainable rate.",
        "α·Σλ·d̄",
        "{load.sustainable_rps}·{d}",
        "WAIT-s eq. 6, counted in decode tokens",
        unit="tokens/s",
    ),
    *(
        Explanation(
            f"load.sensitivity.{name}",
            f"Relative change of the sustainable rate for +10 % {what}.",
            f"α({changed})/α − 1, every limit considered",
            f"{{{after}:9}} / {{load.sustainable_rps:9}} − 1",
            "new, from WAIT-s eq. 3-6",
        )
        for name, what, changed, after in (
            ("memory_tokens", "of memory", "1.1·M", "after_memory"),
            ("d0", "of d0", "1.1·d0", "after_d0"),
            ("d1", "of d1", "1.1·d1", "after_d1"),
        )
    ),
    # --------------------------------------------------------------------------------------- equilibrium
    Explanation(
        "equilibrium.kv_tokens",
        "KV tokens held in memory; more than memory holds where the load does not fit.",
        "M* = A·τ*",
        "{A}·{equilibrium.iteration_time_s}",
        _FLUID,
        "M*",
        "tokens",
        _NO_EQUILIBRIUM,
    ),
    Explanation(
        "equilibrium.kv_utilization",
        "Share of memory in use.",
        "M*/M",
        "{equilibrium.kv_tokens} / {M}",
        _FLUID,
        absent=_NO_EQUILIBRIUM,
    ),
    Explanation(
        "equilibrium.iteration_time_s",
        "Time of an iteration.",
        "τ* = d0/(1 − Λ)",
        "{d0} / (1 − {load.work_rate:9})",
        f"{_FLUID}, WAIT Prop. 2",
        "τ*",
        "s",
        _NO_EQUILIBRIUM,
    ),
    Explanation(
        "equilibrium.requests_in_flight",
        "Requests in the batch.",
        "Σλ·n̄·τ*",
        "{rate}·{n}·{equilibrium.iteration_time_s}",
        _FLUID,
        "",
        "requests",
        _NO_EQUILIBRIUM,
    ),
    Explanation(
        "equilibrium.decode_tokens_per_s",
        "Tokens generated per second.",
        "Σλ·d̄",
        "{rate}·{d}",
        "WAIT, definition of throughput",
        "",
        "tokens/s",
        _NO_EQUILIBRIUM,
    ),
    Explanation(
        "equilibrium.prompt_iterations_per_s",
        "Iterations of requests per second; counts a prompt-only iteration where there is one.",
        "Σλ·n̄",
        "{rate}·{n}",
        "WAIT-s eq. 6",
        "",
        "iterations/s",
        _NO_EQUILIBRIUM,
    ),
    Explanation("equilibrium.classes[].name", "Name of the class, in the order of the profile."),
    Explanation(
        "equilibrium.classes[].per_stage",
        "Requests of the class at each of its stages: its arrivals per iteration.",
        "λ_i·τ*",
        "{@rate}·{equilibrium.iteration_time_s}",
        _FLUID,
        "",
        "requests",
        _NO_EQUILIBRIUM,
    ),
    Explanation(
        "equilibrium.classes[].in_flight",
        "Requests of the class in the batch.",
        "λ_i·n̄_i·τ*",
        "{@rate}·{@n}·{equilibrium.iteration_time_s}",
        _FLUID,
        "",
        "requests",
        _NO_EQUILIBRIUM,
    ),
    # ---------------------------------------------------------------------------------------- saturation
    Explanation(
        "saturation.admissions_per_iteration",
        "Admissions per iteration that keep memory exactly full without evictions.",
        "n* = M/Σ p_i·S_i",
        "{M} / {S_b}",
        "SIC 2; several classes WAIT-s eq. 3",
        "n*",
        "requests",
    ),
    Explanation(
        "saturation.iteration_time_s",
        "Time of an iteration with memory full.",
        "τ(M) = d0 + n*·(d1·S̄ + d2·s̄ + d3·n̄) = d0 + n*·c̄",
        "{d0} + {saturation.admissions_per_iteration}·{c}",
        "WAIT-s eq. 1; d2 and d3 new",
        "τ(M)",
        "s",
    ),
    Explanation(
        "saturation.throughput_rps",
        "Requests per second with memory full: the sustainable rate where memory is the limit.",
        "n*/τ(M)",
        "{saturation.admissions_per_iteration} / {saturation.iteration_time_s}",
        _FLUID,
        "",
        "requests/s",
    ),
    # --------------------------------------------------------------------------------------- worst cycle
    Explanation(
        "worst_cycle.kind",
        "How the cycle is known: homogeneous and pulse by a formula, simulated by iterating the fluid map, or none.",
        "none: a single stage, no eviction possible, or ρ < 1; homogeneous: all n_i equal; pulse: g > 1 and its "
        "polynomial is stable; simulated: the rest",
        "n_i: {lengths}; g = {stability.gcd}; ρ = {stability.spectral_radius:12}",
        "SIC 3; pulse cycle new",
    ),
    Explanation(
        "worst_cycle.throughput_per_iteration",
        "Completions per iteration of a collapsed, backlogged replica.",
        "homogeneous: x = M/(n·(a + n − 1)); pulse: x = M/(S̄ + n̄·(g − 1)/2); none: n*",
        {
            "homogeneous": "{M} / ({n}·({a} + {n} − 1))",
            "pulse": "{M} / ({S_b} + {n}·({stability.gcd} − 1)/2)",
            "none": "{saturation.admissions_per_iteration}",
            "simulated": "",
        },
        "SIC eq. 25; pulse cycle new",
        "x",
        "requests",
        case="worst_cycle.kind",
    ),
    Explanation(
        "worst_cycle.throughput_rps",
        "Completions per second of a collapsed replica: below this rate a backlog drains whatever happened.",
        "x/τ_w, τ_w = d0 + d1·(M − B·(b−1)/2) + d2·(x + e)·s̄ + d3·B; none: n*/τ(M)",
        {
            "homogeneous": f"{_X} / {_CYCLE_TIME}",
            "pulse": f"{_X} / {_CYCLE_TIME}",
            "none": "{saturation.admissions_per_iteration} / {saturation.iteration_time_s}",
            "simulated": f"{_X} / {{tau_w}}",
        },
        "new, from SIC eq. 25",
        "",
        "requests/s",
        case="worst_cycle.kind",
    ),
    Explanation(
        "worst_cycle.loss",
        "Share of completions per iteration that a collapsed replica loses.",
        "1 − x/n*",
        "1 − {worst_cycle.throughput_per_iteration:9} / {saturation.admissions_per_iteration:9}",
        "SIC 3: (d − 1)/(2(s + d)) for one length",
    ),
    Explanation(
        "worst_cycle.evictions_per_iteration",
        "Requests evicted per iteration on the cycle.",
        "e = x·(g − 1)·n̄/(g·ā); none: 0",
        {
            "homogeneous": f"{_X}·({{stability.gcd}} − 1)·{{n}} / ({{stability.gcd}}·{{a}})",
            "pulse": f"{_X}·({{stability.gcd}} − 1)·{{n}} / ({{stability.gcd}}·{{a}})",
            "none": "0",
            "simulated": "",
        },
        "SIC 3; several classes new",
        "e",
        "requests",
        case="worst_cycle.kind",
    ),
    Explanation(
        "worst_cycle.period",
        "Iterations after which the cycle repeats.",
        "g, the gcd of the iteration counts; simulated: as observed",
        {"homogeneous": "gcd({lengths})", "pulse": "gcd({lengths})", "none": "", "simulated": ""},
        "SIC 3; several classes new",
        "",
        "iterations",
        "There is no cycle, or the simulated one does not repeat within its budget.",
        "worst_cycle.kind",
    ),
    Explanation(
        "worst_cycle.danger_zone_rps",
        "Rates that look sustainable but at which a collapsed, backlogged replica does not recover.",
        "[worst-cycle rate, sustainable rate]",
        "[{worst_cycle.throughput_rps}, {load.sustainable_rps}]",
        "new, from SIC 3",
        "",
        "requests/s",
        "The worst cycle sustains as much as the limits allow: there is no such zone.",
    ),
    Explanation("worst_cycle.classes[].name", "Name of the class, in the order of the profile."),
    Explanation(
        "worst_cycle.classes[].kind",
        "How the cycle of the class is known, on a replica that serves nothing else.",
        "homogeneous: one decode length; pulse: g > 1 and its polynomial is stable; none: no eviction possible",
        None,
        "SIC 3; pulse cycle new",
        absent=_NO_CLOSED_FORM,
    ),
    Explanation(
        "worst_cycle.classes[].throughput_per_iteration",
        "Completions per iteration of the class on a collapsed replica of its own.",
        "homogeneous: x = M/(n·(a + n − 1)); pulse: x = M/(S + n̄·(g − 1)/2); none: M/S",
        {
            "homogeneous": "{M} / ({@n}·({@a} + {@n} − 1))",
            "pulse": "{M} / ({@S_b} + {@n}·({.period} − 1)/2)",
            "none": "{M} / {@S_b}",
        },
        "SIC eq. 25; pulse cycle new",
        "x",
        "requests",
        _NO_CLOSED_FORM,
        ".kind",
    ),
    Explanation(
        "worst_cycle.classes[].throughput_rps",
        "Completions per second of the class on a collapsed replica of its own.",
        "x/τ_w, τ_w = d0 + d1·(M − B·(b−1)/2) + d2·(x + e)·s + d3·B; none: x/(d0 + x·c)",
        {
            "homogeneous": f"{{.throughput_per_iteration}} / {_CLASS_TIME}",
            "pulse": f"{{.throughput_per_iteration}} / {_CLASS_TIME}",
            "none": "{.throughput_per_iteration} / ({d0} + {.throughput_per_iteration}·{@c})",
        },
        "new, from SIC eq. 25",
        "",
        "requests/s",
        _NO_CLOSED_FORM,
        ".kind",
    ),
    Explanation(
        "worst_cycle.classes[].loss",
        "Share of completions per iteration that the class loses on a collapsed replica of its own.",
        "1 − x/(M/S_i)",
        "1 − {.throughput_per_iteration:9} / ({M:9} / {@S_b:9})",
        "SIC 3: (d − 1)/(2(s + d)) for one length",
        absent=_NO_CLOSED_FORM,
    ),
    Explanation(
        "worst_cycle.classes[].evictions_per_iteration",
        "Requests of the class evicted per iteration on that cycle.",
        "e = x·(g − 1)·n̄/(g·a); none: 0",
        {
            "homogeneous": "{.throughput_per_iteration}·({.period} − 1)·{@n} / ({.period}·{@a})",
            "pulse": "{.throughput_per_iteration}·({.period} − 1)·{@n} / ({.period}·{@a})",
            "none": "0",
        },
        "SIC 3; pulse cycle new",
        "e",
        "requests",
        _NO_CLOSED_FORM,
        ".kind",
    ),
    Explanation(
        "worst_cycle.classes[].period",
        "Iterations after which that cycle repeats.",
        "g, the gcd of the iteration counts of the class",
        None,
        "SIC 3; pulse cycle new",
        "",
        "iterations",
        "There is no cycle, or no closed form for it.",
    ),
    # ----------------------------------------------------------------------------------------- stability
    Explanation(
        "stability.gcd",
        "Greatest common divisor of the iteration counts; above 1, synchronised modes are never damped.",
        "g = gcd of the n_i",
        "gcd({lengths})",
        "SIC Theorem 3",
        "g",
    ),
    Explanation(
        "stability.spectral_radius",
        "Factor by which disturbances of the full equilibrium grow per iteration; below 1 they die out.",
        "ρ = largest |z| with P(z) = Σ_k W_k·z^(L−1−k) = 0, W_k = Σ_(n_i > k) p_i·w_i(k)",
        "largest |z| with Σ_k W_k·z^({L} − 1 − k) = 0",
        "SIC eq. 9, 10; its numerics new",
        "ρ",
    ),
    Explanation(
        "stability.unstable_modes",
        "Roots of P outside the unit circle: disturbances that grow.",
        "number of z with P(z) = 0 and |z| > 1, of L − 1 in all; g − 1 for large inputs",
        "of {L} − 1 roots",
        "SIC eq. 10, Theorem 3; the certified count is new",
        absent="A root is too close to the unit circle for the count to be proved.",
    ),
    Explanation(
        "stability.stable",
        "Whether every disturbance of the full equilibrium dies out under greedy admission.",
        "ρ < 1, and proved",
        "ρ = {stability.spectral_radius:12}, certified {stability.certified}",
        "SIC eq. 10",
    ),
    Explanation(
        "stability.certified",
        "Whether the verdict on stability is proved, rounding errors included.",
        "winding number of P on |z| = 1 with an error bound; in exact integers where a root is near the circle",
        None,
        "new",
    ),
    Explanation(
        "stability.recovery_iterations",
        "Iterations in which a disturbance decays by a factor of e, about.",
        "1/(1 − ρ)",
        "1 / (1 − {stability.spectral_radius:12})",
        "new",
        "",
        "iterations",
        "The equilibrium is not proved stable: a disturbance need not decay.",
    ),
    Explanation(
        "stability.min_stable_input_tokens.exact",
        "Smallest mean input from which this mix of decode lengths is stable.",
        "the last m at which a root of m·A(z) + B(z) crosses the unit circle, the inputs scaled in common",
        None,
        "new, from SIC eq. 9, Theorem 3",
        "",
        "tokens",
        "g > 1: no input length makes the mix stable. Or it could not be proved.",
    ),
    Explanation(
        "stability.min_stable_input_tokens.asymptotic",
        "The same by the paper's asymptotic formula, for two decode lengths and one input.",
        "(p·d1 + (1 − p)·d2)³/(2π²·p·(1 − p)), plus 1 where prefill is inline",
        "{shift} + {n}³/(2·π²·{p}·(1 − {p}))",
        "SIC eq. 13",
        "",
        "tokens",
        "g > 1, or not two decode lengths with one input.",
    ),
    Explanation(
        "stability.advice",
        "What would make it stable: the smallest change of one decode limit that is proved to, or a cap.",
        source="new",
    ),
    # ------------------------------------------------------------------------------------------ rate cap
    Explanation(
        "rate_cap.per_iteration",
        "Admissions per iteration at which evictions stop, whatever is offered.",
        "n* = M/Σ p_i·S_i",
        "{M} / {S_b}",
        "SIC 5.1",
        "",
        "requests",
    ),
    Explanation(
        "rate_cap.per_second",
        "The same cap per second, with memory full.",
        "n*/τ(M)",
        "{rate_cap.per_iteration} / {saturation.iteration_time_s}",
        "SIC 5.1",
        "",
        "requests/s",
    ),
    Explanation("rate_cap.classes[].name", "Name of the class, in the order of the profile."),
    Explanation(
        "rate_cap.classes[].per_iteration",
        "The class's part of the cap.",
        "p_i·n*",
        "{@share}·{rate_cap.per_iteration}",
        "SIC 5.1",
        "",
        "requests",
    ),
    Explanation(
        "rate_cap.classes[].integer_budget",
        "Whole admissions per iteration that never overflow and keep up with arrivals, for the shortest queues.",
        "b_i > λ_i·τ* with Σ b_i·S_i < M, minimising Σ E[Q_i]",
        "λ_i·τ* = {@arrivals} < {.integer_budget}",
        "FC Theorem 3.3; the choice among feasible budgets is new",
        "b_i",
        "requests",
        "No whole numbers fit: Σ(⌊λ_i·τ*⌋ + 1)·S_i >= M, or there is no equilibrium.",
    ),
    Explanation(
        "rate_cap.engine_max_num_seqs",
        "Concurrency at which even the longest requests cannot overflow memory.",
        "⌊⌊M/b⌋/⌈max(s + d)/b⌉⌋",
        "⌊{blocks} / {longest_blocks}⌋",
        "new",
        "",
        "requests",
    ),
    # ---------------------------------------------------------------------------------------------- wait
    Explanation(
        "wait.feasible",
        "Whether thresholds exist that keep up with arrivals.",
        "Λ < 1",
        "Λ = {load.work_rate}",
        "WAIT-s eq. 7, Theorem 4.1",
    ),
    Explanation(
        "wait.thresholds[]",
        "Smallest whole numbers of requests per stage with which WAIT keeps up, class by class.",
        "least n with n_i = ⌊λ_i·ΔT(n)⌋ + 1, so that ΔT(n) < n_i/λ_i",
        "⌊{@rate}·{wait.iteration_time_s:12}⌋ + 1",
        "WAIT-s eq. 7; the least fixed point is new",
        "n_i",
        "requests",
        _NO_EQUILIBRIUM,
    ),
    Explanation(
        "wait.iteration_time_s",
        "Time of an iteration with every threshold filled.",
        "ΔT = d0 + Σ n_i·(d1·S_i + d2·s_i + d3·n̄_i) = d0 + Σ n_i·c_i",
        "{d0} + ⟨wait.classes: {.threshold}·{@c}⟩",
        "WAIT-s eq. 7; d2 and d3 new",
        "ΔT",
        "s",
        _NO_EQUILIBRIUM,
    ),
    Explanation(
        "wait.kv_tokens",
        "KV tokens held with every threshold filled.",
        "Σ n_i·S_i",
        "⟨wait.classes: {.threshold}·{@S_b}⟩",
        "WAIT-s eq. 7",
        "",
        "tokens",
        _NO_EQUILIBRIUM,
    ),
    Explanation(
        "wait.fits",
        "Whether the smallest thresholds fit in memory.",
        "Σ n_i·S_i <= M",
        "Σ n_i·S_i = {wait.kv_tokens}, M = {M}",
        "WAIT-s eq. 7",
    ),
    Explanation("wait.classes[].name", "Name of the class, in the order of the profile."),
    Explanation(
        "wait.classes[].threshold",
        "Smallest whole number of requests per stage of the class.",
        "n_i = ⌊λ_i·ΔT(n)⌋ + 1",
        "⌊{@rate}·{wait.iteration_time_s:12}⌋ + 1",
        "WAIT-s eq. 7; the least fixed point is new",
        "n_i",
        "requests",
        _NO_EQUILIBRIUM,
    ),
    Explanation(
        "wait.classes[].mean_wait_bound_s",
        "Bound on the mean wait before the first iteration; exact for one class.",
        "several classes: (2n + a/(2(n − a)))/λ with a = λ·ΔT; one class: (E[W] − (n + 1)/2)/λ",
        {
            "several classes": "(2·{.threshold} + {@rate}·{wait.iteration_time_s:12}/"
            "(2·({.threshold} − {@rate}·{wait.iteration_time_s:12}))) / {@rate}",
            "one class": "({@queue:9} − ({.threshold} + 1)/2) / {@rate}",
        },
        "WAIT-s Lemma C.6; the exact queue new",
        "",
        "s",
        _NO_EQUILIBRIUM,
        "classes",
    ),
    Explanation(
        "wait.classes[].latency_s",
        "That wait, an interval n/λ for every further iteration, and an iteration.",
        "wait + (n̄_i − 1)·n_i/λ_i + ΔT",
        "{.mean_wait_bound_s} + ({@n} − 1)·{.threshold}/{@rate} + {wait.iteration_time_s}",
        "WAIT-s Theorem 4.1",
        "",
        "s",
        _NO_EQUILIBRIUM,
    ),
    Explanation(
        "wait.max_thresholds[]",
        "Largest whole numbers of requests per stage that fit in memory: most throughput, longest wait.",
        "n = ⌊t·λ⌋ + 1 along a common t, with Σ n_i·S_i <= M",
        None,
        "new, from WAIT-s eq. 7",
        "",
        "requests",
        "Not even the smallest thresholds fit, or Λ >= 1.",
    ),
    # --------------------------------------------------------------------------------------- nested wait
    Explanation(
        "nested_wait.feasible",
        "Whether thresholds exist that keep up with arrivals.",
        "Λ < 1",
        "Λ = {load.work_rate}",
        "WAIT-s Theorem 5.1",
    ),
    Explanation(
        "nested_wait.segments[].upto_decode",
        "Decode length at which the segment ends; chosen for the least memory unless the profile gives a number.",
        "l'_k",
        None,
        "WAIT 7; the choice is new",
        "l'_k",
        "tokens",
        _NO_SEGMENTS,
    ),
    Explanation(
        "nested_wait.segments[].rate_rps",
        "Requests that reach the segment.",
        "Λ_k = Σ λ_j over the lengths beyond l'_(k−1)",
        None,
        "WAIT-s Theorem 5.1",
        "Λ_k",
        "requests/s",
        _NO_SEGMENTS,
    ),
    Explanation(
        "nested_wait.segments[].continue_probability",
        "Share of the segment before that goes on to this one.",
        "p_k = Λ_k/Λ_(k−1)",
        "{.rate_rps} / {<.rate_rps}",
        "WAIT-s Theorem 5.1",
        "p_k",
        "",
        "The first segment has none before it; where Λ >= 1 there are no segments.",
    ),
    Explanation(
        "nested_wait.segments[].threshold",
        "Requests kept at every stage of the segment.",
        "Λ_1·ΔT < n_1; n_k > p_k·n_(k−1); larger than the least where that shrinks the buffer more than it costs",
        {
            "first": "Λ_1·ΔT = {.rate_rps}·{dt_nested} < {.threshold}",
            "later": "p_k·n_(k−1) = {.continue_probability}·{<.threshold} < {.threshold}",
            "unbounded": "p_k·n_(k−1) = {.continue_probability}·{<.threshold} < {.threshold}",
        },
        "WAIT-s Theorem 5.1; the raised thresholds new",
        "n_k",
        "requests",
        _NO_SEGMENTS,
        case="@case",
    ),
    Explanation(
        "nested_wait.segments[].theta",
        "Decay rate of the queue at the segment's start: the larger, the smaller the buffer.",
        "θ > 0 with θ·n_k = n_(k−1)·ln(1 − p_k + p_k·e^θ)",
        "{<.threshold}·ln(1 − {.continue_probability:12} + {.continue_probability:12}·exp({.theta:12}))/{.threshold}",
        "WAIT-s eq. 13, Lemma D.2",
        "θ_k",
        "per request",
        "θ = ∞: the first segment has no such queue, and with n_k >= n_(k−1) it cannot outgrow n_k. "
        "Where Λ >= 1 there are no segments.",
    ),
    Explanation(
        "nested_wait.segments[].queue_bound",
        "Requests waiting at the segment's start, exceeded within the horizon with probability δ at most.",
        "c_k = n_k + ln((m − 1)·N/δ)/θ_k",
        {
            "first": "",
            "later": "{.threshold} + ln({boundaries}·{N}/{delta})/{.theta}",
            "unbounded": "{.threshold}",
        },
        "WAIT-s Theorem 5.1",
        "c_k",
        "requests",
        "Requests that wait for the first segment hold no KV; where Λ >= 1 there are no segments.",
        "@case",
    ),
    Explanation(
        "nested_wait.base_kv_tokens",
        "KV tokens with every segment filled.",
        "M^π = Σ n_k·(l'_k − l'_(k−1))·(s̄_k + (l'_(k−1) + l'_k + 1)/2), half a page more per stage with pages; "
        "and n_1·s̄_1 for the prompt-only stage where prefill is inline",
        "⟨nested_wait.segments: {.threshold}·{@tokens}⟩",
        "WAIT-s Theorem 5.1; tokens per stage corrected (new)",
        "M^π",
        "tokens",
        _NO_EQUILIBRIUM,
    ),
    Explanation(
        "nested_wait.boundary_kv_tokens",
        "KV tokens of n_k requests that wait at every boundary.",
        "Σ_(k>=2) n_k·w_k, w_k = s̄_k + l'_(k−1)",
        "⟨nested_wait.segments: {.threshold}·{@w}⟩",
        "WAIT-s Theorem 5.1",
        "",
        "tokens",
        _NO_EQUILIBRIUM,
    ),
    Explanation(
        "nested_wait.high_probability_kv_tokens",
        "KV tokens by which queues exceed that, with probability δ at most within the horizon.",
        "Σ_(k>=2) w_k·ln((m − 1)·N/δ)/θ_k = Σ w_k·(c_k − n_k)",
        "⟨nested_wait.segments: {@w}·{@excess}⟩",
        "WAIT-s Theorem 5.1",
        "",
        "tokens",
        _NO_EQUILIBRIUM,
    ),
    Explanation(
        "nested_wait.required_kv_tokens",
        "Memory that Nested WAIT needs to stay within it with probability 1 − δ over the horizon. Where inputs "
        "differ, in the mean over inputs: the probability is that of the queues' lengths.",
        "base + boundary + high-probability",
        "{nested_wait.base_kv_tokens} + {nested_wait.boundary_kv_tokens} + {nested_wait.high_probability_kv_tokens}",
        "WAIT-s Theorem 5.1",
        "",
        "tokens",
        _NO_EQUILIBRIUM,
    ),
    Explanation(
        "nested_wait.fits",
        "Whether that is at most what memory holds.",
        "required <= M",
        "required = {nested_wait.required_kv_tokens}, M = {M}",
        "WAIT-s Theorem 5.1",
    ),
    # ------------------------------------------------------------------------------------- safety buffer
    Explanation(
        "safety_buffer.kv_std_tokens",
        "Standard deviation of KV usage before any eviction, with the feedback of usage on iteration time.",
        "σ² = (1/2π)·∫ Σ λ_i·τ*·|W_i + G·V_i/(1 − H)|² dω, H = e^(−iω)·Σ λ_i·V_i, G = e^(−iω)·Σ λ_i·W_i",
        None,
        "new: Poisson cluster process",
        "σ",
        "tokens",
        _NO_EQUILIBRIUM,
    ),
    Explanation(
        "safety_buffer.overflow_probability_per_iteration",
        "Probability that KV usage exceeds memory in an iteration.",
        "P(K > M): the larger of saddlepoint, with feedback, and exact law at constant iteration time",
        "max({smooth_tail}, {exact_tail})",
        "new: Lugannani-Rice on the cluster process; compound Poisson by FFT",
        "P",
        "",
        _NO_EQUILIBRIUM,
    ),
    Explanation(
        "safety_buffer.overflow_probability_horizon",
        "Probability of any overflow within the horizon, at most: the sum over its iterations.",
        "min(1, max(1, T/τ*)·P)",
        "min(1, max(1, {horizon}/{equilibrium.iteration_time_s})"
        "·{safety_buffer.overflow_probability_per_iteration})",
        "new: union bound over iterations",
        "",
        "",
        _NO_EQUILIBRIUM,
    ),
    Explanation(
        "safety_buffer.required_kv_tokens",
        "Memory with which an overflow within the horizon has probability δ at most.",
        "smallest M >= max(s + d) with max(1, T/τ*)·P(K > M) <= δ",
        "smallest M with max(1, {horizon}/{equilibrium.iteration_time_s})·P(K > M) ≤ {delta}",
        "new",
        "",
        "tokens",
        _NO_EQUILIBRIUM,
    ),
    Explanation(
        "safety_buffer.watermark_fraction",
        "The buffer above the mean as a fraction of memory, for an engine's watermark.",
        "(required − M*)/M",
        "({safety_buffer.required_kv_tokens} − {equilibrium.kv_tokens}) / {M}",
        "new",
        "",
        "",
        _NO_EQUILIBRIUM,
    ),
    Explanation(
        "safety_buffer.theorem_bound",
        "The published bound on overflows within the horizon; usually far too large to be of use.",
        "T·exp(−ε²·M²/(2·(A² + A)·C³)), A the largest budget (without budgets, the next whole number above the "
        "arrivals an iteration), C = max(input, decode), ε = 1 − mean/M",
        "{horizon_iterations}·exp(−({M} − {budget_mean})²/(2·({largest_budget}² + {largest_budget})·{longest_side}³))",
        "FC Theorem 3.6",
        "",
        "",
        "The mean fills memory (ε <= 0), or there is no equilibrium.",
        basis="theorem",
    ),
    # -------------------------------------------------------------------------------------------- others
    Explanation(
        "simulation", "The simulator's figures, where asked for.", absent=ABSENT_BLOCKS["simulation"]
    ),
    Explanation(
        "sources",
        "For each block how its numbers are known, and from where.",
        "theorem: a published formula; computed: beyond the papers, or numerical with a certificate; simulated: the "
        "fluid model iterated; assumption: from the profile, or observed",
    ),
    Explanation("notes[]", "What was assumed, what is not modelled, and what to beware of."),
)  # fmt: skip
