"""Measurements as equations in the constants of the iteration-time law.

A measured time is a sum over terms of the law: of a constant times an amount. For an iteration the amounts are its
own (1, K, P, B, √B, what is computed beyond a knee); for the mean TTFT or TPOT of a load they are sums over the
iterations a request waits for, which `kvplan.ingest.timing.played` takes from the simulator. The overhead of a request
is a term too, which iterations do not have.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from enum import StrEnum
from functools import cached_property
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from kvplan.ingest.timing.samples import Samples
from kvplan.model import FloatArray, IntArray, Timing

BoolArray = npt.NDArray[np.bool_]

LINEAR = ("d0", "d1", "d2", "d3")
FIXED, KV, PREFILL = 0, 1, 2  # where d0, d1 and d2 stand in a design
AMOUNTS = {"d1": "KV tokens", "d2": "prefill tokens", "d3": "sequences"}  # what the constants multiply
_SEVERAL = 7  # knees to choose from


class Kind(StrEnum):
    """Time measured."""

    ITERATION = "iteration"
    TPOT = "TPOT"
    TTFT = "TTFT"
    E2E = "E2E"
    INTERVAL = "time between completions"


class Terms(NamedTuple):
    """Which of the terms beyond the linear ones a law has."""

    d4: bool = False
    knee_tokens: float | None = None  # None: no d5

    @property
    def names(self) -> tuple[str, ...]:
        """All terms of such a law."""
        return (*LINEAR, *(["d4"] if self.d4 else []), *(["d5"] if self.knee_tokens is not None else []))

    def needed(self, constants: FloatArray) -> "Terms":
        """Leave out the terms whose constants, in the order of a design, are 0."""
        named = dict(zip(self.names, constants.tolist(), strict=False))
        return Terms(named.get("d4", 0.0) > 0, self.knee_tokens if named.get("d5", 0.0) > 0 else None)


@dataclass(frozen=True)
class Equations:
    """Amounts that times are made of; arrays of shape (n_equations,) but where stated."""

    amounts: FloatArray  # of d0 … d4, shape (n_equations, 5)
    knees: FloatArray  # tokens, shape (n_knees,)
    has_overhead: bool  # of a request, in some of them
    overlap: float  # equations that are made of the same iterations
    attention: float  # d6 over d5, as the prior has it; of a law without a knee attention is in d2
    pairs: FloatArray  # amounts of d6
    beyond: FloatArray  # of d5 for each knee, shape (n_equations, n_knees)
    woken: FloatArray  # of experts
    overhead: FloatArray  # of the overhead of a request
    offset: FloatArray  # seconds that no constant makes, such as the wait for an iteration under way
    seconds: FloatArray
    kind: npt.NDArray[np.str_]
    group: IntArray  # of one load: left out together when a fit is tried on others
    source: IntArray  # position of the file among those read
    line: IntArray
    kv_tokens: FloatArray  # means over iterations
    prefill_tokens: FloatArray
    sequences: FloatArray
    prefill_peak: FloatArray  # most prefill of an iteration; NaN where only a mean is known

    def __len__(self) -> int:
        return int(self.seconds.size)

    def design(self, terms: Terms) -> FloatArray:
        """Return the amounts of the terms of a law, then of the overhead; shape (n_equations, n_terms)."""
        columns = [self.amounts[:, : 5 if terms.d4 else 4]]
        if terms.knee_tokens is not None:
            beyond = self.beyond[:, self.knees == terms.knee_tokens]
            columns.append(beyond + self.attention * self.pairs[:, None])
        if self.has_overhead:
            columns.append(self.overhead[:, None])
        return np.column_stack(columns)

    def times(self, terms: Terms, constants: FloatArray) -> FloatArray:
        """Return times by a law, seconds."""
        return np.asarray(self.offset + self.design(terms) @ constants)

    def parts(self, law: Timing, request_overhead_s: float) -> dict[str, FloatArray]:
        """Return what each constant of a law whose knee is the first adds to times, seconds."""
        amounts = dict(zip((*LINEAR, "d4"), self.amounts.T, strict=True))
        amounts |= {"d5": self.beyond[:, 0], "d6": self.pairs, "experts": self.woken}
        parts = {name: getattr(law, name) * mine for name, mine in amounts.items() if getattr(law, name) > 0}
        return parts | {"request_overhead": request_overhead_s * self.overhead}

    def part(self, rows: BoolArray | IntArray) -> "Equations":
        """Keep some of them."""
        every = {field.name: getattr(self, field.name) for field in fields(self)}
        whole = ("knees", "has_overhead", "overlap", "attention")
        return Equations(**{name: all if name in whole else all[rows] for name, all in every.items()})

    def law(self, terms: Terms, constants: FloatArray) -> tuple[Timing, float]:
        """Return the law that has these constants, in the order of `design`, and the overhead of a request, seconds."""
        named = dict(zip(terms.names, constants.tolist(), strict=False))
        overhead = float(constants[-1]) if self.has_overhead else 0.0
        d6 = self.attention * named.get("d5", 0.0)
        return Timing(**named, knee_tokens=terms.knee_tokens or 0.0, d6=d6), overhead

    def in_order(self, terms: Terms, prior: Timing) -> FloatArray:
        """Put another law in the order of `design`; no overhead is known beforehand.

        Without a knee arithmetic counts from the first token.
        """
        bent = 0.0 if terms.knee_tokens is not None else prior.d5
        known = [prior.d0, prior.d1, prior.d2 + bent, prior.d3 + bent, *([prior.d4] if terms.d4 else [])]
        known += [prior.d5] if terms.knee_tokens is not None else []
        return np.pad(known, (0, self.design(terms).shape[1] - len(known)))

    @property
    def columns(self) -> dict[str, FloatArray]:
        """Mean KV tokens, prefill tokens and sequences, by the constant that multiplies them."""
        return {"d1": self.kv_tokens, "d2": self.prefill_tokens, "d3": self.sequences}

    @cached_property
    def kinds(self) -> dict[str, BoolArray]:
        """Which are of each kind."""
        return {kind: self.kind == kind for kind in np.unique(self.kind).tolist()}

    @cached_property
    def of_iterations(self) -> bool:
        """Whether iterations were timed, and not loads."""
        return bool((self.kind == Kind.ITERATION).all())


def of_samples(samples: Sequence[Samples], knees: Sequence[float] = ()) -> Equations:
    """Make an equation of each iteration; iterations alike in all amounts are one group.

    Knees are those given, or powers of two. Of a prompt's context samples say nothing: its attention is in d2 and d5.
    """
    kv, prefill, batch, seconds, line = (
        np.concatenate([getattr(s, name) for s in samples])
        for name in ("kv_tokens", "prefill_tokens", "sequences", "seconds", "line")
    )
    amounts = np.column_stack([np.ones_like(kv), kv, prefill, batch, np.sqrt(batch)])
    several = np.array(knees) if knees else knees_of(prefill + batch)
    averaged = any((some.prefill_tokens % 1 != 0).any() for some in samples)  # over many iterations
    return Equations(
        amounts=amounts,
        knees=several,
        has_overhead=False,
        overlap=max(some.overlap for some in samples),
        attention=0.0,
        pairs=np.zeros_like(kv),
        beyond=np.maximum(prefill[:, None] + batch[:, None] - several, 0.0),
        woken=np.zeros_like(kv),
        overhead=np.zeros_like(kv),
        offset=np.zeros_like(kv),
        seconds=seconds,
        kind=np.full(seconds.size, Kind.ITERATION.value),
        group=np.unique(amounts, axis=0, return_inverse=True)[1].reshape(-1),
        source=np.repeat(np.arange(len(samples)), [s.seconds.size for s in samples]),
        line=line,
        kv_tokens=kv,
        prefill_tokens=prefill,
        sequences=batch,
        prefill_peak=np.full_like(kv, np.nan) if averaged else prefill,
    )


def knees_of(computed: FloatArray) -> FloatArray:
    """Choose powers of two between the least and the most tokens that an iteration computed, at most seven.

    Examples
    --------
    >>> knees_of(np.array([3.0, 100.0])).tolist()
    [4.0, 8.0, 16.0, 32.0, 64.0]
    """
    low, high = np.log2(max(float(computed.min()), 1.0)), np.log2(max(float(computed.max()), 1.0))
    powers = np.arange(np.ceil(low + 1e-9), np.floor(high - 1e-9) + 1)
    step = max(1, int(np.ceil(powers.size / _SEVERAL)))
    return np.asarray(2.0 ** powers[::-1][::step][::-1])
