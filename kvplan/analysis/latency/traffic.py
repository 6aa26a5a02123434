"""What requests cost iterations, in seconds: all that the latencies of a model depend on (theory §9)."""

from typing import NamedTuple

import numpy as np

from kvplan.analysis.equilibrium import iteration_time, per_request, prompts_of, tangent
from kvplan.model import FloatArray, IntArray, Mix, ServingModel, TabledWeights, sum_by
from kvplan.model.kv_layout import KvLayout


class Traffic(NamedTuple):
    """Requests by class, prompt and number of iterations, one row each, and the seconds that they add to iterations.

    A request takes `prompt_s` of the iteration that computes its prompt and emits its first token, and
    `stage_s + k·token_s` of the k-th after it, k = 1 … n - 1. Without drafts n is the decode length.

    Attributes
    ----------
    fixed_s
        d0, an iteration's without requests.
    iteration_s
        τ*, the mean over iterations.
    class_index, stages : ndarray of int64, shape (n_rows,)
        The latter n.
    prompt_tokens : ndarray, shape (n_rows,)
    rate_rps, prompt_s, stage_s : ndarray, shape (n_rows,)
    """

    fixed_s: float
    token_s: float
    iteration_s: float
    class_index: IntArray
    stages: IntArray
    prompt_tokens: FloatArray
    rate_rps: FloatArray
    prompt_s: FloatArray
    stage_s: FloatArray

    @property
    def total_rps(self) -> float:
        """Σλ."""
        return float(self.rate_rps.sum())

    @property
    def prompt_work(self) -> float:
        """Λ₀, the part of time that prompts take."""
        return float(self.rate_rps @ self.prompt_s)

    @property
    def work(self) -> float:
        """Λ."""
        return _work(self.rate_rps, self.prompt_s, self.stage_s, self.token_s, self.stages)

    @property
    def in_flight(self) -> float:
        """Requests running in an iteration, on average."""
        return self.iteration_s * float(self.rate_rps @ self.stages)

    @property
    def longest(self) -> int:
        """L, iterations."""
        return int(self.stages.max())

    def of_classes(self, amounts: FloatArray) -> FloatArray:
        """Sums over the rows of each class."""
        return sum_by(self.class_index, amounts)


def traffic_of(model: ServingModel) -> Traffic | None:
    """The traffic of a model with the prompts `fused`; None where work comes in faster than it is done.

    Context counts as engines do: the iteration that emits a token computes no KV of it. A law that is not linear is
    replaced by its tangent at the equilibrium, but with a sequence at least: whoever waits for an iteration is in one.

    Examples
    --------
    >>> from kvplan.model import Replica, RequestClass, Timing
    >>> chat = RequestClass("chat", 200, (400,), (1.0,), 20.0)
    >>> traffic = traffic_of(ServingModel((chat,), Timing(8e-3, 5e-8, 25e-6, 20e-6), Replica(10**9)))
    >>> traffic.prompt_s.round(6).tolist(), traffic.stage_s.tolist(), round(traffic.iteration_s, 6)
    ([0.00503], [3e-05], 0.013788)
    """
    if iteration_time(model) is None:
        return None
    mix, timing, law = model.mix, model.timing, tangent(model)
    if not timing.is_linear and 0 < per_request(model).iterations * model.total_rate_rps * law.fixed_s < 1:
        law = timing.tangent(0.0, prompts_of(mix, model.replica, 1 / per_request(model).iterations), 1.0)
    tokens = np.maximum(mix.input_tokens, 1).astype(np.float64)
    pace = 1.0 if model.drafts is None else model.drafts.mean
    of_prompt, before_stages = _context(mix, model.replica.layout, tokens, pace)
    prompt_s = (law.per_kv_token_s + law.per_prefill_token_s) * tokens
    prompt_s = prompt_s + law.per_sequence_s * (mix.sequences - mix.stages + 1)
    prompt_s = prompt_s + law.per_kv_token_s * (of_prompt - tokens)
    stage_s = law.per_kv_token_s * before_stages + law.per_sequence_s
    token_s = law.per_kv_token_s * pace
    work = _work(mix.rate_rps, prompt_s, stage_s, token_s, mix.stages)
    if not (work < 1 and law.fixed_s > 0):
        return None
    return Traffic(
        law.fixed_s,
        token_s,
        law.fixed_s / (1 - work),
        mix.class_index,
        mix.stages,
        tokens,
        mix.rate_rps,
        prompt_s,
        stage_s,
    )


def _context(
    mix: Mix, layout: KvLayout | None, tokens: FloatArray, pace: float
) -> tuple[FloatArray, FloatArray]:
    """Context read with the prompt, and what it would be before the k-th stage after it if each read `pace` more.

    Where a stage reads less than that, or drafts let it differ, the stages of a request read as much together.
    """
    of_prompt = tokens if layout is None else layout.read_tokens(tokens)
    if not isinstance(mix.read, TabledWeights):
        return of_prompt, tokens
    later = np.maximum(mix.stages - 1, 1)
    # a stage of `mix` reads a token that engines have not computed: of steps of one that is the stage before
    before = mix.read.of(mix.read.kind, later).footprint
    read = before if pace == 1 else mix.read.footprint - mix.read.at_start - later
    return of_prompt, read / later - pace * (later + 1) / 2


def _work(
    rate_rps: FloatArray, prompt_s: FloatArray, stage_s: FloatArray, token_s: float, stages: IntArray
) -> float:
    later = stages - 1.0
    return float(rate_rps @ (prompt_s + later * (stage_s + token_s * (later + 1) / 2)))
