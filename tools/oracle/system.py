"""A profile as the oracle sees it: requests by share, and what binds them."""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from kvplan.engine import Admission, Engine, EngineName
from kvplan.model import Prefill, ServingModel
from oracle.kernel import UNLIMITED, Law, Rules


class Unsupported(Exception):  # noqa: N818
    """The profile has something that the oracle does not know."""


@dataclass(frozen=True, eq=False)
class System:
    """Requests of a mix on a replica.

    Attributes
    ----------
    tokens, iterations : ndarray of int64, shape (n_rows,)
        What a request weighs in its first iteration, and the iterations after its prompt is computed in chunks.
    share : ndarray, shape (n_rows,)
        Of the requests; sums to 1.
    cv
        Of the gaps between arrivals, which follow a gamma law.
    """

    tokens: Any
    iterations: Any
    share: Any
    rules: Rules
    law: Law
    rate_rps: float
    cv: float
    overhead_s: float

    @classmethod
    def of(
        cls,
        model: ServingModel,
        *,
        admission: Admission | None = None,
        watermark: float | None = None,
        max_num_seqs: int | None = None,
    ) -> "System":
        """The system of a model: `vllm` where prompts are fused, and `greedy` where they are not.

        Admission, watermark and seats are the model's where they are not given.
        """
        _refuse(model)
        rules = rules_of(model, admission=admission, watermark=watermark, max_num_seqs=max_num_seqs)
        mix, fused = model.mix, not rules.restart
        inline, ready_made = rules.silent, rules.ready_made
        tokens = mix.input_tokens.astype(np.int64)
        tokens = np.maximum(tokens, 1) if fused else tokens + ready_made
        iterations = np.asarray(mix.decode_tokens).astype(np.int64) + inline
        return cls(
            tokens,
            iterations,
            mix.share / mix.share.sum(),
            rules,
            law_of(model),
            model.total_rate_rps,
            model.arrivals.cv,
            model.request_overhead_s,
        )

    def with_rules(self, **rules: int) -> "System":
        """With other rules."""
        return replace(self, rules=self.rules._replace(**rules))

    @property
    def prompts(self) -> Any:
        """Prompt tokens of each row."""
        return self.tokens - self.rules.ready_made

    @property
    def stay(self) -> Any:
        """Iterations of each row, those that compute chunks of a long prompt included."""
        return self.iterations + -(-self.tokens // self.rules.budget) - 1 if self._chunks else self.iterations

    @property
    def _chunks(self) -> bool:
        return self.rules.budget < UNLIMITED

    def draw(self, n: int, rng: np.random.Generator) -> tuple[Any, Any]:
        """Tokens and iterations of n requests, each drawn by itself."""
        row = np.searchsorted(np.cumsum(self.share)[:-1], rng.random(n), side="right")
        return self.tokens[row], self.iterations[row]


def rules_of(
    model: ServingModel,
    *,
    admission: Admission | None = None,
    watermark: float | None = None,
    max_num_seqs: int | None = None,
) -> Rules:
    """What binds on a replica; admission, watermark and seats are the model's where they are not given."""
    replica, engine = model.replica, model.engine or Engine()
    fused = replica.prefill is Prefill.FUSED
    blocks = replica.memory_tokens // replica.block_tokens - (1 if fused else 0)
    seats = max_num_seqs or replica.max_num_seqs or UNLIMITED
    budget = replica.max_num_batched_tokens if fused and replica.max_num_batched_tokens else UNLIMITED
    return Rules(
        blocks,
        replica.block_tokens,
        int((engine.watermark if watermark is None else watermark) * blocks),
        min(seats, UNLIMITED),
        budget,
        int(not fused),
        int(replica.prefill is Prefill.INLINE),
        int(replica.prefill is Prefill.DISAGGREGATED),
        int((admission or engine.admission) is Admission.FIRST_CHUNK),
    )


def law_of(model: ServingModel) -> Law:
    """The time of an iteration."""
    return Law(*(float(c) for c in model.timing.constants))


def _refuse(model: ServingModel) -> None:
    known = {
        "another engine": model.engine is None or model.engine.name is EngineName.VLLM,
        "layers of several kinds": model.replica.layout is None,
        "drafts": model.drafts is None,
        "a fleet": model.fleet is None,
        "a schedule": model.schedule is None,
        "a trace": model.arrivals.trace is None,
        "sessions": all(c.sessions is None for c in model.classes),
        "prefixes in common": not model.finds_prefixes,
    }
    if missing := [name for name, fine in known.items() if not fine]:
        raise Unsupported(", ".join(missing))
