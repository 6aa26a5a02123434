"""Keys of the `safety_buffer` block."""

from kvplan.report.keys.equilibrium import NO_EQUILIBRIUM
from kvplan.report.keys.evidence import Evidence, at
from kvplan.report.keys.record import Block, Kind, Record

_RARE = 1e-6  # below, 1 − e^(−x) is written as x, or the digits shown would not give the result


def _iterations(e: Evidence) -> str:
    return f"max(1, {e('horizon')}/{e('equilibrium.iteration_time_s')})"


def _tail(e: Evidence) -> str:
    smooth, found = (
        e.figures["smooth_tail"].value,
        at(e.document, "safety_buffer.overflow_probability_per_iteration"),
    )
    if found is not None and found < smooth:
        return e("exact_tail")
    return f"max({e('smooth_tail')}, {e('exact_tail')})"


def _any_overflow(e: Evidence) -> str:
    once, later = e("safety_buffer.overflow_probability_per_iteration"), f"({_iterations(e)} − 1)"
    rate = e("passage_rate")
    if at(e.document, "safety_buffer.overflow_probability_horizon") < _RARE:
        return f"{once} + {later}·{rate}"
    return f"1 − (1 − {once})·exp(−{later}·{rate})"


def _required(e: Evidence) -> str:
    return f"smallest M with P(any in T) ≤ {e('delta')}"


def _theorem_bound(e: Evidence) -> str:
    iterations, memory, mean = e("horizon_iterations"), e("M"), e("budget_mean")
    largest, longest = e("largest_budget"), e("longest_side")
    return f"{iterations}·exp(−({memory} − {mean})²/(2·({largest}² + {largest})·{longest}³))"


SAFETY_BUFFER = Block(
    "safety_buffer",
    "How likely KV cache usage exceeds memory, and the buffer against it.",
    (
        Record(
            "safety_buffer.kv_std_tokens",
            "Standard deviation of KV cache usage before any preemption, with the feedback of usage on iteration time "
            "and with clusters of arrivals.",
            formula="σ² = (1/2π)·∫ Σ λ_i·τ*·|W_i + G·V_i/(1 − H)|² dω, H = e^(−iω)·Σ λ_i·V_i, G = e^(−iω)·Σ λ_i·W_i; "
            "where arrivals cluster + (I − 1)·τ*/λ·|Σ λ_i·W_i/(1 − H)|², I the index of dispersion over a stay",
            source="new: Poisson cluster process",
            symbol="σ",
            unit="tokens",
            absent=NO_EQUILIBRIUM,
        ),
        Record(
            "safety_buffer.overflow_probability_per_iteration",
            "Probability that KV cache usage exceeds memory in an iteration.",
            formula="P(K > M): the larger of saddlepoint, with feedback, and exact law at constant iteration time; the "
            "latter where iteration times hardly vary",
            here=_tail,
            source="new: Lugannani-Rice on the cluster process; compound Poisson by FFT",
            symbol="P",
            most=1.0,
            absent=NO_EQUILIBRIUM,
        ),
        Record(
            "safety_buffer.overflow_probability_horizon",
            "Probability of any overflow within the horizon, estimated: overflowing iterations come in clumps.",
            formula="1 − (1 − P)·exp(−(max(1, T/τ*) − 1)·rate), rate = min(P, 1.15·(1 − P)/t(u)), "
            "t(u) = (1/c)·∫ Φ²/φ dy to u = Φ⁻¹(1 − P), c = E(K_(t+m) − K_t)²/(2m·σ²), m = 1/(9c)",
            here=_any_overflow,
            source="new: passage of KV cache usage in normal scores; 0.6 to 3.5 times what simulations have",
            symbol="P(any in T)",
            most=1.0,
            absent=NO_EQUILIBRIUM,
            basis="estimated",
        ),
        Record(
            "safety_buffer.passage_rate",
            "Passages of KV cache usage over memory, per iteration spent below it.",
            absent=NO_EQUILIBRIUM,
            in_contract=False,
        ),
        Record(
            "safety_buffer.overflow_probability_horizon_bound",
            "Probability of any overflow within the horizon, at most: the sum over its iterations.",
            formula="min(1, max(1, T/τ*)·P)",
            here=lambda e: (
                f"min(1, {_iterations(e)}·{e('safety_buffer.overflow_probability_per_iteration')})"
            ),
            source="new: union bound over iterations (Boole)",
            most=1.0,
            absent=NO_EQUILIBRIUM,
        ),
        Record(
            "safety_buffer.required_kv_tokens",
            "Memory with which an overflow within the horizon has the estimated probability δ at most, in whole pages.",
            formula="smallest M >= max(s + d) with P(any in T) <= δ",
            here=_required,
            source="new",
            unit="tokens",
            absent=NO_EQUILIBRIUM,
            basis="estimated",
            whole=True,
        ),
        Record(
            "safety_buffer.watermark_fraction",
            "The buffer above the mean as a fraction of memory, for an engine's watermark.",
            formula="(required − M*)/M",
            here=lambda e: (
                f"({e('safety_buffer.required_kv_tokens')} − {e('equilibrium.kv_tokens')}) / {e('M')}"
            ),
            source="new",
            absent="The buffer would be more than the memory, or there is no equilibrium.",
            basis="estimated",
        ),
        Record(
            "safety_buffer.theorem_bound",
            "The published bound on overflows within the horizon; usually far too large to be of use.",
            formula="T·exp(−ε²·M²/(2·(A² + A)·C³)), A the largest budget (without budgets, the next whole number above "
            "the arrivals an iteration), C = max(input, decode), ε = 1 − mean/M",
            here=_theorem_bound,
            source="FC Theorem 3.6",
            absent="The mean fills memory (ε <= 0), or there is no equilibrium.",
            basis="theorem",
        ),
        Record(
            "safety_buffer.theorem_bound_is_vacuous",
            "Whether that bound is above one half, or there is none.",
            absent=NO_EQUILIBRIUM,
            kind=Kind.TRUTH,
            in_contract=False,
        ),
        Record(
            "safety_buffer.saddlepoint_probability",
            "P(K > M) by the saddlepoint, with feedback.",
            absent=NO_EQUILIBRIUM,
            in_contract=False,
        ),
        Record(
            "safety_buffer.exact_pmf_probability",
            "P(K > M) by the exact law at constant iteration time.",
            absent="Requests are too long for it, or there is no equilibrium.",
            in_contract=False,
        ),
        Record(
            "safety_buffer.reported_tail",
            "Which of the two is reported.",
            absent=NO_EQUILIBRIUM,
            kind=Kind.TEXT,
            allowed=("saddlepoint", "exact_pmf"),
            in_contract=False,
        ),
    ),
)
