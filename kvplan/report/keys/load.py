"""Keys of the `load` block."""

from kvplan.report.keys import law_text
from kvplan.report.keys.evidence import Evidence
from kvplan.report.keys.record import Block, Kind, Record, Warm

_LIMITS = "WAIT-s eq. 3-6, WAIT Prop. 1, 2; engine limits and pages new"


# What `load.sensitivity` is about, by how formulas call it; a limit need not be there
_SENSITIVE = {
    "memory_tokens": "M",
    **{name: name for name in ("d0", "d1", "d2", "d3", "d4", "d5", "knee_tokens")},
    "max_num_seqs": "B_max",
    "max_num_batched_tokens": "T_b",
}


GUARANTEED = (
    "x/τ(x) where x admissions an iteration fill memory, or meet a limit, and only what is in use is found"
)


def guaranteed_here(e: Evidence) -> str:
    """The guaranteed rate in numbers."""
    return f"{e('x_limit', 9)} / {e('tau_limit', 9)}"


def _warm_factor_here(e: Evidence) -> str:
    if e.figures["users"].value is not None:
        return f"{e('users_guaranteed', 9)} / {e('users')}"
    return f"{e('load.sustainable_rps', 9)} / {e('rate', 9)}"


def _sensitivity(name: str, symbol: str) -> Record:
    return Record(
        f"load.sensitivity.{name}",
        f"Relative change of the sustainable rate for +10 % {name}.",
        formula=f"α(1.1·{symbol})/α − 1, every limit considered",
        here=lambda e: f"{e(f'after_{name}', 9)} / {e('load.sustainable_rps', 9)} − 1",
        source="new, from WAIT-s eq. 3-6",
        least=-1.0,
        absent="The profile has no such limit." if name.startswith("max_num_") else "",
    )


LOAD = Block(
    "load",
    "What is offered against what can be sustained.",
    (
        Record(
            "load.offered_rps",
            "Arrivals of all classes together.",
            formula="Σλ",
            here=lambda e: e("rate"),
            source="the profile",
            symbol="Σλ",
            unit="requests/s",
            basis="assumption",
        ),
        Record(
            "load.work_rate",
            "Seconds of work demanded per second; from 1 on, no policy is stable at any memory.",
            formula=law_text.WORK_RATE,
            here=law_text.work_rate_here,
            source="WAIT-s eq. 3, WAIT Prop. 1; d2 to d5 new",
            symbol="Λ",
        ),
        Record(
            "load.load_factor_max",
            "Factor by which every rate can grow before the first limit is met.",
            formula=law_text.LOAD_FACTOR,
            here=law_text.load_factor_here,
            source=_LIMITS,
            symbol="α",
            warm=Warm(
                "α = guaranteed rate/Σλ; of a closed population, users guaranteed over users",
                _warm_factor_here,
            ),
        ),
        Record(
            "load.headroom",
            "How much the load can grow, as a fraction of itself; negative where it is too large already.",
            formula="α − 1",
            here=lambda e: f"{e('load.load_factor_max', 9)} − 1",
            least=-1.0,
            source=_LIMITS,
        ),
        Record(
            "load.sustainable_rps",
            "Largest total rate that some policy can serve.",
            formula="α·Σλ",
            here=lambda e: f"{e('load.load_factor_max')}·{e('rate')}",
            source=_LIMITS,
            symbol="α·Σλ",
            unit="requests/s",
            warm=Warm(GUARANTEED, guaranteed_here),
        ),
        Record(
            "load.sustainable_rps_range",
            "The same rate where iterations take as long, and as short, as the error band of the timing allows.",
            formula="α·Σλ/band[1] to α·Σλ/band[0]",
            here=lambda e: (
                f"{e('load.sustainable_rps')}/{e('band_most')} to {e('load.sustainable_rps')}/{e('band_least')}"
            ),
            source="new",
            unit="requests/s",
            absent="The profile gives no error band of its timing.",
            kind=Kind.PAIR,
        ),
        Record(
            "load.sustainable_decode_tokens_per_s",
            "Decode tokens per second at the sustainable rate.",
            formula="α·Σλ·d̄",
            here=lambda e: f"{e('load.sustainable_rps')}·{e('d')}",
            source="WAIT-s eq. 6, counted in decode tokens",
            unit="tokens/s",
        ),
        *(_sensitivity(name, symbol) for name, symbol in _SENSITIVE.items()),
    ),
)
LEVERS = Block(
    "levers",
    "What raises the sustainable rate most.",
    (
        Record(
            "levers",
            "The time, a tenth shorter, and the limit, a tenth larger, that raise the sustainable rate most.",
            kind=Kind.TABLE,
            in_contract=False,
        ),
    ),
    has_source=False,
)
