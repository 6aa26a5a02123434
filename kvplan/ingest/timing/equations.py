"""What was measured as equations in the constants of the iteration-time law.

A measured time is a sum over terms of the law: of a constant times an amount. For an iteration the amounts are its
own (1, K, P, B, √B, what is computed beyond a knee); for the mean TTFT or TPOT of a load they are sums over the
iterations a request waits for, which `kvplan.ingest.timing.played` takes from the simulator. The overhead of a request
is a term too, which iterations do not have.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from enum import StrEnum
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from kvplan.ingest.timing.samples import Samples
from kvplan.model import FloatArray, IntArray, Timing

BoolArray = npt.NDArray[np.bool_]

LINEAR = ("d0", "d1", "d2", "d3")
KV, PREFILL = 1, 2  # where d1 and d2 stand in a design
AMOUNTS = {"d1": "KV tokens", "d2": "prefill tokens", "d3": "sequences"}  # what the constants multiply
_SEVERAL = 7  # knees to choose from


class Kind(StrEnum):
    """What was timed."""

    ITERATION = "iteration"
    TPOT = "TPOT"
    TTFT = "TTFT"
    E2E = "E2E"
    INTERVAL = "time between completions"

    @property
    def of_client(self) -> bool:
        """Whether what a request takes outside the engine is part of it."""
        return self in (Kind.TTFT, Kind.E2E)


class Terms(NamedTuple):
    """Which of the terms beyond the linear ones a law has."""

    d4: bool = False
    knee_tokens: float | None = None  # None: no d5

    @property
    def more(self) -> int:
        """How many."""
        return self.d4 + (self.knee_tokens is not None)

    def needed(self, found: FloatArray) -> "Terms":
        """Those that did not come out as 0, of constants in the order of a design."""
        named = dict(zip(self.names, found.tolist(), strict=False))
        return Terms(named.get("d4", 0.0) > 0, self.knee_tokens if named.get("d5", 0.0) > 0 else None)

    @property
    def names(self) -> tuple[str, ...]:
        """All terms of such a law."""
        return (*LINEAR, *(["d4"] if self.d4 else []), *(["d5"] if self.knee_tokens is not None else []))


@dataclass(frozen=True)
class Equations:
    """Amounts that times are made of.

    Attributes
    ----------
    amounts : ndarray, shape (n_equations, 5)
        Of d0 … d4.
    knees : ndarray, shape (n_knees,), tokens
    beyond : ndarray, shape (n_equations, n_knees)
        Of d5, for each knee.
    overhead : ndarray, shape (n_equations,)
        Of the overhead of a request.
    offset : ndarray, shape (n_equations,), seconds
        Of a time that no constant makes, such as the wait for an iteration under way.
    seconds : ndarray, shape (n_equations,), seconds
    kind : ndarray of str, shape (n_equations,)
        A `Kind` each.
    group : ndarray of int64, shape (n_equations,)
        Equations of one load have one number, and are left out together when a fit is tried on others.
    source, line : ndarray, shape (n_equations,)
        Position of the file among those read, and the line in it.
    kv_tokens, prefill_tokens, sequences : ndarray, shape (n_equations,)
        Means over iterations.
    prefill_peak : ndarray, shape (n_equations,), tokens
        Most prefill of an iteration; NaN where only a mean is known.
    """

    amounts: FloatArray
    knees: FloatArray
    beyond: FloatArray
    overhead: FloatArray
    offset: FloatArray
    seconds: FloatArray
    kind: npt.NDArray[np.str_]
    group: IntArray
    source: IntArray
    line: IntArray
    kv_tokens: FloatArray
    prefill_tokens: FloatArray
    sequences: FloatArray
    prefill_peak: FloatArray

    def __len__(self) -> int:
        return int(self.seconds.size)

    def design(self, terms: Terms) -> FloatArray:
        """Amounts of the terms of a law, and of the overhead where there is any; shape (n_equations, n_terms)."""
        columns = [self.amounts[:, : 5 if terms.d4 else 4]]
        if terms.knee_tokens is not None:
            columns.append(self.beyond[:, self.knees == terms.knee_tokens])
        if self.overhead.any():
            columns.append(self.overhead[:, None])
        return np.column_stack(columns)

    def times(self, terms: Terms, found: FloatArray) -> FloatArray:
        """Times by a law, seconds; shape (n_equations,)."""
        return np.asarray(self.offset + self.design(terms) @ found)

    def part(self, rows: BoolArray | IntArray) -> "Equations":
        """Some of them."""
        kept = {field.name: getattr(self, field.name) for field in fields(self)}
        return Equations(**{name: all if name == "knees" else all[rows] for name, all in kept.items()})

    def law(self, terms: Terms, found: FloatArray) -> tuple[Timing, float]:
        """The law that has these constants, in the order of `design`, and the overhead of a request, seconds."""
        named = dict(zip(terms.names, found.tolist(), strict=False))
        overhead = float(found[-1]) if self.overhead.any() else 0.0
        return Timing(**named, knee_tokens=terms.knee_tokens or 0.0), overhead

    @property
    def columns(self) -> dict[str, FloatArray]:
        """Mean KV tokens, prefill tokens and sequences, by the constant that multiplies them."""
        return {"d1": self.kv_tokens, "d2": self.prefill_tokens, "d3": self.sequences}


def of_samples(samples: Sequence[Samples]) -> Equations:
    """An equation for each iteration. Iterations alike in all amounts are one group."""
    kv, prefill, batch, seconds, line = (
        np.concatenate([getattr(s, name) for s in samples])
        for name in ("kv_tokens", "prefill_tokens", "sequences", "seconds", "line")
    )
    amounts = np.column_stack([np.ones_like(kv), kv, prefill, batch, np.sqrt(batch)])
    knees = knees_of(prefill + batch)
    group = np.unique(amounts, axis=0, return_inverse=True)[1].reshape(-1)
    return Equations(
        amounts=amounts,
        knees=knees,
        beyond=np.maximum(prefill[:, None] + batch[:, None] - knees, 0.0),
        overhead=np.zeros_like(kv),
        offset=np.zeros_like(kv),
        seconds=seconds,
        kind=np.full(seconds.size, Kind.ITERATION.value),
        group=group,
        source=np.repeat(np.arange(len(samples)), [s.seconds.size for s in samples]),
        line=line,
        kv_tokens=kv,
        prefill_tokens=prefill,
        sequences=batch,
        prefill_peak=np.where(_whole(samples), prefill, np.nan),
    )


def _whole(samples: Sequence[Samples]) -> bool:
    """Whether samples are iterations and not averages over many, whose prefill tokens are not whole."""
    return all((some.prefill_tokens % 1 == 0).all() for some in samples)


def knees_of(computed: FloatArray) -> FloatArray:
    """Powers of two between the least and the most tokens that were computed in an iteration, at most seven.

    Examples
    --------
    >>> knees_of(np.array([3.0, 100.0])).tolist()
    [4.0, 8.0, 16.0, 32.0, 64.0]
    """
    low, high = np.log2(max(float(computed.min()), 1.0)), np.log2(max(float(computed.max()), 1.0))
    powers = np.arange(np.ceil(low + 1e-9), np.floor(high - 1e-9) + 1)
    step = max(1, int(np.ceil(powers.size / _SEVERAL)))
    return np.asarray(2.0 ** powers[::-1][::step][::-1])
