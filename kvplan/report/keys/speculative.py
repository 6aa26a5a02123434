"""Keys of the `speculative` block."""

from kvplan.report.keys.record import Block, Kind, Record

_NEW = "new, theory of speculative decoding"
_NO_EQUILIBRIUM = (
    "With or without drafts no equilibrium exists at the offered rate, or requests emit one token."
)

SPECULATIVE = Block(
    "speculative",
    "What drafting buys.",
    (
        Record(
            "speculative.tokens_per_iteration",
            "Tokens that an iteration emits for a request on average.",
            formula="1 + Σ r_i",
            source=_NEW,
            least=1.0,
        ),
        Record(
            "speculative.iterations_mean",
            "Iterations that a request of the mix stays, on average.",
            formula="renewal by convolution",
            source=_NEW,
            least=1.0,
        ),
        Record(
            "speculative.speed_up",
            "Sustainable rate with drafts over that without.",
            formula="α/α without drafts",
            source=_NEW,
        ),
        Record(
            "speculative.itl_speed_up",
            "Mean time between two tokens without drafts over that with them, at the offered rate.",
            formula="ratio of τ·(n̄ − 1)/(d̄ − 1)",
            source=_NEW,
            absent=_NO_EQUILIBRIUM,
        ),
        Record(
            "speculative.break_even_sequences",
            "Running requests at which an iteration with drafts emits as many tokens in its time as without.",
            formula="((Ḡ − 1)·d0 − e_c − k·e0)/(v·k − (Ḡ − 1)(d1·t + d3))",
            source=_NEW,
            absent="Drafting pays at every batch, or at none.",
        ),
        Record(
            "speculative.pays",
            "On which side of that drafting pays.",
            source=_NEW,
            kind=Kind.TEXT,
            allowed=("below", "above", "always", "never"),
        ),
        Record(
            "speculative.best_tokens",
            "Drafts with the least time between two tokens at the offered rate; where no number serves it, with the "
            "largest sustainable rate.",
            source=_NEW,
            whole=True,
            absent="Outputs are too long to try every number.",
        ),
    ),
    absent="The profile has no [speculative].",
    nullable=True,
)
