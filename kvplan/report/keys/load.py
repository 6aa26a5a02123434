"""Keys of the `load` block."""

from kvplan.report.keys import law_text
from kvplan.report.keys.record import Block, Record

_LIMITS = "WAIT-s eq. 3-6, WAIT Prop. 1, 2; engine limits and pages new"
_TOO_SMALL = "The offered load is so small that the factor exceeds what a float holds."


def _sensitivity(name: str, what: str, changed: str) -> Record:
    return Record(
        f"load.sensitivity.{name}",
        f"Relative change of the sustainable rate for +10 % {what}.",
        formula=f"α({changed})/α − 1, every limit considered",
        here=lambda e: f"{e(f'after_{name}', 9)} / {e('load.sustainable_rps', 9)} − 1",
        source="new, from WAIT-s eq. 3-6",
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
            absent=_TOO_SMALL,
        ),
        Record(
            "load.headroom",
            "How much the load can grow, as a fraction of itself; negative where it is too large already.",
            formula="α − 1",
            here=lambda e: f"{e('load.load_factor_max', 9)} − 1",
            source=_LIMITS,
            absent=_TOO_SMALL,
        ),
        Record(
            "load.sustainable_rps",
            "Largest total rate that some policy can serve.",
            formula="α·Σλ",
            here=lambda e: f"{e('load.load_factor_max')}·{e('rate')}",
            source=_LIMITS,
            symbol="α·Σλ",
            unit="requests/s",
        ),
        Record(
            "load.sustainable_decode_tokens_per_s",
            "Decode tokens per second at the sustainable rate.",
            formula="α·Σλ·d̄",
            here=lambda e: f"{e('load.sustainable_rps')}·{e('d')}",
            source="WAIT-s eq. 6, counted in decode tokens",
            unit="tokens/s",
        ),
        _sensitivity("memory_tokens", "of memory", "1.1·M"),
        _sensitivity("d0", "of d0", "1.1·d0"),
        _sensitivity("d1", "of d1", "1.1·d1"),
    ),
)
