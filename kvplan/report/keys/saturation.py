"""Keys of the `saturation` block."""

from kvplan.report.keys import law_text
from kvplan.report.keys.equilibrium import FLUID
from kvplan.report.keys.record import Block, Record, Warm

SATURATION = Block(
    "saturation",
    "The preemption-free state that exactly fills memory.",
    (
        Record(
            "saturation.admissions_per_iteration",
            "Admissions per iteration that keep memory exactly full without preemptions.",
            formula="n* = M/Σ p_i·S_i",
            here=lambda e: f"{e('M')} / {e('S_b')}",
            source="SIC 2; several classes WAIT-s eq. 3",
            symbol="n*",
            unit="requests",
            warm=Warm(
                "n* = (M + D)/S̄, D what running requests have in common beyond once",
                lambda e: f"({e('M')} + {e('D_full', 9)}) / {e('S_b', 9)}",
            ),
        ),
        Record(
            "saturation.iteration_time_s",
            "Time of an iteration with memory full.",
            formula=law_text.SATURATION,
            here=law_text.saturation_here,
            source="WAIT-s eq. 1; d2 to d5 new",
            symbol="τ(M)",
            unit="s",
            warm=Warm(law_text.WARM_SATURATION, law_text.warm_saturation_here),
        ),
        Record(
            "saturation.throughput_rps",
            "Requests per second with memory full: the sustainable rate where memory is the limit.",
            formula="n*/τ(M)",
            here=lambda e: f"{e('saturation.admissions_per_iteration')} / {e('saturation.iteration_time_s')}",
            source=FLUID,
            unit="requests/s",
        ),
    ),
)
