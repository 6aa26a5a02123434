"""Keys of the `rate_cap` block."""

from kvplan.report.keys import law_text
from kvplan.report.keys.record import Block, Kind, Record, class_name

_NO_BUDGETS = "No whole numbers fit: Σ(⌊λ_i·τ*⌋ + 1)·S_i >= M, or there is no equilibrium."

RATE_CAP = Block(
    "rate_cap",
    "Admission limits against preemptions.",
    (
        Record(
            "rate_cap.per_iteration",
            "Admissions per iteration that keep memory full on average: preemptions grow rare, whatever is offered.",
            formula="n* = M/Σ p_i·S_i",
            here=lambda e: f"{e('M')} / {e('S_b')}",
            source="SIC 5.1",
            unit="requests",
        ),
        Record(
            "rate_cap.per_second",
            "The same cap per second, with memory full.",
            formula="n*/τ(M)",
            here=lambda e: f"{e('rate_cap.per_iteration')} / {e('saturation.iteration_time_s')}",
            source="SIC 5.1",
            unit="requests/s",
        ),
        class_name("rate_cap"),
        Record(
            "rate_cap.classes[].per_iteration",
            "The class's part of the cap.",
            formula="p_i·n*",
            here=lambda e: f"{e('share')}·{e('rate_cap.per_iteration')}",
            source="SIC 5.1",
            unit="requests",
        ),
        Record(
            "rate_cap.classes[].integer_budget",
            "Whole admissions per iteration that never overflow and keep up with arrivals, for the shortest queues.",
            formula="b_i > λ_i·τ* with Σ b_i·S_i < M, minimising Σ E[Q_i]",
            here=lambda e: f"λ_i·τ* = {e('arrivals')} < {e.here('integer_budget')}",
            source="FC Theorem 3.3; the choice among feasible budgets is new",
            symbol="b_i",
            unit="requests",
            absent=_NO_BUDGETS,
            whole=True,
        ),
        Record(
            "rate_cap.engine_max_num_seqs",
            "Concurrency at which even the longest requests cannot overflow memory; nor in vLLM, which reserves a page "
            "and computes no KV of a last token.",
            formula="min(⌊⌊M/b⌋/⌈max(s + d)/b⌉⌋, ⌊(⌊M/b⌋ − 1)/⌈(max(s + d) − 1)/b⌉⌋)",
            here=lambda e: (
                f"min(⌊{e('blocks')} / {e('longest_blocks')}⌋, ⌊({e('blocks')} − 1) / {e('computed_blocks')}⌋)"
            ),
            source="new",
            unit="requests",
            whole=True,
        ),
        Record(
            "rate_cap.engine_sustainable_rps",
            "Largest total rate that can be sustained with that concurrency: what it costs to exclude preemptions.",
            formula=law_text.CAPPED,
            here=law_text.capped_here,
            source="WAIT-s eq. 3-6; the limit new",
            unit="requests/s",
        ),
        Record(
            "rate_cap.classes[].mean_wait_s",
            "Mean wait for admission under the budgets, of Poisson arrivals.",
            unit="s",
            absent=f"{_NO_BUDGETS} Arrivals that are not Poisson have none.",
            in_contract=False,
        ),
        Record(
            "rate_cap.budgets_are_optimal",
            "Whether all budgets were searched; false where there are too many.",
            absent=_NO_BUDGETS,
            kind=Kind.TRUTH,
            in_contract=False,
        ),
    ),
)
