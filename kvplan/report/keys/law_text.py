"""The iteration-time law as explanations write it, in symbols and in a profile's numbers: spelled out only here.

What adds up over requests is written term by term. The rest of the law is d0 where the law is linear; where it is not,
it is F, whose numbers are those of `kvplan.model.Timing`.
"""

from collections.abc import Callable

from kvplan.report.keys.evidence import ByLaw, Evidence

Amount = Callable[[Evidence], str]  # in numbers

CONSTANTS = {
    "d0": "fixed time of an iteration, s",
    "d1": "time per KV token, s",
    "d2": "time per prefill token, s",
    "d3": "time per sequence, s",
}
REST = "d0 + d4·√B + d5·E[max(0, P + B − knee_tokens)], s, for B sequences and P prefill tokens in the batch"


def work(kv_tokens: str, prefill_tokens: str, sequences: str) -> str:
    """What these amounts add up to, in symbols."""
    return f"d1·{kv_tokens} + d2·{prefill_tokens} + d3·{sequences}"


def _work_here(e: Evidence, kv_tokens: Amount, prefill_tokens: Amount, sequences: Amount) -> str:
    return f"{e('d1')}·{kv_tokens(e)} + {e('d2')}·{prefill_tokens(e)} + {e('d3')}·{sequences(e)}"


def _rest_here(e: Evidence, state: str) -> str:
    return e("d0" if e.is_linear else f"F_{state}")


# What all traffic adds to iterations a second

WORK_RATE = ByLaw(
    f"Λ = Σ λ_i·({work('S_i', 's_i', 'n_i')}) = Σλ·({work('S̄', 's̄', 'n̄')})",
    f"Λ = Σλ·({work('S̄', 's̄', 'n̄')} + d5·(s̄ + n̄)), as if every iteration were beyond the knee: small batches "
    "may keep up even where Λ >= 1",
)


def work_rate_here(e: Evidence) -> str:
    """That work in numbers."""
    if not e.is_linear:
        return f"{e('rate')}·{e('steepest')}"
    return f"{e('rate')}·({_work_here(e, lambda e: e('S'), lambda e: e('s'), lambda e: e('counted'))})"


# The time in which as much completes as arrives

EQUILIBRIUM = ByLaw("τ* = d0/(1 − Λ)", "the least τ* = F/(1 − Σλ·c̄) with Σλ·τ* admissions an iteration")


def equilibrium_here(e: Evidence) -> str:
    """That time in numbers."""
    return (
        f"{_rest_here(e, 'equilibrium')} / (1 − {e('load.work_rate' if e.is_linear else 'proportional', 9)})"
    )


_WITH_LOADS = ", + dx·h₂ in the brackets where loads from a host tier are part of iterations"
WARM_EQUILIBRIUM = ByLaw(
    f"τ* = d0/(1 − Σλ·(c̄ − d2·h)){_WITH_LOADS}", f"the least τ* = F/(1 − Σλ·(c̄ − d2·h)){_WITH_LOADS}"
)


def warm_equilibrium_here(e: Evidence) -> str:
    """That time where a prefix cache finds h tokens of a prompt."""
    loads = f" + {e('loads', 9)}" if e.figures["loads"].value else ""
    return f"{_rest_here(e, 'equilibrium')} / (1 − {e('rate', 9)}·({e('c', 9)} − {e('d2')}·{e('saved', 9)}{loads}))"


# The factor at which a limit is met

LOAD_FACTOR = ByLaw(
    "α = smallest of M/(A·d0 + M·Λ), B_max/(d0·Σλ·n̄ + B_max·Λ), T_b/(d0·Σλ·t̄ + T_b·Λ)",
    "α = smallest of x/(Σλ·(F + x·c̄)) for x = M/S̄, B_max/n̄, T_b/t̄ admissions an iteration, or for fewer where those "
    "are served faster",
)


def load_factor_here(e: Evidence) -> str:
    """That factor in numbers, for the limit that binds."""
    if not e.is_linear:
        return f"{e('x')} / ({e('rate')}·({e('F_limit')} + {e('x')}·{e('c')}))"
    match e.document["verdict"]["binding"]:
        case "max_num_seqs":
            return f"{e('B_max')} / ({e('d0')}·{e('rate')}·{e('n')} + {e('B_max')}·{e('load.work_rate')})"
        case "max_num_batched_tokens":
            return f"{e('T_b')} / ({e('d0')}·{e('rate')}·{e('t')} + {e('T_b')}·{e('load.work_rate')})"
        case _:
            return f"{e('M')} / ({e('A')}·{e('d0')} + {e('M')}·{e('load.work_rate')})"


# The rate that a cap on concurrency leaves

CAPPED = ByLaw(
    "min(α·Σλ, B/(d0·n̄ + B·c̄)), B = engine_max_num_seqs",
    "smaller of α·Σλ and x/(F + x·c̄) for x = engine_max_num_seqs/n̄ admissions an iteration, or for fewer where those "
    "are served faster",
)


def capped_here(e: Evidence) -> str:
    """That rate in numbers."""
    if not e.is_linear:
        return ""
    most = e("rate_cap.engine_max_num_seqs")
    return f"min({e('load.sustainable_rps')}, {most} / ({e('d0')}·{e('n')} + {most}·{e('c')}))"


# The time with memory full

SATURATION = ByLaw(f"τ(M) = d0 + n*·({work('S̄', 's̄', 'n̄')}) = d0 + n*·c̄", "τ(M) = F + n*·c̄")


def saturation_here(e: Evidence) -> str:
    """That time in numbers."""
    return f"{_rest_here(e, 'saturation')} + {e('saturation.admissions_per_iteration')}·{e('c')}"


WARM_SATURATION = ByLaw("τ(M) = d0 + n*·(c̄ − d2·h)", "τ(M) = F + n*·(c̄ − d2·h)")


def warm_saturation_here(e: Evidence, admissions: str = "saturation.admissions_per_iteration") -> str:
    """That time where a prefix cache finds h tokens of a prompt."""
    return f"{_rest_here(e, 'saturation')} + {e(admissions)}·({e('c')} − {e('d2')}·{e('saved_full')})"


# The time with every threshold of WAIT filled

WAIT = ByLaw(
    f"ΔT = d0 + Σ n_i·({work('S_i', 's_i', 'n̄_i')}) = d0 + Σ n_i·c_i",
    "ΔT = F + Σ n_i·c_i",
)


def wait_here(e: Evidence) -> str:
    """That time in numbers."""
    return f"{_rest_here(e, 'wait')} + {e.total('wait.classes', _wait_term)}"


def _wait_term(e: Evidence) -> str:
    return f"{e.here('threshold')}·{e('c')}"


# The rate of the worst cycle, of the mix or a class

_CYCLE = f"x/τ_w, τ_w = {{}} + {work('K', 'P', 'B')} in the mean of the cycle; none: {{}}"
CYCLE = ByLaw(_CYCLE.format("d0", "n*/τ(M)"), _CYCLE.format("F", "n*/τ(M)"))
CLASS_CYCLE = ByLaw(_CYCLE.format("d0", "x/(d0 + x·c)"), _CYCLE.format("F", "x/(F + x·c)"))


def cycle_here(e: Evidence) -> str:
    """The time of an iteration of the cycle in numbers."""
    work_here = _work_here(e, lambda e: e("K_w"), lambda e: e("P_w"), lambda e: e("B_w"))
    return f"{_rest_here(e, 'cycle')} + {work_here}"


def class_alone_here(e: Evidence, admissions: str) -> str:
    """The time in numbers of an iteration of a class that fills memory alone, without preemptions."""
    return f"{_rest_here(e, 'cycle')} + {admissions}·{e('c')}"
