"""Load, equilibrium and saturation of many models at once, the same to the last bit as one by one (theory §2).

What takes time in `kvplan.analysis.equilibrium` is not arithmetic but a few dozen array operations on a few numbers
each. Here each operation is one for all models. Sums keep the order they have there: elementwise operations round
alike whatever the shape, and inner products are taken row by row by the same function.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from kvplan.analysis.equilibrium import ClassOccupancy, Equilibrium, Load, Saturation, Sensitivity
from kvplan.model import FloatArray, IntArray, Prefill, ServingModel


class Blocks(NamedTuple):
    """The blocks of one model's report that are computed here; fields named as there."""

    load: Load
    equilibrium: Equilibrium
    saturation: Saturation


@dataclass(frozen=True)
class _Stack:
    """Models as arrays: shape (n_models,), and of the mix (n_models, n_rows)."""

    memory: FloatArray
    d0: FloatArray
    d1: FloatArray
    d2: FloatArray
    d3: FloatArray
    max_num_seqs: FloatArray  # NaN where there is none
    max_num_batched_tokens: FloatArray
    block: FloatArray
    class_rate: FloatArray  # shape (n_models, n_classes)
    rate: FloatArray
    share: FloatArray
    stages: IntArray
    input: IntArray
    decode: IntArray
    footprint: FloatArray
    class_index: IntArray
    prefill: Prefill


class _Costs(NamedTuple):
    """`kvplan.analysis.equilibrium.PerRequest`, of each model."""

    held: FloatArray
    work_s: FloatArray
    iterations: FloatArray
    computed_tokens: FloatArray
    decode_tokens: FloatArray


def blocks(models: Sequence[ServingModel]) -> list[Blocks]:
    """Load, equilibrium and saturation of each model.

    Parameters
    ----------
    models : sequence of ServingModel
        All with the same number of decode lengths in each class, and one prefill convention.

    Examples
    --------
    >>> from dataclasses import replace
    >>> from kvplan.analysis.equilibrium import load
    >>> from kvplan.model import Replica, RequestClass, Timing
    >>> one = ServingModel((RequestClass("a", 5, (3,), (1.0,), 1.0),), Timing(0.1, 1e-3), Replica(60))
    >>> two = replace(one, timing=Timing(0.2))
    >>> [found.load for found in blocks([one, two])] == [load(one), load(two)]
    True
    """
    if not models:
        return []
    with np.errstate(all="ignore"):  # beyond a float is inf, as in plain arithmetic
        return _blocks(models)


def _blocks(models: Sequence[ServingModel]) -> list[Blocks]:
    stack = _stacked(models)
    offered = np.array([model.total_rate_rps for model in models])
    cost = _costs(stack, stack.d1)
    admissions = stack.memory / cost.held
    tau_full = stack.d0 + admissions * cost.work_s
    saturations = map(Saturation, *_lists(admissions, tau_full, admissions / tau_full))
    names = tuple(c.name for c in models[0].classes)
    return [
        Blocks(*found)
        for found in zip(
            _loads(stack, cost, offered), _equilibria(stack, cost, offered, names), saturations, strict=True
        )
    ]


def _lists(*columns: FloatArray) -> list[list[float]]:
    return [column.tolist() for column in columns]


def _stacked(models: Sequence[ServingModel]) -> _Stack:
    replicas, timings = [m.replica for m in models], [m.timing for m in models]
    first = models[0]
    lengths = [len(c.decode_tokens) for c in first.classes]
    index = np.repeat(np.arange(len(lengths)), lengths)
    class_input = np.array([[c.input_tokens for c in m.classes] for m in models], dtype=np.int64)
    inputs = class_input[:, index]
    class_rate = np.array([[c.rate_rps for c in m.classes] for m in models])
    decode: list[IntArray] = []
    rate: list[FloatArray] = []
    for i in range(len(lengths)):
        mine = [m.classes[i] for m in models]
        lengths_of = _rows([c.decode_tokens for c in mine]).astype(np.int64)
        decode.append(np.broadcast_to(lengths_of, (len(models), lengths_of.shape[1])))
        weights = _rows([c.decode_weights for c in mine])
        total = np.array([row.sum() for row in weights])[:, None]
        rate.append(class_rate[:, i : i + 1] * weights / total)
    decode_tokens, rates_rps = np.concatenate(decode, axis=1), _in_rows(np.concatenate(rate, axis=1))
    inline = first.replica.prefill is Prefill.INLINE
    stages = decode_tokens + 1 if inline else decode_tokens
    n = stages.astype(np.float64)
    first_weight = (inputs if inline else inputs + 1).astype(np.float64)
    return _Stack(
        memory=np.array([r.memory_tokens for r in replicas], dtype=np.float64),
        d0=np.array([t.d0 for t in timings]),
        d1=np.array([t.d1 for t in timings]),
        d2=np.array([t.d2 for t in timings]),
        d3=np.array([t.d3 for t in timings]),
        max_num_seqs=_limits([r.max_num_seqs for r in replicas]),
        max_num_batched_tokens=_limits([r.max_num_batched_tokens for r in replicas]),
        block=np.array([r.block_tokens for r in replicas], dtype=np.float64),
        class_rate=class_rate,
        rate=rates_rps,
        share=rates_rps / np.array([row.sum() for row in rates_rps])[:, None],
        stages=stages,
        input=inputs,
        decode=decode_tokens,
        footprint=n * first_weight + n * (n - 1) / 2,
        class_index=index,
        prefill=first.replica.prefill,
    )


def _rows(values: Sequence[tuple[float, ...]]) -> FloatArray:
    """One row for each model, or a single one where they are all the same."""
    same = all(value == values[0] for value in values)
    return np.array(values[:1] if same else values, dtype=np.float64)


def _limits(values: Sequence[int | None]) -> FloatArray:
    return np.array([math.nan if value is None else value for value in values], dtype=np.float64)


def _mean(share: FloatArray, amount: FloatArray | IntArray) -> FloatArray:
    """Mean over the mix of each model, by the product that one model's mean is taken with."""
    return np.array([p @ x for p, x in zip(_in_rows(share), _in_rows(amount), strict=True)])


def _in_rows(amount: FloatArray | IntArray) -> FloatArray:
    """Each row in one piece, as the arrays of one model are: the order of sums depends on it."""
    return np.ascontiguousarray(amount, dtype=np.float64)


def _costs(stack: _Stack, d1: FloatArray) -> _Costs:
    disaggregated = stack.prefill is Prefill.DISAGGREGATED
    prefill = np.zeros(stack.input.shape) if disaggregated else stack.input.astype(np.float64)
    prompt = 0 if disaggregated else np.maximum(stack.input - 1, 0)
    work = d1[:, None] * stack.footprint + stack.d2[:, None] * prefill + stack.d3[:, None] * stack.stages
    held = stack.footprint + stack.stages * ((stack.block - 1) / 2)[:, None]
    return _Costs(
        held=_mean(stack.share, held),
        work_s=_mean(stack.share, work),
        iterations=_mean(stack.share, stack.stages),
        computed_tokens=_mean(stack.share, prompt + stack.stages),
        decode_tokens=_mean(stack.share, stack.decode),
    )


def _sustainable(stack: _Stack, cost: _Costs, memory: FloatArray, d0: FloatArray) -> FloatArray:
    """The least of the rates that the limits allow, requests/s; fmin passes over a limit that is not there."""
    least = memory / (cost.held * d0 + memory * cost.work_s)
    for limit, need in (
        (stack.max_num_seqs, cost.iterations),
        (stack.max_num_batched_tokens, cost.computed_tokens),
    ):
        least = np.fmin(least, limit / (need * d0 + limit * cost.work_s))
    return least


def _loads(stack: _Stack, cost: _Costs, offered: FloatArray) -> list[Load]:
    base = _sustainable(stack, cost, stack.memory, stack.d0)
    more_memory = _sustainable(stack, cost, stack.memory * 1.1, stack.d0) / base - 1
    more_d0 = _sustainable(stack, cost, stack.memory, stack.d0 * 1.1) / base - 1
    more_d1 = _sustainable(stack, _costs(stack, stack.d1 * 1.1), stack.memory, stack.d0) / base - 1
    exists = offered > base / 1e300
    factor = np.divide(base, offered, out=np.full(offered.shape, np.nan), where=exists)
    sensitivities = map(Sensitivity, *_lists(more_memory, more_d0, more_d1))
    rows = zip(
        *_lists(offered, offered * cost.work_s, factor, factor - 1, base, base * cost.decode_tokens),
        exists.tolist(),
        sensitivities,
        strict=True,
    )
    return [
        Load(total, work, alpha if there else None, room if there else None, rate, tokens, sensitivity)
        for total, work, alpha, room, rate, tokens, there, sensitivity in rows
    ]


def _equilibria(
    stack: _Stack, cost: _Costs, offered: FloatArray, names: tuple[str, ...]
) -> list[Equilibrium]:
    work_rate = offered * cost.work_s
    stable = work_rate < 1
    tau = np.divide(stack.d0, 1 - work_rate, out=np.full(offered.shape, np.nan), where=stable)
    kv_tokens = offered * cost.held * tau
    # class by class as np.bincount adds them up
    in_flight = np.zeros((offered.size, len(names)))
    for row, c in enumerate(stack.class_index):
        in_flight[:, c] += stack.rate[:, row] * stack.stages[:, row]
    rows = zip(
        *_lists(kv_tokens, kv_tokens / stack.memory, tau, offered * cost.iterations * tau),
        *_lists(offered * cost.decode_tokens, offered * cost.iterations),
        (stack.class_rate * tau[:, None]).tolist(),
        (in_flight * tau[:, None]).tolist(),
        stable.tolist(),
        strict=True,
    )
    nothing = tuple(ClassOccupancy(name, None, None) for name in names)
    return [
        Equilibrium(kv, used, time, requests, tokens, prompts, tuple(map(ClassOccupancy, names, stage, held)))
        if there
        else Equilibrium(None, None, None, None, None, None, nothing)
        for kv, used, time, requests, tokens, prompts, stage, held, there in rows
    ]
