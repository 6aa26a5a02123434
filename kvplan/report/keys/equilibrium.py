"""Keys of the `equilibrium` block."""

from kvplan.report.keys import law_text
from kvplan.report.keys.record import Block, Record, Warm, class_name

FLUID = "WAIT-s eq. 3-6"
NO_WARM_STATE = "No state of a warm prefix cache serves the offered rate."
NO_EQUILIBRIUM = "Λ >= 1: the work alone takes longer than the time between arrivals, no equilibrium exists."

EQUILIBRIUM = Block(
    "equilibrium",
    "The preemption-free steady state at the offered load.",
    (
        Record(
            "equilibrium.kv_tokens",
            "KV tokens held in memory; more than memory holds where the load does not fit.",
            formula="M* = A·τ*",
            here=lambda e: f"{e('A')}·{e('equilibrium.iteration_time_s')}",
            source=FLUID,
            symbol="M*",
            unit="tokens",
            absent=NO_EQUILIBRIUM,
            warm=Warm(
                "K = Σλ·S̄·τ* − D, D what running requests have in common beyond once",
                lambda e: (
                    f"{e('rate', 9)}·{e('S_b', 9)}·{e('equilibrium.iteration_time_s', 9)} − {e('D', 9)}"
                ),
                NO_WARM_STATE,
            ),
        ),
        Record(
            "equilibrium.kv_utilization",
            "Share of memory in use.",
            formula="M*/M",
            here=lambda e: f"{e('equilibrium.kv_tokens')} / {e('M')}",
            source=FLUID,
            absent=NO_EQUILIBRIUM,
        ),
        Record(
            "equilibrium.iteration_time_s",
            "Time of an iteration.",
            formula=law_text.EQUILIBRIUM,
            here=law_text.equilibrium_here,
            source=f"{FLUID}, WAIT Prop. 2",
            symbol="τ*",
            unit="s",
            absent=NO_EQUILIBRIUM,
            warm=Warm(law_text.WARM_EQUILIBRIUM, law_text.warm_equilibrium_here, NO_WARM_STATE),
        ),
        Record(
            "equilibrium.requests_in_flight",
            "Requests in the batch.",
            formula="Σλ·n̄·τ*",
            here=lambda e: f"{e('rate')}·{e('n')}·{e('equilibrium.iteration_time_s')}",
            source=FLUID,
            unit="requests",
            absent=NO_EQUILIBRIUM,
        ),
        Record(
            "equilibrium.decode_tokens_per_s",
            "Tokens generated per second.",
            formula="Σλ·d̄",
            here=lambda e: f"{e('rate')}·{e('d')}",
            source="WAIT, definition of throughput",
            unit="tokens/s",
            absent=NO_EQUILIBRIUM,
        ),
        Record(
            "equilibrium.prompt_iterations_per_s",
            "Iterations of requests per second; counts a prompt-only iteration where there is one.",
            formula="Σλ·n̄",
            here=lambda e: f"{e('rate')}·{e('n')}",
            source="WAIT-s eq. 6",
            unit="iterations/s",
            absent=NO_EQUILIBRIUM,
        ),
        class_name("equilibrium"),
        Record(
            "equilibrium.classes[].per_stage",
            "Requests of the class at each of its stages: its arrivals per iteration.",
            formula="λ_i·τ*",
            here=lambda e: f"{e('rate')}·{e('equilibrium.iteration_time_s')}",
            source=FLUID,
            unit="requests",
            absent=NO_EQUILIBRIUM,
        ),
        Record(
            "equilibrium.classes[].in_flight",
            "Requests of the class in the batch.",
            formula="λ_i·n̄_i·τ*",
            here=lambda e: f"{e('rate')}·{e('n')}·{e('equilibrium.iteration_time_s')}",
            source=FLUID,
            unit="requests",
            absent=NO_EQUILIBRIUM,
        ),
    ),
)
