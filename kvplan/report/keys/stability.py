"""Keys of the `stability` block."""

from kvplan.report.keys.head import radius
from kvplan.report.keys.record import Block, Kind, Record

STABILITY = Block(
    "stability",
    "Whether greedy admission finds back to the equilibrium by itself.",
    (
        Record(
            "stability.gcd",
            "Greatest common divisor of the iteration counts; above 1, synchronised modes are never damped.",
            formula="g = gcd of the n_i",
            here=lambda e: f"gcd({e('lengths')})",
            source="SIC Theorem 3",
            symbol="g",
            whole=True,
        ),
        Record(
            "stability.spectral_radius",
            "Factor by which disturbances of the full equilibrium grow per iteration; below 1 they die out.",
            formula="ρ = largest |z| with P(z) = Σ_k W_k·z^(L−1−k) = 0, W_k = Σ_(n_i > k) p_i·w_i(k)",
            here=lambda e: f"largest |z| with Σ_k W_k·z^({e('L')} − 1 − k) = 0",
            source="SIC eq. 9, 10; its numerics new",
            symbol="ρ",
        ),
        Record(
            "stability.unstable_modes",
            "Roots of P outside the unit circle: disturbances that grow.",
            formula="number of z with P(z) = 0 and |z| > 1, of L − 1 in all; g − 1 for large inputs",
            here=lambda e: f"of {e('L')} − 1 roots",
            source="SIC eq. 10, Theorem 3; the certified count is new",
            absent="A root is too close to the unit circle for the count to be proved, or outputs are too long.",
            whole=True,
        ),
        Record(
            "stability.stable",
            "Whether every disturbance of the full equilibrium dies out under greedy admission.",
            formula="ρ < 1, and proved",
            here=radius,
            source="SIC eq. 10",
            kind=Kind.TRUTH,
        ),
        Record(
            "stability.certified",
            "Whether the verdict on stability is proved, rounding errors included.",
            formula="winding number of P on |z| = 1 with an error bound; in exact integers where a root is near the "
            "circle; none is needed where W_k never rises (Eneström-Kakeya)",
            source="new",
            kind=Kind.TRUTH,
        ),
        Record(
            "stability.recovery_iterations",
            "Iterations in which a disturbance decays by a factor of e, about.",
            formula="1/(1 − ρ)",
            here=lambda e: f"1 / (1 − {e('stability.spectral_radius', 12)})",
            source="new",
            unit="iterations",
            absent="The equilibrium is not proved stable: a disturbance need not decay.",
        ),
        Record(
            "stability.min_stable_input_tokens.exact",
            "Smallest mean input from which this mix of decode lengths is stable.",
            formula="the last m at which a root of m·A(z) + B(z) crosses the unit circle, the inputs scaled in common",
            source="new, from SIC eq. 9, Theorem 3",
            unit="tokens",
            absent="g > 1: no input length makes the mix stable. Or it could not be proved.",
            whole=True,
        ),
        Record(
            "stability.min_stable_input_tokens.asymptotic",
            "The same by the paper's asymptotic formula, for two decode lengths and one input.",
            formula="(p·d1 + (1 − p)·d2)³/(2π²·p·(1 − p)), plus 1 where prefill is inline",
            here=lambda e: f"{e('shift')} + {e('n')}³/(2·π²·{e('p')}·(1 − {e('p')}))",
            source="SIC eq. 13",
            unit="tokens",
            absent="g > 1, or not two decode lengths with one input, or one so rare that the number is beyond a float.",
        ),
        Record(
            "stability.advice",
            "What would make it stable: the smallest change of one decode limit that is proved to, or a cap.",
            source="new",
            kind=Kind.TEXT,
        ),
        Record(
            "stability.radius_certified",
            "Whether the value of the spectral radius is proved as well.",
            kind=Kind.TRUTH,
            in_contract=False,
        ),
        Record(
            "stability.stabilising_change",
            "The smallest change of one decode limit that is proved to make it stable, in words.",
            absent="It is stable, or no such change is known.",
            kind=Kind.TEXT,
            in_contract=False,
        ),
    ),
)
