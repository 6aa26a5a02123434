"""The iteration-time law as explanations write it, in symbols and in a profile's numbers: spelled out only here."""

from collections.abc import Callable

from kvplan.report.keys.evidence import Evidence

Amount = Callable[[Evidence], str]  # in numbers

CONSTANTS = {
    "d0": "fixed time of an iteration, s",
    "d1": "time per KV token, s",
    "d2": "time per prefill token, s",
    "d3": "time per sequence, s",
}


def time(kv_tokens: str, prefill_tokens: str, sequences: str) -> str:
    """The time of an iteration with such a batch, in symbols."""
    return f"d0 + {work(kv_tokens, prefill_tokens, sequences)}"


def work(kv_tokens: str, prefill_tokens: str, sequences: str) -> str:
    """What the batch adds to the fixed time, in symbols."""
    return f"d1·{kv_tokens} + d2·{prefill_tokens} + d3·{sequences}"


def time_here(e: Evidence, kv_tokens: Amount, prefill_tokens: Amount, sequences: Amount) -> str:
    """The time of an iteration with such a batch, in numbers."""
    return f"{e('d0')} + {work_here(e, kv_tokens, prefill_tokens, sequences)}"


def work_here(e: Evidence, kv_tokens: Amount, prefill_tokens: Amount, sequences: Amount) -> str:
    """What the batch adds to the fixed time, in numbers."""
    return f"{e('d1')}·{kv_tokens(e)} + {e('d2')}·{prefill_tokens(e)} + {e('d3')}·{sequences(e)}"


# What all traffic adds to iterations per second.
WORK_RATE = f"Λ = Σ λ_i·({work('S_i', 's_i', 'n_i')}) = Σλ·({work('S̄', 's̄', 'n̄')})"


def work_rate_here(e: Evidence) -> str:
    """That work in numbers."""
    return f"{e('rate')}·({work_here(e, lambda e: e('S'), lambda e: e('s'), lambda e: e('n'))})"


# The time at which as much is completed as arrives.
EQUILIBRIUM = "τ* = d0/(1 − Λ)"


def equilibrium_here(e: Evidence) -> str:
    """That time in numbers."""
    return f"{e('d0')} / (1 − {e('load.work_rate', 9)})"


# The factor at which a limit is met.
LOAD_FACTOR = "α = smallest of M/(A·d0 + M·Λ), B_max/(d0·Σλ·n̄ + B_max·Λ), T_b/(d0·Σλ·t̄ + T_b·Λ)"


def load_factor_here(e: Evidence) -> str:
    """That factor in numbers, for the limit that binds."""
    match e.document["verdict"]["binding"]:
        case "max_num_seqs":
            return f"{e('B_max')} / ({e('d0')}·{e('rate')}·{e('n')} + {e('B_max')}·{e('load.work_rate')})"
        case "max_num_batched_tokens":
            return f"{e('T_b')} / ({e('d0')}·{e('rate')}·{e('t')} + {e('T_b')}·{e('load.work_rate')})"
        case _:
            return f"{e('M')} / ({e('A')}·{e('d0')} + {e('M')}·{e('load.work_rate')})"


# The time with memory full.
SATURATION = f"τ(M) = d0 + n*·({work('S̄', 's̄', 'n̄')}) = d0 + n*·c̄"


def saturation_here(e: Evidence) -> str:
    """That time in numbers."""
    return f"{e('d0')} + {e('saturation.admissions_per_iteration')}·{e('c')}"


# The time with every threshold of WAIT filled.
WAIT = f"ΔT = d0 + Σ n_i·({work('S_i', 's_i', 'n̄_i')}) = d0 + Σ n_i·c_i"


def wait_here(e: Evidence) -> str:
    """That time in numbers."""
    return f"{e('d0')} + {e.total('wait.classes', _wait_term)}"


def _wait_term(e: Evidence) -> str:
    return f"{e.here('threshold')}·{e('c')}"


def cycle(prefilled: str) -> str:
    """The time of an iteration of the worst cycle, given the prompt tokens it computes."""
    return f"τ_w = {time('(M − B·(b−1)/2)', prefilled, 'B')}"


def cycle_here(e: Evidence) -> str:
    """That time in numbers, of the mix or of a class."""
    return time_here(
        e,
        lambda e: f"({e('M')} − {e('half')}·{e('B_w')})",
        lambda e: f"{e('prefilled')}·{e('input')}",
        lambda e: e("B_w"),
    )


# The time of a class that fills memory alone, admitting x requests an iteration.
CLASS_SATURATION = "d0 + x·c"


def class_saturation_here(e: Evidence, admissions: str) -> str:
    """That time in numbers."""
    return f"{e('d0')} + {admissions}·{e('c')}"
